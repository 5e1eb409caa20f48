"""The views of entries: preferences, conversations, facts, blocks, episodes, hits and matches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from tomldiary.entries.models import PreferenceItem
from tomldiary.runtime.views import counted
from tomldiary.text.visible import one_line
from tomldiary.views.sheet import (
    Badge,
    Bar,
    Cell,
    Key,
    Moment,
    Sheet,
    Table,
    Text,
    cut,
    minute,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tomldiary.entries.blocks import TextBlock
    from tomldiary.entries.episodes import Episode
    from tomldiary.entries.facts import Fact
    from tomldiary.entries.models import ConversationItem
    from tomldiary.text.similarity import Match
    from tomldiary.user.recall import Hit

__all__ = [
    "block",
    "blocks",
    "conversation",
    "conversations",
    "episode",
    "episodes",
    "fact",
    "facts",
    "hit",
    "hits",
    "items",
    "match",
    "matches",
    "own_fields",
    "preference",
    "preference_tables",
    "preferences",
]

_WHOLE = 10_000  # the maximum number of characters of a text in the view of its own entry


def _quote(text: object) -> str:
    return f'"{cut(one_line(text), 60)}"'


# Preferences


def own_fields(item: PreferenceItem) -> dict[str, Any]:
    """Return the fields that a table's item type adds to `PreferenceItem`."""
    known = PreferenceItem.model_fields
    return {name: getattr(item, name) for name in type(item).model_fields if name not in known}


def _said(item: PreferenceItem) -> str:
    """Return the contexts and the added fields on one line."""
    parts = [f"{name}: {value}" for name, value in own_fields(item).items()]
    return ", ".join([*item.contexts, *parts])


def _preference_rows(named: Mapping[str, PreferenceItem], category: str = "") -> list[list[Cell]]:
    return [
        [
            Key(f"{category}/{key}" if category else key),
            Text(item.text),
            Text(_said(item), is_quiet=True),
            Text(f"{item.count}×"),
            Moment(item.updated),
        ]
        for key, item in named.items()
    ]


_PREFERENCE_COLUMNS = ("key", "text", "contexts", "said", "updated (UTC)")


def preference(item: PreferenceItem) -> Sheet:
    """Return the view of one preference."""
    said = _said(item)
    rows: list[list[Cell]] = [
        [Text("text"), Text(item.text, most=_WHOLE)],
        *([[Text("contexts"), Text(", ".join(item.contexts))]] if item.contexts else []),
        *([Text(name), Text(value)] for name, value in own_fields(item).items()),
        [Text("said"), Text(counted(item.count, "time"))],
        [Text("stored (UTC)"), _by(item.created, item.created_by)],
        [Text("updated (UTC)"), _by(item.updated, item.updated_by)],
    ]
    short = f"{_quote(item.text)}{f' ({said})' if said else ''}"
    if item.count > 1:
        short += f" {item.count}×"
    return Sheet(type(item).__name__, [Table(("", ""), rows)], line=short)


def _by(when: object, session: str) -> Cell:
    name = minute(when)
    return Text(f"{name}, session {session}" if session else name)


def preferences(found: Mapping[str, PreferenceItem]) -> Sheet:
    """Return the view of the preferences of one category."""
    table = Table(_PREFERENCE_COLUMNS, _preference_rows(found))
    return Sheet(counted(len(found), "preference"), [table], empty="No preferences.")


def preference_tables(found: Mapping[str, Mapping[str, PreferenceItem]]) -> Sheet:
    """Return the view of all preferences of a user."""
    filled = {category: items for category, items in found.items() if items}
    number = sum(map(len, filled.values()))
    every = [row for name, items in filled.items() for row in _preference_rows(items, name)]
    title = counted(number, "preference")
    if filled:
        title += f" in {counted(len(filled), 'category', 'categories')}"
    table = Table(_PREFERENCE_COLUMNS, every)
    return Sheet(title, [table], empty="No preferences.")


# Conversations


def conversation(item: ConversationItem) -> Sheet:
    """Return the view of one conversation."""
    rows: list[list[Cell]] = [
        [Text("summary"), Text(item.summary or "none yet", most=_WHOLE)],
        [Text("keywords"), Text(", ".join(item.keywords))],
        [Text("turns"), Text(item.turns)],
        [Text("began (UTC)"), Moment(item.created)],
        [Text("last used (UTC)"), Moment(item.updated)],
    ]
    short = f"{counted(item.turns, 'turn')}, {minute(item.updated)}"
    if item.summary:
        short += f" {_quote(item.summary)}"
    return Sheet("ConversationItem", [Table(("", ""), rows)], line=short)


def conversations(found: Mapping[str, ConversationItem]) -> Sheet:
    """Return the view of a user's conversations."""
    every: list[list[Cell]] = [
        [
            Key(key),
            Text(item.summary or "no summary yet", is_quiet=not item.summary),
            Text(", ".join(item.keywords), is_quiet=True),
            Text(item.turns),
            Moment(item.updated),
        ]
        for key, item in found.items()
    ]
    columns = ("session", "summary", "keywords", "turns", "last used (UTC)")
    table = Table(columns, every)
    return Sheet(counted(len(found), "conversation"), [table], empty="No conversations.")


# Facts


def _data(given: Any) -> Mapping[str, Any]:
    if isinstance(given, BaseModel):
        return given.model_dump()
    return cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {"value": given}


def _holds(one: Fact) -> str:
    start = "" if one.valid_from is None else f"from {minute(one.valid_from)}"
    end = "" if one.valid_to is None else f"to {minute(one.valid_to)}"
    return " ".join(filter(None, (start, end))) or "always"


def fact(one: Fact) -> Sheet:
    """Return the view of one fact."""
    data = _data(one.data)
    rows: list[list[Cell]] = [
        *([Text(name), Text(value)] for name, value in data.items()),
        [Text("holds"), Text(_holds(one))],
        [Text("stored (UTC)"), _by(one.created, one.created_by)],
        [Text("updated (UTC)"), _by(one.updated, one.updated_by)],
    ]
    if one.confidence < 1:
        rows.append([Text("confidence"), Bar(one.confidence)])
    if one.source:
        rows.append([Text("from turn"), Key(one.source)])
    short = f"{one.id} {', '.join(f'{name}={value}' for name, value in data.items())}"
    return Sheet(cut(one.id, 80), [Table(("", ""), rows)], line=short)


def facts(found: Sequence[Fact]) -> Sheet:
    """Return the view of facts of one type."""
    names = list(dict.fromkeys(name for one in found for name in _data(one.data)))
    is_timed = any(one.valid_from or one.valid_to for one in found)
    every: list[list[Cell]] = []
    for one in found:
        data = _data(one.data)
        values = [Text("" if data.get(name) is None else data[name]) for name in names]
        holds = [Text(_holds(one), is_quiet=True)] if is_timed else []
        every.append([Key(one.id), *values, *holds, Moment(one.updated)])
    columns = ("fact", *names, *(["holds (UTC)"] if is_timed else []), "updated (UTC)")
    table = Table(columns, every)
    return Sheet(
        counted(len(found), "fact"), [table], empty="No fact of a registered type matches."
    )


# Blocks and episodes


def block(one: TextBlock) -> Sheet:
    """Return the view of one block."""
    rows: list[list[Cell]] = [
        [Text(one.text, most=_WHOLE)],
        [Text(f"updated {minute(one.updated)} UTC", is_quiet=True)],
    ]
    pinned = [Badge("pinned")] if one.is_pinned else []
    return Sheet("TextBlock", [Table(("",), rows)], line=_quote(one.text), badges=pinned)


def blocks(found: Mapping[str, TextBlock]) -> Sheet:
    """Return the view of a user's blocks."""
    every: list[list[Cell]] = [
        [
            Key(name),
            Text(one.text),
            Badge("pinned") if one.is_pinned else Text(""),
            Moment(one.updated),
        ]
        for name, one in found.items()
    ]
    table = Table(("block", "text", "", "updated (UTC)"), every)
    return Sheet(counted(len(found), "block"), [table], empty="No blocks.")


def episode(one: Episode) -> Sheet:
    """Return the view of one episode."""
    rows: list[list[Cell]] = [
        [Text("user"), Text(one.input, most=_WHOLE)],
        [Text("assistant"), Text(one.output, most=_WHOLE)],
        [Text("session"), Key(one.session_id)],
        *([[Text("turn"), Key(one.source)]] if one.source else []),
        [Text("time (UTC)"), Moment(one.created)],
    ]
    short = f"{minute(one.created)} {_quote(one.input)} → {_quote(one.output)}"
    return Sheet("Episode", [Table(("", ""), rows)], line=short)


def episodes(found: Sequence[Episode]) -> Sheet:
    """Return the view of episodes."""
    every: list[list[Cell]] = [
        [Moment(one.created), Key(one.session_id), Text(one.input), Text(one.output)]
        for one in found
    ]
    columns = ("time (UTC)", "session", "user", "assistant")
    table = Table(columns, every)
    return Sheet(counted(len(found), "episode"), [table], empty="No episodes.")


def items(found: Mapping[str, Mapping[str, Any]]) -> Sheet:
    """Return the view of a user's items."""
    every: list[list[Cell]] = [
        [Key(key), Text(", ".join(f"{name} = {each}" for name, each in value.items()))]
        for key, value in found.items()
    ]
    table = Table(("item", "value"), every)
    return Sheet(counted(len(found), "item"), [table], empty="No items.")


# Search


def _hit_row(one: Hit) -> list[Cell]:
    return [
        Bar(one.score),
        Key(one.full_key),
        Text(one.text, one.reasons),
        Key(one.source) if one.source else Text(""),
        Moment(one.updated or one.created),
    ]


_HIT_COLUMNS = ("score", "key", "text", "from turn", "updated (UTC)")


def hit(one: Hit) -> Sheet:
    """Return the view of one hit."""
    short = f"{one.score:.2f} {one.full_key} {_quote(one.text)}"
    return Sheet("Hit", [Table(_HIT_COLUMNS, [_hit_row(one)])], line=short)


def hits(found: Sequence[Hit]) -> Sheet:
    """Return the view of search results, with a bar for each score and the matching words marked."""
    table = Table(_HIT_COLUMNS, [_hit_row(one) for one in found])
    return Sheet(counted(len(found), "hit"), [table], empty="Nothing matches.")


def _match_row(one: Match) -> list[Cell]:
    return [
        Bar(one.score / 100, f"{one.score:.0f}"),
        Key(f"{one.category}/{one.id}"),
        Text(one.text),
        Badge(one.conflict, "warn") if one.conflict else Text(""),
    ]


_MATCH_COLUMNS = ("score", "key", "text", "")


def match(one: Match) -> Sheet:
    """Return the view of one similar entry."""
    conflict = f" ({one.conflict})" if one.conflict else ""
    short = f"{one.score:.0f} {one.category}/{one.id} {_quote(one.text)}{conflict}"
    return Sheet("Match", [Table(_MATCH_COLUMNS, [_match_row(one)])], line=short)


def matches(found: Sequence[Match]) -> Sheet:
    """Return the view of similar entries."""
    title = counted(len(found), "similar entry", "similar entries")
    table = Table(_MATCH_COLUMNS, [_match_row(one) for one in found])
    return Sheet(title, [table], empty="No similar entries.")
