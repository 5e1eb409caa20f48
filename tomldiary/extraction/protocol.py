"""What counts as an extractor: anything with `run(message, deps=…)`, async or not, or a function."""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tomldiary.errors import SchemaError
from tomldiary.runtime.async_bridge import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.extraction.draft import MemoryDeps

__all__ = ["Extractor", "as_extractor", "is_retried_as_a_whole", "run_extractor"]

is_retried_as_a_whole: ContextVar[bool] = ContextVar(
    "tomldiary_is_retried_as_a_whole", default=False
)
"""Whether the turn is tried again if it fails in passing; then no single request is repeated."""


@runtime_checkable
class Extractor(Protocol):
    """Reads one turn and changes the draft in `deps`; what it returns is not looked at.

    `run` may be a coroutine function or a plain one. Plain ones run in a worker thread. A pydantic-ai
    `Agent` with `deps_type=MemoryDeps` is an extractor as it is.
    """

    def run(self, message: str, /, *, deps: MemoryDeps) -> Any:
        """Read the turn described by `message`, and change `deps`."""
        ...


class _FunctionExtractor:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.run = function


def as_extractor(candidate: object) -> Extractor:
    """Return `candidate` as an extractor.

    Raises:
        SchemaError: It has no `run` method and is no function.
    """
    if callable(getattr(candidate, "run", None)):
        return candidate  # pyright: ignore[reportReturnType] - duck-typed on purpose
    if inspect.isfunction(candidate) or inspect.ismethod(candidate):
        return _FunctionExtractor(candidate)
    raise SchemaError(
        f"{type(candidate).__name__} cannot extract: give an object with run(message, deps=…), a"
        ' function, a model name, or "rules".'
    )


async def run_extractor(extractor: Extractor, message: str, deps: Any) -> None:
    """Run an extractor or a compactor on its draft; a plain function runs in a worker thread."""
    run = extractor.run
    if inspect.iscoroutinefunction(run):
        await run(message, deps=deps)
        return
    result = await in_thread(run, message, deps=deps)
    if inspect.isawaitable(result):
        await result
