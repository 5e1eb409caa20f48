"""Runs code while a `Recent` is changed, where Python may collect garbage."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from tomldiary.runtime.lru import Recent

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def run_within_keep(
    monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], object]
) -> Callable[[], bool]:
    """Call `act` at the start of the `Recent.keep` of this number; return whether there were that many."""
    kept, calls = Recent.keep, itertools.count()

    def keep(self: Any, key: Any, value: Any) -> Any:
        if next(calls) == number:
            act()
        return kept(self, key, value)

    monkeypatch.setattr(Recent, "keep", keep)
    return lambda: next(calls) > number
