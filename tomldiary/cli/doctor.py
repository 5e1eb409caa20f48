"""`doctor`: the health of a folder of memory; it looks and changes nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated

import typer

from tomldiary.checkup import check
from tomldiary.cli.memory import open_memory
from tomldiary.cli.options import AsJson, MemoryPath, PreferenceTable
from tomldiary.cli.output import one_line, print_json, print_text
from tomldiary.cli.tables import load_table
from tomldiary.diary import Diary
from tomldiary.errors import IdentifierError

__all__ = ["doctor"]


def doctor(
    *,
    path: MemoryPath = "./memories",
    user: Annotated[str | None, typer.Option(help="Look at this user only.")] = None,
    table: PreferenceTable = None,
    as_json: AsJson = False,
) -> None:
    """Look for what is wrong with files, permissions, history and the disk. Exit code 1: there is something."""
    diary = open_memory(path)
    if table is not None:
        diary = Diary(path, load_table(table), agent="rules")
    if user is not None and not diary.engine.backend.kinds(user):
        raise IdentifierError(f"nothing is known about {user!r} in {path}")
    found = check(diary, None if user is None else [user])
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        for finding in found:
            remedy = f" {one_line(finding.remedy)}" if finding.remedy else ""
            print_text(
                f"{finding.level:<8} {one_line(finding.place)}: {one_line(finding.message)}{remedy}"
            )
        count = Counter(finding.level for finding in found)
        print_text(f"{count['problem']} problems, {count['warning']} warnings.")
    if any(finding.level != "note" for finding in found):
        raise typer.Exit(1)
