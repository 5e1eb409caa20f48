"""The hidden document with the waiting turns of one user.

It is a record log (see `storage.log`), with the records of a writer's journal:

    [[owner]]                         # the writer that applies this user's turns
    check = "1f6c0d9a"
    writer = "9f0c2a71"

    [[turn]]                          # see `journal`; turns are in the order of their submission
    …
    [[operations]]                    # the model's result for one or several turns
    …

A turn is removed once history has it, or once it is a dead letter. The document is removed with its last turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tomldiary.forgetting.selection import Selection
from tomldiary.runtime.forgettable_cache import cleared_on_forget
from tomldiary.runtime.lru import RecentBySize
from tomldiary.storage.log import render_record, scan_log
from tomldiary.toml.values import render_text
from tomldiary.writer.journal import render_operations, render_turn_record
from tomldiary.writer.journals import jobs_of, kept_records

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from tomldiary.extraction.operations import Operation
    from tomldiary.storage.log import LogRecord
    from tomldiary.writer.receipts import Job

_CACHED = 8_000_000  # characters of documents in memory


@dataclass(slots=True)
class Turns:
    """The waiting turns of one user."""

    owner: str = ""
    """The id of the writer that applies them; "" if there is none."""
    records: list[LogRecord] = field(default_factory=list[Any])
    """The records of the turns and their operations, in order."""

    @classmethod
    def parse(cls, text: str) -> Turns:
        """Return the content of a document."""
        known = _parsed.get(text)
        if known is not None:
            return cls(known.owner, [*known.records])
        records = scan_log(text.encode())
        owners = [each.data["writer"] for each in records if each.kind == "owner" and each.data]
        kept = [each for each in records if each.kind != "owner" and each.data is not None]
        _parsed.keep(text, _Parsed(len(text), owners[-1] if owners else "", (*kept,)))
        return cls(owners[-1] if owners else "", kept)

    def render(self) -> str:
        """Return the document; "" without a turn."""
        if not any(each.kind == "turn" for each in self.records):
            return ""
        owner = (
            render_record("owner", f"writer = {render_text(self.owner)}\n") if self.owner else ""
        )
        text = owner + "".join(each.text for each in self.records)
        _parsed.keep(text, _Parsed(len(text), self.owner, (*self.records,)))
        return text

    def numbers(self) -> dict[str, int]:
        """Return the number of each turn by its operation id."""
        return {data["operation"]: data["number"] for data in self._turns()}

    def _turns(self) -> Iterable[dict[str, Any]]:
        return (each.data for each in self.records if each.kind == "turn" and each.data is not None)

    def add(self, jobs: Iterable[Job], epoch: int) -> None:
        """Append turns; skip a turn whose operation id is already in the document."""
        known = self.numbers()
        number = max(known.values(), default=0)
        for job in jobs:
            if job.operation not in known:
                number += 1
                text = render_turn_record(number, epoch, job.rendered)
                self.records += scan_log(text.encode())

    def add_operations(self, ids: Collection[str], operations: Iterable[Operation]) -> None:
        """Append the model's result for turns that were read together."""
        known = self.numbers()
        numbers = [known[each] for each in ids if each in known]
        text = render_operations(numbers, next(iter(ids)), operations)
        self.records += scan_log(text.encode())

    def remove(self, ids: Collection[str]) -> None:
        """Remove turns and their operations."""
        gone = {number for each, number in self.numbers().items() if each in ids}
        self.records = [
            each
            for each in self.records
            if each.data is not None
            and each.data.get("number") not in gone
            and not gone.intersection(each.data.get("numbers", ()))
        ]

    def jobs(self) -> list[Job]:
        """Return the turns in their order; turns that were read together are one job with a group."""
        return jobs_of(self.records)


class _Parsed(NamedTuple):
    """The content of a document, with its length in characters."""

    size: int
    owner: str
    records: tuple[LogRecord, ...]


# A writer reads and changes the turns of a user several times for each turn, so it parses no text that it has rendered.
_parsed = cleared_on_forget(RecentBySize[str, _Parsed](_CACHED, lambda parsed: parsed.size))


def redacted(text: str, user: str, selection: Mapping[str, Any], epoch: int) -> str:
    """Return a document of waiting turns or of dead letters without the selected turns."""
    records = scan_log(text.encode())
    kept = kept_records(records, user, Selection.from_table(selection), epoch, set())
    has_turns = any(text.startswith(("[[turn]]", "[[dead]]")) for text in kept)
    return "".join(kept) if has_turns else ""
