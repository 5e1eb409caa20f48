"""LoCoMo files: long conversations of two people in dated sessions; one of the two is read as the user.

Layout (Maharana et al., "Evaluating Very Long-Term Conversational Memory of LLM Agents", 2024):
`[{"sample_id": …, "conversation": {"speaker_a": …, "speaker_b": …, "session_1": [{"speaker": …, "text": …}],
"session_1_date_time": "1:56 pm on 8 May, 2023"}}]`.

A turn consists of the user's messages and the partner's reply. If the partner begins a session, these messages are left
out, because they answer nothing. Session times have no time zone and are read as UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from tomldiary.errors import InvalidValue
from tomldiary.ingest.messages import name_of
from tomldiary.ingest.source import JsonObject, as_object, as_text, is_list, json_time
from tomldiary.ingest.turns import ChatTurn, Names, Omissions, Utterance, pair

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


_SESSION: Final = re.compile(r"session_([0-9]{1,9})")
_DATE: Final = re.compile(
    r"\s*(0?[0-9]|1[0-2]):([0-9]{2})\s*([ap])\.?m\.?\s+on\s+([0-9]{1,2})\s+([a-z]+),?\s+([0-9]{4})\s*",
    re.IGNORECASE,
)
_NAMES: Final = "jan feb mar apr may jun jul aug sep oct nov dec"
_MONTHS: Final = {name: number for number, name in enumerate(_NAMES.split(), 1)}


def recognises(record: JsonObject) -> bool:
    """Return whether a record is a sample with two named speakers and at least one session."""
    talk = as_object(record.get("conversation"))
    return bool(_speakers(talk)) and any(_SESSION.fullmatch(key) for key in talk)


def read_dialogues(
    records: Sequence[object], speaker: str | None, path: Path, omissions: Omissions
) -> list[ChatTurn]:
    """Return all turns of `speaker`: a name, "speaker_a" or "speaker_b"; None is "speaker_a".

    If a name occurs in several samples, all of them are read. Samples without the name are left out.

    Raises:
        InvalidValue: No person in the file has this name, or the turns belong to several people.
    """
    names = Names()
    turns: list[ChatTurn] = []
    present: dict[str, None] = {}
    users: set[str] = set()
    found = False
    for record in map(as_object, records):
        if not recognises(record):
            omissions.leave_out("record", "without a LoCoMo sample")
            continue
        sample = names.distinct(
            name_of(record, ("sample_id",), omissions) or omissions.clean(path.stem)
        )
        talk = as_object(record["conversation"])
        people = _speakers(talk)
        present.update(dict.fromkeys(people))
        user = _choose(people, speaker)
        if user is None:
            omissions.leave_out("conversation", f"without {speaker}")
            continue
        found = True
        partner = people[1] if user == people[0] else people[0]
        said = _sample_turns(talk, sample, user, partner, omissions)
        users.update([user] if said else ())
        turns.extend(said)
    listed = omissions.clean(", ".join(present))
    if len(users) > 1:
        raise InvalidValue(
            "conversations of several people would be merged into one user. Name one with speaker="
            f" (--speaker): {listed}.",
            where=str(path),
        )
    if not found:
        raise InvalidValue(
            f"no speaker is called {speaker!r}. Set speaker to one of: {listed}.", where=str(path)
        )
    return turns


def _speakers(talk: JsonObject) -> list[str]:
    people = [as_text(talk.get("speaker_a")), as_text(talk.get("speaker_b"))]
    return people if all(people) and people[0] != people[1] else []


def _choose(people: list[str], speaker: str | None) -> str | None:
    if speaker is None or speaker in people:
        return speaker or people[0]
    wanted = speaker.casefold()
    if wanted in ("speaker_a", "speaker_b"):
        return people[wanted == "speaker_b"]
    return next((name for name in people if name.casefold() == wanted), None)


def _sample_turns(
    talk: JsonObject, sample: str, user: str, partner: str, omissions: Omissions
) -> list[ChatTurn]:
    keys = [key for key in talk if _SESSION.fullmatch(key)]
    turns: list[ChatTurn] = []
    for key in sorted(keys, key=lambda key: int(key.removeprefix("session_"))):
        when = _session_time(talk.get(f"{key}_date_time"), omissions)
        utterances: list[tuple[int, Utterance]] = []
        if not is_list(messages := talk[key]):
            omissions.leave_out("session", "without a list of messages")
            continue
        for index, message in enumerate(map(as_object, messages)):
            name = message.get("speaker")
            if name not in (user, partner):
                omissions.leave_out("message", f"in {sample} by neither speaker")
                continue
            role = "user" if name == user else "assistant"
            utterances.append((index, Utterance(role, _text(message, omissions), when)))
        opening = f"of {partner} in {sample}, before the first message of {user} in the session"
        turns += pair(
            utterances,
            omissions,
            f"{sample}-{key}",
            f"locomo/{sample}/{key}",
            unasked=("opening message", opening),
        )
    return turns


def _text(message: JsonObject, omissions: Omissions) -> str:
    """Return the text of a message, followed by the caption of a shared photo in brackets."""
    text = as_text(message.get("text"))
    caption = as_text(message.get("blip_caption")).strip()
    if caption:
        text = f"{text} [photo: {caption}]".lstrip()
    return omissions.clean(text)


def _session_time(value: object, omissions: Omissions) -> datetime | None:
    if value is None:
        return None
    found = json_time(value)
    match = _DATE.fullmatch(as_text(value))
    if found is None and match is not None:
        hour, minute, half, day, month, year = match.groups()
        try:
            found = datetime(
                int(year),
                _MONTHS.get(month[:3].lower(), 0),
                int(day),
                int(hour) % 12 + (12 if half in "pP" else 0),
                int(minute),
                tzinfo=UTC,
            )
        except ValueError:
            found = None
    if found is None:
        omissions.leave_out("session time", "without a date")
    return found
