"""Copies all users from one backend to another, with documents, history and fencing tokens."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from os.path import samestat
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, DiaryError
from tomldiary.history.record import OWN_LINES
from tomldiary.runtime.in_order import in_order
from tomldiary.storage.locks import LOCK_TIMEOUT, repeated
from tomldiary.storage.protocol import (
    Backend,
    Commit,
    ListsErased,
    LocalFolder,
    OptimisticWrites,
    Rewrite,
    TellsErasure,
)
from tomldiary.storage.shared.database import DatabaseLost

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


_SHOWN = 20  # users
_LONGEST = 60  # characters of a user id in a message


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of copying one user."""

    user: str
    documents: int
    records: int
    is_new: bool
    """False if an earlier run had copied the same state."""


def copy_users(source: Backend, target: Backend) -> Iterator[Copied]:
    """Copy all users; yield the result of each one after its copy was read back and compared.

    If a user cannot be copied, the others are, and the error is raised at the end. If a database cannot be reached,
    the copy ends. Repeat an interrupted run: users that the target already has in the same state are not changed.
    Turns in a writer's queue are not copied, so close the writers first. Of an erased user, only the fencing token is
    copied. A folder does not store the ids of erased users, so their tokens cannot be copied from a folder; those whom the
    target still has are found by their ids there.

    Args:
        source: The backend to read. Each user is read under the user's lock, and again if another process writes.
        target: The backend to write.

    Raises:
        BackendError: One folder is the other or inside it, or the source has no users, or the target has a different
            state of a user, or did not store the copy correctly, or users were not copied. The yielded users are
            complete, except those who the error says disappeared from the source.
        DocumentError: A document of the source is not UTF-8.
        RevisionConflict: Other processes changed a user of a database all the time; close them.
    """
    folders = [each for each in (source, target) if isinstance(each, LocalFolder)]
    if any(_is_within(one, other) for one, other in permutations(folders, 2)):
        raise BackendError(
            f"{folders[1].base_path}: is the source folder, or one is inside the other. Copy to another place."
        )
    users = source.users()
    # `users` leaves out folders that cannot be read, and those without a document.
    folders_left = set(source.known_users() if isinstance(source, LocalFolder) else ()) - {*users}
    if isinstance(source, ListsErased):
        erased = source.erased_users()
    else:
        others = {*target.users()} - {*users} - folders_left
        erased = [user for user in sorted(others) if source.epoch(user)]
    failures: dict[str, DiaryError] = {}

    def copied(user: str) -> Copied | None:
        try:
            if user in folders_left and not source.kinds(user):
                return None
            with source.lock(user, LOCK_TIMEOUT), target.lock(user, LOCK_TIMEOUT):
                return repeated(partial(_copy, source, target, user), LOCK_TIMEOUT)
        except DiaryError as error:
            if isinstance(error.__cause__, DatabaseLost):
                raise  # each other user would wait for the database, too
            failures[user] = error
            return None

    is_empty = True
    for each in in_order(copied, (*users, *sorted(folders_left), *erased), "tomldiary-copy"):
        if each is not None:
            is_empty = False
            yield each
    # A user without documents is forgotten, or has history, unless the files are gone.
    lost = {*users} - {*source.users()}
    lost = {user for user in lost if not source.epoch(user) and not any(source.records(user))}
    if lost:
        raise BackendError(
            f"{source!r}: the memory of {_listed(lost)} disappeared during the copy, so copies may be missing or"
            " incomplete. If the folder was removed, renamed or unmounted, restore it, and copy to another place."
        )
    if failures:
        raise _failure(failures)
    if is_empty:
        raise BackendError(
            f"{source!r}: has no users to copy. Check the address; if it is a folder, mount its disk."
        )


def _is_within(one: LocalFolder, other: LocalFolder) -> bool:
    """Return whether a folder is another one or inside it, whatever their paths: a bind mount is a second one."""
    place = one.base_path.resolve()
    with suppress(OSError):  # the other one is missing, or a part of the path is
        root = other.files.stat(other.base_path)
        for each in (*reversed(place.parents), place):
            if samestat(one.files.stat(each), root):
                return True
    return False


def _failure(failures: dict[str, DiaryError]) -> DiaryError:
    """Return one error for all users that were not copied."""
    users = sorted(failures)
    first = failures[users[0]]
    if len(users) == 1 and users[0] in str(first):  # it names the user or a file of the user
        return first
    were = "1 user was" if len(users) == 1 else f"{len(users)} users were"
    return BackendError(f"{were} not copied: {_listed(failures)}. {first}")


def _listed(users: Collection[str]) -> str:
    names = ", ".join(map(_named, sorted(users)[:_SHOWN]))
    return names + (", …" if len(users) > _SHOWN else "")


def _named(user: str) -> str:
    return repr(user) if len(user) <= _LONGEST else f"{user[:_LONGEST]!r}…"


def _copy(source: Backend, target: Backend, user: str) -> Copied:
    texts, records = _state(source, user)
    epoch = source.epoch(user)
    erased = source.erased(user) if isinstance(source, TellsErasure) else 0
    if isinstance(source, OptimisticWrites):  # its lock excludes no other process
        source.verify(user)
    known = _state(target, user)
    is_behind = not any(known) and epoch > target.epoch(user)
    # A folder publishes documents one by one after the history, so a copy may have ended between them.
    history = [*map(_compared, records)]
    is_part = [*map(_compared, known[1])] == history and known[0].items() < texts.items()
    is_new = is_behind or is_part or (not any(known) and any((texts, records)))
    copied = Copied(user, len(texts), len(records), is_new=is_new)
    if is_behind:
        target.rewrite(user, Rewrite({}, epoch, erased_before=erased))
    if is_new and any((texts, records)):
        contents = {kind: text.encode() for kind, text in texts.items() if kind not in known[0]}
        fresh = [] if is_part else records
        if fresh and isinstance(target, LocalFolder):
            # A folder syncs documents without a record. Recovery could restore no hand edit, and only the last changes.
            target.commit(user, Commit({}, {}, fresh))
            fresh = []
        target.commit(user, Commit(contents, dict.fromkeys(contents), fresh))
        known = _state(target, user)
    if known[0] != texts or [*map(_compared, known[1])] != history:
        raise BackendError(
            f"{target!r}: the memory of {user!r} differs from the one in {source!r}. Remove it from the"
            " target, or copy to another place."
        )
    return copied


def _state(backend: Backend, user: str) -> tuple[dict[str, str], list[str]]:
    """Return the documents by name, and the history records, oldest first."""
    texts: dict[str, str] = {}
    for kind in backend.kinds(user):
        stored = backend.read(user, kind)
        if stored is not None and stored.problem is not None:
            raise stored.problem
        if stored is not None:
            texts[kind] = stored.text
    return texts, [*backend.records(user)][::-1]


def _compared(record: str) -> str:
    return OWN_LINES.sub("", record)
