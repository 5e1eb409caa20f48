"""Where documents are kept: files, memory, or storage of your own."""

from __future__ import annotations

from tomldiary.backends.base import Backend, BackendProtocol
from tomldiary.backends.local import LocalBackend
from tomldiary.backends.memory import MemoryBackend

__all__ = ["Backend", "BackendProtocol", "LocalBackend", "MemoryBackend"]
