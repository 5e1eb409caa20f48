"""`doctor`: checks the health of a memory and changes nothing."""

from __future__ import annotations

from collections import Counter
from contextlib import closing, nullcontext
from typing import Annotated

from typer import Exit, Option

from tomldiary.cli.memory import check_user, open_memory
from tomldiary.cli.options import DEFAULT_PATH, AsJson, MemoryPath, PreferenceTable
from tomldiary.cli.output import (
    Column,
    Row,
    is_terminal,
    print_json,
    print_rows,
    print_text,
    progress_bar,
    sentence,
)
from tomldiary.cli.tables import load_table
from tomldiary.diary import Diary
from tomldiary.doctor.doctor import Finding, check, findings
from tomldiary.runtime.views import counted
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.text.visible import one_line

_COLUMNS = (Column("level", "yellow"), Column("place", "cyan"), Column("finding"))
_NOTES = 20  # each user has one, and thousands of them would hide the problems


def doctor(
    *,
    path: MemoryPath = DEFAULT_PATH,
    user: Annotated[str | None, Option(help="Check only this user.")] = None,
    table: PreferenceTable = None,
    as_json: AsJson = False,
) -> None:
    """Check files, permissions, history and the disk.

    It changes nothing. The exit code is 1 if there is a problem or a warning.
    """
    diary = open_memory(path)
    backend = diary.engine.backend
    with closing(backend) if isinstance(backend, SharedBackend) else nullcontext():
        if table is not None:
            diary = Diary(backend, load_table(table), agent="rules")
        if user is not None:
            check_user(diary, path, user)
        count = _report(diary, None if user is None else [user], as_json=as_json)
    if count["problem"] or count["warning"]:
        raise Exit(1)


def _report(diary: Diary, users: list[str] | None, *, as_json: bool) -> Counter[str]:
    """Print the findings, and return their number by level."""
    count: Counter[str] = Counter()
    if as_json:
        with progress_bar("users") as progress:
            found = check(diary, users, progress=progress)
        count.update(finding.level for finding in found)
        print_json(found)
        return count
    rows: list[Row] = []
    notes: list[Row] = []
    with progress_bar("users") as progress:
        for finding in findings(diary, users, progress=progress):
            count[finding.level] += 1
            (notes if finding.level == "note" else rows).append(_row(finding))
            if not is_terminal():  # print at once, because checking many users takes long
                print_rows(_COLUMNS, rows)
                rows.clear()
    print_rows(_COLUMNS, [*rows, *notes[:_NOTES]])
    if len(notes) > _NOTES:
        print_text(
            f"{counted(len(notes) - _NOTES, 'more note')}; --json shows all, --user NAME those of one user."
        )
    print_text(f"{counted(count['problem'], 'problem')}, {counted(count['warning'], 'warning')}.")
    return count


def _row(finding: Finding) -> Row:
    text = " ".join(map(sentence, filter(None, (finding.message, finding.remedy))))
    return finding.level, f"{one_line(finding.place)}:", text
