"""From a path to the turns in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tomldiary.errors import InvalidValue, UnsupportedFormat
from tomldiary.ingest.conversations import read_conversations
from tomldiary.ingest.detect import KNOWN_FORMATS, MESSAGE_FORMATS, detect, holds
from tomldiary.ingest.locomo import read_dialogues
from tomldiary.ingest.omissions import Omissions
from tomldiary.ingest.source import load
from tomldiary.ingest.turns import ChatLog

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["read_turns"]

_KNOWN: Final = ", ".join(KNOWN_FORMATS)
_MAX_BYTES: Final = 512 * 1024 * 1024


def read_turns(
    path: str | Path,
    *,
    format: str = "auto",  # noqa: A002  # the word that users know from the command line
    speaker: str | None = None,
    max_bytes: int = _MAX_BYTES,
) -> ChatLog:
    """Read every turn of a chat log in JSON or JSON Lines; nothing is left out without a word.

    Args:
        path: The file. Its name decides nothing but the session id of conversations without one.
        format: One of `KNOWN_FORMATS`, or "auto" to go by the content.
        speaker: For LoCoMo, whose memory this is: a name, "speaker_a" (the default) or "speaker_b". Needed where
            the file has conversations of several people.
        max_bytes: Larger files are refused.

    Raises:
        InvalidValue: The file is missing, unreadable, too large, empty or not JSON, or `speaker` fits nobody.
        UnsupportedFormat: The format's name is unknown, or the file is not in it.
    """
    path = Path(path)
    wanted = format.strip().lower().replace("_", "-")
    if wanted not in ("auto", *KNOWN_FORMATS):
        raise UnsupportedFormat(f"the format {format!r} is unknown. Use auto or one of: {_KNOWN}.")
    source = load(path, known=_KNOWN, max_bytes=max_bytes)
    name = _settle(source.records, wanted, path)
    omissions = Omissions()
    if name == "locomo":
        turns = read_dialogues(source.records, speaker, path, omissions)
    elif speaker is not None:
        raise InvalidValue(
            f"the format {name} says who the user is. Leave speaker out.", where=str(path)
        )
    else:
        stem = omissions.clean(path.stem)
        turns = read_conversations(source.records, MESSAGE_FORMATS[name], stem, omissions)
    return ChatLog(name, turns, source.digest, omissions.sentences())


def _settle(records: Sequence[object], wanted: str, path: Path) -> str:
    """The format to read, which the records are known to hold."""
    if wanted != "auto" and holds(records, wanted):
        return wanted
    found = detect(records)
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
