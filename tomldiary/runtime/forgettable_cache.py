"""Answers kept because the same texts are asked about again, and let go of when something is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["call_on_forget", "let_go", "let_go_on_forget"]


class _Cached(Protocol):
    def cache_clear(self) -> None: ...


C = TypeVar("C", bound=_Cached)

_clearing: list[Callable[[], None]] = []


def let_go_on_forget(cached: C) -> C:
    """Have a function's cached answers dropped whenever something is forgotten; stands above `lru_cache`.

    For caches that hold what users said, wrote or named. One that only ever sees schemas needs none of it.
    """
    _clearing.append(cached.cache_clear)
    return cached


def call_on_forget(clear: Callable[[], None]) -> None:
    """Have what a module keeps elsewhere dropped as well."""
    _clearing.append(clear)


def let_go() -> None:
    """Drop all of it, whoever it was about: a text does not say whose it is."""
    for clear in _clearing:
        clear()
