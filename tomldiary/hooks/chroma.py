"""A hook that keeps a collection of Chroma up to date."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tomldiary.errors import wrong_value
from tomldiary.hooks.embedding import EmbeddingHook, checked_index
from tomldiary.runtime.installation import optional

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tomldiary.hooks.change import Change

_PAGE = 1000  # entries read at a time
_SPACES = ("cosine", "ip", "l2")


class ChromaHook(EmbeddingHook):
    """Stores each entry with text as a document of a Chroma collection.

    Args:
        collection: A Chroma collection, or the folder of a local database.
        name: The collection's name in the folder.
        embed: Returns a vector for each text; None uses the collection's embedding, which may load a model.
        text: Returns the text to embed for a change, or "" to leave the entry out; None embeds the entry's text.
        metadata: Returns additional metadata, whose values are text, numbers or bools.
        space: The distance function of the given collection: "cosine", "ip" or "l2".

    Raises:
        InvalidValue: `space` is not a supported distance function, or another argument has the wrong type.
        MissingExtra: A folder is given, and chromadb is not installed.
    """

    def __init__(
        self,
        collection: Any,
        name: str = "memory",
        *,
        embed: Callable[[list[str]], Sequence[Sequence[float]]] | None = None,
        text: Callable[[Change], str] | None = None,
        metadata: Callable[[Change], Mapping[str, Any]] | None = None,
        space: str = "cosine",
    ) -> None:
        super().__init__(embed, text, metadata)
        if space not in _SPACES:
            raise wrong_value(space, ", ".join(_SPACES), "space")
        is_place = isinstance(collection, str | os.PathLike)
        found = _opened(os.fspath(collection), name) if is_place else collection
        expected = "a folder or a collection, such as client.get_or_create_collection(name)"
        self.collection = checked_index(found, expected, "collection")
        self._space = space
        # A query may fail while entries are removed.
        self._lock = threading.Lock()

    def apply(self, changes: Sequence[Change]) -> None:
        """Store or remove the entries."""
        last = {_id(change.user, change.key): change for change in changes}
        kept = {name: text for name, change in last.items() if (text := self.text_of(change))}
        gone = [name for name in last if name not in kept]
        if gone:
            with self._lock:
                self.collection.delete(ids=gone)
        if kept:
            texts = [*kept.values()]
            fields = [self.fields_of(last[name]) for name in kept]
            vectors = self.vectors_of(texts)
            with self._lock:
                self.collection.upsert(
                    ids=[*kept], documents=texts, metadatas=fields, embeddings=vectors
                )

    def _read(self, user: str | None) -> list[dict[str, Any]]:
        where = None if user is None else {"user": user}
        found: list[dict[str, Any]] = []
        while True:
            page = self.collection.get(
                where=where, include=["metadatas"], limit=_PAGE, offset=len(found)
            )["metadatas"]
            found += page
            if len(page) < _PAGE:
                return found

    def clear(self) -> None:
        """Remove all entries."""
        while ids := self.collection.get(include=[], limit=_PAGE)["ids"]:
            with self._lock:
                self.collection.delete(ids=ids)

    def search(self, query: str, *, user: str, limit: int) -> list[tuple[str, str, float]]:
        """Return key, digest and score of the nearest entries of a user, best first."""
        vectors = self.vectors_of([query])
        with self._lock:
            found = self.collection.query(
                query_texts=[query] if vectors is None else None,
                query_embeddings=vectors,
                n_results=limit,
                where={"user": user},
                include=["metadatas", "distances"],
            )
        return [
            (each["key"], each["digest"], self._score(distance))
            for each, distance in zip(found["metadatas"][0], found["distances"][0], strict=True)
            if each is not None  # removed during the query
        ]

    def _score(self, distance: float) -> float:
        return 1.0 / (1.0 + distance) if self._space == "l2" else 1.0 - distance


def _opened(folder: str, name: str) -> Any:
    chromadb = optional("chromadb", "ChromaHook", "chroma")
    settings = chromadb.Settings(anonymized_telemetry=False)
    client = chromadb.PersistentClient(folder, settings=settings)
    return client.get_or_create_collection(name, metadata={"hnsw:space": "cosine"})


def _id(user: str, key: str) -> str:
    return f"{quote(user, safe='')}/{key}"
