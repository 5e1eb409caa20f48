"""Renews locks and closes locked files in a forked child.

If another thread holds a thread lock during a fork, the lock stays locked in the child for ever. `fork_safe` frees it
there. Objects with more to renew, such as threads, register themselves.

A lock or lease on an open file belongs to all processes that share the open file. A child that inherits the
descriptor would keep the lock after its parent was killed. So these descriptors are closed in the child.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["close_hidden", "fork_safe", "hide_from_children", "renew_after_fork"]


L = TypeVar("L")


class _Renewable(Protocol):
    def renew(self) -> None:
        """Create new locks; the child has only the forking thread."""
        ...


_hidden: set[int] = set()
_registered: weakref.WeakSet[_Renewable] = weakref.WeakSet()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def renew_after_fork(owner: _Renewable) -> None:
    """Call `owner.renew()` in every forked child while the owner exists."""
    _registered.add(owner)


def fork_safe(lock: L) -> L:
    """Return a thread lock that is free in every forked child, whichever thread held it."""
    _locks.add(lock)
    return lock


def hide_from_children(descriptor: int) -> None:
    """Close a descriptor in every forked child; in this process `close_hidden` closes it."""
    _hidden.add(descriptor)


def close_hidden(descriptor: int, close: Callable[[int], None]) -> None:
    """Close a descriptor that was passed to `hide_from_children`; it is already unlocked."""
    _hidden.discard(descriptor)
    close(descriptor)


def _renew_all() -> None:
    while _hidden:
        with suppress(OSError):
            os.close(_hidden.pop())
    for lock in list(_locks):
        lock._at_fork_reinit()  # noqa: SLF001 - as the locks of the standard library do
    for owner in list(_registered):
        owner.renew()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_renew_all)
