"""What is remembered about a user as LangChain documents."""

from __future__ import annotations

import os  # noqa: TC003 - pydantic reads the annotations
from typing import TYPE_CHECKING, Any, cast

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, ensure_config
from pydantic import field_validator

from tomldiary.diary import Diary
from tomldiary_langchain.identity import Who, resolve_user

if TYPE_CHECKING:
    from langchain_core.callbacks import (
        AsyncCallbackManagerForRetrieverRun,
        CallbackManagerForRetrieverRun,
    )

    from tomldiary.recall import Hit

__all__ = ["DiaryRetriever"]


class DiaryRetriever(BaseRetriever):
    """Returns the `k` entries of a user that match a question best, best first.

    `metadata` of a document holds `kind`, `id`, `score`, `source` (the turn it was taken from, where
    known), `created` and `updated`. The user is `user_id`, or the one the run's config names; a run
    that names none raises before anything is looked up.

        retriever = DiaryRetriever(diary=diary, k=3)
        retriever.invoke("what does she eat?", {"configurable": {"user_id": "alice"}})
    """

    diary: Diary | str | os.PathLike[str]
    """A diary, or the folder of one with the built-in preference table."""
    user_id: Who = None
    """The user, or a function of the run's config; None takes the one of the run."""
    k: int = 5
    """Most documents returned; `invoke(…, k=…)` overrides it."""

    @field_validator("diary", mode="before")
    @classmethod
    def _open(cls, diary: Any) -> Diary:
        return diary if isinstance(diary, Diary) else Diary(diary)

    def invoke(
        self,
        input: str,  # noqa: A002 - the name in LangChain's interface
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Return the documents for a question.

        Raises:
            IdentifierError: Nobody says who the user is.
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
        hits = self._diary.user(user).recall(query, self.k if k is None else k)
        return [_document(hit) for hit in hits]

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,  # noqa: ARG002 - the base class passes it
        user: str = "",
        k: int | None = None,
    ) -> list[Document]:
        hits = await self._diary.user(user).arecall(query, self.k if k is None else k)
        return [_document(hit) for hit in hits]

    @property
    def _diary(self) -> Diary:
        return cast("Diary", self.diary)  # the validator opened it


def _document(hit: Hit) -> Document:
    return Document(
        hit.text,
        id=f"{hit.kind}/{hit.key}",
        metadata={
            "kind": hit.kind,
            "id": hit.key,
            "score": hit.score,
            "source": hit.source,
            "created": hit.created,
            "updated": hit.updated,
        },
    )
