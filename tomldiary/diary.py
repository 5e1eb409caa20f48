"""The `Diary`: storage, preference table, limits and extractor for the memories of many users."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar
from weakref import WeakSet

from tomldiary.compaction.runner import CompactionRunner
from tomldiary.compat.coroutines import AncestorCoroutines
from tomldiary.compat.default_table import DefaultPrefTable
from tomldiary.engine.engine import Engine
from tomldiary.engine.rules import EntryRules, redacted_entry
from tomldiary.entries.constraints import Constraint, FactSchema
from tomldiary.entries.kinds import EPISODES, FACTS
from tomldiary.entries.kinds.conversations import MAX_SUMMARY
from tomldiary.entries.kinds.episodes import ToolStep
from tomldiary.entries.preferences import PreferenceRules
from tomldiary.entries.schema import categories, item_types, weights
from tomldiary.errors import SchemaError, missing_attribute, wrong_type, wrong_value
from tomldiary.extraction.context import CONTEXT_TURNS, Sessions, Turn
from tomldiary.extraction.extractor import check_extractor
from tomldiary.extraction.turns import Turns, untrusted
from tomldiary.identifiers.namespaces import SHARED
from tomldiary.identifiers.user_ids import checked_user
from tomldiary.retrieval.embedders import DiaryEmbedder
from tomldiary.runtime.async_bridge import in_thread, running_loop
from tomldiary.runtime.callables import is_async, refuse_misfit
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.runtime.lru import WhileUsed
from tomldiary.runtime.views import DictView, ListView, Viewed, drawn, pretty
from tomldiary.storage.local.backend import LocalBackend
from tomldiary.storage.open import open_backend
from tomldiary.storage.protocol import (
    Backend,
    BackendProtocol,
    Closable,
    Durability,
    FixedDocuments,
)
from tomldiary.text.redaction import Redact, Redactor, redactor_of
from tomldiary.text.similarity import DEFAULT_THRESHOLD, Scorer, Similarity
from tomldiary.toml.values import (
    LONGEST_WAIT,
    check_instance,
    checked_count,
    checked_flag,
    checked_number,
    checked_seconds,
    checked_text,
)
from tomldiary.user.context import UserContext
from tomldiary.user.deprecated import NAMES_OF_OTHERS
from tomldiary.user.recall import UserRecall, recall_indexes
from tomldiary.user.user import UserDiary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pydantic import BaseModel

    from tomldiary.compaction.draft import CompactionConfig
    from tomldiary.hooks.feed import Feed
    from tomldiary.hooks.hooks import Hooks
    from tomldiary.toml.document import Path

T = TypeVar("T")
_registering = fork_safe(threading.Lock())
"""Held while types and rules are replaced, so that none of another thread is lost."""

__all__ = ["Diary", "TOMLDiary", "diary_of"]


_FOR_PROGRAMS = {
    "build_deps",
    "compaction",
    "engine",
    "entry_rules",
    "indexes",
    "is_untrusted",
    "preference_rules",
    "reading",
    "redacted",
    "redacted_entry",
    "redacted_turn",
    "redactor",
    "sessions",
    "turns",
    "with_agent",
}
"""Parts that other packages use, which completion omits."""

_FIXED = {"allowed", "backend", "max_prefs_per_category", "pref_table_cls", "schema_name"}
"""Attributes that other parts copied when the diary was created, so that a new value would have no effect."""

_NAMES_OF_OTHERS = {"add_hook": "hooks.add(hook, name=…)", "list_users": "users()"}
"""By names of other libraries, what does the same for all users."""


class Users(ListView[str]):
    """The ids of users, sorted."""

    def __repr__(self) -> str:
        return repr([*self])


class StorageStats(DictView[str, Any]):
    """The guarantees of a storage."""


class Diary(Viewed, AncestorCoroutines):
    """An agent's memory of its users. Thread-safe; several event loops may use it at the same time.

    Args:
        backend: A folder, "memory:", the URL of a database, a backend of this package, or any object with the
            six async methods of `BackendProtocol`.
        pref_table_cls: A pydantic model whose fields are the categories. The default is a built-in table.
        agent: The extractor: "rules" (offline), a model name, an extractor or agent with
            `run(message, deps=…)`, a function, or a framework's model. None reads $EXTRACTOR_MODEL.
            Resolved at the first turn, not by the constructor.
        max_prefs_per_category: The maximum number of preferences in a category.
        max_summary_chars: The maximum number of characters in a conversation summary written by a model.
        max_conversations: The maximum number of conversations. The least recently used one is dropped.
        compaction_config: When to compact; None disables compaction.
        episodes: Whether to store the verbatim text and tool calls of each turn. A turn can override this.
        compactor: The agent or function that compacts documents; None uses the pydantic-ai compaction agent.
        context_turns: The number of earlier exchanges of the session that the extractor receives with a turn.
        extraction_timeout: The time limit of the extractor for a turn, in seconds; None is unlimited. A
            writer has a separate limit.
        similarity: The minimum score, 0 to 100, at which a stored preference is suggested instead of a new one;
            a number above 100 suggests none.
        scorer: A function that compares two normalised texts, 0 to 100; None uses rapidfuzz `token_set_ratio`.
        durability: The failures that a completed write survives ("full", "process", "none"), for a folder only;
            None is "full".
        embedder: Adds ranking by meaning: "local" (static vectors, offline), a function of a list of texts,
            LangChain's `Embeddings` or pydantic-ai's `Embedder`. None ranks only by words.
        lock_timeout: The time limit in seconds for the lock of a user; 0 does not wait.
        quarantine: Actors whose changes require a review, such as {"web", "tool"}, or a function of the actor.
            The extractors are "rule" and "model". See `alice.review`.
        draft_lifetime: The time after which an unpromoted draft of a session expires.
        redact: Replaces secrets in every text before it is stored, queued, indexed or shown to a model. True
            selects all built-in kinds; otherwise some of `tomldiary.text.redaction.KINDS`, or a function of a
            text. None disables redaction.

    Raises:
        SchemaError: `pref_table_cls` does not define categories, or `agent` is not an extractor.
        InvalidValue: An option has the wrong type or is out of range.
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
        self.known_tables = {self.schema_name}
        """The names of preference tables whose documents need no warning, or had it already."""
        self.weights: dict[str, float] = weights(pref_table_cls)
        check_extractor(agent)
        self.agent = agent
        self.max_conversations = checked_count(max_conversations, "max_conversations", least=1)
        self.max_summary_chars = checked_count(max_summary_chars, "max_summary_chars", least=1)
        self.compaction_config = compaction_config
        self.compactor = compactor
        self.max_prefs_per_category = checked_count(
            max_prefs_per_category, "max_prefs_per_category", least=1
        )
        self.context_turns = checked_count(context_turns, "context_turns")
        self.extraction_timeout = checked_seconds(extraction_timeout, "extraction_timeout")
        _check_options(
            compaction_config, compactor, draft_lifetime, scorer, similarity, lock_timeout
        )
        self.sessions = Sessions(context_turns)
        self.similarity = Similarity(similarity, scorer)
        self.redactor = redactor_of(redact)
        self.indexes = recall_indexes()
        self.engine = Engine(
            open_backend(backend, durability), self.schema_name, lock_timeout=lock_timeout
        )
        self.embedder: DiaryEmbedder | None = None
        if embedder is not None:
            self.embedder = DiaryEmbedder(self.engine, embedder, self._searched, self.redactor)
            if embedder == "local":  # the score scale of other embedders is unknown
                self.similarity.second = self.embedder.embed
        self._has_opened = isinstance(backend, str | os.PathLike)
        self.backend: Any = self.engine.backend if self._has_opened else backend
        self.preference_rules = PreferenceRules(
            tuple(self.allowed), max_prefs_per_category, item_types(pref_table_cls)
        )
        self.fact_schemas: dict[str, FactSchema] = {}
        self._twins: WeakSet[Diary] = WeakSet([self])
        """This diary and those that `with_agent` made, which share all types of facts."""
        self.entry_rules = self.engine.rules = EntryRules(self)
        if self.redactor is not None:
            self.engine.redact = self.redacted_entry
        self.is_untrusted = untrusted(quarantine)
        self.draft_lifetime = draft_lifetime
        self.descriptions = descriptions
        self.turns = Turns(self)
        self.compaction = CompactionRunner(self)
        self.episodes = checked_flag(episodes, "episodes")
        self.reading: set[tuple[str, str]] = set()
        """The episodes that `consolidate` is reading, as (user, id)."""
        if episodes:
            self.engine.check_kept(f"{EPISODES.name}/2026-01")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.engine.backend!r}, {self.schema_name})"

    _repr_pretty_ = pretty

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self)} - _FOR_PROGRAMS)

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if name in _FIXED and "turns" in vars(self):  # which `__init__` sets after these
                raise AttributeError(
                    f"{name} is set when a diary is created. Create another Diary."
                )
            super().__setattr__(name, value)

        def __getattr__(self, name: str) -> NoReturn:
            is_of_user = not name.startswith("_") and hasattr(UserDiary, name)
            known = name if is_of_user else NAMES_OF_OTHERS.get(name)
            use = _NAMES_OF_OTHERS.get(name) or (known and f"diary.user(user_id).{known}")
            raise missing_attribute(self, name, use)

    def __reduce__(self) -> NoReturn:
        """Refuse copies and pickles.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"a {type(self).__name__} has locks and open files, so it cannot be copied or pickled. Open one in"
            " each process."
        )

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one row per user: entries of each kind, transactions, last write.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return drawn("frames:frame", self)

    def plot_growth(self, ax: Any = None) -> Any:
        """Plot the number of entries of all users over time, and return the matplotlib Axes.

        Args:
            ax: The Axes to draw on; None makes a new figure.

        Raises:
            MissingExtra: matplotlib is not installed.
        """
        return drawn("plots:growth", self, ax)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        running_loop()  # because the end of the block needs it
        return self

    async def __aexit__(self, *_: object) -> None:
        await in_thread(self.close)

    def _searched(self, user: str) -> list[Any]:
        return UserRecall(UserContext(self, user)).searched()

    def user(self, user_id: str) -> UserDiary:
        """Return the memory of one user. Any non-empty string is a user id.

        Raises:
            IdentifierError: `user_id` is not a non-empty string.
        """
        return UserDiary(self, checked_user(user_id))

    def register_schema(
        self, name: str, model: type[BaseModel], constraint: Constraint | None = None
    ) -> None:
        """Register a type of facts. A second call with the same name replaces the model and the rules.

        Args:
            name: The name of the type. Its facts are stored below `[facts.<name>]`.
            model: A pydantic model. It can be registered under one name only.
            constraint: Further rules for facts of the type.

        Raises:
            SchemaError: The name or the model is invalid, or the model lacks the singleton key.
        """
        schema = FactSchema(name, model, Constraint() if constraint is None else constraint)
        with _registering:
            for other in self.fact_schemas.values():
                if other.model is model and other.name != name:
                    raise SchemaError(f"{model.__name__} is already registered as {other.name!r}.")
            if schema == self.fact_schemas.get(name):
                return  # documents have indexes of the registered object, and would get further ones
            schemas = {**self.fact_schemas, name: schema}
            for diary in list(self._twins):
                diary.fact_schemas = schemas
            self.entry_rules.set(f"{FACTS.name}/{name}", schema.constraint)

    def constrain(self, collection: str, constraint: Constraint) -> None:
        """Set the rule of a collection. A second call replaces it.

        Every transaction is checked, including those of tools, stores, imports and rollbacks. A hand edit that
        violates a rule other than `ttl` is undone, but remains in history.

        Args:
            collection: `preferences/likes`, `blocks`, `blocks/persona`, `items/work`, `conversations` and so on. The
                rule of the most specific collection applies. For types of facts, use `register_schema`.
            constraint: The rule. `temporal`, `multi_valued` and `normalise` apply to facts only.

        Raises:
            SchemaError: The collection does not exist, or the rule does not apply to it.
        """
        if checked_text(collection, "collection").partition("/")[0] == FACTS.name:
            raise SchemaError("the constraint of facts is set with register_schema.")
        with _registering:
            self.entry_rules.set(collection, constraint)

    def with_agent(self, agent: Any) -> Self:
        """Return a diary with another extractor that shares everything else with this one.

        Raises:
            SchemaError: `agent` is not an extractor.
        """
        check_extractor(agent)
        twin = object.__new__(type(self))  # `copy` is refused
        vars(twin).update(vars(self))
        twin.agent = agent
        twin.turns = Turns(twin)
        with _registering:
            twin.fact_schemas = self.fact_schemas
            self._twins.add(twin)
        return twin

    @cached_property
    def hooks(self) -> Hooks:
        """The hooks that receive all changes, such as external indexes: `add`, `flush`, `reconcile`, `search`."""
        from tomldiary.hooks.hooks import Hooks  # noqa: PLC0415 - saves start-up time, because few diaries have hooks

        return Hooks(self.engine, self)

    def changes(
        self,
        since: str | None = None,
        *,
        users: Collection[str] | None = None,
        follow: bool = True,
        poll: float = 1.0,
    ) -> Feed:
        """Return the changes of all users after a cursor, to iterate over with `for` or `async for`.

        The changes of one user are in order. After an erasure, the feed yields a change with `is_reset`, and then
        each remaining entry of the user.

        Args:
            since: The `cursor` of an earlier feed; None begins with the oldest kept transaction.
            users: The users to include; None includes all.
            follow: Whether to wait for further changes at the end.
            poll: The interval in seconds between two checks for changes by other processes and diaries. It is
                longer if the last check of all users took longer.

        Raises:
            InvalidValue: `since` is not a cursor, `users` are not texts, or `poll` is not above 0.
            IdentifierError: One of `users` is empty.
        """
        from tomldiary.hooks.feed import Feed  # noqa: PLC0415 - see `hooks`

        return Feed(self.engine, since, users=users, follow=follow, poll=poll)

    def close(self) -> None:
        """Stop the hooks, and close the files or connections of the storage.

        Close writers first. A backend that was passed as an object stays open until its own `close()`, except a
        `LocalBackend`. The diary remains usable: the next call reconnects, and hooks that are added again receive the
        changes they missed.
        """
        if "hooks" in vars(self):
            self.hooks.close()
        backend = self.engine.backend
        is_own = self._has_opened or isinstance(backend, LocalBackend)
        if is_own and isinstance(backend, Closable):
            backend.close()

    def users(self) -> Users:
        """Return the ids of all users that have a document, sorted.

        Reads only names, so a folder of 100,000 users takes one or two seconds. The owner of shared namespaces
        is excluded.
        """
        return Users(user for user in self.engine.backend.users() if user != SHARED)

    def stats(self) -> StorageStats:
        """Return the guarantees of the storage: durability, atomicity, concurrent writers, documents.

        `documents` lists the names of the supported documents. None means any, including episodes and items.
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
                **self.turns.stats(),
                **({"redacted": self.redactor.stats()} if self.redactor is not None else {}),
            }
        )

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
        """Extract memory from one turn, and commit it together with the new turn count of the session.

        Args:
            user_id: The user.
            session_id: The session.
            user_msg: The user's message.
            assistant_msg: The assistant's answer.
            context_now: The time of the turn; None is now.
            earlier: The exchanges before the turn; see `Turn.earlier`.

        Raises:
            ExtractionError: The extractor failed. Nothing was changed.
        """
        said = (checked_user(user_id), session_id, user_msg, assistant_msg)
        await self.turns.process(Turn(*said, context_now, earlier=earlier))

    def redacted_entry(self, path: Path, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of the entry at a path, redacted as for storage; see `redact`."""
        if self.redactor is None:
            return data
        return redacted_entry(path, data, self.redactor.entry, self.fact_schemas)

    def redacted(self, value: T) -> T:
        """Return a text, or a list or table of texts, redacted as for storage; see `redact`."""
        return value if self.redactor is None else self.redactor.values(value)

    def redacted_turn(self, turn: Turn) -> Turn:
        """Return a turn with its texts redacted as for storage; see `redact`."""
        if self.redactor is None:
            return turn
        said, answer, earlier = self.redacted((turn.user_msg, turn.assistant_msg, turn.earlier))
        steps = [ToolStep(*self.redacted(tuple(step))) for step in turn.steps]
        return replace(turn, user_msg=said, assistant_msg=answer, earlier=earlier, steps=steps)


def _check_options(
    compaction_config: Any,
    compactor: Any,
    draft_lifetime: Any,
    scorer: Any,
    similarity: Any,
    lock_timeout: Any,
) -> None:
    """Raise InvalidValue or SchemaError for a wrong option, which would otherwise fail in a later turn."""
    expected = f"0 or more seconds, at most {LONGEST_WAIT:,}"
    checked_number(lock_timeout, "lock_timeout", expected, lambda each: 0 <= each <= LONGEST_WAIT)
    # A score between 0 and 1 is refused, because the scale is 0 to 100.
    checked_number(
        similarity, "similarity", "a percentage such as 80", lambda each: each == 0 or each > 1
    )
    check_instance(compaction_config, "compaction_config")
    check_instance(compactor, "compactor")
    if compaction_config is not None and not hasattr(compaction_config, "should_run"):
        raise wrong_value(compaction_config, "a CompactionConfig(…)", "compaction_config")
    if not (compactor is None or callable(compactor) or hasattr(compactor, "run")):
        hint = "For a model: compactor_agent(model)."
        raise wrong_value(compactor, "an agent or a function", "compactor", hint)
    check_extractor(compactor)
    if not isinstance(draft_lifetime, timedelta) or draft_lifetime <= timedelta():
        raise wrong_value(draft_lifetime, "a timedelta longer than zero", "draft_lifetime")
    if scorer is not None and (not callable(scorer) or is_async(scorer)):
        raise wrong_value(scorer, "a plain function of two texts", "scorer")
    if scorer is not None:
        refuse_misfit(scorer, "text, other", "scorer", "", "")


TOMLDiary = Diary


_of_folders: WhileUsed[str, Diary] = WhileUsed()
"""By the folder as it was given: a link may get another target, and resolving it would block the event loop."""


def diary_of(
    given: Diary | str | os.PathLike[str],
    *,
    is_own: bool = False,
    hint: str = "Give the diary first.",
) -> Diary:
    """Return a given diary, or the diary of a folder or an address.

    Agents that were given the same path share its diary and so a writer, which applies their turns in order.

    Args:
        given: The diary, the folder or the address.
        is_own: Whether to open another diary for a folder, because the caller closes it.
        hint: What to do if a model, a graph or its state is given.

    Raises:
        InvalidValue: `given` is an object with a `diary` attribute, such as a writer or a store, or one that `hint`
            is for.
        BackendError: `given` has an unsupported type.
    """
    if isinstance(given, Diary):
        return given
    if isinstance(getattr(given, "diary", None), Diary):
        raise wrong_type(given, "a Diary or a folder", "diary", "Give its `.diary`.")
    if hasattr(given, "invoke") or hasattr(given, "keys"):
        raise wrong_type(given, "a Diary or a folder", "diary", hint)
    made = Diary(given)
    # A backend that the caller made may have other options.
    if is_own or made.backend is given or not isinstance(made.backend, LocalBackend):
        return made
    return _of_folders.setdefault(str(made.backend.base_path), made)
