"""`UserDiary`, the memory of one user: reads, changes, search, history and erasure.

Methods block and are thread-safe. Each has a coroutine twin with the prefix `a`. Returned values are copies.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tomldiary.entries.kinds import entry_kind, problems_of
from tomldiary.errors import DiaryError, InvalidValue, NotSupported
from tomldiary.extraction.consolidation import Consolidated, consolidate
from tomldiary.extraction.context import Turn
from tomldiary.history.record import Source
from tomldiary.past.queries import HistoryQueries
from tomldiary.past.retention import Retention
from tomldiary.past.rollback import Undo
from tomldiary.runtime.async_bridge import async_twin, sync_twin
from tomldiary.runtime.views import Viewed, drawn, pretty
from tomldiary.storage.local.publish import checked_kind
from tomldiary.toml.values import checked_flag, checked_text, in_own_zone
from tomldiary.user.blocks import UserBlocks
from tomldiary.user.context import DraftContext, UserContext, delegated, without_twins
from tomldiary.user.deprecated import DeprecatedNames
from tomldiary.user.episodes import UserEpisodes
from tomldiary.user.erasure import UserErasure
from tomldiary.user.export import UserExport
from tomldiary.user.facts import UserFacts
from tomldiary.user.items import UserItems
from tomldiary.user.pending.verbs import UserDrafts, UserReview, Verdict
from tomldiary.user.preferences import UserConversations, UserPreferences
from tomldiary.user.recall import UserRecall

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Sequence
    from datetime import datetime

    from tomldiary.diary import Diary
    from tomldiary.entries.kinds.episodes import ToolStep
    from tomldiary.extraction.operations import Applied
    from tomldiary.past.as_of import Point
    from tomldiary.toml.document import Document
    from tomldiary.user.preferences import ReadPreferences, ReadPreferencesAsync

_FOR_PROGRAMS = {
    "diary",
    "diff_text",
    "document",
    "documents",
    "draft_session",
    "entry",
    "epoch",
    "has_done",
    "import_preview",
    "is_past",
    "kept_history",
    "keys_of_line",
    "last_transaction",
    "memory_lines",
    "plot_merges",
    "prune_history",
    "remove_conversation",
    "same_elsewhere",
    "similar",
    "traces",
    "user_id",
}
"""Public names for adapters and tools, which completion omits."""


def _place(document: str) -> str:
    """Return the prefix that identifies a part of a kind in messages; "" for the kind's own document."""
    return "" if document == entry_kind(document).name else f"{document}.toml: "


def _retention(context: UserContext) -> Retention:
    return Retention(_whole(context).history)


def _erasure(context: UserContext) -> UserErasure:
    return UserErasure(_whole(context))


def _whole(context: UserContext) -> UserContext:
    """Return the context if it is that of the whole memory.

    Raises:
        NotSupported: It is the context of a draft.
    """
    if context.is_draft:
        raise NotSupported(
            "this applies to the whole memory, not a draft. Call the method of diary.user(…)."
        )
    return context


class UserDiary(Viewed, DeprecatedNames):
    """The memory of one user, made by `diary.user(user_id)` at no cost.

    Each method that blocks has a coroutine twin with the prefix `a`, such as `arecall`. Tab completion
    shows the most common names only.
    """

    def __init__(self, diary: Diary, user_id: str, *, context: UserContext | None = None) -> None:
        self.diary = diary
        self.user_id = user_id
        self._context = context or UserContext(diary, user_id)

    def __repr__(self) -> str:
        what = f", as_of={self.last_transaction()}" if self.is_past else ""
        if self.draft_session:
            what = f", draft={self.draft_session!r}"
        return f"UserDiary({self.user_id!r}{what})"

    _repr_pretty_ = pretty

    def __dir__(self) -> list[str]:
        hidden = {*vars(DeprecatedNames)} | _FOR_PROGRAMS
        return [name for name in without_twins(object.__dir__(self)) if name not in hidden]

    # Typed facts, blocks, episodes

    @cached_property
    def facts(self) -> UserFacts:
        """Typed facts: `commit`, `update`, `delete`, `get`, `query`."""
        return UserFacts(self._context)

    @cached_property
    def blocks(self) -> UserBlocks:
        """Text blocks: `get`, `set`, `append`, `replace`, `delete`; also `blocks["persona"]` and iteration."""
        return UserBlocks(self._context)

    @cached_property
    def episodes(self) -> UserEpisodes:
        """Turns stored verbatim: `add`, `messages`, `list`, `delete`."""
        return UserEpisodes(self._context)

    @cached_property
    def items(self) -> UserItems:
        """Items that stores put for this user: `list`, `get`, `update`, `delete`, by the key that `recall` shows."""
        return UserItems(self._context)

    # Pending changes

    @cached_property
    def review(self) -> UserReview:
        """Changes by untrusted actors: `list`, `accept`, `edit`, `reject`; `alice.review()` lists them."""
        return UserReview(self._context)

    confirm, aconfirm = delegated(Verdict, Verdict.confirm)

    def draft(self, session_id: str) -> UserDiary:
        """Return the memory including the drafts of a session; writes to it become drafts.

        A draft is visible only to its session until `promote_session`. It expires after `Diary(draft_lifetime=…)`.

        Args:
            session_id: The session.

        Raises:
            InvalidValue: The session is empty.
        """
        _ = self._context.engine  # a point of history has no drafts
        context = DraftContext(self.diary, self.user_id, session_id)
        return UserDiary(self.diary, self.user_id, context=context)

    drafts, adrafts = delegated(UserDrafts, UserDrafts.drafts)
    promote_session, apromote_session = delegated(UserDrafts, UserDrafts.promote_session)
    discard_session, adiscard_session = delegated(UserDrafts, UserDrafts.discard_session)

    # Preferences

    if TYPE_CHECKING:
        preferences: ReadPreferences
        apreferences: ReadPreferencesAsync
    else:
        preferences, apreferences = delegated(UserPreferences, UserPreferences.preferences)
    upsert_preference, aupsert_preference = delegated(
        UserPreferences, UserPreferences.upsert_preference
    )
    remove_preference, aremove_preference = delegated(
        UserPreferences, UserPreferences.remove_preference
    )
    similar, asimilar = delegated(UserPreferences, UserPreferences.similar)
    same_elsewhere, asame_elsewhere = delegated(UserPreferences, UserPreferences.same_elsewhere)

    # Recall

    recall, arecall = delegated(UserRecall, UserRecall.recall)
    render, arender = delegated(UserRecall, UserRecall.render)
    keys_of_line, akeys_of_line = delegated(UserRecall, UserRecall.keys_of_line)
    memory_lines, amemory_lines = delegated(UserRecall, UserRecall.memory_lines)

    # Transactions

    @contextmanager
    def transaction(
        self,
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        operation_id: str = "",
        expected: int | None = None,
        ephemeral: bool = False,
    ) -> Generator[UserDiary]:
        """Group changes: the end of the `with` block stores all of them, or none after an error.

        Reads inside the block see its changes, and other writers to this user wait, such as calls in another thread.
        Calls in a thread with a copy of the context, as LangChain and LangGraph run tools, belong to the block.
        A nested block of the same user is part of the outer one: its session and its actor count inside it, and an
        error undoes its changes.

        Args:
            session_id: The session for history, and for entries written inside without a session id.
            actor: The author of the change, for history.
            reason: The reason for the change, for history.
            operation_id: An idempotency key; a second block with the same key runs on the current memory, and stores
                nothing.
            expected: The number of the last transaction that you read; a newer transaction is a conflict.
            ephemeral: Whether writes become drafts of the session, which only the yielded diary shows.

        Raises:
            Conflict: There is a newer transaction, or `operation_id` was used for a different change.
            NestedTransaction: A transaction of another user is open here, or one of this user although
                `operation_id` is given.
        """
        source = Source("transaction", session_id, actor, reason, operation_id, is_draft=ephemeral)
        target = self.draft(session_id) if checked_flag(ephemeral, "ephemeral") else self
        with self._context.engine.transaction(self.user_id, source, expected=expected):
            yield target

    @asynccontextmanager
    async def atransaction(
        self,
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        operation_id: str = "",
        expected: int | None = None,
        ephemeral: bool = False,
    ) -> AsyncGenerator[UserDiary]:
        """Group changes like `transaction`, without blocking the event loop while waiting for the lock.

        Await the calls inside the block in order. A task started there, for example by `asyncio.gather`, is
        not part of the transaction and waits for its end.
        """
        source = Source("transaction", session_id, actor, reason, operation_id, is_draft=ephemeral)
        target = self.draft(session_id) if checked_flag(ephemeral, "ephemeral") else self
        async with self._context.engine.atransaction(self.user_id, source, expected=expected):
            yield target

    def has_done(self, operation_id: str) -> bool:
        """Return whether history has a transaction with this operation id; `forget` also erases the id."""
        operation_id = checked_text(operation_id, "operation_id")
        return self._context.engine.is_done(self.user_id, operation_id)

    def last_transaction(self) -> int:
        """Return the number of the newest transaction of this user; 0 if there is none."""
        past = self._context.past
        return self._context.history.newest() if past is None else past.seq

    @property
    def is_past(self) -> bool:
        """Whether this is the memory as of a point of history, which is read-only."""
        return self._context.past is not None

    @property
    def draft_session(self) -> str:
        """The session whose drafts this memory includes; "" for none."""
        return self._context.session_id if isinstance(self._context, DraftContext) else ""

    # Conversations

    conversations, aconversations = delegated(UserConversations, UserConversations.conversations)
    remove_conversation, aremove_conversation = delegated(
        UserConversations, UserConversations.remove_conversation
    )

    # History

    history, ahistory = delegated(UserContext.queries, HistoryQueries.history)
    why, awhy = delegated(UserContext.queries, HistoryQueries.why)
    diff, adiff = delegated(UserContext.queries, HistoryQueries.diff)
    diff_text, adiff_text = delegated(UserContext.queries, HistoryQueries.diff_text)
    rollback, arollback = delegated(
        lambda context: Undo(context.diary, _whole(context).history), Undo.rollback
    )
    kept_history, akept_history = delegated(_retention, Retention.kept_history)
    prune_history, aprune_history = delegated(_retention, Retention.prune_history)

    def as_of(self, at: Point) -> UserDiary:
        """Return the memory right after a transaction, or at a time; it is read-only.

        Temporal facts are those valid at that time, unless `valid_at` is passed to a method. Search uses
        words only, because entries that were removed since are not embedded again.

        Args:
            at: A transaction number, or a time: a datetime, a date, or ISO 8601 text (UTC without a zone). A date
                or a month, such as "2026-11", means its start.

        Raises:
            InvalidValue: `at` is neither a number nor a time, or the transaction does not exist.
            HistoryPruned: `at` is older than the kept history; the message shows the kept range.
            DocumentError: History does not go back to that point.
        """
        past = self._context.queries().documents_at(at)
        return UserDiary(
            self.diary, self.user_id, context=UserContext(self.diary, self.user_id, past)
        )

    aas_of = async_twin(as_of)

    # Plots, for notebooks

    def plot_history(self, ax: Any = None) -> Any:
        """Plot each change over time in one row for each category, and return the matplotlib Axes.

        Args:
            ax: The Axes to draw on; None makes a new figure.

        Raises:
            MissingExtra: matplotlib is not installed.
        """
        return drawn("plots:history", self, ax)

    def plot_merges(self, ax: Any = None) -> Any:
        """Plot the statements merged into existing preferences by their similarity, and return the Axes.

        Args:
            ax: The Axes to draw on; None makes a new figure.

        Raises:
            MissingExtra: matplotlib is not installed.
        """
        return drawn("plots:merges", self, ax)

    # Profile, export, import

    profile, aprofile = delegated(UserExport, UserExport.profile)
    export, aexport = delegated(UserExport, UserExport.export)
    import_, aimport_ = delegated(UserExport, UserExport.import_)
    import_preview, aimport_preview = delegated(UserExport, UserExport.import_preview)

    # Erasing

    forget, aforget = delegated(_erasure, UserErasure.forget)
    traces, atraces = delegated(_erasure, UserErasure.traces)

    @property
    def epoch(self) -> int:
        """The number of erasures of this user; it is kept when the whole user is erased.

        A turn with the number from the start of its run is refused if the user was erased since; see `Turn.epoch`.
        """
        return self._context.epoch

    # Turns

    async def aadd_turn(  # noqa: D417 - the docstring describes `epoch` in its text
        self,
        user_msg: str,
        assistant_msg: str,
        session_id: str,
        *,
        now: datetime | None = None,
        earlier: Sequence[tuple[str, str]] | None = None,
        operation_id: str = "",
        steps: Sequence[ToolStep] = (),
        episode: bool | None = None,
        epoch: int | None = None,
    ) -> Applied:
        """Extract memory from one turn, and commit it together with the turn's count.

        `epoch` is the value of `alice.epoch` at the start of the turn's run; None reads it now.

        Args:
            user_msg: What the user said.
            assistant_msg: What the assistant answered.
            session_id: The session.
            now: The time of the turn; None is the current time.
            earlier: The preceding exchanges; see `Turn.earlier`.
            operation_id: An idempotency key; a second call with the same key changes nothing.
            steps: The tool calls of the turn, for the episode.
            episode: Whether the turn is also stored verbatim as an episode; None uses the diary's setting.

        Raises:
            ExtractionError: The extractor failed. Nothing was changed.
            Forgotten: Content was erased meanwhile. With `epoch`, only if the whole user was erased since, or after three
                attempts. Nothing was changed.
            NestedTransaction: A transaction is open here, and `operation_id` is given.
        """
        _ = _whole(self._context).engine  # a point of history cannot be written
        turn = Turn(
            self.user_id, session_id, user_msg, assistant_msg,
            None if now is None else in_own_zone(now, "now"), operation_id=operation_id,
            earlier=earlier, steps=steps, episode=episode, epoch=epoch,
        )  # fmt: skip
        return await self.diary.turns.process(turn)

    add_turn = sync_twin(aadd_turn)

    async def aconsolidate(
        self, *, extractor: Any = None, limit: int | None = None, include_read: bool = False
    ) -> Consolidated:
        """Extract preferences and facts from unread episodes, and store them.

        Each episode is read once, in a separate transaction. If extraction fails for one, the others are
        still read, and the next call retries it. New entries have the time of the episode, and their
        `_source` is `episodes/id`. Episodes whose turn was extracted already are skipped.

        Args:
            extractor: The extractor, like `agent` of a `Diary`; None is the diary's own.
            limit: The maximum number of episodes to read; None is all.
            include_read: Whether to include episodes whose turn was extracted already.

        Raises:
            ExtractorUnusable, MissingExtra: The extractor cannot run at all.
        """
        _ = _whole(self._context).engine  # a point of history cannot be written
        diary = self.diary if extractor is None else self.diary.with_agent(extractor)
        return await consolidate(diary, self.user_id, limit=limit, include_read=include_read)

    consolidate = sync_twin(aconsolidate)

    # Stored documents and entries

    entry, aentry = delegated(UserPreferences, UserPreferences.entry)

    def problems(self) -> list[DiaryError]:
        """Return the errors that prevent use of documents, and those of ignored entries and hand edits.

        Reads of a broken document return its last valid state. An entry stays in the file but is ignored
        if it is not a table, or if it does not fit its type of facts. A preference that does not fit the type of its
        category is missing in `preferences` only. A hand edit is ignored if a rule forbids it.
        """
        broken: list[DiaryError] = []
        forbidden: list[str] = []
        documents: dict[str, Document] = {}
        with self._context.reading():
            for kind in self._context.expected_kinds():
                try:
                    problem: DiaryError | None = self._context.problem(kind)
                    documents[kind] = self._context.document(kind)
                    if not self.is_past:
                        forbidden += self.diary.engine.forbidden_edits(self.user_id, kind)
                except DiaryError as error:
                    problem = error  # there is no last valid state to read
                if problem is not None:
                    broken.append(problem)
        wrong = [
            InvalidValue(f"{message}. {remedy}", where=f"{_place(name)}{where}")
            for name, (where, message, remedy) in problems_of(documents, self.diary)
        ]
        return [*broken, *wrong, *map(DiaryError, forbidden)]

    def documents(self) -> list[str]:
        """Return the names of the stored documents, such as `facts` and `episodes/2026-11`."""
        kinds, past = self._context.kinds(), self._context.past
        return [*kinds] if past is None else [kind for kind in kinds if past.document(kind).text]

    def document(self, kind: str) -> str:
        """Return the text of a document, byte for byte; empty if there is none.

        Raises:
            IdentifierError: The name cannot be one of a document.
        """
        return self._context.document(checked_kind(checked_text(kind, "kind"))).text

    ahas_done, alast_transaction = async_twin(has_done), async_twin(last_transaction)
    aproblems = async_twin(problems)
    adocuments, adocument = async_twin(documents), async_twin(document)
