"""Checks of functions that hosts give."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from tomldiary.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable


def misfit(function: Callable[..., Any], *arguments: object, **named: object) -> str:
    """Return why a function cannot be called with some arguments; "" if it can, or has no known signature."""
    try:
        # A decorator with functools.wraps may give arguments of its own to what it wraps.
        signature = inspect.signature(function, follow_wrapped=False)
    except Exception:  # noqa: BLE001 - a function in C, or one whose annotations cannot be evaluated
        return ""
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        return str(error)
    return ""


def is_async(function: object) -> bool:
    """Return whether a call returns a coroutine; `function` may be an object with an async `__call__`."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def refuse_async(function: object, where: str) -> None:
    """Refuse an async function where a plain one is called; any other object passes.

    Raises:
        InvalidValue: `function` is async; the message names `where`.
    """
    if is_async(function):
        raise InvalidValue("an async function cannot be used. Give a plain function.", where=where)
