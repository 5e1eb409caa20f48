"""The options that the adapters share: a diary, a writer, a number, one of a few words, and tools."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

from tomldiary.errors import InvalidValue
from tomldiary.storage.protocol import Backend, LocalFolder, WrapsBackend
from tomldiary.toml.values import checked_count

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tomldiary.diary import Diary
    from tomldiary.writer.writer import MemoryWriter

__all__ = [
    "checked_count",
    "chosen_tools",
    "known_keys",
    "known_tools",
    "memory_name",
    "one_of",
    "place_of",
    "writer_of",
]

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")


def writer_of(given: MemoryWriter, diary: Diary) -> MemoryWriter:
    """Return a writer if it fills the memory of `diary`.

    Raises:
        InvalidValue: `given` is no writer, or a writer of another diary.
    """
    if not callable(getattr(given, "submit_nowait", None)):
        raise InvalidValue(
            f"expected a MemoryWriter, found {type(given).__name__}. Make one: MemoryWriter(diary).",
            where="writer",
        )
    other: Any = getattr(given, "diary", None)
    engine: Any = getattr(other, "engine", None)
    # Whether the objects are the same comes first: paths are asked of the disk.
    if (
        engine is not None
        and engine.backend is not diary.engine.backend
        and place_of(engine.backend) != place_of(diary.engine.backend)
    ):
        raise InvalidValue(
            f"the writer writes to {other!r}, not to {diary!r}. Make one of the same diary, or leave it out.",
            where="writer",
        )
    return given


def place_of(backend: Backend) -> object:
    """Return what identifies the documents of a backend, as long as it is in use."""
    if isinstance(backend, LocalFolder):
        return backend.base_path.resolve()
    return id(backend.wrapped if isinstance(backend, WrapsBackend) else backend)


def memory_name(name: str) -> str:
    """Return the name of one of an agent's memories; "" for the only one.

    Raises:
        InvalidValue: It cannot begin the name of a tool.
    """
    if name and not _NAME.fullmatch(name):
        raise InvalidValue(
            f"{name!r} cannot begin the name of a tool. Use a letter and up to 31 letters, digits and _.",
            where="name",
        )
    return name


def known_keys(option: str, given: Collection[str], known: Sequence[str]) -> None:
    """Refuse keys of a configuration that mean nothing: a misspelt one would have no effect.

    Raises:
        InvalidValue: There is such a key.
    """
    for key in given:
        if key not in known:
            raise InvalidValue(f"{key!r} is unknown. Use one of: {', '.join(known)}.", where=option)


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
