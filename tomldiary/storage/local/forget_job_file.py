"""The file that says what is being forgotten, and how far that is.

While there is one, whoever opens or locks the user finishes the job first.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tomldiary.forgetting.selection import Selection
from tomldiary.storage.files import read_file, sync_folder, write_new
from tomldiary.storage.local.layout import JOB_NAME, JOB_PREFIX
from tomldiary.toml.block_edit import render_block
from tomldiary.toml.parse import decode_utf8, parse_toml

__all__ = ["STAGED", "Job", "read_job", "sweep_staged", "take_back", "write_job"]

STAGED = f"{JOB_PREFIX}-"
"""What the name of a file that the job is going to put in place begins with."""
_HEAD = "# Something is being forgotten here. Whoever opens this user next finishes it; leave the file alone.\n"


@dataclass(slots=True)
class Job:
    """What the job file says."""

    selection: Selection
    epoch: int
    is_staged: bool = False
    files: list[list[str]] = field(default_factory=list[list[str]])
    """Each staged file, and the name it is going to have."""
    documents: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Each document that changes: its staged file, the version it was made from, and the entries."""


def write_job(folder: Path, job: Job) -> None:
    """Write the job file, in one step."""
    table = {
        "selection": job.selection.to_table(),
        "epoch": job.epoch,
        "is_staged": job.is_staged,
        "files": job.files,
        "documents": job.documents,
    }
    temp = folder / f"{STAGED}job"
    temp.unlink(missing_ok=True)
    write_new(str(temp), f"{_HEAD}{render_block((), table)}".encode(), sync=True)
    temp.replace(folder / JOB_NAME)
    sync_folder(folder)


def read_job(folder: Path) -> Job | None:
    """Return the job there is in a user's folder."""
    found = read_file(folder / JOB_NAME)
    if found is None:
        return None
    table = parse_toml(decode_utf8(found[0]), path=str(folder / JOB_NAME))
    selection = Selection.from_table(table["selection"])
    return Job(
        selection, table["epoch"], table["is_staged"], table["files"], table["documents"]
    )  # fmt: skip


def sweep_staged(folder: Path) -> None:
    """Remove what was staged; it is made again."""
    for child in list(os.scandir(folder)):
        if child.name.startswith(STAGED):
            Path(child.path).unlink()


def take_back(folder: Path) -> bool:
    """Remove a job that has changed nothing yet; tell whether that worked."""
    try:
        (folder / JOB_NAME).unlink(missing_ok=True)
        sync_folder(folder)
        sweep_staged(folder)
    except OSError:
        return False
    return True
