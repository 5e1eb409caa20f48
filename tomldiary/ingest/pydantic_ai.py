"""Message histories of pydantic-ai, in the JSON that its `ModelMessagesTypeAdapter` writes.

A message is a request or a response with parts; `part_kind` is the type of a part.
"""

from __future__ import annotations

from typing import Final

from tomldiary.ingest.conversations import name_of
from tomldiary.ingest.json_values import JsonObject, as_list, as_object, as_text, json_time
from tomldiary.ingest.turns import Omissions, Utterance

__all__ = ["read_message", "recognises"]

_SESSION_KEYS: Final = ("conversation_id",)
_SILENT_PARTS: Final = {
    "builtin-tool-call": "tool call",
    "builtin-tool-return": "tool result",
    "compaction": "compaction summary",
    "file": "file",
    "instruction": "instruction",
    "retry-prompt": "retry prompt",
    "system-prompt": "system prompt",
    "thinking": "thinking part",
    "tool-call": "tool call",
    "tool-return": "tool result",
    "user-prompt": "tool prompt",
}


def recognises(raw: JsonObject) -> bool:
    """Return whether a record is a request or a response with parts."""
    return as_text(raw.get("kind")) in ("request", "response") and isinstance(
        raw.get("parts"), list
    )


def read_message(raw: JsonObject, omissions: Omissions) -> Utterance | None:
    """Return the utterance; None for a request that has only instructions or tool results."""
    is_request = as_text(raw.get("kind")) == "request"
    spoken_kind = "user-prompt" if is_request else "text"
    parts = [
        (as_text(part.get("part_kind")), part) for part in map(as_object, as_list(raw.get("parts")))
    ]
    # Tools wrote the prompts beside their results. A user interface, which gives no run, puts those of the user there.
    if raw.get("run_id") and any(kind == "tool-return" for kind, _ in parts):
        spoken_kind = ""
    texts: list[str] = []
    spoke = calls_tools = False
    when = None
    for kind, part in parts:
        if kind == spoken_kind:
            spoke = True
            when = when or json_time(part.get("timestamp"))
            texts.extend(_texts(part.get("content"), omissions))
        elif kind == "speech" and as_text(part.get("transcript")):
            spoke = True
            texts.append(omissions.clean(as_text(part["transcript"])))
        else:
            calls_tools = calls_tools or kind in ("tool-call", "builtin-tool-call")
            if kind in _SILENT_PARTS:
                omissions.leave_out(_SILENT_PARTS[kind])
            else:
                omissions.leave_out("part of an unknown kind", "parts of an unknown kind")
    if is_request and not spoke:
        return None
    return Utterance(
        role="user" if is_request else "assistant",
        text="\n".join(texts),
        when=when or json_time(raw.get("timestamp")),
        session=name_of(raw, _SESSION_KEYS, omissions),
        calls_tools=calls_tools,
    )


def _texts(content: object, omissions: Omissions) -> list[str]:
    """Return the texts of a prompt, which is a string, or a list of strings, text parts, images, files and others."""
    if isinstance(content, str):
        return [omissions.clean(content)]
    found: list[str] = []
    for item in as_list(content):
        text = item if isinstance(item, str) else as_object(item).get("content")
        if as_object(as_object(item).get("metadata")).get("origin") is not None:
            # An application added it, such as the memory of a diary.
            omissions.leave_out("marked text")
        elif isinstance(text, str):
            found.append(omissions.clean(text))
        elif as_text(as_object(item).get("kind")) != "cache-point":
            omissions.leave_out(
                "image, file or other part of a prompt", "images, files or other parts of prompts"
            )
    if content is not None and not isinstance(content, list):
        omissions.leave_out("prompt that is not text", "prompts that are not text")
    return found
