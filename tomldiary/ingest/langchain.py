"""Dumps of LangChain messages, in the three formats that LangChain writes.

- `messages_to_dict`: `{"type": "human", "data": {"content": …}}`
- `dumpd` and `dumps`: `{"lc": 1, "type": "constructor", "id": […, "HumanMessage"], "kwargs": {"content": …}}`
- `model_dump`: `{"type": "human", "content": …}`

All are read as data. The class that a dump names is never imported.
"""

from __future__ import annotations

from typing import Final, Literal

from tomldiary.agents.turn_messages import is_generated
from tomldiary.ingest.content import content_text, refers_to_tools
from tomldiary.ingest.conversations import MOMENT_KEYS
from tomldiary.ingest.json_values import JsonObject, as_list, as_object, as_text, first_moment
from tomldiary.ingest.turns import Omissions, Utterance

__all__ = ["read_message", "recognises"]

_ROLES: Final[dict[str, Literal["user", "assistant"]]] = {
    "human": "user",
    "user": "user",
    "ai": "assistant",
    "assistant": "assistant",
}
_KINDS: Final = {"human", "ai", "chat", "system", "tool", "function", "remove"}


def recognises(raw: JsonObject) -> bool:
    """Return whether a record is a message in one of the three formats."""
    kind, fields = _unwrap(raw)
    return kind in _KINDS and fields is not None


def read_message(raw: JsonObject, omissions: Omissions) -> Utterance | None:
    """Return the utterance; None if the message is not from the user or the assistant."""
    kind, fields = _unwrap(raw)
    fields = fields or {}
    role = _ROLES.get(as_text(fields.get("role")).lower() if kind == "chat" else kind)
    if role is None:
        omissions.leave_out(f"{kind} message")
        return None
    extra = as_object(fields.get("additional_kwargs"))
    if role == "user" and is_generated(extra, as_text(fields.get("name"))):
        omissions.leave_out("generated message")
        return None
    content = fields.get("content")
    when = None
    for place in (fields, extra, as_object(fields.get("response_metadata"))):
        when = when or first_moment(place, MOMENT_KEYS)
    return Utterance(
        role=role,
        # Without a separator, like LangChain's `.text`, because blocks may be pieces of one sentence.
        text=content_text(content, omissions, separator=""),
        when=when,
        calls_tools=bool(fields.get("tool_calls") or extra.get("tool_calls"))
        or refers_to_tools(content),
    )


def _unwrap(raw: JsonObject) -> tuple[str, JsonObject | None]:
    """Return the message's kind ("human", "ai", …) and its fields; the fields are None if they are missing."""
    name = as_text(raw.get("type"))
    fields: JsonObject | None = None
    if "lc" in raw:
        path = as_list(raw.get("id"))
        name = as_text(path[-1]) if path else ""
        if isinstance(raw.get("kwargs"), dict):
            fields = as_object(raw["kwargs"])
    elif isinstance(raw.get("data"), dict):
        fields = as_object(raw["data"])
    elif "content" in raw:
        fields = raw
    return name.removesuffix("Chunk").removesuffix("Message").lower(), fields
