"""Locks after a fork.

A lock among threads that another thread held when the process forked stays locked for ever: objects with such locks
register here and get new ones in the child. A lock or lease on an open file belongs to all processes that have the
file open through the same descriptor: a child that inherits it would keep the lock after its parent was killed, so
these descriptors are closed in the child.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import Protocol

__all__ = ["close_hidden", "hide_from_children", "renew_after_fork"]


class _Renewable(Protocol):
    def renew(self) -> None:
        """Make new locks; only the forking thread is left."""
        ...


_hidden: set[int] = set()
_registered: weakref.WeakSet[_Renewable] = weakref.WeakSet()


def renew_after_fork(owner: _Renewable) -> None:
    """Call `owner.renew()` in every forked child, for as long as the owner lives."""
    _registered.add(owner)


def hide_from_children(descriptor: int) -> None:
    """Close an open file in every forked child; in this process `close_hidden` closes it."""
    _hidden.add(descriptor)


def close_hidden(descriptor: int) -> None:
    """Close a file that `hide_from_children` was called for; it is unlocked already."""
    _hidden.discard(descriptor)
    os.close(descriptor)


def _renew_all() -> None:
    while _hidden:
        with suppress(OSError):
            os.close(_hidden.pop())
    for owner in list(_registered):
        owner.renew()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_renew_all)
