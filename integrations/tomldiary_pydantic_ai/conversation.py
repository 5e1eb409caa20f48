"""Reading a conversation: what it was told of the memory, and what was said in one run of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.messages import ModelRequest, ModelResponse, TextContent, TextPart, UserPromptPart
from pydantic_core import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic_ai import RunContext
    from pydantic_ai.messages import ModelMessage

__all__ = ["answered", "as_data", "asked", "has_prompt", "prompt_words", "told"]

ORIGIN = "tomldiary.v1"
"""Marks what the diary put into a conversation; models do not see it."""


def _origin(item: object) -> tuple[str | None, str | None]:
    """Return who put a part into a prompt, and for which memory; None if a user may have said it."""
    metadata = item.metadata if isinstance(item, TextContent) else None
    if not isinstance(metadata, Mapping):
        return None, None
    marks = cast("Mapping[str, Any]", metadata)
    return marks.get("origin"), marks.get("scope")


def told(messages: Sequence[ModelMessage], scope: str) -> list[str]:
    """Return what a diary put into the part of a conversation that its model still sees, oldest first."""
    texts: list[str] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            if any(part.part_kind == "compaction" for part in message.parts):
                texts.clear()  # the provider's summary stands for all that came before
            continue
        for part in message.parts:
            if part.part_kind == "compaction":
                texts.clear()
            elif isinstance(part, UserPromptPart):
                texts += [
                    item.content
                    for item in _items(part)
                    if isinstance(item, TextContent) and _origin(item) == (ORIGIN, scope)
                ]
    return texts


def as_data(text: str, ctx: RunContext[Any], scope: str) -> ModelRequest:
    """Return a message of the user's channel that `told` knows again; it belongs to the run."""
    mark = {"origin": ORIGIN, "scope": scope}
    message = ModelRequest(parts=[UserPromptPart([TextContent(text, metadata=mark)])])
    message.run_id = ctx.run_id
    message.conversation_id = ctx.conversation_id
    return message


def has_prompt(message: ModelMessage | None) -> bool:
    """Tell whether a message is what a user said, rather than the results of tools."""
    if not isinstance(message, ModelRequest):
        return False
    kinds = {part.part_kind for part in message.parts}
    return "user-prompt" in kinds and "tool-return" not in kinds


def asked(messages: Sequence[ModelMessage], run_id: str | None, prompt: object) -> str:
    """Return what the user said in a run; its prompt, where the run has not got as far as a message."""
    texts = [
        words
        for message in messages
        # What stands beside the results of tools comes from tools.
        if has_prompt(message) and message.run_id == run_id
        for part in message.parts
        if isinstance(part, UserPromptPart) and (words := prompt_words(part.content))
    ]
    return "\n\n".join(texts) or prompt_words(prompt) or ""


def answered(messages: Sequence[ModelMessage], run_id: str | None, output: object = None) -> str:
    """Return what the assistant said in a run; its output as JSON, where that is no text."""
    texts = [
        part.content
        for message in messages
        if isinstance(message, ModelResponse) and message.run_id == run_id
        for part in message.parts
        if isinstance(part, TextPart) and part.content.strip()
    ]
    if output is not None and not isinstance(output, str):
        texts.append(to_json(output, fallback=str).decode())
    return "\n\n".join(texts)


def prompt_words(prompt: object) -> str | None:
    """Return the text of a prompt, which may be text, a sequence of parts, or nothing.

    What an application put into it, this one or another, is not the user's.
    """
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Sequence):
        return None
    texts: list[str] = []
    for item in cast("Sequence[Any]", prompt):
        text = item if isinstance(item, str) else getattr(item, "content", None)
        if isinstance(text, str) and _origin(item)[0] is None:
            texts.append(text)
    return "\n".join(texts) or None


def _items(part: UserPromptPart) -> Iterator[object]:
    if not isinstance(part.content, str):
        yield from part.content
