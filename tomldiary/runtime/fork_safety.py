"""Renews locks and closes locked files in a forked child.

If another thread holds a thread lock during a fork, the lock stays locked in the child forever. `fork_safe` registers a
lock to be released there, and `emptied_in_child` a collection of what only the parent has, such as threads. Objects
with other state to renew register with `renew_after_fork`.

Python's lock of a module that another thread is importing cannot be released. So `docs/writer.md` advises when to fork.

A lock on an open file belongs to all processes that share the open file. A child that inherits the descriptor would
keep the lock after its parent was killed. Therefore a child closes all files that `open_lockable` opened.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

L = TypeVar("L")
C = TypeVar("C", bound="_Clearable")


class _Clearable(Protocol):
    def clear(self) -> None: ...


class _Renewable(Protocol):
    def renew(self) -> None:
        """Replace locks and drop threads, because the child has only the forking thread."""
        ...


lockable: set[int] = set()
"""The descriptors of all open files of `open_lockable`."""
_opening = threading.RLock()
"""Held while a file of `lockable` is opened or closed; a fork waits for it, so that no child keeps a copy."""
_registered: weakref.WeakSet[_Renewable] = weakref.WeakSet()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def renew_after_fork(owner: _Renewable) -> None:
    """Call `owner.renew()` in every forked child while the owner exists."""
    _registered.add(owner)


def fork_safe(lock: L) -> L:
    """Return the given thread lock, registered to be released in every forked child."""
    _locks.add(lock)
    return lock


def emptied_in_child(collection: C) -> C:
    """Return the given collection of a module, which every forked child empties."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
        os.register_at_fork(after_in_child=collection.clear)
    return collection


def open_lockable(open_file: Callable[[], int]) -> int:
    """Open a file that will be locked, and return its descriptor; every forked child closes its copy.

    Close it with `close_lockable`.
    """
    with _opening:
        descriptor = open_file()
        lockable.add(descriptor)
    return descriptor


def close_lockable(descriptor: int, close: Callable[[int], object]) -> None:
    """Close a file of `open_lockable`; do nothing in a forked child, which has closed its copy."""
    with _opening:
        if descriptor in lockable:
            lockable.remove(descriptor)
            close(descriptor)


def _renew_all() -> None:
    _opening.release()
    while lockable:
        with suppress(OSError):
            os.close(lockable.pop())
    for lock in list(_locks):
        lock._at_fork_reinit()  # noqa: SLF001 - the standard library also uses this
    for owner in list(_registered):
        owner.renew()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(
        before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_renew_all
    )
