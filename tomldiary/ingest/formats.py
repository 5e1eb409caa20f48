"""The supported formats: detected only by their content, and read as turns.

In a format that consists of messages, a file contains messages, conversations (`{"messages": […]}`, an array of
messages or an export), or both. Messages with a session name are grouped by this name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tomldiary.errors import InvalidValue, UnsupportedFormat
from tomldiary.ingest import locomo
from tomldiary.ingest.messages import (
    CONVERSATION_KEYS,
    MESSAGE_FORMATS,
    MOMENT_KEYS,
    NAME_KEYS,
    MessageFormat,
    messages_of,
    name_of,
)
from tomldiary.ingest.source import (
    MOST_BYTES,
    JsonObject,
    as_object,
    as_path,
    first_moment,
    is_list,
    load,
)
from tomldiary.ingest.turns import ChatLog, ChatTurn, Names, Omissions, Utterance, pair
from tomldiary.toml.values import checked_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime
    from pathlib import Path

KNOWN_FORMATS: Final = (*MESSAGE_FORMATS, "locomo")
"""The names of the formats, without "auto"."""
_KNOWN: Final = ", ".join(KNOWN_FORMATS)


def _detect(records: Sequence[object], names: Collection[str] = KNOWN_FORMATS) -> str | None:
    """Return one of `names`: LoCoMo if a record is a sample, otherwise the format of the first known message."""
    if "locomo" in names and any(map(locomo.recognises, map(as_object, records))):
        return "locomo"
    for message in _all_messages(records):
        for name, known in reversed(MESSAGE_FORMATS.items()):
            if name in names and known.recognises(message):
                return name
    return None


def read_turns(
    path: str | Path,
    *,
    format: str = "auto",  # noqa: A002  # the word that users know from the command line
    speaker: str | None = None,
    max_bytes: int = MOST_BYTES,
) -> ChatLog:
    """Read all turns of a chat log in JSON or JSON Lines; omitted content is counted.

    Args:
        path: The file. Its name without the suffix is the session id of conversations without an id.
        format: One of `KNOWN_FORMATS`, or "auto" to detect the format by the content.
        speaker: The person of a LoCoMo file who is the user: a name, "speaker_a" (the default) or "speaker_b". A name
            is required if the file has conversations of several people.
        max_bytes: The maximum size of the file in bytes.

    Raises:
        InvalidValue: The file is missing, unreadable, too large, empty or not JSON, or `speaker` is not in the file.
        UnsupportedFormat: The name of the format is unknown, or the file has a different format.
    """
    path = as_path(path)
    wanted = checked_text(format, "format").strip().lower().replace("_", "-")
    if wanted not in ("auto", *KNOWN_FORMATS):
        raise UnsupportedFormat(f"the format {format!r} is unknown. Use auto or one of: {_KNOWN}.")
    records = load(
        path, known=f"a chat log in JSON or JSON Lines, in one of: {_KNOWN}", max_bytes=max_bytes
    )
    name = _format_of(records, wanted, path)
    omissions = Omissions()
    if name == "locomo":
        turns = locomo.read_dialogues(records, speaker, path, omissions)
    elif speaker is not None:
        raise InvalidValue(
            f"the format {name} does not support speaker. Leave speaker out.", where=str(path)
        )
    else:
        stem = omissions.clean(path.stem)
        turns = _read_conversations(records, MESSAGE_FORMATS[name], stem, omissions)
    return ChatLog(name, turns, omissions.sentences())


def _format_of(records: Sequence[object], wanted: str, path: Path) -> str:
    """Return the format of the records; raise if it is unknown or not the requested one."""
    is_auto = wanted == "auto"
    found = _detect(records, KNOWN_FORMATS if is_auto else (wanted,))
    if found is not None:
        return found
    other = None if is_auto else _detect(records)
    if other is not None:
        raise UnsupportedFormat(
            f"{path}: this is not {wanted} but looks like {other}. Use the format {other} or auto "
            f"(known formats: {_KNOWN})."
        )
    what = "a known format" if is_auto else f"the format {wanted}"
    raise UnsupportedFormat(
        f"{path}: the file has no chat message in {what}. Give a chat log in one of: {_KNOWN}."
    )


# Conversations


@dataclass(slots=True)
class _Conversation:
    """The raw messages of a conversation with their indexes; `ordinal` is its index in the file's records."""

    ordinal: int
    name: str | None = None
    when: datetime | None = None
    messages: list[tuple[int, object]] = field(default_factory=list[tuple[int, object]])


def _all_messages(records: Sequence[object]) -> Iterable[JsonObject]:
    """Yield each object in the records that may be a message, in the order of the file."""
    for record in records:
        nested = _nested(record)
        for raw in [record] if nested is None else nested:
            if message := as_object(raw):
                yield message


def _read_conversations(
    records: Sequence[object], message_format: MessageFormat, stem: str, omissions: Omissions
) -> list[ChatTurn]:
    """Return all turns; a conversation without a name is named `stem`."""
    sessions, places = Names(), Names()
    turns: list[ChatTurn] = []
    for conversation in _split(records, omissions):
        for name, utterances in _by_session(conversation, message_format, omissions):
            session_id = sessions.distinct(name or stem)
            place = places.distinct(session_id if name else str(conversation.ordinal))
            place = f"{message_format.name}/{place}"
            turns += pair(utterances, omissions, session_id, place, when=conversation.when)
    return turns


def _nested(record: object) -> list[object] | None:
    """Return the messages inside a conversation; None if the record is not a conversation."""
    if is_list(record):
        return record
    envelope = as_object(record)
    if as_object(envelope.get("mapping")):
        return [*messages_of(envelope)]
    return next((found for key in CONVERSATION_KEYS if is_list(found := envelope.get(key))), None)


def _split(records: Sequence[object], omissions: Omissions) -> list[_Conversation]:
    """Return the conversations; all messages outside of conversations are one, at the place of the first."""
    found: dict[int | None, _Conversation] = {}
    for ordinal, record in enumerate(records):
        nested = _nested(record)
        if nested is None:
            found.setdefault(None, _Conversation(ordinal)).messages.append((ordinal, record))
            continue
        envelope = as_object(record)
        name, when = name_of(envelope, NAME_KEYS, omissions), first_moment(envelope, MOMENT_KEYS)
        found[ordinal] = _Conversation(ordinal, name, when, list(enumerate(nested)))
    return list(found.values())


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
            omissions.leave_out("record", f"without a message of the format {message_format.name}")
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
