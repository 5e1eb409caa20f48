"""Checks of the options that the adapters share: writers, numbers, names, choices and tools."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, TypeVar

from tomldiary.errors import InvalidValue, wrong_type, wrong_value
from tomldiary.runtime.callables import refuse_async, refuse_misfit
from tomldiary.storage.protocol import Backend, LocalFolder, WrapsBackend
from tomldiary.toml.values import check_instance
from tomldiary.toml.values import checked_count as checked_count
from tomldiary.toml.values import checked_flag as checked_flag
from tomldiary.toml.values import checked_names as checked_names
from tomldiary.toml.values import checked_table as checked_table
from tomldiary.toml.values import checked_text as checked_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from tomldiary.diary import Diary
    from tomldiary.writer.writer import MemoryWriter

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")


def check_writer(given: MemoryWriter, otherwise: str = "") -> None:
    """Check that an object is a writer.

    Args:
        given: The writer.
        otherwise: What else the caller can do, for the error message.

    Raises:
        InvalidValue: It is not a writer, or the class of one.
    """
    check_instance(given, "writer")
    if not callable(getattr(given, "submit_later", None)):
        hint = f"Make one: MemoryWriter(diary){otherwise}."
        raise wrong_type(given, "a MemoryWriter", "writer", hint)


def writer_of(given: MemoryWriter, diary: Diary) -> MemoryWriter:
    """Return a given writer if it writes to the storage of `diary`.

    Raises:
        InvalidValue: `given` is not a writer, or it writes to another storage.
    """
    check_writer(given)
    other: Any = getattr(given, "diary", None)
    engine: Any = getattr(other, "engine", None)
    # The objects are compared first, because comparing paths reads the disk.
    if (
        engine is not None
        and engine.backend is not diary.engine.backend
        and place_of(engine.backend) != place_of(diary.engine.backend)
    ):
        raise InvalidValue(
            f"the writer writes to {other!r}, not to {diary!r}. Create it with the same diary, or leave it out.",
            where="writer",
        )
    return given


def place_of(backend: Backend) -> object:
    """Return a key that identifies the storage of a backend while the backend exists."""
    if isinstance(backend, LocalFolder):
        return os.path.realpath(backend.base_path)
    return id(backend.wrapped if isinstance(backend, WrapsBackend) else backend)


def memory_name(name: str) -> str:
    """Return the checked name of one of an agent's memories; "" for the only one.

    Raises:
        InvalidValue: The name cannot be the prefix of a tool's name.
    """
    if checked_text(name, "name") and not _NAME.fullmatch(name):
        raise InvalidValue(
            f"{name!r} cannot be the prefix of a tool name. Use a letter and up to 31 letters, digits and _.",
            where="name",
        )
    return name


def checked_counter(given: Callable[[str], int] | None) -> Callable[[str], int] | None:
    """Return the function that counts the tokens of a text, or None, unchanged.

    Raises:
        InvalidValue: It is neither, or has other parameters.
    """
    if given is not None and not callable(given):
        raise wrong_value(given, "a function of a text", "token_counter")
    refuse_async(given, "token_counter")
    if given is not None:
        refuse_misfit(given, "text", "token_counter", "")
    return given


def checked_descriptions(
    given: Mapping[str, str] | None, offered: Sequence[str]
) -> Mapping[str, str]:
    """Return the descriptions that replace those of tools, by name.

    Raises:
        InvalidValue: It is not a table of texts, or a name is not the name of a tool.
    """
    texts = checked_table({} if given is None else given, "descriptions")
    known_tools("descriptions", texts, offered)
    return {name: checked_text(text, f"descriptions.{name}") for name, text in texts.items()}


def checked_episodes(given: bool | None) -> bool | None:  # noqa: FBT001 - an option of the adapters
    """Return whether turns are stored as episodes, or None for the diary's setting, unchanged.

    Raises:
        InvalidValue: It is not True, False or None.
    """
    return None if given is None else checked_flag(given, "episodes")


def known_keys(option: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse unknown keys of a configuration, because a misspelt key would have no effect.

    Raises:
        InvalidValue: `given` is not a mapping, or a key is unknown.
    """
    for key in checked_table(given, option):
        if key not in known:
            raise InvalidValue(f"{key!r} is unknown. Use one of: {', '.join(known)}.", where=option)


def one_of(option: str, value: T, allowed: Sequence[Any], also: str = "") -> T:
    """Return a value if it is one of the allowed values of an option.

    Args:
        option: The name of the option.
        value: The value.
        allowed: The allowed values.
        also: A description of further allowed values, for the error message.

    Raises:
        InvalidValue: The value is not allowed.
    """
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise InvalidValue(f"{value!r} is unknown. Use one of: {choices}{also}.", where=option)
    return value


def known_tools(option: str, names: Collection[str], offered: Sequence[str]) -> frozenset[str]:
    """Return the tools that an option names, as a collection or a single string.

    Raises:
        InvalidValue: A name is not the name of a tool.
    """
    given = frozenset(checked_names(names, option))
    for name in sorted(given.difference(offered)):
        raise InvalidValue(
            f"there is no tool {name!r}. Use one of: {', '.join(offered)}.", where=option
        )
    return given


def chosen_tools(
    tools: str | Collection[str], offered: Sequence[str], reading: Collection[str]
) -> tuple[str, ...]:
    """Return the tools that "all", "read", "none" or a list of names selects, in the order of `offered`.

    `reading` has the names of the verbs that change nothing.

    Raises:
        InvalidValue: `tools` is another string, or a name is not the name of a tool.
    """
    if isinstance(tools, str):
        sets = {"all": offered, "read": reading, "none": ()}
        wanted = sets[one_of("tools", tools, tuple(sets), ", or a list of names")]
    else:
        wanted = known_tools("tools", tools, offered)
    return tuple(name for name in offered if name in wanted)
