"""An agent's memory as TOML files that people read, edit and diff.

    from tomldiary import Diary

    diary = Diary("./memories", agent="rules")
    alice = diary.user("alice")
    alice.add_turn("I'm allergic to walnuts.", "Noted.", session_id="s1")

Importing the package loads almost nothing; each public name is loaded at its first use.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from tomldiary.runtime.installation import OTHER_OWNER_REMEDY, other_owner
from tomldiary.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from tomldiary.compaction.draft import CompactionConfig as CompactionConfig
    from tomldiary.compaction.draft import CompactionDeps as CompactionDeps
    from tomldiary.compat.default_table import DefaultPrefTable as DefaultPrefTable
    from tomldiary.compat.loaders import ConversationLoader as ConversationLoader
    from tomldiary.compat.loaders import PreferenceLoader as PreferenceLoader
    from tomldiary.compat.loaders import load_conversations as load_conversations
    from tomldiary.compat.loaders import load_preferences as load_preferences
    from tomldiary.compat.pretty_print import ConversationsPrinter as ConversationsPrinter
    from tomldiary.compat.pretty_print import PreferencesPrinter as PreferencesPrinter
    from tomldiary.compat.pretty_print import (
        pretty_print_conversations as pretty_print_conversations,
    )
    from tomldiary.compat.pretty_print import pretty_print_preferences as pretty_print_preferences
    from tomldiary.diary import Diary as Diary
    from tomldiary.diary import TOMLDiary as TOMLDiary
    from tomldiary.entries.constraints import Constraint as Constraint
    from tomldiary.entries.facts import Fact as Fact
    from tomldiary.entries.kinds.blocks import TextBlock as TextBlock
    from tomldiary.entries.kinds.episodes import Episode as Episode
    from tomldiary.entries.kinds.pending import PendingChange as PendingChange
    from tomldiary.entries.models import ConversationItem as ConversationItem
    from tomldiary.entries.models import MetaInfo as MetaInfo
    from tomldiary.entries.models import PreferenceItem as PreferenceItem
    from tomldiary.entries.schema import get_conversations_schema as get_conversations_schema
    from tomldiary.entries.schema import get_preferences_schema as get_preferences_schema
    from tomldiary.entries.schema import show_conversations_schema as show_conversations_schema
    from tomldiary.entries.schema import show_preferences_schema as show_preferences_schema
    from tomldiary.errors import BackendError as BackendError
    from tomldiary.errors import Conflict as Conflict
    from tomldiary.errors import DiaryError as DiaryError
    from tomldiary.errors import DocumentError as DocumentError
    from tomldiary.errors import ExtractionError as ExtractionError
    from tomldiary.errors import Forgotten as Forgotten
    from tomldiary.errors import HookError as HookError
    from tomldiary.errors import ImmutableEntry as ImmutableEntry
    from tomldiary.errors import InvalidValue as InvalidValue
    from tomldiary.errors import LimitReached as LimitReached
    from tomldiary.errors import LockTimeout as LockTimeout
    from tomldiary.errors import UnknownCategory as UnknownCategory
    from tomldiary.errors import UnknownEntry as UnknownEntry
    from tomldiary.errors import WriterBusy as WriterBusy
    from tomldiary.extraction.context import Turn as Turn
    from tomldiary.extraction.draft import MemoryDeps as MemoryDeps
    from tomldiary.extraction.extractor import build_extractor as build_extractor
    from tomldiary.extraction.extractor import compactor_agent as compactor_agent
    from tomldiary.extraction.extractor import extractor_agent as extractor_agent
    from tomldiary.extraction.operations import Applied as Applied
    from tomldiary.extraction.prompt import extractor_prompt_check as extractor_prompt_check
    from tomldiary.forgetting.selection import ForgetReceipt as ForgetReceipt
    from tomldiary.hooks.change import Change as Change
    from tomldiary.ingest.runner import IngestReport as IngestReport
    from tomldiary.past.queries import Difference as Difference
    from tomldiary.past.queries import HistoryEntry as HistoryEntry
    from tomldiary.past.queries import Origin as Origin
    from tomldiary.past.retention import KeptHistory as KeptHistory
    from tomldiary.past.rollback import Rollback as Rollback
    from tomldiary.text.similarity import Match as Match
    from tomldiary.user.recall import Hit as Hit
    from tomldiary.user.user import UserDiary as UserDiary
    from tomldiary.writer.attempts import RetryPolicy as RetryPolicy
    from tomldiary.writer.metrics import Health as Health
    from tomldiary.writer.receipts import Receipt as Receipt
    from tomldiary.writer.shutdown import (
        shutdown_all_background_tasks as shutdown_all_background_tasks,
    )
    from tomldiary.writer.writer import MemoryWriter as MemoryWriter

__version__ = "0.1.0"

lazy_names(
    __name__,
    {
        "compaction.draft": "CompactionConfig CompactionDeps",
        "compat.default_table": "DefaultPrefTable",
        "compat.loaders": "ConversationLoader PreferenceLoader load_conversations load_preferences",
        "compat.pretty_print": (
            "ConversationsPrinter PreferencesPrinter pretty_print_conversations "
            "pretty_print_preferences"
        ),
        "diary": "Diary TOMLDiary",
        "entries.kinds.blocks": "TextBlock",
        "entries.constraints": "Constraint",
        "entries.kinds.episodes": "Episode",
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
        "extraction.context": "Turn",
        "extraction.draft": "MemoryDeps",
        "extraction.extractor": "build_extractor compactor_agent extractor_agent",
        "extraction.operations": "Applied",
        "extraction.prompt": "extractor_prompt_check",
        "forgetting.selection": "ForgetReceipt",
        "hooks.change": "Change",
        "ingest.runner": "IngestReport",
        "past.queries": "Difference HistoryEntry Origin",
        "past.retention": "KeptHistory",
        "past.rollback": "Rollback",
        "text.similarity": "Match",
        "user.recall": "Hit",
        "user.user": "UserDiary",
        "writer.attempts": "RetryPolicy",
        "writer.metrics": "Health",
        "writer.receipts": "Receipt",
        "writer.shutdown": "shutdown_all_background_tasks",
        "writer.writer": "MemoryWriter",
    },
)


def load_ipython_extension(shell: object) -> None:
    """Load the magics, which `%load_ext tomldiary` asks for."""
    import_module("tomldiary.views.magics").load_ipython_extension(shell)


if __doc__ is None:  # pyright: ignore[reportUnnecessaryComparison] - with `python -OO`
    warnings.warn(
        "`python -OO` (PYTHONOPTIMIZE=2) removes the docstrings, so models do not know what the tools and categories"
        " of a diary are for. Start Python without it.",
        RuntimeWarning,
        stacklevel=2,
    )

_other = other_owner()
if _other is not None:
    warnings.warn(
        f"{_other} is installed beside tomldiary-kit, and both own the package `tomldiary`. {OTHER_OWNER_REMEDY}",
        RuntimeWarning,
        stacklevel=2,
    )
