"""The coroutines of TOMLDiary 0.9: documents as text, fields and printed text."""

# ruff: noqa: FBT001, FBT002 - the ancestor's signatures

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tomldiary.compat.pretty_print import ConversationsPrinter, PreferencesPrinter
from tomldiary.entries.kinds.conversations import Conversations
from tomldiary.entries.models import MetaInfo
from tomldiary.history.record import Source
from tomldiary.identifiers.user_ids import checked_user
from tomldiary.runtime.async_bridge import in_thread
from tomldiary.toml.edit import Edit
from tomldiary.toml.values import checked_limit, copied, timestamp

if TYPE_CHECKING:
    from datetime import datetime

    from tomldiary.engine.engine import Engine
    from tomldiary.engine.rules import EntryRules
    from tomldiary.engine.transaction import Transaction
    from tomldiary.extraction.draft import MemoryDeps
    from tomldiary.extraction.turns import Turns


class AncestorCoroutines:
    """The methods of `Diary` from TOMLDiary 0.9: preferences and conversations of one user."""

    engine: Engine
    entry_rules: EntryRules
    max_conversations: int
    turns: Turns

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class with its own version of a coroutine that 0.9 called in each turn, as no turn calls it here.

        Raises:
            TypeError: The class overrides `build_deps` or `ensure_session`, but not `update_memory`.
        """
        super().__init_subclass__(**options)
        maker = next(each for each in cls.__mro__ if "update_memory" in vars(each))
        if AncestorCoroutines not in maker.__bases__:
            return  # its own `update_memory` may call them
        for name in ("build_deps", "ensure_session"):
            if getattr(cls, name) is not getattr(AncestorCoroutines, name):
                raise TypeError(
                    f"{cls.__name__} overrides {name}, but no turn calls it, so its effect would be missing."
                    " Override update_memory."
                )

    async def preferences(self, user_id: str, skip_metadata: bool = False) -> str:
        """Return the preferences document as TOML text; "" if there is none."""
        user_id = checked_user(user_id)

        def read() -> str:
            stored = self.engine.readable(user_id, "preferences")
            document = self.engine.kept("preferences", stored)
            if not skip_metadata:
                return document.text
            edit = Edit(document)
            edit.delete(("_meta",))
            return edit.done().text

        return await in_thread(read)

    async def last_conversations(
        self,
        user_id: str,
        limit: int | None = 3,
        skip_metadata: bool = False,
    ) -> dict[str, Any]:
        """Return the fields of the newest conversations by session id, newest first; of all if `limit` is None.

        Unless `skip_metadata` is set, the key `_meta` contains the document's metadata, or default metadata.
        """
        user_id, limit = checked_user(user_id), checked_limit(limit)

        def read() -> dict[str, Any]:
            stored = self.engine.readable(user_id, "conversations")
            document = self.engine.kept("conversations", stored)
            entries = [(key, copied(dict(each))) for key, each in Conversations(document).entries()]
            entries.sort(key=lambda item: str(item[1].get("_created", "")), reverse=True)
            meta = document.meta or MetaInfo(schema_name=self.engine.schema_name)
            head = {} if skip_metadata else {"_meta": copied(dict(meta))}
            return {**head, **dict(entries[:limit])}

        return await in_thread(read)

    async def ensure_session(
        self, user_id: str, session_id: str, *, context_now: datetime | None = None
    ) -> bool:
        """Create a session if it does not exist, and return whether it was created."""
        user_id, now = checked_user(user_id), timestamp(context_now)

        def change(tx: Transaction) -> bool:
            book = Conversations(tx.edit("conversations"), self.max_conversations)
            return book.ensure(session_id, now=now)

        return await in_thread(self.engine.write, user_id, change, Source("session", session_id))

    async def build_deps(
        self, user_id: str, session_id: str, *, context_now: datetime | None = None
    ) -> MemoryDeps:
        """Return a draft of the user's memory for an extractor. Changes of the draft are not stored."""
        return await self.turns.build_deps(user_id, session_id, context_now=context_now)

    async def pretty_preferences(
        self,
        user_id: str,
        skip_metadata: bool = True,
        fields: set[str] | None = None,
        show_count: bool = True,
        show_timestamps: bool = True,
    ) -> str:
        """Return the preferences as human-readable, indented text."""
        printer = PreferencesPrinter(
            fields=fields, show_count=show_count, show_timestamps=show_timestamps
        )
        shown = await self.preferences(user_id)
        if not shown:
            return "No preferences found for user."  # programs written for 0.9 compare with it
        return await in_thread(printer.format_preferences, shown, skip_metadata)

    async def pretty_conversations(
        self,
        user_id: str,
        limit: int | None = None,
        skip_metadata: bool = True,
        fields: set[str] | None = None,
        show_turns: bool = True,
    ) -> str:
        """Return the conversations as human-readable, indented text."""
        printer = ConversationsPrinter(fields=fields, show_turns=show_turns)
        shown = await self.last_conversations(user_id, limit)
        return await in_thread(printer.format_conversations, shown, skip_metadata)
