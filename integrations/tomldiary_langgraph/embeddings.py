"""What LangGraph's `IndexConfig` says, in the core's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from langgraph.store.base import ensure_embeddings

from tomldiary.errors import InvalidValue
from tomldiary.items.vectors import Embedding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langchain_core.embeddings import Embeddings
    from langgraph.store.base import IndexConfig

    from tomldiary.items.store import Prepared

__all__ = ["Embedder"]

Vectors = tuple["list[list[float]]", "list[list[float]]"]


class Embedder:
    """Embeds what a batch needs, sync or async, with whatever `IndexConfig` takes.

    Args:
        index: LangGraph's `IndexConfig`: `dims`, `embed`, `fields`.

    Raises:
        InvalidValue: `dims` is not a number above 0, or `fields` is no list of paths.
    """

    def __init__(self, index: IndexConfig) -> None:
        given = cast("Mapping[str, Any]", index)
        dims, fields = given.get("dims"), given.get("fields")
        if isinstance(dims, bool) or not isinstance(dims, int) or dims < 1:
            raise InvalidValue(f"expected a number above 0, found {dims!r}.", where="index.dims")
        if fields is None:
            fields = ["$"]
        if not isinstance(fields, list | tuple) or not all(
            isinstance(path, str) for path in cast("Sequence[Any]", fields)
        ):
            raise InvalidValue("expected a list of paths.", where="index.fields")
        self._embeddings: Embeddings = ensure_embeddings(given.get("embed"))
        self.embedding = Embedding(
            dims,
            self._embeddings.embed_documents,
            tuple(cast("Sequence[str]", fields)),
            _name(given.get("embed")),
        )

    def vectors(self, work: Prepared) -> Vectors:
        """Return a vector for each text and each query of a batch."""
        texts = [text for _, text in work.texts]
        made = self._embeddings.embed_documents(texts) if texts else []
        return made, [self._embeddings.embed_query(query) for query in work.queries]

    async def avectors(self, work: Prepared) -> Vectors:
        """Return the same without holding the event loop."""
        texts = [text for _, text in work.texts]
        made = await self._embeddings.aembed_documents(texts) if texts else []
        return made, [await self._embeddings.aembed_query(query) for query in work.queries]


def _name(embed: Any) -> str:
    """Return what tells one model from another: what was asked for, or the object's class and model."""
    if isinstance(embed, str):
        return embed
    given = (getattr(embed, name, None) for name in ("model", "model_name", "model_id"))
    model = next((each for each in given if isinstance(each, str) and each), None)
    kind = getattr(embed, "__qualname__", None) or type(embed).__qualname__
    return str(kind) if model is None else f"{kind} {model}"
