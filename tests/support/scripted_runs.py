"""Runs of a pydantic-ai agent whose model does what a script says, and which end in several ways."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent, CancellationToken, UsageLimits
from pydantic_ai.exceptions import ModelHTTPError, RunCancelled, UsageLimitExceeded
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartStartEvent,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

WAYS = ("run", "sync", "stream", "left stream", "events", "left events", "iter", "left iter", "failed",
        "limited", "broken", "cancelled", "cancelled in a tool", "stopped", "stopped in a tool")  # fmt: skip
"""The ways to run an agent. In the last ones, and those that are left, it gives no result."""
_LAST_STEPS = {
    "failed": "fail",
    "cancelled": "hang",
    "cancelled in a tool": "wait",
    "stopped": "hang",
    "stopped in a tool": "wait",
    "broken": "fail_in_tool",
}


class Script:
    """A model that does one step after the other: it fails, hangs, answers, or calls the tools that the step names.

    Args:
        numbers: Numbers for the words of its answers.
        steps: The steps; after them, it answers.
    """

    def __init__(self, numbers: Iterator[int], steps: Sequence[str] = ()) -> None:
        self.numbers, self.steps = numbers, list(steps)
        self.given: list[str] = []
        """The words of its answers, without rejected ones."""
        self.shown: list[str] = []
        """The requests."""
        self.hangs = asyncio.Event()

    @property
    def model(self) -> FunctionModel:
        """The model."""
        return FunctionModel(self._respond, stream_function=self._stream)

    async def _respond(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.shown += [str(messages), str(info.instructions)]
        step = self.steps.pop(0) if self.steps else "answer"
        if step == "fail":
            raise ModelHTTPError(500, "scripted")
        if step == "hang":
            await self.hang()
        if step == "say_no":
            return ModelResponse([TextPart("No.")])
        if step == "order_no":
            return ModelResponse([ToolCallPart("order", {"what": "No."})])
        self.given.append(f"yes{next(self.numbers)}")
        text = f"{self.given[-1]} it is."
        if step == "order":
            return ModelResponse([ToolCallPart("order", {"what": text})])
        calls = [
            ToolCallPart(tool, {"query": "like"} if tool == "recall" else {})
            for tool in step.split("+")
            if tool != "answer"
        ]
        return ModelResponse([TextPart(text), *calls])

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        for number, part in enumerate((await self._respond(messages, info)).parts):
            if isinstance(part, ToolCallPart):
                arguments = part.args_as_json_str()
                yield {
                    number: DeltaToolCall(part.tool_name, arguments, tool_call_id=part.tool_call_id)
                }
            elif isinstance(part, TextPart):
                for piece in part.content.split():
                    yield f"{piece} "

    async def hang(self) -> None:
        """Wait until the run is cancelled."""
        self.hangs.set()
        await asyncio.Event().wait()

    async def run(
        self, agent: Agent[Any, Any], prompt: Any, way: str, *, falls_back: bool, **options: Any
    ) -> Any:
        """Return the result of a run, or None if it gave none."""
        self.steps += [_LAST_STEPS[way]] if way in _LAST_STEPS else []
        failing = Script(self.numbers, ["fail"] * 9).model
        options["model"] = FallbackModel(failing, self.model) if falls_back else self.model
        if way == "limited":
            options["usage_limits"] = UsageLimits(request_limit=1)
        token = options["cancellation_token"] = CancellationToken()
        ends = (
            ModelHTTPError,
            UsageLimitExceeded,
            LookupError,
            asyncio.CancelledError,
            RunCancelled,
        )
        with suppress(*ends, *((ExceptionGroup,) if falls_back else ())):
            if way == "sync":
                return await asyncio.to_thread(_in_own_loop, agent, prompt, options)
            if any(kind in way for kind in ("stream", "events", "iter")):
                return await _read(agent, prompt, way, options)
            task = asyncio.create_task(agent.run(prompt, **options))
            hangs = asyncio.create_task(self.hangs.wait())
            await asyncio.wait([task, hangs], return_when="FIRST_COMPLETED")
            hangs.cancel()
            if "cancelled" in way:
                task.cancel()
            if "stopped" in way:
                token.cancel()
            return await task
        return None


def _in_own_loop(agent: Agent[Any, Any], prompt: Any, options: dict[str, Any]) -> Any:
    """Return the result of `run_sync` in a thread."""
    loop = asyncio.new_event_loop()  # else the framework makes one and does not close it
    asyncio.set_event_loop(loop)
    try:
        return agent.run_sync(prompt, **options)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _read(agent: Agent[Any, Any], prompt: Any, way: str, options: dict[str, Any]) -> Any:
    """Return the result of a run that is read step by step, or None if the reader leaves it."""
    if "stream" in way:
        async with agent.run_stream(prompt, **options) as streamed:
            async for _ in streamed.stream_response(debounce_by=None):
                if way == "left stream":
                    return None
        return streamed
    if "events" in way:
        async with agent.run_stream_events(prompt, **options) as events:
            async for event in events:
                if way == "left events" and isinstance(event, PartStartEvent):
                    return None
        return events.result
    async with agent.iter(prompt, **options) as steps:
        async for node in steps:
            if way == "left iter" and Agent.is_call_tools_node(node):
                return None
    return steps.result
