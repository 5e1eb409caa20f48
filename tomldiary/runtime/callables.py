"""Checks of functions that hosts give."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def misfit(function: Callable[..., Any], *arguments: object, **named: object) -> str:
    """Return why a function cannot be called with some arguments; "" if it can, or has no known signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function in C
        return ""
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        return str(error)
    return ""
