"""From what a user calls an agent to an extractor: a name, a model, an agent, or nothing at all."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tomldiary.errors import MissingExtra
from tomldiary.extraction.protocol import Extractor, as_extractor
from tomldiary.extraction.rules.offline import RulesExtractor

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["DEFAULT_MODEL", "load_factory", "resolve_extractor", "setup_problem"]

GROUP = "tomldiary.extractors"
"""Entry-point group through which the adapters offer factories; the core imports none of them."""
DEFAULT_MODEL = "openai-chat:gpt-5-mini"
"""The model that is asked for when neither `agent` nor $EXTRACTOR_MODEL names one."""


def load_factory(name: str, *, extra: str = "pydantic-ai") -> Any:
    """Load a factory that an installed adapter registered under `name`.

    Raises:
        MissingExtra: No adapter offers it, or the framework the adapter needs is not installed.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, used once

    for point in entry_points(group=GROUP, name=name):
        try:
            return point.load()
        except ModuleNotFoundError as error:
            raise MissingExtra(f"{name} ({error.name} is not installed)", extra) from error
    raise MissingExtra(name, extra)


def setup_problem(agent: object) -> str:
    """Return why `agent` could not extract now, or ""; a cheap look that loads no framework.

    It sees a missing package for a model that is given by its name, and a missing key for one of OpenAI's, which
    is the default.
    """
    name = agent or os.environ.get("EXTRACTOR_MODEL") or DEFAULT_MODEL
    if not isinstance(name, str) or name == "rules":
        return ""
    is_openai = name.startswith(("openai:", "openai-"))
    needed = ("pydantic_ai", "openai") if is_openai else ("pydantic_ai",)
    for module in needed:
        if find_spec(module) is None:
            extra = "openai" if is_openai else "pydantic-ai"
            return str(MissingExtra(f"the model {name!r} ({module} is not installed)", extra))
    if is_openai and not (os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL")):
        return (
            f"the model {name!r} needs a key: set OPENAI_API_KEY, name another model as `agent` or in"
            ' EXTRACTOR_MODEL, or give agent="rules" to work without one.'
        )
    return ""


def resolve_extractor(agent: object, pref_table_cls: type[BaseModel]) -> Extractor:
    """Return the extractor that `agent` stands for.

    Args:
        agent: "rules"; a model name; an extractor, agent or function; a model object of a
            framework; None for $EXTRACTOR_MODEL, or the default model if that is not set.
        pref_table_cls: The preference table a model is told about.

    Raises:
        MissingExtra: A model is asked for, and the adapter that can drive it is not installed.
        SchemaError: `agent` is none of these.
    """
    if agent is None:
        agent = os.environ.get("EXTRACTOR_MODEL") or DEFAULT_MODEL
    if agent == "rules":
        return RulesExtractor()
    if isinstance(agent, str):
        return load_factory("extractor_agent")(pref_table_cls, agent)
    origins = {base.__module__.partition(".")[0] for base in type(agent).__mro__}
    if "langchain_core" in origins:
        return load_factory("chat_model_extractor", extra="langchain")(agent)
    if "pydantic_ai" in origins:
        return load_factory("extractor_agent")(pref_table_cls, agent)
    return as_extractor(agent)
