"""Batches of operations, and the async ones that run together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tomldiary.errors import BackendError, Conflict, LockTimeout
from tomldiary.runtime.async_bridge import CALL, in_thread, running_loop
from tomldiary.runtime.fork_safety import renew_after_fork

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from tomldiary.store.operations import Operation, Result

    _Awaited = tuple["PreparedBatch", asyncio.Future[list[Result]]]
    _Waiting = tuple["Call", asyncio.Future[list[Result]]]

_MOST = 1024  # the maximum number of calls in a run, because other writers may be waiting for the user's lock


@dataclass(slots=True)
class PreparedBatch:
    """A validated batch, and the texts and queries to embed before it runs."""

    ops: list[Operation]
    texts: dict[str, list[str]] = field(default_factory=dict[str, "list[str]"])
    """By user."""
    queries: list[str] = field(default_factory=list[str])
    asked: list[str] = field(default_factory=list[str])
    """The same queries before their redaction."""
    epochs: dict[str, int] = field(default_factory=dict[str, int])
    owners: frozenset[str] = frozenset()
    """The users of the items to put."""
    signed_in: str | None = None
    """The user whose namespaces the batch may use in addition to the shared ones; None allows all."""

    @property
    def all_texts(self) -> list[str]:
        """The texts of all users, in order."""
        return list(chain.from_iterable(self.texts.values()))


Call = tuple[str, Callable[[], PreparedBatch]]
"""A session, and the function that prepares a batch."""


@dataclass(slots=True)
class _Lane:
    """The waiting calls of one lane in one event loop."""

    waiting: list[_Waiting] = field(default_factory=list["_Waiting"])
    worker: asyncio.Task[None] | None = None


class Batches:
    """Runs batches in order in a worker thread, with at most one run at a time for a lane of an event loop.

    `finish` gets a batch and its session, and returns the results. Waiting batches of the same session run as one
    batch. If one of them cannot be applied, each runs separately, so that only the invalid one fails.
    """

    def __init__(self, finish: Callable[..., list[Result]]) -> None:
        self._finish = finish
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock, and drop event loops, which a forked child does not run."""
        self._guard = threading.Lock()
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, _Lane]] = (
            WeakKeyDictionary()
        )

    async def done(self, lane: object, call: Call) -> list[Result]:
        """Wait until a batch is done, and return its results or raise its error."""
        loop = running_loop()
        with self._guard:
            lanes = self._loops.setdefault(loop, {})
        mine = lanes.get(lane)
        if mine is None:
            mine = lanes[lane] = _Lane()
            mine.worker = loop.create_task(self._work(lanes, lane, mine))
        future: asyncio.Future[list[Result]] = loop.create_future()
        mine.waiting.append((call, future))
        return await future

    async def _work(self, lanes: dict[object, _Lane], name: object, lane: _Lane) -> None:
        mine: list[_Waiting] = []
        try:
            while lane.waiting:
                mine = [each for each in lane.waiting[:_MOST] if not each[1].cancelled()]
                del lane.waiting[:_MOST]
                try:
                    results = await in_thread(self._run, mine)
                except Exception as error:  # noqa: BLE001 - raised in the callers
                    results = [copy(error) for _ in mine]
                for (_, future), result in zip(mine, results, strict=True):
                    if future.done():
                        continue  # its caller was cancelled
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
        finally:
            # The task may be cancelled at the end of the loop; callers must not wait forever.
            lanes.pop(name, None)
            for _, future in [*mine, *lane.waiting]:
                future.cancel()

    def _run(self, calls: Sequence[_Waiting]) -> list[list[Result] | Exception]:
        """Return the results or the error of each batch."""
        results: list[list[Result] | Exception] = []
        for session, same in groupby(calls, key=lambda each: each[0][0]):
            works: list[_Awaited | Exception] = []
            for (_, prepare), future in same:
                try:
                    works.append((prepare(), future))
                except Exception as error:  # noqa: BLE001 - raised to the caller of this batch
                    works.append(error)
            ready = [work for work in works if not isinstance(work, Exception)]
            found = iter(self._finish_all(ready, session))
            results += [work if isinstance(work, Exception) else next(found) for work in works]
        return results

    def _finish_all(
        self, works: Sequence[_Awaited], session: str
    ) -> list[list[Result] | Exception]:
        call = CALL.get()
        if call is not None:
            call.futures = [future for _, future in works]
        try:
            every = PreparedBatch([op for work, _ in works for op in work.ops])
            found = iter(self._finish(every, session=session))
            return [list(islice(found, len(work.ops))) for work, _ in works]
        except (BackendError, Conflict, LockTimeout) as error:
            return [copy(error) for _ in works]  # each would fail again
        except Exception as error:  # noqa: BLE001 - raised to the callers
            if len(works) == 1:
                return [error]
            return [met for work in works for met in self._finish_all([work], session)]
