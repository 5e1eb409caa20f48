"""The options that several commands take, and the storage that `--path` names.

Commands that remove or overwrite are dry runs unless `--yes` is given; `--dry-run` wins over `--yes`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tomldiary.cli.completion import complete_user
from tomldiary.errors import InvalidValue
from tomldiary.storage.open import open_backend
from tomldiary.storage.shared.database import without_secrets
from tomldiary.storage.shared.urls import is_shared_url

if TYPE_CHECKING:
    from tomldiary.storage.protocol import Backend

__all__ = [
    "DEFAULT_PATH",
    "AsJson",
    "DryRun",
    "MemoryPath",
    "PreferenceTable",
    "UserName",
    "Whose",
    "Yes",
    "open_storage",
    "shown",
]

DEFAULT_PATH = "./memories"

MemoryPath = Annotated[
    str,
    typer.Option(
        help="The folder of the memory, or the URL of its database.",
        envvar=["TOMLDIARY_URL", "TOMLDIARY_PATH"],
    ),
]
Whose = Annotated[str, typer.Option(help="Whose memory.", autocompletion=complete_user)]
UserName = Annotated[
    str | None,
    typer.Option(
        "--user",
        help="Whose memory; without it, that of the only user.",
        envvar="TOMLDIARY_USER",
        autocompletion=complete_user,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PreferenceTable = Annotated[
    str | None,
    typer.Option(metavar="FILE.py:Class", help="The preference table; the file is run."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this it is a dry run.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")]


def open_storage(path: str) -> Backend:
    """Open a database, or a folder that exists.

    Raises:
        InvalidValue: There is no such folder; reading must not create one.
    """
    is_address = "://" in path  # an unknown one is refused by name
    if not is_address and not Path(path).is_dir():
        raise InvalidValue("there is no such folder, name another one with --path", where=path)
    return open_backend(path, None)


def shown(path: str) -> str:
    """Return a folder, or an address without its password, for messages."""
    return without_secrets(path) if is_shared_url(path) else path
