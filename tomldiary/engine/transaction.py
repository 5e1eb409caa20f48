"""Transactions: several changes of one user that are stored together or not at all.

A transaction works on fresh state under the user's lock. The transaction owns the lock, not the thread. Calls by the
same task or thread join it and see its changes; other tasks of the same loop wait. Calls for another user are refused,
because two writers that each wait for the other's lock would never end.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from operator import is_
from typing import TYPE_CHECKING, Any, TypeVar

from tomldiary.entries.fields import same_data
from tomldiary.entries.kind import Listed, Writing
from tomldiary.entries.kinds import KINDS, entry_kind, entry_path
from tomldiary.entries.kinds.parts import JoinedEdit, entry_at, parts_among
from tomldiary.errors import HandEditConflict, LockTimeout, NestedTransaction
from tomldiary.hand_edits.detect import is_being_saved
from tomldiary.hand_edits.three_way_merge import NOTHING, merge
from tomldiary.history.record import Change, Record, Source, next_sequence, render_record
from tomldiary.runtime.async_bridge import CALLED_IN, SCOPE, OwnThread, current_task
from tomldiary.storage.protocol import Commit, Token
from tomldiary.toml.document import FORMAT_VERSION
from tomldiary.toml.edit import Edit
from tomldiary.toml.values import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from tomldiary.engine.cache import DocumentCache
    from tomldiary.engine.engine import Engine
    from tomldiary.entries.kind import EntryKind, Rules
    from tomldiary.hand_edits.detect import Known
    from tomldiary.toml.document import Document, Path
    from tomldiary.toml.lexer import Block

R = TypeVar("R")
_ORIGINS = frozenset({"assistant", "import", "model", "rule", "tool", "user", "web"})
"""The actors that are stored in the field `_origin` of entries."""
_HOLDER: ContextVar[object] = ContextVar("tomldiary_holder", default=None)
"""The call that runs this code, and holds its transaction."""
Changed = dict[str, "tuple[Known | None, Edit]"]
"""Documents with changes, by kind: the base version, and the edit."""


@dataclass(slots=True)  # not frozen: frozen ones are slower to create
class Prepared:
    """A transaction that is ready to be stored. Never changed."""

    record: Record
    commit: Commit
    documents: dict[str, Document]
    broken: dict[str, Known]
    """Documents whose files do not parse; these files are not overwritten."""
    last: str | None
    """The newest history record before it."""


class NotStored(Exception):
    """Ends a transaction without storing it, for previews."""


class Transaction:
    """Changes to the documents of one user, on fresh state, under the user's lock.

    Args:
        engine: The engine that commits it.
        user: The user.
        before: Documents to start from instead of the stored ones, to preview changes.
    """

    def __init__(
        self, engine: Engine, user: str, before: Mapping[str, Known] | None = None
    ) -> None:
        self.user = user
        self.engine = engine
        self.is_open = False
        self._guard = (
            threading.RLock()
        )  # reentrant, because a call may run code in an older context
        self._holder: object = None
        """Identifies the call that holds the transaction."""
        self.task: Any = None
        """The task that opened the transaction; None in sync code."""
        self.guests: set[Any] = set()
        """The tasks that run a coroutine for a thread in the block, which waits for it."""
        self.thread = 0
        """The identifier of the thread that opened the transaction."""
        self.process = 0
        """The process that opened the transaction; a forked child has a copy of it."""
        self.worker: OwnThread | None = None
        """The thread that runs the blocking calls of the task that owns the transaction."""
        self.session = ""
        """The default session of its entries."""
        self.actor = ""
        """The default actor of its changes."""
        self.drafts: str | None = None
        """The session whose drafts the user's writes become; None stores them."""
        self.has_operation = False
        """Whether the transaction has an idempotency key."""
        self.contents: list[str] = []
        """Fingerprints of the joined requests, if the transaction has an idempotency key."""
        self.seq: int | None = None
        """The number of the transaction after its commit."""
        self.last = engine.backend.last_record(user)
        """The newest history record before it; the commit is refused if history has another one."""
        self.expired: set[tuple[str, Path]] = set()
        """The expired entries that were removed at the start, with their documents."""
        self._before: Mapping[str, Known] = {} if before is None else before
        self._edits: dict[str, Edit] = {}
        self._joined: dict[str, JoinedEdit] = {}
        self._listed: dict[str, list[str]] = {}
        """The parts of each kind when its entries were read."""
        self._bases: dict[str, Known | None] = {}
        self._starts: dict[str, Document] = {}
        """Documents in which forbidden hand edits were undone, before any other change."""
        self._seen: dict[str, Known | None] = {}
        """Documents just read by `documents`; using them is safe, because the commit compares their versions."""

    @contextmanager
    def opened(self) -> Generator[None]:
        """Open the transaction for a `with` block, unless it is open; calls in the block join it."""
        if self.is_open:
            yield
            return
        outer = SCOPE.get()
        try:
            # In the block, because an interrupt must not leave it open: later calls would join it, and be lost.
            self.is_open = True
            self.task, self.thread = current_task(), threading.get_ident()
            self.process = os.getpid()
            SCOPE.set(self)
            yield
            if self.process != os.getpid():
                raise NestedTransaction(
                    "this process was forked inside the transaction, which only its parent stores. End the child"
                    " inside the block, for example with os._exit."
                )
            self.end()
        finally:
            self.is_open = False
            if SCOPE.get() is self:  # the block may end elsewhere, such as that of a generator
                SCOPE.set(outer)

    def end(self) -> None:
        """End the transaction after the calls of other threads that have begun; later calls do not join it.

        Raises:
            LockTimeout: A call took too long.
        """
        with self.held():
            self.is_open = False

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold the transaction for one call, because threads with a copy of its context join it at once.

        What the call does in another thread, and waits for, belongs to it.

        Raises:
            LockTimeout: A call of another thread took too long.
        """
        outer, timeout = _HOLDER.get(), self.engine.lock_timeout
        if outer is not None and outer is self._holder:
            yield
            return
        if not self._guard.acquire(timeout=timeout):
            raise LockTimeout(
                f"a call of another thread in the same transaction took longer than {timeout:g} s. Try again."
            )
        before = self._holder
        try:
            self._holder = holder = object()
            _HOLDER.set(holder)
            yield
        finally:
            self._holder = before
            _HOLDER.set(outer)
            self._guard.release()

    @contextmanager
    def nested(self, source: Source) -> Generator[Transaction]:
        """Join a block to the transaction, under its own session and actor; an error undoes its changes."""
        outer, contents = (self.session, self.actor, self.drafts), list(self.contents)
        edits = dict(self._edits)
        savepoints = [edit.savepoint() for edit in edits.values()]
        self.session, self.actor = source.session or self.session, source.actor or self.actor
        self.drafts = source.session if source.is_draft else self.drafts
        try:
            yield self
        except BaseException:
            for undo in savepoints:
                undo()
            self._edits, self._joined, self.contents = edits, {}, contents
            raise
        finally:
            self.session, self.actor, self.drafts = outer

    def stamped(self, change: Callable[[Transaction], R], origin: str) -> R:
        """Run a write, and store its origin in the entries whose content it changed.

        Origins outside `_ORIGINS` are stored only in history; the previous origin is then removed from the entry.
        """
        is_noted = origin.partition(":")[0] in _ORIGINS
        earlier = {name: self.edit(name).touched for name in self.kinds()}
        for name in earlier:
            self.edit(name).touched = {}
        result = change(self)
        for name in self.kinds():
            edit = self.edit(name)
            for path, was in [*edit.touched.items()]:
                if not is_noted and (was is None or "_origin" not in was):
                    continue
                entry = edit.table(path) if entry_path(name, path) == path else None
                if entry is None or same_data(was, entry):
                    continue
                if is_noted:
                    edit.put(path, {**entry, "_origin": origin})
                elif was is not None and was["_origin"] == entry.get("_origin"):
                    edit.put(path, _without_origin(entry) or {})
            # Not copied, because it may be large in a long transaction.
            before = earlier.get(name, {})
            for path, was in edit.touched.items():
                before.setdefault(path, was)
            edit.touched = before
        return result

    def edit(self, kind: str) -> Edit:
        """Return the edit of a document, which starts from the stored version.

        Raises:
            NotSupported: The backend cannot keep this document.
        """
        edit = self._edits.get(kind)
        if edit is None:
            self.engine.check_kept(kind)
            base = self._bases[kind] = self._settled(kind)
            edit = Edit(_document_of(base))
            edit.redact = self.engine.redact
            edit.file = partial(self.engine.backend.place, self.user, kind)
            self.engine.undo_edits(self.user, kind, edit, base)
            if edit.is_changed:
                # The touched tables are cleared, because no caller changed them.
                self._starts[kind], edit.touched = edit.peek(), {}
            self._keep(kind, edit)
        return edit

    def _keep(self, kind: str, edit: Edit) -> None:
        self._edits[kind] = edit
        joined = self._joined.get(kind) or self._joined.get(kind.partition("/")[0])
        if joined is not None:
            joined.include(kind, edit)

    def entries(self, kind: str) -> JoinedEdit:
        """Return an edit of all entries of a kind, which starts from the stored version.

        Raises:
            NotSupported: The backend cannot keep this kind.
        """
        found = self._joined.get(kind)
        if found is None:
            parts = self._listed[kind] = self.engine.parts(self.user, kind)
            begun = [name for name in (*self._before, *self._edits) if name.startswith(f"{kind}/")]
            if begun:
                parts = parts_among(kind, {*parts[1:], *begun})
            stored = dict(zip(parts, self.documents(parts), strict=True))
            known_kind = KINDS.get(kind) or entry_kind(kind)
            is_split = known_kind.is_split and self.engine.lists_documents
            limit = self.engine.part_size if is_split else None
            known = {part: self._edits.get(part) or stored[part] for part in parts}
            found = self._joined[kind] = JoinedEdit(known_kind, known, self.edit, limit)
            is_guarded = self.engine.is_guarded(kind)
            for part in parts:
                seen = self._seen.get(part)
                is_seen_edited = seen is not None and (
                    (is_guarded and seen.is_edited) or self._is_young(part, seen)
                )
                # Creating the edit undoes forbidden hand edits, and waits for a save, which may have moved entries.
                if len(parts) == 1 or is_seen_edited:
                    self.edit(part)
        return found

    def _is_young(self, part: str, seen: Known) -> bool:
        """Return whether a part was saved a moment ago; one that stays open delays only the writes to it."""
        return seen.is_settling and not is_being_saved(self.engine.backend, self.user, part)

    def replace(self, kind: str, document: Document) -> None:
        """Replace a whole document; the old one stays in history."""
        if kind not in self._bases:
            self.engine.check_kept(kind)
            self._bases[kind] = self._settled(kind)
        edit = Edit(document, is_changed=True)
        tables, before = entry_kind(kind).tables, self.document(kind)
        paths = {**tables(document), **tables(before)}
        # Without the origin, because the new entries have their own, which `stamped` then keeps.
        edit.touched = {path: _without_origin(before.table(path)) for path in paths}
        self._keep(kind, edit)

    def _settled(self, kind: str) -> Known | None:
        known = self._before.get(kind)
        if known is not None:
            return known
        if kind in self._seen:
            seen = self._seen.pop(kind)
            if seen is None or not seen.is_settling:
                return seen
        return self.engine.settled(self.user, kind, self.last)

    def document(self, kind: str) -> Document:
        """Return a document with the changes made so far."""
        with self.held():
            edit = self._edits.get(kind)
            if edit is None:
                return _document_of(
                    self._before.get(kind) or self.engine.load_all(self.user, [kind], self.last)[0]
                )
            return edit.peek() if edit.is_changed else _document_of(self._bases[kind])

    def before(self, kind: str) -> Document:
        """Return the version of an edited document before the changes, without forbidden hand edits."""
        return self._starts.get(kind) or _document_of(self._bases[kind])

    def documents(self, kinds: Sequence[str]) -> list[Document]:
        """Return several documents; edits of them that follow immediately do not read them again."""
        others = [kind for kind in kinds if kind not in self._edits and kind not in self._before]
        loaded = self.engine.load_all(self.user, others, self.last)
        seen = self._seen = dict(zip(others, loaded, strict=True))
        return [_document_of(seen[kind]) if kind in seen else self.document(kind) for kind in kinds]

    def kinds(self) -> list[str]:
        """Return the names of the documents that have an edit."""
        return list(self._edits)

    def listed(self) -> set[str]:
        """Return the names of the user's documents, with those that the transaction adds."""
        return {*self.engine.kinds(self.user), *self.changed()}

    def writing(self, rules: Rules, session: str = "", now: str = "") -> Writing:
        """Return the context that a kind of entries needs to write in this transaction; `now` is "" for this moment."""
        listed = Listed(self.listed)
        return Writing(rules, self.edit, self.entries, listed, now or timestamp(), session)

    def changed(self) -> Changed:
        """Return the documents with changes."""
        edits = [*self._edits.items()]
        return {kind: (self._bases[kind], edit) for kind, edit in edits if edit.is_changed}

    def check_parts(self) -> None:
        """Check that no part was added since the entries of its kind were read, because they may be in it now.

        Raises:
            HandEditConflict: A hand edit has added a part.
        """
        for kind, parts in self._listed.items():
            for part in self.engine.parts(self.user, kind):
                if part not in parts:
                    raise HandEditConflict.changed(self.engine.backend.place(self.user, part))

    def rebased(self, changed: Changed) -> tuple[Changed, bool]:
        """Return changes rebased on the stored documents, and whether a hand edit displaces one of them."""
        fresh: Changed = {}
        is_displaced = False
        self.last = self.engine.backend.last_record(self.user)
        for kind, (base, edit) in changed.items():
            now = self.engine.settled(self.user, kind, self.last)
            if now is None:
                fresh[kind] = None, edit
                continue
            result = merge(kind, _document_of(base), edit.peek(), now.document)
            merged = Edit(result.document.sharing_blocks_of(now.document), is_changed=True)
            self.engine.undo_edits(self.user, kind, merged, now)
            fresh[kind] = now, merged
            is_displaced = is_displaced or bool(result.conflicts)
        return fresh, is_displaced

    def is_owned_here(self) -> bool:
        """Return whether it is open, and the running code opened it or was called by the code that did."""
        if not self.is_open or self.process != os.getpid():
            return False
        task = current_task()
        if task is None or task is self.task or task in self.guests:
            return True
        # Sync code inside the block may run an event loop and wait for its tasks, which run in the same thread.
        return self.task is None and threading.get_ident() == self.thread

    def is_joined_by(self, engine: DocumentCache, user: str) -> bool:
        """Return whether a call by the running code joins this transaction.

        Raises:
            NestedTransaction: The call is for another user of the same diary, or the task that made it was cancelled.
        """
        if self.engine is not engine:
            return False
        if not self.is_open:
            if CALLED_IN.get() is self:
                # It must not be stored on its own, and would wait for the lock that is released after it.
                raise NestedTransaction(
                    "the transaction was cancelled before this call began. Nothing of it was stored; begin a new transaction."
                )
            return False
        if not self.is_owned_here():
            return False  # an independent task or process that was started inside the block
        if user != self.user:
            raise NestedTransaction(
                "a transaction of another user is open here; finish it first. Otherwise two transactions could"
                " wait for each other's lock forever."
            )
        return True


def open_here() -> Transaction | None:
    """Return the transaction that is open in this task or thread."""
    scope = SCOPE.get()
    return scope if isinstance(scope, Transaction) else None


def _document_of(known: Known | None) -> Document:
    return known.document if known is not None else NOTHING


# Preparing a transaction for storage


def prepare(
    changed: Changed,
    source: Source,
    schema_name: str,
    last: str | None,
    *,
    replaces_save: bool = False,
) -> Prepared:
    """Prepare a transaction; the caller holds the user's lock.

    Args:
        changed: The documents with changes.
        source: The source of the transaction, for its history record.
        schema_name: The schema name of new documents.
        last: The newest history record.
        replaces_save: Whether hand edits were stored just before.

    Raises:
        DiaryError: A document would be too large to be read, or history cannot be read.
    """
    seq = next_sequence(last)
    record = Record(
        seq=seq,
        type=source.type,
        changes=[],
        bases={},
        results={},
        session=source.session,
        actor=source.actor,
        reason=source.reason,
        operation=source.operation,
        content=source.fingerprint() if source.operation else "",
    )
    documents: dict[str, Document] = {}
    contents: dict[str, bytes] = {}
    expected: dict[str, Token | None] = {}
    broken: dict[str, Known] = {}
    for kind, (base, edit) in changed.items():
        if base is not None and base.logged is not None:
            keep_removed_ids(kind, edit, base.logged)
        if edit.meta.get("version") != FORMAT_VERSION:
            entry_kind(kind).migrate(edit)
        named = edit.meta.get("schema_name", schema_name)
        edit.set_meta(version=FORMAT_VERSION, schema_name=named, seq=seq)
        documents[kind] = document = edit.done(kind)
        record.results[kind] = document.fingerprint
        old = NOTHING if base is None else base.document
        record.bases[kind] = old.fingerprint
        expected[kind] = None if base is None else base.token
        replaces_save = replaces_save or (base is not None and base.is_merged)
        record.changes.extend(block_changes(kind, old, document))
        if base is not None and base.problem:
            broken[kind] = base
        else:
            contents[kind] = document.encoded
    commit = Commit(
        contents, expected, [render_record(record)], replaces_save, fingerprints=record.results
    )
    return Prepared(record, commit, documents, broken, last)


def keep_removed_ids(name: str, edit: Edit, before: Document) -> None:
    """Reserve the ids of entries that a hand edit removed, so that new entries do not get them."""
    kind = entry_kind(name)
    kind.keep_ids(edit, [path for path in kind.tables(before) if edit.table(path) is None])


# The changes between two versions


_Span = tuple[int, int, int, int]
"""A range of blocks in the old version and the range that replaces it: start and end of each."""


def block_changes(doc: str, old: Document, new: Document) -> list[Change]:
    """Return the changes between two versions, in the order of the old one; each replaces whole blocks.

    An entry in several blocks, such as one with a list of tables, is covered with all its blocks, so that the changes
    have its whole state.
    """
    before, after = old.blocks, new.blocks
    spans = [
        (first, end, start, stop)
        for first, end, start, stop in _spans(before, after)
        if [block.text for block in before[first:end]]
        != [block.text for block in after[start:stop]]
    ]
    kind = KINDS.get(doc.partition("/")[0]) or entry_kind(doc)
    split = _split_entries(kind, old, new, spans)
    if split:
        spans = _widened(kind, before, after, spans, split)
    found: list[Change] = []
    at = known = 0
    for first, end, start, stop in spans:
        at += sum([len(block.text) for block in before[known:first]])
        known = first
        changed = before[first:end], after[start:stop]
        found.append(_change(doc, at, *changed, is_whole=bool(split)))
    return found


def _spans(old: list[Block], new: list[Block]) -> Iterator[_Span]:
    """Yield the ranges that differ.

    Blocks that an edit did not touch are the same objects in both versions, so most of the comparison is done
    by comparing slices of references.
    """
    places: dict[int, int] = {}
    i = j = 0
    while (same := _common(old, i, new, j)) < max(len(old) - i, len(new) - j):
        i, j = i + same, j + same
        if i + 1 < len(old) and j + 1 < len(new) and old[i + 1] is new[j + 1]:
            yield i, i + 1, j, j + 1  # most changes replace one block
            i, j = i + 1, j + 1
            continue
        first, start = i, j
        if i < len(old) and not places:
            places = {id(block): number for number, block in enumerate(new[j:], j)}
        # Moves are not detected: a block that does not follow on the other side was removed or added here.
        while i < len(old) and places.get(id(old[i]), -1) < j:
            i += 1
        while j < len(new) and (i == len(old) or new[j] is not old[i]):
            j += 1
        yield first, i, start, j


def _split_entries(
    kind: EntryKind, old: Document, new: Document, spans: Sequence[_Span]
) -> set[Path]:
    """Return the entries with changed blocks that have several blocks in one of the versions."""
    before, after = old.blocks, new.blocks
    paths = {b.path for i, end, j, stop in spans for b in (*before[i:end], *after[j:stop])}
    changed = {entry_at(kind, path) for path in paths}
    return (old.parents.keys() & changed) | (new.parents.keys() & changed)


def _widened(
    kind: EntryKind, old: list[Block], new: list[Block], spans: Sequence[_Span], entries: set[Path]
) -> list[_Span]:
    """Return ranges that also cover all other blocks of some entries; adjacent ranges are joined."""
    found: list[_Span] = [(0, 0, 0, 0)]

    def add(first: int, end: int, start: int, stop: int) -> None:
        if found[-1][1] == first and found[-1][3] == start:
            first, _, start, _ = found.pop()
        found.append((first, end, start, stop))

    i = j = 0
    for span in (*spans, (len(old), len(old), len(new), len(new))):
        while i < span[0]:  # both versions have the same blocks between the ranges
            if entry_at(kind, old[i].path) in entries:
                add(i, i + 1, j, j + 1)
            i, j = i + 1, j + 1
        add(*span)
        i, j = span[1], span[3]
    return [span for span in found if span[0] < span[1] or span[2] < span[3]]


def _common(old: list[Block], i: int, new: list[Block], j: int) -> int:
    """Return the number of blocks from positions `i` and `j` on that are identical."""
    return sum(takewhile(bool, map(is_, islice(old, i, None), islice(new, j, None))))


def _change(
    doc: str, at: int, old: list[Block], new: list[Block], *, is_whole: bool = False
) -> Change:
    """Return a change of blocks.

    Unless `is_whole`, it omits unchanged blocks that only get a blank line before added ones.
    """
    before, after = ("".join([block.text for block in blocks]) for blocks in (old, new))
    if len(new) > len(old) and not is_whole:
        kept = sum([len(block.text) for block in new[: len(old)]])
        if after.startswith(before, 0, kept) and not after[len(before) : kept].strip("\r\n"):
            return Change(doc, at + len(before), "", after[len(before) :])
    return Change(doc, at, before, after)


def _without_origin(entry: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the fields of an entry without its origin; None if there is no entry."""
    return None if entry is None else {key: each for key, each in entry.items() if key != "_origin"}
