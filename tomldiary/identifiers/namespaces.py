"""Maps a namespace to the name of its document and back; every namespace of an owner has its own name.

    alice, ("alice", "memories", "work")  items/memories/work    the first label is the owner: left out
    alice, ("memories", "alice")          items/memories/~       another label is the owner
    alice, ("team", "x")                  items/~/team/x         no label is the owner
    alice, ("alice",)                     items/~

Labels are encoded like user ids (see `user_ids`), and without a dot, so that no folder has the name of a file.
A namespace that is too long for a file name is named by its hash, and the document states the namespace.
The further documents of a namespace are `work~2`, `work~3` and so on.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import Any, cast
from urllib.parse import unquote_to_bytes

from tomldiary.errors import InvalidValue
from tomldiary.identifiers.user_ids import encode_folder
from tomldiary.runtime.forgettable_cache import cleared_on_forget

Namespace = tuple[str, ...]

ROOT = "items/"
"""The prefix of the names of all documents with items."""
SHARED = "\0shared"
"""The owner of namespaces without an owner; it cannot be a label or a user id."""

_OWNER = "~"
_HASHED = "~h"
_LONGEST = 150  # characters of a document's staged file name; see storage.local.layout
_HASH = re.compile("~h?[0-9a-f]{64}")
_BEYOND = re.compile(r"[.@+,=]")


@cleared_on_forget
@lru_cache(maxsize=8192)
def document_of(user: str, namespace: Namespace) -> str:
    """Return the name of the first document of a namespace.

    Raises:
        InvalidValue: The namespace is empty, or a label cannot be stored in a file.
    """
    if not namespace:
        raise InvalidValue("a namespace needs at least one label.", where="namespace")
    for label in namespace:
        _check_label(label)
    name = "/".join(_parts(user, namespace))
    if len(name) + 2 * (name.count("%") + name.count("/")) > _LONGEST:
        digest = sha256("\0".join(namespace).encode()).hexdigest()
        name = f"{_HASHED}{digest}"
    return f"{ROOT}{name}"


def _check_label(label: str) -> None:
    if not label or "\0" in label:
        raise InvalidValue("a label must be a non-empty string without NUL.", where="namespace")
    try:
        label.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidValue(
            f"the label {label!r} holds half of a surrogate pair, which no file can store.",
            where="namespace",
        ) from None


def _parts(user: str, namespace: Namespace) -> list[str]:
    if user == SHARED:
        return [_encoded(label) for label in namespace]
    if namespace[0] == user:
        return [_encoded(label) for label in namespace[1:]] or [_OWNER]
    parts = [_OWNER if label == user else _encoded(label) for label in namespace]
    return parts if _OWNER in parts else [_OWNER, *parts]


def _encoded(label: str) -> str:
    return _BEYOND.sub(lambda found: f"%{ord(found.group()):02x}", encode_folder(label))


def namespace_of(user: str, document: str) -> Namespace | None:
    """Return the namespace of a document by its name; None if the name does not contain it."""
    parts = document.removeprefix(ROOT).split("/")
    if user != SHARED and _OWNER not in parts:
        parts = [_OWNER, *parts]
    elif parts[0] == _OWNER and len(parts) > 1:
        del parts[0]  # no label is the owner
    try:
        found = tuple(user if part == _OWNER else _decoded(part) for part in parts)
        return found if document_of(user, found) == document else None
    except (UnicodeDecodeError, InvalidValue):
        return None


def stated_namespace(user: str, document: str, labels: object) -> Namespace | None:
    """Return the namespace that a document with a hashed name states; None if its name is of another one."""
    if not isinstance(labels, list):
        return None
    found = tuple(map(str, cast("list[Any]", labels)))
    try:
        return found if document_of(user, found) == document else None
    except InvalidValue:  # a label was written by hand
        return None


def labels_up_to(user: str, owner: str, document: str) -> Namespace | None:
    """Return the labels of another owner's namespace up to the first label that equals `user`, or None.

    A namespace with a hashed name is not searched.
    """
    found = namespace_of(owner, document) if document.startswith(ROOT) else None
    return None if found is None or user not in found else found[: found.index(user) + 1]


def is_hashed(document: str) -> bool:
    """Return whether the name of a document is a hash, so that only its content states the namespace."""
    return any(_HASH.fullmatch(part) for part in document.split("/"))


def _decoded(part: str) -> str:
    return unquote_to_bytes(part).decode()
