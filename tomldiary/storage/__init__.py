"""Storage backends for documents and history: files, memory, or custom storage.

The protocol depends on no entry, no merge and no writer. Begin with `protocol`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

# Loaded on first use: modules of the package import each other without loading all of it.
_HOMES = {
    "Backend": "tomldiary.storage.protocol",
    "BackendProtocol": "tomldiary.storage.protocol",
    "LocalBackend": "tomldiary.storage.local.backend",
    "MemoryBackend": "tomldiary.storage.memory",
}


def __getattr__(name: str) -> Any:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
