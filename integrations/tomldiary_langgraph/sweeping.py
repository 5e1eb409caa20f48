"""What the sweeper's methods return: values to sync callers, and awaitable, as in async stores."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from functools import total_ordering
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["Answer", "Done", "SweeperFuture", "answer"]


class Answer(int):
    """What a type checker sees: a number that can be awaited. Outside of event loops it is a plain one."""

    def __await__(self) -> Generator[Any, Any, int]:
        """Return it at once."""
        return int(self)
        yield  # a generator


@total_ordering
class _Later:
    """An `Answer` that is being worked out in a thread; every use but `await` waits for it."""

    __hash__ = None  # pyright: ignore[reportAssignmentType] - it equals numbers, but only later

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


class Done:
    """Nothing, which can be awaited."""

    def __await__(self) -> Generator[Any, Any, None]:
        """Return at once."""
        return
        yield  # a generator


class SweeperFuture(Future[None]):
    """Ends with the sweeper; to await it returns such a future of the running loop, at once."""

    def __init__(self, running: Future[None]) -> None:
        super().__init__()
        running.add_done_callback(lambda _: self.done() or self.set_result(None))

    def __await__(self) -> Generator[Any, Any, asyncio.Future[None]]:
        """Return at once, as the coroutine of an async store does."""
        return asyncio.wrap_future(self)
        yield  # a generator


def answer(function: Callable[[], int]) -> Answer:
    """Run a blocking call: here, or in a thread if an event loop runs here; only that is awaitable."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return cast("Answer", function())
    return cast("Answer", _Later(function))
