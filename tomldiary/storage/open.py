"""Selects the backend for a folder, an address or an object."""

from __future__ import annotations

import os
import re
from inspect import getattr_static
from typing import cast

from tomldiary.errors import BackendError
from tomldiary.storage.async_methods import AsyncVerbs
from tomldiary.storage.local.backend import LocalBackend, check_durability
from tomldiary.storage.memory import MemoryBackend
from tomldiary.storage.protocol import Backend, BackendProtocol, Durability
from tomldiary.storage.shared.database import without_secrets
from tomldiary.storage.shared.urls import incomplete_start, is_shared_url, open_url

# At least two letters, because one letter is a Windows drive. The quotes may come from a file of environment variables.
_SCHEME = re.compile(r"[\s'\"]*[A-Za-z][A-Za-z0-9+.-]+:|:memory:")
# The parameters of libpq, such as "host=db password=…", which would be the name of a folder.
_PARAMETERS = re.compile(
    r"\s*(?:(?:host|hostaddr|port|dbname|user|password|passfile|service|sslmode)\s*=\s*('[^']*'|\S*)(?:\s+|$)){2}"
)
_SIX = ("load", "save", "exists", "delete", "delete_user", "list_users")
_PLACING = ("_get_file_path", "_get_document_ref")


def open_backend(
    backend: Backend | BackendProtocol | str | os.PathLike[str], durability: Durability | None
) -> Backend:
    """Return the sync backend for a folder, an address or a backend object.

    Raises:
        BackendError: `backend` is not supported, or `durability` is set for a database or a backend object.
        InvalidValue: `durability` is not a valid level.
    """
    if durability is not None:
        check_durability(durability)
    if isinstance(backend, str | os.PathLike):
        return _opened(backend, durability)
    if durability is not None:
        raise BackendError("durability applies to a folder; set it on the backend object.")
    if isinstance(backend, type):
        raise BackendError(
            f"{backend.__name__} is a class. Give an instance of it: {backend.__name__}(…)."
        )
    is_wrapper = _wraps_methods(backend)
    # AsyncVerbs is checked first, because a check of the protocol reads `durability`, which sends a request to Redis.
    if isinstance(backend, AsyncVerbs | Backend) and not is_wrapper:
        _check_overrides(backend)
        return backend
    # From Python 3.12 on, `isinstance` finds no method behind `__getattr__`.
    has_all = is_wrapper and all(hasattr(backend, name) for name in _SIX)
    if has_all or isinstance(backend, BackendProtocol):
        from tomldiary.storage.async_adapter import SixVerbsBackend  # noqa: PLC0415 - rarely needed

        return SixVerbsBackend(cast("BackendProtocol", backend))
    raise BackendError(
        f"{type(backend).__name__} is not a backend: it needs the methods load, save, exists, delete,"
        ' delete_user and list_users. Give such an object, a folder, "memory:", or the URL of a database.'
    )


def _opened(given: str | os.PathLike[str], durability: Durability | None) -> Backend:
    """Return the backend for a folder or an address."""
    place = os.fspath(given)
    if place == "memory:":
        return MemoryBackend()
    if is_shared_url(place):
        if durability is not None:
            raise BackendError(
                "durability applies to a folder; a database server has its own setting."
            )
        return open_url(place)
    if isinstance(given, str) and _SCHEME.match(place):
        raise BackendError(
            f'{without_secrets(place)!r}: there is no backend for this kind of address. Give a folder ("./" before'
            ' a name with a colon), "memory:", a URL that begins with "postgresql://", "redis://" (also for Valkey) or'
            ' "firestore://", or a backend object; docs/backends.md describes how to write one.'
        )
    if _PARAMETERS.match(place):
        raise BackendError(
            "connection parameters, such as 'host=… dbname=…', are not an address. Write"
            " postgresql://user@host:5432/database."
        )
    start = incomplete_start(place)
    if start:
        raise BackendError(
            f"'{start}…': an address has :// after its scheme, and a Path drops a slash."
            " Give the whole address as a str."
        )
    return LocalBackend(place, durability=durability or "full")


def _wraps_methods(backend: object) -> bool:
    """Return whether an object has some of the six methods, and the sync protocol at most through `__getattr__`.

    Its own methods, such as a `save` that encrypts, would not be called through the sync protocol.
    """
    if getattr_static(backend, "commit", None) is not None:
        return False
    return any(
        getattr_static(backend, name, None) not in (None, vars(AsyncVerbs)[name]) for name in _SIX
    )


def _check_overrides(backend: object) -> None:
    """Refuse an object of a subclass of a backend here that overrides async methods, as a diary would not call them.

    Raises:
        BackendError: The backend overrides at least one of the six methods, or a method with which TOMLDiary 0.9 placed
            documents.
    """
    base = next(
        (
            each
            for each in type(backend).__mro__
            if issubclass(each, AsyncVerbs) and each.__module__.startswith("tomldiary.storage.")
        ),
        AsyncVerbs,
    )
    if base is AsyncVerbs:  # a class of its own, which may do more in them
        return
    own = [
        name
        for name in _SIX
        if getattr(getattr(backend, name), "__func__", None) is not getattr(AsyncVerbs, name)
    ]
    own += [name for name in _PLACING if hasattr(backend, name)]
    if own:
        raise BackendError(
            f"{type(backend).__name__} overrides {', '.join(own)} of {base.__name__}, but a diary reads and"
            " writes documents without calling them, so their effect (such as encryption) would be missing."
            " Write a class with the six async methods that does not inherit from"
            f" {base.__name__}; see docs/backends.md."
        )
