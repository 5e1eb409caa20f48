"""A byte store in one namespace: items with Base64 in the field "bytes", excluded from search and text."""

from __future__ import annotations

import base64
import binascii
from sys import maxsize
from typing import TYPE_CHECKING, cast

from tomldiary.errors import InvalidValue, wrong_type
from tomldiary.store.operations import Get, Item, Put, Search
from tomldiary.store.store import ItemStore
from tomldiary.toml.values import checked_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tomldiary.diary import Diary

__all__ = ["ByteItems"]

_FIELD = "bytes"


class ByteItems:
    """The bytes of one namespace. Thread-safe.

    Args:
        diary: The diary that stores the items.
        namespace: The labels of the namespace.
        user_id: The owner, which becomes the first label; None is the shared owner.

    Raises:
        InvalidValue: The namespace is empty or not a sequence of texts.
    """

    def __init__(self, diary: Diary, namespace: Sequence[str], user_id: str | None = None) -> None:
        labels = checked_names(namespace, "namespace")
        if isinstance(namespace, str) or not labels:
            raise InvalidValue("expected a tuple of labels, such as ('cache',).", where="namespace")
        owner = () if user_id is None else (diary.user(user_id).user_id,)
        self.namespace: tuple[str, ...] = (*owner, *labels)
        self._items = ItemStore(diary, user_label=None if user_id is None else 0)

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of each key, or None for a missing key."""
        names = checked_names(keys, "keys")
        found = self._items.run([Get(self.namespace, key) for key in names])
        return [_decoded(cast("Item | None", each)) for each in found]

    def set(self, pairs: Iterable[tuple[str, bytes]]) -> None:
        """Store all of the bytes atomically.

        Raises:
            InvalidValue: A value is not bytes.
        """
        puts = [Put(self.namespace, key, _encoded(key, value), index=False) for key, value in pairs]
        self._items.run(puts)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove keys; missing keys are ignored."""
        names = checked_names(keys, "keys")
        self._items.run([Put(self.namespace, key, None) for key in names])

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Return the current keys that begin with a prefix."""
        answer = self._items.run([Search(self.namespace, limit=maxsize)])[0]
        return iter(
            [
                each.key
                for each in cast("list[Item]", answer)
                if each.namespace == self.namespace and each.key.startswith(prefix)
            ]
        )


def _encoded(key: str, value: bytes) -> dict[str, str]:
    if not isinstance(value, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise wrong_type(value, "bytes", key)
    return {_FIELD: base64.b64encode(value).decode()}


def _decoded(item: Item | None) -> bytes | None:
    text = None if item is None else item.value.get(_FIELD)
    if not isinstance(text, str):
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidValue(
            "expected Base64 in the field 'bytes'. Correct or remove the item.",
            where=item.key if item is not None else "",
        ) from None
