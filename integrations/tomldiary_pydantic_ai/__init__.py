"""Adapters for pydantic-ai: a toolset and a capability for agents, and the agents that extract and compact.

from pydantic_ai import Agent
from tomldiary_pydantic_ai import DiaryToolset

agent = Agent("openai-chat:gpt-5-mini", toolsets=[DiaryToolset("./memories", user_id="alice")])
"""

from __future__ import annotations

from tomldiary.errors import MissingExtra

try:
    from tomldiary_pydantic_ai.agent_memory import AgentMemoryToolset
    from tomldiary_pydantic_ai.capability import DiaryCapability
    from tomldiary_pydantic_ai.compaction import compactor_agent
    from tomldiary_pydantic_ai.extraction import build_extractor, extractor_agent
    from tomldiary_pydantic_ai.harness_store import TomlMemoryStore
    from tomldiary_pydantic_ai.memory_document import (
        DEFAULT_MAX_MEMORY_LINES,
        DEFAULT_MEMORY_DIR,
        DEFAULT_MEMORY_FILENAME,
        DEFAULT_PIN_END_MARKER,
        READ_MEMORY_DESCRIPTION,
        UPDATE_MEMORY_DESCRIPTION,
        WRITE_MEMORY_DESCRIPTION,
        MemoryAccessError,
        MemoryFile,
        format_memory_prompt,
        get_memory_path,
        load_memory,
    )
    from tomldiary_pydantic_ai.toolset import DiaryToolset
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "pydantic_ai":
        raise
    raise MissingExtra("tomldiary_pydantic_ai", "pydantic-ai") from error

__all__ = [
    "DEFAULT_MAX_MEMORY_LINES",
    "DEFAULT_MEMORY_DIR",
    "DEFAULT_MEMORY_FILENAME",
    "DEFAULT_PIN_END_MARKER",
    "READ_MEMORY_DESCRIPTION",
    "UPDATE_MEMORY_DESCRIPTION",
    "WRITE_MEMORY_DESCRIPTION",
    "AgentMemoryToolset",
    "DiaryCapability",
    "DiaryToolset",
    "MemoryAccessError",
    "MemoryFile",
    "TomlMemoryStore",
    "build_extractor",
    "compactor_agent",
    "extractor_agent",
    "format_memory_prompt",
    "get_memory_path",
    "load_memory",
]


def __dir__() -> list[str]:
    return __all__
