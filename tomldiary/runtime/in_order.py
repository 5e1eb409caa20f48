"""Calls of one function in several threads, whose results come in order."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

T = TypeVar("T")
R = TypeVar("R")
_AT_ONCE = 8  # calls that wait for a server
# Calls that begin before a result is taken, so that a slow one does not stop the others.
_AHEAD = 2 * _AT_ONCE


def in_order(work: Callable[[T], R], items: Iterable[T], name: str) -> Generator[R]:
    """Yield the results of a function for some items, in their order; eight calls run at once.

    Args:
        work: The function; each call runs in a copy of the caller's context.
        items: The items. At most 16 calls begin before a result is taken. After a failed call, no later one begins.
        name: The beginning of the threads' names.

    Raises:
        Exception: The function raised it for the next item.
    """
    failed: list[int] = []

    def run(number: int, calls: list[Future[R]], item: T) -> None:
        call = calls.pop()  # frames of an error keep the arguments
        # The result of a call after a failed one is not taken.
        if any(each < number for each in failed) or not call.set_running_or_notify_cancel():
            return
        try:
            call.set_result(work(item))
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            failed.append(number)
            call.set_exception(error)
            del call  # otherwise the error would be part of a reference cycle

    def begun(number: int, item: T) -> Callable[[], R]:
        call: Future[R] = Future()
        try:
            threads.submit(copy_context().run, run, number, [call], item)
        except RuntimeError:
            # No thread can be started, for example because the interpreter ends. Another one may take the call.
            return lambda: work(item) if call.cancel() else call.result()
        return call.result

    with ThreadPoolExecutor(_AT_ONCE, name) as threads:
        results: deque[Callable[[], R]] = deque()
        try:
            for number, item in enumerate(items):
                results.append(begun(number, item))
                if len(results) >= _AHEAD:
                    yield results.popleft()()
            while results:
                yield results.popleft()()
        finally:
            failed.append(-1)  # no further result is taken
