"""Turns of a chat log, the pairing of utterances to turns, and what was left out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tomldiary.runtime.views import counted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

_SURROGATE = re.compile("[\ud800-\udfff]")


class Omissions:
    """Counts omitted content, and reports it in sentences."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._replaced = 0
        self._speakers: dict[str, None] = {}

    def hear(self, speaker: str) -> None:
        """Remember the name of a person whose messages are read as those of the user; "" has no name."""
        if speaker:
            self._speakers[self.clean(speaker)] = None

    def leave_out(self, noun: str, detail: str = "") -> None:
        """Count an omission, such as "message" with the detail "without text"; the plural adds an "s" to the noun."""
        self._counts[noun, detail] = self._counts.get((noun, detail), 0) + 1

    def clean(self, text: str) -> str:
        """Return a text with each lone surrogate replaced by U+FFFD, because no file can store it."""
        cleaned, replaced = _SURROGATE.subn("\ufffd", text)
        self._replaced += replaced
        return cleaned

    def sentences(self) -> list[str]:
        """Return one sentence for each kind of omission, in the order of first occurrence."""
        found = [
            _SURROGATE.sub("\ufffd", f"Left out {counted(count, noun)} {detail}".rstrip() + ".")
            for (noun, detail), count in self._counts.items()
        ]
        if self._replaced:
            noun = "character that is" if self._replaced == 1 else "characters that are"
            found.append(f"Replaced {self._replaced} {noun} not valid text by U+FFFD.")
        if len(self._speakers) > 1:
            names = ", ".join(self._speakers)
            found.append(
                f"Several people were read as one user: {names}. Give each a file of its own."
            )
        return found


class Names:
    """Makes names unique: the second "chat" is called "chat-2"."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._last: dict[str, int] = {}

    def distinct(self, wanted: str) -> str:
        """Return `wanted`; if the name is taken, with the next free number, beginning at 2."""
        name = wanted
        while name in self._taken:
            self._last[wanted] = self._last.get(wanted, 1) + 1
            name = f"{wanted}-{self._last[wanted]}"
        self._taken.add(name)
        return name


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One exchange: messages of the user, and the reply that followed.

    session_id    : id of the conversation; the file's name without the suffix if it has no id
    user_msg      : consecutive messages of the user, joined by line feeds
    assistant_msg : the reply, joined the same way; empty without an answer
    position      : place in the file, the same on every read and after messages were appended;
                    it does not depend on the file's name unless the conversation id does
    when          : time of the turn in UTC if the log has it; times without a time zone are read as UTC
    """

    session_id: str
    user_msg: str
    assistant_msg: str
    position: str
    when: datetime | None = None


@dataclass(frozen=True, slots=True)
class ChatLog:
    """All turns of one file, in the file's order.

    format  : name of the file's format
    turns   : the turns
    skipped : one sentence for each kind of content that was left out or changed
    """

    format: str
    turns: list[ChatTurn]
    skipped: list[str]


@dataclass(frozen=True, slots=True)
class Utterance:
    """One message of the user or the assistant; `session` is the session that the message names, if any."""

    role: Literal["user", "assistant"]
    text: str
    when: datetime | None = None
    session: str | None = None
    calls_tools: bool = False


def pair(
    utterances: Iterable[tuple[int, Utterance]],
    omissions: Omissions,
    session_id: str,
    place: str,
    *,
    when: datetime | None = None,
    unasked: tuple[str, str] = ("assistant message", "without a user message before it"),
) -> list[ChatTurn]:
    """Join consecutive messages of the user, and pair them with the reply that follows.

    Every non-empty message of the user is in exactly one turn. A reply to no message of the user is left out and
    counted as `unasked` (noun, detail).

    Args:
        utterances: The messages of one session, each with its index.
        omissions: Counts what is left out.
        session_id: The session.
        place: The session's part of the positions.
        when: The time of turns without a time.
        unasked: See above.
    """
    found: list[tuple[int, list[Utterance]]] = []
    current: list[Utterance] = []
    for index, utterance in utterances:
        is_answered = bool(current) and current[-1].role == "assistant"
        if not utterance.text.strip():
            if utterance.calls_tools:
                omissions.leave_out("assistant message", "with only tool calls")
            else:
                omissions.leave_out(f"{utterance.role} message", "without text")
            # The reply to a message that is only an image does not belong to the turn before it.
            if utterance.role == "user" and is_answered:
                current = []
        elif utterance.role == "user" and (is_answered or not current):
            current = [utterance]
            found.append((index, current))
        elif current:
            current.append(utterance)
        else:
            omissions.leave_out(*unasked)
    return [
        ChatTurn(
            session_id,
            "\n".join(each.text for each in messages if each.role == "user"),
            "\n".join(each.text for each in messages if each.role == "assistant"),
            f"{place}/{index}",
            next((each.when for each in messages if each.when is not None), when),
        )
        for index, messages in found
    ]
