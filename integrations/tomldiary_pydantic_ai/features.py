"""What newer releases of pydantic-ai can do, found by looking and not by a version number."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_ai import capabilities
from pydantic_ai.messages import InstructionPart

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CAN_APPEND", "appending", "durable_operation"]

F = TypeVar("F", bound="Callable[..., Any]")

CAN_APPEND = "on_change" in {field.name for field in dataclasses.fields(InstructionPart)}
"""Whether instructions that change can be sent as what changed."""


def appending(text: str, name: str) -> InstructionPart:
    """Return an instruction of which later changes are appended to the conversation, where that is possible."""
    options: dict[str, Any] = {"name": name, "on_change": "append"} if CAN_APPEND else {}
    return InstructionPart(text, dynamic=True, **options)


def durable_operation(name: str) -> Callable[[F], F]:
    """Return a decorator that lets a durable execution engine record and replay a method's result."""
    mark: Callable[[str], Callable[[F], F]] | None = getattr(
        capabilities, "durable_operation", None
    )

    def decorate(method: F) -> F:
        if mark is None:
            return method
        # The framework looks it up on each call; found here it need not be made each time.
        method.__signature__ = inspect.signature(method)
        return mark(name)(method)

    return decorate
