"""The supported formats: detected only by their content, and read as turns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tomldiary.errors import InvalidValue, UnsupportedFormat
from tomldiary.ingest import exports, langchain, locomo, openai, pydantic_ai
from tomldiary.ingest.conversations import all_messages, read_conversations
from tomldiary.ingest.json_values import JsonObject, as_object
from tomldiary.ingest.source import MOST_BYTES, load
from tomldiary.ingest.turns import ChatLog, Omissions, Utterance
from tomldiary.toml.values import checked_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = ["KNOWN_FORMATS", "MessageFormat", "read_turns"]


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """A format that consists of messages: the functions that recognise and read a message."""

    name: str
    recognises: Callable[[JsonObject], bool]
    read_message: Callable[[JsonObject, Omissions], Utterance | None]


MESSAGE_FORMATS: Final = {
    known.name: known
    for known in (
        MessageFormat("chatgpt", exports.recognises_chatgpt, exports.read_chatgpt),
        MessageFormat("claude", exports.recognises_claude, exports.read_claude),
        # OpenAI's format is checked last, because a LangChain ChatMessage also has a "role".
        MessageFormat("pydantic-ai", pydantic_ai.recognises, pydantic_ai.read_message),
        MessageFormat("langchain", langchain.recognises, langchain.read_message),
        MessageFormat("openai", openai.recognises, openai.read_message),
    )
}
KNOWN_FORMATS: Final = ("openai", "langchain", "pydantic-ai", "chatgpt", "claude", "locomo")
"""The names of the formats, without "auto"."""


def _holds(records: Sequence[object], name: str) -> bool:
    """Return whether any of the records belongs to the named format."""
    if name == "locomo":
        return any(locomo.recognises(as_object(record)) for record in records)
    return any(map(MESSAGE_FORMATS[name].recognises, all_messages(records)))


def _detect(records: Sequence[object]) -> str | None:
    """Return the name of the format: LoCoMo if a record is a sample, otherwise that of the first known message."""
    if _holds(records, "locomo"):
        return "locomo"
    for message in all_messages(records):
        for name, known in MESSAGE_FORMATS.items():
            if known.recognises(message):
                return name
    return None


_KNOWN: Final = ", ".join(KNOWN_FORMATS)


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
    path = Path(path)
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
        turns = read_conversations(records, MESSAGE_FORMATS[name], stem, omissions)
    return ChatLog(name, turns, omissions.sentences())


def _format_of(records: Sequence[object], wanted: str, path: Path) -> str:
    """Return the format of the records; raise if it is unknown or not the requested one."""
    if wanted != "auto" and _holds(records, wanted):
        return wanted
    found = _detect(records)
    if found is None:
        what = "a known format" if wanted == "auto" else f"the format {wanted}"
        raise UnsupportedFormat(
            f"{path}: the file has no chat message in {what}. Give a chat log in one of: {_KNOWN}."
        )
    if wanted != "auto":
        raise UnsupportedFormat(
            f'{path}: this is not {wanted} but looks like {found}. Use format="{found}" or "auto" '
            f"(known formats: {_KNOWN})."
        )
    return found
