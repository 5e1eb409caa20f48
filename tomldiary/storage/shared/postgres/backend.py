"""The backend of PostgreSQL."""

from __future__ import annotations

from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.storage.shared.postgres.database import PostgresDatabase

__all__ = ["PostgresBackend"]


class PostgresBackend(SharedBackend):
    """Stores all users in a PostgreSQL database; see `PostgresDatabase` for the arguments."""

    options = ("schema", "connections", "timeout", "watch")
    part_size = 32 * 1024
    """Characters of a document before new entries go to another one: a write sends and stores the whole document."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "tomldiary",
        connections: int = 8,
        timeout: float = 10.0,
        watch: float = 0.0,
    ) -> None:
        database = PostgresDatabase(url, schema=schema, connections=connections, timeout=timeout)
        super().__init__(database, timeout=timeout, watch=watch)
