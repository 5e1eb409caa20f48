"""The conversation summaries of one user: listed and removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.engine.transaction import Source, fingerprint
from tomldiary.entries.conversations import Conversations, entry_to_conversation

if TYPE_CHECKING:
    from tomldiary.engine.engine import Transaction
    from tomldiary.entries.models import ConversationItem
    from tomldiary.user.context import UserContext

__all__ = ["UserConversations"]

_KIND = "conversations"


class UserConversations:
    """The conversation summaries of one user; `UserDiary` has its methods too."""

    def __init__(self, context: UserContext) -> None:
        self._context = context

    def conversations(self, limit: int | None = None) -> dict[str, ConversationItem]:
        """Return typed conversations by session id, most recently used first."""
        book = Conversations(self._context.document(_KIND))
        found = [(key, entry_to_conversation(entry)) for key, entry in book.entries()]
        found.sort(key=lambda item: item[1].updated, reverse=True)
        return dict(found if limit is None else found[: max(0, limit)])

    def remove_conversation(self, session_id: str, *, reason: str = "") -> None:
        """Remove a conversation's summary from the file; history keeps it.

        Raises:
            UnknownEntry: There is no such session. Nothing was changed.
        """

        def change(tx: Transaction) -> None:
            Conversations(tx.edit(_KIND)).delete(session_id)

        why = Source(
            "remove_conversation", session_id, reason=reason, content=fingerprint(session_id)
        )
        self._context.write(change, why)
