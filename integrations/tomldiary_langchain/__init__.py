"""Adapters for LangChain: middleware, tools, a retriever, a byte store, and extraction with any chat model.

from tomldiary_langchain import ChatModelExtractor, DiaryMiddleware, DiaryRetriever, diary_tools
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tomldiary.errors import MissingExtra

if find_spec("langchain_core") is None:
    raise MissingExtra("tomldiary_langchain", "langchain")

from tomldiary_langchain.byte_store import DiaryByteStore
from tomldiary_langchain.extractor import ChatModelExtractor
from tomldiary_langchain.retriever import DiaryRetriever
from tomldiary_langchain.tools import diary_tools

if TYPE_CHECKING:
    from tomldiary_langchain.middleware import DiaryMiddleware

__all__ = [
    "ChatModelExtractor",
    "DiaryByteStore",
    "DiaryMiddleware",
    "DiaryRetriever",
    "diary_tools",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # with this function, type checkers would accept any name

    def __getattr__(name: str) -> Any:
        """Import the middleware on first access; only it needs `langchain`, the rest needs `langchain-core`."""
        if name != "DiaryMiddleware":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from tomldiary_langchain.middleware import DiaryMiddleware  # noqa: PLC0415 - see above
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in {"langchain", "langgraph"}:
                raise
            raise MissingExtra("DiaryMiddleware", "langchain") from error
        return DiaryMiddleware
