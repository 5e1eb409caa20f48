"""Storage backends for documents and history: files, memory, or custom storage.

The protocol depends on no entry, no merge and no writer. Begin with `protocol`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from tomldiary.storage.local.backend import LocalBackend
    from tomldiary.storage.memory import MemoryBackend
    from tomldiary.storage.protocol import Backend, BackendProtocol

__all__ = [
    "Backend",
    "BackendProtocol",
    "LocalBackend",
    "MemoryBackend",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Backend": "storage.protocol",
        "BackendProtocol": "storage.protocol",
        "LocalBackend": "storage.local.backend",
        "MemoryBackend": "storage.memory",
    },
)
