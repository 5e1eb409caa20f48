"""The `Diary`: storage, preference table, limits and extractor of many users' memories."""

from __future__ import annotations

import os
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tomldiary.compaction.runner import CompactionRunner
from tomldiary.compat.coroutines import AncestorCoroutines
from tomldiary.compat.default_table import DefaultPrefTable
from tomldiary.engine.engine import Engine, Source, Transaction
from tomldiary.engine.transaction import fingerprint
from tomldiary.entries.constraints import Constraint, FactSchema
from tomldiary.entries.conversations import MAX_SUMMARY
from tomldiary.entries.episodes import KeptTurn, ToolStep, checked_steps, new_episode
from tomldiary.entries.fact_rules import FactRules
from tomldiary.entries.facts import in_utc
from tomldiary.entries.kind import Writing
from tomldiary.entries.kinds import EPISODES, FACTS, entry_kind
from tomldiary.entries.kinds.rules import EntryRules
from tomldiary.entries.models import timestamp
from tomldiary.entries.preferences import PreferenceRules
from tomldiary.entries.schema import categories, weights
from tomldiary.errors import DiaryError, ExtractionError, IdentifierError, InvalidValue, SchemaError
from tomldiary.extraction.dialogue import CONTEXT_TURNS, Sessions, checked_exchanges, storable
from tomldiary.extraction.draft import MemoryDeps
from tomldiary.extraction.extractor import (
    Extractor,
    ExtractorStats,
    resolve_extractor,
    run_extractor,
)
from tomldiary.extraction.failures import explained
from tomldiary.extraction.message import turn_message
from tomldiary.extraction.operations import (
    Applied,
    Operation,
    TurnOperation,
    TurnRules,
    apply_turn,
    current_operation,
    redacted,
    turn_source,
)
from tomldiary.extraction.tool_writes import find_tool_writes
from tomldiary.identifiers.namespaces import SHARED
from tomldiary.retrieval.embedders import DiaryEmbedder, local_embedder
from tomldiary.runtime.async_bridge import in_thread
from tomldiary.runtime.views import DictView, ListView, Viewed, drawn, pretty
from tomldiary.storage.open import open_backend
from tomldiary.storage.protocol import Backend, BackendProtocol, Durability, FixedDocuments
from tomldiary.text.redaction import Redact, Redactor, redactor_of
from tomldiary.text.similarity import DEFAULT_THRESHOLD, Scorer, Similarity
from tomldiary.user.pending.held import QUARANTINE, Trust, Why, hold
from tomldiary.user.recall import Indexes
from tomldiary.user.user import UserDiary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from pydantic import BaseModel

    from tomldiary.compaction.draft import CompactionConfig
    from tomldiary.hooks.feed import Feed
    from tomldiary.hooks.hooks import Hooks
    from tomldiary.toml.document import Document
    from tomldiary.toml.edit import Edit

T = TypeVar("T")

__all__ = ["Diary", "TOMLDiary", "diary_of"]

_DRAFTED = ("preferences", "conversations")
"""The documents that an extractor drafts changes of."""


class Users(ListView[str]):
    """The ids of users, sorted."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr([*self])


class StorageStats(DictView[str, Any]):
    """The guarantees of a storage."""

    __slots__ = ()


class Diary(Viewed, AncestorCoroutines):
    """An agent's memory of its users. Thread-safe; serves several event loops at once.

    Args:
        backend: A folder, "memory:", a backend of this package, or any object with the six async
            methods of `BackendProtocol`.
        pref_table_cls: A pydantic model whose fields are the categories; None is a built-in table.
        agent: The extractor: "rules" (offline), a model name, an extractor or agent with
            `run(message, deps=…)`, a function, or a framework's model. None asks $EXTRACTOR_MODEL.
            Resolved at the first turn, not by the constructor.
        max_prefs_per_category: Preferences a category may hold.
        max_summary_chars: Longest summary of a conversation that a model may write.
        max_conversations: Conversations kept; the least recently used one is dropped.
        compaction_config: When to compact; None is never.
        episodes: Whether each turn is also kept word for word, with its tool calls; a turn may say otherwise.
        compactor: Compacts documents; None is the pydantic-ai compaction agent.
        context_turns: Earlier exchanges of the session that the extractor is shown with a turn; 0 is none.
        extraction_timeout: Seconds that the extractor may take for a turn; None is unlimited. A
            writer has its own limit.
        similarity: Score from which a stored preference is suggested instead of a new one, 0 to 100.
        scorer: Compares two normalised texts, 0 to 100; None is rapidfuzz `token_set_ratio`.
        durability: What a returned write survives ("full", "process", "none"), for a folder only.
        embedder: Ranks by meaning beside words: "local" (static vectors, offline), a function of a list of texts,
            LangChain's `Embeddings` or pydantic-ai's `Embedder`. None ranks by words alone.
        lock_timeout: Seconds a writer waits for another one of the same user.
        quarantine: Actors whose changes wait for a review, such as {"web", "tool"}, or a function of the actor.
            "rule" and "model" are the extractors. See `alice.review`.
        draft_lifetime: How long a draft of a session waits to be promoted.
        redact: Takes secrets out of every text before it is stored, queued, indexed or shown to a model: True is
            all built-in kinds, or some of `tomldiary.text.redaction.KINDS`, or a function of a text. None is off.

    Raises:
        SchemaError: `pref_table_cls` cannot be read as categories.
        InvalidValue: `context_turns` is negative, `max_summary_chars` is less than 1, or `extraction_timeout` is not positive.
    """

    def __init__(
        self,
        backend: Backend | BackendProtocol | str | os.PathLike[str],
        pref_table_cls: type[BaseModel] = DefaultPrefTable,
        agent: Any = None,
        max_prefs_per_category: int = 100,
        max_conversations: int = 100,
        compaction_config: CompactionConfig | None = None,
        compactor: Any = None,
        *,
        episodes: bool = False,
        context_turns: int = CONTEXT_TURNS,
        extraction_timeout: float | None = 120.0,
        max_summary_chars: int = MAX_SUMMARY,
        similarity: float = DEFAULT_THRESHOLD,
        scorer: Scorer | None = None,
        redact: bool | str | Iterable[str] | Redact | Redactor | None = None,
        durability: Durability | None = None,
        lock_timeout: float = 30.0,
        quarantine: Collection[str] | Callable[[str], bool] = (),
        draft_lifetime: timedelta = timedelta(hours=24),
        embedder: Any = None,
    ) -> None:
        descriptions = categories(pref_table_cls)
        self.pref_table_cls = pref_table_cls
        self.schema_name = pref_table_cls.__name__
        self.allowed: list[str] = list(descriptions)
        self.weights: dict[str, float] = weights(pref_table_cls)
        self.agent = agent
        self.max_prefs_per_category = max_prefs_per_category
        if max_summary_chars < 1:
            raise InvalidValue(
                f"expected 1 or more, found {max_summary_chars}.", where="max_summary_chars"
            )
        self.max_conversations = max_conversations
        self.max_summary_chars = max_summary_chars
        self.compaction_config = compaction_config
        self.compactor = compactor
        if context_turns < 0:
            raise InvalidValue(f"expected 0 or more, found {context_turns}.", where="context_turns")
        if extraction_timeout is not None and extraction_timeout <= 0:
            raise InvalidValue(
                f"expected more than 0 seconds, or None, found {extraction_timeout}.",
                where="extraction_timeout",
            )
        self.context_turns = context_turns
        self.extraction_timeout = extraction_timeout
        self.sessions = Sessions(context_turns)
        self.similarity = Similarity(similarity, scorer)
        self.redactor = redactor_of(redact)
        self.indexes = Indexes()
        self.engine = Engine(
            open_backend(backend, durability), self.schema_name, lock_timeout=lock_timeout
        )
        if self.redactor is not None:
            self.engine.redact = self.redactor.entry
        self.embedder = None if embedder is None else DiaryEmbedder(self.engine, embedder)
        if embedder == "local":  # the scale of others is not known
            self.similarity.second = _local_vectors
        is_place = isinstance(backend, str | os.PathLike)
        self.backend: Any = self.engine.backend if is_place else backend
        rules = PreferenceRules(tuple(self.allowed), max_prefs_per_category)
        self.preference_rules = rules
        self.turn_rules = TurnRules(rules, max_conversations)
        self.fact_schemas: dict[str, FactSchema] = {}
        self.entry_rules = EntryRules()
        self.trust = Trust(quarantine)
        self.draft_lifetime = draft_lifetime
        self._descriptions = descriptions
        self._extractor: tuple[Any, Extractor] | None = None
        self.compaction = CompactionRunner(self)
        self.episodes = episodes
        self.reading: set[tuple[str, str]] = set()
        """The episodes that `consolidate` reads at the moment, by user and id."""
        if episodes:
            self.engine.check_kept(f"{EPISODES.name}/2026-01")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.engine.backend!r}, {self.schema_name})"

    _repr_pretty_ = pretty

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each user: entries of each kind, transactions, last write.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return drawn("frames:frame", self)

    def plot_growth(self, ax: Any = None) -> Any:
        """Plot how many entries the users' histories hold over time, and return the matplotlib Axes.

        Args:
            ax: The Axes to draw on; None makes a new figure.

        Raises:
            MissingExtra: matplotlib is not installed.
        """
        return drawn("plots:growth", self, ax)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the hooks; each write is complete when its call returns."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `__exit__`."""
        await in_thread(self.close)

    def user(self, user_id: str) -> UserDiary:
        """Return everything about one user; any non-empty string is a user id.

        Raises:
            IdentifierError: It is no text, or empty.
        """
        if not isinstance(user_id, str) or not user_id:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise IdentifierError(f"expected a non-empty text as a user id, found {user_id!r}")
        return UserDiary(self, user_id)

    def register_schema(
        self, name: str, model: type[BaseModel], constraint: Constraint | None = None
    ) -> None:
        """Let users commit facts of a type; registering the name again replaces model and rules.

        Args:
            name: The type's name: facts stand below `[facts.<name>]`.
            model: A pydantic model, registered under one name only.
            constraint: What facts of the type obey beside their model.

        Raises:
            SchemaError: The name or the model cannot be used, or the model lacks the singleton key.
        """
        schema = FactSchema(name, model, constraint or Constraint())
        for other in self.fact_schemas.values():
            if other.model is model and other.name != name:
                raise SchemaError(f"{model.__name__} is registered as {other.name!r} already.")
        self.fact_schemas = {**self.fact_schemas, name: schema}
        rules = schema.constraint
        if rules.append_only or rules.required or rules.ttl or self.entry_rules.of(f"facts/{name}"):
            self._set_rule(f"facts/{name}", rules)
        self.engine.guards[FACTS.name] = self.undo_edits

    def constrain(self, collection: str, constraint: Constraint) -> None:
        """Set what the entries of a collection obey, whichever door they come through; again replaces it.

        Every transaction is checked, also of tools, stores, imports and rollbacks. A hand edit that breaks a rule is
        undone, except for `ttl`; history keeps it.

        Args:
            collection: `preferences/likes`, `blocks`, `blocks/persona`, `items/work`, `conversations` and so on; the
                most exact one counts. Types of facts have their constraint from `register_schema`.
            constraint: What they obey; `temporal`, `multi_valued` and `normalise` are for facts.

        Raises:
            SchemaError: There is no such collection, or the rule does not apply to it.
        """
        if collection.partition("/")[0] == FACTS.name:
            raise SchemaError("facts have their constraint from register_schema.")
        self._set_rule(collection, constraint)

    def _set_rule(self, collection: str, constraint: Constraint) -> None:
        self.entry_rules.set(collection, constraint, self.allowed)
        self.engine.check = partial(self.entry_rules.apply, rules=self)
        self.engine.guards[collection.partition("/")[0]] = self.undo_edits

    def undo_edits(
        self,
        document: str,
        edit: Edit,
        logged: Document,
        others: Sequence[tuple[Document, Document]],
    ) -> None:
        """Undo the hand edits of a document that its rules forbid; see `EntryRules.undo_edits`."""
        entry_kind(document).undo_edits(edit, logged, self, others)
        self.entry_rules.undo_edits(edit, logged, document, others, self.engine.now())

    def with_agent(self, agent: Any) -> Self:
        """Return a diary with another extractor; it shares everything else."""
        twin = copy(self)
        twin.agent = agent
        return twin

    @cached_property
    def hooks(self) -> Hooks:
        """The hooks that follow the changes, such as outside indexes: `add`, `flush`, `reconcile`, `search`."""
        from tomldiary.hooks.hooks import Hooks  # noqa: PLC0415 - start-up time: few diaries have hooks

        return Hooks(self.engine)

    def changes(
        self,
        since: str | None = None,
        *,
        users: Collection[str] | None = None,
        follow: bool = True,
        poll: float = 1.0,
    ) -> Feed:
        """Return the changes of all users after a cursor, to iterate over with `for` or `async for`.

        The changes of one user come in their order. After an erasure a change with `is_reset` comes first, and
        then each entry that the user still has.

        Args:
            since: The `cursor` of an earlier feed; None begins with the kept history.
            users: Only these users; None is all.
            follow: Whether to wait for more at the end.
            poll: Seconds between two looks for changes of other processes.

        Raises:
            InvalidValue: `since` is no cursor.
        """
        from tomldiary.hooks.feed import Feed  # noqa: PLC0415 - see `hooks`

        return Feed(self.engine, since, users=users, follow=follow, poll=poll)

    def close(self) -> None:
        """Stop the hooks; what they lack is delivered when they are added again."""
        if "hooks" in vars(self):
            self.hooks.close()

    def users(self) -> Users:
        """Return the ids of all users that have a document, sorted.

        Reads only names: a folder of 100,000 users takes one or two seconds. The owner of shared namespaces
        is left out.
        """
        return Users(user for user in self.engine.backend.users() if user != SHARED)

    def stats(self) -> StorageStats:
        """Return the guarantees of the storage: durability, atomicity, concurrent writers, documents.

        `documents` are the names of the documents that it keeps; None is any, episodes and items included.
        Further keys are counters of the extractor, such as `unsupported_languages` of "rules".
        """
        backend = self.engine.backend
        documents = backend.documents if isinstance(backend, FixedDocuments) else None
        return StorageStats(
            {
                "backend": repr(backend),
                "durability": backend.durability,
                "is_atomic": backend.is_atomic,
                "is_shared": backend.is_shared,
                "documents": None if documents is None else list(documents),
                **self.extractor_stats(),
                **({"redacted": self.redactor.stats()} if self.redactor is not None else {}),
            }
        )

    def extractor_stats(self) -> dict[str, Any]:
        """Return the counters of the extractor; empty if it has none, or read no turn yet."""
        known = self._extractor
        if known is None or known[0] is not self.agent:
            return {}
        return known[1].stats() if isinstance(known[1], ExtractorStats) else {}

    @property
    def extractor(self) -> Extractor:
        """Who reads the turns; looked up when first asked for, and again if `agent` was replaced.

        Raises:
            MissingExtra: A model is wanted, and the adapter that drives it is not installed.
        """
        known = self._extractor
        if known is None or known[0] is not self.agent:
            known = (self.agent, resolve_extractor(self.agent, self.pref_table_cls))
            self._extractor = known
        return known[1]

    def keep_extracted(
        self,
        tx: Transaction,
        change: Callable[[Transaction], Applied],
        session_id: str,
        reason: str = "",
    ) -> Applied:
        """Make the changes of an extractor, or hold them back if extractors are not trusted."""
        origin = self.extractor_origin
        if self.trust.waits(origin):
            return hold(tx, change, Why(QUARANTINE, session_id, origin, reason))
        return change(tx)

    @property
    def extractor_origin(self) -> str:
        """Where extracted entries come from: "rule", "model:" and its name, or "model"."""
        agent = os.environ.get("EXTRACTOR_MODEL", "") if self.agent is None else self.agent
        if not isinstance(agent, str) or not agent:
            return "model"
        return "rule" if agent == "rules" else f"model:{agent}"

    async def current_epoch(self, user_id: str) -> int:
        """Return how often something of a user was forgotten, without holding the event loop."""
        backend = self.engine.backend
        if backend.is_quick:
            return backend.epoch(user_id)
        return await in_thread(backend.epoch, user_id)

    async def _ready_extractor(self) -> Extractor:
        """Return the extractor; the first time it may load a framework, which takes a while."""
        known = self._extractor
        if known is not None and known[0] is self.agent:
            return known[1]
        return await in_thread(lambda: self.extractor)

    # Turns

    async def update_memory(
        self,
        user_id: str,
        session_id: str,
        user_msg: str,
        assistant_msg: str,
        *,
        context_now: datetime | None = None,
        earlier: Sequence[tuple[str, str]] | None = None,
    ) -> None:
        """Extract memory from one turn, and commit it together with the turn's count.

        Args:
            user_id: Whose memory.
            session_id: The conversation.
            user_msg: What the user said.
            assistant_msg: What the assistant answered.
            context_now: When it was said; None is now.
            earlier: The exchanges before it; see `Turn.earlier`.

        Raises:
            ExtractionError: The extractor failed. Nothing was changed.
        """
        await self.process_turn(
            user_id, session_id, user_msg, assistant_msg, now=context_now, earlier=earlier
        )

    async def process_turn(
        self,
        user_id: str,
        session_id: str,
        user_msg: str,
        assistant_msg: str,
        *,
        now: datetime | None = None,
        operation: TurnOperation | None = None,
        earlier: Sequence[tuple[str, str]] | None = None,
        operation_id: str = "",
        steps: Sequence[ToolStep] = (),
        episode: bool | None = None,
    ) -> Applied:
        """Do the same as `update_memory`, and return the result of the extractor's operations.

        Args:
            user_id: Whose memory.
            session_id: The conversation.
            user_msg: What the user said.
            assistant_msg: What the assistant answered.
            now: When it was said; None is now.
            operation: Makes a second attempt at the same turn harmless; None takes the one that
                `current_operation` is set to, if any.
            earlier: The exchanges before it; see `Turn.earlier`.
            operation_id: The same one twice has one effect; "" for none. Without meaning beside `operation`.
            steps: The tools that were called, for the episode.
            episode: Whether the turn is kept word for word; None is what the diary says.

        Raises:
            ExtractionError: The extractor failed. Nothing was changed.
            Conflict: The operation id was used for a different change. Nothing was changed.
            Forgotten: Data of the user was erased meanwhile. Nothing was changed.
        """
        import asyncio  # noqa: PLC0415 - slow to import, and most of a diary needs none of it

        user_msg, assistant_msg = self.redacted(user_msg), self.redacted(assistant_msg)
        earlier = self.redacted(earlier)
        # Checked before a model is asked.
        called = tuple(ToolStep(*self.redacted(tuple(step))) for step in checked_steps(steps))
        operation = operation or current_operation.get()
        if operation is None:
            epoch = await self.current_epoch(user_id)  # read before any data
            began, _ = self.sessions.take(user_id, session_id)
            content = fingerprint(session_id, user_msg, assistant_msg) if operation_id else ""
            operation = TurnOperation(operation_id, content, epoch, began=began)
            done = await in_thread(self.find_turn, user_id, operation) if operation_id else None
            if done is not None:
                return done
        if earlier is not None:
            known = checked_exchanges(earlier, self.context_turns)
            operation = replace(operation, earlier=known)
        try:
            async with asyncio.timeout(self.extraction_timeout):
                operations = await self.extract_turn(
                    user_id, session_id, user_msg, assistant_msg, now=now, operation=operation
                )
        except TimeoutError as error:
            raise ExtractionError(
                f"the extractor took longer than {self.extraction_timeout:g} s. Nothing was changed. Try again"
                " later, or give Diary a longer extraction_timeout."
            ) from error
        when = now or datetime.now(UTC)
        turn = KeptTurn(storable(user_msg), storable(assistant_msg), when, called)
        done = await in_thread(
            self.commit_turn,
            user_id,
            session_id,
            operations,
            now=now,
            operation=operation,
            said=[turn] if self.keeps_turn(episode) else (),
        )
        await self.compaction.run_if_due(user_id, session_id, now)
        return done

    def keeps_turn(self, wanted: bool | None = None) -> bool:  # noqa: FBT001 - a setting, not a switch
        """Return whether a turn is kept word for word; None is what the diary says."""
        return self.episodes if wanted is None else wanted

    def redacted(self, value: T) -> T:
        """Return a text, or a list or table of texts, as the diary stores it; see `redact`."""
        return value if self.redactor is None else self.redactor.values(value)

    async def build_deps(
        self, user_id: str, session_id: str, *, context_now: datetime | None = None
    ) -> MemoryDeps:
        """Return a draft of the user's memory, as an extractor gets it."""
        documents = self.engine.cached_entries(user_id, *_DRAFTED)
        if documents is None:
            documents = await in_thread(self._documents, user_id)
        deps = MemoryDeps.from_documents(
            *documents,
            rules=self.turn_rules.preferences,
            schema_name=self.schema_name,
            session_id=session_id,
            context_now=context_now,
            similarity=self.similarity,
        )
        schemas = self.fact_schemas
        if schemas:
            stored = await in_thread(self.engine.readable, user_id, FACTS.name)
            deps.fact_schemas, deps.facts = schemas, FactRules(stored.overlay(), schemas)
        deps.descriptions = self._descriptions
        deps.max_summary = self.max_summary_chars
        deps.redact = self.redactor
        return deps

    def _documents(self, user_id: str) -> list[Document]:
        return [self.engine.entries(user_id, kind) for kind in _DRAFTED]

    async def extract_turn(
        self,
        user_id: str,
        session_id: str,
        user_msg: str,
        assistant_msg: str,
        *,
        now: datetime | None = None,
        operation: TurnOperation | None = None,
    ) -> list[Operation]:
        """Return the operations that the extractor makes of one turn; nothing is stored.

        Args:
            user_id: Whose memory.
            session_id: The conversation.
            user_msg: What the user said.
            assistant_msg: What the assistant answered.
            now: When it was said; None is now.
            operation: What else is known of the turn.

        Raises:
            ExtractionError: The extractor failed.
        """
        operation = operation or TurnOperation()
        user_msg, assistant_msg = storable(user_msg), storable(assistant_msg)
        said = user_msg, assistant_msg = self.redacted(user_msg), self.redacted(assistant_msg)
        backend = self.engine.backend
        epoch = (
            operation.epoch if operation.epoch is not None else await self.current_epoch(user_id)
        )
        if now is None and operation.ended:  # a queued turn is dated when it was submitted
            now = datetime.fromisoformat(operation.ended)
        deps = await self.build_deps(user_id, session_id, context_now=now)
        deps.user_id = user_id
        deps.user_msg, deps.assistant_msg = said
        deps.earlier = operation.earlier or ()
        if operation.earlier is None:
            now_epoch = await self.current_epoch(user_id)
            deps.earlier = self.sessions.before(now_epoch, user_id, session_id, said)
        deps.tool_writes = await in_thread(
            find_tool_writes, backend, user_id, session_id, operation.began, operation.ended
        )
        deps.begin_turn()
        await self.run_extractor(turn_message(deps, user_msg, assistant_msg), deps)
        self.sessions.keep(user_id, session_id, said, epoch)
        redactor = self.redactor
        return deps.operations if redactor is None else redacted(deps.operations, redactor.values)

    async def run_extractor(self, message: str, deps: MemoryDeps) -> None:
        """Run the extractor on a draft.

        Raises:
            ExtractionError: It failed.
        """
        extractor = await self._ready_extractor()
        try:
            await run_extractor(extractor, message, deps)
        except DiaryError:
            raise
        except Exception as error:
            why, remedy = explained(error)
            raise ExtractionError(
                f"the extractor failed ({why}). Nothing was changed. {remedy}"
            ) from error

    def commit_turn(
        self,
        user_id: str,
        session_id: str,
        operations: Sequence[Operation],
        *,
        now: datetime | None = None,
        operation: TurnOperation,
        said: Sequence[KeptTurn] = (),
    ) -> Applied:
        """Apply extracted operations to the current memory, and count the turn.

        Args:
            user_id: Whose memory.
            session_id: The conversation.
            operations: What the extractor returned.
            now: When it was said; None is now.
            operation: Makes a second attempt at the same turn harmless.
            said: The turns that become episodes in the same transaction.

        Raises:
            Conflict: The operation id was used for a different change.
            Forgotten: Something of the user was forgotten since `operation.epoch`. Nothing was changed.
        """
        moment = timestamp(now)
        last: list[Transaction] = []

        origin = self.extractor_origin

        def extracted(tx: Transaction) -> Applied:
            return apply_turn(
                tx, operations, self.turn_rules, session_id=session_id, now=moment,
                turns=operation.turns, schemas=self.fact_schemas,
            )  # fmt: skip

        def change(tx: Transaction) -> Applied:
            last[:] = [tx]
            applied = self.keep_extracted(tx, extracted, session_id)
            for turn in said:
                if not turn.is_empty:
                    documents = {*tx.engine.kinds(tx.user), *tx.changed()}
                    writing = Writing(self, tx.edit, tx.entries, documents, moment, session_id)
                    value = {**turn.value, "_source": turn_source(tx, session_id)}
                    new_episode(writing, value, in_utc(turn.when))
            return applied

        def repeated(seq: int) -> Applied:
            return Applied(transaction=seq, is_repeated=True)

        source = Source(
            "turn", session_id, actor="extractor", reason="" if origin == "rule" else origin,
            operation=operation.id, content=operation.content, is_new=operation.is_new,
        )  # fmt: skip
        done = self.engine.write(
            user_id, change, source,
            epoch=operation.epoch, check=operation.check, on_repeat=repeated,
        )  # fmt: skip
        if not done.is_repeated:
            done.transaction = last[0].seq
        return done

    def find_turn(self, user_id: str, operation: TurnOperation) -> Applied | None:
        """Return the result of a turn that was applied before, or None.

        Raises:
            Conflict: The operation id was used for a different change.
        """
        source = Source("turn", operation=operation.id, content=operation.content)
        with self.engine.backend.lock(user_id, self.engine.lock_timeout):
            seq = self.engine.repetition(user_id, source)
        return Applied(transaction=seq, is_repeated=True) if seq is not None else None


@cache
def _loaded_embedder() -> Callable[[Sequence[str]], list[list[float]]]:
    return local_embedder()


def _local_vectors(texts: list[str]) -> list[list[float]]:
    """Embed texts with the local embedder, which is loaded when it is first needed."""
    return _loaded_embedder()(texts)


TOMLDiary = Diary


def diary_of(given: Diary | str | os.PathLike[str]) -> Diary:
    """Return a diary as it is, or the diary of a folder.

    Raises:
        InvalidValue: It is a writer or a store, which has a diary.
        BackendError: It is nothing that can keep documents.
    """
    held = getattr(given, "diary", None)
    if isinstance(held, Diary):
        raise InvalidValue(
            f"expected a Diary or a folder, found {type(given).__name__}. Give its `.diary`.",
            where="diary",
        )
    return given if isinstance(given, Diary) else Diary(given)
