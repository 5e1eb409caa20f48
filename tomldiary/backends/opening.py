"""Which backend is meant by a folder, an address or an object."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from tomldiary.backends.base import BackendProtocol
from tomldiary.backends.local import LocalBackend
from tomldiary.backends.memory import MemoryBackend
from tomldiary.errors import BackendError

if TYPE_CHECKING:
    from tomldiary.backends.base import Backend, Durability

__all__ = ["open_backend"]


def open_backend(
    backend: Backend | BackendProtocol | str | os.PathLike[str], durability: Durability | None
) -> Backend:
    """Return the sync backend that `backend` stands for.

    Raises:
        BackendError: It is none.
    """
    if isinstance(backend, str | os.PathLike):
        place = os.fspath(backend)
        if place == "memory:":
            return MemoryBackend()
        if "://" in place:
            raise BackendError(f"{place!r}: no backend for this kind of address. Give a folder.")
        return LocalBackend(place, durability=durability or "full")
    if durability is not None:
        raise BackendError("durability belongs to a folder; set it on the backend you give.")
    if hasattr(backend, "commit") and hasattr(backend, "lock"):
        return cast("Backend", backend)
    if isinstance(backend, BackendProtocol):
        from tomldiary.backends.six_verbs import SixVerbsBackend  # noqa: PLC0415 - rarely needed

        return SixVerbsBackend(backend)
    raise BackendError(
        f"{type(backend).__name__} is no backend: it needs the methods load, save, exists, delete,"
        " delete_user and list_users."
    )
