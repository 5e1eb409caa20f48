"""The backend of Firestore; see `database` for its documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.storage.shared.firestore.connection import Connection
from tomldiary.storage.shared.firestore.database import FirestoreDatabase

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FirestoreBackend"]


class FirestoreBackend(SharedBackend):
    """Stores all users in Firestore, with the documents of TOMLDiary 0.9; see `Connection` for the arguments."""

    options = ("database", "timeout")

    def __init__(
        self,
        project_id: str,
        base_path: str = "tomldiary/users",
        credentials_path: str | None = None,
        credentials_dict: Mapping[str, Any] | None = None,
        database: str = "(default)",
        *,
        timeout: float = 10.0,
    ) -> None:
        connection = Connection(
            project_id, base_path, credentials_path, credentials_dict, database, timeout=timeout
        )
        super().__init__(FirestoreDatabase(connection), timeout=timeout)
