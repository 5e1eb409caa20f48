"""A diary's items as LangChain's store of bytes, for caches of embeddings and documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_core.stores import BaseStore

from tomldiary.diary import Diary, diary_of
from tomldiary.store.byte_items import ByteItems

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence


__all__ = ["DiaryByteStore"]


class DiaryByteStore(BaseStore[str, bytes]):
    """Keeps bytes under keys in a namespace of a diary; a `ByteStore`, sync and async.

        CacheBackedEmbeddings.from_bytes_store(embeddings, DiaryByteStore("./memories"))

    Args:
        diary: A diary, or the folder of one with the built-in preference table.
        namespace: The labels of the namespace.
        user_id: Who owns the bytes, so that `forget` removes them with the user; None is the shared owner.

    Raises:
        InvalidValue: The namespace is empty.
    """

    def __init__(
        self,
        diary: Diary | str | os.PathLike[str],
        namespace: Sequence[str] = ("bytes",),
        user_id: str | None = None,
    ) -> None:
        self.diary = diary_of(diary)
        self._items = ByteItems(self.diary, namespace, user_id)

    def __repr__(self) -> str:
        return f"DiaryByteStore({self.diary!r}, {self._items.namespace})"

    def mget(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the bytes of each key; None where there are none."""
        return self._items.get(keys)

    def mset(self, key_value_pairs: Sequence[tuple[str, bytes]]) -> None:
        """Store bytes, all or none."""
        self._items.set(key_value_pairs)

    def mdelete(self, keys: Sequence[str]) -> None:
        """Remove keys; missing ones are no error."""
        self._items.remove(keys)

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """Yield the keys that begin with a prefix."""
        yield from self._items.keys(prefix or "")
