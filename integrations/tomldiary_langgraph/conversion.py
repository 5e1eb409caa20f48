"""Converts LangGraph's operations and index to those of the core, and the core's items to those of LangGraph."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    PutOp,
    SearchItem,
    SearchOp,
    ensure_embeddings,
    validate_op_namespace,
)
from langgraph.store.base.embed import EmbeddingsLambda

from tomldiary.agents.options import checked_count, checked_names, known_keys, one_of
from tomldiary.errors import InvalidValue, wrong_type
from tomldiary.retrieval.embedders import check_takes_texts, name_of
from tomldiary.retrieval.vector_index import Embedding
from tomldiary.runtime.async_bridge import in_daemon_thread, is_private_loop
from tomldiary.store.operations import Condition, Get, List, Operation, Put, Search, listed_labels
from tomldiary.store.operations import Item as Stored

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from langgraph.store.base import IndexConfig, Op, Result

    from tomldiary.store.batch import PreparedBatch
    from tomldiary.store.operations import Result as Answer


def operation(op: Op) -> Operation:
    """Return the core's operation for one of LangGraph's.

    Raises:
        ValueError: It is none, or a namespace has a label that LangGraph does not allow.
    """
    if isinstance(op, PutOp):
        given: Any = op  # its types are checked when it is prepared
        labels = _checked_labels(op, op.namespace)
        return Put(labels, given.key, given.value, given.index, given.ttl)
    if isinstance(op, GetOp):
        return Get(_checked_labels(op, op.namespace), op.key, op.refresh_ttl)
    if isinstance(op, SearchOp):
        labels = _checked_labels(op, op.namespace_prefix)
        return Search(labels, op.filter, op.limit, op.offset, op.query, op.refresh_ttl)
    if not isinstance(op, ListNamespacesOp):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise wrong_type(op, "a GetOp, SearchOp, PutOp or ListNamespacesOp", "ops")
    conditions = [
        Condition(each.match_type, _checked_labels(GetOp(each.path, ""), each.path))
        for each in op.match_conditions or ()
    ]
    return List(tuple(conditions), op.max_depth, op.limit, op.offset)


def result(answer: Answer) -> Result:
    """Return the result of an operation in LangGraph's types."""
    if isinstance(answer, Stored):
        return item(answer)
    if answer and isinstance(answer[0], Stored):
        return [SearchItem(**each._asdict()) for each in cast("list[Stored]", answer)]
    found: Any = answer
    return found


def item(found: Stored) -> Item:
    """Return an item in LangGraph's type."""
    namespace, key, value, created_at, updated_at, _ = found
    return Item(
        namespace=namespace, key=key, value=value, created_at=created_at, updated_at=updated_at
    )


def check_written(namespace: tuple[str, ...]) -> None:
    """Check a namespace with LangGraph's rules for writing, as `put` does.

    Raises:
        InvalidNamespaceError: It is empty, begins with "langgraph", or has a label that is not allowed.
    """
    _checked_labels(PutOp(namespace, "", None), namespace)
    if not namespace:
        raise InvalidNamespaceError("Namespace cannot be empty.")
    if namespace[0] == "langgraph":
        raise InvalidNamespaceError('Root label for namespace cannot be "langgraph".')


def _checked_labels(op: Op, labels: Any) -> tuple[str, ...]:
    """Return the labels of an operation, which LangGraph allows."""
    listed = listed_labels(labels)
    validate_op_namespace(op)
    return listed


# Three are of PostgresStore and SqliteStore. `text_fields` is SqliteStore's name for `fields`; a cosine
# over all vectors needs no other setting.
_KEYS = ("dims", "embed", "fields", "ann_index_config", "distance_type", "text_fields", "ranking")
_RANKINGS = ("fused", "cosine")

Vectors = tuple["Sequence[Sequence[float]]", "Sequence[Sequence[float]]"]


class Embedder:
    """Embeds the texts and the queries of a batch, sync or async.

    Args:
        index: LangGraph's `IndexConfig`: `dims`, `embed`, `fields` (or `text_fields`), and `ranking`: "fused" (words and vectors,
            the default) or "cosine".

    Raises:
        InvalidValue: `dims` is no whole number above 0, `embed` has an unsupported type, `fields` is no list of paths,
            or `text_fields` differs from it.
    """

    def __init__(self, index: IndexConfig) -> None:
        given = cast("Mapping[str, Any]", index)
        known_keys("index", given, _KEYS)
        dims = checked_count(given.get("dims"), "index.dims", least=1)
        fields = _embedded(given)
        one_of("index.ranking", given.get("ranking", "fused"), _RANKINGS)
        embed = _checked(given.get("embed"))
        self.embeddings: Embeddings = ensure_embeddings(embed)
        self._is_function = isinstance(self.embeddings, EmbeddingsLambda)
        self._is_async_alone = self._is_function and not hasattr(self.embeddings, "func")
        self.embedding = Embedding(
            dims,
            self.embeddings.embed_documents,
            fields,
            name_of(embed),
            is_cosine=given.get("ranking") == "cosine",
        )

    def vectors(self, work: PreparedBatch) -> Vectors:
        """Return a vector for each text and each query of a batch.

        Raises:
            InvalidValue: The embedder returned another number of vectors.
        """
        texts, made = work.all_texts, self.embedding.checked
        found: Sequence[Sequence[float]] = []
        with self._named_in_errors():
            if texts:
                found = made(self.embeddings.embed_documents(texts), len(texts))
            if not self._is_function:
                return found, [self.embeddings.embed_query(query) for query in work.queries]
            asked = [self.embeddings.embed_documents([query]) for query in work.queries]
            return found, [made(each, 1)[0] for each in asked]

    async def avectors(self, work: PreparedBatch) -> Vectors:
        """Return the same without holding the event loop.

        In an event loop of this package, where an extractor may run, the sync methods are called in a thread:
        async clients belong to the event loop of the host.
        """
        if is_private_loop() and not self._is_async_alone:
            return await in_daemon_thread(self.vectors, work)
        texts, made = work.all_texts, self.embedding.checked
        found: Sequence[Sequence[float]] = []
        with self._named_in_errors():
            if texts:
                found = made(await self.embeddings.aembed_documents(texts), len(texts))
            if not self._is_function:
                return found, [await self.embeddings.aembed_query(query) for query in work.queries]
            asked = [await self.embeddings.aembed_documents([query]) for query in work.queries]
            return found, [made(each, 1)[0] for each in asked]

    @contextmanager
    def _named_in_errors(self) -> Generator[None]:
        """Add the name of the embedder as a note to what it raises."""
        try:
            yield
        except InvalidValue:  # it has the name
            raise
        except Exception as error:
            error.add_note(f"raised while {self.embedding.title} embedded texts (index.embed)")
            raise


def _checked(embed: Any) -> Any:
    """Return the option `embed` unchanged.

    Raises:
        InvalidValue: LangGraph does not support its type, or it is a function with other parameters.
    """
    is_class = isinstance(embed, type)
    if is_class or not (isinstance(embed, str | Embeddings) or callable(embed)):
        found = f"the class {embed.__name__}" if is_class else type(embed).__name__
        raise InvalidValue(
            f"expected Embeddings, a function of a list of texts or the name of a model, found {found}.",
            where="index.embed",
        )
    if not isinstance(embed, str | Embeddings):
        check_takes_texts(embed, "index.embed")
    return embed


def _embedded(index: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths of the texts to embed, from either of the two keys."""
    given = {
        name: checked_names(index[name], f"index.{name}")
        for name in ("fields", "text_fields")
        if index.get(name) is not None
    }
    if len(set(given.values())) > 1:
        raise InvalidValue(
            f"it differs from fields={given['fields']!r}. Give one of them.",
            where="index.text_fields",
        )
    return next(iter(given.values()), ("$",))
