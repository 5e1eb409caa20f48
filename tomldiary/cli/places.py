"""The storage that `--path` names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tomldiary.errors import InvalidValue
from tomldiary.storage.open import open_backend
from tomldiary.storage.shared.database import without_secrets
from tomldiary.storage.shared.urls import is_shared_url

if TYPE_CHECKING:
    from tomldiary.storage.protocol import Backend

__all__ = ["open_storage", "shown"]


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
