"""Puts: one transaction for each user of a batch, and one for the async puts that wait for a user."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

from tomldiary.engine.engine import Source
from tomldiary.engine.transaction import Transaction, open_here
from tomldiary.entries.collections import TypedEntries
from tomldiary.entries.models import timestamp
from tomldiary.errors import BackendError, Conflict, LockTimeout
from tomldiary.hand_edits.detect import Known
from tomldiary.runtime.async_bridge import in_thread
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.runtime.lru import Recent
from tomldiary.store.catalog import Catalog
from tomldiary.store.item import Clock
from tomldiary.store.operations import Put
from tomldiary.store.typed_namespaces import TypedNamespaces, is_typed
from tomldiary.store.writes import apply_puts

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from tomldiary.diary import Diary
    from tomldiary.identifiers.namespaces import Namespace
    from tomldiary.store.operations import Operation
    from tomldiary.store.typed_namespaces import Owners

__all__ = ["Gathering", "ItemPuts", "Prepared"]

T = TypeVar("T")
_MOST = 256  # calls run at once: others may be waiting for the user's lock


@dataclass(slots=True)
class _Lane(Generic[T]):
    """The calls for one user that wait in one event loop."""

    waiting: list[tuple[T, asyncio.Future[None]]] = field(
        default_factory=list["tuple[T, asyncio.Future[None]]"]
    )
    worker: asyncio.Task[None] | None = None


class Gathering(Generic[T]):
    """Runs calls in a worker thread, in the order they came, never two runs for one user in one loop.

    Args:
        run: Does calls for a user and returns for each of them the error that it met, or None.
    """

    def __init__(self, run: Callable[[str, Sequence[T]], Sequence[Exception | None]]) -> None:
        self._run = run
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock, and forget event loops that a forked child does not run."""
        self._guard = threading.Lock()
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Lane[T]]] = (
            WeakKeyDictionary()
        )

    async def done(self, user: str, call: T) -> None:
        """Wait until a call is done; raises what it met."""
        import asyncio  # noqa: PLC0415 - see in_thread

        loop = asyncio.get_running_loop()
        with self._guard:
            lanes = self._loops.setdefault(loop, {})
        future: asyncio.Future[None] = loop.create_future()
        lane = lanes.get(user)
        if lane is not None:
            lane.waiting.append((call, future))
        else:
            lane = lanes[user] = _Lane([(call, future)])
            lane.worker = loop.create_task(self._work(lanes, user, lane))
        await future

    async def _work(self, lanes: dict[str, _Lane[T]], user: str, lane: _Lane[T]) -> None:
        mine: list[tuple[T, asyncio.Future[None]]] = []
        try:
            while lane.waiting:
                mine = [each for each in lane.waiting[:_MOST] if not each[1].cancelled()]
                del lane.waiting[:_MOST]
                try:
                    errors = await in_thread(self._run, user, [call for call, _ in mine])
                except Exception as error:  # noqa: BLE001 - whose calls these are raise it
                    errors = [copy(error) for _ in mine]
                for (_, future), error in zip(mine, errors, strict=True):
                    _settle(future, error)
        finally:
            # Cancelled, as at the end of the loop: no caller waits for ever.
            lanes.pop(user, None)
            for _, future in [*mine, *lane.waiting]:
                future.cancel()


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return  # its caller was cancelled
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


_CACHED_USERS = 1024
_STORAGE_ERRORS = (BackendError, Conflict, LockTimeout)
"""Errors that trying each batch again by itself would only repeat."""


@dataclass(slots=True)
class Prepared:
    """A batch that was checked, and what has to be embedded before it can be run."""

    ops: list[Operation]
    texts: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Users, each with a text."""
    queries: list[str] = field(default_factory=list[str])
    epochs: dict[str, int] = field(default_factory=dict[str, int])
    signed_in: str | None = None
    """The user whose namespaces it may touch beside the shared ones; None: those of all."""


class ItemPuts:
    """The part of an `ItemStore` that writes. Thread-safe."""

    def __init__(self, diary: Diary, owners: Owners) -> None:
        self.diary = diary
        self._owners = owners
        self._typed = TypedNamespaces(diary)
        self._clock = Clock()
        self._catalogs: Recent[str, Catalog] = Recent(_CACHED_USERS)
        self._gathering = Gathering(self._put_each)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make new locks."""
        self._guard = threading.Lock()
        self._clock.renew()

    def _owner(self, namespace: Namespace, key: str) -> str:
        return self._owners.owner(namespace, key)

    def catalog(self, user: str) -> Catalog:
        """Return what is known of a user's namespaces."""
        with self._guard:
            found = self._catalogs.get(user)
            if found is None:
                found = Catalog(self.diary.engine, user)
            return self._catalogs.keep(user, found)

    def _write(self, puts: Sequence[Put], session: str) -> None:
        mine: dict[str, list[Put]] = {}
        for put in _last_of_each(puts):
            mine.setdefault(self._owner(put.namespace, put.key), []).append(put)
        if len(mine) > 1:
            # Each user is a transaction of their own: find what fails before the first one.
            joined = open_here()
            for user, changes in mine.items():
                engine = self.diary.engine
                # Raises if it is another user's; of this one it holds the lock.
                is_locked = joined is not None and joined.is_joined_by(engine, user)
                lock = (
                    nullcontext() if is_locked else engine.backend.lock(user, engine.lock_timeout)
                )
                with lock:
                    self._apply(Transaction(engine, user), changes, session)
        for user, changes in mine.items():
            self._write_of(user, changes, session)

    def _write_of(self, user: str, puts: Sequence[Put], session: str) -> None:
        source = Source("put", session, actor="store")
        self.diary.engine.write(user, lambda tx: self._apply(tx, puts, session), source)

    def owner_of_puts(self, namespaces: Iterable[Namespace]) -> str | None:
        """Return the user whose items are put if `aput` may do that; None tells nothing about whose they are.

        Args:
            namespaces: Those of the puts, not checked yet.
        """
        if open_here() is not None:
            return None
        owners: set[str | None] = set()
        for labels in namespaces:
            # A typed entry may be looked for in documents that only the folder tells of.
            owner = self._owners.known_owner(labels)
            owners.add(owner if owner is not None and not is_typed(labels) else None)
        return owners.pop() if len(owners) == 1 else None

    async def aput(self, user: str, prepare: Callable[[], Prepared], session: str) -> None:
        """Run a batch of nothing but puts that need no vectors, without holding the event loop.

        Batches of one session that wait for the same user are one transaction. If one of them cannot be
        applied, each is a transaction of its own, so an invalid batch fails alone.

        Args:
            user: What `owner_of_puts` returned.
            prepare: Makes the batch; called in a worker thread.
            session: As in `run`.

        Raises:
            InvalidValue: An operation is not valid. Nothing of this batch was written.
            BackendError: The storage failed. Nothing of this batch was written.
        """
        await self._gathering.done(user, (prepare, session))

    def _put_each(
        self, user: str, batches: Sequence[tuple[Callable[[], Prepared], str]]
    ) -> list[Exception | None]:
        """Run batches of puts that all belong to one user, and return the error that each met."""
        errors: list[Exception | None] = [None] * len(batches)
        parts: list[tuple[int, list[Put], str]] = []
        for number, (prepare, session) in enumerate(batches):
            try:
                puts = [op for op in prepare().ops if isinstance(op, Put)]
            except Exception as error:  # noqa: BLE001 - raised to the caller of this batch
                errors[number] = error
            else:
                parts.append((number, puts, session))
        for session, run in groupby(parts, key=lambda part: part[2]):
            for number, error in self._put_run(user, list(run), session):
                errors[number] = error
        return errors

    def _put_run(
        self, user: str, parts: Sequence[tuple[int, list[Put], str]], session: str
    ) -> list[tuple[int, Exception]]:
        """Store batches of one session as one transaction; return the errors by the batches' numbers."""
        try:
            self._write_of(
                user, _last_of_each(put for _, puts, _ in parts for put in puts), session
            )
        except _STORAGE_ERRORS as error:
            return [(number, copy(error)) for number, _, _ in parts]
        except Exception as error:  # noqa: BLE001 - raised to the caller of the batch
            if len(parts) == 1:
                return [(parts[0][0], error)]
            return [met for part in parts for met in self._put_run(user, [part], session)]
        return []

    def _apply(self, tx: Transaction, puts: Sequence[Put], session: str) -> None:
        if tx.is_open:
            # Its owner may continue after an error, so puts must fail before they change anything.
            self._apply(_trial(tx), puts, session)
        session = session or tx.session
        items: list[Put] = []
        typed: list[Put] = []
        for put in puts:
            (typed if is_typed(put.namespace) else items).append(put)
        if typed:
            changes = [(self._typed.collection(put.namespace), put.key, put.value) for put in typed]
            TypedEntries.within(self.diary, tx, session).apply(changes, timestamp())
        if items:
            apply_puts(tx, self.catalog(tx.user), items, self._clock, session)


def _trial(tx: Transaction) -> Transaction:
    """Return a transaction on what another one has made so far, to see whether changes can be applied."""
    known = {kind: Known(None, tx.document(kind), "", is_logged=True) for kind in tx.kinds()}
    return Transaction(tx.engine, tx.user, known)


def _last_of_each(puts: Iterable[Put]) -> list[Put]:
    return list({(put.namespace, put.key): put for put in puts}.values())
