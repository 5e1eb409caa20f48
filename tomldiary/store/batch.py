"""Batches of async calls: those that wait for one user run together in a worker thread."""

from __future__ import annotations

import threading
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

from tomldiary.runtime.async_bridge import in_thread, running_loop
from tomldiary.runtime.fork_safety import renew_after_fork

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence


T = TypeVar("T")
R = TypeVar("R")
_MOST = 1024  # the maximum number of calls in a run, because other writers may be waiting for the user's lock


@dataclass(slots=True)
class _Lane(Generic[T, R]):
    """The waiting calls for one user in one event loop."""

    waiting: list[tuple[T, asyncio.Future[R]]] = field(
        default_factory=list["tuple[T, asyncio.Future[R]]"]
    )
    worker: asyncio.Task[None] | None = None


class Batches(Generic[T, R]):
    """Runs calls in order in a worker thread, with at most one run at a time for a user in an event loop.

    Args:
        run: The function that executes calls for a user, and returns the result or the error of each.
    """

    def __init__(self, run: Callable[[str, Sequence[T]], Sequence[R | Exception]]) -> None:
        self._run = run
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock, and drop event loops, which a forked child does not run."""
        self._guard = threading.Lock()
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Lane[T, R]]] = (
            WeakKeyDictionary()
        )

    async def done(self, user: str, call: T) -> R:
        """Wait until a call is done, and return its result or raise its error."""
        loop = running_loop()
        with self._guard:
            lanes = self._loops.setdefault(loop, {})
        lane = lanes.get(user)
        if lane is None:
            lane = lanes[user] = _Lane()
            lane.worker = loop.create_task(self._work(lanes, user, lane))
        future: asyncio.Future[R] = loop.create_future()
        lane.waiting.append((call, future))
        return await future

    async def _work(self, lanes: dict[str, _Lane[T, R]], user: str, lane: _Lane[T, R]) -> None:
        mine: list[tuple[T, asyncio.Future[R]]] = []
        try:
            while lane.waiting:
                mine = [each for each in lane.waiting[:_MOST] if not each[1].cancelled()]
                del lane.waiting[:_MOST]
                try:
                    results = await in_thread(self._run, user, [call for call, _ in mine])
                except Exception as error:  # noqa: BLE001 - raised in the callers
                    results = [copy(error) for _ in mine]
                for (_, future), result in zip(mine, results, strict=True):
                    _finish(future, result)
        finally:
            # The task may be cancelled at the end of the loop; callers must not wait forever.
            lanes.pop(user, None)
            for _, future in [*mine, *lane.waiting]:
                future.cancel()


def _finish(future: asyncio.Future[R], result: R | Exception) -> None:
    if future.done():
        return  # its caller was cancelled
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
