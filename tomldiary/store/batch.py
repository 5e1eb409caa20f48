"""Async puts that wait for the same user are run together, in one worker thread."""

from __future__ import annotations

import threading
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

from tomldiary.runtime.async_bridge import in_thread
from tomldiary.runtime.fork_safety import renew_after_fork

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence


__all__ = ["Gathering"]

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
