"""The object people hold: storage, a preference table, limits, and an extractor."""

from __future__ import annotations

import os
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from tomldiary.ancestor_coroutines import KINDS
from tomldiary.backends.opening import open_backend
from tomldiary.compaction_runs import CompactionRuns
from tomldiary.constraints import Constraint, FactSchema
from tomldiary.default_table import DefaultPrefTable
from tomldiary.engine import Engine, Source
from tomldiary.errors import DiaryError, ExtractionError, SchemaError
from tomldiary.extraction.message import turn_message
from tomldiary.extraction.protocol import run_extractor
from tomldiary.extraction.resolve import resolve_extractor
from tomldiary.facts import undo_edits
from tomldiary.models import timestamp
from tomldiary.preferences import PreferenceRules
from tomldiary.recall import Indexes
from tomldiary.schema import categories
from tomldiary.similarity import DEFAULT_THRESHOLD, Similarity
from tomldiary.turns import Applied, TurnOperation, TurnRules, apply_turn, current_operation
from tomldiary.twins import in_thread
from tomldiary.user import UserDiary

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from typing import Self

    from pydantic import BaseModel

    from tomldiary.backends.base import Backend, BackendProtocol, Durability
    from tomldiary.compaction import CompactionConfig
    from tomldiary.engine import Transaction
    from tomldiary.extraction.protocol import Extractor
    from tomldiary.operations import Operation
    from tomldiary.similarity import Scorer

__all__ = ["Diary", "TOMLDiary"]


class Diary(CompactionRuns):
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

    def __exit__(self, *_: object) -> None:
        """Leave; every write is finished when its call returns, so there is nothing to close."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
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
        await self.compact_if_due(user_id, session_id, now)
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
        return self.engine.is_at_hand(user_id, *KINDS)

    def find_turn(self, user_id: str, operation: TurnOperation) -> Applied | None:
        """Return the answer for a turn that was applied already, or None.

        Raises:
            Conflict: The operation id was used for something else.
        """
        source = Source("turn", operation=operation.id, content=operation.content)
        with self.engine.backend.lock(user_id, self.engine.lock_timeout):
            seq = self.engine.operations.repetition(user_id, source)
        return Applied(transaction=seq, is_repeated=True) if seq is not None else None


TOMLDiary = Diary
