"""A hook that keeps a collection of Qdrant up to date."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

from tomldiary.errors import wrong_value
from tomldiary.hooks.embedding import EmbeddingHook, checked_index
from tomldiary.runtime.installation import optional

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tomldiary.hooks.change import Change

_PAGE = 1000  # entries read at a time


class QdrantHook(EmbeddingHook):
    """Stores each entry with text as a point of a Qdrant collection, which is created if it is missing.

    Args:
        client: A `QdrantClient`, the folder of a local database, or ":memory:".
        name: The collection's name.
        embed: Returns a vector for each text.
        text: Returns the text to embed for a change, or "" to leave the entry out; None embeds the entry's text.
        metadata: Returns additional payload fields.

    Raises:
        InvalidValue: An argument has the wrong type.
        MissingExtra: qdrant-client is not installed.
    """

    def __init__(
        self,
        client: Any,
        name: str = "memory",
        *,
        embed: Callable[[list[str]], Sequence[Sequence[float]]],
        text: Callable[[Change], str] | None = None,
        metadata: Callable[[Change], Mapping[str, Any]] | None = None,
    ) -> None:
        qdrant = optional("qdrant_client", "QdrantHook", "qdrant")
        super().__init__(embed, text, metadata)
        self._models: Any = qdrant.models
        if client == ":memory:":
            client = qdrant.QdrantClient(":memory:")
        elif isinstance(client, str | os.PathLike):
            client = qdrant.QdrantClient(
                path=os.fspath(client), force_disable_check_same_thread=True
            )
        self.client: Any = checked_index(client, "a folder or a QdrantClient", "client")
        if embed is None:  # pyright: ignore[reportUnnecessaryComparison] - callers may be untyped
            raise wrong_value(embed, "a function of a list of texts", "embed")
        self.name = name
        self._guard = threading.RLock()  # the local client is not thread-safe

    def _exists(self) -> bool:
        return self.client.collection_exists(self.name)

    def apply(self, changes: Sequence[Change]) -> None:
        """Store or remove the entries."""
        last = {_id(change.user, change.key): change for change in changes}
        kept = {name: text for name, change in last.items() if (text := self.text_of(change))}
        gone = [name for name in last if name not in kept]
        vectors = (self.vectors_of([*kept.values()]) or []) if kept else []
        models = self._models
        with self._guard:
            if vectors and not self._exists():
                size = len(vectors[0])
                params = models.VectorParams(size=size, distance=models.Distance.COSINE)
                self.client.create_collection(self.name, vectors_config=params)
            if gone and self._exists():
                self.client.delete(self.name, points_selector=models.PointIdsList(points=gone))
            if kept:
                self.client.upsert(
                    self.name,
                    [
                        models.PointStruct(
                            id=name, vector=vector, payload=self.fields_of(last[name])
                        )
                        for name, vector in zip(kept, vectors, strict=True)
                    ],
                )

    def _of(self, user: str) -> Any:
        models = self._models
        match = models.FieldCondition(key="user", match=models.MatchValue(value=user))
        return models.Filter(must=[match])

    def _read(self, user: str | None) -> list[dict[str, Any]]:
        only = None if user is None else self._of(user)
        found: list[dict[str, Any]] = []
        offset: Any = None
        with self._guard:
            while self._exists():
                page, offset = self.client.scroll(
                    self.name, scroll_filter=only, limit=_PAGE, offset=offset
                )
                found += [each.payload for each in page]
                if offset is None:
                    break
        return found

    def clear(self) -> None:
        """Remove all entries; the next entry creates the collection again."""
        with self._guard:
            self.client.delete_collection(self.name)

    def search(self, query: str, *, user: str, limit: int) -> list[tuple[str, str, float]]:
        """Return key, digest and score of the nearest entries of a user, best first."""
        vector = (self.vectors_of([query]) or [])[0]
        with self._guard:
            if not self._exists():
                return []
            found = self.client.query_points(
                self.name, query=vector, query_filter=self._of(user), limit=limit
            ).points
        return [(each.payload["key"], each.payload["digest"], each.score) for each in found]


def _id(user: str, key: str) -> str:
    return str(uuid5(NAMESPACE_URL, f"{len(user)}:{user}/{key}"))
