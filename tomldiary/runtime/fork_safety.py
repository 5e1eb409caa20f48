"""Renews locks and closes locked files in a forked child.

If another thread holds a thread lock during a fork, the lock stays locked in the child for ever. `fork_safe` frees it
there. Objects with more to renew, such as threads, register themselves.

A lock on an open file belongs to all processes that share the open file. A child that inherits the descriptor would
keep the lock after its parent was killed. So the descriptors in `closed_in_children` are closed there.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import Any, Protocol, TypeVar

__all__ = ["closed_in_children", "fork_safe", "renew_after_fork"]


L = TypeVar("L")


class _Renewable(Protocol):
    def renew(self) -> None:
        """Create new locks; the child has only the forking thread."""
        ...


closed_in_children: set[int] = set()
"""Descriptors of locked files; whoever closes one in this process removes it first."""
_registered: weakref.WeakSet[_Renewable] = weakref.WeakSet()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def renew_after_fork(owner: _Renewable) -> None:
    """Call `owner.renew()` in every forked child while the owner exists."""
    _registered.add(owner)


def fork_safe(lock: L) -> L:
    """Return a thread lock that is free in every forked child, whichever thread held it."""
    _locks.add(lock)
    return lock


def _renew_all() -> None:
    while closed_in_children:
        with suppress(OSError):
            os.close(closed_in_children.pop())
    for lock in list(_locks):
        lock._at_fork_reinit()  # noqa: SLF001 - as the locks of the standard library do
    for owner in list(_registered):
        owner.renew()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_renew_all)
