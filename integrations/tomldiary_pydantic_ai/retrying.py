"""A model whose failed requests are repeated, within one bound for all who would repeat them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.messages import TextPart
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from tomldiary.extraction.protocol import is_retried_as_a_whole
from tomldiary.writer.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters

__all__ = ["RetryingModel"]

_PAUSES = RetryPolicy(first_pause=0.25)
_CAN_LIMIT_CLIENT = "max_retries" in ModelSettings.__annotations__
"""Whether this release can tell a provider's client not to repeat requests itself."""
_CUT = frozenset({"length", "content_filter", "error"})


class RetryingModel(WrapperModel):
    """Repeats a request that failed in passing, after a growing pause or the one that the server asks for.

    It is the only one to do so: the provider's client is told not to. Where the whole turn is tried again,
    as by `MemoryWriter`, the first request of a run is made once, and a later one at most twice: what the
    earlier ones cost is not lost to one broken connection. A response without text and calls is the end of
    the run: the model has nothing to add.

    Args:
        wrapped: The model.
        retries: Repetitions of one request.
        is_passing: Whether an error may pass.
    """

    def __init__(
        self, wrapped: Model, retries: int, is_passing: Callable[[Exception], bool]
    ) -> None:
        super().__init__(wrapped)
        self._retries = max(0, retries)
        self._is_passing = is_passing

    def __repr__(self) -> str:
        return f"RetryingModel({self.wrapped!r}, {self._retries})"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Make a request, and repeat it if it fails in passing."""
        settings, repeats = self._bounded(model_settings)
        most = self._retries
        if is_retried_as_a_whole.get():
            is_later = any(message.kind == "response" for message in messages)
            most = min(most, int(is_later))
        retries = (1 + most) // (1 + repeats) - 1
        for tries in range(1, 2 + max(0, retries)):
            try:
                response = await self.wrapped.request(messages, settings, model_request_parameters)
            except Exception as error:
                if tries > retries or not self._is_passing(error):
                    raise
                await asyncio.sleep(_PAUSES.pause(tries, error))
            else:
                return _ended(response)
        raise AssertionError  # the loop returns or raises

    def _bounded(self, settings: ModelSettings | None) -> tuple[ModelSettings | None, int]:
        """Return settings by which the client repeats nothing, and how often it still does."""
        client: Any = getattr(self.wrapped, "client", None)
        repeats = getattr(client, "max_retries", 0)
        if not isinstance(repeats, int) or repeats <= 0:
            return settings, 0
        if not _CAN_LIMIT_CLIENT or "max_retries" in self.wrapped.unsupported_settings:
            return settings, repeats
        limited: dict[str, Any] = {**(settings or {}), "max_retries": 0}
        return cast("ModelSettings", limited), 0


def _ended(response: ModelResponse) -> ModelResponse:
    """Return a response that a run can end with, if it says nothing."""
    kinds = {part.part_kind for part in response.parts if getattr(part, "content", None) != ""} - {
        "thinking"
    }
    if kinds or response.finish_reason in _CUT:
        return response
    kept = [part for part in response.parts if part.part_kind == "thinking"]
    return replace(response, parts=[*kept, TextPart("done")])
