"""Brings one hook up to date with one user, by the changes after the cursor or by the whole state.

Delivery is at least once. A change is applied before the cursor moves, so after a crash it is applied again. A hook
gets the current fields of an entry, so a late delivery never restores an older state.

Cursors are durable: the position of each hook in the history of each user. They are stored in a hidden document of the
user, `.hooks`, with a table for each hook:

    [hooks.chroma]
    seq = 12
    time = "2026-11-20T03:37:54.320748+00:00"
    keys = ["likes/pref001"]    # a strict hook got these before their transaction was stored

The document outlives the user's memory until each hook has removed the user's entries.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import partial
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

from tomldiary.entries.kinds import FACTS, ITEMS
from tomldiary.errors import HookError, NotSupported
from tomldiary.history.record import parse_record
from tomldiary.hooks.change import START, Change, Found, IndexHook, Position, SearchHook
from tomldiary.hooks.reader import (
    entries_now,
    entry_now,
    marker,
    newest,
    of_one_state,
    records_after,
    state_now,
    touched,
)
from tomldiary.runtime.sources import HOOKS
from tomldiary.storage.local.layout import SYSTEM
from tomldiary.storage.locks import UserLocks
from tomldiary.storage.protocol import KeepsHidden, LocalFolder
from tomldiary.toml.values import render_key, render_text, render_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tomldiary.engine.engine import Engine
    from tomldiary.engine.transaction import Prepared
    from tomldiary.entries.kind import Rules
    from tomldiary.hooks.change import ChangeHook
    from tomldiary.toml.document import Document

    Hook = ChangeHook | Callable[[Sequence[Change]], object]
    """A hook as hosts give it: an object, or a function of the changes of one user."""

_ATTEMPTS = 20  # the maximum number of deliveries for one user if other processes move the cursor
NOT_AWAITED = "a hook runs in a thread and is not awaited. Give a function without async, or read diary.changes()"
_BATCH = 500  # changes in one call of a hook
_MOST_ASKED = 1000  # hits, if those that are left out displace others; an index may refuse more
_TIMEOUT = 30.0  # the time limit in seconds for waiting until another process has delivered


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of one hook in the history of one user."""

    position: Position
    keys: tuple[str, ...] = ()
    """Entries that the hook may have in a state that was never stored."""

    @classmethod
    def new(cls) -> Cursor:
        """Return the cursor of a hook that needs the whole state, because its entries are unknown."""
        return cls(Position(seq=START))


class Cursors:
    """The cursors of one hook.

    Args:
        backend: The storage of the cursors.
        hook: The name of the hook.
    """

    def __init__(self, backend: KeepsHidden, hook: str) -> None:
        self._backend = backend
        self._hook = hook

    def of(self, user: str) -> Cursor | None:
        """Return the cursor of a user, or None if the hook has received nothing of the user."""
        return _parsed(self._backend.hidden(user, HOOKS)).get(self._hook)

    def users(self) -> list[str]:
        """Return the users with a cursor of any hook."""
        return self._backend.holders(HOOKS)

    def move(self, user: str, expected: Cursor | None, cursor: Cursor | None) -> bool:
        """Replace a cursor, or remove it if `cursor` is None; return False if another process has moved it."""
        return self._change(user, lambda now: cursor if now == expected else now) == cursor

    def add_keys(self, user: str, keys: set[str]) -> None:
        """Store the keys of entries that the hook is about to get; the caller holds the user's lock."""

        def added(now: Cursor | None) -> Cursor:
            known = now or Cursor.new()
            return Cursor(known.position, tuple(sorted({*known.keys, *keys})))

        self._change(user, added, is_locked=True)

    def _change(
        self,
        user: str,
        change: Callable[[Cursor | None], Cursor | None],
        *,
        is_locked: bool = False,
    ) -> Cursor | None:
        found: list[Cursor | None] = []

        def changed(text: str, _: int) -> str:
            cursors = _parsed(text)
            fresh = change(cursors.get(self._hook))
            found[:] = [fresh]
            cursors.pop(self._hook, None)
            return _rendered({**cursors, self._hook: fresh} if fresh is not None else cursors)

        self._backend.change_hidden(user, HOOKS, changed, is_locked=is_locked)
        return found[-1]


def _parsed(text: str) -> dict[str, Cursor]:
    try:
        tables: dict[str, dict[str, Any]] = tomllib.loads(text).get("hooks", {})
        return {
            name: Cursor(Position(each["epoch"], each["seq"], each["time"]), tuple(each["keys"]))
            for name, each in tables.items()
        }
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError):
        return {}  # a hook without a cursor gets the whole state again


def _rendered(cursors: Mapping[str, Cursor]) -> str:
    return "\n".join(
        f"[hooks.{render_key(name)}]\nepoch = {each.position.epoch}\nseq = {each.position.seq}\n"
        f"time = {render_text(each.position.time)}\nkeys = {render_value(list(each.keys))}\n"
        for name, each in sorted(cursors.items())
    )


def redacted(text: str, user: str, selection: Mapping[str, Any], epoch: int) -> str:  # noqa: ARG001 - a common signature
    """Return the cursors without keys of entries, reset to before the erasure, so that each hook applies it."""
    return _rendered(
        {
            name: Cursor(Position(min(each.position.epoch, epoch - 1), START))
            for name, each in _parsed(text).items()
        }
    )


@dataclass(slots=True)
class Repaired:
    """The numbers of entries in a hook that differed from the memory."""

    added: int = 0
    changed: int = 0
    removed: int = 0

    @property
    def drift(self) -> int:
        """The number of entries that differed."""
        return self.added + self.changed + self.removed


class Delivery:
    """Delivers to one hook. Thread-safe; on a folder, one process at a time delivers a user's changes to a hook.

    Args:
        engine: Reads the memory and its history.
        name: The name of the hook and its cursors.
        hook: The hook that gets the changes: an object, or a function.

    Raises:
        NotSupported: The backend cannot store cursors.
    """

    def __init__(self, engine: Engine, name: str, hook: Hook) -> None:
        backend = engine.backend
        if not isinstance(backend, KeepsHidden):
            raise NotSupported(
                f"{backend!r} keeps no history and no cursors, so hooks would miss changes. Use a folder or a database."
            )
        self.name = name
        self.hook = hook
        self.cursors = Cursors(backend, name)
        self._engine = engine
        is_folder = isinstance(backend, LocalFolder)
        place = backend.base_path / SYSTEM / "hook-locks" if is_folder else None
        self._locks = UserLocks(place, backend.files if is_folder else None)

    def users(self) -> list[str]:
        """Return all users who have a document, or whose entries a hook may still have."""
        return sorted({*self._engine.backend.users(), *self.cursors.users()})

    def is_behind(self, user: str) -> bool:
        """Return whether changes of a user are not delivered yet."""
        with self._engine.reading():  # one request, as this is asked for each user
            end, cursor = newest(self._engine, user), self.cursors.of(user)
        if cursor is None:
            return end.seq > 0
        return cursor.position != end or bool(cursor.keys)

    def deliver(self, user: str) -> int:
        """Bring the hook up to date with one user, and return the number of changes that it got.

        Raises:
            LockTimeout: Another process is delivering to the hook.
            Exception: The hook failed; the next call delivers the same changes again.
        """
        with self._held(user):
            count = 0
            keys: set[str] = set()
            for _ in range(_ATTEMPTS):
                number, is_done = self._deliver(user, keys)
                count += number
                if is_done:
                    break
            return count

    def _held(self, user: str) -> AbstractContextManager[None]:
        return self._locks.hold(f"{self.name} {user}", _TIMEOUT)

    def _deliver(self, user: str, keys: set[str]) -> tuple[int, bool]:
        """Deliver once; `keys` collects the applied keys, to apply them again if another process moves the cursor."""
        engine = self._engine
        end, before = newest(engine, user), self.cursors.of(user)
        cursor = before
        if cursor is None:
            if end.seq == 0:
                return 0, True
            # The cursor is stored before the hook gets anything, so that an erasure meanwhile also reaches the hook.
            # If a cursor was lost, a hook may have erased entries: it begins before the first erasure, and so gets a
            # reset if there was one. An index may have others that are not stored, so it gets the whole state.
            is_index = isinstance(self.hook, IndexHook)
            cursor = before = Cursor.new() if is_index else Cursor(Position())
            if not self.cursors.move(user, None, cursor):
                return 0, False
        if cursor.position == end and not cursor.keys and not keys:
            return 0, True
        end, changes = self._since(user, cursor.position, {*cursor.keys, *keys})
        if changes is None:
            end, changes, _ = self._difference(user)
        self._apply(changes)
        keys.update(change.key for change in changes)
        return len(changes), self._moved(user, before, end)

    def _moved(self, user: str, before: Cursor | None, end: Position) -> bool:
        """Move the cursor, or remove it if the user has no data left; return False if another process moved it."""
        is_gone = end.seq == 0 and not self._engine.kinds(user)
        return self.cursors.move(user, before, None if is_gone else Cursor(end))

    def _since(
        self, user: str, position: Position, doubtful: set[str]
    ) -> tuple[Position, list[Change] | None]:
        """Return the end of history and the changes after a position; None if history does not continue it.

        The changes include the current state of the entries with `doubtful` keys.
        """
        engine = self._engine

        def since() -> tuple[Position, list[Change] | None]:
            end = newest(engine, user)
            records = records_after(engine, user, position)
            if records is None:
                return end, None
            places = touched(records)
            listed, read = engine.kinds(user), partial(engine.document, user)
            changes = [entry_now(user, end, place, listed, read) for place in places.values()]
            others = doubtful - places.keys() - {""}
            now = entries_now(engine, user, end, others) if others else {}
            gone = marker(user, end, "state")
            return end, changes + [now.get(key) or replace(gone, key=key) for key in sorted(others)]

        return of_one_state(engine, user, since)

    def _difference(self, user: str) -> tuple[Position, list[Change], Repaired]:
        """Return the end of history, the changes that lead to the whole state, and their numbers."""
        end, now = state_now(self._engine, user)
        hook = self.hook
        if not isinstance(hook, IndexHook):
            return end, [marker(user, end, "reset"), *now.values()], Repaired(added=len(now))
        now = {key: change for key, change in now.items() if hook.wants(change)}
        stored, gone = hook.stored(user), marker(user, end, "state")
        removed = [replace(gone, key=key) for key in stored.keys() - now.keys()]
        other = [change for key, change in now.items() if stored.get(key) != change.digest]
        added = sum(change.key not in stored for change in other)
        repaired = Repaired(added, len(other) - added, len(removed))
        return end, [*removed, *other], repaired

    def _apply(self, changes: Sequence[Change]) -> None:
        hook: Any = self.hook
        for start in range(0, len(changes), _BATCH):
            result = getattr(hook, "apply", hook)(changes[start : start + _BATCH])
            if iscoroutine(result):
                result.close()
                raise TypeError(NOT_AWAITED)

    # Repair

    def reconcile(self, user: str) -> Repaired:
        """Compare the hook with the whole state of a user, and repair it.

        A hook that cannot list its entries gets a reset and the whole state.

        Raises:
            NestedTransaction: A transaction of the user is open here.
        """
        self._engine.refuse_open(user)
        with self._held(user):
            found = Repaired()
            for _ in range(_ATTEMPTS):
                before = self.cursors.of(user)
                if before is None and not self.cursors.move(user, None, before := Cursor.new()):
                    continue
                end, changes, again = self._difference(user)
                self._apply(changes)
                found = again if not found.drift else found
                if self._moved(user, before, end):
                    break
            return found

    def everybody(self) -> list[str]:
        """Return all users, including those with entries only in the hook."""
        known = self.hook.users() if isinstance(self.hook, IndexHook) else ()
        return sorted({*self.users(), *known})

    def clear(self) -> None:
        """Remove all entries from the hook.

        Raises:
            NotSupported: The hook cannot be cleared.
        """
        if not isinstance(self.hook, IndexHook):
            raise NotSupported(f"the hook {self.name!r} cannot be cleared. Use reconcile().")
        self.hook.clear()

    # Strict

    def check(self, user: str, prepared: Prepared) -> None:
        """Apply a transaction that is not stored yet; the caller holds the user's lock.

        The keys of its entries are stored first. If the transaction is then not stored, the next delivery restores
        these entries in the hook.

        Raises:
            HookError: The hook failed, so the transaction must not be stored.
        """
        places = touched(map(parse_record, prepared.commit.records))
        listed = {*self._engine.kinds(user), *prepared.documents}
        end = newest(self._engine, user)

        def read(name: str) -> Document:
            return prepared.documents.get(name) or self._engine.document(user, name)

        changes = [entry_now(user, end, place, listed, read) for place in places.values()]
        if not changes:  # a new cursor would let the next delivery reset the hook
            return
        self.cursors.add_keys(user, {*places})
        try:
            self._apply(changes)
        except Exception as error:
            raise HookError(
                f"the hook {self.name!r} failed ({type(error).__name__}). Nothing was changed."
            ) from error

    # Search

    def search(self, query: str, user: str, limit: int, rules: Rules) -> list[Found]:
        """Return the entries that the hook finds, that are unchanged in the memory, and that hold now, best first.

        Raises:
            NotSupported: The hook cannot search.
        """
        if not isinstance(self.hook, SearchHook):
            raise NotSupported(f"the hook {self.name!r} cannot search. Use recall().")
        asked = limit
        while True:
            hits = self.hook.search(query, user=user, limit=asked) or []  # a hook may return None
            found = self._current(user, hits, rules)
            if len(found) >= limit or len(hits) < asked or asked >= _MOST_ASKED:
                return sorted(found, key=lambda each: -each.score)[:limit]
            asked = min(2 * asked, _MOST_ASKED)  # hits that are left out may displace others

    def _current(
        self, user: str, hits: Sequence[tuple[str, str, float]], rules: Rules
    ) -> list[Found]:
        if not hits:  # so that the memory is not read
            return []
        engine = self._engine
        keys = {key for key, _, _ in hits}
        now = entries_now(engine, user, newest(engine, user), keys)
        at = engine.now()
        is_valid = FACTS.current(engine.readable(user, FACTS.name), rules, at)
        until = engine.deadlines(user).until_moment

        def holds(change: Change) -> bool:
            entry = change.after or {}
            kind, _, name = change.key.partition("/")
            if kind == FACTS.name:
                return is_valid is None or is_valid(name, entry)
            bound = ITEMS.within(change.key.rpartition("/")[0], until)
            return bound.is_unexpired(change.key, entry, at)

        return [
            Found(user, key, now[key].text, score)
            for key, digest, score in hits
            if key in now and now[key].digest == digest and holds(now[key])
        ]
