"""Batches of async puts: the calls that wait for one user run together in a worker thread."""

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


__all__ = ["Batches"]

T = TypeVar("T")
_MOST = 256  # the maximum number of calls in a run, because other writers may be waiting for the user's lock


@dataclass(slots=True)
class _Lane(Generic[T]):
    """The waiting calls for one user in one event loop."""

    waiting: list[tuple[T, asyncio.Future[None]]] = field(
        default_factory=list["tuple[T, asyncio.Future[None]]"]
    )
    worker: asyncio.Task[None] | None = None


class Batches(Generic[T]):
    """Runs calls in order in a worker thread, with at most one run at a time for a user in an event loop.

    Args:
        run: The function that executes calls for a user, and returns the error or None for each.
    """

    def __init__(self, run: Callable[[str, Sequence[T]], Sequence[Exception | None]]) -> None:
        self._run = run
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock, and drop event loops, which a forked child does not run."""
        self._guard = threading.Lock()
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Lane[T]]] = (
            WeakKeyDictionary()
        )

    async def done(self, user: str, call: T) -> None:
        """Wait until a call is done, and raise its error if it failed."""
        loop = running_loop()
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
                except Exception as error:  # noqa: BLE001 - raised in the callers
                    errors = [copy(error) for _ in mine]
                for (_, future), error in zip(mine, errors, strict=True):
                    _finish(future, error)
        finally:
            # The task may be cancelled at the end of the loop; callers must not wait forever.
            lanes.pop(user, None)
            for _, future in [*mine, *lane.waiting]:
                future.cancel()


def _finish(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return  # its caller was cancelled
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
