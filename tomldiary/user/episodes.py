"""The episodes of one user: turns kept word for word, and the messages of a session."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from tomldiary.engine.transaction import Source, fingerprint
from tomldiary.entries.episodes import (
    Episode,
    episode_entries,
    episode_kinds,
    happened,
    homes_of,
    month_of,
    new_episode,
    to_episode,
)
from tomldiary.entries.facts import in_utc
from tomldiary.entries.kind import Writing
from tomldiary.errors import InvalidValue, UnknownEntry
from tomldiary.history.entry_changes import change_made, refuse_within
from tomldiary.runtime.async_bridge import async_twin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.engine.engine import Engine, Transaction

__all__ = ["EpisodeVerbs"]


class EpisodeVerbs:
    """The part of `UserDiary` that is about episodes."""

    diary: Any
    user_id: str
    _engine: Engine

    def add_episode(
        self,
        input: str,  # noqa: A002 - what goes into the agent, and what comes out of it
        output: str,
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        now: datetime | None = None,
        operation_id: str = "",
    ) -> str:
        """Append one turn, word for word, and return its id; it is never changed.

        Args:
            input: What the user said, at most 100,000 characters.
            output: What was answered, likewise.
            session_id: The conversation it belongs to.
            actor: Who does it, for history.
            reason: Why, for history.
            now: When it was said (without a zone: UTC); None is now.
            operation_id: An id of your own: the same one a second time changes nothing.

        Raises:
            InvalidValue: A text is too long. Nothing was changed.
            Conflict: The operation id was used for something else. Nothing was changed.
            NotSupported: The backend has six methods, none of which lists documents.
        """
        refuse_within(self._engine, self.user_id, operation_id)
        session_id = session_id or self._engine.session_here(self.user_id)
        when = datetime.now(UTC) if now is None else in_utc(now)
        value = {"input": input, "output": output}

        def change(tx: Transaction) -> str:
            documents = {*tx.engine.kinds(tx.user), *tx.changed()}
            writing = Writing(self.diary, tx.edit, documents, "", session_id)
            return new_episode(writing, value, when)

        asked = fingerprint("add_episode", input, output)
        why = Source("add_episode", session_id, actor, reason, operation_id, asked)
        return self._engine.write(self.user_id, change, why, on_repeat=self._added)

    aadd_episode = async_twin(add_episode)

    def _added(self, seq: int) -> str:
        """Return the id of the episode that a transaction added."""
        return change_made(self._engine.backend, self.user_id, seq).key.partition("/")[2]

    def episodes(self, session_id: str | None = None, limit: int | None = None) -> list[Episode]:
        """Return the newest episodes by the time they happened at, oldest of them first.

        Args:
            session_id: Only those of this session.
            limit: Most episodes returned.
        """
        if limit is not None and limit < 0:
            raise InvalidValue("limit is not negative.", where="episodes")
        found: list[Episode] = []
        for key, entry in self._newest_first():
            if limit is not None and len(found) >= limit:
                break
            if session_id is None or entry.get("_created_by", "") == session_id:
                found.append(to_episode(key, entry))
        return found[::-1]

    aepisodes = async_twin(episodes)

    def session_messages(self, session_id: str, limit: int | None = 20) -> list[dict[str, str]]:
        """Return the last messages of a session, oldest of them first, as `role` and `content`.

        Blank messages are left out: model providers refuse them.

        Args:
            session_id: The conversation.
            limit: Most messages returned; a turn has up to two, of the user and of the assistant.
        """
        if limit is not None and limit < 0:
            raise InvalidValue("limit is not negative.", where="session_messages")
        messages = (
            {"role": role, "content": text}
            for key, entry in self._newest_first()
            if entry.get("_created_by", "") == session_id
            for turn in [to_episode(key, entry)]
            for role, text in (("assistant", turn.output), ("user", turn.input))
            if text.strip()
        )
        return list(islice(messages, limit))[::-1]

    asession_messages = async_twin(session_messages)

    def forget_episode(
        self,
        id: str,  # noqa: A002 - the word that add_episode has for it
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
    ) -> Episode:
        """Remove one episode from its file and return it; history keeps it, see `forget`.

        Raises:
            UnknownEntry: There is no such episode.
        """

        def change(tx: Transaction) -> Episode:
            path = ("episodes", id)
            for kind in homes_of(self._engine.kinds(self.user_id), id):
                entry = tx.document(kind).table(path)
                if entry is not None:
                    tx.edit(kind).delete(path)
                    return to_episode(id, entry)
            raise UnknownEntry(f"episodes/{id}")

        asked = fingerprint("forget_episode", id)
        why = Source("forget_episode", session_id, actor, reason, content=asked)
        return self._engine.write(self.user_id, change, why)

    aforget_episode = async_twin(forget_episode)

    def _newest_first(self) -> Iterator[tuple[str, Any]]:
        """Yield the episodes by the time they happened at, newest first; those of one instant as they stand."""
        kinds = reversed(episode_kinds(self._engine.kinds(self.user_id)))
        for _, parts in groupby(kinds, month_of):
            found = [
                entry
                for kind in reversed(list(parts))
                for entry in episode_entries(self._engine.document(self.user_id, kind))
            ]
            # Written later, but earlier in time: it was told late, or came with an import.
            found.sort(key=lambda entry: happened(entry[1]))
            yield from reversed(found)
