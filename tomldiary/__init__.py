"""An agent's memory as TOML files that people read, edit and diff.

    from tomldiary import Diary

    diary = Diary("./memories", agent="rules")
    alice = diary.user("alice")
    alice.add_turn("I'm allergic to walnuts.", "Noted.", session_id="s1")

Importing the package loads next to nothing; each name is loaded when it is first used.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tomldiary.system import OTHER_OWNER_REMEDY, other_owner

if TYPE_CHECKING:
    from tomldiary.blocks import TextBlock
    from tomldiary.compaction import CompactionConfig
    from tomldiary.constraints import Constraint
    from tomldiary.default_table import DefaultPrefTable
    from tomldiary.diary import Diary, TOMLDiary
    from tomldiary.draft import MemoryDeps
    from tomldiary.episodes import Episode
    from tomldiary.errors import Conflict, DiaryError, Forgotten
    from tomldiary.extractor_factory import (
        build_extractor,
        compactor_agent,
        extractor_agent,
        extractor_prompt_check,
    )
    from tomldiary.facts import Fact
    from tomldiary.forgetting import ForgetReceipt
    from tomldiary.loaders import (
        ConversationLoader,
        PreferenceLoader,
        load_conversations,
        load_preferences,
    )
    from tomldiary.models import ConversationItem, MetaInfo, PreferenceItem
    from tomldiary.pretty_print import (
        ConversationsPrinter,
        PreferencesPrinter,
        pretty_print_conversations,
        pretty_print_preferences,
    )
    from tomldiary.recall import Hit
    from tomldiary.schema import (
        get_conversations_schema,
        get_preferences_schema,
        show_conversations_schema,
        show_preferences_schema,
    )
    from tomldiary.user import UserDiary
    from tomldiary.writer import (
        MemoryWriter,
        Receipt,
        RetryPolicy,
        Turn,
        shutdown_all_background_tasks,
    )

__version__ = "0.1.0"

__all__ = [
    "CompactionConfig",
    "Conflict",
    "Constraint",
    "ConversationItem",
    "ConversationLoader",
    "ConversationsPrinter",
    "DefaultPrefTable",
    "Diary",
    "DiaryError",
    "Episode",
    "Fact",
    "ForgetReceipt",
    "Forgotten",
    "Hit",
    "MemoryDeps",
    "MemoryWriter",
    "MetaInfo",
    "PreferenceItem",
    "PreferenceLoader",
    "PreferencesPrinter",
    "Receipt",
    "RetryPolicy",
    "TOMLDiary",
    "TextBlock",
    "Turn",
    "UserDiary",
    "__version__",
    "build_extractor",
    "compactor_agent",
    "extractor_agent",
    "extractor_prompt_check",
    "get_conversations_schema",
    "get_preferences_schema",
    "load_conversations",
    "load_preferences",
    "pretty_print_conversations",
    "pretty_print_preferences",
    "show_conversations_schema",
    "show_preferences_schema",
    "shutdown_all_background_tasks",
]

_HOMES = {
    "CompactionConfig": "compaction",
    "Conflict": "errors",
    "Constraint": "constraints",
    "ConversationItem": "models",
    "ConversationLoader": "loaders",
    "ConversationsPrinter": "pretty_print",
    "DefaultPrefTable": "default_table",
    "Diary": "diary",
    "DiaryError": "errors",
    "Episode": "episodes",
    "Fact": "facts",
    "ForgetReceipt": "forgetting",
    "Forgotten": "errors",
    "Hit": "recall",
    "MemoryDeps": "draft",
    "MemoryWriter": "writer",
    "MetaInfo": "models",
    "PreferenceItem": "models",
    "PreferenceLoader": "loaders",
    "PreferencesPrinter": "pretty_print",
    "Receipt": "writer",
    "RetryPolicy": "writer",
    "TOMLDiary": "diary",
    "TextBlock": "blocks",
    "Turn": "writer",
    "UserDiary": "user",
    "build_extractor": "extractor_factory",
    "compactor_agent": "extractor_factory",
    "extractor_agent": "extractor_factory",
    "extractor_prompt_check": "extractor_factory",
    "get_conversations_schema": "schema",
    "get_preferences_schema": "schema",
    "load_conversations": "loaders",
    "load_preferences": "loaders",
    "pretty_print_conversations": "pretty_print",
    "pretty_print_preferences": "pretty_print",
    "show_conversations_schema": "schema",
    "show_preferences_schema": "schema",
    "shutdown_all_background_tasks": "writer",
}

_other = other_owner()
if _other is not None:
    warnings.warn(
        f"{_other} is installed beside tomldiary-kit, and both own the package `tomldiary`. {OTHER_OWNER_REMEDY}",
        RuntimeWarning,
        stacklevel=2,
    )


def __getattr__(name: str) -> Any:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(f"{__name__}.{module}")
    except (
        AttributeError
    ) as error:  # `from tomldiary import …` would hide it behind "cannot import"
        raise ImportError(
            f"{__name__}.{module} cannot be loaded: {error}. Please report this with your platform."
        ) from error
    found = globals()[name] = getattr(home, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
