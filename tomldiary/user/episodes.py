"""`alice.episodes`: turns stored verbatim, and the messages of a session."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from tomldiary.entries.fields import entry_data, shares_turn
from tomldiary.entries.kinds import find_entry
from tomldiary.entries.kinds.episodes import (
    Episode,
    Episodes,
    checked_steps,
    episode_entries,
    episode_kinds,
    happened,
    month_of,
    new_episode,
    to_episode,
)
from tomldiary.errors import UnknownEntry
from tomldiary.history.record import Source
from tomldiary.runtime.async_bridge import async_twin
from tomldiary.toml.values import checked_limit, checked_text, in_utc, same_value
from tomldiary.user.context import ListAccessor, session_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tomldiary.engine.transaction import Transaction
    from tomldiary.entries.kinds.episodes import ToolStep
    from tomldiary.toml.document import Document

_Messages = list[dict[str, str]]


class UserEpisodes(ListAccessor[Episode]):
    """The episodes of one user, as `alice.episodes`. `episodes()` is short for `episodes.list()`.

    Reads like the list of all episodes: `for episode in episodes`, `len(episodes)`; and by id: `episodes[id]`,
    `id in episodes`.
    """

    def __call__(self, session_id: str | None = None, limit: int | None = None) -> Episodes:
        """Return the newest episodes in chronological order; see `list`."""
        return self.list(session_id, limit)

    def add(
        self,
        input: str,  # noqa: A002 - what goes into the agent, and what comes out of it
        output: str,
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        now: datetime | None = None,
        operation_id: str = "",
        id: str | None = None,  # noqa: A002 - the word of `delete`
        steps: Sequence[ToolStep] = (),
        ephemeral: bool = False,
    ) -> str:
        """Store one turn verbatim and return its id; an episode is immutable.

        Args:
            input: What the user said, up to 100,000 characters.
            output: What the assistant answered, up to 100,000 characters.
            session_id: The session of the turn.
            actor: The author of the change, for history.
            reason: The reason for the change, for history.
            now: The time of the turn (UTC if it has no zone); None is the current time.
            operation_id: An idempotency key; a second call with the same key changes nothing.
            id: The episode's id; storing the same texts again changes nothing. None derives it from the time.
            steps: The tool calls of the turn.
            ephemeral: Whether the change becomes a draft of the session; see `UserDiary.draft`.

        Raises:
            InvalidValue: A text is too long, both are blank without a tool call, or the id exists with different texts.
                Nothing was changed.
            Conflict: The operation id was used for a different change. Nothing was changed.
            NotSupported: The backend cannot list its documents.
        """
        session_id = self._context.session(session_id)
        when = datetime.now(UTC) if now is None else in_utc(now, "now")
        id = None if id is None else _path(id)[1]  # noqa: A001
        value: dict[str, Any] = {"input": input, "output": output}
        if steps:
            value["steps"] = [step._asdict() for step in checked_steps(steps)]
        if id:  # it is compared with what is stored
            value = self._diary.redacted(value)

        def change(tx: Transaction) -> str:
            known = find_entry(("episodes", id), tx.listed(), tx.document) if id else None
            if known is not None and same_value(entry_data(known[2]), value):
                return known[1][1]
            return new_episode(tx.writing(self._diary, session_id), value, when, id)

        texts = self._context.fingerprinted(operation_id, (input, output))
        asked = (*texts, *([id] if id else []))
        why = Source("add_episode", session_id, actor, reason, operation_id, asked=asked)
        return self._context.write(change, why, ephemeral=ephemeral, on_repeat=self._added)

    aadd = async_twin(add)

    def _added(self, seq: int) -> str:
        """Return the id of the episode that a transaction added."""
        return self._context.change_made(seq).key.partition("/")[2]

    def get(self, id: str) -> Episode | None:  # noqa: A002 - the word of `add`
        """Return one episode, or None.

        Args:
            id: The id, `episodes/id` as `recall` shows it, or the turn, `session#turn`. The `source` of a hit and
                `why(key).turn` are one of these. Of turns that were read together, the last one is returned.
        """
        path = _path(id)
        with self._context.reading():
            found = find_entry(path, self._context.kinds(), self._kept)
            if found is not None:
                return to_episode(path[1], found[2])
            turns = self._newest_first() if "#" in path[1] else ()
            return next(
                (
                    to_episode(*each)
                    for each in turns
                    if shares_turn(str(each[1].get("_source", "")), path[1])
                ),
                None,
            )

    aget = async_twin(get)

    def messages(self, session_id: str, limit: int | None = 20) -> _Messages:
        """Return the last messages of a session in chronological order, as `role` and `content`.

        Blank messages are omitted because model providers reject them.

        Args:
            session_id: The session.
            limit: The maximum number of messages; a turn has up to two. None is all.
        """
        limit = checked_limit(limit)
        checked_text(session_id, "session_id")
        messages = (
            {"role": role, "content": text}
            for key, entry in self._newest_first()
            if entry.get("_created_by", "") == session_id
            for turn in [to_episode(key, entry)]
            for role, text in (("assistant", turn.output), ("user", turn.input))
            if text.strip()
        )
        with self._context.reading():
            return [*islice(messages, limit)][::-1]

    amessages = async_twin(messages)

    def list(self, session_id: str | None = None, limit: int | None = None) -> Episodes:
        """Return the newest episodes in chronological order.

        Args:
            session_id: Return only episodes of this session; None is all sessions.
            limit: The maximum number of episodes; None is all.
        """
        limit = checked_limit(limit)
        session_name(session_id)
        found = (
            to_episode(key, entry)
            for key, entry in self._newest_first()
            if session_id is None or entry.get("_created_by", "") == session_id
        )
        with self._context.reading():
            return Episodes(islice(found, limit))[::-1]

    alist = async_twin(list)  # noqa: A003 - the method above

    def __len__(self) -> int:
        with self._context.reading():
            return sum(1 for _ in self._newest_first())

    def delete(
        self,
        id: str,  # noqa: A002 - the word that `add` uses
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
    ) -> Episode:
        """Remove one episode from its file and return it. History keeps it. The id may begin with `episodes/`.

        Raises:
            UnknownEntry: There is no such episode.
        """
        path = _path(id)

        def change(tx: Transaction) -> Episode:
            found = find_entry(path, self._context.kinds(), tx.document)
            if found is None:
                raise self._unknown(id)
            tx.edit(found[0]).delete(path)
            return to_episode(path[1], found[2])

        why = Source("delete_episode", session_id, actor, reason, asked=(id,))
        return self._context.write(change, why)

    adelete = async_twin(delete)

    def _unknown(self, id: str) -> UnknownEntry:  # noqa: A002 - the word of `add`
        return UnknownEntry("/".join(_path(id)), "episodes.list() returns all episodes.")

    def _kept(self, name: str) -> Document:
        return self._context.kept(name, self._context.part(name))

    def _newest_first(self) -> Iterator[tuple[str, Any]]:
        """Yield the episodes by the time of their turns, newest first."""
        kinds = reversed(episode_kinds(self._context.kinds()))
        for _, parts in groupby(kinds, month_of):
            found = [
                entry for kind in reversed([*parts]) for entry in episode_entries(self._kept(kind))
            ]
            # the file order may differ, because an episode may be stored late or imported
            found.sort(key=lambda entry: happened(entry[1]))
            yield from reversed(found)


def _path(written: str) -> tuple[str, str]:
    """Return the path of an episode; `recall` shows its id as `episodes/id`."""
    return "episodes", checked_text(written, "id", "Give the `id` of the episode.").removeprefix(
        "episodes/"
    )
