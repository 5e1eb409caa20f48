"""The known formats: recognised by content alone, and read into turns."""

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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = ["KNOWN_FORMATS", "MessageFormat", "read_turns"]


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """A format whose files are made of messages: how one is recognised and read."""

    name: str
    recognises: Callable[[JsonObject], bool]
    read_message: Callable[[JsonObject, Omissions], Utterance | None]


MESSAGE_FORMATS: Final = {
    known.name: known
    for known in (
        MessageFormat("chatgpt", exports.recognises_chatgpt, exports.read_chatgpt),
        MessageFormat("claude", exports.recognises_claude, exports.read_claude),
        # A LangChain ChatMessage has a "role" as well, so OpenAI is asked last.
        MessageFormat("pydantic-ai", pydantic_ai.recognises, pydantic_ai.read_message),
        MessageFormat("langchain", langchain.recognises, langchain.read_message),
        MessageFormat("openai", openai.recognises, openai.read_message),
    )
}
KNOWN_FORMATS: Final = ("openai", "langchain", "pydantic-ai", "chatgpt", "claude", "locomo")
"""Names of the formats, besides "auto"."""


def _holds(records: Sequence[object], name: str) -> bool:
    """Whether anything in the records belongs to the named format."""
    if name == "locomo":
        return any(locomo.recognises(as_object(record)) for record in records)
    return any(map(MESSAGE_FORMATS[name].recognises, all_messages(records)))


def _detect(records: Sequence[object]) -> str | None:
    """The format of the first record that a format recognises."""
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
    """Read every turn of a chat log in JSON or JSON Lines; omitted content is counted.

    Args:
        path: The file. Its name is only used as session id of conversations without one.
        format: One of `KNOWN_FORMATS`, or "auto" to detect it by the content.
        speaker: For LoCoMo, whose memory this is: a name, "speaker_a" (the default) or "speaker_b". Needed where
            the file has conversations of several people.
        max_bytes: Larger files are refused.

    Raises:
        InvalidValue: The file is missing, unreadable, too large, empty or not JSON, or no speaker has the name `speaker`.
        UnsupportedFormat: The format's name is unknown, or the file is not in it.
    """
    path = Path(path)
    wanted = format.strip().lower().replace("_", "-")
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
            f"the format {name} says who the user is. Leave speaker out.", where=str(path)
        )
    else:
        stem = omissions.clean(path.stem)
        turns = read_conversations(records, MESSAGE_FORMATS[name], stem, omissions)
    return ChatLog(name, turns, omissions.sentences())


def _format_of(records: Sequence[object], wanted: str, path: Path) -> str:
    """Return the format to read; the records contain it."""
    if wanted != "auto" and _holds(records, wanted):
        return wanted
    found = _detect(records)
    if found is None:
        what = "a format that is known" if wanted == "auto" else f"the format {wanted}"
        raise UnsupportedFormat(
            f"{path}: there is no chat message in {what}. Give a chat log in one of: {_KNOWN}."
        )
    if wanted != "auto":
        raise UnsupportedFormat(
            f'{path}: this is not {wanted} but looks like {found}. Use format="{found}" or "auto" '
            f"(known formats: {_KNOWN})."
        )
    return found
