"""Spans that say what the diary did in a run, and never what it holds or whose it is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pydantic_ai.exceptions import UserError

if TYPE_CHECKING:
    from collections.abc import Generator

    from pydantic_ai import RunContext

__all__ = ["span"]


@contextmanager
def span(ctx: RunContext[Any], name: str) -> Generator[dict[str, int | bool | str]]:
    """Record `tomldiary.<name>` within the run's trace; what is put into the yielded dict is recorded.

    An error's text may quote the memory, so only its type is recorded. A run context that was sent to
    another process, as to an activity of Temporal, has no tracer: nothing is recorded there.
    """
    told: dict[str, int | bool | str] = {}
    try:
        tracer = ctx.tracer
    except (AttributeError, UserError):
        yield told
        return
    with tracer.start_as_current_span(
        f"tomldiary.{name}", record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield told
        except BaseException as error:
            told["error_type"] = type(error).__name__
            raise
        finally:
            for key, value in told.items():
                current.set_attribute(f"tomldiary.{key}", value)
