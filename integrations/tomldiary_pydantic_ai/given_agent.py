"""An extraction agent of the application's own: one without the diary's tools is given them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.agent import WrapperAgent

from tomldiary.entries.schema import categories_doc
from tomldiary.extraction.draft import MemoryDeps
from tomldiary.extraction.prompt import EXTRACTION_PROMPT, draft_prompt
from tomldiary.extraction.tools import EXTRACTION_TOOLS
from tomldiary.logging import get_logger
from tomldiary_pydantic_ai.agents import agent_tools, prompt_text
from tomldiary_pydantic_ai.models import LoopModel, agent_model

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_ai.agent import AbstractAgent

__all__ = ["equipped"]

_NAMES = frozenset(function.__name__ for function in EXTRACTION_TOOLS)
_logger = get_logger(__name__)


def equipped(
    agent: AbstractAgent[Any, Any], pref_table_cls: type[BaseModel], prompt_template: object = None
) -> Agent[MemoryDeps, str]:
    """Return an agent that can update a diary: the one given, with the six tools if it has none of them.

    An agent that works on the draft with tools of its own says so by `deps_type=MemoryDeps`.
    """
    if _has_tools(agent):
        return cast("Agent[MemoryDeps, str]", agent)
    _logger.info("the agent has no tools for the diary; it is given them")
    prompt = prompt_text(prompt_template, EXTRACTION_PROMPT)
    twin = _Equipped(agent, prompt, categories_doc(pref_table_cls))
    return cast("Agent[MemoryDeps, str]", twin)


def _has_tools(agent: AbstractAgent[Any, Any]) -> bool:
    found: set[str] = set()
    for toolset in agent.toolsets:
        if not isinstance(toolset, FunctionToolset):
            return True  # its tools are known only when it runs
        found |= toolset.tools.keys()
    deps_type: Any = getattr(agent, "deps_type", object)
    is_for_drafts = isinstance(deps_type, type) and issubclass(deps_type, MemoryDeps)
    return bool(found & _NAMES) or (bool(found) and is_for_drafts)


class _Equipped(WrapperAgent[Any, Any]):
    """An agent whose runs have the diary's tools and prompt."""

    def __init__(self, wrapped: AbstractAgent[Any, Any], prompt: str, categories: str) -> None:
        super().__init__(wrapped)
        self._prompt = prompt
        self._categories = categories
        self._tools: Any = FunctionToolset(
            agent_tools(EXTRACTION_TOOLS, MemoryDeps), id="diary-extraction"
        )

    async def run(self, user_prompt: Any = None, *, deps: Any = None, **options: Any) -> Any:
        model = options.pop("model", None) or self.wrapped.model
        if model is not None and not isinstance(model, LoopModel):
            model = agent_model(model)
        return await self.wrapped.run(
            user_prompt,
            deps=deps,
            model=model,
            instructions=draft_prompt(deps, self._prompt, self._categories),
            toolsets=[self._tools, *options.pop("toolsets", ())],
            **options,
        )
