"""Processes turns: extracts operations from one exchange, and commits them."""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from tomldiary.engine.engine import is_erased
from tomldiary.entries.fact_rules import FactRules
from tomldiary.entries.facts import schema_named
from tomldiary.entries.fields import source_of
from tomldiary.entries.kinds import CONVERSATIONS, FACTS, PREFERENCES
from tomldiary.entries.kinds.conversations import Conversations
from tomldiary.entries.kinds.episodes import new_episode, turn_value
from tomldiary.entries.kinds.pending import Why
from tomldiary.errors import (
    DiaryError,
    ExtractionError,
    Forgotten,
    InvalidValue,
    SchemaError,
    wrong_value,
)
from tomldiary.extraction.context import Turn, find_tool_writes, last_exchanges
from tomldiary.extraction.draft import MemoryDeps
from tomldiary.extraction.extractor import Extractor, ExtractorStats, resolve_extractor
from tomldiary.extraction.failures import cause_and_remedy
from tomldiary.extraction.message import turn_message
from tomldiary.extraction.operations import (
    Applied,
    CommitFact,
    ForgetPreference,
    Operation,
    SetFields,
    SetSummary,
    TurnOperation,
    UpsertPreference,
    apply_operations,
    current_operation,
    redacted,
)
from tomldiary.history.record import Source
from tomldiary.identifiers.user_ids import checked_user
from tomldiary.logging import get_logger, tell
from tomldiary.runtime.async_bridge import (
    in_daemon_thread,
    in_thread,
    is_private_loop,
    is_stopped,
    scope_here,
)
from tomldiary.runtime.callables import refuse_async, refuse_misfit
from tomldiary.toml.document import ValueEdit
from tomldiary.toml.values import checked_names, in_utc, timestamp
from tomldiary.user.context import UserContext
from tomldiary.user.pending.held import QUARANTINE, hold
from tomldiary.user.recall import UserRecall

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from tomldiary.diary import Diary
    from tomldiary.engine.transaction import Transaction
    from tomldiary.extraction.context import Exchange

_logger = get_logger(__name__)
_ATTEMPTS = 3  # to extract a turn while other data of the user is erased
_MOST_RANKED = 400  # more lines fit in no message


class Turns:
    """Extracts turns with a diary's extractor, and commits the operations.

    Args:
        diary: The diary with the extractor, the rules and the documents.
    """

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        self._extractor: tuple[Any, Extractor] | None = None
        self._has_warned = False

    # The extractor

    def stats(self) -> dict[str, Any]:
        """Return the counters of the extractor; empty if it has none, or has not run yet."""
        known = self._known()
        return known.stats() if isinstance(known, ExtractorStats) else {}

    def _known(self) -> Extractor | None:
        """Return the extractor of `_agent` if it was resolved before, or None."""
        known = self._extractor
        return known[1] if known is not None and known[0] is self._agent else None

    @property
    def _agent(self) -> Any:
        """`agent` of the diary, or for None the name in $EXTRACTOR_MODEL: always the same object for one name."""
        agent = self._diary.agent
        return sys.intern(os.environ.get("EXTRACTOR_MODEL", "")) if agent is None else agent

    @property
    def extractor(self) -> Extractor:
        """The extractor, which is resolved on first access, and again if `agent` or $EXTRACTOR_MODEL changed.

        Raises:
            MissingExtra: The adapter for the model is not installed.
        """
        known = self._known()
        if known is None:
            agent, diary = self._agent, self._diary
            known = resolve_extractor(diary.agent, diary.pref_table_cls)
            self._extractor = agent, known
        return known

    @property
    def origin(self) -> str:
        """The origin of extracted entries: "rule", "model:" with the model's name, or "model"."""
        agent = self._agent
        if not isinstance(agent, str) or not agent:
            return "model"
        return "rule" if agent == "rules" else f"model:{agent}"

    def apply(
        self,
        tx: Transaction,
        operations: Sequence[Operation],
        *,
        session_id: str,
        now: str,
        turns: int = 0,
        episode: str = "",
    ) -> Applied:
        """Apply the operations of an extractor, or quarantine them if it or the open transaction is not trusted.

        A summary of what an actor without trust said is left out, because it would be shown at once.

        Args:
            tx: The current state.
            operations: The operations.
            session_id: The conversation.
            now: The time of what was read.
            turns: The number of turns that were read, which are counted.
            episode: The key or the turn of the episode that was read, if what was read is no new turn.
        """

        def change(tx: Transaction) -> Applied:
            return apply_operations(
                tx, operations, self._diary,
                session_id=session_id, now=now, turns=turns, origin=episode,
            )  # fmt: skip

        origin = self._untrusted_here(tx.user)
        if origin:
            operations = [each for each in operations if not _summarises(each)]
        if origin or self._diary.is_untrusted(self.origin):
            why = Why(QUARANTINE, session_id, origin or self.origin, episode, is_turn=True)
            return hold(tx, change, why)
        return tx.stamped(change, "extractor")

    def _untrusted_here(self, user: str) -> str:
        """Return the actor of the open transaction if its changes wait for a review, or ""."""
        actor = self._diary.engine.actor_here(user)
        return actor if actor and self._diary.is_untrusted(actor) else ""

    async def current_epoch(self, user_id: str) -> int:
        """Return the fencing token of a user, without blocking the event loop."""
        return await in_thread(self._diary.engine.backend.epoch, user_id)

    # Turns

    async def process(self, turn: Turn, operation: TurnOperation | None = None) -> Applied:
        """Extract memory from one turn, commit it together with the turn's count, and return what was applied.

        Args:
            turn: The turn.
            operation: Identifies the turn, so that a second attempt has no effect; None takes the one that
                `current_operation` is set to, or else the turn's operation id, if any.

        Raises:
            ExtractionError: The extractor failed. Nothing was changed.
            Conflict: The operation id was used for a different change. Nothing was changed.
            Forgotten: Data of the user was erased meanwhile. Nothing was changed. A turn with `epoch` is refused only if
                everything was erased, or after three attempts.
            NestedTransaction: A transaction is open here, and the turn has an operation id.
        """
        diary = self._diary
        diary.engine.refuse_nested(turn.user_id, turn.operation_id)
        turn = diary.redacted_turn(turn)
        operation = operation or current_operation.get()
        if operation is None and turn.epoch is not None:
            for _ in range(_ATTEMPTS - 1):
                with suppress(Forgotten):
                    return await self._process_once(turn, None)
                turn = replace(turn, earlier=())  # earlier exchanges may quote forgotten text
        return await self._process_once(turn, operation)

    async def _process_once(self, turn: Turn, operation: TurnOperation | None) -> Applied:
        if operation is not None:
            return await self._extract_and_commit(turn, operation)
        key, epoch = (turn.operation_id, turn.content if turn.operation_id else ""), None
        if turn.operation_id or turn.epoch is not None:
            epoch, done = await in_thread(self._earlier_result, turn, TurnOperation(*key))
            if done is not None:
                return done
        sessions, place = self._diary.sessions, (turn.user_id, turn.session_id)
        taken = sessions.take(*place)
        try:
            operation = TurnOperation(*key, epoch, began=taken[0])
            return await self._extract_and_commit(turn, operation)
        except BaseException:
            sessions.give_back(*place, taken)
            raise

    async def _extract_and_commit(self, turn: Turn, operation: TurnOperation) -> Applied:
        diary = self._diary
        operations, now_epoch = await self.extract(turn, operation, diary.extraction_timeout)
        operation = replace(operation, epoch=now_epoch)
        said = [(turn, operation.ended)]
        done = await in_thread(self.commit, turn, operations, operation, said)
        await diary.compaction.run_if_due(turn.user_id, turn.session_id, turn.context_now)
        return done

    def _earlier_result(self, turn: Turn, operation: TurnOperation) -> tuple[int, Applied | None]:
        """Return the user's fencing token, read before any data, and the result if the turn was applied before.

        Raises:
            Forgotten: Everything of the user was erased since the turn's run began.
        """
        backend = self._diary.engine.backend
        now = backend.epoch(turn.user_id)
        if is_erased(backend, turn.user_id, turn.epoch, now):
            raise Forgotten.since_run()
        return now, self.find(turn.user_id, operation) if operation.id else None

    async def build_deps(
        self, user_id: str, session_id: str, *, context_now: datetime | None = None
    ) -> MemoryDeps:
        """Return a draft of the user's memory for an extractor."""
        return await in_thread(self._draft, checked_user(user_id), session_id, context_now)

    def _draft(self, user_id: str, session_id: str, context_now: datetime | None) -> MemoryDeps:
        diary, engine = self._diary, self._diary.engine
        rules = diary.preference_rules
        deps = MemoryDeps(
            engine.draft(user_id, "preferences"),
            ValueEdit(engine.kept("conversations", engine.readable(user_id, "conversations"))),
            rules.categories, diary.schema_name, session_id, rules.limit, context_now,
            similarity=diary.similarity,
        )  # fmt: skip
        deps.preferences.rules = rules  # with the types of entries
        schemas = diary.fact_schemas
        if schemas:
            stored = engine.kept(FACTS.name, engine.readable(user_id, FACTS.name))
            deps.fact_schemas, deps.facts = schemas, FactRules(ValueEdit(stored), schemas)
        deps.user_id = user_id
        deps.descriptions = diary.descriptions
        deps.max_summary = diary.max_summary_chars
        deps.redact = diary.redactor
        if diary.embedder is not None:
            deps.ranked = partial(self._ranked, user_id)
        return deps

    def _ranked(self, user_id: str, turn: str) -> list[str]:
        """Return the keys of the preferences that match a turn, best first, as recall ranks them.

        In an open transaction there are none, because no embedder is asked while the user's lock is held.
        """
        if self._diary.engine.transaction_of(user_id) is not None:
            return []
        recall = UserRecall(UserContext(self._diary, user_id))
        return recall.ranked_keys(turn, PREFERENCES.name, _MOST_RANKED)

    async def extract(
        self, turn: Turn, operation: TurnOperation, seconds: float | None = None
    ) -> tuple[list[Operation], int]:
        """Return the extractor's operations for one turn, and the fencing token of their draft; nothing is stored.

        Args:
            turn: The turn.
            operation: Further data of the turn.
            seconds: The time limit of the extractor; None is no limit.

        Raises:
            ExtractionError: The extractor failed, or took too long.
            Forgotten: Data of the user were erased since `operation.epoch`, so no model may read the turn.
        """
        said = (turn.user_msg, turn.assistant_msg)
        said = self._diary.redacted(said)  # a queued turn may be older
        deps, message, epoch = await in_thread(self._draft_and_message, turn, said, operation)
        operations = await self.run_extractor(message, deps, seconds)
        if not self._untrusted_here(turn.user_id):  # or the next turn's extractor would read it
            self._diary.sessions.keep(turn.user_id, turn.session_id, said, epoch)
        return operations, epoch

    def _draft_and_message(
        self, turn: Turn, said: Exchange, operation: TurnOperation
    ) -> tuple[MemoryDeps, str, int]:
        """Return the draft for a turn, the message about it, and the user's fencing token, read before both.

        They are of one state, which a database is asked for once.
        """
        diary, user_id, session_id = self._diary, turn.user_id, turn.session_id
        backend = diary.engine.backend
        with diary.engine.reading():
            epoch = diary.engine.awaited_epoch(user_id)
            if operation.epoch not in {None, epoch}:
                raise Forgotten.meanwhile()
            deps = self._draft(user_id, session_id, turn.context_now or operation.said_at)
            deps.user_msg, deps.assistant_msg = said
            earlier = operation.earlier if turn.earlier is None else turn.earlier
            if earlier is None:
                deps.earlier = diary.sessions.before(epoch, user_id, session_id, said)
            else:
                deps.earlier = diary.redacted(last_exchanges(earlier, diary.context_turns))
            deps.tool_writes = find_tool_writes(
                backend, user_id, session_id, operation.began, operation.ended
            )
        deps.begin_turn()
        return deps, self.message(deps), epoch

    def message(self, deps: MemoryDeps) -> str:
        """Return the message about the turn of a draft; "" for the rules, which read only the draft."""
        return "" if self.origin == "rule" else turn_message(deps)

    async def run_extractor(
        self, message: str, deps: MemoryDeps, seconds: float | None
    ) -> list[Operation]:
        """Run the extractor on a draft, and return its operations, redacted.

        `seconds` is the time limit; None is no limit.

        Raises:
            ExtractionError: It failed, or took too long.
        """
        import asyncio  # noqa: PLC0415 - slow to import, and most of a diary needs none of it

        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                # In a thread at first, because it may import a framework.
                extractor = self._known() or await in_thread(lambda: self.extractor)
                returned = await run_extractor(extractor, message, deps)
            operations = deps.operations
            self._check_returned(returned, operations)
        except (DiaryError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # A CancelledError of the extractor itself would look like a cancellation of the caller's task.
            if not isinstance(error, Exception) and is_stopped():
                raise
            if limit.expired():
                raise ExtractionError(
                    f"the extractor took longer than {seconds:g} s. Nothing was changed. Try again later, or"
                    " raise Diary(extraction_timeout=…), for the turns of a writer MemoryWriter(timeout=…)."
                ) from error
            why, remedy = cause_and_remedy(error)
            raise ExtractionError(
                f"the extractor failed ({why}). Nothing was changed. {remedy}"
            ) from error
        finally:
            deps.end_turn()
        redactor = self._diary.redactor
        if redactor is None:
            return operations
        return redacted(operations, redactor.values, self._diary.fact_schemas)

    def _check_returned(self, returned: object, operations: Sequence[Operation]) -> None:
        """Warn, the first time, if an extractor returned entries instead of adding them to the draft."""
        # An object of another type, such as an array, may have no truth value.
        if self._has_warned or operations or type(returned) not in {list, dict} or not returned:
            return
        self._has_warned = True
        tell(
            _logger,
            f"the extractor returned a {type(returned).__name__}, which is ignored, and changed nothing. Call methods"
            ' of deps instead, such as deps.upsert("likes", None, "jazz").',
        )

    def fits(self, operations: Sequence[Operation]) -> bool:
        """Return whether recorded operations fit the schema, which may have changed since."""
        for each in operations:
            if isinstance(each, UpsertPreference | ForgetPreference):
                if each.category not in self._diary.preference_rules.categories:
                    return False
            elif isinstance(each, CommitFact):
                try:
                    schema = schema_named(self._diary.fact_schemas, each.type)
                    schema.checked_fields(dict(each.fields))
                except (SchemaError, InvalidValue):
                    return False
        return True

    def commit(
        self,
        turn: Turn,
        operations: Sequence[Operation],
        operation: TurnOperation,
        said: Sequence[tuple[Turn, str]],
    ) -> Applied:
        """Apply extracted operations to the current memory, and count the turn.

        Args:
            turn: The turn.
            operations: The operations of the extractor.
            operation: Identifies the turn, so that a second attempt has no effect.
            said: The turns that were read, each with the time of its submission ("" is now). They become episodes in the
                same transaction, if the diary or the turn says so.

        Raises:
            Conflict: The operation id was used for a different change.
            Forgotten: Data of the user were erased since `operation.epoch`. Nothing was changed.
        """
        diary, session_id = self._diary, turn.session_id
        moment = timestamp(turn.context_now or operation.said_at)
        last: list[Transaction] = []

        def keep_episodes(tx: Transaction) -> None:
            for later, (each, submitted) in zip(reversed(range(len(said))), said, strict=True):
                if not (diary.episodes if each.episode is None else each.episode):
                    continue
                value = turn_value(each.user_msg, each.assistant_msg, each.steps)
                if value is not None:
                    session = Conversations(tx.edit("conversations")).find(session_id) or {}
                    counted = session.get("_turns", 0) - later
                    value["_source"] = source_of(session_id, counted, counted)
                    when = in_utc(each.context_now or submitted or datetime.now(UTC))
                    new_episode(tx.writing(diary, session_id, moment), value, when)

        def change(tx: Transaction) -> Applied:
            last[:] = [tx]
            applied = self.apply(
                tx, operations, session_id=session_id, now=moment, turns=operation.turns
            )
            if origin := self._untrusted_here(tx.user):
                hold(tx, keep_episodes, Why(QUARANTINE, session_id, origin, "", is_turn=True))
            else:
                keep_episodes(tx)
            return applied

        def repeated(seq: int) -> Applied:
            return Applied(transaction=seq, is_repeated=True)

        source = Source(
            "turn", session_id, actor="extractor",
            reason="" if self.origin == "rule" else self.origin,
            operation=operation.id, content=operation.content, is_new=operation.is_new,
            asked=() if operation.id else (session_id, turn.user_msg, turn.assistant_msg),
        )  # fmt: skip
        done = diary.engine.write(
            turn.user_id, change, source,
            epoch=operation.epoch, check=operation.check, on_repeat=repeated,
        )  # fmt: skip
        if not done.is_repeated:
            done.transaction = last[0].seq
        return done

    def find(
        self, user_id: str, operation: TurnOperation, timeout: float | None = None
    ) -> Applied | None:
        """Return the result of a turn that was applied before, or None.

        Args:
            user_id: The user.
            operation: Identifies the turn.
            timeout: The time limit in seconds for the user's lock; None is that of the diary.

        Raises:
            Conflict: The operation id was used for a different change.
            LockTimeout: Another writer kept the lock.
        """
        engine = self._diary.engine
        source = Source("turn", operation=operation.id, content=operation.content)
        with engine.backend.lock(user_id, engine.lock_timeout if timeout is None else timeout):
            seq = engine.repetition(user_id, source)
        return Applied(transaction=seq, is_repeated=True) if seq is not None else None


def _summarises(operation: Operation) -> bool:
    """Return whether an operation changes the summary of a conversation."""
    is_table = isinstance(operation, SetFields) and operation.kind == CONVERSATIONS.name
    return is_table or isinstance(operation, SetSummary)


def untrusted(quarantine: Collection[str] | Callable[[str], bool]) -> Callable[[str], bool]:
    """Return a function that returns whether changes by an actor, such as "web", are held for review.

    Args:
        quarantine: The untrusted actors, without the details that may follow a colon; or such a function.
    """
    if isinstance(quarantine, str):
        raise wrong_value(quarantine, "a set of actors", "quarantine")
    refuse_async(quarantine, "quarantine")
    if callable(quarantine):
        refuse_misfit(quarantine, "actor", "quarantine", "")
        return quarantine
    names = frozenset(checked_names(quarantine, "quarantine"))
    return lambda origin: not names.isdisjoint((origin, origin.partition(":")[0]))


async def run_extractor(extractor: Extractor, message: str, deps: Any) -> object:
    """Run an extractor or a compactor on its draft, and return its result; a plain function runs in a thread."""
    run = extractor.run
    if inspect.iscoroutinefunction(run):  # a cancelled thread would leave its coroutine unawaited
        return await run(message, deps=deps)
    # A function that hangs keeps its thread, so it must not be one of those in which a writer stores turns.
    is_apart = is_private_loop() and scope_here() is None
    result = await (in_daemon_thread if is_apart else in_thread)(run, message, deps=deps)
    if inspect.isawaitable(result):
        return await result
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise SchemaError("the extractor is a generator, so nothing of it was run. Remove `yield`.")
    return result
