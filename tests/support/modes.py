"""Tests of what sync and async runs share need one of the two modes each."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


def alternating(*modes: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a test one of the modes, and the next test the next one.

    For each line that only one mode has, another test runs in each mode.
    """
    each = cycle(modes)

    def decorator(test: Callable[..., Any]) -> Callable[..., Any]:
        return pytest.mark.parametrize("mode", [next(each)])(test)

    return decorator
