"""Reads the changes of one user's history after a position, and the user's current entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from tomldiary.entries.kinds import entry_key, entry_kind, home_of
from tomldiary.errors import InvalidTOML
from tomldiary.history.record import SNAPSHOT, Record, envelope_of
from tomldiary.history.timeline import Timeline
from tomldiary.hooks.change import Change, Position
from tomldiary.past.queries import table_changes
from tomldiary.storage.locks import repeated
from tomldiary.toml.values import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from tomldiary.engine.engine import Engine
    from tomldiary.toml.document import Document, Path

R = TypeVar("R")
Touched = dict[str, tuple[str, "Path", Record]]
"""By key of an entry: its document, its path, and the last transaction that changed it."""


def of_one_state(engine: Engine, user: str, read: Callable[[], R]) -> R:
    """Run `read` under the user's lock, again if another process changes the memory meanwhile; return its result.

    Without the lock, history may have a transaction before the documents have it.
    """

    def locked() -> R:
        with engine.backend.lock(user, engine.lock_timeout):
            return read()

    return repeated(locked, engine.lock_timeout)


def newest(engine: Engine, user: str) -> Position:
    """Return the end of a user's history."""
    backend = engine.backend
    with engine.reading():  # one request, as a feed asks for each user
        epoch = engine.epoch_read(user)  # first, so that a later erasure is detected
        return Position(epoch, *envelope_of(backend.last_record(user)))


def records_after(engine: Engine, user: str, position: Position) -> list[Record] | None:
    """Return the transactions after a position, oldest first; None if history does not continue it."""
    if engine.backend.epoch(user) != position.epoch:
        return None
    found: list[Record] = []
    try:
        for record in Timeline(engine.backend, user).records():
            if record.seq <= position.seq:
                is_same = record.time == position.time or record.type == SNAPSHOT
                return found[::-1] if record.seq == position.seq and is_same else None
            if record.type == SNAPSHOT:
                return None
            found.append(record)
    except InvalidTOML:
        return None  # it is unknown what a damaged record changed
    is_whole = not found or found[-1].seq == 1
    return found[::-1] if position.seq == 0 and is_whole else None


def changes_of(user: str, epoch: int, record: Record) -> Iterator[Change]:
    """Yield the logged change of each entry by a transaction."""
    for home, path, before, after in table_changes(record):
        if not entry_kind(home).is_private:
            yield _change(user, epoch, record, home, path, before, after)


def _change(
    user: str,
    epoch: int,
    record: Record,
    home: str,
    path: Path,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> Change:
    said = "" if after is None else entry_kind(home).text(after)
    return Change(
        user, entry_key(path, home), epoch, record.seq, record.time, record.type, record.session,
        record.actor, record.reason, before, after, said,
    )  # fmt: skip


def touched(records: Iterable[Record]) -> Touched:
    """Return the entries that transactions changed, oldest transaction first."""
    return {
        entry_key(path, home): (home, path, record)
        for record in records
        for home, path, _, _ in table_changes(record)
        if not entry_kind(home).is_private
    }


def entry_now(
    user: str,
    end: Position,
    place: tuple[str, Path, Record],
    listed: Iterable[str],
    read: Callable[[str], Document],
) -> Change:
    """Return the current state of an entry, as a change by the last transaction that changed it.

    The state is read from the documents, because a logged change may have only a part of an entry with subtables.

    Args:
        user: The user.
        end: The end of the user's history.
        place: The entry, from `touched`.
        listed: The names of the user's documents.
        read: Returns a document.
    """
    home, path, record = place
    names = [name for name in listed if home_of(name) == home]
    tables = (read(name).table(path) for name in names)
    after = next((table for table in tables if table is not None), None)
    return _change(user, end.epoch, record, home, path, None, _own(after))


def entries_now(
    engine: Engine, user: str, end: Position, keys: Collection[str] | None = None
) -> dict[str, Change]:
    """Return entries of a user by key, without expired ones, as changes of the type "state" by the last transaction.

    Args:
        engine: The engine of the diary.
        user: The user.
        end: The end of the user's history.
        keys: The keys of the entries to return; None is all.
    """
    record = Record(end.seq, "state", [], {}, {}, time=end.time)
    found: dict[str, Change] = {}
    for name in engine.kinds(user):
        kind = entry_kind(name)
        if not kind.is_private:
            document = engine.kept(name, engine.readable_part(user, name))
            for path, entry in kind.tables(document).items():
                home = kind.home(name)
                if keys is None or entry_key(path, home) in keys:
                    change = _change(user, end.epoch, record, home, path, None, _own(entry))
                    # If two parts have the same key, the first part has precedence.
                    found.setdefault(change.key, change)
    return found


def state_now(engine: Engine, user: str) -> tuple[Position, dict[str, Change]]:
    """Return the end of a user's history and the entries at this point, as `entries_now` does."""

    def read() -> tuple[Position, dict[str, Change]]:
        end = newest(engine, user)
        return end, entries_now(engine, user, end)

    return of_one_state(engine, user, read)


def _own(entry: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a deep copy of the fields of an entry, because a hook may change what it gets."""
    return None if entry is None else copied({**entry})


def marker(user: str, end: Position, type_: str) -> Change:
    """Return a change without a key: a "reset", which makes all earlier ones of a user invalid, or a removal."""
    return Change(user, "", end.epoch, end.seq, end.time, type_)
