"""Measure how long it takes to ingest the LoCoMo conversations offline and durably.

Each conversation is ingested for a separate user, who is the first speaker, with the rules extractor. Each
turn is one transaction and is on the disk before the next one begins. Then all conversations are ingested
again, which must not change anything.

    python benchmarks/ingest.py --data DIR
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tomldiary import Diary
from tomldiary.ingest import ingest

if TYPE_CHECKING:
    from tomldiary.ingest import IngestReport
    from tomldiary.storage.protocol import Durability

COLUMNS = ["conversation", "turns", "seconds", "turns/s", "entries", "size KB"]


def row(name: str, reports: list[IngestReport]) -> list[str]:
    turns = sum(report.applied for report in reports)
    seconds = sum(report.seconds for report in reports)
    return [
        name,
        str(turns),
        f"{seconds:.2f}",
        f"{turns / seconds:.0f}",
        str(sum(report.entries for report in reports)),
        f"{sum(report.bytes for report in reports) / 1024:.1f}",
    ]


def print_table(rows: list[list[str]]) -> None:
    widths = [max(len(line[i]) for line in [COLUMNS, *rows]) for i in range(len(COLUMNS))]
    for line in [COLUMNS, ["-" * width for width in widths], *rows]:
        first, *rest = zip(line, widths, strict=True)
        print("  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]))


def measure(samples: list[dict[str, object]], durability: Durability) -> None:
    with tempfile.TemporaryDirectory(prefix="tomldiary-ingest-") as place:
        folder = Path(place)
        diary = Diary(folder / "memories", agent="rules", durability=durability)
        logs = {str(sample["sample_id"]): folder / f"{n}.json" for n, sample in enumerate(samples)}
        for sample, log in zip(samples, logs.values(), strict=True):
            log.write_text(json.dumps([sample]), encoding="utf-8")
        reports = {name: ingest(diary, log, name) for name, log in logs.items()}
        rows = [row(name, [report]) for name, report in reports.items()]
        print(f"\ndurability {durability}")
        print_table([*rows, row("all", list(reports.values()))])

        began = time.perf_counter()
        again = [ingest(diary, log, name) for name, log in logs.items()]
        applied = sum(report.applied for report in again)
        print(f"read again: {applied} turns applied, {time.perf_counter() - began:.2f} s")
        for name, report in reports.items():
            for note in report.notes:
                print(f"{name}: {note}")


def main() -> None:
    default = os.environ.get("TOMLDIARY_BENCH_DATA") or Path(__file__).parents[1] / "../shared/data"
    parser = argparse.ArgumentParser(description="Measure the ingest of chat logs.")
    parser.add_argument("--data", type=Path, default=Path(default), help="folder with locomo/")
    data: Path = parser.parse_args().data
    file = data / "locomo" / "locomo-dev.json"
    if not file.is_file():
        sys.exit(f"No data in {data}: expected locomo/locomo-dev.json. Set the folder with --data.")
    samples: list[dict[str, object]] = json.loads(file.read_text("utf-8"))
    measure(samples, "full")
    measure(samples, "process")


if __name__ == "__main__":
    main()
