"""Storage backends for documents and history: files, memory, shared databases, or custom storage.

The package does not import `entries`, `hand_edits` or `writer`. Begin reading with `protocol`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from tomldiary.storage.local.backend import LocalBackend as LocalBackend
    from tomldiary.storage.memory import MemoryBackend as MemoryBackend
    from tomldiary.storage.protocol import Backend as Backend
    from tomldiary.storage.protocol import BackendProtocol as BackendProtocol
    from tomldiary.storage.shared.firestore import FirestoreBackend as FirestoreBackend
    from tomldiary.storage.shared.postgres import PostgresBackend as PostgresBackend
    from tomldiary.storage.shared.redis import RedisBackend as RedisBackend

lazy_names(
    __name__,
    {
        "storage.local.backend": "LocalBackend",
        "storage.memory": "MemoryBackend",
        "storage.protocol": "Backend BackendProtocol",
        "storage.shared.firestore": "FirestoreBackend",
        "storage.shared.postgres": "PostgresBackend",
        "storage.shared.redis": "RedisBackend",
    },
)
