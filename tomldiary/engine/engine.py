"""The one write path: lock, read what is stored now, change it, log it, publish it."""

from __future__ import annotations

import time
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from tomldiary.engine.cache import DocumentCache
from tomldiary.engine.commit import log_only, merge_displaced, prepare, prepare_saves
from tomldiary.engine.deadlines import Deadlines
from tomldiary.engine.transaction import Source, Transaction, fingerprint
from tomldiary.entries.kinds.parts import LARGEST
from tomldiary.entries.models import FORMAT_VERSION
from tomldiary.errors import (
    BackendError,
    CommittedUnpublished,
    Conflict,
    DocumentError,
    Forgotten,
    HandEditConflict,
    OperationConflict,
    RevisionConflict,
    SequenceConflict,
)
from tomldiary.hand_edits.detect import NOTHING, Known
from tomldiary.history.record import SNAPSHOT, is_lost, next_sequence, render_record
from tomldiary.history.timeline import Timeline
from tomldiary.runtime.async_bridge import OwnThread
from tomldiary.storage.locks import repeated
from tomldiary.storage.protocol import (
    KeepsDisplacedEdits,
    LocalFolder,
    OptimisticWrites,
    PrefersPartSize,
    TellsErasure,
)
from tomldiary.toml.edit import Edit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Mapping
    from contextlib import AbstractContextManager

    from tomldiary.engine.commit import Changed, Prepared
    from tomldiary.history.record import Record
    from tomldiary.storage.protocol import Backend, Token
    from tomldiary.toml.document import Path

__all__ = ["Engine", "Source", "Transaction", "is_erased"]

R = TypeVar("R")

_ATTEMPTS = 20  # after a concurrent hand edit
_MOST_DEADLINES = 4096  # users; a bound on memory


class Engine(DocumentCache):
    """Reads and writes the documents of one backend. Thread-safe.

    Args:
        backend: Where the documents are.
        schema_name: Written to `_meta.schema_name` of new documents.
        lock_timeout: Seconds a writer waits for another one.
    """

    def __init__(self, backend: Backend, schema_name: str, *, lock_timeout: float = 30.0) -> None:
        super().__init__(backend)
        if isinstance(backend, KeepsDisplacedEdits):
            backend.merge_displaced = merge_displaced
        self._optimistic = backend if isinstance(backend, OptimisticWrites) else None
        self.schema_name = schema_name
        self.lock_timeout = lock_timeout
        self.part_size = backend.part_size if isinstance(backend, PrefersPartSize) else LARGEST
        """Characters of a document before new preferences, facts and items go to another one."""
        meta = {"version": FORMAT_VERSION, "schema_name": schema_name}
        edit = Edit(NOTHING)
        # Not parsed: an edit knows the tables that it wrote, so changing them is faster.
        edit.put(("_meta",), meta)
        self.template = edit.done()
        self.redact: Callable[[Path, Mapping[str, Any]], Mapping[str, Any]] | None = None
        """Takes out of an entry what must not be stored; None stores entries as they are."""
        self.before_commit: tuple[Callable[[str, Prepared], None], ...] = ()
        """Called with the user and a transaction under the user's lock; an error refuses the transaction."""
        self.after_change: tuple[Callable[[str], None], ...] = ()
        """Called with the user after each transaction and erasure; must be quick and raise nothing."""
        self.sweep: Callable[[Transaction], None] | None = None
        """Called with each transaction before its change; removes the entries whose time is over."""
        self.check: Callable[[Transaction], None] | None = None
        """Called with each transaction that changes something, before it is stored; raises if a rule forbids it."""
        self._deadlines: dict[str, Deadlines] = {}

    def deadlines(self, user: str) -> Deadlines:
        """Return until when a user's items live that were read since they were put."""
        found = self._deadlines.get(user)
        if found is None:
            if isinstance(self.backend, LocalFolder):
                if len(self._deadlines) >= _MOST_DEADLINES:
                    self._deadlines.clear()  # files have them
                made = Deadlines(self.backend.index_folder(user), self.backend.files)
            else:
                made = Deadlines(None)
            found = self._deadlines.setdefault(user, made)
        return found

    # Writing

    def write(  # noqa: D417 - the docstring describes `epoch` in its text
        self,
        user: str,
        change: Callable[[Transaction], R],
        source: Source,
        *,
        epoch: int | None = None,
        check: Callable[[], object] | None = None,
        on_repeat: Callable[[int], R] | None = None,
    ) -> R:
        """Apply `change` to fresh state and commit; a transaction without effect writes nothing.

        An idempotency key that is in history already, for the same content, has no effect a second time.

        `change` is called again after a concurrent hand edit, so it must have no effect except on its
        transaction. `epoch` is the user's fencing token when the work began; None accepts any.

        Args:
            user: Whose memory.
            change: Makes the change.
            source: For the history record.
            check: Called for each attempt, under the lock; raises if the write is no longer due.
            on_repeat: Makes the answer for a repetition, from the number of the first transaction;
                None returns what `change` returns, whose effect is dropped.

        Raises:
            HandEditConflict: Another program kept saving the document.
            OperationConflict: The idempotency key was used for something else.
            Forgotten: Something of the user was erased since `epoch`.
            LockTimeout: Another writer kept the lock.
            BackendError: The storage failed; nothing was changed.
        """
        joined = self._joined(user)
        if joined is not None:
            result = change(joined)
            if joined.has_operation:
                joined.contents.append(source.fingerprint())
            return result
        results: list[R] = []

        def run() -> Transaction | None:
            if epoch is not None and self.backend.epoch(user) != epoch:
                raise Forgotten.meanwhile()
            if check is not None:
                check()
            before = self.repetition(user, source)
            if before is not None and on_repeat is not None:
                results.append(on_repeat(before))
                return None
            transaction = self._swept(user)
            results.append(change(transaction))
            return transaction if before is None else None

        def attempt() -> R:
            try:
                with self._attempt(user):
                    transaction = run()
                    if transaction is not None:
                        self._commit(transaction, source, run)
            finally:
                self._notify(user)  # an attempt is stored at its end
            return results[-1]

        return repeated(attempt, self.lock_timeout)

    def _attempt(self, user: str) -> AbstractContextManager[object]:
        """Hold the user's lock; a hook that sees transactions before they are stored sees none on assumed state."""
        if self._optimistic is None or self.before_commit:
            return self.backend.lock(user, self.lock_timeout)
        return self._optimistic.attempt(user, self.lock_timeout)

    @contextmanager
    def transaction(
        self, user: str, source: Source, *, expected: int | None = None
    ) -> Generator[Transaction]:
        """Open a transaction for the `with` block; it is committed at the end, or not at all.

        Inside another transaction of the same user it is part of that one.

        Args:
            user: Whose memory.
            source: For the history record.
            expected: The number of the user's last transaction, to detect other writes.

        Raises:
            SequenceConflict: The last transaction is not `expected`.
            OperationConflict: The idempotency key was used for something else.
            NestedTransaction: A transaction of another user is open here.
        """
        joined = self._joined(user)
        if joined is not None:
            yield joined
            return
        with self.backend.lock(user, self.lock_timeout):
            transaction = self._begin(user, source, expected)
            with transaction.opened():
                yield transaction
            self._finish(transaction, source)

    @asynccontextmanager
    async def atransaction(
        self, user: str, source: Source, *, expected: int | None = None
    ) -> AsyncGenerator[Transaction]:
        """Open a transaction like `transaction`, without holding the event loop for lock or disk."""
        joined = self._joined(user)
        if joined is not None:
            yield joined
            return
        lock, worker = ExitStack(), OwnThread()
        try:
            await worker.run(lambda: lock.enter_context(self.backend.lock(user, self.lock_timeout)))
            transaction = await worker.run(lambda: self._begin(user, source, expected))
            transaction.worker = worker
            with transaction.opened():
                yield transaction
            await worker.run(lambda: self._finish(transaction, source))
        finally:
            # Behind the call that may still run if the task was cancelled.
            worker.close(lock.close)

    def _begin(self, user: str, source: Source, expected: int | None) -> Transaction:
        last = next_sequence(self.backend.last_record(user)) - 1
        if expected is not None and expected != last:
            raise SequenceConflict.of(expected, last)
        transaction = self._swept(user)
        transaction.session, transaction.has_operation = source.session, bool(source.operation)
        transaction.actor = source.actor
        return transaction

    def _swept(self, user: str) -> Transaction:
        transaction = Transaction(self, user)
        if self.sweep is not None:
            self.sweep(transaction)
        return transaction

    def _finish(self, transaction: Transaction, source: Source) -> None:
        source = replace(source, content=fingerprint(transaction.contents))
        if self.repetition(transaction.user, source) is None:
            self._commit(transaction, source)

    def _commit(
        self,
        transaction: Transaction,
        source: Source,
        again: Callable[[], Transaction | None] | None = None,
    ) -> None:
        """Commit a transaction; the caller holds the user's lock.

        After a concurrent hand edit it is repeated on fresh state: by `again`, or else its changes are
        rebased, because a `with` block cannot be run twice.

        Raises:
            HandEditConflict: There was one more hand edit at each attempt.
            BackendError: The storage failed; see `Backend.commit`.
        """
        user, changed = transaction.user, self._checked(transaction)
        deadline = time.monotonic() + self.lock_timeout
        for attempt in count(1):
            if not changed:
                return
            try:
                transaction.seq = self._store(user, changed, source)
            except Conflict as conflict:
                is_shared = isinstance(conflict, RevisionConflict)
                if time.monotonic() > deadline if is_shared else attempt >= _ATTEMPTS:
                    raise
                if again is not None:
                    repeated = again()
                    if repeated is None:
                        return
                    transaction, changed = repeated, self._checked(repeated)
                    continue
                if is_shared:
                    raise  # what the block has read may have changed too
                fresh, is_displaced = transaction.rebased(changed)
                if is_displaced and self._log_only(user, changed, source):
                    return
                changed = fresh
            except BackendError:
                self.discard(user, changed)
                raise
            else:
                return

    def _checked(self, transaction: Transaction) -> Changed:
        """Return what a transaction changes, once the rules allow it."""
        if self.check is not None and transaction.changed():
            self.check(transaction)
        return transaction.changed()

    def _store(self, user: str, changed: Changed, source: Source) -> int:
        last = self.backend.last_record(user)
        # Where another program has removed records, it is unknown which documents they changed.
        edited = changed if not is_lost(last) else {**self._unchanged(user), **changed}
        logged = self._log_saves(user, edited)
        if logged is not None:
            changed, last = {kind: logged[kind] for kind in changed}, self.backend.last_record(user)
        if self.redact is not None:
            source = replace(
                source, reason=str(self.redact((), {"reason": source.reason})["reason"])
            )
        prepared = prepare(
            changed, source, self.schema_name, last, replaces_save=logged is not None
        )
        self._publish(user, prepared)
        return prepared.record.seq

    def _unchanged(self, user: str) -> Changed:
        """Return all documents that can be read, without a change."""
        found: Changed = {}
        for kind in self.backend.kinds(user):
            with suppress(DocumentError):
                known = self.settled(user, kind)
                if known is not None:
                    found[kind] = (known, Edit(known.document))
        return found

    def _log_saves(self, user: str, changed: Changed) -> Changed | None:
        """Log the hand edits of documents; return the changes on what is stored then, None without hand edits."""
        saved = prepare_saves(self.backend, user, changed, self.may_be_logged, self.save_timeout)
        if saved is None:
            return None
        try:
            tokens = self.backend.commit(user, saved.commit)
        except CommittedUnpublished as error:
            raise BackendError(
                f"{self.backend.place(user, next(iter(saved.saves), ''))}: a hand edit is in history, but"
                " could not be merged into the file. Nothing else was changed."
            ) from error
        changed = saved.rebased(tokens)
        for kind in saved.saves:
            known = changed[kind][0]
            if known is None:
                self.discard(user, [kind])
                raise HandEditConflict.changed(self.backend.place(user, kind))
            self._remember(
                (user, kind),
                replace(known, is_logged=True, is_saved=True, logged=None, conflicts=[]),
            )
        return changed

    def log_hand_edit(self, user: str, kind: str) -> Token | None:
        """Log the hand edit that a document holds, if there is one; return the version of the document.

        Raises:
            RevisionConflict: Another machine changed the user meanwhile.
        """
        with self.backend.lock(user, self.lock_timeout):
            known = self.settled(user, kind)
            changed: Changed = {kind: (known, Edit(known.document if known else NOTHING))}
            logged = self._log_saves(user, changed)
            if logged is not None:
                known = logged[kind][0]
                self._notify(user)
            return known.token if known else None

    def _log_only(self, user: str, changed: Changed, source: Source) -> bool:
        """Commit displaced changes to history alone; return False if that is not possible."""
        try:
            prepared = log_only(
                self.backend, user, changed, source, self.schema_name, self.may_be_logged
            )
            if prepared is not None:
                self._publish(user, prepared)
        except Conflict:
            return False
        except BackendError:
            self.discard(user, changed)
            raise
        return prepared is not None

    def _publish(self, user: str, prepared: Prepared) -> None:
        try:
            for check in self.before_commit:
                check(user, prepared)
            tokens = self.backend.commit(user, prepared.commit)
        finally:
            self._notify(user)  # also of a refused transaction, which a strict hook may have seen
        made = prepared.record
        self.logged.note(user, made, prepared.commit.records[-1])
        for kind, document in prepared.documents.items():
            base = prepared.broken.get(kind)
            if base is None and kind not in tokens:
                self.discard(user, [kind])  # the file holds a hand edit
                continue
            token, problem = (tokens[kind], None) if base is None else (base.token, base.problem)
            known = Known(token, document, is_logged=True, problem=problem, seen=made.seq)
            self._remember((user, kind), known)

    def _notify(self, user: str) -> None:
        for notify in self.after_change:
            notify(user)

    # Idempotency keys

    def is_done(self, user: str, operation: str) -> bool:
        """Return whether history has an idempotency key."""
        is_mine = self._readable(user) is not None
        with nullcontext() if is_mine else self.backend.lock(user, self.lock_timeout):
            return operation in self.logged.of(user, is_whole=True).operations

    def done_operations(self, user: str) -> frozenset[str]:
        """Return the idempotency keys that are in the user's history."""
        with self.backend.lock(user, self.lock_timeout):
            return frozenset(self.logged.of(user, is_whole=True).operations)

    def repetition(self, user: str, source: Source) -> int | None:
        """Return the number of the transaction that did this operation before; the caller holds the lock.

        Raises:
            OperationConflict: The idempotency key is in history for other content.
        """
        if not source.operation or source.is_new:
            return None
        before = self.logged.of(user, is_whole=True).operations.get(source.operation)
        if before is None or self._is_dropped(user, before[0]):
            return None
        if before[1] != source.fingerprint():
            raise OperationConflict.of(source.operation)
        return before[0]

    def _is_dropped(self, user: str, seq: int) -> bool:
        """Return whether another process has dropped the record of a transaction from history."""
        records = Timeline(self.backend, user).records()
        found = next((each for each in records if each.seq <= seq), None)
        return found is None or found.type == SNAPSHOT

    # Rewriting history

    @contextmanager
    def rewriting(self, user: str) -> Generator[None]:
        """Hold a user's lock while history is rewritten; cached documents are dropped afterwards.

        Raises:
            NestedTransaction: A transaction of the user is open here.
            LockTimeout: Another writer kept the lock.
        """
        self.refuse_open(user)
        with self.backend.lock(user, self.lock_timeout):
            try:
                yield
            finally:
                self.logged.drop(user)
                self._drop(user)
                self._notify(user)

    def restore_immutable(self, user: str) -> None:
        """Commit what `undo_edits` restores; the caller holds the user's lock."""
        transaction = Transaction(self, user)
        for kind in [each for each in self.kinds(user) if each.partition("/")[0] in self.guards]:
            known = self.settled(user, kind)
            if known is not None and self.before_saves(user, kind, known) is not None:
                transaction.edit(kind)
        self._commit(transaction, Source("put_back"))

    def prune(self, user: str, cut: Callable[[Timeline], Record | None]) -> None:
        """Drop the history up to the snapshot that `cut` makes under the user's lock; None drops nothing.

        Raises:
            NestedTransaction: A transaction is open here.
            BackendError: The storage failed; what is left of history is consistent.
        """

        def run() -> None:
            if is_lost(self.backend.last_record(user)):
                self._log_saves(user, self._unchanged(user))
            snapshot = cut(Timeline(self.backend, user))
            if snapshot is not None:
                self.backend.prune(user, snapshot.seq, render_record(snapshot))

        with self.rewriting(user):
            repeated(run, self.lock_timeout)


def is_erased(backend: Backend, user_id: str, began: int | None, now: int) -> bool:
    """Return whether everything of a user was erased since a run began.

    Args:
        backend: The storage.
        user_id: Whose run.
        began: The user's fencing token when the run began; None is now.
        now: The user's fencing token now, read before this is called.
    """
    return (
        began is not None
        and began < now
        and isinstance(backend, TellsErasure)
        and began < backend.erased(user_id)
    )
