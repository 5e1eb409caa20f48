"""The one write path: lock, read what is there now, change it, log it, publish it."""

from __future__ import annotations

from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from tomldiary.engine.cache import KnownDocuments
from tomldiary.engine.commit import Changed, merge_displaced, prepare, prepare_saves
from tomldiary.engine.idempotency import DoneOperations
from tomldiary.engine.transaction import Source, Transaction, fingerprint, open_here
from tomldiary.entries.models import FORMAT_VERSION
from tomldiary.errors import (
    BackendError,
    CommittedUnpublished,
    Conflict,
    Forgotten,
    InvalidTOML,
    NestedTransaction,
    NotSupported,
)
from tomldiary.forgetting.selection import ForgetReceipt
from tomldiary.hand_edits.detect import NOTHING, Known
from tomldiary.hand_edits.rebase import log_only, on_what_was_saved
from tomldiary.history.record import next_sequence, parse_record, render_record
from tomldiary.history.timeline import Timeline
from tomldiary.runtime.async_bridge import OwnThread, current_task
from tomldiary.storage.protocol import KeepsDisplacedEdits
from tomldiary.toml.edit import Edit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterable

    from tomldiary.engine.commit import Prepared
    from tomldiary.forgetting.selection import Selection
    from tomldiary.history.record import Record
    from tomldiary.storage.protocol import Backend
    from tomldiary.toml.document import Document

__all__ = ["ATTEMPTS", "Engine", "Source", "Transaction"]

R = TypeVar("R")

ATTEMPTS = 20
"""How often a write is done again that somebody's save came in between of."""


class Engine(KnownDocuments):
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
        self.schema_name = schema_name
        self.lock_timeout = lock_timeout
        meta = {"version": FORMAT_VERSION, "schema_name": schema_name}
        edit = Edit(NOTHING)
        # Not parsed: a table that is known to be ours is changed quicker.
        edit.put(("_meta",), meta, at_head=True)
        self.template = edit.done()
        self.guards: dict[str, Callable[[Edit, Document], None]] = {}
        """By document, what puts entries back that people must not change: given an edit and what was."""
        self.operations = DoneOperations(backend)

    def document(self, user: str, kind: str) -> Document:
        """Return a document as it is now, in a transaction with its changes; empty if there is none.

        Raises:
            DocumentError: It does not parse, is unsafe to parse, or is of a newer version.
        """
        joined = self._seen(user)
        if joined is not None:
            return joined.document(kind)
        cached = self.load(user, kind)
        return cached.document if cached is not None else NOTHING

    def _joined(self, user: str) -> Transaction | None:
        """Return the open transaction that a write of this user is part of.

        Raises:
            NestedTransaction: A transaction of another user is open here.
        """
        joined = open_here()
        return joined if joined is not None and joined.is_joined_by(self, user) else None

    def _seen(self, user: str) -> Transaction | None:
        """Return the open transaction whose changes a read of this user sees; another's is none."""
        joined = open_here()
        is_mine = joined is not None and joined.user == user and joined.is_joined_by(self, user)
        return joined if is_mine else None

    def is_joined(self, user: str) -> bool:
        """Return whether a write of this user would be part of a transaction that is open here.

        Raises:
            NestedTransaction: A transaction of another user is open here.
        """
        return self._joined(user) is not None

    def session_here(self, user: str) -> str:
        """Return the session of the transaction that a write of this user is part of here, or ""."""
        joined = self._seen(user)
        return "" if joined is None else joined.session

    def now(self) -> datetime:
        """Return the time for which temporal facts are read unless a caller names one."""
        return datetime.now(UTC)

    @property
    def lists_documents(self) -> bool:
        """Whether the backend finds documents whose names are not known before, such as episodes."""
        return getattr(self.backend, "documents", None) is None

    def check_kept(self, kind: str) -> None:
        """Refuse a document that the backend could not find again.

        Raises:
            NotSupported: The backend cannot list documents, and this is none of those it is asked for.
        """
        kept = getattr(self.backend, "documents", None)
        if kept is not None and kind not in kept:
            what = "episodes" if kind.startswith("episodes/") else "items of namespaces of your own"
            raise NotSupported(
                f"{kind}: a backend with six methods cannot list its documents, so {what} would be stored and"
                f" never found again. Use a folder; this backend keeps {', '.join(kept)}."
            )

    def kinds(self, user: str) -> list[str]:
        """Return the names of a user's documents, in a transaction with those it has begun."""
        stored = self.backend.kinds(user)
        joined = self._seen(user)
        if joined is not None:
            return sorted({*stored, *joined.changed()})
        return stored

    def write(
        self,
        user: str,
        change: Callable[[Transaction], R],
        source: Source,
        *,
        epoch: int | None = None,
        on_repeat: Callable[[int], R] | None = None,
        patience: float | None = None,
    ) -> R:
        """Apply `change` to fresh state and commit; a transaction without effect writes nothing.

        An operation id that is in history already, for the same content, has no effect a second time.

        `change` is called again if a document was saved by somebody outside between reading and
        writing it, so it must have no effect but on its transaction.

        Args:
            user: Whose memory.
            change: Makes the change.
            source: What history will say.
            epoch: The user's epoch when the work began that is written now; None does not mind.
            on_repeat: Makes the answer for a repetition, from the number of the transaction that did it;
                None answers what `change` returns, whose effect is dropped.
            patience: Seconds to wait for others at most; None is as long as this engine does.

        Raises:
            Conflict: Somebody kept saving the document all the time, or the operation id was used for
                something else.
            Forgotten: Something of the user was forgotten since `epoch`.
            LockTimeout: Another writer kept the lock.
            BackendError: The storage failed; nothing was changed.
        """
        joined = self._joined(user)
        if joined is not None:
            result = change(joined)
            if joined.has_operation:
                joined.contents.append(source.fingerprint())
            return result
        with self.backend.lock(user, self.lock_timeout if patience is None else patience):
            if epoch is not None and self.backend.epoch(user) != epoch:
                raise Forgotten(
                    "something of this user was forgotten while this was worked on, and it may hold what was"
                    " forgotten. Nothing was written; do it again if it is still wanted."
                )
            before = self.operations.repetition(user, source)
            if before is not None and on_repeat is not None:
                return on_repeat(before)
            for attempt in range(ATTEMPTS):
                transaction = Transaction(self, user)
                if patience is not None:
                    transaction.patience = patience
                result = change(transaction)
                changed = transaction.changed()
                if not changed or before is not None:
                    return result
                try:
                    transaction.seq = self._commit(user, changed, source, transaction.patience)
                except Conflict:
                    if attempt == ATTEMPTS - 1:
                        raise
                    continue
                return result
        raise AssertionError  # the loop returns or raises

    def forget(self, user: str, selection: Selection) -> ForgetReceipt:
        """Remove a selection from the user's documents and history for good.

        Raises:
            Conflict: Somebody kept saving a document all the time. Nothing was forgotten.
            NestedTransaction: A transaction is open here.
            DocumentError: A document cannot be read just now. Nothing was changed.
            BackendError: The storage failed; the message says whether something was changed.
        """
        if self._joined(user) is not None:
            raise NestedTransaction(
                "a transaction of this user is open here. Forget outside of it: a transaction can fail as a"
                " whole, and what is forgotten cannot be brought back."
            )
        with self.backend.lock(user, self.lock_timeout):
            try:
                if not selection.everything:
                    self._put_back(user)
                return self.backend.forget(user, selection)
            finally:
                self.operations.drop(user)
                self._drop(user)

    def would_forget(self, user: str, selection: Selection) -> ForgetReceipt:
        """Return in numbers what `forget` would remove now; nothing is changed.

        Raises:
            Conflict: Another program kept saving a document.
            DocumentError: A document cannot be read just now.
        """
        from tomldiary.forgetting.redact import plan  # noqa: PLC0415 - hardly ever needed

        if not self.kinds(user):
            return ForgetReceipt(epoch=self.backend.epoch(user))
        with self.backend.lock(user, self.lock_timeout):
            known: list[tuple[str, Record]] = []
            for text in self.backend.records(user):
                with suppress(InvalidTOML):  # what is damaged cannot be looked through
                    known.append((text, parse_record(text)))
            known.reverse()
            read = {kind: self.backend.read(user, kind) for kind in self.backend.kinds(user)}
            stored = {kind: found for kind, found in read.items() if found is not None}
            texts, records = [text for text, _ in known], [record for _, record in known]
            made = plan(user, texts, records, lambda: stored, selection, self.backend.place)
            return replace(made.receipt, epoch=self.backend.epoch(user))

    def _put_back(self, user: str) -> None:
        """Undo what people did to entries that must not change: forgetting takes their saves over as they are."""
        transaction = Transaction(self, user)
        for kind in self.guards:
            known = self.settled(user, kind)
            if known is not None and self.before_saves(user, kind, known) is not None:
                transaction.edit(kind)
        changed = transaction.changed()
        if changed:
            self._commit(user, changed, Source("put_back"), transaction.patience)

    def prune(self, user: str, cut: Callable[[Timeline], Record | None]) -> None:
        """Drop the history up to the snapshot that `cut` makes under the user's lock; None drops nothing.

        Raises:
            NestedTransaction: A transaction is open here.
            BackendError: The storage failed; what is left of history fits together.
        """
        if self._joined(user) is not None:
            raise NestedTransaction(
                "a transaction of this user is open here. Drop history outside of it."
            )
        with self.backend.lock(user, self.lock_timeout):
            snapshot = cut(Timeline(self.backend, user))
            if snapshot is not None:
                self.backend.prune(user, snapshot.seq, render_record(snapshot))
                self.operations.drop(user)

    @contextmanager
    def transaction(
        self, user: str, source: Source, *, expected: int | None = None
    ) -> Generator[Transaction]:
        """Open a transaction for the `with` block; it is committed at the end, or not at all.

        Inside another transaction of the same user it is part of that one.

        Args:
            user: Whose memory.
            source: What history will say.
            expected: The number of the user's last transaction, if nobody may have written since.

        Raises:
            Conflict: Somebody has written since, or the operation id was used for something else.
            NestedTransaction: A transaction of another user is open here.
        """
        joined = self._joined(user)
        if joined is not None:
            yield joined
            return
        with self.backend.lock(user, self.lock_timeout):
            transaction = self._begin(user, expected)
            transaction.session, transaction.has_operation = source.session, bool(source.operation)
            with transaction.opened():
                yield transaction
            self._finish(user, transaction, source)

    @asynccontextmanager
    async def atransaction(
        self, user: str, source: Source, *, expected: int | None = None
    ) -> AsyncGenerator[Transaction]:
        """Open a transaction like `transaction`; the event loop is held neither for lock nor for disk."""
        joined = self._joined(user)
        if joined is not None:
            yield joined
            return
        lock, worker = ExitStack(), OwnThread()
        try:
            await worker.run(lambda: lock.enter_context(self.backend.lock(user, self.lock_timeout)))
            transaction = await worker.run(lambda: self._begin(user, expected))
            transaction.session, transaction.has_operation = source.session, bool(source.operation)
            transaction.task = current_task()
            transaction.worker = worker
            with transaction.opened():
                yield transaction
            await worker.run(lambda: self._finish(user, transaction, source))
        finally:
            # Not before what was under way when the task was cancelled.
            worker.close(lock.close)

    def _begin(self, user: str, expected: int | None) -> Transaction:
        last = next_sequence(self.backend.last_record(user)) - 1
        if expected is not None and expected != last:
            raise Conflict(
                f"transaction {expected} was expected to be the last one, but {last} is. Read again."
            )
        return Transaction(self, user)

    def _finish(self, user: str, transaction: Transaction, source: Source) -> None:
        source = replace(source, content=fingerprint(transaction.contents))
        if self.operations.repetition(user, source) is None:
            self._commit_rebased(user, transaction, source)

    def _commit_rebased(self, user: str, transaction: Transaction, source: Source) -> None:
        """Commit; a save that came in meanwhile is merged, as the block cannot be run again."""
        changed = transaction.changed()
        for attempt in range(ATTEMPTS):
            if not changed:
                return
            try:
                self._commit(user, changed, source, transaction.patience)
            except Conflict:
                if attempt == ATTEMPTS - 1:
                    raise
                fresh, gives_way = on_what_was_saved(self, transaction, changed)
                if gives_way and log_only(self, user, changed, source):
                    return
                changed = fresh
                continue
            return

    def undo_edits(self, user: str, kind: str, edit: Edit, base: Known | None) -> None:
        """Put entries back that a person changed since we last wrote, and must not."""
        guard = self.guards.get(kind)
        before = self.before_saves(user, kind, base) if guard is not None and base else None
        if guard is not None and before is not None:
            guard(edit, before)

    def done_with(self, user: str, operation: str) -> str | None:
        """Return the fingerprint of what was done under an operation id; None if nothing was."""
        is_mine = self._seen(user) is not None
        with nullcontext() if is_mine else self.backend.lock(user, self.lock_timeout):
            before = self.operations.of(user).get(operation)
        return before[1] if before is not None else None

    def done_operations(self, user: str) -> frozenset[str]:
        """Return the operation ids that are in the user's history."""
        with self.backend.lock(user, self.lock_timeout):
            return frozenset(self.operations.of(user))

    def _commit(self, user: str, changed: Changed, source: Source, patience: float) -> int:
        try:
            return self._store(user, changed, source, patience)
        except BackendError:
            self.look_again(user, changed)
            raise

    def _store(self, user: str, changed: Changed, source: Source, patience: float) -> int:
        saved = prepare_saves(self.backend, user, changed, self.logged, patience)
        if saved is not None:
            try:
                tokens = self.backend.commit(user, saved.commit)
            except CommittedUnpublished as error:
                raise BackendError(
                    f"{self.backend.place(user, next(iter(saved.saves), ''))}: somebody's save is in history, but"
                    " could not be merged into the file. Nothing else was changed."
                ) from error
            changed = saved.rebased(tokens)
            for kind in saved.saves:
                known = changed[kind][0]
                if known is None:
                    self._cache.pop((user, kind), None)
                    raise Conflict(
                        f"{self.backend.place(user, kind)} was saved once more just now."
                    )
                self._remember(
                    (user, kind),
                    replace(known, is_logged=True, is_saved=True, logged=None, conflicts=[]),
                )
        prepared = prepare(
            self.backend, user, changed, source, self.schema_name, replaces_save=saved is not None
        )
        self.store(user, prepared)
        return prepared.seq

    def look_again(self, user: str, kinds: Iterable[str]) -> None:
        """Take nothing of documents for granted: what is in files and history now is for the next look to find out."""
        for kind in kinds:
            self._cache.pop((user, kind), None)

    def store(self, user: str, prepared: Prepared) -> None:
        """Commit what was prepared; the caller holds the user's lock.

        Raises:
            Conflict: A document was saved by somebody outside since.
            BackendError: The storage failed; see `Backend.commit`.
        """
        tokens = self.backend.commit(user, prepared.commit)
        self.logged.note(user, prepared.seq, prepared.results)
        for kind, known in prepared.known(tokens):
            if known is None:
                self._cache.pop((user, kind), None)  # somebody's save stands there
            else:
                self._remember((user, kind), known)
