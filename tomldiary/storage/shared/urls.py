"""Opens the backend of an address such as `postgresql://host/database?schema=memories`."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus, urlsplit

from tomldiary.errors import BackendError, InvalidValue
from tomldiary.storage.shared.database import without_secrets

if TYPE_CHECKING:
    from tomldiary.storage.shared.backend import SharedBackend

_SCHEMES = {
    "postgresql": ("postgres", "PostgresBackend"),
    "postgres": ("postgres", "PostgresBackend"),
    "redis": ("redis", "RedisBackend"),
    "rediss": ("redis", "RedisBackend"),
    "unix": ("redis", "RedisBackend"),
    "firestore": ("firestore", "FirestoreBackend"),
}
_INCOMPLETE = re.compile(
    rf"(?:{'|'.join(_SCHEMES)})(?::/|//|(?=.*:.*@|.*\?)[:/])", re.DOTALL | re.IGNORECASE
)


def is_shared_url(place: str) -> bool:
    """Return whether `place` is the address of a shared database."""
    return place.partition("://")[0] in _SCHEMES and "://" in place


def incomplete_start(place: str) -> str:
    """Return the beginning of an address of a shared database that lacks characters of `://`; "" for a folder."""
    found = _INCOMPLETE.match(place)
    return found[0] if found is not None else ""


def open_url(url: str) -> SharedBackend:
    """Return the backend for an address; nothing is connected yet.

    The `options` of the backend in the query are its arguments. Other parameters are passed to the client library.

    Raises:
        BackendError: The address is incomplete or ends with white space, or an option is unknown or not a number.
        InvalidValue: A number is out of its range, or the path of a Firestore address has an odd number of segments.
        MissingExtra: The client library is not installed.
    """
    if url != url.rstrip():  # such as the line break of a file; it would be a part of the last name
        raise BackendError(f"{without_secrets(url.rstrip())}: ends with white space. Remove it.")
    try:
        # A client library may read '#' as a part of a password.
        parts = urlsplit(url, allow_fragments=False)
    except ValueError:  # its message may quote a part of the password
        raise BackendError(
            f"{without_secrets(url)}: is not an address. Percent-encode special characters."
        ) from None
    module, name = _SCHEMES[parts.scheme]
    made: Any = getattr(import_module(f"tomldiary.storage.shared.{module}"), name)
    options: dict[str, Any] = {}
    rest: list[str] = []
    for parameter in filter(None, parts.query.split("&")):
        key, _, value = map(unquote_plus, parameter.partition("="))
        if key not in made.options:
            rest.append(parameter)  # not decoded, because client libraries decode it differently
            continue
        try:
            options[key] = made.options[key](value)
        except ValueError as error:
            raise BackendError(
                f"{parts.scheme}://…: {key}={value!r} is not a valid number. Write a positive number."
            ) from error
    if parts.scheme == "firestore":
        if "#" in url:
            raise BackendError(
                f"{without_secrets(url)}: an address of Firestore cannot contain '#'."
                " Use FirestoreBackend for such a name."
            )
        if not parts.netloc or "@" in parts.netloc:
            raise BackendError(
                f"{without_secrets(url)}: names no project. Write firestore://project/base/path."
            )
        if rest:
            raise BackendError(
                f"firestore://…: there is no option {unquote_plus(rest[0].partition('=')[0])!r}."
                f" The options are {', '.join(made.options)}."
            )
        path = {"base_path": parts.path.strip("/")} if parts.path.strip("/") else {}
        try:
            return made(parts.netloc, **path, **options)
        except ValueError as error:
            raise InvalidValue(" ".join(str(error).split()), where=without_secrets(url)) from error
    # `urlunsplit` would drop the slashes of an address without a host.
    query = f"?{'&'.join(rest)}" if rest else ""
    return made(f"{parts.scheme}://{parts.netloc}{parts.path}{query}", **options)
