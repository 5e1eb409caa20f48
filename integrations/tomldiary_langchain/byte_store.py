"""A diary's items as LangChain's store of bytes, for caches of embeddings and documents.

The bytes are in Base64 in the field "bytes" of an item, which is excluded from search and text.
"""

from __future__ import annotations

import base64
from sys import maxsize
from typing import TYPE_CHECKING, cast

from langchain_core.stores import BaseStore

from tomldiary.agents.options import checked_names
from tomldiary.diary import Diary, diary_of
from tomldiary.errors import InvalidValue, wrong_type
from tomldiary.store.operations import Get, Item, Put, Search
from tomldiary.store.store import ItemStore

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence


_FIELD = "bytes"


class DiaryByteStore(BaseStore[str, bytes]):
    """Keeps bytes under keys in a namespace of a diary; a `ByteStore`, sync and async.

        CacheBackedEmbeddings.from_bytes_store(embeddings, DiaryByteStore("./memories"))

    Args:
        diary: A diary, or a folder or an address, which gets the built-in preference table.
        namespace: The labels of the namespace.
        user_id: Who owns the bytes, so that `forget` removes them with the user; None is the shared owner.

    Raises:
        InvalidValue: The namespace is empty or not a sequence of texts.
    """

    def __init__(
        self,
        diary: Diary | str | os.PathLike[str],
        namespace: Sequence[str] = ("bytes",),
        user_id: str | None = None,
    ) -> None:
        self.diary = diary_of(diary)
        labels = checked_names(namespace, "namespace")
        if isinstance(namespace, str) or not labels:
            raise InvalidValue("expected a tuple of labels, such as ('cache',).", where="namespace")
        owner = () if user_id is None else (self.diary.user(user_id).user_id,)
        self._namespace: tuple[str, ...] = (*owner, *labels)
        self._items = ItemStore(self.diary, user_label=None if user_id is None else 0)

    def __repr__(self) -> str:
        return f"DiaryByteStore({self.diary!r}, {self._namespace})"

    def mget(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of each key; None where there are none."""
        names = checked_names(keys, "keys")
        found = self._items.run([Get(self._namespace, key) for key in names])
        return [_decoded(cast("Item | None", each)) for each in found]

    def mset(self, key_value_pairs: Sequence[tuple[str, bytes]]) -> None:
        """Store bytes, all or none.

        Raises:
            InvalidValue: A value is not bytes.
        """
        self._items.run(
            [
                Put(self._namespace, key, _encoded(key, value), index=False)
                for key, value in key_value_pairs
            ]
        )

    def mdelete(self, keys: Sequence[str]) -> None:
        """Remove keys; missing ones are no error."""
        names = checked_names(keys, "keys")
        self._items.run([Put(self._namespace, key, None) for key in names])

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """Yield the keys that begin with a prefix."""
        answer = self._items.run([Search(self._namespace, limit=maxsize)])[0]
        for each in cast("list[Item]", answer):
            if each.namespace == self._namespace and each.key.startswith(prefix or ""):
                yield each.key


def _encoded(key: str, value: bytes) -> dict[str, str]:
    if not isinstance(value, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise wrong_type(value, "bytes", key)
    return {_FIELD: base64.b64encode(value).decode()}


def _decoded(item: Item | None) -> bytes | None:
    text = None if item is None else item.value.get(_FIELD)
    if item is None or not isinstance(text, str):
        return None
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise InvalidValue(
            "expected Base64 in the field 'bytes'. Correct or remove the item.", where=item.key
        ) from None
