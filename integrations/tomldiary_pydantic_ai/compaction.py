"""The agent that compacts a large diary: it merges, shortens and removes redundant entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic_ai import Agent

from tomldiary.compaction.draft import CompactionDeps
from tomldiary.compaction.tools import COMPACTION_TOOLS
from tomldiary.extraction.prompt import COMPACTION_PROMPT, prompt_text
from tomldiary_pydantic_ai.extraction import agent_tools
from tomldiary_pydantic_ai.models import agent_model

if TYPE_CHECKING:
    from tomldiary_pydantic_ai.models import ModelChoice

_RETRIES = 3


def compactor_agent(
    model_name: ModelChoice = None, prompt_template: object = None
) -> Agent[CompactionDeps, str]:
    """Return an agent that compacts a diary; it needs no API key until it runs.

    `Diary(compaction_config=…)` uses it unless it is given a compactor. A run stops after 50 requests to the model, which is
    the framework's default limit.

    Args:
        model_name: A model or its name, or several: each is used if those before it failed. None takes
            $EXTRACTOR_MODEL, or else the default model.
        prompt_template: Other instructions: a text, the path of a file, or an object with `prompt`.

    Raises:
        InvalidValue: `model_name` is no model, or `prompt_template` is no prompt.
    """
    return Agent(
        agent_model(model_name),
        deps_type=CompactionDeps,
        name="diary_compactor",
        instructions=prompt_text(prompt_template, COMPACTION_PROMPT),
        tools=agent_tools(COMPACTION_TOOLS, CompactionDeps),
        retries=_RETRIES,
    )
