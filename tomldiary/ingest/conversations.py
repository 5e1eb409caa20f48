"""Groups records into conversations and conversations into turns, for all formats that consist of messages.

A file contains messages, conversations (`{"messages": […]}`, an array of messages or an export), or both. Messages
with a session name are grouped by this name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tomldiary.ingest.exports import CLAUDE_MESSAGES, messages_of
from tomldiary.ingest.json_values import JsonObject, as_object, first_moment, is_list
from tomldiary.ingest.turns import ChatTurn, Omissions, Utterance, pair

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from tomldiary.ingest.formats import MessageFormat

__all__ = ["MOMENT_KEYS", "SESSION_KEYS", "Names", "all_messages", "name_of", "read_conversations"]

MOMENT_KEYS: Final = ("create_time", "created_at", "timestamp", "created")
SESSION_KEYS: Final = ("session_id", "conversation_id", "thread_id")
_CONVERSATION_KEYS: Final = (*SESSION_KEYS, "id")
_UNASKED: Final = (
    "assistant message that answers no user message",
    "assistant messages that answer no user message",
)


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


@dataclass(slots=True)
class _Conversation:
    """The raw messages of a conversation with their indexes; `ordinal` is its index in the file's records."""

    ordinal: int
    name: str | None = None
    when: datetime | None = None
    messages: list[tuple[int, object]] = field(default_factory=list[tuple[int, object]])


def name_of(source: JsonObject, keys: Iterable[str], omissions: Omissions) -> str | None:
    """Return the first usable id among the values of some keys as text; None if there is none."""
    for key in keys:
        value = source.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return omissions.clean(value.strip())
    return None


def all_messages(records: Sequence[object]) -> Iterable[JsonObject]:
    """Yield each object in the records that may be a message, in the order of the file."""
    for record in records:
        nested = _nested(record)
        for raw in [record] if nested is None else nested:
            if message := as_object(raw):
                yield message


def read_conversations(
    records: Sequence[object], message_format: MessageFormat, stem: str, omissions: Omissions
) -> list[ChatTurn]:
    """Return all turns; a conversation without a name is named `stem`."""
    sessions, places = Names(), Names()
    turns: list[ChatTurn] = []
    for conversation in _split(records, omissions):
        for name, utterances in _by_session(conversation, message_format, omissions):
            session_id = sessions.distinct(name or stem)
            place = places.distinct(session_id if name else str(conversation.ordinal))
            for found in pair(utterances, omissions, unasked=_UNASKED):
                found.when = found.when or conversation.when
                turns.append(found.turn(session_id, f"{message_format.name}/{place}"))
    return turns


def _nested(record: object) -> list[object] | None:
    """Return the messages inside a conversation; None if the record is not a conversation."""
    if is_list(record):
        return record
    envelope = as_object(record)
    if as_object(envelope.get("mapping")):
        return [*messages_of(envelope)]
    messages = envelope.get("messages", envelope.get(CLAUDE_MESSAGES))
    return messages if is_list(messages) else None


def _split(records: Sequence[object], omissions: Omissions) -> list[_Conversation]:
    conversations: list[_Conversation] = []
    loose: _Conversation | None = None
    for ordinal, record in enumerate(records):
        nested = _nested(record)
        if nested is None:
            if loose is None:
                loose = _Conversation(ordinal)
                conversations.append(loose)
            loose.messages.append((ordinal, record))
            continue
        envelope = as_object(record)
        conversations.append(
            _Conversation(
                ordinal,
                name=name_of(
                    envelope,
                    ("uuid",) if CLAUDE_MESSAGES in envelope else _CONVERSATION_KEYS,
                    omissions,
                ),
                when=first_moment(envelope, MOMENT_KEYS),
                messages=list(enumerate(nested)),
            )
        )
    return conversations


def _by_session(
    conversation: _Conversation, message_format: MessageFormat, omissions: Omissions
) -> list[tuple[str | None, list[tuple[int, Utterance]]]]:
    """Return the conversation's utterances by session name, in order of appearance.

    A message without a session name belongs to the session of the message before it.
    """
    groups: dict[str | None, list[tuple[int, Utterance]]] = {}
    name = conversation.name
    for index, raw in conversation.messages:
        message = as_object(raw)
        if not message_format.recognises(message):
            omissions.leave_out(
                f"record that is not a message of the format {message_format.name}",
                f"records that are not messages of the format {message_format.name}",
            )
            continue
        utterance = message_format.read_message(message, omissions)
        if utterance is None:
            continue
        if conversation.name is None and utterance.session is not None:
            name = utterance.session
            if name not in groups and None in groups:
                # The messages before the first name belong to its session.
                groups[name] = groups.pop(None)
        groups.setdefault(name, []).append((index, utterance))
    return list(groups.items())
