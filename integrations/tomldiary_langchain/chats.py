"""Sessions of chats that name none and whose client keeps the messages."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from uuid import UUID

from tomldiary.agents.turn_messages import digest
from tomldiary.runtime.lru import Recent
from tomldiary_langchain.messages import first_exchange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.messages import BaseMessage

__all__ = ["Chats"]

_CHATS = 4_096


class Chats:
    """Identifies chats by the id of their first message, or by their first exchange if clients keep no ids.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._guard = threading.RLock()  # as in `SubmittedMessages`
        self._known: Recent[str, str] = Recent(_CHATS)

    def session(self, user: str, messages: Sequence[BaseMessage]) -> str:
        """Return the session of a chat."""
        first = first_exchange(messages)
        if not first:
            return "chat"
        named = first[0].id or "chat"
        begun = _begun(user, first)
        with self._guard:
            known = self._known.get(named) or (self._known.get(begun) if begun else None)
            if known is None:
                # LangGraph gives such ids to messages without one, models give others.
                keeps_ids = not begun or not (_is_uuid(named) and _is_uuid(first[1].id))
                known = named if keeps_ids else begun
            return self._known.keep(named, known)

    def keep(self, user: str, messages: Sequence[BaseMessage], session: str) -> None:
        """Remember the session of a chat by its first exchange."""
        first = first_exchange(messages)
        begun = _begun(user, first)
        if begun:
            with self._guard:
                self._known.keep(begun, session)
                # A retry gives the message another UUID. Other ids come from clients, and two users may have the same.
                if _is_uuid(first[0].id):
                    self._known.keep(str(first[0].id), session)


def _begun(user: str, first: Sequence[BaseMessage]) -> str:
    if len(first) < 2:  # noqa: PLR2004 - a question and an answer
        return ""
    return digest(user, *(str(message.text) for message in first))


def _is_uuid(text: str | None) -> bool:
    try:
        return str(UUID(text or "")) == text
    except ValueError:
        return False
