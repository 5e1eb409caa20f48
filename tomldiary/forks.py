"""Locks after a fork: a lock that another thread held when the process forked stays locked for ever.

Objects with such locks register here and get new ones in the child.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["renew_after_fork"]


class _Renewable(Protocol):
    def renew(self) -> None:
        """Make new locks; only the forking thread is left."""
        ...


_registered: weakref.WeakSet[_Renewable] = weakref.WeakSet()


def renew_after_fork(owner: _Renewable) -> None:
    """Call `owner.renew()` in every forked child, for as long as the owner lives."""
    _registered.add(owner)


def _renew_all() -> None:
    for owner in list(_registered):
        owner.renew()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_renew_all)
