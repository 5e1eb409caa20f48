"""An agent's memory as TOML files that people read, edit and diff.

    from tomldiary import Diary

    diary = Diary("./memories", agent="rules")
    alice = diary.user("alice")
    alice.add_turn("I'm allergic to walnuts.", "Noted.", session_id="s1")

Importing the package loads almost nothing; each public name is loaded at its first use.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from tomldiary.runtime.installation import OTHER_OWNER_REMEDY, other_owner
from tomldiary.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from tomldiary.compaction.draft import CompactionConfig
    from tomldiary.compat.default_table import DefaultPrefTable
    from tomldiary.compat.loaders import (
        ConversationLoader,
        PreferenceLoader,
        load_conversations,
        load_preferences,
    )
    from tomldiary.compat.pretty_print import (
        ConversationsPrinter,
        PreferencesPrinter,
        pretty_print_conversations,
        pretty_print_preferences,
    )
    from tomldiary.diary import Diary, TOMLDiary
    from tomldiary.entries.blocks import TextBlock
    from tomldiary.entries.constraints import Constraint
    from tomldiary.entries.episodes import Episode
    from tomldiary.entries.facts import Fact
    from tomldiary.entries.kinds.pending import PendingChange
    from tomldiary.entries.models import ConversationItem, MetaInfo, PreferenceItem
    from tomldiary.entries.schema import (
        get_conversations_schema,
        get_preferences_schema,
        show_conversations_schema,
        show_preferences_schema,
    )
    from tomldiary.errors import (
        BackendError,
        Conflict,
        DiaryError,
        DocumentError,
        ExtractionError,
        Forgotten,
        HookError,
        ImmutableEntry,
        InvalidValue,
        LimitReached,
        LockTimeout,
        UnknownCategory,
        UnknownEntry,
        WriterBusy,
    )
    from tomldiary.extraction.draft import MemoryDeps
    from tomldiary.extraction.extractor import build_extractor, compactor_agent, extractor_agent
    from tomldiary.extraction.operations import Applied
    from tomldiary.extraction.prompt import extractor_prompt_check
    from tomldiary.forgetting.selection import ForgetReceipt
    from tomldiary.history.queries import Difference, HistoryEntry, Origin
    from tomldiary.history.retention import KeptHistory
    from tomldiary.history.rollback import Rollback
    from tomldiary.hooks.change import Change
    from tomldiary.ingest.runner import IngestReport
    from tomldiary.text.similarity import Match
    from tomldiary.user.recall import Hit
    from tomldiary.user.user import UserDiary
    from tomldiary.writer.attempts import RetryPolicy
    from tomldiary.writer.metrics import Health
    from tomldiary.writer.receipts import Receipt, Turn
    from tomldiary.writer.shutdown import shutdown_all_background_tasks
    from tomldiary.writer.writer import MemoryWriter

__version__ = "0.1.0"

__all__ = [
    "Applied",
    "BackendError",
    "Change",
    "CompactionConfig",
    "Conflict",
    "Constraint",
    "ConversationItem",
    "ConversationLoader",
    "ConversationsPrinter",
    "DefaultPrefTable",
    "Diary",
    "DiaryError",
    "Difference",
    "DocumentError",
    "Episode",
    "ExtractionError",
    "Fact",
    "ForgetReceipt",
    "Forgotten",
    "Health",
    "HistoryEntry",
    "Hit",
    "HookError",
    "ImmutableEntry",
    "IngestReport",
    "InvalidValue",
    "KeptHistory",
    "LimitReached",
    "LockTimeout",
    "Match",
    "MemoryDeps",
    "MemoryWriter",
    "MetaInfo",
    "Origin",
    "PendingChange",
    "PreferenceItem",
    "PreferenceLoader",
    "PreferencesPrinter",
    "Receipt",
    "RetryPolicy",
    "Rollback",
    "TOMLDiary",
    "TextBlock",
    "Turn",
    "UnknownCategory",
    "UnknownEntry",
    "UserDiary",
    "WriterBusy",
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "compaction.draft": "CompactionConfig",
        "compat.default_table": "DefaultPrefTable",
        "compat.loaders": "ConversationLoader PreferenceLoader load_conversations load_preferences",
        "compat.pretty_print": (
            "ConversationsPrinter PreferencesPrinter pretty_print_conversations "
            "pretty_print_preferences"
        ),
        "diary": "Diary TOMLDiary",
        "entries.blocks": "TextBlock",
        "entries.constraints": "Constraint",
        "entries.episodes": "Episode",
        "entries.facts": "Fact",
        "entries.kinds.pending": "PendingChange",
        "entries.models": "ConversationItem MetaInfo PreferenceItem",
        "entries.schema": (
            "get_conversations_schema get_preferences_schema show_conversations_schema "
            "show_preferences_schema"
        ),
        "errors": (
            "BackendError Conflict DiaryError DocumentError ExtractionError Forgotten HookError "
            "ImmutableEntry InvalidValue LimitReached LockTimeout UnknownCategory UnknownEntry "
            "WriterBusy"
        ),
        "extraction.draft": "MemoryDeps",
        "extraction.extractor": "build_extractor compactor_agent extractor_agent",
        "extraction.operations": "Applied",
        "extraction.prompt": "extractor_prompt_check",
        "forgetting.selection": "ForgetReceipt",
        "history.queries": "Difference HistoryEntry Origin",
        "history.retention": "KeptHistory",
        "history.rollback": "Rollback",
        "hooks.change": "Change",
        "ingest.runner": "IngestReport",
        "text.similarity": "Match",
        "user.recall": "Hit",
        "user.user": "UserDiary",
        "views.magics": "load_ipython_extension",
        "writer.attempts": "RetryPolicy",
        "writer.metrics": "Health",
        "writer.receipts": "Receipt Turn",
        "writer.shutdown": "shutdown_all_background_tasks",
        "writer.writer": "MemoryWriter",
    },
)

_other = other_owner()
if _other is not None:
    warnings.warn(
        f"{_other} is installed beside tomldiary-kit, and both own the package `tomldiary`. {OTHER_OWNER_REMEDY}",
        RuntimeWarning,
        stacklevel=2,
    )
