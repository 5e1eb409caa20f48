"""The feed of changes: the histories of all users as one iterator, with one cursor.

Each user has a separate history, and there is no common order. So a cursor contains a position for each user.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tomldiary.errors import InvalidValue
from tomldiary.hooks.change import Change, Position
from tomldiary.hooks.reader import changes_of, marker, newest, records_after, state_now
from tomldiary.identifiers.user_ids import checked_user
from tomldiary.runtime.async_bridge import in_thread
from tomldiary.toml.values import checked_flag, checked_names, checked_pause

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator

    from tomldiary.engine.engine import Engine

_FORMAT = 1
_Step = tuple[str, Change | None, Position | None]
"""A user, a change, and the user's position after it was returned.

The change is None for a transaction that changed no entry, the position inside a transaction.
"""


class Feed:
    """The changes of users after a cursor. Iterate over it once, with `for` or `async for`.

    Args:
        engine: The engine of the diary.
        since: A cursor; None starts at the beginning of the kept history.
        users: Only these users; None is all.
        follow: Whether to wait for further changes at the end.
        poll: The interval between two checks for changes by other processes and diaries, in seconds; at least as
            long as a check.

    Raises:
        InvalidValue: `since` is not a cursor, `users` are not texts, or `poll` is not above 0.
        IdentifierError: One of `users` is empty.
    """

    def __init__(
        self,
        engine: Engine,
        since: str | None,
        *,
        users: Collection[str] | None,
        follow: bool,
        poll: float,
    ) -> None:
        self._engine = engine
        self._positions = _parsed(since)
        given = None if users is None else checked_names(users, "users")
        self._only = None if given is None else frozenset(map(checked_user, given))
        self._follow = checked_flag(follow, "follow")
        self._poll = checked_pause(poll, "poll")
        self._steps: deque[_Step] = deque()
        self._round: Iterator[str] | None = None
        self._is_scan = True
        """Whether the round is over all users."""
        self._next_scan = self._scanned = 0.0
        """When the next round over all users begins, and the seconds that the last one took."""
        self._written: set[str] = set()
        """The users that this process has written since their last round."""

    def __repr__(self) -> str:
        return f"Feed({self._engine.backend!r}, follow={self._follow})"

    @property
    def cursor(self) -> str:
        """The position after the changes returned so far, as text; pass it to `changes(since=…)` to continue.

        Inside a transaction it is the position before the transaction. It contains the ids of all users.
        """
        users = {user: [each.epoch, each.seq, each.time] for user, each in self._positions.items()}
        return json.dumps({"version": _FORMAT, "users": users}, ensure_ascii=False)

    def __iter__(self) -> Iterator[Change]:
        """Yield the changes; with `follow`, block the calling thread at the end."""
        changed = threading.Event()
        with self._following(lambda _: changed.set()):
            while True:
                changed.clear()
                while self._fill():
                    yield from self._taken()
                if not self._follow:
                    return
                changed.wait(self._pause())

    async def __aiter__(self) -> AsyncIterator[Change]:
        """Yield the changes without blocking the event loop."""
        changed, loop = asyncio.Event(), asyncio.get_running_loop()

        def notify(_: str) -> None:
            with suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(changed.set)

        with self._following(notify):
            while True:
                changed.clear()
                while await in_thread(self._fill):
                    for change in self._taken():
                        yield change
                if not self._follow:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause()):
                        await changed.wait()

    @contextmanager
    def _following(self, notify: Callable[[str], None]) -> Generator[None]:
        """Call `notify` with the user after each change of this process."""

        def note(user: str) -> None:
            self._written.add(user)
            notify(user)

        self._next_scan = 0.0  # what was written before is found by a round over all users
        self._engine.after_change.append(note)
        try:
            yield
        finally:
            self._engine.after_change.remove(note)

    def _taken(self) -> Iterator[Change]:
        """Yield the changes that were read, and move the cursor."""
        while self._steps:
            user, change, position = self._steps.popleft()
            if position is not None:
                self._positions[user] = position
            if change is not None:
                yield change

    # Reading

    def _fill(self) -> bool:
        """Read the next user with changes; return False at the end of a round over all users, or over written ones."""
        began = time.monotonic()
        if self._round is None:
            known = {self._written.pop() for _ in range(len(self._written))}
            self._is_scan = began >= self._next_scan
            if self._is_scan:
                known |= {*self._engine.backend.users(), *self._positions}
                self._scanned = 0.0
            self._round = iter(sorted(known if self._only is None else known & self._only))
        for user in self._round:
            self._steps.extend(self._read(user))
            if self._steps:
                break
        else:
            self._round = None
        if self._is_scan:
            now = time.monotonic()
            self._scanned += now - began  # without the time that the caller takes for the changes
            self._next_scan = now + max(self._poll, self._scanned)
        return self._round is not None

    def _pause(self) -> float:
        return max(0.0, self._next_scan - time.monotonic())

    def _read(self, user: str) -> Iterator[_Step]:
        engine = self._engine
        end = newest(engine, user)
        begin = self._positions.get(user) or Position(end.epoch)
        if begin == end:
            return
        records = records_after(engine, user, begin)
        if records is None:
            end, entries = state_now(engine, user)
            yield from _steps(user, [marker(user, end, "reset"), *entries.values()], end)
            return
        for record in records:
            position = Position(end.epoch, record.seq, record.time)
            yield from _steps(user, list(changes_of(user, end.epoch, record)), position)


def _steps(user: str, changes: list[Change], position: Position) -> Iterator[_Step]:
    """Yield the changes of one transaction as steps; the last step moves the cursor."""
    *others, last = changes or [None]
    yield from ((user, each, None) for each in others)
    yield user, last, position


def _parsed(cursor: str | None) -> dict[str, Position]:
    if cursor is None:
        return {}
    try:
        found = json.loads(cursor)
        if found["version"] != _FORMAT:
            raise ValueError  # noqa: TRY301 - the same error
        return {
            user: Position(int(e), int(n), str(t)) for user, (e, n, t) in found["users"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InvalidValue(
            "expected the cursor of a feed, or None to start from the beginning.", where="since"
        ) from None
