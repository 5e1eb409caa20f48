"""Rollback: undoes transactions by committing their inverse as a new transaction."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tomldiary.engine.rules import key_with_kind
from tomldiary.engine.transaction import NotStored
from tomldiary.entries.kinds import (
    entry_key,
    entry_kind,
    entry_path,
    home_of,
    own_tables,
    own_values,
)
from tomldiary.errors import EntryConflict, HistoryPruned, InvalidValue, RollbackConflict, printed
from tomldiary.history.record import SNAPSHOT, Record, Source, is_lost
from tomldiary.history.timeline import check_follows, out_of_reach, undo
from tomldiary.runtime.views import Viewed, counted
from tomldiary.toml.document import META, Document, Path, digest, split_tail
from tomldiary.toml.edit import Edit
from tomldiary.toml.values import checked_count, checked_flag, checked_text, moment, same_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tomldiary.engine.rules import EnforcedRules
    from tomldiary.engine.transaction import Transaction
    from tomldiary.past.as_of import PastTexts, Point

_State = tuple[str, dict[str, Any]]
"""A table: the text of its blocks, "" if they hold something else, and its values; see `own_values`."""
_Place = tuple[str, "Path"]
"""A document and a table in it."""
_States = dict[_Place, "_State | None"]
_Values = dict[_Place, "dict[str, Any] | None"]
_NOTHING = "there is no transaction to undo."
_WRITTEN_META = re.compile(r"\[_meta\]\n(?:\w+ = [^#\r\n]+(?:\n|\Z))*")


@dataclass(frozen=True, slots=True, repr=False)
class Rollback(Viewed):
    """The result of a rollback, or with `dry_run` the expected result."""

    undone: list[int]
    """The transactions that were undone, newest first."""
    keys: list[str]
    """The entries that changed."""
    conflicts: list[str] = field(default_factory=list[str])
    """Entries that were changed since; they are overwritten only with `force`."""
    forbidden: list[str] = field(default_factory=list[str])
    """Entries whose rule forbids the rollback, even with `force`."""
    is_done: bool = True
    """False with `dry_run`."""


class Undo:
    """Undoes transactions of one user by committing their inverse.

    Args:
        rules: The rules of the entries.
        past: The user's history.
    """

    def __init__(self, rules: EnforcedRules, past: PastTexts) -> None:
        self._rules = rules
        self._past = past

    def rollback(
        self,
        steps: int = 1,
        *,
        session_id: str | None = None,
        to: Point | None = None,
        dry_run: bool = False,
        force: bool = False,
        actor: str = "",
        reason: str = "",
    ) -> Rollback:
        """Undo the last `steps` transactions by writing their inverse as a new one.

        History is never erased, so undoing the rollback restores the same entries byte for byte. A hand edit
        that history does not have yet is logged first, and is then the last transaction.

        Args:
            steps: The number of transactions to undo; history must have at least as many. Hand edits that
                changed no entry, such as those of comments, do not count.
            session_id: Undo only transactions of this session.
            to: Undo all transactions after this transaction or time (as for `as_of`), instead of `steps`;
                0 undoes all.
            dry_run: Return the expected result and undo nothing.
            force: Overwrite entries that were changed since.
            actor: The author of the rollback, for history.
            reason: The reason for the rollback, for history.

        Raises:
            InvalidValue: `steps` is not an integer of at least 1, `to` is not a point of history, both are given,
                `session_id` is empty, or the actor is in quarantine.
            Conflict: There are fewer transactions to undo, an entry was changed since (`keys` lists them), a rule
                forbids an earlier state, also with `force`, or an erasure happened since. Nothing is undone.
            HistoryPruned: A transaction to undo is older than the kept history. Nothing is undone.
            RevisionConflict: Other machines changed the user's memory all the time. Nothing is undone.
            NestedTransaction: A transaction of this user is open here.
            DocumentError: Another program has removed records of history. Nothing is undone.
        """
        checked_count(steps, "steps", least=1)
        checked_flag(dry_run, "dry_run")
        checked_flag(force, "force")
        if steps != 1 and to is not None:
            raise InvalidValue("give steps or to, not both.", where="steps")
        # An empty one does not mean the transactions without a session.
        if session_id is not None and not checked_text(session_id, "session_id"):
            raise InvalidValue("session_id must be a non-empty string.", where="rollback")
        source = Source("rollback", session_id or "", actor, reason)
        if actor and self._rules.is_untrusted(actor):
            raise InvalidValue(
                f"{printed(actor)} is in quarantine, but a rollback cannot wait for a review. Name the actor who decided.",
                where="actor",
            )
        engine, user = self._past.engine, self._past.user_id
        engine.refuse_open(user)
        last = engine.backend.last_record(user)
        if last is None:  # what is stored was there before the history
            raise RollbackConflict(_NOTHING)
        # With lost records, the transactions to undo are unknown, and the error below says so.
        if not is_lost(last):
            engine.log_hand_edits(user)

        expected: list[Rollback] = []

        def undo(transaction: Transaction) -> Rollback:
            records = self._undoable(steps, session_id, to)
            is_partial = session_id is not None
            done = self._undo(
                transaction, records, is_partial=is_partial, dry_run=dry_run, force=force
            )
            if dry_run:
                expected.append(done)
                raise NotStored  # a transaction begins with the removal of expired entries
            return done

        with suppress(NotStored):
            return engine.transact(user, source, undo)
        return expected[-1]

    def _undo(
        self,
        transaction: Transaction,
        records: list[Record],
        *,
        is_partial: bool,
        dry_run: bool,
        force: bool,
    ) -> Rollback:
        if not records:
            raise RollbackConflict(_NOTHING)
        states, origins = _inverse(records, is_partial=is_partial)
        places = _holders(transaction, origins) if is_partial else origins
        before, expected, between = (
            {places[place]: state for place, state in each.items()} for each in states
        )
        wanted = {place: state and state[1] for place, state in (expected | between).items()}
        kinds = dict.fromkeys(kind for kind, _ in wanted)
        documents = {kind: transaction.document(kind) for kind in kinds}
        found = {(kind, path): _values_now(kind, documents[kind], path) for kind, path in wanted}
        former = {place: state and state[1] for place, state in before.items()}
        expired = partial(self._has_expired, transaction, wanted, former)
        grown = _grown(documents, before)
        for kind, path in grown:
            found[kind, path] = dict(documents[kind].table(path) or {})
        changed = [
            place
            for place in wanted
            if place in between
            or place in grown
            or (
                not same_value(found[place], wanted[place])
                and (found[place] is not None or not expired(place))
            )
        ]
        conflicts = [entry_key(path, kind) for kind, path in changed]
        done = Rollback(
            [record.seq for record in records],
            sorted({entry_key(path, kind) for kind, path in before}),
            conflicts,
            self._forbidden(transaction, former),
            is_done=not dry_run,
        )
        if dry_run:
            return done
        if done.forbidden:
            raise RollbackConflict(
                f"{', '.join(done.forbidden)} cannot be rolled back: a constraint forbids it."
                " Nothing was undone.",
                keys=done.forbidden,
            )
        if conflicts and not force:
            raise EntryConflict(
                f"{', '.join(conflicts)} changed since. Nothing was undone;",
                keys=conflicts,
                expected={entry_key(path, kind): wanted[kind, path] for kind, path in changed},
                found={entry_key(path, kind): found[kind, path] for kind, path in changed},
                hint="force=True overwrites.",
            )
        self._restore(transaction, records[-1].seq, before)
        _restore_texts(transaction, records)
        return done

    def _has_expired(
        self, transaction: Transaction, wanted: _Values, former: _Values, place: tuple[str, Path]
    ) -> bool:
        """Return whether the missing entry of a table has expired, so that its removal is no change.

        If its former state still holds, only the expiry in this transaction counts: another write may have removed the
        entry before it expired.

        Args:
            transaction: The transaction.
            wanted: The values of tables that the records left.
            former: The values of tables before the records.
            place: The table.
        """
        kind, path = place
        entry = entry_path(kind, path)
        if entry is None or not self._is_over(kind, entry, wanted):
            return False
        is_gone = not former.get((kind, entry)) or self._is_over(kind, entry, former)
        return is_gone or (kind, entry) in transaction.expired

    def _is_over(self, kind: str, entry: Path, states: _Values) -> bool:
        """Return whether an entry has expired in a state."""
        values = states.get((kind, entry))
        if not values:
            return False
        now, expires = self._past.engine.now(), moment(values.get("_expires"))
        is_past = expires is not None and expires <= now
        return is_past or self._rules.entry_rules.is_over(key_with_kind(entry, kind), values, now)

    def _forbidden(self, transaction: Transaction, former: _Values) -> list[str]:
        """Return the keys of the entries whose former state a rule forbids."""
        found: list[str] = []
        with suppress(NotStored), transaction.nested(Source("rollback")):
            # An edit begins without forbidden hand edits. It is discarded, because a dry run changes nothing.
            for document, _ in former:
                transaction.edit(document)
            found = self._rules.entry_rules.forbidden(transaction, former)
            raise NotStored
        return found

    def _restore(self, transaction: Transaction, oldest: int, before: _States) -> None:
        back: dict[str, dict[Path, _State]] = {}
        gone: dict[str, list[Path]] = {}
        for (kind, path), state in before.items():
            if state is None and entry_path(kind, path) is not None:
                gone.setdefault(kind, []).append(path)
            else:
                back.setdefault(kind, {})[path] = state or ("", {})
        for kind, paths in gone.items():
            entry_kind(kind).remove(transaction.edit(kind), paths)
        edits = {kind: transaction.edit(kind) for kind in back}
        # The former order is needed only for missing entries, because existing ones keep their place.
        lacking = [
            kind
            for kind, states in back.items()
            if any(edits[kind].table(path) is None for path in states)
        ]
        # One read of history for all documents.
        texts = self._past.texts(oldest - 1, lacking) if lacking else {}
        for kind, states in back.items():
            edit = edits[kind]
            after: Path | None = None
            behind = ""
            former = Document.parse(texts.get(kind, ""))
            if former.text:  # the commit converts what is restored in an older layout
                edit.set_meta(version=former.meta.get("version", "0"))
            order = [block for block in former.blocks if block.path and not block.is_array]
            _replace_values(kind, edit, states)
            # In document order, so that each block is restored after its former predecessor.
            for block in order:
                was, values = states.get(block.path, ("", {}))
                if was:
                    edit.restore(block.path, was, values, after=after, behind=behind)
                    del states[block.path]
                if edit.table(block.path) is not None:
                    after, behind = block.path, split_tail(block.text)[1]
            # Outer tables first, because a list of one may stand where an inner table belongs.
            for path, (was, values) in sorted(states.items(), key=lambda state: len(state[0])):
                if was:
                    edit.restore(path, was, values)
                else:
                    edit.replace_values(path, own_values(kind, edit.peek(), path), values)

    def _undoable(self, steps: int, session_id: str | None, to: Point | None) -> list[Record]:
        floor = self._past.sequence(to, "to") if to is not None else None
        found: list[Record] = []
        forgotten, later = 0, self._past.newest() + 1
        for record in self._past.timeline().records():
            check_follows(record.seq, later)
            later = record.seq
            if floor is not None and record.seq <= floor:
                break
            if record.type == SNAPSHOT:
                raise HistoryPruned(record.seq, record.time)
            if record.type == "forget":
                forgotten = forgotten or record.seq
            if session_id is not None and record.session != session_id:
                continue
            if forgotten:
                raise RollbackConflict(
                    f"data was forgotten in transaction {forgotten}, so earlier transactions cannot be undone."
                    f" Undo at most the transactions after {forgotten}. Nothing was undone."
                )
            if floor is None and record.type == "hand" and not _inverse([record])[1]:
                continue  # such as a hand edit of comments
            found.append(record)
            if floor is None and len(found) >= steps:
                break
        else:
            if floor is not None and later > floor + 1:
                raise out_of_reach(later)
        if floor is None and 0 < len(found) < steps:
            whose = "" if session_id is None else f" of session {session_id!r}"
            raise RollbackConflict(
                f"{counted(steps, 'transaction')}{whose} cannot be undone: there {'is' if len(found) == 1 else 'are'}"
                f" only {len(found)}."
                " Nothing was undone."
            )
        if not found and session_id is not None:
            raise RollbackConflict(
                f"there is no transaction to undo of session {session_id!r}. The history names the session of each one."
            )
        return found


def _state_of(kind: str, path: Path, values: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the values of a table; None for an empty one above entries, whose header may be left out."""
    return values if values or entry_path(kind, path) is not None else None


def _replace_values(kind: str, edit: Edit, states: dict[Path, _State]) -> None:
    """Restore the values of existing tables without a text, and remove these tables from `states`.

    It comes before the others, because it replaces tables that are written as values.
    """
    for path in sorted((path for path in states if not states[path][0]), key=len):
        if edit.table(path) is not None:
            values = states.pop(path)[1]
            edit.replace_values(path, own_values(kind, edit.peek(), path), values)


def _values_now(kind: str, document: Document, path: Path) -> dict[str, Any] | None:
    """Return the values of a table like `_state_of`; None for one that is written as a value of its entry."""
    is_value = entry_path(kind, path) not in {None, path}
    if is_value and path not in document.index and path not in document.parents:
        return None
    return _state_of(kind, path, own_values(kind, document, path))


def _inverse(
    records: Sequence[Record], *, is_partial: bool = False
) -> tuple[tuple[_States, _States, _States], dict[_Place, _Place]]:
    """Return the states to restore and the states expected now, for all changed entries, and where they were.

    The third states are those that the records left, of entries that another record changed between them.

    Args:
        records: The records, newest first.
        is_partial: Whether other records may be between them, and may have moved entries to another part. Their states
            then have the first part as their document. Otherwise each document is undone by itself.
    """
    before: _States = {}
    expected: _States = {}
    between: _States = {}
    origins: dict[_Place, _Place] = {}
    for record in records:
        changed: dict[_Place, tuple[_State | None, _State | None]] = {}
        for (doc, path), was, became in _changes(record, before, is_partial=is_partial):
            place = _place(doc, path, is_partial=is_partial)
            old, new = changed.get(place, (None, None))
            changed[place] = was or old, became or new
            if was or place not in origins:
                origins[place] = doc, path
        for place, (was, became) in changed.items():
            if not _is_same(was, became):
                if not _is_same(before.get(place, became), became):
                    between[place] = became
                expected.setdefault(place, became)
                before[place] = was
    return (before, expected, between), {place: origins[place] for place in before}


def _changes(
    record: Record, before: _States, *, is_partial: bool
) -> Iterator[tuple[_Place, _State | None, _State | None]]:
    """Yield the tables that a record changed, and their states before and after it.

    Args:
        record: The record.
        before: The states before later records.
        is_partial: As for `_inverse`.
    """
    old: _States = {}
    new: _States = {}
    parts = record.parts()
    # A moved table is removed by one change and inserted by another.
    for doc, (olds, news) in parts.items():
        old |= {place: state for part in olds for place, state in _states(doc, part)}
        new |= {place: state for part in news for place, state in _states(doc, part)}
    # An entry that existed only because of the tables below it was made with the first of them.
    entries = ((doc, entry_path(doc, path) or path) for doc, path in (*old, *new))
    implied = [
        place for place in entries if before.get(_place(*place, is_partial=is_partial)) == ("", {})
    ]
    for place in dict.fromkeys([*old, *new, *implied]):
        olds, news = parts[place[0]]
        was = old.get(place) or _implied(olds, *place)
        became = new.get(place) or _implied(news, *place)
        if not _is_same(was, became):
            yield place, was, became


def _is_same(one: _State | None, other: _State | None) -> bool:
    return same_value(one and one[1], other and other[1])


def _place(doc: str, path: Path, *, is_partial: bool) -> _Place:
    """Return the place of a table among the states of `_inverse`; only tables of entries can move."""
    can_move = is_partial and entry_path(doc, path) is not None
    return (home_of(doc) if can_move else doc), path


def _states(doc: str, part: Document) -> Iterator[tuple[tuple[str, Path], _State]]:
    """Yield the state of each table in a part of a document."""
    for path, values in own_tables(doc, part).items():
        if path[0] != META and _state_of(doc, path, values) is not None:
            is_whole = same_value(values, part.own_values(path))
            blocks = part.own_blocks(path) if is_whole else []
            yield (doc, path), ("".join([block.text for block in blocks]), values)


def _grown(documents: Mapping[str, Document], before: _States) -> set[tuple[str, Path]]:
    """Return the tables to remove that have an inner table which the rollback would not restore or remove itself."""
    removed = {
        (kind, path)
        for (kind, path), state in before.items()
        if state is None and entry_path(kind, path) is not None and path in documents[kind].parents
    }
    kept = {
        (kind, path[:end])
        for kind in dict.fromkeys(kind for kind, _ in removed)
        for path in own_tables(kind, documents[kind])
        if (kind, path) not in before
        for end in range(1, len(path))
    }
    return removed & kept


def _implied(parts: Sequence[Document], doc: str, path: Path) -> _State | None:
    """Return the state of a table that exists only because of tables below it; None if there is no table."""
    is_there = any(path in part.parents and part.table(path) is not None for part in parts)
    return ("", {}) if is_there and _state_of(doc, path, {}) is not None else None


def _restore_texts(transaction: Transaction, records: Sequence[Record]) -> None:
    """Give documents that the records changed last the text before them, which has the former comments and order.

    A document with other values, such as one without entries that have expired since, keeps its restored tables.
    """
    # A hand edit or a rollback may also have changed comments of a document whose entries stayed the same.
    beside = dict.fromkeys(doc for record in records for doc in record.results)
    for kind in transaction.changed() | beside:
        edit = transaction.edit(kind)
        now, text = edit.peek(), _text_before(transaction.before(kind).text, records, kind)
        if text is None or _is_like(now, text):
            continue
        former = Edit(Document.parse(text))
        if same_value(_values(kind, former.peek()), _values(kind, now)):
            # A table in `_meta` keeps its own header, or its place in a line.
            inner = [path for path in now.index if path[0] == META and len(path) > 1]
            for path in (*inner, (META,)):
                former.put(path, now.table(path) or {})
            made = former.done()
            if made.text != now.text:
                edit.take_text(made)


def _values(kind: str, document: Document) -> dict[Path, dict[str, Any]]:
    """Return the entries of a document, and the values of the tables above them."""
    outer = {
        path: values
        for path, values in own_tables(kind, document).items()
        if values and path[0] != META and entry_path(kind, path) is None
    }
    return {**outer, **entry_kind(kind).tables(document)}


def _is_like(document: Document, text: str) -> bool:
    """Return whether a document has a text, apart from a `_meta` that no hand has written; found without parsing the text."""
    meta = document.index.get((META,))
    if meta is None:
        return document.text == text
    now = split_tail(meta.text)[0]
    head, rest = document.text.split(now, 1)
    former = text[len(head) : len(text) - len(rest)]
    if not _WRITTEN_META.fullmatch(now) or not _WRITTEN_META.fullmatch(former):
        return False
    # Otherwise `rest` may be the end of the last line of `_meta`.
    is_whole = not rest or former.endswith("\n")
    return is_whole and text == head + former + rest


def _text_before(text: str, records: Sequence[Record], doc: str) -> str | None:
    """Return a text before records, newest first; None if they are not the last ones that changed the document."""
    for record in records:
        if doc in record.results:
            if digest(text) != record.results[doc]:
                return None
            text = undo(text, record, doc)
    return text


def _holders(transaction: Transaction, origins: Mapping[_Place, _Place]) -> dict[_Place, _Place]:
    """Return where entries are now; missing ones are where they were."""
    homes = {home for home, _ in origins}
    names = sorted(name for name in transaction.listed() if home_of(name) in homes)
    holders: dict[tuple[str, Path | None], list[str]] = {}
    for name, document in zip(names, transaction.documents(names), strict=True):
        for path in entry_kind(name).tables(document):
            holders.setdefault((home_of(name), path), []).append(name)
    found: dict[_Place, _Place] = {}
    for (home, path), (document, _) in origins.items():
        entry = entry_path(home, path)
        now = holders.get((home, entry), [])
        is_split = entry_kind(home).is_split
        if not now and entry is not None and is_split:
            holder = transaction.entries(home).holder(entry)  # waits for a save, which may move it
            now = [holder] if holder is not None else []
        is_there = document in now and not is_split  # of several parts, the first counts
        found[home, path] = document if is_there or not now else now[0], path
    return found
