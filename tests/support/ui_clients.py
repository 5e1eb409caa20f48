"""Clients of pydantic-ai's user interfaces, in process: they keep the messages of a chat, and send all of them again."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

Message = dict[str, Any]
"""A message of a client, or a part of one, as it is sent."""
PNG = "eA=="
TOOL = {"name": "look_outside", "description": "", "parameters": {"type": "object"}}
"""A tool of the front end."""


@dataclass(eq=False)
class Chat:
    """A conversation as its client shows it."""

    id: str
    messages: list[Message] = field(default_factory=list[Message])
    ids: Iterator[int] = field(default_factory=itertools.count)
    error: str = ""
    """Why the last request failed."""

    def new_id(self) -> str:
        return f"{self.id}-{next(self.ids)}"


class Client(Protocol):
    """A protocol of user interfaces."""

    adapter: Any
    """The adapter of pydantic-ai."""
    options: dict[str, Any]
    """Its options."""

    def user(self, id_: str, texts: list[str], *, has_file: bool) -> Message:
        """Return a message of the user."""
        ...

    def open_calls(self, chat: Chat) -> list[Message]:
        """Return the tool calls that wait for the user or for the front end."""
        ...

    def reply(self, chat: Chat, calls: list[Message], *, approves: bool) -> dict[str, Any]:
        """Answer open tool calls, and return what the next request has besides the messages."""
        ...

    async def send(
        self, app: Any, chat: Chat, *, regenerate: bool, stop_after: int | None, extra: Any
    ) -> None:
        """Send the chat, and add the answer to it. Disconnect after some events, if `stop_after` is given."""
        ...


async def exchange(app: Any, body: Any, stop_after: int | None) -> list[dict[str, Any]]:
    """Post a body to an ASGI app, and return the events of the answer until the client disconnects."""
    events: list[dict[str, Any]] = []
    left = asyncio.Event()
    requests = iter([{"type": "http.request", "body": json.dumps(body).encode()}])
    status, rest = 0, ""

    async def receive() -> dict[str, Any]:
        for request in requests:
            return request
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status, rest
        await asyncio.sleep(0)  # as a server lets other tasks run
        status = message.get("status", status)
        *lines, rest = (rest + message.get("body", b"").decode()).split("\n")
        for line in lines:
            if line.startswith("data: {") and not left.is_set():
                events.append(json.loads(line.removeprefix("data: ")))
                if len(events) == stop_after:
                    left.set()

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
        "path": "/", "query_string": b"", "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    await app(scope, receive, send)
    assert status == 200, rest
    return events


class VercelClient:
    """`useChat` of Vercel's AI SDK."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self.options: dict[str, Any] = {"sdk_version": 6}

    def user(self, id_: str, texts: list[str], *, has_file: bool) -> Message:
        file = {"type": "file", "mediaType": "image/png", "url": f"data:image/png;base64,{PNG}"}
        parts = [{"type": "text", "text": text} for text in texts]
        return {"id": id_, "role": "user", "parts": [file, *parts] if has_file else parts}

    def open_calls(self, chat: Chat) -> list[Message]:
        return [
            part
            for message in chat.messages[-1:]
            for part in message["parts"]
            if part.get("state") == "approval-requested"
        ]

    def reply(self, chat: Chat, calls: list[Message], *, approves: bool) -> dict[str, Any]:
        for part in calls:
            approval = {**part["approval"], "approved": approves}
            part.update(state="approval-responded", approval=approval)
        return {}

    async def send(
        self, app: Any, chat: Chat, *, regenerate: bool, stop_after: int | None, extra: Any
    ) -> None:
        trigger = "regenerate-message" if regenerate else "submit-message"
        body = {"id": chat.id, "messages": chat.messages, "trigger": trigger, **extra}
        is_continued = chat.messages[-1]["role"] == "assistant"
        new = {"id": chat.new_id(), "role": "assistant", "parts": []}
        parts = (chat.messages[-1] if is_continued else new)["parts"]
        chat.error = ""

        def called(event: Message) -> Message:
            for part in parts:
                if part.get("toolCallId") == event["toolCallId"]:
                    return part
            parts.append({"type": f"tool-{event['toolName']}", "toolCallId": event["toolCallId"]})
            return parts[-1]

        for event in await exchange(app, body, stop_after):
            match event["type"]:
                case "start-step":
                    parts.append({"type": "step-start"})
                case "text-start" | "reasoning-start":
                    kind = event["type"].removesuffix("-start")
                    parts.append({"type": kind, "text": "", "state": "streaming"})
                case "text-delta" | "reasoning-delta":
                    parts[-1]["text"] += event["delta"]
                case "text-end" | "reasoning-end":
                    parts[-1]["state"] = "done"
                case "tool-approval-request":
                    approval = {"id": event["approvalId"]}
                    called(event).update(state="approval-requested", approval=approval)
                case "tool-input-available" | "tool-output-available" | "tool-output-denied":
                    values = {key: event[key] for key in ("input", "output") if key in event}
                    called(event).update(state=event["type"].removeprefix("tool-"), **values)
                case "error":
                    chat.error = event["errorText"]
                case _:
                    pass
        if not is_continued and any(part["type"] != "step-start" for part in parts):
            chat.messages.append(new)


class AgUiClient:
    """A client of the AG-UI protocol."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        self.options: dict[str, Any] = {}

    def user(self, id_: str, texts: list[str], *, has_file: bool) -> Message:
        source = {"type": "data", "value": PNG, "mimeType": "image/png"}
        content: list[Message] = [{"type": "text", "text": text} for text in texts]
        if has_file:
            content.append({"type": "image", "source": source})
        is_plain = len(content) == 1
        return {"id": id_, "role": "user", "content": texts[0] if is_plain else content}

    def open_calls(self, chat: Chat) -> list[Message]:
        since = itertools.takewhile(lambda each: each["role"] != "user", reversed(chat.messages))
        answered = {message.get("toolCallId") for message in chat.messages}
        return [
            call
            for message in since
            for call in message.get("toolCalls", ())
            if call["id"] not in answered and call["function"]["name"] in {"pay", TOOL["name"]}
        ]

    def reply(self, chat: Chat, calls: list[Message], *, approves: bool) -> dict[str, Any]:
        resumed: list[Message] = []
        for call in calls:
            if call["function"]["name"] == "pay":
                entry = {"interruptId": f"int-{call['id']}", "status": "resolved"}
                resumed.append({**entry, "payload": {"approved": approves}})
            else:
                result = {"id": chat.new_id(), "role": "tool", "toolCallId": call["id"]}
                chat.messages.append({**result, "content": "It rains."})
        return {"resume": resumed} if resumed else {}

    async def send(
        self,
        app: Any,
        chat: Chat,
        *,
        regenerate: bool,
        stop_after: int | None,
        extra: Any,
    ) -> None:
        body = {
            "threadId": chat.id, "runId": chat.new_id(), "state": {}, "messages": chat.messages, "tools": [TOOL],
            "context": [], "forwardedProps": {}, **extra,
        }  # fmt: skip
        events = await exchange(app, body, stop_after)
        chat.error = ""
        made: dict[str, Message] = {}
        calls: dict[str, Message] = {}

        def message(id_: str, role: str) -> Message:
            if id_ not in made:
                made[id_] = {"id": id_, "role": role, "content": ""}
                chat.messages.append(made[id_])
            return made[id_]

        for event in events:
            match event["type"]:
                case "TEXT_MESSAGE_START":
                    message(event["messageId"], "assistant")
                case "REASONING_MESSAGE_START":
                    message(event["messageId"], "reasoning")
                case "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT":
                    made[event["messageId"]]["content"] += event["delta"]
                case "TOOL_CALL_START":
                    function = {"name": event["toolCallName"], "arguments": ""}
                    call = {"id": event["toolCallId"], "type": "function", "function": function}
                    calls[event["toolCallId"]] = call
                    caller = message(event.get("parentMessageId") or chat.new_id(), "assistant")
                    caller.setdefault("toolCalls", []).append(call)
                case "TOOL_CALL_ARGS":
                    calls[event["toolCallId"]]["function"]["arguments"] += event["delta"]
                case "TOOL_CALL_RESULT":
                    result = {"id": event["messageId"], "role": "tool"}
                    result |= {key: event[key] for key in ("toolCallId", "content")}
                    chat.messages.append(result)
                case "RUN_ERROR":
                    chat.error = event["message"]
                case _:
                    pass
