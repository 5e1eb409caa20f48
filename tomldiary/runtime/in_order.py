"""Calls of one function in several threads, whose results come in order."""

from __future__ import annotations

import threading
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")
_AT_ONCE = 8  # calls that wait for a server
_AHEAD = (
    2 * _AT_ONCE
)  # calls that begin before a result is taken, so that a slow one does not stop the others


def in_order(work: Callable[[T], R], items: Iterable[T], name: str) -> Generator[R]:
    """Yield the results of a function for some items, in their order; eight calls run at once.

    Args:
        work: The function; each call runs in a copy of the caller's context.
        items: The items. At most 16 calls begin before a result is taken, and none after a call has failed.
        name: The beginning of the threads' names.

    Raises:
        Exception: The function raised it for the next item.
    """
    from concurrent.futures import CancelledError, ThreadPoolExecutor  # noqa: PLC0415 - part of asyncio

    failed = threading.Event()

    def call(item: T) -> R:
        if failed.is_set():
            raise CancelledError  # an earlier item failed, so this result is not taken
        try:
            return work(item)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(_AT_ONCE, name) as threads:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(threads.submit(copy_context().run, call, item))
                if len(waiting) >= _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()
