"""Turns, and the pairing of utterances into turns."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

__all__ = ["ChatLog", "ChatTurn", "Omissions", "Pair", "Utterance", "pair"]

_SURROGATE = re.compile("[\ud800-\udfff]")


class Omissions:
    """Counts of omitted content, reported as sentences."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._replaced = 0

    def leave_out(self, one: str, many: str = "") -> None:
        """Count one more thing; `one` and `many` are its singular and plural, "" is the one with an "s"."""
        kind = one, many or f"{one}s"
        self._counts[kind] = self._counts.get(kind, 0) + 1

    def clean(self, text: str) -> str:
        """The text with each lone surrogate, which no file can store, replaced by U+FFFD."""
        cleaned, replaced = _SURROGATE.subn("\ufffd", text)
        self._replaced += replaced
        return cleaned

    def sentences(self) -> list[str]:
        """One sentence for each kind, in the order of first occurrence."""
        told = [
            _SURROGATE.sub("\ufffd", f"Left out {count} {one if count == 1 else many}.")
            for (one, many), count in self._counts.items()
        ]
        if self._replaced:
            noun = "character that is" if self._replaced == 1 else "characters that are"
            told.append(f"Replaced {self._replaced} {noun} no valid text by U+FFFD.")
        return told


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """What a user said and the reply that followed.

    session_id    : the conversation, as the file names it or after the file's stem
    user_msg      : consecutive messages of the user, joined by line feeds
    assistant_msg : the reply, joined the same way; empty without an answer
    position      : place in the file, the same on every read and after messages were appended;
                    it does not depend on the file's name unless the conversation id does
    when          : time of the turn in UTC if the log knows it; times without a zone count as UTC
    """

    session_id: str
    user_msg: str
    assistant_msg: str
    position: str
    when: datetime | None = None


@dataclass(frozen=True, slots=True)
class ChatLog:
    """All turns of one file, in the file's order.

    format  : name of the format that was read
    turns   : the turns
    skipped : one sentence for each kind of content that was left out or changed
    """

    format: str
    turns: list[ChatTurn]
    skipped: list[str]


@dataclass(frozen=True, slots=True)
class Utterance:
    """One message of the user or the assistant; `session` if the message names one."""

    role: Literal["user", "assistant"]
    text: str
    when: datetime | None = None
    session: str | None = None
    calls_tools: bool = False


@dataclass(slots=True)
class Pair:
    """A turn before it has a session: `index` is the place of its first message."""

    index: int
    when: datetime | None
    said: list[str] = field(default_factory=list[str])
    answered: list[str] = field(default_factory=list[str])

    def turn(self, session_id: str, place: str) -> ChatTurn:
        """The finished turn; `place` is the conversation's part of the position."""
        return ChatTurn(
            session_id=session_id,
            user_msg="\n".join(self.said),
            assistant_msg="\n".join(self.answered),
            position=f"{place}/{self.index}",
            when=self.when,
        )


def pair(
    utterances: Iterable[tuple[int, Utterance]],
    omissions: Omissions,
    *,
    unasked: tuple[str, str],
) -> list[Pair]:
    """Join the user's consecutive messages and give them the reply that follows.

    Every non-empty user utterance is in exactly one turn. Replies without a question are left out and
    counted under `unasked` (singular, plural).
    """
    pairs: list[Pair] = []
    current: Pair | None = None
    for index, utterance in utterances:
        if not utterance.text.strip():
            if utterance.calls_tools:
                omissions.leave_out(
                    "assistant message that only calls tools",
                    "assistant messages that only call tools",
                )
            else:
                omissions.leave_out(
                    f"{utterance.role} message without text",
                    f"{utterance.role} messages without text",
                )
            # The reply to a message that is only an image does not belong to the turn before it.
            if utterance.role == "user" and current is not None and current.answered:
                current = None
        elif utterance.role == "user":
            if current is None or current.answered:
                current = Pair(index, utterance.when)
                pairs.append(current)
            current.said.append(utterance.text)
            current.when = current.when or utterance.when
        elif current is None:
            omissions.leave_out(*unasked)
        else:
            current.answered.append(utterance.text)
            current.when = current.when or utterance.when
    return pairs
