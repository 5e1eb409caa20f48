"""The views of entries: preferences, conversations, facts, blocks, episodes, hits and matches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tomldiary.entries.models import PreferenceItem
from tomldiary.runtime.views import counted
from tomldiary.views.sheet import (
    Badge,
    Bar,
    Key,
    Listing,
    Moment,
    Sheet,
    Table,
    Text,
    card,
    cut,
    listing,
    minute,
    quiet,
    quote,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tomldiary.entries.facts import Fact
    from tomldiary.entries.kinds.blocks import TextBlock
    from tomldiary.entries.kinds.episodes import Episode
    from tomldiary.entries.models import ConversationItem
    from tomldiary.text.similarity import Match
    from tomldiary.user.recall import Hit

_WHOLE = 10_000  # the maximum number of characters of a text in the view of its own entry


def _by(when: object, session: str) -> str:
    return f"{minute(when)}, session {session}" if session else minute(when)


# Preferences


def own_fields(item: PreferenceItem) -> dict[str, Any]:
    """Return the fields that a table's item type adds to `PreferenceItem`."""
    known = PreferenceItem.model_fields
    return {name: getattr(item, name) for name in type(item).model_fields if name not in known}


def _said(item: PreferenceItem) -> str:
    """Return the contexts and the added fields on one line."""
    parts = [f"{name}: {value}" for name, value in own_fields(item).items()]
    return ", ".join([*item.contexts, *parts])


_PREFERENCES = ("key", "text", "contexts", "said", "updated (UTC)")


def _preference_row(named: tuple[str, PreferenceItem]) -> Sequence[object]:
    key, item = named
    return Key(key), item.text, quiet(_said(item)), f"{item.count}×", Moment(item.updated)


def view_preference_item(item: PreferenceItem) -> Sheet:
    """Return the view of one preference."""
    said = _said(item)
    values = [
        ("text", Text(item.text, most=_WHOLE)),
        ("contexts", ", ".join(item.contexts) or None),
        *own_fields(item).items(),
        ("said", counted(item.count, "time")),
        ("stored (UTC)", _by(item.created, item.created_by)),
        ("updated (UTC)", _by(item.updated, item.updated_by)),
    ]
    short = f"{quote(item.text)}{f' ({said})' if said else ''}"
    times = f" {item.count}×" if item.count > 1 else ""
    return Sheet(type(item).__name__, [card(values)], line=f"{short}{times}")


def view_preference_items(found: Mapping[str, PreferenceItem]) -> Sheet:
    """Return the view of the preferences of one category."""
    return listing("preference", _PREFERENCES, found.items(), _preference_row, "No preferences.")


def view_preference_tables(found: Mapping[str, Mapping[str, PreferenceItem]]) -> Sheet:
    """Return the view of all preferences of a user."""
    every = [
        (f"{category}/{key}", item)
        for category, items in found.items()
        for key, item in items.items()
    ]
    sheet = listing("preference", _PREFERENCES, every, _preference_row, "No preferences.")
    if filled := sum(map(bool, found.values())):
        sheet.title += f" in {counted(filled, 'category', 'categories')}"
    return sheet


# Conversations


def view_conversation_item(item: ConversationItem) -> Sheet:
    """Return the view of one conversation."""
    values = [
        ("summary", Text(item.summary or "none yet", most=_WHOLE)),
        ("keywords", ", ".join(item.keywords)),
        ("turns", item.turns),
        ("began (UTC)", Moment(item.created)),
        ("last used (UTC)", Moment(item.updated)),
    ]
    said = f" {quote(item.summary)}" if item.summary else ""
    short = f"{counted(item.turns, 'turn')}, {minute(item.updated)}{said}"
    return Sheet("ConversationItem", [card(values)], line=short)


def _conversation_row(named: tuple[str, ConversationItem]) -> Sequence[object]:
    key, item = named
    summary, keywords = item.summary or quiet("no summary yet"), quiet(", ".join(item.keywords))
    return Key(key), summary, keywords, item.turns, Moment(item.updated)


def view_conversation_items(found: Mapping[str, ConversationItem]) -> Sheet:
    """Return the view of a user's conversations."""
    columns = ("session", "summary", "keywords", "turns", "last used (UTC)")
    return listing("conversation", columns, found.items(), _conversation_row, "No conversations.")


# Facts


def _holds(one: Fact) -> str:
    start = "" if one.valid_from is None else f"from {minute(one.valid_from)}"
    end = "" if one.valid_to is None else f"to {minute(one.valid_to)}"
    return " ".join(filter(None, (start, end))) or "always"


def view_fact(one: Fact) -> Sheet:
    """Return the view of one fact."""
    data = one.data.model_dump()
    values = [
        *data.items(),
        ("holds", _holds(one)),
        ("stored (UTC)", _by(one.created, one.created_by)),
        ("updated (UTC)", _by(one.updated, one.updated_by)),
        ("confidence", Bar(one.confidence) if one.confidence < 1 else None),
        ("from turn", Key(one.source) if one.source else None),
    ]
    short = f"{one.id} {', '.join(f'{name}={value}' for name, value in data.items())}"
    return Sheet(cut(one.id, 80), [card(values)], line=short)


def view_fact_list(found: Sequence[Fact]) -> Sheet:
    """Return the view of facts of one type."""
    names = list(dict.fromkeys(name for one in found for name in one.data.model_dump()))
    is_timed = any(one.valid_from or one.valid_to for one in found)

    def row(one: Fact) -> Sequence[object]:
        data = one.data.model_dump()
        values = ("" if data.get(name) is None else data[name] for name in names)
        holds = quiet(_holds(one) if is_timed else "")  # an empty column is not shown
        return Key(one.id), *values, holds, Moment(one.updated)

    columns = ("fact", *names, "holds (UTC)", "updated (UTC)")
    none = (
        "No fact of a registered type matches. diary.register_schema(…) registers a type; problems() of the user names"
        " the facts that do not fit it."
    )
    return listing("fact", columns, found, row, none)


# Blocks, episodes and items


def view_text_block(one: TextBlock) -> Sheet:
    """Return the view of one block."""
    rows = [[Text(one.text, most=_WHOLE)], [quiet(f"updated {minute(one.updated)} UTC")]]
    pinned = [Badge("pinned")] if one.is_pinned else []
    return Sheet("TextBlock", [Table(("",), rows)], line=quote(one.text), badges=pinned)


def _block_row(named: tuple[str, TextBlock]) -> Sequence[object]:
    name, one = named
    return Key(name), one.text, Badge("pinned") if one.is_pinned else "", Moment(one.updated)


def view_text_blocks(found: Mapping[str, TextBlock]) -> Sheet:
    """Return the view of a user's blocks."""
    columns = ("block", "text", "", "updated (UTC)")
    return listing("block", columns, found.items(), _block_row, "No blocks.")


def view_episode(one: Episode) -> Sheet:
    """Return the view of one episode."""
    values = [
        ("user", Text(one.input, most=_WHOLE)),
        ("assistant", Text(one.output, most=_WHOLE)),
        ("session", Key(one.session_id)),
        ("turn", Key(one.source) if one.source else None),
        ("time (UTC)", Moment(one.created)),
    ]
    short = f"{minute(one.created)} {quote(one.input)} → {quote(one.output)}"
    return Sheet(cut(f"Episode {one.id}", 80), [card(values)], line=short)


def view_episodes(found: Sequence[Episode]) -> Sheet:
    """Return the view of episodes."""
    return listing(
        "episode",
        ("time (UTC)", "session", "user", "assistant"),
        found,
        lambda one: (Moment(one.created), Key(one.session_id), one.input, one.output),
        "No episodes.",
    )


def _item_row(named: tuple[str, Mapping[str, Any]]) -> Sequence[object]:
    key, value = named
    return Key(key), ", ".join(f"{name} = {each}" for name, each in value.items())


def view_item_values(found: Mapping[str, Mapping[str, Any]]) -> Sheet:
    """Return the view of a user's items."""
    return listing("item", ("item", "value"), found.items(), _item_row, "No items.")


# Search


def _hit_row(one: Hit) -> Sequence[object]:
    source = Key(one.source) if one.source else ""
    text = Text(one.text, one.reasons)
    return Bar(one.score), Key(one.full_key), text, source, Moment(one.updated or one.created)


def _match_row(one: Match) -> Sequence[object]:
    conflict = Badge(one.conflict, "warn") if one.conflict else ""
    score = Bar(one.score / 100, f"{one.score:.0f}")
    return score, Key(f"{one.category}/{one.id}"), one.text, conflict


def _match_line(one: Match) -> str:
    conflict = f" ({one.conflict})" if one.conflict else ""
    return f"{one.score:.0f} {one.category}/{one.id} {quote(one.text)}{conflict}"


_HITS = Listing(
    "hit",
    ("score", "key", "text", "from turn", "updated (UTC)"),
    _hit_row,
    lambda one: f"{one.score:.2f} {one.full_key} {quote(one.text)}",
    "Nothing matches.",
)
_MATCHES = Listing(
    "similar entry",
    ("score", "key", "text", ""),
    _match_row,
    _match_line,
    "No similar entries.",
    "similar entries",
)
view_hit, view_hits = _HITS.one, _HITS.all
view_match, view_matches = _MATCHES.one, _MATCHES.all
