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


def refuse_misfit(
    function: Callable[..., Any], parameters: str, where: str, *arguments: object, **named: object
) -> None:
    """Refuse a function that cannot be called with some arguments.

    Args:
        function: The function of a host.
        parameters: The parameters as the message writes them, such as "namespace, key".
        where: The option that the message names.
        *arguments: The positional arguments of a call.
        **named: Its keyword arguments.

    Raises:
        InvalidValue: The call would fail.
    """
    reason = misfit(function, *arguments, **named)
    if reason:
        raise InvalidValue(
            f"a call with ({parameters}) fails, {reason}. Give it these parameters.", where=where
        )


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
