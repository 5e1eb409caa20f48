"""The text of a message's content: a string, or a list of typed parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tomldiary.ingest.json_values import as_list, as_object, as_text, is_list

if TYPE_CHECKING:
    from tomldiary.ingest.turns import Omissions

__all__ = ["content_text", "refers_to_tools"]

_TEXT_PARTS: Final = {"text", "input_text", "output_text", "text-plain"}
_TOOL_PARTS: Final = {
    "tool_use",
    "tool_call",
    "function_call",
    "server_tool_use",
    "server_tool_call",
}
_OTHER_PARTS: Final = {
    "audio": "audio part",
    "file": "file",
    "image": "image",
    "image_url": "image",
    "input_audio": "audio part",
    "input_file": "file",
    "input_image": "image",
    "reasoning": "reasoning part",
    "thinking": "reasoning part",
    "video": "video",
}


def content_text(content: object, omissions: Omissions, *, separator: str) -> str:
    """Return all text of a message's content; other parts are left out and counted."""
    if content is None:
        return ""
    if isinstance(content, str):
        return omissions.clean(content)
    if not is_list(content):
        omissions.leave_out(
            "content that is neither text nor a list of parts",
            "contents that are neither text nor a list of parts",
        )
        return ""
    texts = [_part_text(part, omissions) for part in content]
    return separator.join(omissions.clean(text) for text in texts if text)


def refers_to_tools(content: object) -> bool:
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
    if kind not in _TOOL_PARTS:
        if kind in _OTHER_PARTS:
            omissions.leave_out(_OTHER_PARTS[kind])
        else:
            omissions.leave_out("content part without text", "content parts without text")
    return ""
