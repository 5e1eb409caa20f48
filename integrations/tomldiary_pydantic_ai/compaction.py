"""The agent that cleans up a diary which has grown: merges, shortens and removes what is covered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic_ai import Agent, RunContext

from tomldiary.compaction.draft import CompactionDeps
from tomldiary.compaction.tools import COMPACTION_TOOLS
from tomldiary.extraction.prompt import COMPACTION_PROMPT, prompt_text
from tomldiary_pydantic_ai.extraction import agent_tools, check_requests
from tomldiary_pydantic_ai.models import agent_model

if TYPE_CHECKING:
    from tomldiary_pydantic_ai.models import ModelChoice

__all__ = ["compactor_agent"]

_RETRIES = 3
# A full diary holds some hundred blocks, and some models call one tool at a time.
_MAX_REQUESTS = 50  # the framework's own limit


def compactor_agent(
    model_name: ModelChoice = None, prompt_template: object = None
) -> Agent[CompactionDeps, str]:
    """Return an agent that cleans up a diary; needs no key until it runs.

    It is what `Diary(compaction_config=…)` uses unless it is given a compactor. A run is stopped
    after 50 requests to the model.

    Args:
        model_name: A model or its name, or several to be asked in turn; None is $EXTRACTOR_MODEL, or else the default model.
        prompt_template: Other instructions: a text, the path of one, or an object with `prompt`.

    Raises:
        InvalidValue: `model_name` is no model.
    """
    prompt = prompt_text(prompt_template, COMPACTION_PROMPT)

    async def instructions(ctx: RunContext[CompactionDeps]) -> str:
        check_requests(ctx, _MAX_REQUESTS)
        return prompt

    return Agent(
        agent_model(model_name),
        deps_type=CompactionDeps,
        name="diary_compactor",
        instructions=instructions,
        tools=agent_tools(COMPACTION_TOOLS, CompactionDeps),
        retries=_RETRIES,
    )
