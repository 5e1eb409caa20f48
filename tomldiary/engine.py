"""The one write path: lock, read what is there now, change it, log it, publish it.

Readers take no lock; they get immutable documents from a cache that one `stat` keeps honest.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from tomldiary.backends.base import Commit, digest
from tomldiary.errors import Conflict, Forgotten, NestedTransaction
from tomldiary.forks import renew_after_fork
from tomldiary.history import (
    Change,
    Record,
    block_changes,
    next_sequence,
    render_record,
)
from tomldiary.merge import merge
from tomldiary.models import FORMAT_VERSION
from tomldiary.outside import NOTHING, Known, look
from tomldiary.preferences import reserve_ids
from tomldiary.timeline import EMPTY, Timeline
from tomldiary.toml.document import Document
from tomldiary.toml.values import render_value
from tomldiary.transaction import OPEN, Source, Transaction, current_task, fingerprint
from tomldiary.twins import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from contextlib import AbstractContextManager

    from tomldiary.backends.base import Backend
    from tomldiary.forgetting import ForgetReceipt, Selection
    from tomldiary.toml.edit import Edit

__all__ = ["Engine", "Source", "Transaction"]

R = TypeVar("R")

_CACHED_DOCUMENTS = 4096
_PATIENCE = 3.0  # seconds that a write waits for an editor to finish saving
_GLANCE = 0.05  # seconds between two looks at a file that is being saved
_ATTEMPTS = 20


@dataclass(slots=True)
class _Operations:
    """The operation ids in a user's history up to transaction `seq`, with their content."""

    seq: int = 0
    epoch: int = 0
    contents: dict[str, str] = field(default_factory=dict[str, str])


class Engine:
    """Reads and writes the documents of one backend. Thread-safe.

    Args:
        backend: Where the documents are.
        schema_name: Written to `_meta.schema_name` of new documents.
        lock_timeout: Seconds a writer waits for another one.
    """

    def __init__(self, backend: Backend, schema_name: str, *, lock_timeout: float = 30.0) -> None:
        self.backend = backend
        self.schema_name = schema_name
        self.lock_timeout = lock_timeout
        name = render_value(schema_name)
        self.template = Document.parse(
            f'[_meta]\nversion = "{FORMAT_VERSION}"\nschema_name = {name}\n'
        )
        self._cache: OrderedDict[tuple[str, str], Known] = OrderedDict()
        self._operations: dict[str, _Operations] = {}
        self.guards: dict[str, Callable[[Edit, Document], None]] = {}
        """By document, what puts entries back that people must not change: given an edit and what was."""
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make new locks."""
        self._guard = threading.Lock()

    def document(self, user: str, kind: str) -> Document:
        """Return a document as it is now, in a transaction with its changes; empty if there is none.

        Raises:
            DocumentError: It does not parse, is unsafe to parse, or is of a newer version.
        """
        joined = OPEN.get()
        if joined is not None and joined.user == user and joined.is_joined_by(self, user):
            return joined.document(kind)
        cached = self.load(user, kind)
        return cached.document if cached is not None else NOTHING

    def kinds(self, user: str) -> list[str]:
        """Return the names of a user's documents, in a transaction with those it has begun."""
        stored = self.backend.kinds(user)
        joined = OPEN.get()
        if joined is not None and joined.user == user and joined.is_joined_by(self, user):
            return sorted({*stored, *joined.changed()})
        return stored

    def cached(self, user: str, *kinds: str) -> list[Document] | None:
        """Return these documents if that needs nothing but a look at the files' status, else None."""
        found: list[Document] = []
        if not self.backend.is_quick or OPEN.get() is not None:
            return None
        for kind in kinds:
            cached = self._cache.get((user, kind))
            # A user seen for the first time may have to be recovered, which waits for a lock.
            if cached is None or cached.is_young or cached.token != self.backend.token(user, kind):
                return None
            found.append(cached.document)
        return found

    def load(self, user: str, kind: str) -> Known | None:
        """Return a document with the version it was read at, or None if there is none."""
        key = (user, kind)
        cached = self._cache.get(key)
        token = self.backend.token(user, kind)
        if token is None:
            self._cache.pop(key, None)
            return None
        if cached is not None and cached.token == token and not cached.is_young:
            return cached
        stored = self.backend.read(user, kind)
        if stored is None:
            return None
        fresh = look(self.backend, user, kind, stored, cached)
        self._remember(key, fresh)
        return fresh

    def settled(self, user: str, kind: str) -> Known | None:
        """Return a document like `load`, once nobody's editor is half way through saving it.

        Raises:
            Conflict: Somebody kept saving it all the time.
        """
        patience = time.monotonic() + _PATIENCE
        while (known := self.load(user, kind)) is not None and known.is_settling:
            if time.monotonic() > patience:
                raise Conflict(
                    f"{self.backend.place(user, kind)} is being saved by somebody all the time. Try again."
                )
            time.sleep(_GLANCE)  # what an editor has not written yet is not deleted
        return known

    def _remember(self, key: tuple[str, str], cached: Known) -> None:
        with self._guard:
            self._cache[key] = cached
            self._cache.move_to_end(key)
            while len(self._cache) > _CACHED_DOCUMENTS:
                self._cache.popitem(last=False)

    def write(
        self,
        user: str,
        change: Callable[[Transaction], R],
        source: Source,
        *,
        epoch: int | None = None,
    ) -> R:
        """Apply `change` to fresh state and commit; a transaction without effect writes nothing.

        `change` is called again if a document was saved by somebody outside between reading and
        writing it, so it must have no effect but on its transaction.

        Args:
            user: Whose memory.
            change: Makes the change.
            source: What history will say.
            epoch: The user's epoch when the work began that is written now; None does not mind.

        Raises:
            Conflict: Somebody kept saving the document all the time.
            Forgotten: Something of the user was forgotten since `epoch`.
            LockTimeout: Another writer kept the lock.
            BackendError: The storage failed; nothing was changed.
        """
        joined = OPEN.get()
        if joined is not None and joined.is_joined_by(self, user):
            result = change(joined)
            joined.contents.append(source.content)
            return result
        with self.backend.lock(user, self.lock_timeout):
            if epoch is not None and self.backend.epoch(user) != epoch:
                raise Forgotten(
                    "something of this user was forgotten while this was worked on, and it may hold what was"
                    " forgotten. Nothing was written; do it again if it is still wanted."
                )
            for attempt in range(_ATTEMPTS):
                transaction = Transaction(self, user)
                result = change(transaction)
                changed = transaction.changed()
                if not changed:
                    return result
                try:
                    self._commit(user, changed, source)
                except Conflict:
                    if attempt == _ATTEMPTS - 1:
                        raise
                    continue
                return result
        raise AssertionError  # the loop returns or raises

    def forget(self, user: str, selection: Selection) -> ForgetReceipt:
        """Remove a selection from the user's documents and history for good.

        Raises:
            NestedTransaction: A transaction is open here.
            DocumentError: A document cannot be read just now. Nothing was changed.
            BackendError: The storage failed; the message says whether something was changed.
        """
        joined = OPEN.get()
        if joined is not None and joined.is_joined_by(self, user):
            raise NestedTransaction(
                "a transaction of this user is open here. Forget outside of it: a transaction can fail as a"
                " whole, and what is forgotten cannot be brought back."
            )
        with self.backend.lock(user, self.lock_timeout):
            try:
                return self.backend.forget(user, selection)
            finally:
                self._operations.pop(user, None)
                with self._guard:
                    for key in [key for key in self._cache if key[0] == user]:
                        del self._cache[key]

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
        joined = OPEN.get()
        if joined is not None and joined.is_joined_by(self, user):
            yield joined
            return
        with self.backend.lock(user, self.lock_timeout):
            transaction = self._begin(user, expected)
            transaction.is_open = True
            outer = OPEN.set(transaction)
            try:
                yield transaction
            finally:
                transaction.is_open = False
                OPEN.reset(outer)
            self._finish(user, transaction, source)

    @asynccontextmanager
    async def atransaction(
        self, user: str, source: Source, *, expected: int | None = None
    ) -> AsyncGenerator[Transaction]:
        """Open a transaction like `transaction`; the event loop is held neither for lock nor for disk."""
        joined = OPEN.get()
        if joined is not None and joined.is_joined_by(self, user):
            yield joined
            return
        lock = self.backend.lock(user, self.lock_timeout)
        await _enter(lock)
        try:
            transaction = await in_thread(self._begin, user, expected)
            transaction.task = current_task()
            transaction.is_open = True
            outer = OPEN.set(transaction)
            try:
                yield transaction
            finally:
                transaction.is_open = False
                OPEN.reset(outer)
            await in_thread(self._finish, user, transaction, source)
        finally:
            # Letting go never waits.
            lock.__exit__(None, None, None)

    def _begin(self, user: str, expected: int | None) -> Transaction:
        last = next_sequence(self.backend.last_record(user)) - 1
        if expected is not None and expected != last:
            raise Conflict(
                f"transaction {expected} was expected to be the last one, but {last} is. Read again."
            )
        return Transaction(self, user)

    def _finish(self, user: str, transaction: Transaction, source: Source) -> None:
        content = fingerprint(transaction.contents)
        if not self.is_repeated(user, source.operation, content):
            self._commit_rebased(user, transaction, replace(source, content=content))

    def _commit_rebased(self, user: str, transaction: Transaction, source: Source) -> None:
        """Commit; a save that came in meanwhile is merged, as the block cannot be run again."""
        changed = transaction.changed()
        for attempt in range(_ATTEMPTS):
            if not changed:
                return
            try:
                self._commit(user, changed, source)
            except Conflict:
                if attempt == _ATTEMPTS - 1:
                    raise
                changed = {
                    kind: self._rebase(user, kind, base, edit)
                    for kind, (base, edit) in changed.items()
                }
                continue
            return

    def _rebase(
        self, user: str, kind: str, base: Known | None, edit: Edit
    ) -> tuple[Known | None, Edit]:
        now = self.load(user, kind)
        if now is None:
            return None, edit
        before = base.document if base is not None else NOTHING
        merged = merge(before, edit.peek(), now.document)
        fresh = now.document.edit()
        self.undo_edits(kind, fresh, now)
        for path in {**merged.document.index, **now.document.index}:
            block = merged.document.index.get(path)
            if block is None:
                fresh.delete(path)
            elif block is not now.document.index.get(path):
                fresh.restore(path, block.text, merged.document.own_values(path) or {})
        return now, fresh

    def undo_edits(self, kind: str, edit: Edit, base: Known | None) -> None:
        """Put entries back that a person changed since history's end, and must not."""
        guard = self.guards.get(kind)
        if guard is not None and base is not None and base.logged is not None:
            guard(edit, base.logged)

    def is_repeated(self, user: str, operation: str, content: str) -> bool:
        """Tell whether an operation id is in history already, for the same content.

        Raises:
            Conflict: It is there for other content.
        """
        before = self.done_with(user, operation)
        if before is not None and before != content:
            raise Conflict(
                f"operation {operation!r} was done already, with other content. Use a new id.",
                keys=[operation],
            )
        return before is not None

    def done_with(self, user: str, operation: str) -> str | None:
        """Return the fingerprint of what was done under an operation id; None if nothing was."""
        if not operation:
            return None
        known, epoch = self._operations.get(user), self.backend.epoch(user)
        if known is None or known.epoch != epoch:
            known = self._operations[user] = _Operations(epoch=epoch)
        newest = 0
        fresh: dict[str, str] = {}
        for record in Timeline(self.backend, user).records():
            newest = max(newest, record.seq)
            if record.seq <= known.seq:
                break
            if record.operation:
                fresh.setdefault(record.operation, record.content)
        known.contents.update(fresh)
        known.seq = max(known.seq, newest)
        return known.contents.get(operation)

    def _commit(
        self, user: str, changed: dict[str, tuple[Known | None, Edit]], source: Source
    ) -> None:
        seq = next_sequence(self.backend.last_record(user))
        records: list[str] = []
        outside = self._outside_changes(user, changed, seq)
        if outside is not None:
            records.append(render_record(outside))
            seq += 1
        documents: dict[str, Document] = {}
        changes: list[Change] = []
        bases: dict[str, str] = {}
        results: dict[str, str] = {}
        for kind, (base, edit) in changed.items():
            if kind == "preferences" and base is not None and base.logged is not None:
                reserve_ids(edit, base.logged)
            self._stamp(edit, seq)
            document = edit.done()
            old = base.document if base is not None else NOTHING
            documents[kind] = document
            changes += block_changes(kind, old.blocks, document.blocks)
            bases[kind] = base.digest if base is not None else EMPTY
            results[kind] = digest(document.text)
        record = Record(
            seq=seq,
            type=source.type,
            changes=changes,
            bases=bases,
            results=results,
            session=source.session,
            actor=source.actor,
            reason=source.reason,
            operation=source.operation,
            content=source.content if source.operation else "",
        )
        records.append(render_record(record))
        # A file that does not parse is never overwritten: it catches up once somebody has mended it.
        broken = {
            kind: base for kind, (base, _) in changed.items() if base is not None and base.problem
        }
        tokens = self.backend.commit(
            user,
            Commit(
                {kind: doc.text for kind, doc in documents.items() if kind not in broken},
                {kind: base.token if base else None for kind, (base, _) in changed.items()},
                records,
            ),
        )
        for kind, document in documents.items():
            base = broken.get(kind)
            if base is None and kind not in tokens:
                self._cache.pop((user, kind), None)  # somebody's save stands there
                continue
            token = base.token if base is not None else tokens[kind]
            problem = base.problem if base is not None else None
            known = Known(token, document, results[kind], is_logged=True, problem=problem)
            self._remember((user, kind), known)

    def _stamp(self, edit: Edit, seq: int) -> None:
        meta: dict[str, object] = dict(edit.table(("_meta",)) or {})
        meta["version"] = FORMAT_VERSION
        meta.setdefault("schema_name", self.schema_name)
        meta["seq"] = seq
        edit.put(("_meta",), meta, at_head=True)

    def _outside_changes(
        self, user: str, changed: dict[str, tuple[Known | None, Edit]], seq: int
    ) -> Record | None:
        """Return a record of what people (or another program) saved since history's end, if anything."""
        changes: list[Change] = []
        bases: dict[str, str] = {}
        results: dict[str, str] = {}
        conflicts: list[str] = []
        for kind, (base, _) in changed.items():
            if base is None:
                last = Timeline(self.backend, user).last(kind) if seq > 1 else None
                if last is None or last.results[kind] == EMPTY:
                    continue
                # Somebody removed the file.
                text = Timeline(self.backend, user).text(kind)
                changes.append(Change(kind, 0, text, ""))
                bases[kind], results[kind] = last.results[kind], EMPTY
            elif base.logged is not None:
                changes += block_changes(kind, base.logged.blocks, base.document.blocks)
                bases[kind], results[kind] = digest(base.logged.text), base.digest
                conflicts += base.conflicts
            elif not base.is_logged:
                # The whole text: history does not know what it was before.
                changes.append(Change(kind, 0, "", base.document.text))
                bases[kind], results[kind] = EMPTY, base.digest
        if not results:
            return None
        return Record(seq, "hand", changes, bases, results, actor="hand", conflicts=conflicts)


async def _enter(lock: AbstractContextManager[None]) -> None:
    """Take a lock in a worker thread; if the task is cancelled meanwhile, the lock is let go again."""
    import asyncio  # noqa: PLC0415 - see in_thread

    entering = asyncio.ensure_future(in_thread(lock.__enter__))
    try:
        await asyncio.shield(entering)
    except asyncio.CancelledError:
        entering.add_done_callback(
            lambda done: (
                None if done.cancelled() or done.exception() else lock.__exit__(None, None, None)
            )
        )
        raise
