"""Applying what an extractor wants to the memory as it is now."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tomldiary.entries.conversations import Conversations
from tomldiary.entries.preferences import PreferenceRules, Preferences, entry_text
from tomldiary.errors import InvalidValue, LimitReached, UnknownEntry
from tomldiary.extraction.draft import set_fields
from tomldiary.extraction.operations import (
    ForgetPreference,
    SetFields,
    SetSummary,
    UpsertPreference,
)
from tomldiary.logging import get_logger
from tomldiary.text.similarity import same_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tomldiary.engine.engine import Transaction
    from tomldiary.extraction.operations import Operation

__all__ = ["Applied", "TurnOperation", "TurnRules", "apply_turn", "current_operation"]

_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TurnRules:
    """The limits a turn is applied under."""

    preferences: PreferenceRules
    max_conversations: int = 100


@dataclass(frozen=True, slots=True)
class TurnOperation:
    """What is known of a turn beside its two messages.

    The id makes a second attempt at the same turn harmless; the fencing token refuses a late one.
    """

    id: str = ""
    """The same one twice has one effect."""
    content: str = ""
    """Fingerprint of the turn, not of what a model made of it, which may differ each time."""
    epoch: int | None = None
    """The user's fencing token when the turn was submitted."""
    is_new: bool = False
    """Whether the id is newly generated and cannot be in history yet."""
    turns: int = 1
    """How many turns were read together."""
    earlier: tuple[tuple[str, str], ...] | None = None
    """The exchanges before it; None takes those that this process saw in the session."""
    began: str = ""
    """When the session's last turn was handed in, as history writes times; "" is not known."""
    ended: str = ""
    """When this one was handed in; "" is now."""


current_operation: ContextVar[TurnOperation | None] = ContextVar(
    "tomldiary_turn_operation", default=None
)
"""The operation of the turn in progress; it also reaches an overridden `update_memory`."""


@dataclass(slots=True)
class Applied:
    """What became of a turn's operations."""

    applied: int = 0
    skipped: list[str] = field(default_factory=list[str])
    """One sentence for each operation that no longer applied, because the entry had changed."""
    transaction: int | None = field(default=None, compare=False)
    """The number of the transaction in the user's history."""
    is_repeated: bool = field(default=False, compare=False)
    """Whether the operation id was applied before, so that nothing changed now."""


def apply_turn(
    transaction: Transaction,
    operations: Sequence[Operation],
    rules: TurnRules,
    *,
    session_id: str,
    now: str,
    turns: int = 1,
) -> Applied:
    """Apply operations to fresh state, and count the turns they were read from.

    An entry that was forgotten meanwhile is not brought back; a new entry whose id was given away
    meanwhile gets another one, and later operations of the same turn follow it.
    """
    preferences = Preferences(transaction.edit("preferences"), rules.preferences)
    conversations = Conversations(transaction.edit("conversations"), rules.max_conversations)
    for _ in range(turns):
        conversations.count_turn(session_id, now=now)
    source = _source(conversations, session_id) if turns else ""
    ids: dict[tuple[str, str], str] = {}
    done = Applied()
    for operation in operations:
        try:
            if isinstance(operation, UpsertPreference):
                _upsert(preferences, operation, ids, session_id=session_id, now=now, source=source)
            elif isinstance(operation, ForgetPreference):
                key = preferences.named(operation.category, operation.id)
                preferences.forget(operation.category, ids.get((operation.category, key), key))
            elif isinstance(operation, SetSummary):
                conversations.set_summary(
                    operation.session_id, operation.summary, operation.keywords, now=now
                )
            else:
                _set(transaction, preferences, operation, ids, source)
        except (LimitReached, UnknownEntry, InvalidValue) as error:
            done.skipped.append(str(error))
            _logger.warning("an operation no longer fits and was skipped: %s", type(error).__name__)
        else:
            done.applied += 1
    return done


def _upsert(
    preferences: Preferences,
    operation: UpsertPreference,
    ids: dict[tuple[str, str], str],
    *,
    session_id: str,
    now: str,
    source: str,
) -> None:
    key = preferences.wanted(operation.category, operation.id)
    if operation.created_as is None and key is not None:
        key = ids.get((operation.category, key), key)
        if preferences.find(operation.category, key) is None:
            raise UnknownEntry(f"{operation.category}/{key}")
    elif key is not None:
        found = preferences.find(operation.category, key)
        if found is not None and not same_text(entry_text(found[1]), operation.text or ""):
            key = None  # another writer used this id meanwhile
    fields = dict(operation.fields)
    if source and str(fields.get("_source", source)).startswith(f"{session_id}#"):
        fields["_source"] = source  # the draft may have counted fewer turns than there are by now
    outcome = preferences.upsert(
        operation.category,
        key,
        operation.text,
        operation.contexts,
        now=now,
        session=session_id,
        count_up=operation.count_up,
        fields=fields,
        source=source,
    )
    if operation.created_as is not None:
        ids[operation.category, operation.created_as] = outcome.id


def _set(
    transaction: Transaction,
    preferences: Preferences,
    operation: SetFields,
    ids: dict[tuple[str, str], str],
    source: str,
) -> None:
    path = operation.path
    said = dict(operation.values)
    if operation.kind == "preferences":
        category, key = path[-2:]
        key = ids.get((category, key), key)
        found = preferences.find(category, key)  # it may stand at another place, in a short form
        path = found[0] if found is not None else (*path[:-1], key)
        if source and "text" in said:
            said.setdefault("_source", source)
    operation = replace(operation, path=path, values=tuple(said.items()))
    set_fields(transaction.edit(operation.kind), operation)


def _source(conversations: Conversations, session_id: str) -> str:
    """Return the turn that was counted last, as entries name the turn they were taken from."""
    entry = conversations.find(session_id) or {}
    return f"{session_id}#{entry.get('_turns', 0)}"
