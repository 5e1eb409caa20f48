"""A realtime model that hears one utterance and answers it, and the text that follows, with the same words."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydantic_ai.realtime.codec import (
    InputTranscript,
    OutputTranscript,
    RealtimeConnection,
    ResponseDone,
)
from pydantic_ai.realtime.lifecycle import InferredLifecycle
from pydantic_ai.realtime.model import RealtimeModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["RepeatingModel"]


class _Connection(RealtimeConnection):
    def __init__(self, heard: str, says: str) -> None:
        self._answer = (OutputTranscript(says, is_final=True), ResponseDone())
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._lifecycle = InferredLifecycle()
        for event in (InputTranscript(heard, is_final=True), *self._answer):
            self._events.put_nowait(event)

    async def send(self, content: Any) -> Any:
        with self._lifecycle.sending(content):
            for event in (*self._answer, None):
                self._events.put_nowait(event)
        return self._lifecycle.take_pending()

    async def frames(self) -> AsyncIterator[Any]:
        async for frame in self._lifecycle.frames(self._all()):
            yield frame

    async def _all(self) -> AsyncIterator[Any]:
        while (event := await self._events.get()) is not None:
            yield event


class RepeatingModel(RealtimeModel):
    """Ends the session after the answer to the text; `parameters` are those of the session."""

    def __init__(self, heard: str, says: str) -> None:
        self._words = heard, says
        self.parameters: Any = None

    @property
    def model_name(self) -> str:
        return "repeating"

    @property
    def system(self) -> str:
        return "repeating"

    @asynccontextmanager
    async def connect(self, **session: Any) -> AsyncIterator[_Connection]:
        self.parameters = session["model_request_parameters"]
        yield _Connection(*self._words)
