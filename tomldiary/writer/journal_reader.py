"""What a dead writer left in its journal: the turns that are not done, and what was extracted already."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tomldiary.logging import get_logger
from tomldiary.runtime.capabilities import PRIVATE
from tomldiary.storage.file_lock import lock_file
from tomldiary.storage.files import read_all, write_all
from tomldiary.writer.job import Job
from tomldiary.writer.journal_record import operations_of, split_entries, turn_of

if TYPE_CHECKING:
    from pathlib import Path

    from tomldiary.writer.journal_record import Entry

__all__ = ["Found", "read_journal", "segment_files"]

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | PRIVATE
_logger = get_logger(__name__)


@dataclass(slots=True)
class Found:
    """A journal as it was left."""

    jobs: list[Job] = field(default_factory=list[Job])
    """The turns that are not done, in their order; those that were read together stand in one's group."""
    open: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    """Their numbers, by segment."""
    done: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """The numbers of the others, by segment."""
    last: int = 0
    """The highest number."""


def segment_files(folder: Path) -> list[Path]:
    """Return a journal's files, oldest first."""
    return sorted(path for path in folder.glob("*.toml") if path.stem.isdecimal())


def read_journal(folder: Path) -> Found:
    """Read the journal of a dead writer; a torn end is cut off, damaged records are set aside."""
    found = Found()
    jobs: dict[int, Job] = {}
    places: dict[int, int] = {}
    groups: dict[int, list[int]] = {}
    for path in segment_files(folder):
        segment = int(path.stem)
        found.open[segment], found.done[segment] = set(), []
        for entry in _entries(path):
            data = entry.data
            if data is None:
                continue
            if entry.kind == "turn":
                job = _job(data, segment)
                jobs[job.number] = job
                places[job.number] = segment
            elif entry.kind == "operations":
                _put_operations(jobs, data, groups)
            else:
                for number in data["numbers"]:
                    jobs.pop(number, None)
    found.last = max(places, default=0)
    for number, segment in places.items():
        if number in jobs:
            found.open[segment].add(number)
        else:
            found.done[segment].append(number)
    found.jobs = _grouped(jobs, groups)
    return found


def _entries(path: Path) -> list[Entry]:
    with lock_file(path) as descriptor:
        data = read_all(descriptor)
        entries = split_entries(data)
        if entries and entries[-1].data is None:
            entries.pop()  # torn by the crash: it was never acknowledged
        end = entries[-1].end if entries else 0
        if end < len(data):
            os.ftruncate(descriptor, end)
        damaged = [entry.text for entry in entries if entry.data is None]
        if damaged:
            aside = path.with_suffix(".damaged")
            _logger.error(
                "%s: %d records do not match their checksum; they are left out and kept in %s",
                path, len(damaged), aside.name,
            )  # fmt: skip
            copy = os.open(aside, _FLAGS, 0o600)
            try:
                write_all(copy, "".join(damaged).encode())
            finally:
                os.close(copy)
    return entries


def _job(data: dict[str, Any], segment: int) -> Job:
    job = Job(turn_of(data), data["operation"], is_new=False)
    job.segment, job.number = segment, data["number"]
    job.epoch, job.time = data["epoch"], data["time"]
    job.receipt.settle_stored(True)  # noqa: FBT003 - the answer itself
    return job


def _put_operations(
    jobs: dict[int, Job], data: dict[str, Any], groups: dict[int, list[int]]
) -> None:
    numbers = [number for number in data["numbers"] if number in jobs]
    if numbers:
        first = jobs[numbers[0]]
        first.operations, first.operation = operations_of(data), data["operation"]
        groups[numbers[0]] = numbers


def _grouped(jobs: dict[int, Job], groups: dict[int, list[int]]) -> list[Job]:
    """Put turns together again that were read together, so that their operations count once."""
    inside: set[int] = set()
    for first, numbers in groups.items():
        if first in jobs:
            others = [number for number in numbers[1:] if number in jobs]
            jobs[first].group = [jobs[number] for number in others]
            inside.update(others)
    return [job for number, job in sorted(jobs.items()) if number not in inside]
