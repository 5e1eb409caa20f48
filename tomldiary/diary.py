"""The object people hold: storage, a preference table, limits, and an extractor."""

from __future__ import annotations

import os
from copy import copy
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from tomldiary.backends.base import BackendProtocol
from tomldiary.backends.local import LocalBackend
from tomldiary.backends.memory import MemoryBackend
from tomldiary.compaction import (
    CompactionConfig,
    CompactionDeps,
    CompactionStats,
    load_compactor,
    operation_path,
)
from tomldiary.constraints import Constraint, FactSchema
from tomldiary.conversations import Conversations
from tomldiary.default_table import DefaultPrefTable
from tomldiary.draft import MemoryDeps
from tomldiary.engine import Engine, Source
from tomldiary.errors import BackendError, DiaryError, ExtractionError, SchemaError
from tomldiary.extraction.message import turn_message
from tomldiary.extraction.protocol import as_extractor, run_extractor
from tomldiary.extraction.resolve import resolve_extractor
from tomldiary.facts import undo_edits
from tomldiary.logging import get_logger
from tomldiary.models import timestamp
from tomldiary.preferences import PreferenceRules, Preferences
from tomldiary.recall import Indexes
from tomldiary.schema import categories
from tomldiary.similarity import DEFAULT_THRESHOLD, Similarity
from tomldiary.turns import Applied, TurnOperation, TurnRules, apply_turn, current_operation
from tomldiary.twins import in_thread
from tomldiary.user import UserDiary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from pydantic import BaseModel

    from tomldiary.backends.base import Backend, Durability
    from tomldiary.engine import Transaction
    from tomldiary.extraction.protocol import Extractor
    from tomldiary.operations import Operation
    from tomldiary.similarity import Scorer
    from tomldiary.toml.document import Document

__all__ = ["Diary", "TOMLDiary"]

_KINDS = ("preferences", "conversations")
_logger = get_logger(__name__)


class Diary:
    """An agent's memory of its users. Thread-safe; serves several event loops at once.

    Args:
        backend: A folder, "memory:", a backend of this package, or any object with the six async
            methods of `BackendProtocol`.
        pref_table_cls: A pydantic model whose fields are the categories; None is a built-in table.
        agent: Who reads the turns: "rules" (offline), a model name, an extractor or agent with
            `run(message, deps=…)`, a function, or a framework's model. None asks $EXTRACTOR_MODEL.
            Looked up at the first turn, never here.
        max_prefs_per_category: Preferences a category may hold.
        max_conversations: Conversations kept; the least recently used leaves.
        compaction_config: When to clean up; None is never.
        compactor: Who cleans up; None is the pydantic-ai compaction agent.
        similarity: Score from which a stored preference is suggested instead of a new one, 0 to 100.
        scorer: Compares two normalised texts, 0 to 100; None is rapidfuzz `token_set_ratio`.
        durability: What a returned write survives ("full", "process", "none"), for a folder only.
        lock_timeout: Seconds a writer waits for another one of the same user.

    Raises:
        SchemaError: `pref_table_cls` cannot be read as categories.
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
        similarity: float = DEFAULT_THRESHOLD,
        scorer: Scorer | None = None,
        durability: Durability | None = None,
        lock_timeout: float = 30.0,
    ) -> None:
        descriptions = categories(pref_table_cls)
        self.pref_table_cls = pref_table_cls
        self.schema_name = pref_table_cls.__name__
        self.allowed: list[str] = list(descriptions)
        self.agent = agent
        self.max_prefs_per_category = max_prefs_per_category
        self.max_conversations = max_conversations
        self.compaction_config = compaction_config
        self.compactor = compactor
        self.similarity = Similarity(similarity, scorer)
        self.indexes = Indexes()
        self.engine = Engine(
            open_backend(backend, durability), self.schema_name, lock_timeout=lock_timeout
        )
        is_place = isinstance(backend, str | os.PathLike)
        self.backend: Any = self.engine.backend if is_place else backend
        rules = PreferenceRules(tuple(self.allowed), max_prefs_per_category)
        self.turn_rules = TurnRules(rules, max_conversations)
        self.fact_schemas: dict[str, FactSchema] = {}
        self._descriptions = descriptions
        self._extractor: tuple[Any, Extractor] | None = None
        self._last_compaction: dict[tuple[str, str], datetime] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.engine.backend!r}, {self.schema_name})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave; every write is finished when its call returns, so there is nothing to close."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """See `__exit__`."""

    def user(self, user_id: str) -> UserDiary:
        """Return everything about one user; any non-empty string is a user id."""
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
        self.engine.guards["facts"] = partial(undo_edits, schemas=self.fact_schemas)

    def with_agent(self, agent: Any) -> Self:
        """Return this diary with another one who reads the turns; all else is shared."""
        twin = copy(self)
        twin.agent = agent
        return twin

    def users(self) -> list[str]:
        """Return the ids of all users that have a document, sorted."""
        return self.engine.backend.users()

    def stats(self) -> dict[str, Any]:
        """Return what the storage promises: durability, atomicity, and who may write at once."""
        backend = self.engine.backend
        return {
            "backend": repr(backend),
            "durability": backend.durability,
            "is_atomic": backend.is_atomic,
            "is_shared": backend.is_shared,
        }

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

    async def _ready_extractor(self) -> Extractor:
        """Return the extractor; the first time it may load a framework, which takes a second."""
        known = self._extractor
        if known is not None and known[0] is self.agent:
            return known[1]
        return await in_thread(lambda: self.extractor)

    # The coroutines of the ancestor

    async def preferences(self, user_id: str, skip_metadata: bool = False) -> str:  # noqa: FBT001, FBT002
        """Return the preferences document as TOML text; "" if there is none."""
        document = await in_thread(self.engine.document, user_id, "preferences")
        if not skip_metadata:
            return document.text
        edit = document.edit()
        edit.delete(("_meta",))
        return edit.done().text

    async def last_conversations(
        self,
        user_id: str,
        limit: int = 3,
        skip_metadata: bool = False,  # noqa: FBT001, FBT002
    ) -> dict[str, Any]:
        """Return the fields of the newest conversations by session id, newest first.

        The document's `_meta` table is in it too, under that key, unless `skip_metadata`.
        """
        document = await in_thread(self.engine.document, user_id, "conversations")
        entries = [(key, dict(entry)) for key, entry in Conversations(document).entries()]
        entries.sort(key=lambda item: str(item[1].get("_created", "")), reverse=True)
        meta = document.table(("_meta",))
        head = {"_meta": dict(meta)} if meta is not None and not skip_metadata else {}
        return {**head, **dict(entries[: max(0, limit)])}

    async def ensure_session(
        self, user_id: str, session_id: str, *, context_now: datetime | None = None
    ) -> bool:
        """Create a session if it is new, and tell whether it was."""
        now = timestamp(context_now)

        def change(tx: Transaction) -> bool:
            book = Conversations(tx.edit("conversations"), self.max_conversations)
            return book.ensure(session_id, now=now)

        known = self.engine.cached(user_id, "conversations")
        if known is not None and Conversations(known[0]).find(session_id) is not None:
            return False
        return await in_thread(self.engine.write, user_id, change, Source("session", session_id))

    async def build_deps(
        self, user_id: str, session_id: str, *, context_now: datetime | None = None
    ) -> MemoryDeps:
        """Return a draft of the user's memory, as an extractor gets it."""
        documents = self.engine.cached(user_id, *_KINDS)
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
        deps.descriptions = self._descriptions
        return deps

    def _documents(self, user_id: str) -> list[Document]:
        return [self.engine.document(user_id, kind) for kind in _KINDS]

    async def update_memory(
        self,
        user_id: str,
        session_id: str,
        user_msg: str,
        assistant_msg: str,
        *,
        context_now: datetime | None = None,
    ) -> None:
        """Let the extractor read one turn, and commit what it wants together with the turn's count.

        Raises:
            ExtractionError: The extractor failed. Nothing was changed.
        """
        await self.process_turn(user_id, session_id, user_msg, assistant_msg, now=context_now)

    async def process_turn(
        self,
        user_id: str,
        session_id: str,
        user_msg: str,
        assistant_msg: str,
        *,
        now: datetime | None = None,
        operation: TurnOperation | None = None,
    ) -> Applied:
        """Do what `update_memory` does, and return what became of the extractor's operations.

        Args:
            user_id: Whose memory.
            session_id: The conversation.
            user_msg: What the user said.
            assistant_msg: What the assistant answered.
            now: When it was said; None is now.
            operation: Makes a second attempt at the same turn harmless; None takes the one that
                `current_operation` is set to, if any.

        Raises:
            ExtractionError: The extractor failed. Nothing was changed.
            Forgotten: Something of the user was forgotten meanwhile. Nothing was changed.
        """
        operation = operation or current_operation.get()
        if operation is None:
            epoch = self.engine.backend.epoch(user_id)  # before anything is read
            operation = TurnOperation(epoch=epoch)
        operations = await self.extract_turn(user_id, session_id, user_msg, assistant_msg, now=now)
        done = await in_thread(
            self.commit_turn, user_id, session_id, operations, now=now, operation=operation
        )
        await self._compact_if_due(user_id, session_id, now)
        return done

    async def extract_turn(
        self,
        user_id: str,
        session_id: str,
        user_msg: str,
        assistant_msg: str,
        *,
        now: datetime | None = None,
    ) -> list[Operation]:
        """Let the extractor read one turn, and return what it wants done; nothing is stored.

        Raises:
            ExtractionError: The extractor failed.
        """
        extractor = await self._ready_extractor()
        deps = await self.build_deps(user_id, session_id, context_now=now)
        deps.user_msg, deps.assistant_msg = user_msg, assistant_msg
        deps.begin_turn()
        message = turn_message(deps, user_msg, assistant_msg)
        try:
            await run_extractor(extractor, message, deps)
        except DiaryError:
            raise
        except Exception as error:
            raise ExtractionError(
                f"the extractor failed ({type(error).__name__}: {error}). Nothing was changed; the turn"
                " can be given again."
            ) from error
        return deps.operations

    def commit_turn(
        self,
        user_id: str,
        session_id: str,
        operations: Sequence[Operation],
        *,
        now: datetime | None = None,
        operation: TurnOperation,
        patience: float | None = None,
    ) -> Applied:
        """Apply what was extracted from a turn to the memory as it is now, and count the turn.

        Args:
            user_id: Whose memory.
            session_id: The conversation.
            operations: What the extractor wants.
            now: When it was said; None is now.
            operation: Makes a second attempt at the same turn harmless.
            patience: Seconds to wait for others at most; None is as long as a writer does.

        Raises:
            Conflict: The operation id was used for something else.
            Forgotten: Something of the user was forgotten since `operation.epoch`. Nothing was changed.
        """
        moment = timestamp(now)
        last: list[Transaction] = []

        def change(tx: Transaction) -> Applied:
            last[:] = [tx]
            return apply_turn(
                tx, operations, self.turn_rules, session_id=session_id, now=moment,
                turns=operation.turns,
            )  # fmt: skip

        def repeated(seq: int) -> Applied:
            return Applied(transaction=seq, is_repeated=True)

        source = Source(
            "turn", session_id, actor="extractor", operation=operation.id,
            content=operation.content, is_new=operation.is_new,
        )  # fmt: skip
        done = self.engine.write(
            user_id, change, source,
            epoch=operation.epoch, on_repeat=repeated, patience=patience,
        )  # fmt: skip
        if not done.is_repeated:
            done.transaction = last[0].seq
        return done

    def turn_is_at_hand(self, user_id: str) -> bool:
        """Tell whether a turn can be committed without waiting for anything, in about a millisecond."""
        return self.engine.is_at_hand(user_id, *_KINDS)

    def find_turn(self, user_id: str, operation: TurnOperation) -> Applied | None:
        """Return the answer for a turn that was applied already, or None.

        Raises:
            Conflict: The operation id was used for something else.
        """
        source = Source("turn", operation=operation.id, content=operation.content)
        with self.engine.backend.lock(user_id, self.engine.lock_timeout):
            seq = self.engine.repetition(user_id, source)
        return Applied(transaction=seq, is_repeated=True) if seq is not None else None

    async def pretty_preferences(
        self,
        user_id: str,
        skip_metadata: bool = True,  # noqa: FBT001, FBT002
        fields: set[str] | None = None,
        show_count: bool = True,  # noqa: FBT001, FBT002
        show_timestamps: bool = True,  # noqa: FBT001, FBT002
    ) -> str:
        """Return the preferences laid out for people."""
        from tomldiary.pretty_print import PreferencesPrinter  # noqa: PLC0415 - only for people

        printer = PreferencesPrinter(
            fields=fields, show_count=show_count, show_timestamps=show_timestamps
        )
        return printer.format_preferences(await self.preferences(user_id), skip_metadata)

    async def pretty_conversations(
        self,
        user_id: str,
        limit: int | None = None,
        skip_metadata: bool = True,  # noqa: FBT001, FBT002
        fields: set[str] | None = None,
        show_turns: bool = True,  # noqa: FBT001, FBT002
    ) -> str:
        """Return the conversations laid out for people."""
        from tomldiary.pretty_print import ConversationsPrinter  # noqa: PLC0415 - only for people

        printer = ConversationsPrinter(fields=fields, show_turns=show_turns)
        shown = await self.last_conversations(user_id, _ALL if limit is None else limit)
        return printer.format_conversations(shown, skip_metadata)

    # Clean-up, after a turn and apart from it

    async def _compact_if_due(self, user_id: str, session_id: str, now: datetime | None) -> None:
        moment = now or datetime.now(UTC)
        try:
            due = await self.compaction_due(user_id, moment)
            if due:
                await self._compact(user_id, session_id, due, moment)
        except Exception:  # the turn is committed; a clean-up that fails is tried again later
            _logger.exception("a clean-up failed; the turn is stored, the clean-up comes later")

    async def compaction_due(self, user_id: str, now: datetime) -> list[str]:
        """Return the documents that are due for a clean-up; empty if none is wanted."""
        config = self.compaction_config
        if config is None or not config.enabled:
            return []
        return await in_thread(self._due, config, user_id, now)

    async def compaction_parts(self, user_id: str, due: Sequence[str]) -> list[tuple[str, str]]:
        """Return what a clean-up of documents can be divided into: `(kind, category)`, the latter may be ""."""
        parts: list[tuple[str, str]] = []
        for kind in due:
            if kind == "preferences":
                book = Preferences(
                    await in_thread(self.engine.document, user_id, kind),
                    self.turn_rules.preferences,
                )
                parts += [(kind, name) for name in self.allowed if any(book.entries(name))]
            else:
                parts.append((kind, ""))
        return parts

    async def compact_part(
        self, user_id: str, session_id: str, part: tuple[str, str], now: datetime
    ) -> None:
        """Let the compactor clean up one part and commit it, apart from all others."""
        kind, category = part
        await self._compact(user_id, session_id, [kind], now, category=category)

    async def compaction_done(
        self, user_id: str, session_id: str, due: Sequence[str], now: datetime
    ) -> None:
        """Note that documents were cleaned up, so that they are not due again at once."""
        deps = CompactionDeps(
            {}, {}, include_preferences=False, include_conversations=False, live_session=session_id
        )
        await in_thread(self._commit_compaction, user_id, deps, [], due, now)

    def _due(self, config: CompactionConfig, user_id: str, now: datetime) -> list[str]:
        due: list[str] = []
        conversations = self.engine.document(user_id, "conversations")
        turns = _meta_number(conversations.table(("_meta", "compaction")), "total_turns")
        for kind in _KINDS:
            document = self.engine.document(user_id, kind)
            progress = document.table(("_meta", "compaction")) or {}
            if kind == "preferences":
                book = Preferences(document, self.turn_rules.preferences)
                entries = [entry for name in self.allowed for _, entry in book.entries(name)]
                stats = CompactionStats.of(entries, "text")
            else:
                sessions = [entry for _, entry in Conversations(document).entries()]
                stats = CompactionStats.of(sessions, "summary")
            tried = self._last_compaction.get((user_id, kind))
            last = max(filter(None, (tried, _moment(progress.get("last_run")))), default=None)
            if config.should_run(
                store=kind,
                stats=stats,
                last_run=last,
                turns_since_compaction=turns - _meta_number(progress, "turns_at_last_run"),
                now=now,
            ):
                due.append(kind)
        return due

    async def _compact(
        self,
        user_id: str,
        session_id: str,
        due: Sequence[str],
        now: datetime,
        *,
        category: str | None = None,
    ) -> None:
        for kind in due:
            self._last_compaction[user_id, kind] = now
        if self.compactor is None:
            self.compactor = await in_thread(load_compactor)  # may load a framework
        epoch = self.engine.backend.epoch(user_id)
        draft = await self.build_deps(user_id, session_id, context_now=now)
        prefs: Any = draft.prefs
        if category:
            tables = prefs.get("preferences", {})
            prefs = {"preferences": {category: tables.get(category, {})}}
        deps = CompactionDeps(
            prefs,
            draft.convs,
            include_preferences="preferences" in due,
            include_conversations="conversations" in due,
            live_session=session_id,
            now=timestamp(now),
        )
        await run_extractor(as_extractor(self.compactor), _COMPACTION_TASK, cast("Any", deps))
        operations = draft.operations
        # A part leaves the note that the whole is done to whoever runs all of them.
        noted: Sequence[str] = due if category is None else ()
        await in_thread(self._commit_compaction, user_id, deps, operations, noted, now, epoch=epoch)

    def _commit_compaction(
        self,
        user_id: str,
        deps: CompactionDeps,
        operations: Sequence[Operation],
        due: Sequence[str],
        now: datetime,
        *,
        epoch: int | None = None,
    ) -> None:
        moment, session_id = timestamp(now), deps.live_session

        def stored(tx: Transaction, operation: Operation) -> Mapping[str, Any] | None:
            kind, *place = operation_path(operation)
            if kind == "conversations":
                return Conversations(tx.edit(kind)).find(place[0])
            found = Preferences(tx.edit(kind), self.turn_rules.preferences).find(*place)
            return found[1] if found is not None else None

        def change(tx: Transaction) -> None:
            # Looked at before any is applied: several may be about one entry.
            fitting = [each for each in operations if deps.fits(each, stored(tx, each))]
            apply_turn(
                tx, fitting, self.turn_rules, session_id=session_id, now=moment,
                turns=0,
            )  # fmt: skip
            path = ("_meta", "compaction")
            turns = _meta_number(tx.edit("conversations").table(path), "total_turns")
            for kind in due:
                edit = tx.edit(kind)
                progress = {"last_run": moment, "turns_at_last_run": turns}
                if kind == "conversations":
                    progress["turns_since_compaction"] = 0
                edit.put(path, {**(edit.table(path) or {}), **progress})

        source = Source("compaction", session_id, actor="compactor")
        self.engine.write(user_id, change, source, epoch=epoch)


TOMLDiary = Diary

_ALL = 2**31
_COMPACTION_TASK = "Clean up the diary blocks you are given tools for."


def _meta_number(table: Any, key: str) -> int:
    value = table.get(key, 0) if table is not None else 0
    return value if isinstance(value, int) else 0


def _moment(value: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def open_backend(
    backend: Backend | BackendProtocol | str | os.PathLike[str], durability: Durability | None
) -> Backend:
    """Return the sync backend that `backend` stands for.

    Raises:
        BackendError: It is none.
    """
    if isinstance(backend, str | os.PathLike):
        place = os.fspath(backend)
        if place == "memory:":
            return MemoryBackend()
        if "://" in place:
            raise BackendError(f"{place!r}: no backend for this kind of address. Give a folder.")
        return LocalBackend(place, durability=durability or "full")
    if durability is not None:
        raise BackendError("durability belongs to a folder; set it on the backend you give.")
    if hasattr(backend, "commit") and hasattr(backend, "lock"):
        return cast("Backend", backend)
    if isinstance(backend, BackendProtocol):
        from tomldiary.backends.six_verbs import SixVerbsBackend  # noqa: PLC0415 - rarely needed

        return SixVerbsBackend(backend)
    raise BackendError(
        f"{type(backend).__name__} is no backend: it needs the methods load, save, exists, delete,"
        " delete_user and list_users."
    )
