"""TOMLDiary 0.9 in Firestore: the two documents of a user at `firestore://project/base/path`."""

from __future__ import annotations

from tomldiary.errors import InvalidValue
from tomldiary.importers.records import Found
from tomldiary.storage.shared.database import without_secrets
from tomldiary.storage.shared.urls import open_url

__all__ = ["read"]

_SCHEME = "firestore://"
_KINDS = ("preferences", "conversations")


def read(place: str, user: str) -> Found:
    """Read the unchanged documents of a user."""
    if not place.startswith(_SCHEME):
        raise InvalidValue(
            "expected an address such as firestore://project/base/path",
            where=without_secrets(place),
        )
    backend, found = open_url(place), Found()
    for kind in _KINDS:
        stored = backend.read(user, kind)
        if stored is not None:
            found.documents[kind] = stored.text
    if not found.documents:
        found.users.update(backend.users())
    return found
