"""A diary as a LangGraph store; entries of the store and of the diary are the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import total_ordering
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from langgraph.store.base import NOT_PROVIDED, BaseStore, GetOp, PutOp, validate_op_namespace

from tomldiary.agents.options import checked_flag, known_keys
from tomldiary.diary import Diary, diary_of
from tomldiary.errors import wrong_type, wrong_value
from tomldiary.runtime.async_bridge import in_thread, running_loop
from tomldiary.store.item import checked_minutes
from tomldiary.store.operations import UserLabel, may_expire
from tomldiary.store.store import ItemStore
from tomldiary_langgraph.conversion import Embedder, check_written, item, operation, result
from tomldiary_langgraph.identity import session_here, signed_in_here

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator

    from langgraph.store.base import IndexConfig, Item, NotProvided, Op, Result, TTLConfig

    from tomldiary.store.batch import PreparedBatch

_TTL_KEYS = (
    "default_ttl", "refresh_on_read", "omit_expired", "sweep_interval_minutes", "sweep_limit",
)  # fmt: skip
_SWEEP_INTERVAL = 5.0  # minutes


class DiaryStore(BaseStore):
    """A diary behind LangGraph's store interface, sync and async, with any namespace. Thread-safe.

    A namespace `(user, …)` holds any JSON value under any key, in the user's `items/…` documents. The
    namespaces `(user, "diary", "preferences", category)`, with values such as `{"text": "dark roast",
    "contexts": ["morning"]}`, and `(user, "diary", "conversations")`, with `{"summary": "…",
    "keywords": […]}`, are the diary's typed entries, and its rules hold there: categories, limits, no
    text twice.

    A batch is validated as a whole before anything is written. Its reads see the state before the batch. Of several
    puts to one key, the last one counts. The changes of one user are one transaction. One object may be used by sync
    and async callers, in several threads and event loops. Any number of objects and processes may use one folder.
    Entries that are put inside a graph's run get the run's session. In a run or a request of a server that
    authenticates, namespaces of other users raise `IdentifierError`. Searches and listings then return only those of
    the authenticated user, and shared ones.

    Args:
        diary: A diary, or a folder or an address, which gets the built-in preference table.
        user_label: The index of the user among a namespace's labels, from 0; or a function of namespace and key that
            returns the user, or None for a shared item. None as the option: all items are shared.
        index: LangGraph's `IndexConfig`: `dims`, `embed`, `fields` (SqliteStore: `text_fields`). Without it, a
            `query` searches by words.
        ttl: LangGraph's `TTLConfig`: `default_ttl`, `refresh_on_read` (True), `omit_expired` (False),
            `sweep_interval_minutes` (5). Times are minutes.

    Raises:
        InvalidValue: `user_label`, `index` or `ttl` has a wrong type or an unknown key.
        MissingExtra: `index` is given, and numpy is not installed.
    """

    supports_ttl = True

    def __init__(
        self,
        diary: Diary | str | os.PathLike[str],
        user_label: UserLabel = 0,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> None:
        self.diary = diary_of(diary, is_own=True)
        self._has_opened = self.diary is not diary
        self.ttl_config = _checked_ttl(ttl)
        self._embedder = embedder = None if index is None else Embedder(index)
        self.index_config = None if index is None else cast("IndexConfig", dict(index))
        self.embeddings = None if embedder is None else embedder.embeddings
        self._items = ItemStore(
            self.diary,
            user_label=user_label,
            omit_expired=(self.ttl_config or {}).get("omit_expired", False),
            embedding=None if embedder is None else embedder.embedding,
        )

    def __repr__(self) -> str:
        return f"DiaryStore({self.diary!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the sweeper, if it runs, and close a diary that this store has opened; each write is complete already."""
        self.stop_ttl_sweeper()
        if self._has_opened:
            self.diary.close()

    async def __aenter__(self) -> Self:
        running_loop()  # because the end of the block needs it
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `__exit__`."""
        await in_thread(self.__exit__)

    def get(
        self, namespace: tuple[str, ...], key: str, *, refresh_ttl: bool | None = None
    ) -> Item | None:
        """Return an item, or None; `refresh_ttl` as in `BaseStore.get`."""
        found = self._cached(GetOp(namespace, str(key)))
        return super().get(namespace, key, refresh_ttl=refresh_ttl) if found is None else found

    def put(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """Store a value as `BaseStore.put` does; typed entries, which do not expire, get no default time to live."""
        super().put(namespace, _key(key), cast("Any", value), index, ttl=_given(ttl, namespace))

    async def aput(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> None:
        """Store a value like `put`."""
        await super().aput(namespace, _key(key), value, index, ttl=_given(ttl, namespace))

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations and return their results in the same order.

        Raises:
            ValueError: An operation is not valid, or a value breaks the schema. Nothing was written.
            LimitReached: A category is full. Nothing was written.
            BackendError: The storage failed. Of several users in one batch, some may have been written.
            IdentifierError: A namespace belongs to another user than the authenticated one. Nothing was read.
        """
        work = self._prepared(list(ops), signed_in_here())
        vectors = self._embedder.vectors(work) if self._embedder is not None else ((), ())
        answers = self._items.finish(work, *vectors, session=session_here())
        return [result(each) for each in answers]

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations like `batch`, without holding the event loop."""
        ops = list(ops)
        if self.diary.engine.backend.is_quick and len(ops) == 1 and isinstance(ops[0], GetOp):
            found = self._cached(ops[0])
            if found is not None:
                return [found]
        session, user_here = session_here(), signed_in_here()
        # Reads alone, or puts alone, of one user have a shorter way, in which concurrent puts share a transaction.
        gets = [op for op in ops if isinstance(op, GetOp)]
        puts = [op for op in ops if isinstance(op, PutOp)] if self._embedder is None else []
        user = self._items.one_owner(op.namespace for op in gets or puts)
        if user is not None and len(ops) == len(gets or puts):
            found = await self._items.arun(
                user, lambda: self._prepared(ops, user_here), session, puts=not gets
            )
            return [result(each) for each in found]
        if self._embedder is None:
            # Not `self.batch`: a subclass may override both methods, to count or to change operations once.
            return await in_thread(DiaryStore.batch, self, ops)
        work = await in_thread(self._prepared, ops, user_here)
        vectors = await self._embedder.avectors(work)
        answers = await in_thread(self._items.finish, work, *vectors, session=session)
        return [result(each) for each in answers]

    def _cached(self, op: GetOp) -> Item | None:
        """Return the item that a read finds if its document is cached; None if it must be read."""
        if type(op.namespace) is not tuple:
            return None
        validate_op_namespace(op)
        found = self._items.cached_item(op.namespace, op.key, signed_in_here())
        return None if found is None else item(found)

    def _prepared(self, ops: list[Op], user_here: str | None) -> PreparedBatch:
        return self._items.prepare([operation(op) for op in ops], user_here)

    def update(
        self,
        namespace: tuple[str, ...],
        key: str,
        fn: Callable[[dict[str, Any] | None], Mapping[str, Any] | None],
        *,
        index: Literal[False] | list[str] | None = None,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> Item | None:
        """Replace a value by the result of a function, atomically.

        Args:
            namespace: The namespace of the item.
            key: The key of the item.
            fn: Gets a copy of the value, or None if there is none. It returns the new value, or None to remove the
                item. It may be called again after a hand edit. What it writes for this user is part of the
                transaction.
            index: As in `put`.
            ttl: As in `put`.

        Returns:
            The item as it was stored.

        Raises:
            ValueError: The new value cannot be stored. Nothing was written.
            IdentifierError: The namespace belongs to another user than the authenticated one.
            NestedTransaction: `fn` wrote to another user.
        """
        check_written(namespace)
        ttl = _given(ttl, namespace)
        if ttl is NOT_PROVIDED:
            ttl = (self.ttl_config or {}).get("default_ttl")
        found = self._items.update(
            tuple(namespace),
            _key(key),
            fn,
            index=index,
            ttl=cast("float | None", ttl),
            session=session_here(),
            signed_in=signed_in_here(),
        )
        return None if found is None else item(found)

    async def aupdate(
        self,
        namespace: tuple[str, ...],
        key: str,
        fn: Callable[[dict[str, Any] | None], Mapping[str, Any] | None],
        *,
        index: Literal[False] | list[str] | None = None,
        ttl: float | NotProvided | None = NOT_PROVIDED,
    ) -> Item | None:
        """Replace a value like `update`; `fn` is called in a worker thread."""
        return await in_thread(DiaryStore.update, self, namespace, key, fn, index=index, ttl=ttl)

    # Time to live

    def setup(self) -> Answer:
        """Do nothing: a diary needs no preparation. May be awaited."""
        return Answer()

    def sweep_ttl(self) -> Answer:
        """Remove the expired items and return their number.

        May be awaited. In an event loop it works in a thread; using the number without `await` waits for this thread.
        """
        return answer(self._items.sweep)

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> SweeperFuture:
        """Remove expired items at an interval of minutes, in a thread; the future ends when the sweeper stops.

        Cancelling the future stops the sweeper. May be awaited, which returns a future of the running event loop.
        """
        every = sweep_interval_minutes
        if every is None:
            every = (self.ttl_config or {}).get("sweep_interval_minutes")
        return SweeperFuture(self._items.sweeper.start(_SWEEP_INTERVAL if every is None else every))

    def stop_ttl_sweeper(self, timeout: float | None = None) -> Answer:
        """Stop removing expired items; return False if the thread still runs after `timeout` seconds.

        May be awaited, like `sweep_ttl`.
        """
        return answer(lambda: self._items.sweeper.stop(timeout))


def _key(key: object) -> str:
    """Return the key of a put as text, as LangGraph's stores do.

    Raises:
        InvalidValue: The key is None; all items without an id would overwrite each other as "None".
    """
    if key is None:
        raise wrong_type(key, "text as a key", "key", "Give each item its own key.")
    return str(key)


def _given(ttl: Any, namespace: Any) -> Any:
    """Return the time to live of a put; None if it is not given and entries of the namespace do not expire."""
    return None if ttl is NOT_PROVIDED and not may_expire(namespace) else ttl


def _checked_ttl(ttl: Any) -> TTLConfig | None:
    if ttl is None:
        return None
    if not isinstance(ttl, Mapping):
        hint = 'For example: {"default_ttl": 60}, in minutes.'
        raise wrong_value(ttl, "LangGraph's TTLConfig", "ttl", hint)
    given = cast("Mapping[str, Any]", ttl)
    known_keys("ttl", given, _TTL_KEYS)
    for name in ("refresh_on_read", "omit_expired"):
        checked_flag(given.get(name, False), f"ttl.{name}")
    for name in ("default_ttl", "sweep_interval_minutes"):
        checked_minutes(given.get(name), f"ttl.{name}")
    return cast("TTLConfig", dict(given))


class Answer(int):
    """The type of a result for type checkers: a number that can be awaited.

    Outside of an event loop the result is a plain number.
    """

    def __await__(self) -> Generator[Any, Any, int]:
        """Return it at once."""
        return int(self)
        yield  # a generator


@total_ordering
class _Later:
    """An `Answer` that a thread computes; every use except `await` blocks until it is known."""

    __hash__ = None  # pyright: ignore[reportAssignmentType] - the number is not known yet

    def __init__(self, function: Callable[[], int]) -> None:
        self._future: Future[int] = Future()
        threading.Thread(target=self._run, args=(function,), daemon=True).start()

    def _run(self, function: Callable[[], int]) -> None:
        try:
            self._future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            self._future.set_exception(error)

    def __await__(self) -> Generator[Any, Any, int]:
        return asyncio.wrap_future(self._future).__await__()

    def __int__(self) -> int:
        return int(self._future.result())

    __index__ = __int__

    def __bool__(self) -> bool:
        return bool(self._future.result())

    def __eq__(self, other: object) -> bool:
        return self._future.result() == other

    def __lt__(self, other: int) -> bool:
        return self._future.result() < other

    def __repr__(self) -> str:
        return repr(self._future.result()) if self._future.done() else "<running>"


class SweeperFuture(Future[None]):
    """A future that ends with the sweeper, as the sweeper does with it; `await` returns an asyncio future of it at once."""

    def __init__(self, running: Future[None]) -> None:
        super().__init__()
        running.add_done_callback(lambda _: self.done() or self.set_result(None))
        self.add_done_callback(lambda _: running.cancel())

    def __await__(self) -> Generator[Any, Any, asyncio.Future[None]]:
        """Return at once, as the coroutine of an async store does."""
        return asyncio.wrap_future(self)
        yield  # a generator


def answer(function: Callable[[], int]) -> Answer:
    """Return the result of a blocking call; if an event loop runs here, the call runs in a thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return cast("Answer", function())
    return cast("Answer", _Later(function))
