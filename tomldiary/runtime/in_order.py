"""Calls of one function in several threads, whose results come in order."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

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
    ended = threading.Event()

    def call(item: T) -> R:
        if ended.is_set():
            raise CancelledError  # an earlier item failed, or no further result is taken
        try:
            return work(item)
        except BaseException:
            ended.set()
            raise

    def begun(item: T) -> Callable[[], R]:
        try:
            return threads.submit(copy_context().run, call, item).result
        except RuntimeError:  # no thread can be started, for example because the interpreter ends
            return partial(work, item)

    with ThreadPoolExecutor(_AT_ONCE, name) as threads:
        results: deque[Callable[[], R]] = deque()
        try:
            for item in items:
                results.append(begun(item))
                if len(results) >= _AHEAD:
                    yield results.popleft()()
            while results:
                yield results.popleft()()
        finally:
            ended.set()
