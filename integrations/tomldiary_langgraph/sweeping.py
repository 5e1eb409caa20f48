"""Results of the sweeper's methods: sync callers use them as values, and async callers may await them."""

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


class Done:
    """The result of a method that returns nothing; it can be awaited."""

    def __await__(self) -> Generator[Any, Any, None]:
        """Return at once."""
        return
        yield  # a generator


class SweeperFuture(Future[None]):
    """A future that ends with the sweeper; `await` returns an asyncio future of it at once."""

    def __init__(self, running: Future[None]) -> None:
        super().__init__()
        running.add_done_callback(lambda _: self.done() or self.set_result(None))

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
