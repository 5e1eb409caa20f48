"""Several changes of one user stored with one commit, each of them a transaction of its own.

A commit waits for the disk twice, whatever is in it. Changes that wait for the same user's lock are
therefore applied one after the other in memory and stored at once: a record for each, one append to
history, and each document as the last of them leaves it.
"""

from __future__ import annotations

import sys
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tomldiary.engine.commit import Prepared, prepare, prepare_saves
from tomldiary.engine.engine import ATTEMPTS
from tomldiary.engine.transaction import Transaction
from tomldiary.errors import BackendError, Conflict
from tomldiary.hand_edits.detect import Known
from tomldiary.history.record import next_sequence
from tomldiary.storage.protocol import Commit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tomldiary.engine.engine import Engine
    from tomldiary.engine.transaction import Source
    from tomldiary.storage.protocol import Token
    from tomldiary.toml.document import Document

__all__ = ["Work", "write_together"]


@dataclass(slots=True)
class Work:
    """A change that is to be a transaction of its own, and what came of it."""

    change: Callable[[Transaction], object]
    """As in `Engine.write`."""
    source: Source
    """Without an operation id."""
    error: Exception | None = None
    """Why it was not stored."""


def write_together(engine: Engine, user: str, works: Sequence[Work]) -> None:
    """Apply changes in their order, each a transaction of its own that sees what those before it did.

    Each has its own fate, told in `Work.error`: one that raises is left out, alone. If the storage fails,
    nothing of any of them was changed, or what the error says, and each gets that error; so it is if
    another writer keeps the lock.

    Args:
        engine: Where.
        user: Whose memory.
        works: The changes; none is made within an open transaction.
    """
    left = list(works)
    if len(works) > 1 and engine.backend.is_atomic:
        try:
            with engine.backend.lock(user, engine.lock_timeout):
                while count := _stored(engine, user, left):
                    del left[:count]
        except Exception as error:  # noqa: BLE001 - whoever asked for one of them raises it
            _fail(left, error)
            return
    for work in left:
        work.error = None
        try:
            engine.write(user, work.change, work.source)
        except Exception as error:  # noqa: BLE001 - see above
            work.error = error


def _stored(engine: Engine, user: str, works: Sequence[Work]) -> int:
    """Store the first of these at once; return how many: 0 if that cannot be done just now, or there are none."""
    for attempt in range(ATTEMPTS):
        group, done, count = _Group(engine, user), list[Work](), 0
        for work in works:
            if group.is_full:
                break
            count += 1
            work.error = None
            try:
                if not group.takes(work):
                    return 0
            except Exception as error:  # noqa: BLE001 - see above
                work.error = error
            else:
                done.append(work)
        if not group.records:
            return count
        try:
            engine.store(user, group.prepared())
        except Conflict as error:
            if attempt < ATTEMPTS - 1:
                continue
            _fail(done, error)
        except BackendError as error:
            engine.look_again(user, group.known)
            _fail(done, error)
        return count
    raise AssertionError  # the loop returns


def _any_number(_first: int) -> int:
    return sys.maxsize


def _fail(works: Sequence[Work], error: Exception) -> None:
    """Give each an error of its own: several threads raise it."""
    for work in works:
        work.error = copy(error)
        work.error.__cause__ = error


@dataclass(slots=True)
class _Group:
    """Transactions that were applied in memory, on what is stored now."""

    engine: Engine
    user: str
    known: dict[str, Known] = field(default_factory=dict[str, Known])
    """The documents as the last of them leaves them."""
    records: list[str] = field(default_factory=list[str])
    contents: dict[str, bytes] = field(default_factory=dict[str, bytes])
    expected: dict[str, Token | None] = field(default_factory=dict[str, Any])
    first: int = 0
    room: int = 1
    """How many transactions the backend takes at once."""
    replaces_save: bool = False

    @property
    def is_full(self) -> bool:
        """Whether the backend takes no more with these."""
        return len(self.records) >= self.room

    def takes(self, work: Work) -> bool:
        """Apply a change; False if something has to be stored before it can be.

        Raises:
            Exception: Whatever the change raised; it has no effect.
        """
        backend = self.engine.backend
        transaction = Transaction(self.engine, self.user, self.known)
        work.change(transaction)
        changed = transaction.changed()
        if not changed:
            return True
        begun = {kind: both for kind, both in changed.items() if kind not in self.known}
        if any(base is not None and base.problem for base, _ in begun.values()):
            return False
        try:
            saves = prepare_saves(backend, self.user, begun, self.engine.logged, patience=0.0)
        except Conflict:
            return False  # somebody is just saving: whoever writes alone waits for them
        if saves is not None:
            return False
        if not self.first:
            self.first = next_sequence(backend.last_record(self.user))
            self.room = getattr(backend, "room", _any_number)(self.first)
        prepared = prepare(
            backend,
            self.user,
            changed,
            work.source,
            self.engine.schema_name,
            seq=self.first + len(self.records),
            group=self.first if self.records else 0,
        )
        for kind, document in prepared.documents.items():
            base = changed[kind][0]
            token = base.token if base is not None else None
            self.known[kind] = Known(token, document, prepared.results[kind], is_logged=True)
        self.records += prepared.commit.records
        self.contents.update(prepared.commit.contents)
        self.expected.update(prepared.commit.expected)
        self.replaces_save |= prepared.commit.replaces_save
        return True

    def prepared(self) -> Prepared:
        """Return all of them as one that is ready to be stored."""
        documents: dict[str, Document] = {kind: each.document for kind, each in self.known.items()}
        results = {kind: each.digest for kind, each in self.known.items()}
        return Prepared(
            self.first + len(self.records) - 1,
            Commit(
                self.contents,
                self.expected,
                self.records,
                self.replaces_save,
                fingerprints=results,
            ),
            documents,
            results,
            {},
        )
