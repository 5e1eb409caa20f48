"""A registry of caches of user text, which are cleared when data is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


class _Cached(Protocol):
    def cache_clear(self) -> None: ...


C = TypeVar("C", bound=_Cached)

_clearing: list[Callable[[], None]] = []


def cleared_on_forget(cached: C) -> C:
    """Register a function's cache to be cleared whenever data is forgotten; a decorator above `lru_cache`.

    Use it for caches of texts or names from users. A cache that contains only schemas does not need it.
    """
    _clearing.append(cached.cache_clear)
    return cached


def clear_caches() -> None:
    """Clear all registered caches for all users, because the user of a cached text is unknown."""
    for clear in _clearing:
        clear()
