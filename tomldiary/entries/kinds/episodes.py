"""Episodes: the verbatim text of turns, appended to one document for each month.

    [episodes."2026-11-20T06:50:12.123456Z"]
    input = "…"
    output = "…"
    _created_by = "s1"

An id is the time in UTC, so that ids sort by time and contain their month. A document has at most 128 KB and is then
followed by `episodes/2026-11-002`, because each write stores its whole document.
"""

# ruff: noqa: ARG002, D102 - overrides: `EntryKind` documents them

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tomldiary.entries.facts import ALWAYS
from tomldiary.entries.fields import check_key, check_length, session_turn, tables_at
from tomldiary.entries.kind import Collected, EntryKind, Rules, Tables, Writing
from tomldiary.errors import InvalidValue
from tomldiary.runtime.views import ListView, Viewed
from tomldiary.toml.values import checked_text, encode_nulls, moment, timestamp

if TYPE_CHECKING:
    from tomldiary.toml.document import Document, Path


CONSOLIDATION = "consolidation"
"""The prefix of the documents that record which episodes were consolidated."""
_ROOT = "episodes"
_KIND = re.compile(r"episodes/\d{4}-\d{2}(-\d{3,})?", re.ASCII)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}(?!\d)", re.ASCII)
_FULL = 128 * 1024  # characters
_MAX_TEXT = 100_000
_CUT = " … (cut)"
_STEP = ("tool", "arguments", "result")


class ToolStep(NamedTuple):
    """One call of a tool during a turn."""

    tool: str
    arguments: str = ""
    """The arguments as JSON."""
    result: str = ""


def checked_steps(given: Iterable[Sequence[str]]) -> tuple[ToolStep, ...]:
    """Return tool calls from steps or tuples of text.

    Raises:
        InvalidValue: A value has another type.
    """
    found: list[ToolStep] = []
    for step in given if isinstance(given, Iterable) else [given]:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        if not isinstance(step, list | tuple) or not 1 <= len(step) <= len(_STEP):
            raise InvalidValue(
                "expected the name of a tool, its arguments as JSON and its result, as texts in a tuple.",
                where=f"{_ROOT}.steps",
            )
        found.append(ToolStep(*(checked_text(each, f"{_ROOT}.steps") for each in step)))
    return tuple(found)


def turn_value(said: str, answer: str, steps: Sequence[ToolStep]) -> dict[str, Any] | None:
    """Return the fields of a turn's episode, with long texts truncated; None for a turn without text and tool calls."""
    if not (said.strip() or answer.strip() or steps):
        return None
    value: dict[str, Any] = {"input": _cut(said), "output": _cut(answer)}
    if steps:
        value["steps"] = [dict(zip(_STEP, map(_cut, step), strict=True)) for step in steps]
    return value


@dataclass(frozen=True, slots=True, repr=False)
class Episode(Viewed):
    """A copy of one stored turn."""

    id: str
    input: str
    output: str
    session_id: str
    created: str
    steps: tuple[ToolStep, ...] = ()
    """The tool calls of the turn, in order."""
    source: str = ""
    """The turn that entries were extracted from, as `session#turn`; "" if none was extracted when it was said."""


class Episodes(ListView[Episode]):
    """Episodes, oldest first."""


def episode_kinds(kinds: Iterable[str]) -> list[str]:
    """Return the documents with episodes, oldest first."""
    return sorted((kind for kind in kinds if _KIND.fullmatch(kind)), key=_place_of)


def homes_of(kinds: Iterable[str], episode_id: str) -> list[str]:
    """Return the documents that may contain an episode, newest first; all of them if the id is not a time."""
    month = f"{_ROOT}/{checked_text(episode_id, 'id')[:7]}"
    found = list(reversed(episode_kinds(kinds)))
    if _DAY.match(episode_id) is None:
        return found
    return [kind for kind in found if kind[: len(month)] == month]


def episode_entries(document: Tables) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the episodes of one document by id, in the order of the file."""
    return tables_at(document, _ROOT)


def month_of(kind: str) -> str:
    """Return the month of a document with episodes, such as `2026-11`."""
    return _place_of(kind)[0]


def happened(entry: Mapping[str, Any]) -> datetime:
    """Return the time of an episode; `ALWAYS` if none is stored."""
    return moment(entry.get("_created")) or ALWAYS


def to_episode(key: str, entry: Mapping[str, Any]) -> Episode:
    """Return an entry as an episode, with defaults for missing and malformed fields."""
    names = ("input", "output", "_created_by", "_created")
    values = [str(entry.get(name, "")) for name in names]
    return Episode(key, *values, steps=_steps(entry), source=str(entry.get("_source", "")))


def _steps(entry: Mapping[str, Any]) -> tuple[ToolStep, ...]:
    found: Any = entry.get("steps")
    tables = cast("list[Any]", found) if isinstance(found, list) else []
    return tuple(
        ToolStep(*(str(cast("Mapping[str, Any]", each).get(name, "")) for name in _STEP))
        for each in tables
        if isinstance(each, Mapping)
    )


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - len(_CUT)]}{_CUT}"


def new_episode(
    writing: Writing, value: Mapping[str, Any], when: datetime, key: str | None = None
) -> str:
    """Append an episode, and return its id.

    Args:
        writing: The transaction and the session of the episode.
        value: `input`, `output`, and further fields of the caller.
        when: The time of the episode, which becomes its id; if this id is in use, a slightly later time is used.
        key: An id that is used instead of the time.

    Raises:
        InvalidValue: A text is too long, all fields are blank, or the id is in use. Nothing was changed.
        NotSupported: The backend could not find the episode again.
    """
    for name in ("input", "output"):
        size = len(checked_text(value.get(name), f"{_ROOT}.{name}"))
        check_length(size, _MAX_TEXT, f"{_ROOT}.{name}")
    if not any(str(each or "").strip() for each in value.values()):
        raise InvalidValue(
            "an episode needs an input, an output or another field, such as a tool call; all are blank.",
            where=_ROOT,
        )
    if key is not None:
        check_key(key, "an id", _ROOT)
    chosen = key or id_of(when)
    known = [writing.edit(name) for name in homes_of(writing.documents, chosen)]
    while any(document.table((_ROOT, chosen)) is not None for document in known):
        if key is not None:
            raise InvalidValue(
                "an episode with this id exists, and episodes are never changed. Choose another id.",
                where=f"{_ROOT}.{key}",
            )
        when += timedelta(microseconds=1)
        month, chosen = chosen[:7], id_of(when)
        if chosen[:7] != month:
            known = [writing.edit(name) for name in homes_of(writing.documents, chosen)]
    month = chosen if _DAY.match(chosen) else id_of(when)
    document = _document_for(homes_of(writing.documents, month), month[:7], writing)
    entry = {**value, "_created": when.isoformat(timespec="microseconds")}
    if writing.session:
        entry["_created_by"] = writing.session
    writing.edit(document).put((_ROOT, chosen), entry)
    return chosen


def _document_for(parts: list[str], month: str, writing: Writing) -> str:
    """Return the newest document of a month, or the name of the next one if it is full."""
    if not parts:
        return f"{_ROOT}/{month}"
    if writing.edit(parts[0]).size < _FULL:
        return parts[0]
    return f"{_ROOT}/{month}-{_place_of(parts[0])[1] + 1:03d}"


def _place_of(kind: str) -> tuple[str, int]:
    """Return the month of a document, and its number in this month."""
    name = kind.removeprefix(f"{_ROOT}/")
    return name[:7], int(name[8:] or 1)


def id_of(when: datetime) -> str:
    """Return the id of an episode that is derived from its time."""
    return f"{when.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


class EpisodeKind(EntryKind):
    """`[episodes."2026-11-20T06:50:12Z"]`: verbatim turns, in one or more documents a month."""

    is_long = True
    is_shown = False
    longest = _MAX_TEXT
    shape = "episodes/id"
    unchanged_because = (
        "an episode is what was said and is never changed; it can be removed with forget."
    )

    def documents(self, listed: Iterable[str]) -> list[str]:
        return episode_kinds(listed)

    def chosen_name(self, name: str) -> str:
        return super().chosen_name(name) if moment(name) is None else ""

    def places(self, path: Path, listed: Iterable[str]) -> tuple[list[str], Path]:
        return homes_of(listed, path[-1]), path

    def body(self, entry: Mapping[str, Any]) -> str:
        steps = (text for step in _steps(entry) for text in step)
        return " ".join([self.text(entry), *steps])

    def names(self, name: str, entry: Mapping[str, Any]) -> str:
        return ""

    def turn(self, name: str, entry: Mapping[str, Any]) -> tuple[str, str] | None:
        return session_turn(name, entry)

    def seen(self, document: Document, rules: Rules) -> Iterator[str]:
        times = (happened(entry) for _, entry in self.entries(document, rules))
        return (timestamp(when) for when in times if when != ALWAYS)

    def put(
        self, writing: Writing, collection: Collected, key: str, value: Mapping[str, Any]
    ) -> None:
        new_episode(writing, encode_nulls(value), datetime.fromisoformat(writing.now), key)
