"""Runs the compactor on due documents, either after a turn or separately for each part."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tomldiary.compaction.draft import (
    CompactionConfig,
    CompactionDeps,
    CompactionStats,
    is_deletion,
    operation_path,
)
from tomldiary.entries.fields import COMPACTOR, count_of
from tomldiary.entries.kinds import KINDS, PREFERENCES, entry_kind
from tomldiary.entries.kinds.pending import Why, place_of, waiting
from tomldiary.errors import Conflict, InvalidValue, cause_of
from tomldiary.extraction.extractor import as_extractor, compactor_agent
from tomldiary.extraction.operations import Operation, apply_operations
from tomldiary.extraction.turns import run_extractor
from tomldiary.history.record import Source
from tomldiary.logging import get_logger, tell
from tomldiary.runtime.async_bridge import in_thread
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.runtime.lru import Recent
from tomldiary.toml.values import moment, timestamp
from tomldiary.user.pending.held import QUARANTINE, hold

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tomldiary.diary import Diary
    from tomldiary.engine.transaction import Transaction

_KINDS = ("preferences", "conversations")
_REMEMBERED = 4096  # attempts, to limit memory
_TASK = "Clean up the diary blocks you are given tools for."
_logger = get_logger(__name__)


class CompactionRunner:
    """Compacts the documents of a diary's users.

    Args:
        diary: The diary with the settings, the compactor and the documents.
    """

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        self._last_run: Recent[tuple[str, str], datetime] = Recent(_REMEMBERED)
        """The times of the last attempts, also of failed ones, which the documents do not have."""
        self._guard = fork_safe(threading.Lock())

    async def run_if_due(self, user_id: str, session_id: str, now: datetime | None) -> None:
        """Compact the due documents after a turn. A failure is only logged, because the turn is stored."""
        now = now or datetime.now(UTC)
        try:
            due = await self.due(user_id, now)
            if due:
                await self.compact(user_id, session_id, due, now)
        except Exception as error:  # the turn is already committed, and a later turn retries
            # The traceback may quote stored text, so it is logged at debug level only.
            tell(
                _logger,
                f"compaction failed: {cause_of(error)}; the turn is stored, and compaction is tried again later",
                logging.ERROR,
            )
            _logger.debug("traceback of the failed compaction", exc_info=error)

    async def due(self, user_id: str, now: datetime) -> list[str]:
        """Return the documents that are due for compaction."""
        config = self._diary.compaction_config
        if config is None or not config.enabled:
            return []
        return await in_thread(self._due, config, user_id, now)

    async def parts(self, user_id: str, due: Sequence[str]) -> list[tuple[str, str]]:
        """Return the parts of a compaction as `(kind, category)`; conversations have the category ""."""
        parts = [(kind, "") for kind in due if kind != "preferences"]
        if "preferences" in due:
            document = await in_thread(self._diary.engine.readable, user_id, "preferences")
            keys = [key for key, _ in PREFERENCES.entries(document, self._diary)]
            names = dict.fromkeys(key.partition("/")[0] for key in keys)
            parts = [*(("preferences", name) for name in names), *parts]
        return parts

    async def note_done(
        self, user_id: str, session_id: str, due: Sequence[str], now: datetime
    ) -> None:
        """Store the time of a compaction, so that the documents are not immediately due again."""
        await in_thread(self._write, user_id, session_id, lambda tx: _note_run(tx, due, now))

    def _due(self, config: CompactionConfig, user_id: str, now: datetime) -> list[str]:
        due: list[str] = []
        conversations = self._diary.engine.document(user_id, "conversations")
        turns = _meta_number(conversations.table(("_meta", "compaction")), "total_turns")
        held = self._waiting(user_id) if self._diary.is_untrusted(COMPACTOR) else ()
        for kind in _KINDS:
            if kind in held:  # or each run would store other changes of the same texts
                continue
            document = self._diary.engine.readable(user_id, kind)
            progress = document.table(("_meta", "compaction")) or {}
            entries = [entry for _, entry in KINDS[kind].entries(document, self._diary)]
            stats = CompactionStats.of(entries, KINDS[kind].texts[0])
            tried = self._last_run.get((user_id, kind))
            last = max(filter(None, (tried, moment(progress.get("last_run")))), default=None)
            if config.should_run(
                store=kind,
                stats=stats,
                last_run=last,
                turns_since_compaction=turns - _meta_number(progress, "turns_at_last_run"),
                now=now,
            ):
                due.append(kind)
        return due

    def _waiting(self, user_id: str) -> set[str]:
        """Return the kinds of the entries of which a compaction's changes wait for a review."""
        pending = waiting(self._diary.engine.readable(user_id, QUARANTINE), QUARANTINE, timestamp())
        mine = [each for each in pending.values() if each.get("origin") == COMPACTOR]
        return {entry_kind(place_of(each)[0]).name for each in mine}

    async def compact(
        self,
        user_id: str,
        session_id: str,
        due: Sequence[str],
        now: datetime,
        *,
        category: str | None = None,
    ) -> None:
        """Compact documents, and commit the result in one transaction.

        With a category, only a part is compacted: this category of preferences, or with "" the conversations.
        """
        with self._guard:
            for kind in due:
                self._last_run.keep((user_id, kind), now)
        if self._diary.compactor is None:
            # In a thread, because it may import a framework.
            self._diary.compactor = await in_thread(compactor_agent)
        epoch = await in_thread(self._diary.engine.awaited_epoch, user_id)
        draft = await self._diary.turns.build_deps(user_id, session_id, context_now=now)
        if category:
            draft.allowed_cats = [category]  # those that it copies

        def copied() -> CompactionDeps:
            return CompactionDeps(
                draft.prefs,
                draft.convs,
                include_preferences="preferences" in due,
                include_conversations="conversations" in due,
                live_session=session_id,
                now=timestamp(now),
                max_summary=self._diary.max_summary_chars,
            )

        # In a thread, because copying a large memory would block the event loop.
        deps = await in_thread(copied)
        await run_extractor(as_extractor(self._diary.compactor), _TASK, deps)
        operations = await in_thread(lambda: draft.operations)
        config = self._diary.compaction_config or CompactionConfig()
        for kind in {operation_path(each)[0] for each in operations}:
            if not config.takes_part(kind):
                told = f"the compactor's changes of {kind} are not stored: compact_{kind} is False"
                tell(_logger, told)

        def change(tx: Transaction) -> None:
            self._apply(tx, deps, operations)
            if category is None:  # else the caller of all parts does
                _note_run(tx, due, now)

        await in_thread(self._write, user_id, session_id, change, epoch)

    def _apply(
        self, tx: Transaction, deps: CompactionDeps, operations: Sequence[Operation]
    ) -> None:
        def stored(operation: Operation) -> Mapping[str, Any] | None:
            *collection, key = operation_path(operation)
            kind = KINDS[collection[0]]
            tables = tx.entries(kind.name) if kind.is_split else tx.edit(kind.name)
            return kind.get(tables, self._diary, tuple(collection), key)

        # All operations are checked before the first is applied, because several may change one entry.
        states = [(each, stored(each)) for each in deps.signed(operations)]
        # A deleted text may be part of a rewritten one, so both changes are stored or neither.
        joined = {operation_path(each)[0] for each in operations if is_deletion(each)}
        outdated = {operation_path(each)[0] for each, old in states if deps.is_outdated(each, old)}
        fitting = [
            each
            for each, old in states
            if deps.fits(each, old) and operation_path(each)[0] not in joined & outdated
        ]

        def change(tx: Transaction) -> None:
            done = apply_operations(
                tx, fitting, self._diary, session_id=deps.live_session, now=deps.now, turns=0
            )
            if done.skipped and any(map(is_deletion, fitting)):
                # Its message is logged. That of the rule may quote the memory.
                raise Conflict(
                    "a rule refused a change beside a deletion, so nothing is stored."
                ) from InvalidValue(done.skipped[0], where="compactor")

        if self._diary.is_untrusted(COMPACTOR):
            hold(tx, change, Why(QUARANTINE, deps.live_session, COMPACTOR, ""))
        else:
            tx.stamped(change, COMPACTOR)

    def _write(
        self,
        user_id: str,
        session_id: str,
        change: Callable[[Transaction], None],
        epoch: int | None = None,
    ) -> None:
        source = Source("compaction", session_id, actor=COMPACTOR)
        self._diary.engine.write(user_id, change, source, epoch=epoch)


def _note_run(tx: Transaction, due: Sequence[str], now: datetime) -> None:
    """Store the time and the number of turns of a compaction in the documents."""
    path = ("_meta", "compaction")
    turns = _meta_number(tx.edit("conversations").table(path), "total_turns")
    progress = {"last_run": timestamp(now), "turns_at_last_run": turns}
    for kind in due:
        edit = tx.edit(kind)
        counted = {"turns_since_compaction": 0} if kind == "conversations" else {}
        edit.put(path, {**(edit.table(path) or {}), **progress, **counted})


def _meta_number(table: Any, key: str) -> int:
    return count_of(table.get(key) if table is not None else None, 0)
