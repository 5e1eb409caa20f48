"""Messages in the format of OpenAI's APIs and fine-tuning files: `{"role": …, "content": …}`.

Items of the Responses API (`{"type": "message", "role": …}`) are also read.
"""

from __future__ import annotations

from typing import Final

from tomldiary.ingest.content import content_text, refers_to_tools
from tomldiary.ingest.conversations import MOMENT_KEYS, SESSION_KEYS, name_of
from tomldiary.ingest.json_values import JsonObject, as_text, first_moment
from tomldiary.ingest.turns import Omissions, Utterance

__all__ = ["read_message", "recognises"]

_SILENT_ROLES: Final = {"system", "developer", "tool", "function"}
_SILENT_ITEMS: Final = {"function_call", "function_call_output", "reasoning"}


def recognises(raw: JsonObject) -> bool:
    """Return whether a record is a message or an item of this format."""
    if isinstance(raw.get("role"), str):
        return "content" in raw or "tool_calls" in raw or "function_call" in raw
    return as_text(raw.get("type")) in _SILENT_ITEMS


def read_message(raw: JsonObject, omissions: Omissions) -> Utterance | None:
    """Return the utterance; None if the message is not from the user or the assistant."""
    role = as_text(raw.get("role"))
    if role not in ("user", "assistant"):
        if role in _SILENT_ROLES:
            omissions.leave_out(f"{role} message")
        elif as_text(raw.get("type")) in _SILENT_ITEMS:
            omissions.leave_out("tool or reasoning item")
        else:
            omissions.leave_out("message with an unknown role", "messages with an unknown role")
        return None
    if role == "user":
        omissions.hear(as_text(raw.get("name")))
    content = raw.get("content")
    text = content_text(content, omissions, separator="\n")
    return Utterance(
        role="user" if role == "user" else "assistant",
        text=text or omissions.clean(as_text(raw.get("refusal"))),
        when=first_moment(raw, MOMENT_KEYS),
        session=name_of(raw, SESSION_KEYS, omissions),
        calls_tools=bool(raw.get("tool_calls") or raw.get("function_call"))
        or refers_to_tools(content),
    )
