"""The options that the adapters share: one of a few words, and which tools a model gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from tomldiary.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["chosen_tools", "known_tools", "one_of"]

T = TypeVar("T")


def one_of(option: str, value: T, allowed: Sequence[Any], also: str = "") -> T:
    """Return a value if it is one of those that an option takes.

    Args:
        option: Its name.
        value: What it was given.
        allowed: What it takes.
        also: What else it takes, in words.

    Raises:
        InvalidValue: It is none of them.
    """
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise InvalidValue(f"{value!r} is unknown. Use one of: {choices}{also}.", where=option)
    return value


def known_tools(option: str, names: Collection[str], offered: Sequence[str]) -> frozenset[str]:
    """Return the tools that an option names; one name may stand alone.

    Raises:
        InvalidValue: One of them is no tool.
    """
    given = frozenset([names] if isinstance(names, str) else names)
    for name in sorted(given.difference(offered)):
        raise InvalidValue(
            f"there is no tool {name!r}. Use one of: {', '.join(offered)}.", where=option
        )
    return given


def chosen_tools(
    tools: str | Collection[str], offered: Sequence[str], reading: Sequence[str]
) -> tuple[str, ...]:
    """Return the tools that "all", "read", "none" or a list of names stands for, in the order offered.

    Raises:
        InvalidValue: It is none of these, or one of the names is no tool.
    """
    if isinstance(tools, str):
        sets = {"all": offered, "read": reading, "none": ()}
        return tuple(sets[one_of("tools", tools, tuple(sets), ", or a list of names")])
    wanted = known_tools("tools", tools, offered)
    return tuple(name for name in offered if name in wanted)
