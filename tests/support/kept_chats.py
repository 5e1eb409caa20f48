"""Conversations with pydantic-ai agents as their hosts keep them: complete, shortened, or without ids and times."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextContent,
    TextPart,
    UserPromptPart,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXTS = ("texts", "interface")
WITHOUT_IDS = (*TEXTS, "bare")
KEPT = ("messages", "dumped", "last", "summary", "new times", "no tools", "no memory", *WITHOUT_IDS)
"""What a host keeps; an interface puts the prompt at the end of the history."""
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOTE = TextContent("It is noon.", metadata={"origin": "a clock"})
"""A text of the application in a prompt."""


@dataclass(eq=False)
class Said:
    """What a user said once."""

    word: str
    is_recorded: bool = False

    @property
    def user(self) -> str:
        return self.word.rstrip("0123456789")

    @property
    def text(self) -> str:
        return f"I like {self.word}."


class Words(NamedTuple):
    """What a user says to a run."""

    said: Sequence[Said]
    prompt: Any
    before: Sequence[ModelMessage]
    """Messages at the end of the history."""


def reworded(messages: list[ModelMessage], *, is_bare: bool = False) -> list[ModelMessage]:
    """Return messages as a history processor rewrites them, or as a host keeps them without ids and times."""
    made = copy.deepcopy(messages)
    for message in made:
        if is_bare:
            message.run_id = message.conversation_id = message.metadata = None
        for number, part in enumerate(message.parts):
            if isinstance(message, ModelRequest) and isinstance(part, UserPromptPart):
                items = [part.content] if isinstance(part.content, str) else part.content
                texts = [getattr(one, "content", one) for one in items if one != NOTE]
                text = "\n".join(one for one in texts if isinstance(one, str))
                if is_bare:
                    message.parts = [*message.parts]
                    message.parts[number] = UserPromptPart(text, timestamp=NOON)
                elif text == part.content and "I like" in text:
                    message.parts = [*message.parts]
                    message.parts[number] = UserPromptPart(text.replace("I like", "likes"))
    return made


def _kept_part(part: Any, kept: str) -> Any:
    """Return a part of a message as a host keeps it; None if it is left out."""
    if kept == "new times" and isinstance(part, UserPromptPart):
        return UserPromptPart(part.content)
    is_memory = kept == "no memory" and "tomldiary.v1" in str(getattr(part, "content", ""))
    is_of_tool = kept == "no tools" and part.part_kind.startswith(("tool-", "retry-"))
    return None if is_memory or is_of_tool else part


@dataclass(eq=False)
class Chat:
    """A conversation as its host keeps it."""

    users: Sequence[str]
    session: str | None
    conversation: str | None
    kept: str
    agents: Sequence[int]
    lines: list[Said | str]
    """The texts of users and answers."""
    history: list[ModelMessage] = field(default_factory=list[ModelMessage])
    lost: Words | None = None
    """What was said to the last run, if it gave no result and the host kept nothing of it."""
    answered: str = ""
    """The user of the last run, if it was answered."""
    paused: Any = None
    """The result of a run that waits for an approval."""
    asker: str = ""

    def messages(self) -> list[ModelMessage]:
        """Return the history for the next run."""
        if self.kept in TEXTS:
            return [
                ModelResponse([TextPart(each)])
                if isinstance(each, str)
                else ModelRequest([UserPromptPart(each.text)])
                for each in self.lines
            ]
        if self.kept == "dumped":
            dumped = ModelMessagesTypeAdapter.dump_json(self.history)
            return ModelMessagesTypeAdapter.validate_json(dumped)
        if self.kept == "bare":
            return reworded(self.history, is_bare=True)
        if self.kept == "last":
            return self.history[-2:]
        if self.kept == "summary" and len(self.history) > 4:
            return [ModelResponse([TextPart("They talked.")]), *self.history[-4:]]
        if self.kept in ("new times", "no tools", "no memory"):
            made = [
                (one, [_kept_part(part, self.kept) for part in one.parts]) for one in self.history
            ]
            left = [(one, [part for part in parts if part is not None]) for one, parts in made]
            return [replace(one, parts=parts) for one, parts in left if parts]
        return self.history
