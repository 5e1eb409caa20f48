"""The hidden documents with the waiting turns of one user: `.queue`, and further parts such as `.queue/2`.

Each is a record log (see `storage.log`), with the records of a writer's journal:

    [[owner]]                         # only in `.queue`: the writer that applies this user's turns
    check = "1f6c0d9a"
    writer = "9f0c2a71"

    [[turn]]                          # see `journal`; turns are in the order of their submission
    …
    [[operations]]                    # the model's result for one or several turns
    …

A new turn is added to the last part, or to a new one if that is full. So a step sends one part, however many turns wait.
A turn is removed once history has it, or once it is a dead letter. A part is removed with its last turn; the next part
then becomes `.queue`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tomldiary.forgetting.selection import Selection
from tomldiary.runtime.forgettable_cache import cleared_on_forget
from tomldiary.runtime.lru import RecentBySize
from tomldiary.runtime.sources import QUEUE
from tomldiary.storage.log import render_record, scan_log
from tomldiary.toml.values import render_text
from tomldiary.writer.journal import render_operations, render_turn_record
from tomldiary.writer.journals import jobs_of, kept_records, with_groups

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tomldiary.extraction.operations import Operation
    from tomldiary.storage.log import LogRecord
    from tomldiary.writer.receipts import Job

_CACHED = 32_000_000  # bytes of parsed documents in memory, about
# What a parsed document takes: copies of its text, and the objects of each record. Most have one short turn.
_COPIES, _RECORD = 5, 1300


@dataclass(slots=True)
class Turns:
    """The waiting turns of one user.

    Args:
        owner: The id of the writer that applies them; "" if there is none.
        most: The size in characters at which a part is full.
        parts: The parts by the names of their documents, in order.
    """

    owner: str
    most: int
    parts: dict[str, _Part]

    @classmethod
    def parse(cls, texts: Mapping[str, str], most: int) -> Turns:
        """Return the content of the documents, by their names."""
        parts = {name: _parsed_part(text) for name, text in texts.items()}
        return cls(next((part.owner for part in parts.values()), ""), most, parts)

    def render(self) -> dict[str, str]:
        """Return the documents by their names; none without a turn."""
        texts: dict[str, str] = {}
        for name, part in self.parts.items():
            if not part.records:
                continue
            owner = self.owner if not texts else ""
            head = render_record("owner", f"writer = {render_text(owner)}\n") if owner else ""
            text = texts[name if texts else QUEUE] = head + part.text
            _parsed.keep(text, part._replace(owner=owner))
        return texts

    def numbers(self) -> dict[str, int]:
        """Return the number of each turn by its operation id."""
        return {each: number for part in self.parts.values() for each, number in part.turns.items()}

    def has(self, operation: str) -> bool:
        """Return whether a turn with this operation id waits."""
        return any(operation in part.turns for part in self.parts.values())

    def has_other(self, job: Job) -> bool:
        """Return whether a turn with the same operation id and different content waits."""
        return self.has(job.operation) and any(
            each.turn.content != job.turn.content for each in self.jobs([job.operation])
        )

    def add(self, jobs: Iterable[Job], epoch: int) -> None:
        """Append turns; skip a turn whose operation id is already in the document."""
        number = max(self.numbers().values(), default=0)
        name, last = next(reversed(self.parts.items()), (QUEUE, _Part.of(())))
        for job in jobs:
            if self.has(job.operation):
                continue
            if len(last.text) >= self.most:
                name, last = f"{QUEUE}/{int(name.partition('/')[2] or 1) + 1}", _Part.of(())
            number += 1
            text = render_turn_record(number, epoch, job.rendered)
            last = self.parts[name] = _Part.of((*last.records, *scan_log(text.encode())))

    def add_operations(self, ids: Collection[str], operations: Iterable[Operation]) -> None:
        """Add the model's result for turns that were read together."""
        known = self.numbers()
        numbers = {each: known[each] for each in ids if each in known}
        text = render_operations([*numbers.values()], next(iter(ids)), operations)
        # To the last part with one of the turns, because operations come after their turns.
        name = [each for each, part in self.parts.items() if numbers.keys() & part.turns][-1]
        self.parts[name] = _Part.of((*self.parts[name].records, *scan_log(text.encode())))

    def remove(self, ids: Collection[str]) -> None:
        """Remove turns and their operations."""
        for name, part in self.parts.items():
            gone = {part.turns[each] for each in ids if each in part.turns}
            if gone:
                kept = (each for each in part.records if gone.isdisjoint(_numbers(each)))
                self.parts[name] = _Part.of(kept)

    def jobs(self, wanted: Collection[str] | None = None) -> list[Job]:
        """Return the turns in their order; turns that were read together are one job with a group.

        `wanted` are the operation ids of the turns to return; None is all.
        """
        ids = self.numbers().keys() if wanted is None else set(wanted)
        return jobs_of(
            each
            for part in self.parts.values()
            if not ids.isdisjoint(part.turns)
            for each in part.records
            if each.kind != "turn" or (each.data or {})["operation"] in ids
        )


class _Part(NamedTuple):
    """The content of one document."""

    text: str
    """The text without the owner."""
    owner: str
    records: tuple[LogRecord, ...]
    """The records of turns and operations, in order."""
    turns: dict[str, int]
    """The number of each turn by its operation id."""

    @classmethod
    def of(cls, records: Iterable[LogRecord], owner: str = "") -> _Part:
        kept = (*records,)
        values = (each.data for each in kept if each.kind == "turn" and each.data is not None)
        turns = {each["operation"]: each["number"] for each in values}
        return cls("".join(each.text for each in kept), owner, kept, turns)


def _numbers(record: LogRecord) -> Sequence[int]:
    """Return the number of a turn, or the numbers of the turns that operations belong to."""
    data = record.data or {}
    return [data["number"]] if record.kind == "turn" else data["numbers"]


def _parsed_part(text: str) -> _Part:
    part = _parsed.get(text)
    if part is None:
        records = [each for each in scan_log(text.encode()) if each.data is not None]
        owners = [each.data["writer"] for each in records if each.kind == "owner" and each.data]
        kept = (each for each in records if each.kind != "owner")
        part = _Part.of(kept, owners[-1] if owners else "")
        _parsed.keep(text, part)
    return part


# A writer reads and changes the turns of a user several times for each turn, so it parses no text that it has rendered.
_parsed = cleared_on_forget(
    RecentBySize[str, _Part](
        _CACHED, lambda part: _COPIES * len(part.text) + _RECORD * (1 + len(part.records))
    )
)


def redacted(text: str, user: str, selection: Mapping[str, Any], epoch: int) -> str:
    """Return a document of waiting turns or of dead letters without the selected turns."""
    records = scan_log(text.encode())
    chosen = with_groups(Selection.from_table(selection), records)
    kept = kept_records(records, user, chosen, epoch, set())
    has_turns = any(text.startswith(("[[turn]]", "[[dead]]")) for text in kept)
    return "".join(kept) if has_turns else ""
