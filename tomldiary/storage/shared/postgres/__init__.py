"""The PostgreSQL backend. Begin reading with `database` and `statements`.

May import: storage.shared. `listener` receives the notices of a watch.
"""

from tomldiary.storage.shared.postgres.database import PostgresBackend

__all__ = ["PostgresBackend"]
