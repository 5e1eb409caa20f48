"""The views of history: changes, differences between two states, and the origin of an entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tomldiary.entries.kinds import KINDS, entry_kind
from tomldiary.entries.kinds.pending import held_entry
from tomldiary.errors import DiaryError
from tomldiary.history.queries import MOST_CHANGES
from tomldiary.runtime.views import counted
from tomldiary.text.visible import one_line
from tomldiary.toml.values import render_key, render_value, same_value
from tomldiary.views.sheet import (
    Badge,
    Cell,
    Change,
    Code,
    Key,
    Moment,
    Several,
    Sheet,
    Table,
    Text,
    Tone,
    cut,
    minute,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tomldiary.entries.kind import EntryKind
    from tomldiary.entries.kinds.pending import PendingChange
    from tomldiary.history.queries import Difference, HistoryEntry, Origin

__all__ = [
    "change",
    "changes",
    "difference",
    "differences",
    "origin",
    "pending_change",
    "pending_changes",
    "text_of",
    "verb_of",
]

_BOOKKEEPING = "_"  # the prefix of fields that the engine manages
_EMPTY: tuple[Any, ...] = (None, "", [])
_TONES: dict[str, Tone] = {"added": "good", "removed": "bad", "changed": ""}
_Fields = dict[str, Any]


def verb_of(before: _Fields | None, after: _Fields | None) -> str:
    """Return the kind of a change: added, removed, confirmed, changed or used."""
    if before is None:
        return "added"
    if after is None:
        return "removed"
    if any(not name.startswith(_BOOKKEEPING) for name in _changed(before, after)):
        return "changed"
    return "confirmed" if before.get("_count") != after.get("_count") else "used"


def _changed(before: _Fields, after: _Fields) -> list[str]:
    return [
        name
        for name in dict.fromkeys([*before, *after])
        if not same_value(before.get(name), after.get(name))
    ]


def text_of(key: str, entry: Mapping[str, Any] | None) -> str:
    """Return the text of an entry; "" if it is None."""
    kind = _kind_of(key)
    if entry is not None and kind.is_private:  # a pending change has the text of its entry
        return text_of(str(entry.get("key", "")), held_entry(entry))
    return "" if entry is None else kind.text(entry).strip()


def _kind_of(key: str) -> EntryKind:
    first = key.partition("/")[0]
    return entry_kind(first if first in KINDS else "preferences")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else _toml(value)


def _values_text(key: str, before: _Fields | None, after: _Fields | None) -> Cell:
    """Return the old and new values of a change; counters and times only if they are relevant."""
    if before is None or after is None:
        old = None if before is None else text_of(key, before)
        new = None if after is None else text_of(key, after)
        return Change(old, new) if old or new else Text("(no text)", is_quiet=True)
    if _kind_of(key).is_private:
        before, after = _pending_fields(before), _pending_fields(after)
    names = _changed(before, after)
    said = [name for name in names if not name.startswith(_BOOKKEEPING)]
    cells: list[Cell] = [
        Change(
            None if name not in before else _shown(before[name]),
            None if name not in after else _shown(after[name]),
            "" if name == "text" else name,
        )
        for name in said
    ]
    for name, word in (("_count", "said"), ("_turns", "turns")):
        if name in names:
            cells.append(
                Text(f"{word}: {before.get(name, 0)} → {after.get(name, 0)}", is_quiet=True)
            )
    if not cells:
        cells = [Text(f"{', '.join(names)} updated", is_quiet=True)]
    return cells[0] if len(cells) == 1 else Several(cells)


def _author_text(entry: HistoryEntry) -> Cell:
    """Return the actor, the session and the reason of a change."""
    who = entry.actor or entry.type
    session = f"session {entry.session}" if entry.session else ""
    parts = [part for part in (session, entry.reason) if part]
    first = Text(who)
    return Several([first, Text(", ".join(parts), is_quiet=True)]) if parts else first


def _row(entry: HistoryEntry) -> list[Cell]:
    what = _values_text(entry.key, entry.before, entry.after)
    if entry.is_conflict:
        what = Several([what, Badge("replaced by a hand edit", "warn")])
    return [Text(entry.seq), Moment(entry.time), _author_text(entry), Key(entry.key), what]


_COLUMNS = ("#", "time (UTC)", "who", "key", "old → new")


def change(entry: HistoryEntry) -> Sheet:
    """Return the view of one change."""
    verb = verb_of(entry.before, entry.after)
    what = _values_text(entry.key, entry.before, entry.after).text
    who = entry.actor or entry.type
    short = f"{entry.seq}: {one_line(entry.key)} {verb} by {one_line(who)}, {cut(what, 60)}"
    return Sheet(f"Transaction {entry.seq}", [Table(_COLUMNS, [_row(entry)])], line=short)


def changes(found: Sequence[HistoryEntry]) -> Sheet:
    """Return the view of changes: time, actor, key, and old and new values."""
    table = Table(_COLUMNS, [_row(entry) for entry in found])
    # The list does not know whether there are more.
    most = f"history() returns at most {MOST_CHANGES} changes, unless you pass a limit."
    notes = [most] if len(found) == MOST_CHANGES else []
    return Sheet(counted(len(found), "change"), [table], notes, empty="Nothing was changed.")


# Pending changes


_PENDING_COLUMNS = ("id", "time (UTC)", "from", "key", "old → new")


def _pending_row(one: PendingChange) -> list[Cell]:
    parts = [f"session {one.session}" if one.session else "", one.reason]
    what = _values_text(one.key, one.before, one.after)
    source = Several([Text(one.origin), Text(", ".join(filter(None, parts)), is_quiet=True)])
    return [Key(one.id), Moment(one.created), source, Key(one.key), what]


def pending_change(one: PendingChange) -> Sheet:
    """Return the view of one pending change."""
    what = _values_text(one.key, one.before, one.after).text
    short = (
        f"{one_line(one.id)}: {one_line(one.key)} {verb_of(one.before, one.after)}: {cut(what, 60)}"
    )
    return Sheet(
        f"Pending change {one.id}", [Table(_PENDING_COLUMNS, [_pending_row(one)])], line=short
    )


def pending_changes(found: Sequence[PendingChange]) -> Sheet:
    """Return the view of pending changes."""
    table = Table(_PENDING_COLUMNS, [_pending_row(one) for one in found])
    return Sheet(counted(len(found), "pending change"), [table], empty="No change is pending.")


# Differences


_PENDING_FIELDS = ("key", "origin", "reason")


def _pending_fields(stored: _Fields) -> _Fields:
    """Return a pending change as the key and the new fields of its entry."""
    return {
        **{name: stored.get(name) for name in _PENDING_FIELDS},
        **{name: value for name, value in (held_entry(stored) or {}).items() if name != "key"},
    }


def _lines(key: str, before: _Fields | None, after: _Fields | None) -> list[tuple[str, str]]:
    """Return the removed, added and kept fields as TOML lines, without bookkeeping fields."""
    old, new = before or {}, after or {}
    if _kind_of(key).is_private:
        old, new = (_pending_fields(each) if each else {} for each in (old, new))
    lines: list[tuple[str, str]] = []
    for name in dict.fromkeys([*old, *new]):
        if name.startswith(_BOOKKEEPING):
            continue
        texts = [
            f"{render_key(name)} = {_toml(values[name])}"
            if values.get(name) not in _EMPTY
            else None
            for values in (old, new)
        ]
        if texts[0] == texts[1]:
            lines += [(" ", texts[0])] if texts[0] is not None else []
            continue
        lines += [(sign, text) for sign, text in zip("-+", texts, strict=True) if text is not None]
    return lines


def _toml(value: Any) -> str:
    try:
        return render_value(value)
    except DiaryError:
        return repr(value)


def _difference_row(one: Difference) -> list[Cell]:
    verb = verb_of(one.before, one.after)
    lines = _lines(one.key, one.before, one.after)
    if not any(sign != " " for sign, _ in lines):
        return [Key(one.key), Badge(verb), _values_text(one.key, one.before, one.after)]
    return [Key(one.key), Badge(verb, _TONES.get(verb, "")), Code(lines)]


_DIFFERENCE_COLUMNS = ("key", "", "difference")


def difference(one: Difference) -> Sheet:
    """Return the view of one entry in two states."""
    what = _values_text(one.key, one.before, one.after).text
    short = f"{one_line(one.key)} {verb_of(one.before, one.after)}: {cut(what, 60)}"
    return Sheet("Difference", [Table(_DIFFERENCE_COLUMNS, [_difference_row(one)])], line=short)


def differences(found: Sequence[Difference]) -> Sheet:
    """Return the view of a comparison of two states, as TOML with red and green lines."""
    title = counted(len(found), "difference")
    table = Table(_DIFFERENCE_COLUMNS, [_difference_row(one) for one in found])
    return Sheet(title, [table], empty="The two states are the same.")


# Origin


def origin(found: Origin) -> Sheet:
    """Return the view of an entry's origin: the steps from the turn to the current entry."""
    steps: list[list[Cell]] = []
    if found.turn:
        steps.append([Badge("said"), Key(found.turn), Text("the turn it was extracted from")])
    elif found.session:
        steps.append([Badge("session"), Key(found.session), Text("the session that created it")])
    for entry in found.changes:
        verb = verb_of(entry.before, entry.after)
        steps.append(
            [
                Badge(verb, _TONES.get(verb, "")),
                Text(f"transaction {entry.seq}, {minute(entry.time)}, {entry.actor or entry.type}"),
                _values_text(entry.key, entry.before, entry.after),
            ]
        )
    is_gone = bool(found.changes) and found.changes[-1].after is None
    last = text_of(found.key, found.changes[-1].after) if found.changes else found.text
    if not is_gone and last != found.text:
        where = Text("in the file; the next write logs the edit")
        steps.append([Badge("edited by hand", "warn"), where, Change(last, found.text)])
    badges = [Badge("removed since", "bad")] if is_gone else []
    if found.origin and not is_gone:
        badges.append(Badge(f"written by {found.origin}"))
    if not found.is_verified:
        badges.append(Badge("not verified", "warn"))
    badges.append(Badge(f"said {found.confirmations}×"))
    short = f'{one_line(found.key)} "{cut(one_line(found.text), 50)}" from {one_line(found.turn or found.session or found.origin or "no turn")}'
    return Sheet(
        found.key,
        [Table(("", "where", "what"), steps)],
        [cut(found.text)],
        line=short,
        badges=badges,
    )
