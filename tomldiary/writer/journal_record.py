"""The records of a journal, as TOML: turns that were taken in, what was extracted, and what is done.

A journal file is a list of them, and valid TOML itself:

    [[turn]]
    check = "1f6c0d9a"                # CRC-32 of the rest of the record, in hex
    number = 7
    epoch = 0
    user = "alice"
    session = "s1"
    operation = "9f0c…-7"
    time = "2026-11-20T03:37:54.320748+00:00"
    user_msg = "I moved to Lyon."
    assistant_msg = "Noted."

    [[operations]]                    # what the model made of it: replaying costs no second call
    check = "…"
    numbers = [7]
    operation = "9f0c…-7"
    operations = [{ op = "UpsertPreference", category = "likes", … }]

    [[done]]                          # applied, parked or taken back: nothing is left to do
    check = "…"
    numbers = [5, 7]

Numbers are those of the journal: a later file of it may say that a turn of this one is done.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

from tomldiary.entries.models import timestamp
from tomldiary.errors import InvalidValue
from tomldiary.extraction.operations import from_dict, to_table
from tomldiary.toml.values import plain_text, render_value
from tomldiary.writer.receipts import Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tomldiary.extraction.operations import Operation

__all__ = [
    "Entry",
    "operations_of",
    "render_dead",
    "render_done",
    "render_operations",
    "render_turn",
    "render_turn_record",
    "split_entries",
    "turn_of",
    "without_earlier",
]

_HEADER = re.compile(rb"^\[\[(turn|operations|done|dead)\]\]\n", re.MULTILINE)
_WHOLE = re.compile(rb"\[\[[a-z]+\]\]\n(?:[a-z_]+ = [^\n\0]+\n)*")
_EARLIER = "earlier = "
_CHECK = re.compile(r'check = "([0-9a-f]{8})"\n')


@dataclass(frozen=True, slots=True)
class Entry:
    """One record: its kind, its exact text, and what it says.

    `data` is None if it is torn or altered; its text goes up to the next record then.
    """

    kind: str
    text: str
    data: dict[str, Any] | None
    at: int
    """Where it stands in the file, in bytes."""

    @property
    def end(self) -> int:
        """Where it ends, if it is whole."""
        return self.at + len(self.text.encode())


def render_turn(turn: Turn, operation: str, time: str) -> str:
    """Render what is known of a turn before the journal gives it a number.

    Raises:
        InvalidValue: A text that no file can store.
    """
    texts = (turn.user_id, turn.session_id, operation, turn.user_msg, turn.assistant_msg)
    is_usual = turn.status == "completed" and not turn.context_now and not turn.earlier
    if is_usual and _are_plain(texts):
        # Nothing to escape: nearly every turn, on the hot path of `submit`.
        user, session, name, said, answer = texts
        return (
            f'user = "{user}"\nsession = "{session}"\noperation = "{name}"\ntime = "{time}"\n'
            f'user_msg = "{said}"\nassistant_msg = "{answer}"\n'
        )
    lines = [
        _user_line(turn.user_id),
        f"session = {render_value(turn.session_id, where='session_id')}",
        f"operation = {render_value(operation, where='operation_id')}",
        f'time = "{time}"',
    ]
    if turn.status != "completed":
        lines.append(f"status = {render_value(turn.status, where='status')}")
    if turn.context_now is not None:
        lines.append(f'context_now = "{turn.context_now.isoformat()}"')
    if turn.earlier:
        exchanges = [list(each) for each in turn.earlier]
        lines.append(f"{_EARLIER}{render_value(exchanges, where='earlier')}")
    lines.append(f"user_msg = {render_value(turn.user_msg, where='user_msg')}")
    lines.append(f"assistant_msg = {render_value(turn.assistant_msg, where='assistant_msg')}\n")
    return "\n".join(lines)


def _are_plain(texts: tuple[str, ...]) -> bool:
    try:
        return plain_text("".join(texts)) is not None
    except TypeError:  # something else than text, which the long way says more about
        return False


def _user_line(user: str) -> str:
    try:
        return f"user = {render_value(user)}"
    except InvalidValue:  # any string is a user id, also one that no file can hold as it is
        return f"user_escaped = {render_value(_escaped(user))}"


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")


def render_turn_record(number: int, epoch: int, rendered: str) -> str:
    """Complete the record of a turn."""
    return _record("turn", f"number = {number}\nepoch = {epoch}\n{rendered}")


def render_operations(
    numbers: Sequence[int], operation: str, operations: Iterable[Operation]
) -> str:
    """Render what was extracted from one turn, or from several that were read together.

    Raises:
        InvalidValue: The extractor recorded a value that TOML has no word for.
    """
    tables = [to_table(each) for each in operations]
    body = (
        f"numbers = {_numbers(numbers)}\noperation = {render_value(operation)}\n"
        f"operations = {render_value(tables)}\n"
    )
    return _record("operations", body)


def render_done(numbers: Sequence[int]) -> str:
    """Render that nothing is left to do for these turns."""
    return _record("done", f"numbers = {_numbers(numbers)}\n")


def _numbers(numbers: Sequence[int]) -> str:
    return f"[{', '.join(map(str, numbers))}]"


def _record(kind: str, body: str) -> str:
    # Every value is on one line, so no text of a user's can look like a record's first line.
    return f'[[{kind}]]\ncheck = "{crc32(body.encode()):08x}"\n{body}'


def split_entries(data: bytes) -> list[Entry]:
    """Return the records of a file, oldest first."""
    import tomllib  # noqa: PLC0415 - only after a crash, and for forgetting

    starts = [*_HEADER.finditer(data)]
    if not starts:
        return []
    ends = [*(found.start() for found in starts[1:]), len(data)]
    entries: list[Entry] = []
    for found, end in zip(starts, ends, strict=True):
        kind = found.group(1).decode()
        whole = data[found.start() : end]
        # A power cut may leave zeros or a part of the next record behind it.
        text = cast("re.Match[bytes]", _WHOLE.match(whole)).group().decode("utf-8", "replace")
        body = text[len(kind) + 5 :]
        check = _CHECK.match(body)
        values: dict[str, Any] | None = None
        if check is not None:
            rest = body[check.end() :]
            if f"{crc32(rest.encode()):08x}" == check.group(1):
                values = tomllib.loads(rest)
        if values is None:
            text = whole.decode("utf-8", "replace")
        entries.append(Entry(kind, text, values, found.start()))
    return entries


def turn_of(data: dict[str, Any]) -> Turn:
    """Return the turn that a record holds."""
    now = data.get("context_now")
    user = data.get("user")
    if user is None:
        user = str(data["user_escaped"]).encode("ascii").decode("unicode_escape")
    return Turn(
        user,
        data["session"],
        data["user_msg"],
        data["assistant_msg"],
        datetime.fromisoformat(now) if now else None,
        data.get("status", "completed"),
        data["operation"],
        tuple((str(said), str(answer)) for said, answer in data["earlier"])
        if "earlier" in data
        else None,
    )


def without_earlier(entry: Entry) -> str:
    """Return the text of a turn's or a dead letter's record without what was said before the turn."""
    body = "".join(
        f"{line}\n"
        for line in entry.text.removesuffix("\n").split("\n")[2:]  # without header and checksum
        if not line.startswith(_EARLIER)
    )
    return _record(entry.kind, body)


def operations_of(data: dict[str, Any]) -> list[Operation]:
    """Return the operations that a record holds."""
    return [from_dict(each) for each in cast("list[dict[str, Any]]", data["operations"])]


def render_dead(
    turn: Turn, operation: str, *, error: str, attempts: int, queued: str, epoch: int
) -> str:
    """Render a turn that could not be applied, for people to look at."""
    # An error may quote anything, also what no file can hold.
    storable = error.encode("utf-8", "backslashreplace").decode()
    body = (
        f"error = {render_value(storable)}\nattempts = {attempts}\nepoch = {epoch}\n"
        f'parked = "{timestamp()}"\n{render_turn(turn, operation, queued)}'
    )
    return f'[[dead]]\ncheck = "{crc32(body.encode()):08x}"\n{body}'
