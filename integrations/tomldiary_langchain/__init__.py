"""One memory behind LangChain: a retriever, tools, and extraction with any chat model.

from tomldiary_langchain import ChatModelExtractor, DiaryRetriever, diary_tools
"""

from __future__ import annotations

from importlib.util import find_spec

from tomldiary.errors import MissingExtra

if find_spec("langchain_core") is None:
    raise MissingExtra("tomldiary_langchain", "langchain")

from tomldiary_langchain.extractor import ChatModelExtractor
from tomldiary_langchain.retriever import DiaryRetriever
from tomldiary_langchain.tools import diary_tools

__all__ = ["ChatModelExtractor", "DiaryRetriever", "diary_tools"]
