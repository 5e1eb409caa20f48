"""The only write path: lock, read the stored state, change it, log it, publish it."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from tomldiary.engine.cache import DocumentCache
from tomldiary.engine.hand_edits import log_only, merge_displaced, prepare_saves
from tomldiary.engine.transaction import Transaction, prepare
from tomldiary.entries.kinds.parts import LARGEST
from tomldiary.errors import (
    BackendError,
    CommittedUnpublished,
    Conflict,
    DiaryError,
    DocumentError,
    Forgotten,
    HandEditConflict,
    OperationConflict,
    RevisionConflict,
    SequenceConflict,
)
from tomldiary.hand_edits.detect import Known
from tomldiary.hand_edits.three_way_merge import NOTHING
from tomldiary.history.record import Source, fingerprint, is_lost, next_sequence, render_record
from tomldiary.history.timeline import Timeline
from tomldiary.runtime.async_bridge import CALL, OwnThread
from tomldiary.storage.locks import repeated
from tomldiary.storage.protocol import (
    KeepsDisplacedEdits,
    LocalFolder,
    OptimisticWrites,
    PrefersPartSize,
    TellsErasure,
)
from tomldiary.toml.edit import Edit
from tomldiary.toml.values import checked_count

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
    from contextlib import AbstractContextManager

    from tomldiary.engine.transaction import Changed, Prepared
    from tomldiary.history.record import Record
    from tomldiary.storage.protocol import Backend, Token
    from tomldiary.toml.document import Path

R = TypeVar("R")

_OPTIMISTIC = 1.0  # seconds after which a refused write locks the user
_ATTEMPTS = 20  # the maximum number of attempts when hand edits interfere


class Engine(DocumentCache):
    """Reads and writes the documents of one backend. Thread-safe.

    Args:
        backend: The storage of the documents.
        schema_name: The `_meta.schema_name` of new documents.
        lock_timeout: How long a writer waits for another one, in seconds.
    """

    def __init__(self, backend: Backend, schema_name: str, *, lock_timeout: float = 30.0) -> None:
        super().__init__(backend)
        if isinstance(backend, KeepsDisplacedEdits):
            backend.merge_displaced = merge_displaced
        self._is_folder = isinstance(backend, LocalFolder)
        self._optimistic = backend if isinstance(backend, OptimisticWrites) else None
        self.schema_name = schema_name
        self.lock_timeout = lock_timeout
        self.part_size = backend.part_size if isinstance(backend, PrefersPartSize) else LARGEST
        """The size in characters up to which a document accepts new preferences, facts and items."""
        self.redact: Callable[[Path, Mapping[str, Any]], Mapping[str, Any]] | None = None
        """Replaces the secrets in an entry before it is stored; None stores entries unchanged."""
        self.before_commit: list[Callable[[str, Prepared], None]] = []
        """Called under the user's lock with the user and each prepared transaction; an error refuses it."""
        self.after_change: list[Callable[[str], None]] = []
        """Called with the user after each transaction and erasure; must return quickly and never raise.

        Any thread may add and remove functions at any time, so use `append` and `remove`, which are atomic.
        """

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

        A repeated idempotency key with the same content has no effect.

        `change` is called again after a concurrent hand edit, so it must only change its transaction. `epoch` is the
        user's fencing token at the start of the work; None accepts any.

        Args:
            user: The user.
            change: Makes the changes in a transaction, and returns the result.
            source: The source of the transaction, for its history record.
            check: Called at the start of each attempt; raises if the write must no longer happen.
            on_repeat: Returns the result of a repeated operation, from the number of its first transaction;
                None calls `change` without storing its changes.

        Raises:
            HandEditConflict: Another program kept saving the document.
            OperationConflict: The idempotency key was used with different content.
            Forgotten: Data of the user was erased since `epoch`.
            LockTimeout: Another writer kept the lock.
            BackendError: The storage failed; nothing was changed.
        """
        while (joined := self._joined(user)) is not None:
            with joined.held():
                if joined.is_open:  # not ended while this call waited
                    result = change(joined)
                    if joined.has_operation:
                        joined.contents.append(source.fingerprint())
                    return result
        results: list[R] = []

        def run() -> Transaction | None:
            _refuse_cancelled()
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
            transaction = run()
            if transaction is not None:
                self._commit(transaction, source, run)
            return results[-1]

        # Hooks must not see transactions on unconfirmed state.
        optimistic = None if self.before_commit else self._optimistic
        begin = time.monotonic()
        try:
            # Not for longer, because other processes wait for the holder of a lock only.
            longest = min(_OPTIMISTIC, self.lock_timeout)
            while optimistic is not None and time.monotonic() - begin <= longest:
                # The attempt is stored at the end of its block.
                with suppress(RevisionConflict), optimistic.attempt(user, self.lock_timeout):
                    return attempt()
            with self.backend.lock(user, self.lock_timeout):
                return repeated(attempt, self.lock_timeout)
        finally:
            self._notify(user)

    @contextmanager
    def transaction(
        self, user: str, source: Source, *, expected: int | None = None
    ) -> Generator[Transaction]:
        """Open a transaction for the `with` block; it is committed at the end, or not at all.

        Inside another transaction of the same user, the block joins that one, under its own session and actor. If
        it raises, its changes are undone.

        Args:
            user: The user.
            source: The source of the transaction, for its history record.
            expected: The number of the user's last transaction, to detect other writes; None accepts any.

        Raises:
            SequenceConflict: The last transaction is not `expected`.
            OperationConflict: The idempotency key was used with different content.
            NestedTransaction: A transaction of another user is open here, or one of this user although the
                source has an idempotency key.
        """
        while (joined := self._outer(user, source, expected)) is not None:
            # A block in the thread of the outer one is not held: it may wait for calls in other threads.
            is_beside = joined.thread != threading.get_ident()
            with joined.held() if is_beside else nullcontext():
                if joined.is_open:  # not ended while this block waited
                    with joined.nested(source):
                        yield joined
                    return
        lock = self.backend.lock(user, self.lock_timeout)
        with lock, self._committed(user, source, expected) as transaction:
            yield transaction

    @contextmanager
    def _committed(
        self, user: str, source: Source, expected: int | None = None
    ) -> Generator[Transaction]:
        """Open a transaction that is committed at the end of the block; the caller holds the user's lock."""
        transaction = self._begin(user, source, expected)
        with transaction.opened():
            yield transaction
        self._finish(transaction, source)

    def transact(self, user: str, source: Source, work: Callable[[Transaction], R]) -> R:
        """Run `work` in a transaction like `transaction`; run both again if another process was faster.

        Inside an open transaction it runs once, because only the outer one can be repeated.

        Raises:
            RevisionConflict: Other processes changed the user's memory all the time.
        """
        if self._outer(user, source, None) is not None:
            with self.transaction(user, source) as joined:
                return work(joined)

        def attempt() -> R:
            _refuse_cancelled()
            with self._committed(user, source) as transaction:
                return work(transaction)

        # The lock is kept, because other processes wait only for a holder who was refused for long.
        with self.backend.lock(user, self.lock_timeout):
            return repeated(attempt, self.lock_timeout)

    @asynccontextmanager
    async def atransaction(
        self, user: str, source: Source, *, expected: int | None = None
    ) -> AsyncGenerator[Transaction]:
        """Open a transaction like `transaction`, without blocking the event loop for lock or disk."""
        joined = self._outer(user, source, expected)
        if joined is not None:
            with joined.nested(source):
                yield joined
            return
        lock, worker = ExitStack(), OwnThread()
        try:
            await worker.run(lambda: lock.enter_context(self.backend.lock(user, self.lock_timeout)))
            transaction = await worker.run(lambda: self._begin(user, source, expected))
            transaction.worker = worker
            with transaction.opened():
                yield transaction
                await worker.run(transaction.end)
            await worker.run(lambda: self._finish(transaction, source))
        finally:
            # The worker closes the lock after its current call, which may still run if the task was cancelled.
            worker.close(lock.close)

    def _outer(self, user: str, source: Source, expected: int | None) -> Transaction | None:
        """Return the open transaction that a transaction joins, or None."""
        self.refuse_nested(user, source.operation)
        joined = self._joined(user)
        if joined is not None:
            self._check_last(user, expected)
        return joined

    def _check_last(self, user: str, expected: int | None) -> None:
        if expected is not None:
            checked_count(expected, "expected")
            last = next_sequence(self.backend.last_record(user)) - 1
            if expected != last:
                raise SequenceConflict.of(expected, last)

    def _begin(self, user: str, source: Source, expected: int | None) -> Transaction:
        self._check_last(user, expected)
        transaction = self._swept(user)
        transaction.session, transaction.has_operation = source.session, bool(source.operation)
        transaction.actor = source.actor
        transaction.drafts = source.session if source.is_draft else None
        return transaction

    def _swept(self, user: str) -> Transaction:
        transaction = Transaction(self, user)
        if self.rules is not None and self.rules.has_times:
            self.rules.sweep(transaction)
        return transaction

    def _finish(self, transaction: Transaction, source: Source) -> None:
        # Sorted, because parallel calls are joined in any order.
        source = replace(source, content=fingerprint(sorted(transaction.contents)))
        if self.repetition(transaction.user, source) is None:
            self._commit(transaction, source)

    def _commit(
        self,
        transaction: Transaction,
        source: Source,
        again: Callable[[], Transaction | None] | None = None,
    ) -> None:
        """Commit a transaction; the caller holds the user's lock.

        After a concurrent hand edit it is repeated on fresh state by calling `again`. Without `again` its changes are
        rebased, because a `with` block cannot be run twice.

        Raises:
            HandEditConflict: There was another hand edit at each attempt.
            RevisionConflict: Another process changed the user's memory since the transaction began.
            BackendError: The storage failed; see `Backend.commit`.
        """
        user, changed = transaction.user, self._checked(transaction)
        for attempt in count(1):
            if not changed:
                return
            try:
                if again is not None and self._is_folder:
                    transaction.check_parts()
                transaction.seq = self._store(user, changed, source, transaction.last)
            except RevisionConflict:
                raise  # the caller repeats the whole transaction, if it can
            except Conflict:
                if attempt >= _ATTEMPTS:
                    raise
                if again is not None:
                    renewed = again()
                    if renewed is None:
                        return
                    transaction, changed = renewed, self._checked(renewed)
                    continue
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
        """Return the changes of a transaction; raise if a rule forbids them."""
        if self.rules is not None and self.rules.checked and transaction.changed():
            self.rules.apply(transaction)
        return transaction.changed()

    def _store(self, user: str, changed: Changed, source: Source, last: str | None) -> int:
        # The first transaction logs all documents, because a later rollback must not take them for new hand edits. If
        # another program has removed records, it is unknown which documents they changed.
        is_first = last is None and self.backend.is_atomic  # else there is no history to roll back
        kinds = self.backend.kinds(user) if is_first or is_lost(last) else ()
        # A document that cannot be read now does not fail the first transaction of others.
        unread = (BackendError, HandEditConflict) if is_first else ()
        logged = self._log_saves(user, {**self._unchanged(user, kinds, last, unread), **changed})
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

    def _unchanged(
        self,
        user: str,
        kinds: Iterable[str],
        last: str | None,
        unread: tuple[type[DiaryError], ...] = (),
    ) -> Changed:
        """Return some documents with edits that change nothing; one that cannot be parsed, or raises `unread`, is left out."""
        found: Changed = {}
        for kind in kinds:
            with suppress(DocumentError, *unread):
                known = self.settled(user, kind, last)
                found[kind] = (known, Edit(known.document if known else NOTHING))
        return found

    def _log_saves(self, user: str, changed: Changed) -> Changed | None:
        """Log the hand edits of documents; return the rebased changes, or None if there are no hand edits."""
        bases = [base for base, _ in changed.values()]
        if all(base is not None and base.is_logged and base.logged is None for base in bases):
            return None
        saved = prepare_saves(self, user, changed, self.save_timeout)
        if saved is None:
            return None
        last = self.backend.last_record(user)
        try:
            tokens = self.backend.commit(user, saved.commit)
        except CommittedUnpublished as error:
            raise BackendError(
                f"{self.backend.place(user, next(iter(saved.saves), ''))}: a hand edit was logged, but"
                " could not be merged into the file. Nothing else was changed."
            ) from error
        self.index(user).note(saved.record, saved.commit.records[-1], last)
        rebased = dict(saved.changed)
        for kind, known in saved.saves.items():
            token = tokens.get(kind) if known.is_merged else known.token
            if token is None:  # there was another hand edit
                self.discard(user, [kind])
                raise HandEditConflict.changed(self.backend.place(user, kind))
            base = replace(known, token=token, is_merged=False)
            rebased[kind] = base, rebased[kind][1]
            logged = replace(base, is_logged=True, is_saved=True, logged=None, conflicts=[])
            self._remember((user, kind), logged)
        return rebased

    def log_hand_edits(self, user: str) -> None:
        """Log the hand edits of all documents, also of those whose files were removed.

        Raises:
            RevisionConflict: Other machines changed the user's memory all the time.
        """

        def run() -> None:
            known = self.whole_history(user).documents
            self.logged_versions(user, dict.fromkeys([*self.backend.kinds(user), *known]))

        with self.backend.lock(user, self.lock_timeout):
            repeated(run, self.lock_timeout)

    def logged_versions(self, user: str, kinds: Iterable[str]) -> dict[str, Token | None]:
        """Log the hand edits of some documents; return the versions of the readable ones. The caller holds the lock.

        Raises:
            RevisionConflict: Another machine changed the user's memory meanwhile.
        """
        stored = self._unchanged(user, kinds, self.backend.last_record(user))
        logged = self._log_saves(user, stored)
        if logged is not None:
            self._notify(user)
        found = stored if logged is None else logged
        return {kind: known and known.token for kind, (known, _) in found.items()}

    def _log_only(self, user: str, changed: Changed, source: Source) -> bool:
        """Commit displaced changes to history alone; return False if that is not possible."""
        try:
            prepared = log_only(self, user, changed, source)
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
            checked = (threading.get_ident(), user)
            try:
                # In the block, because the caller may be interrupted after it.
                self._in_hooks.add(checked)
                for check in tuple(self.before_commit):
                    check(user, prepared)
            finally:
                self._in_hooks.discard(checked)
            tokens = self.backend.commit(user, prepared.commit)
        finally:
            # A refused transaction is included, because a strict hook may have seen it.
            self._notify(user)
        made = prepared.record
        self.index(user).note(made, prepared.commit.records[-1], prepared.last)
        for kind, document in prepared.documents.items():
            base = prepared.broken.get(kind)
            if base is None and kind not in tokens:
                self.discard(user, [kind])  # the file was not replaced, because it has a hand edit
                continue
            token, problem = (tokens[kind], None) if base is None else (base.token, base.problem)
            known = Known(token, document, is_logged=True, problem=problem, seen=made.seq)
            self._remember((user, kind), known)

    def _notify(self, user: str) -> None:
        for notify in tuple(self.after_change):
            notify(user)

    def locked(self, user: str, timeout: float = inf) -> AbstractContextManager[None]:
        """Return a context that holds the user's lock, which an open transaction of the user holds already.

        It waits for at most `timeout` seconds, and no longer than `lock_timeout`.

        Raises:
            LockTimeout: Another writer kept the lock.
            NestedTransaction: A transaction of another user is open here.
        """
        is_mine = self._joined(user) is not None
        seconds = min(timeout, self.lock_timeout)
        return nullcontext() if is_mine else self.backend.lock(user, seconds)

    def awaited_epoch(self, user: str) -> int:
        """Return the fencing token of what is read next; wait for the end of a forget job.

        Raises:
            LockTimeout: The job did not end within `lock_timeout`.
            BackendError: The job of a killed process cannot be finished.
            NestedTransaction: A transaction of another user is open here.
        """
        epoch = self.epoch_read(user)
        if epoch >= 0:
            return epoch
        with self.locked(user):  # until its end, a forget job holds the lock
            return self.backend.epoch(user)

    # Idempotency keys

    def is_done(self, user: str, operation: str) -> bool:
        """Return whether history has an idempotency key."""
        with self._reading(user):
            return operation in self.whole_history(user).operations

    def done_operations(self, user: str, timeout: float | None = None) -> frozenset[str]:
        """Return the idempotency keys that are in the user's history; wait for the lock for at most `timeout` seconds."""
        with self._reading(user, timeout):
            return frozenset(self.whole_history(user).operations)

    def _reading(self, user: str, timeout: float | None = None) -> AbstractContextManager[None]:
        """Return a context that holds the user's lock, unless an open transaction of the user holds it."""
        is_mine = self.transaction_of(user) is not None
        seconds = self.lock_timeout if timeout is None else min(timeout, self.lock_timeout)
        return nullcontext() if is_mine else self.backend.lock(user, seconds)

    def repetition(self, user: str, source: Source) -> int | None:
        """Return the number of the transaction that first did this operation, or None; the caller holds the lock.

        Raises:
            OperationConflict: The idempotency key is in history with different content.
        """
        if not source.operation or source.is_new:
            return None
        before = self.whole_history(user).operations.get(source.operation)
        if before is None or self.index(user).is_dropped(before[0]):
            return None
        if before[1] != source.fingerprint():
            raise OperationConflict.of(source.operation)
        return before[0]

    # Rewriting history

    def rewrite(self, user: str, work: Callable[[], R], *, keeps_documents: bool = False) -> R:
        """Return the result of `work`, which rewrites history under the user's lock; drop what is cached of it then.

        It is called again if another process changed the user's memory meanwhile. With `keeps_documents` it rewrites
        only history, so the documents stay cached. Otherwise all entries would be indexed again.

        Raises:
            NestedTransaction: A transaction of the user is open here.
            LockTimeout: Another writer kept the lock.
            RevisionConflict: Other processes changed the user's memory all the time.
        """
        self.refuse_open(user)

        def run() -> R:
            try:
                return work()
            except DocumentError:
                if self._optimistic is not None:
                    self._optimistic.verify(user)  # the history may have changed while it was read
                raise

        with self.backend.lock(user, self.lock_timeout):
            try:
                return repeated(run, self.lock_timeout)
            finally:
                if keeps_documents:
                    self._drop_history(user)
                else:
                    self._drop(user)
                self._notify(user)

    def restore_immutable(self, user: str) -> None:
        """Commit the undoing of forbidden hand edits; the caller holds the user's lock. See `undo_edits`."""
        transaction = Transaction(self, user)
        for kind in filter(self.is_guarded, self.kinds(user)):
            known = self.settled(user, kind, transaction.last)
            if known is not None and self.before_saves(user, kind, known) is not None:
                transaction.edit(kind)
        self._commit(transaction, Source("put_back"))

    def prune(self, user: str, cut: Callable[[Timeline], Record | None]) -> None:
        """Drop the history up to the snapshot that `cut` returns under the user's lock; None drops nothing.

        Raises:
            NestedTransaction: A transaction is open here.
            BackendError: The storage failed; the remaining history is consistent.
        """

        def run() -> None:
            last = self.backend.last_record(user)
            if is_lost(last):
                self._log_saves(user, self._unchanged(user, self.backend.kinds(user), last))
            snapshot = cut(Timeline(self.backend, user))
            if snapshot is not None:
                self.backend.prune(user, snapshot.seq, render_record(snapshot))

        self.rewrite(user, run, keeps_documents=True)


def is_erased(backend: Backend, user_id: str, began: int | None, now: int) -> bool:
    """Return whether all data of a user was erased since a run began.

    Args:
        backend: The storage.
        user_id: The user of the run.
        began: The user's fencing token when the run began; None means now.
        now: The user's current fencing token, read before the call.
    """
    return (
        began is not None
        and began < now
        and isinstance(backend, TellsErasure)
        and began < backend.erased(user_id)
    )


def _refuse_cancelled() -> None:
    """Refuse a write of an async call that was cancelled before the write began."""
    call = CALL.get()
    if call is not None:
        call.refuse_cancelled()
