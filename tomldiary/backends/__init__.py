"""Where documents are kept: files, memory, or storage of your own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tomldiary.backends.base import Backend, BackendProtocol
    from tomldiary.backends.local import LocalBackend
    from tomldiary.backends.memory import MemoryBackend

__all__ = ["Backend", "BackendProtocol", "LocalBackend", "MemoryBackend"]

# Loaded when named: the modules that a backend is made of need `base` from here.
_HOMES = {
    "Backend": "base",
    "BackendProtocol": "base",
    "LocalBackend": "local",
    "MemoryBackend": "memory",
}


def __getattr__(name: str) -> Any:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
