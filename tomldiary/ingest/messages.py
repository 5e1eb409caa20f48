"""The formats that consist of messages: OpenAI, LangChain, pydantic-ai, and the exports of ChatGPT and Claude.

Each format recognises its messages and reads one as an utterance. All are read as data. The class that a dump names is
never imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from tomldiary.agents.turn_messages import is_generated
from tomldiary.ingest.source import (
    JsonObject,
    as_list,
    as_object,
    as_text,
    first_moment,
    is_list,
    json_time,
)
from tomldiary.ingest.turns import Omissions, Utterance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MOMENT_KEYS: Final = ("create_time", "created_at", "timestamp", "created")
SESSION_KEYS: Final = ("session_id", "conversation_id", "thread_id")
CONVERSATION_KEYS: Final = ("messages", "chat_messages")
"""The keys of the list of messages in a conversation."""
NAME_KEYS: Final = (*SESSION_KEYS, "id", "uuid")
"""The keys of the name of a conversation."""


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """A format that consists of messages: the functions that recognise and read a message."""

    name: str
    recognises: Callable[[JsonObject], bool]
    read_message: Callable[[JsonObject, Omissions], Utterance | None]
    """Returns None, and counts an omission, if a message is not from the user or the assistant."""


def name_of(source: JsonObject, keys: Iterable[str], omissions: Omissions) -> str | None:
    """Return the first usable id among the values of some keys as text; None if there is none."""
    for key in keys:
        value = source.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return omissions.clean(value.strip())
    return None


# Content: a string, or a list of typed parts


_TEXT_PARTS: Final = {"text", "input_text", "output_text", "text-plain"}
_TOOL_PARTS: Final = {
    "tool_use", "tool_call", "function_call", "server_tool_use", "server_tool_call",
}  # fmt: skip
_OTHER_PARTS: Final = {
    "audio", "file", "image", "image_url", "input_audio", "input_file", "input_image", "reasoning", "thinking", "video",
}  # fmt: skip


def _content_text(content: object, omissions: Omissions, *, separator: str) -> str:
    """Return all text of a message's content; other parts are left out and counted."""
    if content is None:
        return ""
    if isinstance(content, str):
        return omissions.clean(content)
    if not is_list(content):
        omissions.leave_out("content", "of an unknown type")
        return ""
    texts = [_part_text(part, omissions) for part in content]
    return separator.join(omissions.clean(text) for text in texts if text)


def _refers_to_tools(content: object) -> bool:
    """Return whether one of the content's parts is a tool call."""
    return any(as_text(as_object(part).get("type")) in _TOOL_PARTS for part in as_list(content))


def _part_text(part: object, omissions: Omissions) -> str:
    if isinstance(part, str):
        return part
    fields = as_object(part)
    kind = as_text(fields.get("type"))
    if kind == "refusal":
        return as_text(fields.get("refusal"))
    text = fields.get("text")
    if kind in _TEXT_PARTS:
        # The Assistants API has the text in another object: {"text": {"value": …, "annotations": […]}}.
        found = text if isinstance(text, str) else as_object(text).get("value")
        if isinstance(found, str):
            return found
    if kind in _OTHER_PARTS:
        omissions.leave_out(f"{kind} part")
    elif kind not in _TOOL_PARTS:
        omissions.leave_out("content part", "without text")
    return ""


# OpenAI's APIs and fine-tuning files: `{"role": …, "content": …}`, and items of the Responses API


_SILENT_ROLES: Final = {"system", "developer", "tool", "function"}
_SILENT_ITEMS: Final = {"function_call", "function_call_output", "reasoning"}


def _is_openai(raw: JsonObject) -> bool:
    """Return whether a record is a message or an item of this format."""
    if isinstance(raw.get("role"), str):
        return "content" in raw or "tool_calls" in raw or "function_call" in raw
    return as_text(raw.get("type")) in _SILENT_ITEMS


def _openai(raw: JsonObject, omissions: Omissions) -> Utterance | None:
    role = as_text(raw.get("role"))
    if role not in ("user", "assistant"):
        if role in _SILENT_ROLES:
            omissions.leave_out(f"{role} message")
        elif as_text(raw.get("type")) in _SILENT_ITEMS:
            omissions.leave_out("tool or reasoning item")
        else:
            omissions.leave_out("message", "with an unknown role")
        return None
    if role == "user":
        omissions.hear(as_text(raw.get("name")))
    content = raw.get("content")
    text = _content_text(content, omissions, separator="\n")
    return Utterance(
        role="user" if role == "user" else "assistant",
        text=text or omissions.clean(as_text(raw.get("refusal"))),
        when=first_moment(raw, MOMENT_KEYS),
        session=name_of(raw, SESSION_KEYS, omissions),
        calls_tools=bool(raw.get("tool_calls") or raw.get("function_call"))
        or _refers_to_tools(content),
    )


# LangChain writes messages in three formats:
# - `messages_to_dict`: `{"type": "human", "data": {"content": …}}`
# - `dumpd` and `dumps`: `{"lc": 1, "type": "constructor", "id": […, "HumanMessage"], "kwargs": {"content": …}}`
# - `model_dump`: `{"type": "human", "content": …}`


_LANGCHAIN_ROLES: Final[dict[str, Literal["user", "assistant"]]] = {
    "human": "user",
    "user": "user",
    "ai": "assistant",
    "assistant": "assistant",
}
_LANGCHAIN_KINDS: Final = {"human", "ai", "chat", "system", "tool", "function", "remove"}


def _is_langchain(raw: JsonObject) -> bool:
    """Return whether a record is a message in one of the three formats."""
    kind, fields = _unwrap(raw)
    return kind in _LANGCHAIN_KINDS and fields is not None


def _langchain(raw: JsonObject, omissions: Omissions) -> Utterance | None:
    kind, fields = _unwrap(raw)
    fields = fields or {}
    role = _LANGCHAIN_ROLES.get(as_text(fields.get("role")).lower() if kind == "chat" else kind)
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
        text=_content_text(content, omissions, separator=""),
        when=when,
        calls_tools=bool(fields.get("tool_calls") or extra.get("tool_calls"))
        or _refers_to_tools(content),
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


# pydantic-ai, as its `ModelMessagesTypeAdapter` writes JSON: a request or a response with parts


_SILENT_PARTS: Final = {
    "builtin-tool-call", "builtin-tool-return", "compaction", "file", "instruction", "retry-prompt", "speech",
    "system-prompt", "thinking", "tool-call", "tool-return",
}  # fmt: skip


def _is_pydantic_ai(raw: JsonObject) -> bool:
    """Return whether a record is a request or a response with parts."""
    return as_text(raw.get("kind")) in ("request", "response") and isinstance(
        raw.get("parts"), list
    )


def _pydantic_ai(raw: JsonObject, omissions: Omissions) -> Utterance | None:
    # A request that has only instructions or tool results is no utterance.
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
            texts.extend(_prompt_texts(part.get("content"), omissions))
        elif kind == "speech" and as_text(part.get("transcript")):
            spoke = True
            texts.append(omissions.clean(as_text(part["transcript"])))
        else:
            calls_tools = calls_tools or kind in ("tool-call", "builtin-tool-call")
            if kind in _SILENT_PARTS:
                omissions.leave_out(f"{kind} part")
            elif kind == "user-prompt":
                omissions.leave_out(f"{kind} part", "of a tool")
            else:
                omissions.leave_out("part", "of an unknown kind")
    if is_request and not spoke:
        return None
    return Utterance(
        role="user" if is_request else "assistant",
        text="\n".join(texts),
        when=when or json_time(raw.get("timestamp")),
        session=name_of(raw, ("conversation_id",), omissions),
        calls_tools=calls_tools,
    )


def _prompt_texts(content: object, omissions: Omissions) -> list[str]:
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
            omissions.leave_out("prompt part", "without text")
    if content is not None and not isinstance(content, list):
        omissions.leave_out("prompt", "without text")
    return found


# The exports of ChatGPT and Claude are both named `conversations.json`. ChatGPT stores each conversation as a tree of
# messages. Only the branch that it displays is read, from `current_node` back to the root. Replaced answers and hidden
# messages are left out. Claude stores a list, `chat_messages`.


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


def _is_chatgpt(raw: JsonObject) -> bool:
    """Return whether a record is a message of a ChatGPT export."""
    return bool(as_text(as_object(raw.get("author")).get("role"))) and "content" in raw


def message_text(raw: JsonObject) -> str:
    """Return all text of a ChatGPT message."""
    content = as_object(raw.get("content"))
    parts = [_chatgpt_part(part) for part in as_list(content.get("parts"))]
    return "\n".join(part for part in [as_text(content.get("text")), *parts] if part)


def _chatgpt_part(part: object) -> str:
    """Return the text of a part, or the transcript of a spoken part; otherwise ""."""
    spoken = as_object(part)
    return as_text(spoken.get("text") if spoken.get("content_type") == _SPOKEN else part)


def _chatgpt(raw: JsonObject, omissions: Omissions) -> Utterance | None:
    role = as_text(as_object(raw.get("author")).get("role"))
    content = as_object(raw.get("content"))
    if role not in ("user", "assistant"):
        omissions.leave_out(f"{role} message")
        return None
    if as_object(raw.get("metadata")).get("is_visually_hidden_from_conversation"):
        omissions.leave_out("hidden message")
        return None
    if as_text(content.get("content_type")) not in _TEXTS:
        omissions.leave_out("message", "of another type than text")
        return None
    for part in as_list(content.get("parts")):
        if as_object(part) and not _chatgpt_part(part):
            omissions.leave_out("part", "without text")
    is_for_tool = as_text(raw.get("recipient") or _EVERYBODY) != _EVERYBODY
    return Utterance(
        role="user" if role == "user" else "assistant",
        text="" if is_for_tool else omissions.clean(message_text(raw)),
        when=first_moment(raw, ("create_time",)),
        calls_tools=is_for_tool,
    )


def _is_claude(raw: JsonObject) -> bool:
    """Return whether a record is a message of a Claude export."""
    return raw.get("sender") in _ROLES and ("text" in raw or "content" in raw)


def _claude(raw: JsonObject, omissions: Omissions) -> Utterance | None:
    for _ in (*as_list(raw.get("attachments")), *as_list(raw.get("files"))):
        omissions.leave_out("attached file")
    parts = raw.get("content")
    text = (
        _content_text(parts, omissions, separator="\n")
        if as_list(parts)
        else as_text(raw.get("text"))
    )
    return Utterance(
        role="user" if raw.get("sender") == "human" else "assistant",
        text=omissions.clean(text),
        when=first_moment(raw, ("created_at",)),
        calls_tools=_refers_to_tools(parts),
    )


MESSAGE_FORMATS: Final = {
    known.name: known
    for known in (
        MessageFormat("openai", _is_openai, _openai),
        MessageFormat("langchain", _is_langchain, _langchain),
        MessageFormat("pydantic-ai", _is_pydantic_ai, _pydantic_ai),
        MessageFormat("chatgpt", _is_chatgpt, _chatgpt),
        MessageFormat("claude", _is_claude, _claude),
    )
}
"""The formats by name. If several recognise a message, the last one reads it: a LangChain message may have a "role" too."""
