"""The preferences and the conversation summaries of one user."""

from __future__ import annotations

from sys import maxsize
from typing import TYPE_CHECKING, Any, Protocol, overload

from pydantic import ValidationError

from tomldiary.entries.kinds import KINDS, PREFERENCES
from tomldiary.entries.kinds.conversations import (
    Conversations,
    entry_to_conversation,
    unknown_session,
)
from tomldiary.entries.models import (
    ConversationItems,
    PreferenceItem,
    PreferenceItems,
    PreferenceTables,
)
from tomldiary.entries.preferences import Preferences, entry_to_item, unknown_preference
from tomldiary.errors import InvalidValue, wrong_value
from tomldiary.history.record import Source
from tomldiary.logging import get_logger
from tomldiary.runtime.views import counted
from tomldiary.text.similarity import Matches
from tomldiary.toml.values import (
    checked_count,
    checked_flag,
    checked_limit,
    checked_names,
    checked_table,
    checked_text,
    copied,
    timestamp,
)
from tomldiary.user.context import UserPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from tomldiary.engine.transaction import Transaction
    from tomldiary.entries.kind import Tables

_KIND = "preferences"
_ARGUMENTS = ("text", "contexts")
"""Arguments of `upsert_preference` that `fields` must not overwrite, because they are checked separately."""
_logger = get_logger(__name__)


class ReadPreferences(Protocol):
    """The type of `alice.preferences`, because mypy sees only the first overload through a decorator."""

    @overload
    def __call__(self, category: None = None) -> PreferenceTables: ...
    @overload
    def __call__(self, category: str) -> PreferenceItems: ...


class ReadPreferencesAsync(Protocol):
    """The type of `alice.apreferences`."""

    @overload
    async def __call__(self, category: None = None) -> PreferenceTables: ...
    @overload
    async def __call__(self, category: str) -> PreferenceItems: ...


class UserPreferences(UserPart):
    """The preferences of one user; `UserDiary` also has these methods."""

    def preferences(self, category: str | None = None) -> PreferenceTables | PreferenceItems:
        """Return typed preferences by id; without `category`, by category and id.

        Raises:
            UnknownCategory: The preference table has no such category.
            DocumentError: The file does not parse; has path, line and column.
        """
        book = self._unexpired()
        if category is not None:
            book.check_category(category)
            return self._items(book, category)
        return PreferenceTables((name, self._items(book, name)) for name in self._diary.allowed)

    def _items(self, book: Preferences, category: str) -> PreferenceItems:
        found = PreferenceItems()
        for key, entry in book.items(category):
            try:
                found[key] = self._item(category, entry)
            except ValidationError as error:
                # One invalid entry must not hide the rest of the category.
                _logger.warning(
                    "%s/%s is omitted because it has %s; call problems() for details",
                    category,
                    key,
                    counted(error.error_count(), "invalid field"),
                )
        return found

    def _item(self, category: str, entry: Mapping[str, Any]) -> PreferenceItem:
        return entry_to_item(entry, self._diary.preference_rules.item_types[category])

    def _book(self, tables: Tables) -> Preferences:
        return Preferences(tables, self._diary.preference_rules)

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
        operation_id: str = "",
        ephemeral: bool = False,
    ) -> tuple[str, PreferenceItem]:
        """Store a preference, or change or confirm the one with `id`, and return its id and the preference.

        A text that differs only in case, spacing, pauses and the final stop confirms the stored preference.
        A similar text is stored as a new one; call `similar` before to find similar or contradicting ones.

        Args:
            category: A category of the preference table.
            text: The text to remember; None with an `id` only confirms the entry. An entry does not get the text of
                another one of its category.
            id: The entry to change, `id` or `category/id`. None and "new" create an entry. An unknown id
                creates an entry with this id, unless an entry of the category has the same text.
            contexts: Labels to add to the stored ones.
            count_up: Whether to increment the counter of an existing entry.
            fields: Values for `pinned` and the additional fields of the category's item type.
            create: Whether an entry may be created; False only changes an existing one.
            session_id: Stored in `_created_by` and `_updated_by`, and in history.
            actor: The author of the change, for history.
            reason: The reason for the change, for history.
            now: The time to store; None is the current time.
            operation_id: An idempotency key; a second call with the same key changes nothing.
            ephemeral: Whether the change becomes a draft of the session; see `UserDiary.draft`.

        Raises:
            UnknownCategory, UnknownEntry, LimitReached, InvalidValue: Nothing was changed.
            Conflict: The operation id was used for a different change. Nothing was changed.
        """
        session_id = self._context.session(session_id)
        moment = timestamp(now)
        contexts = checked_names(contexts, "contexts")  # not an iterator: the change may run again
        _check_fields(fields)
        checked_flag(count_up, "count_up")
        checked_flag(create, "create")
        id = None if id is None else checked_text(id, "id")  # noqa: A001
        # Before they are compared with what is stored.
        text, contexts = self._diary.redacted(text), self._diary.redacted(contexts)

        def change(tx: Transaction) -> tuple[str, PreferenceItem]:
            book = self._book(tx.entries(_KIND))
            book.check_category(category)
            key = book.wanted(category, id)
            if not create:
                key = id if id is None else book.named(category, id)
                if key is None or book.find(category, key) is None:
                    raise unknown_preference(category, key or "")
            outcome = book.upsert(
                category, key, text, contexts, now=moment, session=session_id, count_up=count_up,
                fields=fields,
            )  # fmt: skip
            return outcome.id, self._item(category, outcome.entry)

        more = self._context.fingerprinted(operation_id, fields)
        asked = (category, text, id, contexts, more, count_up, create)
        why = Source("upsert", session_id, actor, reason, operation_id, asked=asked)

        def stored(seq: int) -> tuple[str, PreferenceItem]:
            """Return the current entry, or the transaction's version if the entry is a draft or was removed since."""
            made = self._context.change_made(seq)
            key = made.key.partition("/")[2]
            book = self._book(self._context.read(_KIND))
            found = None if made.is_pending else book.find(category, key)
            return key, self._item(category, made.fields if found is None else found[1])

        return self._context.write(change, why, ephemeral=ephemeral, on_repeat=stored)

    def remove_preference(
        self,
        category: str,
        id: str,  # noqa: A002 - the word of the file format
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        ephemeral: bool = False,
    ) -> PreferenceItem:
        """Remove a preference from the file and return it. History keeps it, and its id is not reused.

        To erase a text everywhere, use `forget`. With `ephemeral` it becomes a draft of the session, see
        `UserDiary.draft`.

        Args:
            category: The category of the preference.
            id: The id of the preference, `id` or `category/id`.
            session_id: The session, for history.
            actor: The author of the change, for history.
            reason: The reason for the change, for history.
            ephemeral: Whether the change becomes a draft of the session.

        Raises:
            UnknownCategory, UnknownEntry: Nothing was changed.
        """

        def change(tx: Transaction) -> PreferenceItem:
            book = self._book(tx.entries(_KIND))
            entry = book.forget(category, book.named(category, id))
            try:
                return self._item(category, entry)
            except ValidationError:  # an entry that does not fit its type can still be removed
                return entry_to_item(entry)

        why = Source("remove_preference", session_id, actor, reason, asked=(category, id))
        return self._context.write(change, why, ephemeral=ephemeral)

    def similar(self, category: str, text: str, *, limit: int = 5) -> Matches:
        """Return preferences of a category that are similar to `text`, best first, including contradicting ones.

        Raises:
            UnknownCategory: The preference table has no such category.
            InvalidValue: `text` is not text, or `limit` is negative.
        """
        limit = min(checked_count(limit, "limit"), maxsize)
        book = self._unexpired()
        book.check_category(category)
        return Matches(
            book.similar(self._diary.similarity, category, checked_text(text, "text"), limit=limit)
        )

    def same_elsewhere(self, category: str, text: str) -> list[str]:
        """Return the keys of entries with the same text in other categories, at most one of each."""
        return ["/".join(place) for place in self._unexpired().elsewhere(category, text)]

    def entry(self, kind: str, key: str) -> dict[str, Any]:
        """Return the fields of one entry in the form that the file stores.

        Args:
            kind: "preferences" or "conversations".
            key: `category/id`, or the session id.

        Raises:
            UnknownCategory, UnknownEntry: The entry does not exist.
            InvalidValue: `kind` is neither of the two.
        """
        key = checked_text(key, "key")
        if kind not in (_KIND, "conversations"):
            raise wrong_value(kind, "one of preferences, conversations", "kind")
        document = self._context.unexpired(kind)
        collection, name, unknown = (kind,), key, unknown_session(key)
        if kind == _KIND:
            category, _, name = key.partition("/")
            self._book(document).check_category(category)
            collection, unknown = (kind, category), unknown_preference(category, name)
        found = KINDS[kind].get(document, self._diary, collection, name)
        if found is None:
            raise unknown
        return copied({**found})

    def _unexpired(self) -> Preferences:
        return self._book(self._context.unexpired(_KIND))


def _check_fields(fields: Mapping[str, Any] | None) -> None:
    """Raise InvalidValue if a name cannot be a field of an item type, or `pinned` is neither true nor false."""
    for name, value in checked_table({} if fields is None else fields, "fields").items():
        if name in PREFERENCES.flags:
            checked_flag(value, name)
        if name.startswith("_") or name in _ARGUMENTS:
            raise InvalidValue("not a field of the item type. Remove it.", where=name)


class UserConversations(UserPart):
    """The conversation summaries of one user; `UserDiary` also has these methods."""

    def conversations(self, limit: int | None = None) -> ConversationItems:
        """Return typed conversations by session id, most recently used first."""
        checked_limit(limit)
        book = Conversations(self._context.unexpired("conversations"))
        found = [(key, entry_to_conversation(entry)) for key, entry in book.entries()]
        found.sort(key=lambda item: item[1].updated, reverse=True)
        return ConversationItems(found if limit is None else found[:limit])

    def remove_conversation(self, session_id: str, *, actor: str = "", reason: str = "") -> None:
        """Remove a conversation's summary from the file; history keeps it.

        Raises:
            UnknownEntry: There is no such session. Nothing was changed.
        """

        def change(tx: Transaction) -> None:
            Conversations(tx.edit("conversations")).delete(session_id)

        why = Source("remove_conversation", session_id, actor, reason, asked=(session_id,))
        self._context.write(change, why)
