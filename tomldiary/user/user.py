"""Everything about one user: reading, changing and finding what is remembered.

Methods block and are thread-safe; each has a coroutine twin with an `a` in front. What is handed out
is a copy.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tomldiary.engine.engine import Source as Why
from tomldiary.engine.transaction import fingerprint
from tomldiary.entries.conversations import Conversations, entry_to_conversation
from tomldiary.errors import DiaryError, UnknownEntry
from tomldiary.forgetting.selection import Selection
from tomldiary.history.queries import Past
from tomldiary.retrieval.recall import Indexes
from tomldiary.runtime.async_bridge import async_twin, run_coroutine
from tomldiary.store.namespaces import labels_up_to
from tomldiary.user.blocks import BlockVerbs
from tomldiary.user.episodes import EpisodeVerbs
from tomldiary.user.export import Portability
from tomldiary.user.preferences import PreferenceVerbs
from tomldiary.user.recall import RecallVerbs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
    from datetime import datetime

    from tomldiary.diary import Diary
    from tomldiary.engine.engine import Engine, Transaction
    from tomldiary.entries.models import ConversationItem
    from tomldiary.extraction.apply import Applied
    from tomldiary.forgetting.selection import ForgetReceipt
    from tomldiary.toml.document import Document

__all__ = ["UserDiary"]

_KINDS = ("preferences", "conversations")


class UserDiary(PreferenceVerbs, RecallVerbs, BlockVerbs, EpisodeVerbs, Portability, Past):
    """The memory of one user; made by `diary.user(user_id)`, costs nothing to make."""

    diary: Diary

    def __init__(self, diary: Diary, user_id: str, *, engine: Engine | None = None) -> None:
        self.diary = diary
        self.user_id = user_id
        self._engine = engine if engine is not None else diary.engine
        # A past state is searched apart, so that it never displaces the index of today's.
        self._indexes = diary.indexes if engine is None else Indexes()

    def __repr__(self) -> str:
        return f"UserDiary({self.user_id!r})"

    @contextmanager
    def transaction(
        self,
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        operation_id: str = "",
        expected: int | None = None,
    ) -> Generator[UserDiary]:
        """Group changes: all of them are stored at the end of the `with` block, or none.

        Inside the block reads see the changes made so far, and other writers of this user wait. A
        block inside the block is part of it.

        Args:
            session_id: For history, and for entries written in it without a session of their own.
            actor: Who does it.
            reason: Why.
            operation_id: An id of your own: the same one a second time changes nothing.
            expected: `last_transaction()` as you read it, if nobody may have written since.

        Raises:
            Conflict: Somebody has written since, or `operation_id` was used for something else.
            NestedTransaction: A transaction of another user is open here.
        """
        source = Why("transaction", session_id, actor, reason, operation_id)
        with self._engine.transaction(self.user_id, source, expected=expected):
            yield self

    @asynccontextmanager
    async def atransaction(
        self,
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        operation_id: str = "",
        expected: int | None = None,
    ) -> AsyncGenerator[UserDiary]:
        """Group changes like `transaction`, waiting for the lock without holding the event loop."""
        source = Why("transaction", session_id, actor, reason, operation_id)
        async with self._engine.atransaction(self.user_id, source, expected=expected):
            yield self

    def has_done(self, operation_id: str) -> bool:
        """Tell whether a transaction with this operation id is in history; forgetting forgets the id too."""
        return self._engine.done_with(self.user_id, operation_id) is not None

    def last_transaction(self) -> int:
        """Return the number of the newest transaction of this user; 0 if there is none."""
        return next((record.seq for record in self._timeline().records()), 0)

    # Conversations

    def conversations(self, limit: int | None = None) -> dict[str, ConversationItem]:
        """Return typed conversations by session id, most recently used first."""
        book = Conversations(self._document("conversations"))
        found = [(key, entry_to_conversation(entry)) for key, entry in book.entries()]
        found.sort(key=lambda item: item[1].updated, reverse=True)
        return dict(found if limit is None else found[: max(0, limit)])

    aconversations = async_twin(conversations)

    def forget_conversation(self, session_id: str, *, reason: str = "") -> None:
        """Remove a conversation's summary from the file.

        Raises:
            UnknownEntry: There is no such session. Nothing was changed.
        """

        def change(tx: Transaction) -> None:
            Conversations(tx.edit("conversations")).delete(session_id)

        self._engine.write(
            self.user_id,
            change,
            Why("forget_conversation", session_id, reason=reason, content=fingerprint(session_id)),
        )

    aforget_conversation = async_twin(forget_conversation)

    # Forgetting for good

    def forget(
        self,
        *,
        session_id: str | None = None,
        before: datetime | None = None,
        source: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> ForgetReceipt:
        """Remove what a session, a turn or a time said from files and history, so that nothing is left.

        A text that another session said as well stays, under that session's name; an entry that others
        had written before goes back to what they wrote. Looking back works on, and leaves out what was
        forgotten; nothing from before can be rolled back any more. If the process dies, whoever opens
        the user next finishes the job. Work that began before is refused with `Forgotten`, and selected turns
        go from the queues of background writers.

        An operation id of a forgotten transaction is forgotten too, and so are the marks by which
        `ingest` knows the turns of a forgotten session: doing or reading these again brings them back.

        If nothing is stored of the user, the names of all users' documents are looked through: the receipt's
        `found_elsewhere` has namespaces such as ("memories", user), which belong to another owner.

        Args:
            session_id: The conversation, and what only this session said.
            before: What was last updated before this time (without a zone: UTC).
            source: What was taken from this turn, `session#turn`, or from all turns of a session, whoever
                confirmed it since.
            everything: The whole user: documents, history and all.
            dry_run: Only return in numbers what would go; `files` is empty then.

        Raises:
            InvalidValue: Not exactly one of them is given. A ValueError; nothing was changed.
            NestedTransaction: A transaction of this user is open here.
            DocumentError: A document cannot be read just now. Nothing was changed.
            BackendError: The storage failed; the message says whether something was changed.
        """
        selection = Selection.one_of(session_id, before, source, everything)
        is_known = True
        with suppress(DiaryError):  # what cannot be listed is there
            is_known = bool(self._engine.kinds(self.user_id))
        if dry_run:
            receipt = self._engine.would_forget(self.user_id, selection)
        else:
            try:
                receipt = self._engine.forget(self.user_id, selection)
            finally:
                self._indexes.drop(self.user_id)
                self.diary.sessions.drop(self.user_id)
        if is_known or receipt.entries or receipt.conversations or receipt.records:
            return receipt
        return replace(receipt, found_elsewhere=self._elsewhere())

    aforget = async_twin(forget)

    def _elsewhere(self) -> tuple[tuple[str, ...], ...]:
        """Return where namespaces of other owners have this user's name as a label, up to that label."""
        backend = self._engine.backend
        found: set[tuple[str, ...]] = set()
        owners: list[str] = []
        with suppress(DiaryError):  # the forgetting itself is done
            owners = backend.users()
        for owner in owners:
            if owner == self.user_id:
                continue
            with suppress(DiaryError):  # such an owner cannot be looked through
                places = [labels_up_to(self.user_id, owner, kind) for kind in backend.kinds(owner)]
                found.update(place for place in places if place is not None)
        return tuple(sorted(found))

    # Turns

    async def aadd_turn(
        self,
        user_msg: str,
        assistant_msg: str,
        session_id: str,
        *,
        now: datetime | None = None,
        earlier: Sequence[tuple[str, str]] | None = None,
        operation_id: str = "",
    ) -> Applied:
        """Let the extractor read one turn, and commit what it wants together with the turn's count.

        Args:
            user_msg: What the user said.
            assistant_msg: What the assistant answered.
            session_id: The conversation.
            now: When it was said; None is now.
            earlier: The exchanges before it; see `Turn.earlier`.
            operation_id: The same one twice has one effect; "" for none.

        Raises:
            ExtractionError: The extractor failed. Nothing was changed.
        """
        return await self.diary.process_turn(
            self.user_id, session_id, user_msg, assistant_msg,
            now=now, earlier=earlier, operation_id=operation_id,
        )  # fmt: skip

    def add_turn(
        self,
        user_msg: str,
        assistant_msg: str,
        session_id: str,
        *,
        now: datetime | None = None,
        earlier: Sequence[tuple[str, str]] | None = None,
        operation_id: str = "",
    ) -> Applied:
        """Let the extractor read one turn, and commit what it wants together with the turn's count.

        Args:
            user_msg: What the user said.
            assistant_msg: What the assistant answered.
            session_id: The conversation.
            now: When it was said; None is now.
            earlier: The exchanges before it; see `Turn.earlier`.
            operation_id: The same one twice has one effect; "" for none.

        Raises:
            ExtractionError: The extractor failed. Nothing was changed.
        """
        return run_coroutine(
            self.aadd_turn(
                user_msg,
                assistant_msg,
                session_id,
                now=now,
                earlier=earlier,
                operation_id=operation_id,
            )
        )

    # As it is stored

    def entry(self, kind: str, key: str) -> dict[str, Any]:
        """Return the fields of one entry as they are in the file.

        Args:
            kind: "preferences" or "conversations".
            key: `category/id`, or the session id.

        Raises:
            UnknownCategory, UnknownEntry: There is none.
        """
        found: Mapping[str, Any] | None
        if kind == "conversations":
            found = Conversations(self._document(kind)).find(key)
        else:
            category, _, name = key.partition("/")
            book = self._book()
            book.check_category(category)
            located = book.find(category, name)
            found = located[1] if located is not None else None
        if found is None:
            raise UnknownEntry(f"{kind}/{key}")
        return dict(found)

    def problems(self) -> list[DiaryError]:
        """Return why files cannot be used just now, and why entries are left out.

        Of a file that cannot be used, reads serve the last good state. An entry that is no table, or does
        not fit its type, and a fact that breaks its constraint stay in the file, unread.
        """
        kinds = dict.fromkeys([*_KINDS, *self._engine.kinds(self.user_id)])
        found = [self._engine.load(self.user_id, kind) for kind in kinds]
        broken: list[DiaryError] = [known.problem for known in found if known and known.problem]
        return [*broken, *self._preference_problems(), *self._fact_problems()]

    def documents(self) -> list[str]:
        """Return the names of the documents there are, such as `facts` and `episodes/2026-11`."""
        return self._engine.kinds(self.user_id)

    def document(self, kind: str) -> str:
        """Return the text of a document, byte for byte; empty if there is none."""
        return self._document(kind).text

    def _document(self, kind: str) -> Document:
        return self._engine.document(self.user_id, kind)
