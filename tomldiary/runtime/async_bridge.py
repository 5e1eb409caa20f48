"""Sync and async forms of one method, written once.

The core is synchronous: an async twin runs the sync method in a worker thread, so an event loop is
never held. The other way round, a coroutine called from sync code runs on one private event loop
thread, which also works where a loop is running already, as in a notebook.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from tomldiary.runtime.fork_safety import renew_after_fork

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine
    from concurrent.futures import Future

__all__ = [
    "SCOPE",
    "OwnThread",
    "Scope",
    "async_twin",
    "close_at_loop_end",
    "close_private_loop",
    "current_task",
    "in_daemon_thread",
    "in_thread",
    "is_of_another_loop",
    "is_private_loop",
    "note_private_loop",
    "run_coroutine",
]

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


class Scope(Protocol):
    """A block of calls that one task or thread owns, such as an open transaction."""

    task: Any
    """The asyncio task that owns it; None in sync code."""
    worker: OwnThread | None
    """The thread that runs the blocking calls of that task."""

    def is_owned_here(self) -> bool:
        """Return whether the running code opened the scope, or was called by the code that did."""
        ...


SCOPE: ContextVar[Scope | None] = ContextVar("tomldiary_scope", default=None)
"""The scope that is open in this task or thread."""


def current_task() -> Any:
    """Return the running asyncio task, or None in sync code and worker threads."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking call in a worker thread and wait for it without holding the event loop."""
    import asyncio  # noqa: PLC0415 - slow to import, and sync code needs none of it

    scope = SCOPE.get()
    if scope is None:
        return await asyncio.to_thread(function, *args, **kwargs)
    if scope.is_owned_here():
        if scope.worker is None:
            return await asyncio.to_thread(function, *args, **kwargs)
        return await scope.worker.run(functools.partial(function, *args, **kwargs))
    # The task was started inside the scope but is not part of it: its thread must not join.
    outer = SCOPE.set(None)
    try:
        return await asyncio.to_thread(function, *args, **kwargs)
    finally:
        SCOPE.reset(outer)


async def in_daemon_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking call that may hang; unlike `in_thread`, it does not keep the process from ending.

    Cancelling leaves the call to itself: what it returns is dropped.
    """
    import asyncio  # noqa: PLC0415 - see in_thread
    from concurrent.futures import Future  # noqa: PLC0415 - part of asyncio

    result: Future[R] = Future()
    context = contextvars.copy_context()
    context.run(SCOPE.set, None)  # a scope belongs to the caller's thread

    def run() -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(context.run(function, *args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            result.set_exception(error)

    try:
        threading.Thread(target=run, name="tomldiary-call", daemon=True).start()
    except RuntimeError:  # the interpreter is ending: the loop's own threads run already
        return await asyncio.to_thread(function, *args, **kwargs)
    return await asyncio.wrap_future(result)


_here = threading.local()
_OF_ANOTHER_LOOP = (
    "bound to a different event loop",
    "attached to a different loop",
    "Event loop is closed",
)


def note_private_loop() -> None:
    """Note that the calling thread runs an event loop of this package, and no other."""
    _here.is_private = True
    _here.closers = []


def is_of_another_loop(error: BaseException) -> bool:
    """Whether asyncio refused an object, such as a connection, that another event loop made."""
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _OF_ANOTHER_LOOP)


def close_at_loop_end(close: Callable[[], Awaitable[object]]) -> None:
    """Call `close` when the private loop of the calling thread ends; what opens connections there closes them."""
    _here.closers.append(close)


async def close_private_loop() -> None:
    """Call what `close_at_loop_end` was given, the last first."""
    closers: list[Callable[[], Awaitable[object]]] = _here.closers
    while closers:
        with contextlib.suppress(Exception):  # a connection that is broken is closed
            await closers.pop()()


def is_private_loop() -> bool:
    """Whether the calling thread runs an event loop of this package instead of one of the host.

    Connections of async clients belong to one event loop. Objects that the host uses too must not be
    awaited in a private one; call their sync methods in a thread.
    """
    return getattr(_here, "is_private", False)


class OwnThread:
    """A worker thread for one task that holds a lock.

    The shared worker threads may all be waiting for that lock, so its holder needs a thread of its own.
    Calls run one after the other; cancelling the task does not stop the running call.
    """

    def __init__(self) -> None:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - part of asyncio

        self._pool = ThreadPoolExecutor(1, "tomldiary-transaction")
        self._last: Future[Any] | None = None

    async def run(self, function: Callable[[], R]) -> R:
        """Run a blocking call and wait for it without holding the event loop."""
        import asyncio  # noqa: PLC0415 - see in_thread

        self._last = work = self._pool.submit(contextvars.copy_context().run, function)
        return await asyncio.shield(asyncio.wrap_future(work))

    def close(self, function: Callable[[], None]) -> None:
        """Run a last call that never waits: at once, or behind what is still running."""
        if self._last is None or self._last.done():
            function()
        else:
            self._pool.submit(function)
        self._pool.shutdown(wait=False)


def async_twin(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Return the coroutine form of a blocking method; it takes the same arguments."""

    @functools.wraps(method)
    async def twin(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        return await in_thread(method, self, *args, **kwargs)

    twin.__name__ = f"a{method.__name__}"
    twin.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.a{method.__name__}"
    first_line = (method.__doc__ or "").partition("\n")[0]
    twin.__doc__ = f"{first_line}\n\nThe coroutine form of `{method.__name__}`."
    return twin


class _LoopThread:
    """An event loop that runs in a thread of its own for as long as the process."""

    def __init__(self, name: str) -> None:
        import asyncio  # noqa: PLC0415 - see in_thread

        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        note_private_loop()
        self.loop.run_forever()


class _Loops:
    """The private loops of this process, by name."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the threads; a forked child has none of them."""
        self._guard = threading.Lock()
        self._threads: dict[str, _LoopThread] = {}

    def get(self, name: str) -> _LoopThread:
        with self._guard:
            found = self._threads.get(name)
            if found is None:
                found = self._threads[name] = _LoopThread(name)
            return found


_loops = _Loops()


def run_coroutine(work: Coroutine[Any, Any, R], *, name: str = "tomldiary-sync") -> R:
    """Run a coroutine to its end from sync code, whether or not a loop runs in this thread.

    Args:
        work: The coroutine.
        name: Which of the private loops to use; what one waits for runs in another.
    """
    import asyncio  # noqa: PLC0415 - see in_thread

    private = _loops.get(name)
    if threading.current_thread() is private.thread:
        work.close()
        raise RuntimeError(
            "a blocking call was made from an extractor. Use the coroutine form (with an a in front)."
        )
    scope = SCOPE.get()
    if scope is not None and scope.is_owned_here():
        work = _within(scope, work)
    return asyncio.run_coroutine_threadsafe(work, private.loop).result()


async def _within(scope: Scope, work: Coroutine[Any, Any, R]) -> R:
    """Let the task that works for a blocked caller take part in the caller's scope."""
    owner, scope.task = scope.task, current_task()
    try:
        return await work
    finally:
        scope.task = owner
