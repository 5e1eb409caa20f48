"""Runs a write on a copy of the memory, and stores the difference as pending changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Any, TypeVar

from tomldiary.engine.transaction import Transaction
from tomldiary.entries.fact_rules import FactRules, Provenance
from tomldiary.entries.facts import confidence_of, interval
from tomldiary.entries.fields import (
    COMPACTOR,
    author,
    count_of,
    entry_data,
    number_of,
    same_data,
    sessions,
    tables_at,
    without_managed,
)
from tomldiary.entries.kinds import (
    CONVERSATIONS,
    EPISODES,
    FACTS,
    KINDS,
    PREFERENCES,
    entries_of,
    entry_key,
    entry_kind,
    entry_path,
    typed_kinds,
)
from tomldiary.entries.kinds.collections import checked_value
from tomldiary.entries.kinds.episodes import happened, id_of, new_episode
from tomldiary.entries.kinds.items import renewed
from tomldiary.entries.kinds.parts import parts_among
from tomldiary.entries.kinds.pending import (
    Raw,
    Why,
    held_entry,
    lacks_fields,
    pending_entry,
    place_of,
    waiting,
)
from tomldiary.entries.preferences import Preferences
from tomldiary.errors import EntryConflict, InvalidValue
from tomldiary.hand_edits.detect import Known
from tomldiary.hand_edits.three_way_merge import NOTHING
from tomldiary.history.record import SNAPSHOT, next_sequence
from tomldiary.history.timeline import Timeline
from tomldiary.past.queries import table_changes
from tomldiary.toml.edit import Edit
from tomldiary.toml.values import changed_keys, checked_text, decode_nulls, same_value, timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tomldiary.diary import Diary
    from tomldiary.engine.rules import EnforcedRules
    from tomldiary.entries.kind import Rules, Tables
    from tomldiary.entries.kinds.pending import PendingChange
    from tomldiary.history.record import Source
    from tomldiary.toml.document import Document, Path

R = TypeVar("R")

DRAFTS, QUARANTINE = "drafts", "quarantine"
_SET_BY_UPSERT = {"_updated", "_created_by", "_updated_by", "text", "contexts"}
_Place = tuple[str, "Path"]
"""The place of an entry: its document and its path."""


class Overlay(Mapping[str, Known]):
    """The documents of a user with pending changes applied.

    Args:
        read: The function that returns a document without the changes.
        listed: The names of the user's documents.
        changes: The new fields by entry; None removes the entry.
    """

    def __init__(
        self,
        read: Callable[[str], Document],
        listed: Iterable[str],
        changes: Mapping[_Place, Mapping[str, Any] | None],
    ) -> None:
        self._read = read
        self._changes = changes
        self._listed = sorted({*listed, *(document for document, _ in changes)})
        self._made: dict[str, Document] = {}

    def document(self, kind: str) -> Document:
        """Return a document with the changes applied."""
        found = self._made.get(kind)
        if found is None:
            found = self._read(kind)
            mine = {path: after for (name, path), after in self._changes.items() if name == kind}
            if mine:
                edit = Edit(found)
                for path, after in mine.items():
                    if after is None:
                        edit.delete(path)
                    else:
                        edit.put(path, after)
                entry_kind(kind).keep_ids(edit, [path for path in mine if mine[path] is None])
                found = edit.done()
            self._made[kind] = found
        return found

    def entries(self, kind: str) -> Document:
        """Return all entries of a kind as one document."""
        return entries_of(kind, self._listed, self.document)

    def __getitem__(self, kind: str) -> Known:
        document = self.document(kind)
        if not document.text:
            raise KeyError(kind)
        return Known(None, document, is_logged=True)

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)


def held_back(
    diary: Diary, user: str, change: Callable[[Transaction], R], source: Source, origin: str
) -> Callable[[Transaction], R] | None:
    """Return a change by an untrusted actor as one that is held for review; None if the actor `origin` is trusted."""
    if not diary.is_untrusted(origin):
        return None
    session = checked_text(source.session or "", "session_id") or diary.engine.session_here(user)
    return partial(hold, change=change, why=Why(QUARANTINE, session, origin, source.reason))


def hold(tx: Transaction, change: Callable[[Transaction], R], why: Why) -> R:
    """Run a write on a copy and store its changes as pending, except the turn's conversation summary.

    Returns:
        The result of the write.
    """
    earlier = drafts_of(tx.document(DRAFTS), why.session) if why.into == DRAFTS else {}
    overlay = Overlay(
        partial(_permitted, tx),
        tx.listed(),
        {place: held_entry(entry) for place, (_, entry) in earlier.items()},
    )
    copy = Transaction(tx.engine, tx.user, before=overlay)
    copy.session = tx.session
    result = copy.stamped(change, why.origin)
    if tx.engine.rules is not None:
        tx.engine.rules.apply(copy)
    for document, (base, edit) in copy.changed().items():
        if why.is_turn and entry_kind(document) is CONVERSATIONS:
            tx.replace(document, edit.done())
            continue
        _store_pending(
            tx, why, document, base.document if base is not None else NOTHING, edit, earlier
        )
    if why.into == DRAFTS:
        _drop_expired(tx)
    return result


def _permitted(tx: Transaction, document: str) -> Document:
    """Return a document without the hand edits that a rule forbids; the write undoes them."""
    if tx.engine.is_guarded(document):
        tx.edit(document)
    return tx.document(document)


def drafts_of(tables: Tables, session_id: str) -> dict[_Place, tuple[str, Raw]]:
    """Return the unexpired drafts of a session with their ids, by the place of the entry."""
    return {
        place_of(entry): (name, entry)
        for name, entry in waiting(tables, DRAFTS, timestamp()).items()
        if entry.get("_created_by") == session_id and incomplete(entry) is None
    }


def is_entry(document: str, path: Path) -> bool:
    """Return whether a path names one entry; a hand edit or an import may have stored an invalid one."""
    kind = entry_kind(document)
    return kind.name in KINDS and not kind.is_private and entry_path(document, path) == path


def _store_pending(
    tx: Transaction,
    why: Why,
    document: str,
    before: Document,
    edit: Edit,
    earlier: Mapping[_Place, tuple[str, Raw]],
) -> None:
    """Store the changes of an edit to one document as pending changes."""
    kind, pending = entry_kind(document), tx.edit(why.into)
    former = Edit(before)
    kind.migrate(former)
    if former.is_changed:  # the paths of pending changes are those of the newest layout
        kind.migrate(tx.edit(document))
    old, new = kind.tables(former.done()), kind.tables(edit.done())
    based_on = next_sequence(tx.last) - 1
    now = timestamp()
    paths = changed_keys(old, new)
    if any(tx.document(document).table(path) is not None for path in paths):
        based_on += _log_hand_edit(tx, document)
    for path in paths:
        after = new.get(path)
        name, first = earlier.get((document, path), ("", {}))
        real = tx.document(document).table(path)
        # Another session may have stored a new entry with the id of the draft; this one never saw it.
        is_withdrawn = after is None and first.get("is_new") is True
        if name and (is_withdrawn or same_value(None if real is None else {**real}, after)):
            pending.delete((why.into, name))
            continue
        is_same = bool(name) and same_data(held_entry(first), after)  # such as a confirmation
        origin = first.get("origin", "") if is_same else why.origin
        base = based_on + _is_changed(tx, document, path)
        fresh = pending_entry(
            document, path, entry_key(path, kind.home(document)), after, why._replace(origin=origin),
            said_by=sessions(kind, path, after or {}), based_on=first.get("based_on", base),
            is_new=first.get("is_new", real is None), now=now,
        )  # fmt: skip
        if name:  # a draft that is written again is still based on the entry before its first write
            fresh["_created"] = first.get("_created", now)
        elif _is_pending_already(waiting(pending, why.into, now).values(), fresh):
            continue
        pending.put((why.into, name or _unused_id(pending, why.into, based_on + 1)), fresh)


def _log_hand_edit(tx: Transaction, document: str) -> bool:
    """Have a hand edit of a document logged just before this write; return whether there is one.

    A hand edit that is logged later would count as a change since the pending change was written.
    """
    known = tx.engine.load(tx.user, document)
    if known is None or (known.is_logged and known.logged is None):
        return False
    tx.edit(document).is_changed = True
    return True


def _is_changed(tx: Transaction, document: str, path: Path) -> bool:
    """Return whether the transaction changed an entry already, so that the pending change is based on its end.

    It may also have undone a hand edit.
    """
    known = tx.engine.load(tx.user, document)
    stored = NOTHING if known is None else known.document
    return not same_value(stored.table(path), tx.document(document).table(path))


def _is_pending_already(known: Iterable[Raw], fresh: Raw) -> bool:
    """Return whether an equal change is pending already, so that a repeated write adds no second one."""
    document, path = place_of(fresh)
    # Compare new entries without ids that are assigned; other ids come from the writer.
    is_assigned = fresh["is_new"] and entry_kind(document) in {PREFERENCES, FACTS}
    named = path[:-1] if is_assigned else path
    return any(
        place_of(each)[1][: len(named)] == named
        and each.get("is_new") == fresh["is_new"]
        and each.get("origin") == fresh.get("origin")
        and each.get("_created_by") == fresh.get("_created_by")
        and has_same_content(held_entry(each), held_entry(fresh))
        for each in known
    )


def _unused_id(pending: Edit, into: str, seq: int) -> str:
    """Return a new id, made from the transaction number, which is never reused."""
    names = chain([str(seq)], (f"{seq}-{number}" for number in count(2)))
    return next(name for name in names if pending.table((into, name)) is None)


def _drop_expired(tx: Transaction) -> None:
    edit = tx.edit(DRAFTS)
    kept = waiting(edit, DRAFTS, timestamp())
    for name in [name for name in edit.table((DRAFTS,)) or {} if name not in kept]:
        edit.delete((DRAFTS, name))


def has_same_content(one: Mapping[str, Any] | None, two: Mapping[str, Any] | None) -> bool:
    """Return whether two entries have the same content, and as temporal facts the same interval."""
    return same_value(_content(one), _content(two))


def _content(entry: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    times = {name: entry[name] for name in ("_valid_from", "_valid_to") if name in entry}
    return {**entry_data(entry), **times}


def apply_pending(
    tx: Transaction,
    changes: Sequence[PendingChange],
    rules: EnforcedRules,
    into: str,
    *,
    force: bool,
) -> list[PendingChange]:
    """Apply pending changes, and remove them from the pending document.

    Returns:
        The changes, with the keys and paths at which their entries are stored.

    Raises:
        EntryConflict: An entry was changed since, or has several different changes; lists the keys.
        LimitReached, ImmutableEntry, InvalidValue: A rule forbids it.
    """
    for each in changes:
        check_complete(each.id, tx.edit(into).table((into, each.id)) or {})
    conflicts = [] if force else _changed_since(tx, changes, into)
    if conflicts:
        raise EntryConflict(
            f"{', '.join(conflicts)} changed since. Nothing was changed;",
            keys=conflicts,
            hint="force=True overwrites.",
        )
    if not force:
        _check_one_each(changes)
    before = {each.document: tx.document(each.document) for each in changes}
    before |= {name: tx.document(name) for name in tx.engine.kinds(tx.user)}
    made: dict[str, PendingChange] = {}
    # Those that get another id come last, so that none gets the id of another change.
    for each in sorted(changes, key=lambda change: _is_renamed(tx, change, rules)):
        was, change = before[each.document].table(each.path), each
        if each.after and each.origin and not same_data(was, each.after):
            change = replace(each, after={**each.after, "_origin": each.origin})
        path = _make(tx, change, rules)
        made[each.id] = replace(each, key=entry_key(path, each.document), path=path)
        tx.edit(into).delete((into, each.id))
    check_rules(tx, before, rules)
    return [made[each.id] for each in changes]


def _check_one_each(changes: Sequence[PendingChange]) -> None:
    """Raise EntryConflict if several changes of one entry differ, as the last one would overwrite the others."""
    by_key: dict[str, list[PendingChange]] = {}
    for each in changes:
        if not _has_assigned_id(each):
            by_key.setdefault(each.key, []).append(each)
    for key, found in by_key.items():
        if not all(has_same_content(each.after, found[0].after) for each in found):
            ids = ", ".join(each.id for each in found)
            raise EntryConflict(
                f"{ids} are different changes of one entry, {key}. Nothing was changed. Choose one of them;",
                keys=[key],
                hint="force=True makes all of them, in this order.",
            )


def _make(tx: Transaction, each: PendingChange, rules: Rules) -> Path:
    """Apply a pending change, and return the path of its entry."""
    kind, path = entry_kind(each.document), each.path
    edit = tx.entries(kind.name) if kind.is_split else tx.edit(each.document)
    if each.after is None:
        kind.remove(edit, [path])
        return path
    check_fields(each.document, path, each.after, rules)
    session = _author(each)
    if kind is PREFERENCES and each.is_new:
        # Another entry may have its id or its text by now, so it is stored like a new preference.
        contexts: Any = each.after.get("contexts", [])
        fields = {name: value for name, value in each.after.items() if name not in _SET_BY_UPSERT}
        if each.after.get("_updated_by") == COMPACTOR:
            fields["_updated_by"] = COMPACTOR  # or the entry would be of one of its sessions alone
        key = None if _is_renamed(tx, each, rules) else path[-1]
        return Preferences(edit, rules.preference_rules).upsert(
            path[-2], key, str(each.after.get("text", "")), contexts,
            now=timestamp(), session=session, fields=fields,
        ).path  # fmt: skip
    if kind is EPISODES and each.is_new:
        # Another episode may have its id by now, and an episode is never overwritten.
        when = happened(each.after)
        key = None if path[-1] == id_of(when) else path[-1]
        return (kind.name, new_episode(tx.writing(rules, session), each.after, when, key))
    confirmed = _confirmed(FactRules(edit, rules.fact_schemas), each, rules)
    if confirmed is not None:
        return (*path[:-1], confirmed)
    # A lifetime begins with the decision, or the entry could have expired while it waited.
    now: dict[str, Any] = {"_updated": timestamp()} if "_updated" in each.after else {}
    if "_turns" in each.after:  # further turns of the session may have been counted
        known = (edit.table(path) or {}, each.after)
        now["_turns"] = max(count_of(one.get("_turns"), 0) for one in known)
    edit.put(path, renewed({**each.after, **now}))
    return path


def _author(each: PendingChange) -> str:
    """Return the session that wrote the fields of a pending change; in a draft, a write may name another session."""
    return author(each.after or {}) or each.session


def _has_assigned_id(each: PendingChange) -> bool:
    """Return whether the diary chose the id of a new entry, so that it may get another one."""
    kind = entry_kind(each.document)
    return each.is_new and (
        kind is EPISODES or (kind is PREFERENCES and number_of(each.path[-1]) is not None)
    )


def _is_renamed(tx: Transaction, each: PendingChange, rules: Rules) -> bool:
    """Return whether a new preference gets another id, because an entry has or had its assigned one, or a later one."""
    number = number_of(each.path[-1])
    if number is None or not each.is_new or entry_kind(each.document) is not PREFERENCES:
        return False
    book = Preferences(tx.entries(PREFERENCES.name), rules.preference_rules)
    return number < book.next_number(each.path[-2])


def _confirmed(book: FactRules, each: PendingChange, rules: Rules) -> str | None:
    """Confirm the stored fact that is equal to a new one without a singleton key; return its key, or None without one."""
    after, path = each.after or {}, each.path
    schema = rules.fact_schemas.get(path[1]) if each.is_new and path[0] == FACTS.name else None
    data = entry_data(after)
    if schema is None or schema.constraint.keys or not book.alike(schema.name, data):
        return None
    source = str(after.get("_source", ""))
    start, end = interval(after)
    by = Provenance(timestamp(), _author(each), source, confidence_of(after), start=start, end=end)
    key = path[-1] if schema.constraint.temporal else None
    return book.commit(schema, data, by, key=key)


def incomplete(stored: Mapping[str, Any]) -> str | None:
    """Return what a pending change lacks; None if it is complete. A hand edit may have damaged it."""
    if not is_entry(*place_of(stored)):
        return "the pending change names no entry. Reject it."
    if lacks_fields(stored):
        return (
            "the pending change has no fields. Correct its `entry` in the document, or reject it."
        )
    return None


def check_complete(name: str, stored: Mapping[str, Any]) -> None:
    """Raise InvalidValue if the pending change `name` is incomplete, as after a hand edit."""
    lacking = incomplete(stored)
    if lacking is not None:
        raise InvalidValue(lacking, where=name)


def check_fields(document: str, path: Path, entry: Mapping[str, Any], rules: Rules) -> None:
    """Raise InvalidValue if the fields of a pending entry do not fit its kind or its type."""
    kind = entry_kind(document)
    checked_value((kind.name, *path[:-1]), path[-1], decode_nulls(entry_data(entry)))
    alone = Edit(NOTHING)
    alone.put(path, entry)
    for problem in without_managed(kind.problems(alone.done(), rules)):
        raise problem


def _changed_since(tx: Transaction, changes: Sequence[PendingChange], into: str) -> list[str]:
    """Return the keys of entries that differ from what they were when the pending change was stored.

    An entry that a rollback restored has not changed.
    """
    waiting = [each for each in changes if not _has_assigned_id(each)]
    first = min((each.based_on for each in waiting), default=0)
    found: set[str] = set()
    states = {each.id: _states_here(tx, each) for each in waiting}
    # The transaction of a pending change may have changed the entry before and after it.
    for record in Timeline(tx.engine.backend, tx.user).records(after=first - 1) if waiting else ():
        if record.type == SNAPSHOT:
            found |= {each.key for each in waiting if each.based_on < record.seq}
            break
        made = list(table_changes(record))
        here = {path[-1] for home, path, *_ in made if home == into}
        for home, path, before, after in made:
            key, when = entry_key(path, home), str((after or {}).get("_updated", ""))
            for each in waiting:
                is_later = each.id in here and when > each.created
                if each.key == key and (is_later or each.based_on < record.seq):
                    states[each.id] = before, states[each.id][1]
    for each in waiting:
        before, now = states[each.id]
        # The open transaction may have stored the pending change itself.
        is_stored = tx.before(into).table((into, each.id)) is not None
        # History does not show an entry that a transaction both added and removed.
        is_gone = each.after is not None and each.before is None and not each.is_new
        if is_gone or (is_stored and _differ(each, before, now)):
            found.add(each.key)
    return sorted(found)


def _differ(each: PendingChange, before: Any, after: Any) -> bool:
    """Return whether an entry changed between two states; a turn that is only counted changes no summary."""
    if entry_kind(each.document) is CONVERSATIONS and each.after and before and after:
        return not has_same_content(before, after)
    return not same_value(before, after)


def _states_here(tx: Transaction, each: PendingChange) -> tuple[Any, Any]:
    """Return the entry of a pending change at the end of history and now, with hand edits and the open transaction."""
    kind, path = entry_kind(each.document), each.path
    parts = parts_among(kind.name, tx.listed()) if kind.is_split else [each.document]
    known = [one for part in parts if (one := tx.engine.load(tx.user, part)) is not None]
    before = ((one.logged or one.document).table(path) for one in known)
    after = (tx.document(part).table(path) for part in parts)
    old, new = (next((one for one in found if one is not None), None) for found in (before, after))
    is_over = any((part, path) in tx.expired for part in parts)
    return old, old if is_over else new  # the end of its lifetime is no change


def renumbered(tx: Transaction, document: Document, into: str) -> Document:
    """Return imported pending changes based on the import, because the export's numbers count another history.

    Those that are stored already keep their numbers.
    """
    edit, stored = Edit(document), tx.document(into)
    last = next_sequence(tx.last)
    for name, entry in tables_at(document, into):
        known = stored.table((into, name))
        fresh = {**entry, "based_on": last}
        if known is not None and same_value({**known, "based_on": last}, fresh):
            fresh = known
        edit.put((into, name), fresh)
    return edit.done()


def check_rules(tx: Transaction, before: Mapping[str, Document], rules: EnforcedRules) -> None:
    """Raise an error if the changes of a transaction break a rule for one entry or for several."""
    for kind in typed_kinds():
        names = {name for name in {*before, *tx.changed()} if entry_kind(name) is kind}
        if names:
            old = entries_of(kind.name, names, lambda name: before.get(name, NOTHING))
            kind.check_import(old, entries_of(kind.name, names, tx.document), rules)
    rules.entry_rules.check(tx, before)
