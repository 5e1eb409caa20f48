"""Data exports of ChatGPT and Claude, both named `conversations.json`.

ChatGPT stores each conversation as a tree of messages. Only the branch that it displays is read, from `current_node`
back to the root. Replaced answers and hidden messages are left out. Claude stores a list, `chat_messages`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tomldiary.ingest.content import content_text, refers_to_tools
from tomldiary.ingest.json_values import (
    JsonObject,
    as_list,
    as_object,
    as_text,
    first_moment,
)
from tomldiary.ingest.turns import Omissions, Utterance

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "CLAUDE_MESSAGES",
    "message_text",
    "messages_of",
    "read_chatgpt",
    "read_claude",
    "recognises_chatgpt",
    "recognises_claude",
]

CLAUDE_MESSAGES: Final = "chat_messages"

_EVERYBODY: Final = "all"
_TEXTS: Final = {"text", "multimodal_text", "code"}
_SPOKEN: Final = "audio_transcription"
_ROLES: Final = ("human", "assistant")


def messages_of(conversation: JsonObject) -> list[JsonObject]:
    """Return the messages of the displayed branch of a conversation, oldest first."""
    nodes = as_object(conversation.get("mapping"))
    branch = [
        as_object(as_object(nodes[name]).get("message")) for name in _branch(conversation, nodes)
    ]
    return [message for message in reversed(branch) if message]


def _branch(conversation: JsonObject, nodes: JsonObject) -> Iterator[str]:
    """Yield the names of the nodes from `current_node` to the root; without `current_node`, from the last node."""
    name = as_text(conversation.get("current_node")) or next(reversed(nodes), "")
    seen: set[str] = set()
    while name in nodes and name not in seen:
        seen.add(name)
        yield name
        name = as_text(as_object(nodes[name]).get("parent"))


def recognises_chatgpt(raw: JsonObject) -> bool:
    """Return whether a record is a message of a ChatGPT export."""
    return bool(as_text(as_object(raw.get("author")).get("role"))) and "content" in raw


def message_text(raw: JsonObject) -> str:
    """Return all text of a ChatGPT message."""
    content = as_object(raw.get("content"))
    parts = [_part_text(part) for part in as_list(content.get("parts"))]
    return "\n".join(part for part in [as_text(content.get("text")), *parts] if part)


def _part_text(part: object) -> str:
    """Return the text of a part, or the transcript of a spoken part; otherwise ""."""
    spoken = as_object(part)
    return as_text(spoken.get("text") if spoken.get("content_type") == _SPOKEN else part)


def read_chatgpt(raw: JsonObject, omissions: Omissions) -> Utterance | None:
    """Return the utterance; None for hidden messages, other content, and roles except user and assistant."""
    role = as_text(as_object(raw.get("author")).get("role"))
    content = as_object(raw.get("content"))
    if role not in ("user", "assistant"):
        omissions.leave_out(f"{role} message")
        return None
    if as_object(raw.get("metadata")).get("is_visually_hidden_from_conversation"):
        omissions.leave_out("hidden message")
        return None
    if as_text(content.get("content_type")) not in _TEXTS:
        omissions.leave_out("message that is not text", "messages that are not text")
        return None
    for part in as_list(content.get("parts")):
        if as_object(part) and not _part_text(part):
            omissions.leave_out("image or other part", "images or other parts")
    is_for_tool = as_text(raw.get("recipient") or _EVERYBODY) != _EVERYBODY
    return Utterance(
        role="user" if role == "user" else "assistant",
        text="" if is_for_tool else omissions.clean(message_text(raw)),
        when=first_moment(raw, ("create_time",)),
        calls_tools=is_for_tool,
    )


def recognises_claude(raw: JsonObject) -> bool:
    """Return whether a record is a message of a Claude export."""
    return raw.get("sender") in _ROLES and ("text" in raw or "content" in raw)


def read_claude(raw: JsonObject, omissions: Omissions) -> Utterance | None:
    """Return the utterance; attached files are left out and counted."""
    for _ in (*as_list(raw.get("attachments")), *as_list(raw.get("files"))):
        omissions.leave_out("attached file")
    parts = raw.get("content")
    text = (
        content_text(parts, omissions, separator="\n")
        if as_list(parts)
        else as_text(raw.get("text"))
    )
    return Utterance(
        role="user" if raw.get("sender") == "human" else "assistant",
        text=omissions.clean(text),
        when=first_moment(raw, ("created_at",)),
        calls_tools=refers_to_tools(parts),
    )
