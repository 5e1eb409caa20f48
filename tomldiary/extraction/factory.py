"""The ancestor's place for the extraction agents; they are built by the pydantic-ai adapter.

Each name is a plain function here, so that importing this module needs no framework; the adapter is
loaded when one is called, and a missing one names the command that installs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tomldiary.extraction.prompt import missing_placeholders
from tomldiary.extraction.resolve import load_factory

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["build_extractor", "compactor_agent", "extractor_agent", "extractor_prompt_check"]


def extractor_agent(
    pref_table_cls: type[BaseModel],
    model: Any = None,
    prompt_template: str | Path | None = None,
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
    prompt_template_path: str | Path | None = None,
) -> Any:
    """Return a pydantic-ai extraction agent; the older spelling of `extractor_agent`.

    Raises:
        MissingExtra: pydantic-ai is not installed.
    """
    return load_factory("build_extractor")(pref_table_cls, model_name, prompt_template_path)


def compactor_agent(model_name: Any = None, prompt_template: str | Path | None = None) -> Any:
    """Return a pydantic-ai agent that cleans up; see `tomldiary_pydantic_ai`.

    Raises:
        MissingExtra: pydantic-ai is not installed.
    """
    return load_factory("compactor_agent")(model_name, prompt_template)


def extractor_prompt_check(prompt: str | Path) -> None:
    """Print a warning if a prompt (a text, or the path of a file) lacks a placeholder it needs."""
    text = prompt.read_text(encoding="utf-8") if isinstance(prompt, Path) else prompt
    if "\n" not in text and len(text) < _LONGEST_PATH and Path(text).is_file():
        text = Path(text).read_text(encoding="utf-8")
    missing = missing_placeholders(text)
    if missing:
        names = ", ".join(f"{{{name}}}" for name in missing)
        print(f"The prompt lacks {names}: the model will not be told.")  # noqa: T201 - its purpose


_LONGEST_PATH = 1024
