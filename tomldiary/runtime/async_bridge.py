"""Sync and async forms of one method, written once.

The core is synchronous. An async twin runs the sync method in a worker thread and does not block the event loop.
In the other direction, a coroutine called from sync code runs on a private event loop thread. This also works
where a loop is already running, as in a notebook.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
import threading
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from tomldiary.errors import NotSupported
from tomldiary.runtime.fork_safety import emptied_in_child, fork_safe

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from concurrent.futures import Future, ThreadPoolExecutor
    from queue import SimpleQueue

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


class Scope(Protocol):
    """A block of calls that one task or thread owns, such as an open transaction."""

    guests: set[Any]
    """The tasks that run a coroutine for a blocked caller in the scope."""
    worker: OwnThread | None
    """The thread that runs the blocking calls of the task that owns the scope."""

    def is_owned_here(self) -> bool:
        """Return whether it is open, and the running code opened it or was called by the code that did."""
        ...


SCOPE: ContextVar[Scope | None] = ContextVar("tomldiary_scope", default=None)
"""The open scope of this task or thread."""
CALLED_IN: ContextVar[Scope | None] = ContextVar("tomldiary_called_in", default=None)
"""In a worker thread: the scope whose owner made this call and waits for it, unless the owner was cancelled."""


def scope_here() -> Scope | None:
    """Return the open scope that the running code owns, or None; an interrupted block may leave a closed one."""
    scope = SCOPE.get()
    return scope if scope is not None and scope.is_owned_here() else None


def current_task() -> Any:
    """Return the running asyncio task, or None in sync code and worker threads."""
    try:
        return sys.modules["asyncio"].current_task()
    except (KeyError, RuntimeError, AttributeError):
        return None  # no loop is running, or another thread is still importing asyncio


def is_stopped() -> bool:
    """Return whether the running task is cancelled or its event loop closed; functions of a host may raise these errors."""
    task = current_task()
    return task is None or task.cancelling() > 0


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop of asyncio.

    Raises:
        RuntimeError: None is running, for example because the caller runs in Trio.
        NotSupported: Threads cannot wake the loop, so a call would never return.
    """
    import asyncio  # noqa: PLC0415 - slow to import, and sync code does not need it

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "an async method needs a running event loop of asyncio. With Trio, call the sync method in a thread:"
            " await trio.to_thread.run_sync(…)."
        ) from None
    if not is_woken_by_threads(loop):
        raise NotSupported(
            "threads cannot wake this event loop, which is that of a Temporal workflow. Use the memory in an activity."
        )
    return loop


def is_woken_by_threads(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether threads can wake an event loop; they cannot wake that of a Temporal workflow."""
    import asyncio  # noqa: PLC0415 - see running_loop

    return type(loop).call_soon_threadsafe is not asyncio.AbstractEventLoop.call_soon_threadsafe


class Call:
    """A call of `in_thread`, in whose context the function runs."""

    def __init__(self) -> None:
        self.is_running = True
        self.is_cancelled = False
        self.futures: Sequence[asyncio.Future[Any]] = ()
        """The futures that tasks await, if the call works for several tasks."""

    def refuse_cancelled(self) -> None:
        """Refuse a write that its task awaits no more, so that it does not overtake a later write.

        Raises:
            RuntimeError: The task was cancelled before the write began.
        """
        is_cancelled = self.is_cancelled or any(each.cancelled() for each in self.futures)
        if self.is_running and is_cancelled:
            raise RuntimeError("the call was cancelled before its write began. Nothing was stored.")


CALL: ContextVar[Call | None] = ContextVar("tomldiary_call", default=None)


def _called(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function for a future of asyncio, which in older releases never ends if it gets a StopIteration."""
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError("function raised StopIteration") from error


def _ended(call: Call, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function, and note its end, because what it started may run on with its context variables."""
    try:
        return _called(function, *args, **kwargs)
    finally:
        call.is_running = False


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking call in a worker thread and wait for it without blocking the event loop.

    If the task is cancelled, a write that waits for its lock is withdrawn. One that has begun, and an erasure, is finished.
    """
    loop = running_loop()
    scope, context = scope_here(), contextvars.copy_context()
    if scope is not None:
        context.run(CALLED_IN.set, scope)
        if current_task() in scope.guests:
            # All shared threads may be waiting for the lock that the scope holds.
            return await _in_daemon(context, function, *args, **kwargs)
        if scope.worker is not None:
            return await scope.worker.run(lambda: context.run(function, *args, **kwargs))
    else:
        # A task that was started inside the scope does not own the scope, so its thread must not use it.
        context.run(SCOPE.set, None)
    call = Call()
    context.run(CALL.set, call)
    work = partial(context.run, _ended, call, function, *args, **kwargs)
    return await _result_of(call, loop.run_in_executor(None, work))


async def _result_of(call: Call, future: asyncio.Future[R]) -> R:
    """Wait for a call in a thread, and note whether the waiting task was cancelled."""
    import asyncio  # noqa: PLC0415 - see running_loop

    try:
        return await future
    except asyncio.CancelledError:
        call.is_cancelled = True
        raise


_MOST_IDLE = 32
_idle: list[SimpleQueue[Callable[[], None]]] = emptied_in_child([])
"""The daemon threads without a call, which are used again."""


def _run_in_daemon(call: Callable[[], None]) -> None:
    """Run a call, which raises nothing, in a daemon thread that has no other call.

    Raises:
        RuntimeError: No thread can be started.
    """
    from queue import SimpleQueue  # noqa: PLC0415 - part of asyncio

    try:
        calls: SimpleQueue[Callable[[], None]] = _idle.pop()
    except IndexError:
        calls = SimpleQueue()
        threading.Thread(
            target=_run_calls, args=[calls], name="tomldiary-call", daemon=True
        ).start()
    calls.put(call)


def _run_calls(calls: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        calls.get()()
        if len(_idle) >= _MOST_IDLE:
            return
        _idle.append(calls)


async def in_daemon_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a blocking call that may hang in a thread that has no other call and does not prevent the process from exiting.

    Cancellation does not stop the call, but drops its result, and the call can write no more.
    """
    context = contextvars.copy_context()
    context.run(SCOPE.set, None)  # a scope belongs to the caller's thread
    return await _in_daemon(context, function, *args, **kwargs)


async def _in_daemon(
    context: contextvars.Context, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> R:
    import asyncio  # noqa: PLC0415 - see running_loop
    from concurrent.futures import Future  # noqa: PLC0415 - part of asyncio

    result: Future[R] = Future()
    call = Call()
    context.run(CALL.set, call)

    def run() -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(context.run(_ended, call, function, *args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            result.set_exception(error)

    try:
        _run_in_daemon(run)
    except RuntimeError:
        # The interpreter is shutting down, so only the running threads of the loop can be used.
        return await asyncio.to_thread(context.run, _called, function, *args, **kwargs)
    return await _result_of(call, asyncio.wrap_future(result))


_here = threading.local()
_OF_ANOTHER_LOOP = (
    "bound to a different event loop",
    "attached to a different loop",
    "Event loop is closed",
)


def note_private_loop() -> None:
    """Register the calling thread as one that runs a private event loop of this package."""
    _here.is_private = True
    _here.closers = []


def is_of_another_loop(error: BaseException) -> bool:
    """Return whether an error was raised because an object, such as a connection, belongs to another event loop."""
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _OF_ANOTHER_LOOP)


def close_at_loop_end(close: Callable[[], Awaitable[object]]) -> None:
    """Register `close` to be called when the private loop of the calling thread ends, to close connections."""
    _here.closers.append(close)


async def close_private_loop() -> None:
    """Call the functions registered with `close_at_loop_end`, last first."""
    closers: list[Callable[[], Awaitable[object]]] = _here.closers
    while closers:
        with contextlib.suppress(Exception):  # a broken connection need not be closed
            await closers.pop()()


def is_private_loop() -> bool:
    """Return whether the calling thread runs a private event loop of this package, not one of the host.

    Connections of async clients belong to one event loop. If the host also uses a client, do not await it in a private
    loop, but call its sync methods in a thread.
    """
    return getattr(_here, "is_private", False)


class OwnThread:
    """A worker thread for one task that holds a lock.

    All shared worker threads may be waiting for that lock, so its holder needs a dedicated thread. Calls run in order.
    Cancelling the task does not stop the running call.
    """

    def __init__(self) -> None:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - part of asyncio

        self._pool = ThreadPoolExecutor(1, "tomldiary-transaction")
        self._last: Future[Any] | None = None

    async def run(self, function: Callable[[], R]) -> R:
        """Run a blocking call and wait for it without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - see running_loop

        running_loop()
        self._last = work = self._pool.submit(contextvars.copy_context().run, _called, function)
        future = asyncio.wrap_future(work)
        # asyncio logs an error that is not read, and a cancelled task does not await its call.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([future])
        return future.result()

    def close(self, function: Callable[[], None]) -> None:
        """Run a last, non-blocking call, either at once or after the call that is still running."""
        if self._last is None or self._last.done():
            function()
        else:
            self._pool.submit(function)
        self._pool.shutdown(wait=False)


def async_twin(
    method: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Return the coroutine form of a blocking method, with the same arguments."""

    @functools.wraps(method)
    async def twin(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        return await in_thread(method, self, *args, **kwargs)

    twin.__name__ = f"a{method.__name__}"
    twin.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.a{method.__name__}"
    first_line = (method.__doc__ or "").partition("\n")[0]
    twin.__doc__ = f"{first_line}\n\nThe coroutine form of `{method.__name__}`."
    return twin


def sync_twin(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], R]:
    """Return the blocking form of a coroutine method, whose name begins with "a"."""

    @functools.wraps(method)
    def twin(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            coroutine = method(self, *args, **kwargs)
        except TypeError as error:  # the arguments are wrong, and nothing has run yet
            name = twin.__name__
            raise TypeError(str(error).replace(f"{method.__name__}()", f"{name}()")) from None
        return run_coroutine(coroutine)

    twin.__name__ = method.__name__.removeprefix("a")
    twin.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{twin.__name__}"
    return twin


def needs_threads() -> None:
    """Refuse to run an event loop beside others in threads that are greenlets: it would hang.

    Raises:
        RuntimeError: gevent or eventlet has replaced the threads of this process.
    """
    for name, check, part in (
        ("gevent.monkey", "is_module_patched", "threading"),
        ("eventlet.patcher", "is_monkey_patched", "thread"),
    ):
        library = sys.modules.get(name)
        if library is not None and getattr(library, check)(part):
            raise RuntimeError(
                f"{name.partition('.')[0]} has replaced threads by greenlets, in which no event loop can run. Use"
                " workers with threads, such as gthread of gunicorn, or threads of Celery."
            )


class LoopThread:
    """An event loop in its own thread; it runs until `stop`, or until the process ends.

    Args:
        name: The name of the thread.
        threads: The number of threads for blocking calls, which are started now; 0 is left to asyncio.

    Raises:
        RuntimeError: The system has no thread left, or threads are greenlets.
    """

    def __init__(self, name: str, threads: int = 0) -> None:
        import asyncio  # noqa: PLC0415 - see running_loop

        needs_threads()
        self._is_stopped = False
        # A loop keeps the context that it is made in, which may hold all objects of an agent's run.
        self.loop: asyncio.AbstractEventLoop = contextvars.Context().run(asyncio.new_event_loop)
        self._pool = _started_pool(name, threads) if threads else None
        if self._pool is not None:
            self.loop.set_default_executor(self._pool)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self.thread.start()
        except RuntimeError:
            self.loop.close()  # shuts the pool down
            raise

    def _run(self) -> None:
        import asyncio  # noqa: PLC0415 - see running_loop

        asyncio.set_event_loop(self.loop)
        note_private_loop()
        try:
            while not self._is_stopped:
                # A task ends the loop by raising one of these, which its caller gets too, or by `loop.stop`.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    self.loop.run_forever()
        finally:
            self.loop.run_until_complete(close_private_loop())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            try:
                self.loop.run_until_complete(self.loop.shutdown_default_executor())
            except RuntimeError:  # the call would start a thread while the interpreter ends
                if self._pool is not None:
                    self._pool.shutdown()
            self.loop.close()

    def stop(self) -> None:
        """Schedule the loop to stop; callable from any thread."""
        with contextlib.suppress(RuntimeError):  # closed already
            self.loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._is_stopped = True
        self.loop.stop()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end."""
        if self.thread is not threading.current_thread():
            self.thread.join(timeout)


def _started_pool(name: str, threads: int) -> ThreadPoolExecutor:
    """Return a pool with running threads, because since Python 3.12 none can start while the interpreter ends."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - part of asyncio

    pool = ThreadPoolExecutor(threads, name)
    gate = threading.Barrier(threads)
    try:
        for _ in range(threads):
            pool.submit(gate.wait)
    except RuntimeError:  # the system has no thread left; the pool keeps the running ones
        gate.abort()
    return pool


_loops: dict[str, LoopThread] = emptied_in_child({})
"""The private loops of this process, by name."""
_loops_guard = fork_safe(threading.Lock())


def _private_loop(name: str) -> LoopThread:
    with _loops_guard:
        if name not in _loops:
            _loops[name] = LoopThread(name)
        return _loops[name]


def run_coroutine(
    work: Coroutine[Any, Any, R], *, name: str = "tomldiary-sync", is_stopped: bool = True
) -> R:
    """Run a coroutine from sync code and return its result, even if an event loop is running in this thread.

    Args:
        work: The coroutine.
        name: The private loop to use. A coroutine that another private loop waits for needs a different loop.
        is_stopped: Whether to cancel the coroutine if an exception of a signal handler ends the call, as with Ctrl-C or
            the time limit of a task queue. Otherwise it continues.
    """
    import asyncio  # noqa: PLC0415 - see running_loop

    try:
        private = _private_loop(name)
    except RuntimeError:
        work.close()
        raise
    if threading.current_thread() is private.thread:
        work.close()
        raise RuntimeError(
            'a blocking method was called from an extractor. Use its coroutine form, whose name begins with "a".'
        )
    scope = scope_here()
    if scope is not None:
        work = _within(scope, work)
    future: Future[R] | None = None
    try:
        future = asyncio.run_coroutine_threadsafe(work, private.loop)
        return future.result()
    except BaseException:
        if is_stopped and (future is None or not future.done()):
            # By the coroutine, because there may be no future to cancel yet: this thread gets the interrupt late, while
            # the loop's thread already begins the turn.
            private.loop.call_soon_threadsafe(_cancel, work)
        raise
    finally:
        del future  # otherwise an error would be part of a reference cycle


def _cancel(work: Coroutine[Any, Any, object]) -> None:
    """Cancel the task of a coroutine in the running loop, if it was started."""
    import asyncio  # noqa: PLC0415 - see running_loop

    for task in asyncio.all_tasks():
        if task.get_coro() is work:
            task.cancel()


async def _within(scope: Scope, work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine for a blocked caller, who may be one of several threads in the scope."""
    task = current_task()
    scope.guests.add(task)
    try:
        return await work
    finally:
        scope.guests.discard(task)
