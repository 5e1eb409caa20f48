"""Registry of caches of user text, which are cleared when data is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["clear_caches", "cleared_on_forget"]


class _Cached(Protocol):
    def cache_clear(self) -> None: ...


C = TypeVar("C", bound=_Cached)

_clearing: list[Callable[[], None]] = []


def cleared_on_forget(cached: C) -> C:
    """Clear a function's cache whenever data is forgotten; a decorator to put above `lru_cache`.

    Use it for caches that hold text or names from users. A cache that only holds schemas does not need it.
    """
    _clearing.append(cached.cache_clear)
    return cached


def clear_caches() -> None:
    """Clear all registered caches for all users: a cached text does not name its user."""
    for clear in _clearing:
        clear()
