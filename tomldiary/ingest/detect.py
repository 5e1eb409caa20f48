"""The known formats, and which of them a file is in, judged by its content alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tomldiary.ingest import langchain, locomo, openai, pydantic_ai
from tomldiary.ingest.conversations import all_messages
from tomldiary.ingest.json_values import as_object

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tomldiary.ingest.json_values import JsonObject
    from tomldiary.ingest.omissions import Omissions
    from tomldiary.ingest.turns import Utterance

__all__ = ["KNOWN_FORMATS", "MESSAGE_FORMATS", "MessageFormat", "detect", "holds"]


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """A format whose files are made of messages: how one is recognised and read."""

    name: str
    recognises: Callable[[JsonObject], bool]
    read_message: Callable[[JsonObject, Omissions], Utterance | None]


MESSAGE_FORMATS: Final = {
    known.name: known
    for known in (
        # A LangChain ChatMessage has a "role" as well, so OpenAI is asked last.
        MessageFormat("pydantic-ai", pydantic_ai.recognises, pydantic_ai.read_message),
        MessageFormat("langchain", langchain.recognises, langchain.read_message),
        MessageFormat("openai", openai.recognises, openai.read_message),
    )
}
KNOWN_FORMATS: Final = ("openai", "langchain", "pydantic-ai", "locomo")
"""Names of the formats, besides "auto"."""


def holds(records: Sequence[object], name: str) -> bool:
    """Whether anything in the records belongs to the named format."""
    if name == "locomo":
        return any(locomo.recognises(as_object(record)) for record in records)
    return any(map(MESSAGE_FORMATS[name].recognises, all_messages(records)))


def detect(records: Sequence[object]) -> str | None:
    """The format of the first thing that any format recognises."""
    if holds(records, "locomo"):
        return "locomo"
    for message in all_messages(records):
        for name, known in MESSAGE_FORMATS.items():
            if known.recognises(message):
                return name
    return None
