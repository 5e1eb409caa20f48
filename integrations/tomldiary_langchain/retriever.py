"""A retriever that returns a user's entries as LangChain documents."""

from __future__ import annotations

import json
import os  # noqa: TC003 - pydantic reads the annotations
from collections.abc import Collection  # noqa: TC003 - the same
from typing import TYPE_CHECKING, Any, cast

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, ensure_config
from pydantic import ConfigDict, Field, PrivateAttr, field_validator

from tomldiary.agents.identity import checked_id
from tomldiary.agents.options import checked_count
from tomldiary.diary import Diary, diary_of
from tomldiary.entries.kinds import ITEMS
from tomldiary.identifiers.namespaces import document_of
from tomldiary.retrieval.filters import compile_filter
from tomldiary.runtime.async_bridge import in_thread
from tomldiary.store.operations import Item, Search, is_typed
from tomldiary.store.store import ItemStore
from tomldiary.text.visible import visible
from tomldiary.user.recall import kinds_named
from tomldiary_langchain.identity import Who, follow_runs, resolve_user

if TYPE_CHECKING:
    from langchain_core.callbacks import (
        AsyncCallbackManagerForRetrieverRun,
        CallbackManagerForRetrieverRun,
    )

    from tomldiary.user.recall import Hit

_MANY = 10_000  # entries looked at where a filter chooses among them
_USER = "{user_id}"


class DiaryRetriever(BaseRetriever):
    """Returns the `k` entries of a user that match a question best, best first.

    The `metadata` of a document has `kind`, `id`, `score`, `source` (the turn of the entry, if known), `created` and
    `updated`. The user is `user_id`, or the one that the run's config names. A run that names none raises before the
    search.

        retriever = DiaryRetriever(diary=diary, k=3)
        retriever.invoke("what does she eat?", {"configurable": {"user_id": "alice"}})
    """

    diary: Diary | str | os.PathLike[str]
    """A diary, or a folder or an address, which gets the built-in preference table."""
    user_id: Who = None
    """The user, or a function of the run's config; None looks it up in the run."""
    k: int = Field(default=5, ge=1)
    """The maximum number of documents; `invoke(…, k=…)` overrides it."""
    kinds: Collection[str] | None = None
    """The kinds to search: "preferences", "conversations", "facts", "blocks", "episodes", "items"; None is all, `()`
    is none."""
    items: tuple[str, ...] | None = None
    """The namespace whose items are searched, without its first label (the user), such as `("memories",)`; `()` is all
    namespaces of the user. "{user_id}" in it is replaced by the user. The metadata of items has `namespace`."""
    filter: dict[str, Any] | None = None
    """Conditions for the metadata of documents, as in `DiaryStore.search`. For the items that `items` names, they are for
    the values."""
    score_threshold: float | None = Field(default=None, ge=0, le=1)
    """The minimum score, from 0 to 1."""
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    _stores: dict[tuple[Diary, int], ItemStore] = PrivateAttr({})
    """By the diary and the place of the user in a namespace, which may change in a copy of the retriever."""

    @field_validator("diary", mode="before")
    @classmethod
    def _open(cls, diary: Any) -> Diary:
        follow_runs()
        return diary_of(diary)

    @field_validator("user_id")
    @classmethod
    def _check_user(cls, user_id: Who) -> Who:
        return checked_id("user_id", user_id, "config")

    @field_validator("kinds")
    @classmethod
    def _check_kinds(cls, kinds: Collection[str] | None) -> Collection[str] | None:
        kinds_named(kinds)
        return kinds

    @field_validator("filter")
    @classmethod
    def _check_filter(cls, conditions: dict[str, Any] | None) -> dict[str, Any] | None:
        if conditions is not None:
            compile_filter(conditions)
        return conditions

    def invoke(
        self,
        input: str,  # noqa: A002 - the name in LangChain's interface
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Return the documents for a question.

        Raises:
            IdentifierError: The run names no user.
            InvalidValue: `k` is no whole number of at least 1.
        """
        kwargs["user"] = resolve_user(self.user_id, ensure_config(config))
        return super().invoke(input, config, **kwargs)

    async def ainvoke(
        self,
        input: str,  # noqa: A002 - the name in LangChain's interface
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Return the documents for a question; raises like `invoke`."""
        kwargs["user"] = resolve_user(self.user_id, ensure_config(config))
        return await super().ainvoke(input, config, **kwargs)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002 - the base class passes it
        user: str = "",
        k: int | None = None,
    ) -> list[Document]:
        return self._found(query, user, k)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,  # noqa: ARG002 - the base class passes it
        user: str = "",
        k: int | None = None,
    ) -> list[Document]:
        return await in_thread(self._found, query, user, k)

    def _found(self, query: str, user: str, given: int | None) -> list[Document]:
        k = self.k if given is None else checked_count(given, "k", least=1)
        fits = None if self.filter is None else compile_filter(self.filter)
        found: list[Document] = []
        kinds = self.kinds
        if self.items is not None:
            kinds = {kind.name for kind in kinds_named(kinds)} - {ITEMS.name}
        if kinds is None or kinds:
            most = k if fits is None else _MANY
            hits = self._diary.user(user).recall(query, most, kinds=kinds)
            documents = map(_document, hits)
            found += [each for each in documents if fits is None or fits(each.metadata)]
        if self.items is not None:
            found += self._found_items(query, user, k)
        if self.score_threshold is not None:
            found = [each for each in found if each.metadata["score"] >= self.score_threshold]
        return sorted(found, key=lambda each: -each.metadata["score"])[:k]

    def _found_items(self, query: str, user: str, k: int) -> list[Document]:
        labels = self.items or ()
        if _USER in labels:
            place = labels.index(_USER)
            prefix = tuple(user if label == _USER else label for label in labels)
        else:
            place, prefix = 0, (user, *labels)
        key = self._diary, place
        if key not in self._stores:
            self._stores[key] = ItemStore(self._diary, user_label=place)
        most = k if labels else _MANY  # below the user alone are the typed entries, too
        search = Search(prefix, filter=self.filter, limit=most, query=query)
        found = cast("list[Item]", self._stores[key].run([search])[0])
        return [
            _item_document(user, each)
            for each in found
            if each.score and not is_typed(each.namespace)
        ]

    @property
    def _diary(self) -> Diary:
        return cast("Diary", self.diary)  # the validator opened it


def _document(hit: Hit) -> Document:
    return Document(
        visible(hit.text),
        id=hit.full_key if hit.kind == "items" else f"{hit.kind}/{hit.key}",
        metadata={
            "kind": hit.kind,
            "id": hit.key,
            "score": hit.score,
            "source": hit.source,
            "created": hit.created,
            "updated": hit.updated,
        },
    )


def _item_document(user: str, item: Item) -> Document:
    text = item.value.get("content") or item.value.get("text")
    return Document(
        visible(text if isinstance(text, str) else json.dumps(item.value, ensure_ascii=False)),
        id=ITEMS.key((document_of(user, item.namespace), item.key)),
        metadata={
            "kind": "items",
            "id": item.key,
            "namespace": item.namespace,
            "score": item.score,
            "source": "",
            "created": item.created_at.isoformat(),
            "updated": item.updated_at.isoformat(),
        },
    )
