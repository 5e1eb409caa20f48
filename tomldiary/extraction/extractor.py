"""Resolves the extractor of a diary: from a name, a model, an agent, or the default.

An extractor is anything with `run(message, deps=…)`, async or not, or a function. The factories that TOMLDiary 0.9
names are plain functions, which import an adapter when they are called.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tomldiary.errors import MissingExtra, SchemaError
from tomldiary.runtime.callables import misfit

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    from tomldiary.extraction.draft import MemoryDeps

GROUP = "tomldiary.extractors"
"""The entry-point group in which adapters register factories; the core imports no adapter."""
DEFAULT_MODEL = "openai-chat:gpt-5-mini"
"""The model if neither `agent` nor $EXTRACTOR_MODEL names one."""
_OF_OPENAI = ("openai", "ollama:")
"""Prefixes of model names that need the extra `openai`."""
_FRAMEWORKS = {"langchain_core", "pydantic_ai"}
"""Packages whose objects adapters convert to extractors."""
is_retried_as_a_whole: ContextVar[bool] = ContextVar(
    "tomldiary_is_retried_as_a_whole", default=False
)
"""Whether the whole turn is retried after a transient error, so that no single request has to be."""


@runtime_checkable
class Extractor(Protocol):
    """Reads one turn and changes the draft in `deps`; its result is ignored.

    `run` may be a coroutine function or a plain one, which runs in a worker thread. A pydantic-ai `Agent` with
    `deps_type=MemoryDeps` is an extractor.
    """

    def run(self, message: str, /, *, deps: MemoryDeps) -> Any:
        """Read the turn described by `message`, and change `deps`."""
        ...


@runtime_checkable
class ExtractorStats(Protocol):
    """An extractor with counters, which `Diary.stats` and `MemoryWriter.stats` include."""

    def stats(self) -> dict[str, Any]:
        """Return counters by name, without text of a conversation."""
        ...


def as_extractor(candidate: object) -> Extractor:
    """Return `candidate` as an extractor.

    Raises:
        SchemaError: `candidate` has no `run` method and is not callable, takes other arguments, or is a class.
    """
    if isinstance(candidate, type):
        raise SchemaError(
            f"the class {candidate.__name__} cannot extract: give an object of it, {candidate.__name__}(…)."
        )
    run = getattr(candidate, "run", None)
    if callable(run):
        _check_arguments(run, f"{type(candidate).__name__}.run")
        return candidate  # pyright: ignore[reportReturnType] - duck-typed on purpose
    if callable(candidate):
        _check_arguments(candidate, getattr(candidate, "__name__", type(candidate).__name__))
        return SimpleNamespace(run=candidate)  # pyright: ignore[reportReturnType] - as above
    raise SchemaError(
        f"{type(candidate).__name__} cannot extract: give an object with run(message, deps=…), a"
        ' function, a model name, or "rules".'
    )


def _check_arguments(run: Callable[..., Any], name: str) -> None:
    """Check that a function can be called with the arguments of an extractor.

    Raises:
        SchemaError: It cannot.
    """
    reason = misfit(run, "", deps=None)
    if reason:
        raise SchemaError(
            f"{name} cannot extract: a call with (message, deps=…) fails, {reason}. Give it the"
            " parameters (message, *, deps)."
        )


def load_factory(name: str, what: str = "", *, extra: str = "pydantic-ai") -> Any:
    """Load a factory that an installed adapter registered under `name`; `what` needs it, by default the factory itself.

    Raises:
        MissingExtra: No installed adapter registers it, or the adapter's framework is not installed.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, used once

    what = what or name
    for point in entry_points(group=GROUP, name=name):
        try:
            return point.load()
        except MissingExtra:  # of the adapter, which does not know what needs it
            raise MissingExtra(what, extra) from None
        except ModuleNotFoundError as error:
            raise MissingExtra(f"{error.name} is not installed: {what}", extra) from error
    unknown = "tomldiary-kit is not installed, so Python does not know its adapters"
    raise MissingExtra(f"{unknown}: {what}", extra)


def setup_problem(agent: object) -> str:
    """Return why `agent` could not extract now, or ""; a cheap check that imports no framework.

    It detects the missing package of a model that is given by its name, and the missing key of an OpenAI model, which
    is the default.
    """
    name = os.environ.get("EXTRACTOR_MODEL") or DEFAULT_MODEL if agent is None else agent
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
    """Return the extractor for the option `agent`.

    Args:
        agent: "rules"; a model name; an extractor, agent or function; a model object of a
            framework; None for $EXTRACTOR_MODEL, or the default model if that is not set.
        pref_table_cls: The preference table, whose categories are in the prompt.

    Raises:
        MissingExtra: The adapter for the model is not installed.
        SchemaError: `agent` has an unsupported type.
    """
    if agent is None:
        agent = os.environ.get("EXTRACTOR_MODEL") or DEFAULT_MODEL
    if agent == "rules":
        from tomldiary.extraction.rules import (  # noqa: PLC0415 - compiles many patterns
            RulesExtractor,
        )

        return RulesExtractor()
    if isinstance(agent, str):
        extra = "openai" if agent.startswith(_OF_OPENAI) else "pydantic-ai"
        what = f'extraction with {agent!r}, unlike with agent="rules",'
        return load_factory("extractor_agent", what, extra=extra)(pref_table_cls, agent)
    origins = _origins(agent)
    what = f"extraction with {type(agent).__name__}"
    if "langchain_core" in origins:
        return load_factory("chat_model_extractor", what, extra="langchain")(agent)
    if "pydantic_ai" in origins:
        return load_factory("extractor_agent", what)(pref_table_cls, agent)
    return as_extractor(agent)


def check_extractor(agent: object) -> None:
    """Check an argument of `resolve_extractor` without importing a framework.

    Raises:
        SchemaError: `agent` cannot be an extractor.
    """
    if isinstance(agent, str) and not agent.strip():
        raise SchemaError(
            "agent: the model name is blank, so it names no extractor. Name a model, give None for the default"
            ' model, or "rules" to work without one.'
        )
    if not (agent is None or isinstance(agent, str) or _origins(agent) & _FRAMEWORKS):
        as_extractor(agent)


def _origins(agent: object) -> set[str]:
    """Return the names of the packages whose classes an object is an instance of."""
    return {base.__module__.partition(".")[0] for base in type(agent).__mro__}


def extractor_agent(
    pref_table_cls: type[BaseModel],
    model: Any = None,
    prompt_template: object = None,
    fallback_retries: int = 3,
    fallback_on: Any = None,
    *,
    model_name: Any = None,
) -> Any:
    """Return a pydantic-ai agent that extracts preferences; see `tomldiary_pydantic_ai`.

    Raises:
        MissingExtra: pydantic-ai is not installed.
    """
    return load_factory("extractor_agent")(
        pref_table_cls, model, prompt_template, fallback_retries, fallback_on, model_name=model_name
    )


def build_extractor(
    pref_table_cls: type[BaseModel],
    model_name: str | None = None,
    prompt_template_path: object = None,
) -> Any:
    """Return a pydantic-ai extraction agent; the older spelling of `extractor_agent`.

    Raises:
        MissingExtra: pydantic-ai is not installed.
    """
    return load_factory("build_extractor")(pref_table_cls, model_name, prompt_template_path)


def compactor_agent(model_name: Any = None, prompt_template: object = None) -> Any:
    """Return a pydantic-ai agent that compacts a diary; see `tomldiary_pydantic_ai`.

    Raises:
        MissingExtra: pydantic-ai is not installed.
    """
    return load_factory("compactor_agent")(model_name, prompt_template)
