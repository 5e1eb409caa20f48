"""The views of history: changes, differences between two states, and the origin of an entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tomldiary.entries.kinds import CONVERSATIONS, KINDS, PREFERENCES, entry_kind
from tomldiary.entries.kinds.pending import held_entry
from tomldiary.errors import DiaryError
from tomldiary.past.queries import MOST_CHANGES
from tomldiary.text.visible import one_line
from tomldiary.toml.values import changed_keys, render_key, render_value
from tomldiary.views.sheet import (
    Badge,
    Cell,
    Change,
    Code,
    Key,
    Listing,
    Moment,
    Several,
    Sheet,
    Table,
    Text,
    Tone,
    cut,
    minute,
    quiet,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tomldiary.entries.kind import EntryKind
    from tomldiary.entries.kinds.pending import PendingChange
    from tomldiary.past.queries import Difference, HistoryEntry, Origin

_BOOKKEEPING = "_"  # the prefix of fields that the engine manages
_EMPTY: tuple[Any, ...] = (None, "", [])
_PENDING_FIELDS = ("key", "origin", "reason")
_TONES: dict[str, Tone] = {"added": "good", "removed": "bad"}


def verb_of(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    """Return the kind of a change: added, removed, confirmed, changed or used."""
    if before is None:
        return "added"
    if after is None:
        return "removed"
    if any(not name.startswith(_BOOKKEEPING) for name in changed_keys(before, after)):
        return "changed"
    return "confirmed" if before.get("_count") != after.get("_count") else "used"


def text_of(key: str, entry: Mapping[str, Any] | None) -> str:
    """Return the text of an entry; "" if it is None."""
    return "" if entry is None else _kind_of(key).text(entry).strip()


def _kind_of(key: str) -> EntryKind:
    first = key.partition("/")[0]
    return entry_kind(first if first in KINDS else "preferences")


def _toml(value: Any) -> str:
    try:
        return render_value(value)
    except DiaryError:
        return repr(value)


def _shown(fields: Mapping[str, Any], name: str) -> str | None:
    if name not in fields:
        return None
    value = fields[name]
    return value if isinstance(value, str) else _toml(value)


def stated_fields(key: str, stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of an entry; a pending change as the key and the new fields of its entry."""
    if not _kind_of(key).is_private:
        return stored
    return {
        **{name: stored.get(name) for name in _PENDING_FIELDS},
        **{name: value for name, value in (held_entry(stored) or {}).items() if name != "key"},
    }


def _values_text(one: HistoryEntry | Difference | PendingChange) -> Cell:
    """Return the old and new values of a change; counters and times only if they are relevant."""
    before, after = one.before, one.after
    if before is None or after is None:
        old = None if before is None else text_of(one.key, before)
        new = None if after is None else text_of(one.key, after)
        return Change(old, new) if old or new else quiet("(no text)")
    before, after = stated_fields(one.key, before), stated_fields(one.key, after)
    names = changed_keys(before, after)
    cells: list[Cell] = [
        Change(_shown(before, name), _shown(after, name), "" if name == "text" else name)
        for name in names
        if not name.startswith(_BOOKKEEPING)
    ]
    for name, word in (("_count", "said"), ("_turns", "turns")):
        if name in names:
            cells.append(quiet(f"{word}: {before.get(name, 0)} → {after.get(name, 0)}"))
    return Several(cells or [quiet(f"{', '.join(names)} updated")])


def _author(who: str, session: str, reason: str) -> Cell:
    parts = [f"session {session}" if session else "", reason]
    return Several([Text(who), quiet(", ".join(filter(None, parts)))])


def _line(one: HistoryEntry | Difference | PendingChange, end: str) -> str:
    what = cut(_values_text(one).text, 60)
    return f"{one_line(one.key)} {verb_of(one.before, one.after)}{end} {what}"


def _change_row(entry: HistoryEntry) -> Sequence[object]:
    what = _values_text(entry)
    if entry.is_conflict:
        what = Several([what, Badge("replaced by a hand edit", "warn")])
    who = _author(entry.actor or entry.type, entry.session, entry.reason)
    return entry.seq, Moment(entry.time), who, Key(entry.key), what


def _pending_row(one: PendingChange) -> Sequence[object]:
    source = _author(one.origin, one.session, one.reason)
    return Key(one.id), Moment(one.created), source, Key(one.key), _values_text(one)


def _toml_lines(one: Difference) -> list[tuple[str, str]]:
    """Return the removed, added and kept fields as TOML lines, without bookkeeping fields."""
    old, new = (stated_fields(one.key, each or {}) for each in (one.before, one.after))
    lines: list[tuple[str, str]] = []
    for name in dict.fromkeys([*old, *new]):
        if name.startswith(_BOOKKEEPING):
            continue
        before, after = (
            None if values.get(name) in _EMPTY else f"{render_key(name)} = {_toml(values[name])}"
            for values in (old, new)
        )
        signed = ((" ", before),) if before == after else (("-", before), ("+", after))
        lines += [(sign, text) for sign, text in signed if text is not None]
    return lines


def _difference_row(one: Difference) -> Sequence[object]:
    verb = verb_of(one.before, one.after)
    lines = _toml_lines(one)
    if not any(sign != " " for sign, _ in lines):
        return Key(one.key), Badge(verb), _values_text(one)
    return Key(one.key), Badge(verb, _TONES.get(verb, "")), Code(lines)


_CHANGES = Listing(
    "change",
    ("#", "time (UTC)", "who", "key", "old → new"),
    _change_row,
    lambda one: f"{one.seq}: {_line(one, f' by {one_line(one.actor or one.type)},')}",
    "Nothing was changed.",
)
_PENDING, _APPLIED, _DROPPED = (
    Listing(
        noun,
        ("id", "time (UTC)", "from", "key", "old → new"),
        _pending_row,
        lambda one: f"{one_line(one.id)}: {_line(one, ':')}",
        empty,
    )
    for noun, empty in (
        ("pending change", "No change is pending."),
        ("applied change", "No change was applied."),
        ("dropped change", "No change was dropped."),
    )
)
_DIFFERENCES = Listing(
    "difference",
    ("key", "", "difference"),
    _difference_row,
    lambda one: _line(one, ":"),
    "The two states are the same.",
)
view_history_entry = _CHANGES.one
view_pending_change, view_pending_changes = _PENDING.one, _PENDING.all
view_applied_changes, view_dropped_changes = _APPLIED.all, _DROPPED.all
view_difference, view_differences = _DIFFERENCES.one, _DIFFERENCES.all


def view_changes(found: Sequence[HistoryEntry]) -> Sheet:
    """Return the view of changes: time, actor, key, and old and new values."""
    sheet = _CHANGES.all(found)
    if len(found) == MOST_CHANGES:  # the list does not know whether there are more
        sheet.notes = [
            f"history() returns at most {MOST_CHANGES} changes, unless you pass a limit; None is all."
        ]
    return sheet


def view_origin(found: Origin) -> Sheet:
    """Return the view of an entry's origin: the steps from the turn to the current entry."""
    steps: list[Sequence[object]] = []
    if found.turn:
        steps.append((Badge("said"), Key(found.turn), "the turn it was extracted from"))
    elif found.session:
        steps.append((Badge("session"), Key(found.session), "the session that created it"))
    for entry in found.changes:
        verb = verb_of(entry.before, entry.after)
        where = f"transaction {entry.seq}, {minute(entry.time)}, {entry.actor or entry.type}"
        steps.append((Badge(verb, _TONES.get(verb, "")), where, _values_text(entry)))
    is_gone = bool(found.changes) and found.changes[-1].after is None
    last = text_of(found.key, found.changes[-1].after) if found.changes else found.text
    if not is_gone and last != found.text:
        where = "in the file; the next write logs the edit"
        steps.append((Badge("edited by hand", "warn"), where, Change(last, found.text)))
    badges = [Badge("removed since", "bad")] if is_gone else []
    if found.origin and not is_gone:
        badges.append(Badge(f"written by {found.origin}"))
    if not found.is_verified:
        badges.append(Badge("not verified", "warn"))
    if _kind_of(found.key) in {PREFERENCES, CONVERSATIONS}:  # no other kind is counted
        badges.append(Badge(f"said {found.confirmations}×"))
    source = found.turn or found.session or found.origin or "no turn"
    short = f'{one_line(found.key)} "{cut(one_line(found.text), 50)}" from {one_line(source)}'
    table = Table(("", "where", "what"), steps)
    return Sheet(found.key, [table], [cut(found.text)], line=short, badges=badges)
