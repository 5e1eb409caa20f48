"""Everything about one user: reading, changing and finding what is remembered.

Methods block and are thread-safe; each has a coroutine twin with an `a` in front. What is handed out
is a copy.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, overload

from pydantic import ValidationError

from tomldiary.block_verbs import BlockVerbs
from tomldiary.conversations import Conversations, entry_to_conversation
from tomldiary.engine import Source as Why
from tomldiary.episode_verbs import EpisodeVerbs
from tomldiary.errors import InvalidValue, UnknownEntry
from tomldiary.forgetting import Selection
from tomldiary.logging import get_logger
from tomldiary.models import PreferenceItem, timestamp
from tomldiary.past import Past
from tomldiary.portability import Portability
from tomldiary.preferences import Preferences, entry_to_item
from tomldiary.recall import Indexes
from tomldiary.recall_verbs import RecallVerbs
from tomldiary.schema import item_type
from tomldiary.toml.values import render_path
from tomldiary.transaction import fingerprint
from tomldiary.twins import async_twin, run_coroutine

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Generator,
        Iterable,
        Iterator,
        Mapping,
    )
    from datetime import datetime

    from tomldiary.diary import Diary
    from tomldiary.engine import Engine, Transaction
    from tomldiary.errors import DiaryError
    from tomldiary.forgetting import ForgetReceipt
    from tomldiary.models import ConversationItem
    from tomldiary.similarity import Match
    from tomldiary.toml.document import Document
    from tomldiary.turns import Applied

__all__ = ["UserDiary"]

_logger = get_logger(__name__)

KINDS = ("preferences", "conversations")


class UserDiary(RecallVerbs, BlockVerbs, EpisodeVerbs, Portability, Past):
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
            session_id: For history, like `actor` and `reason`.
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

    # Preferences

    @overload
    def preferences(self, category: None = None) -> dict[str, dict[str, PreferenceItem]]: ...
    @overload
    def preferences(self, category: str) -> dict[str, PreferenceItem]: ...
    def preferences(
        self, category: str | None = None
    ) -> dict[str, dict[str, PreferenceItem]] | dict[str, PreferenceItem]:
        """Return typed preferences by id; without `category`, by category and id.

        Raises:
            UnknownCategory: The preference table has no such category.
            DocumentError: The file does not parse; has path, line and column.
        """
        book = self._book()
        if category is not None:
            book.check_category(category)
            return self._items(book, category)
        return {name: self._items(book, name) for name in self.diary.allowed}

    apreferences = async_twin(preferences)

    def _items(self, book: Preferences, category: str) -> dict[str, PreferenceItem]:
        kind = item_type(self.diary.pref_table_cls, category)
        found: dict[str, PreferenceItem] = {}
        for key, entry in book.entries(category):
            try:
                found[key] = entry_to_item(entry, kind)
            except ValidationError as error:
                # One wrong field of an own item type must not hide the rest of the category.
                _logger.warning(
                    "%s/%s is left out: %d wrong fields", category, key, error.error_count()
                )
        return found

    def upsert_preference(
        self,
        category: str,
        text: str | None = None,
        *,
        id: str | None = None,  # noqa: A002 - the word of the file format
        contexts: Iterable[str] = (),
        fields: Mapping[str, Any] | None = None,
        count_up: bool = True,
        create: bool = True,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        now: datetime | None = None,
    ) -> tuple[str, PreferenceItem]:
        """Store a preference, or change or confirm the one with `id`, and return it with its id.

        Equal text (but for case, spacing and punctuation) is confirmed, not stored twice. Similar
        text is stored: `similar` finds it if you want to ask first.

        Args:
            category: A category of the preference table.
            text: What to remember; with `id`, leave out to only confirm the entry.
            id: The entry to change. An id that does not exist yet is given to the new entry.
            contexts: Labels that are added to those stored.
            count_up: Whether an existing entry's counter goes up by one.
            fields: Values for the own fields of the category's item type, for a new entry.
            create: False if only an entry that exists may be changed.
            session_id: Kept in `_created_by` and `_updated_by`, and in history.
            actor: Who did it, for history.
            reason: Why, for history.
            now: The time to write down; None is the time now.

        Raises:
            UnknownCategory, UnknownEntry, LimitReached, InvalidValue: Nothing was changed.
        """
        moment = timestamp(now)

        def change(tx: Transaction) -> tuple[str, PreferenceItem]:
            book = Preferences(tx.edit("preferences"), self.diary.turn_rules.preferences)
            book.check_category(category)
            if not create and (id is None or book.find(category, id) is None):
                raise UnknownEntry(f"{category}/{id}")
            outcome = book.upsert(
                category, id, text, contexts, now=moment, session=session_id, count_up=count_up,
                fields=fields,
            )  # fmt: skip
            found = book.find(category, outcome.id)
            assert found is not None  # noqa: S101 - it was just stored
            kind = item_type(self.diary.pref_table_cls, category)
            try:
                return outcome.id, entry_to_item(found[1], kind)
            except ValidationError as error:
                wrong = error.errors(include_url=False, include_input=False)[0]
                place = ".".join(map(str, (category, outcome.id, *wrong["loc"])))
                raise InvalidValue(f"{wrong['msg']}. Nothing was stored.", where=place) from None

        asked = fingerprint(category, text, id, list(contexts), fields, count_up, create)
        return self._engine.write(
            self.user_id, change, Why("upsert", session_id, actor, reason, content=asked)
        )

    aupsert_preference = async_twin(upsert_preference)

    def forget_preference(
        self,
        category: str,
        id: str,  # noqa: A002 - the word of the file format
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
    ) -> PreferenceItem:
        """Remove a preference from the file and return it; its id is not given out again.

        Raises:
            UnknownCategory, UnknownEntry: Nothing was changed.
        """

        def change(tx: Transaction) -> PreferenceItem:
            book = Preferences(tx.edit("preferences"), self.diary.turn_rules.preferences)
            kind = (
                item_type(self.diary.pref_table_cls, category)
                if category in self.diary.allowed
                else None
            )
            entry = book.forget(category, id)
            try:
                return entry_to_item(entry, kind or PreferenceItem)
            except ValidationError:  # what does not fit its type can still be forgotten
                return entry_to_item(entry)

        return self._engine.write(
            self.user_id,
            change,
            Why("forget_preference", session_id, actor, reason, content=fingerprint(category, id)),
        )

    aforget_preference = async_twin(forget_preference)

    def similar(self, category: str, text: str, *, limit: int = 5) -> list[Match]:
        """Return preferences of a category that resemble `text`, best first, with what contradicts it.

        Raises:
            UnknownCategory: The preference table has no such category.
        """
        book = self._book()
        book.check_category(category)
        return self.diary.similarity.find(category, text, book.texts(category), limit=limit)

    asimilar = async_twin(similar)

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
    ) -> ForgetReceipt:
        """Remove what a session, a turn or a time said from files and history, so that nothing is left.

        A text that another session said as well stays, under that session's name; an entry that others
        had written before goes back to what they wrote. Looking back works on, and leaves out what was
        forgotten; nothing from before can be rolled back any more. If the process dies, whoever opens
        the user next finishes the job. Work that began before is refused with `Forgotten`, and selected turns
        go from the queues of background writers.

        An operation id of a forgotten transaction is forgotten too, and so are the marks by which
        `ingest` knows the turns of a forgotten session: doing or reading these again brings them back.

        Args:
            session_id: The conversation, and what only this session said.
            before: What was last updated before this time (without a zone: UTC).
            source: What was taken from this turn, `session#turn`, or from all turns of a session, whoever
                confirmed it since.
            everything: The whole user: documents, history and all.

        Raises:
            InvalidValue: Not exactly one of them is given. A ValueError; nothing was changed.
            NestedTransaction: A transaction of this user is open here.
            DocumentError: A document cannot be read just now. Nothing was changed.
            BackendError: The storage failed; the message says whether something was changed.
        """
        selection = Selection.one_of(session_id, before, source, everything)
        try:
            return self._engine.forget(self.user_id, selection)
        finally:
            self._indexes.drop(self.user_id)

    aforget = async_twin(forget)

    # Turns

    async def aadd_turn(
        self,
        user_msg: str,
        assistant_msg: str,
        session_id: str,
        *,
        now: datetime | None = None,
    ) -> Applied:
        """Let the extractor read one turn, and commit what it wants together with the turn's count.

        Raises:
            ExtractionError: The extractor failed. Nothing was changed.
        """
        return await self.diary.process_turn(
            self.user_id, session_id, user_msg, assistant_msg, now=now
        )

    def add_turn(
        self,
        user_msg: str,
        assistant_msg: str,
        session_id: str,
        *,
        now: datetime | None = None,
    ) -> Applied:
        """Let the extractor read one turn, and commit what it wants together with the turn's count.

        Raises:
            ExtractionError: The extractor failed. Nothing was changed.
        """
        return run_coroutine(self.aadd_turn(user_msg, assistant_msg, session_id, now=now))

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
        kinds = dict.fromkeys([*KINDS, *self._engine.kinds(self.user_id)])
        found = [self._engine.load(self.user_id, kind) for kind in kinds]
        broken: list[DiaryError] = [known.problem for known in found if known and known.problem]
        return [*broken, *self._preference_problems(), *self._fact_problems()]

    def _preference_problems(self) -> Iterator[InvalidValue]:
        book = self._book()
        for category in self.diary.allowed:
            for key in book.strays(category):
                place = render_path(("preferences", category, key))
                yield InvalidValue("expected a table. It is left out; write one.", where=place)
            kind = item_type(self.diary.pref_table_cls, category)
            for key, entry in book.entries(category):
                try:
                    entry_to_item(entry, kind)
                except ValidationError as error:
                    wrong = error.errors(include_url=False, include_input=False)[0]
                    place = ".".join(map(str, ("preferences", category, key, *wrong["loc"])))
                    yield InvalidValue(f"{wrong['msg']}. The entry is left out.", where=place)

    def documents(self) -> list[str]:
        """Return the names of the documents there are, such as `facts` and `episodes/2026-11`."""
        return self._engine.kinds(self.user_id)

    def document(self, kind: str) -> str:
        """Return the text of a document, byte for byte; empty if there is none."""
        return self._document(kind).text

    def _document(self, kind: str) -> Document:
        return self._engine.document(self.user_id, kind)

    def _book(self) -> Preferences:
        return Preferences(self._document("preferences"), self.diary.turn_rules.preferences)
