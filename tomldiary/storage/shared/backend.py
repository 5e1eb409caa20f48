"""Maps the calls of the core onto the atomic step of a shared database.

Writers of one process wait for each other. Writers of different processes do not: a step is applied only if the
user's revision is still the one that the transaction began with. Otherwise the engine runs the change again on
fresh state. So a transaction sees one state of the user, and no update is lost.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  # pyright: ignore[reportUnusedImport] - see below
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, ClassVar, TypeVar

from tomldiary.errors import BackendError, Forgotten, LockTimeout, RevisionConflict
from tomldiary.history.record import next_sequence
from tomldiary.logging import get_logger
from tomldiary.runtime.lru import RecentBySize
from tomldiary.runtime.sources import redact_hidden
from tomldiary.storage.async_methods import AsyncVerbs
from tomldiary.storage.locks import repeated
from tomldiary.storage.protocol import Stored
from tomldiary.storage.shared.database import (
    ERASED,
    WHOLE_HISTORY,
    DatabaseLost,
    Head,
    Step,
    is_hidden,
    unknown_outcome,
)
from tomldiary.storage.shared.transactions import Transactions, check_user

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tomldiary.storage.protocol import Commit, Durability, Rewrite, Token
    from tomldiary.storage.shared.database import Database

R = TypeVar("R")
# `socket.getaddrinfo` needs `encodings.idna`. If a thread imported it during a fork, the child could not connect.
_logger = get_logger(__name__)
_CACHED = 16_000_000  # characters of hidden documents in memory
_PAGE = 50  # history records read at a time, at most
_LARGE_PAGE = 800  # the same in a transaction, which may index the whole history
_FEW_USERS = 2  # are read one after the other, because threads take time to start
_FEW = 4  # history records to ask for first, because each costs a read in Firestore


class SharedBackend(AsyncVerbs):
    """Stores all users in a shared database, for any number of threads, processes and machines.

    Args:
        database: The database.
        timeout: The time in seconds after which a call fails if the database cannot be reached.
        watch: The time in seconds after the database's last answer during which reads may use cached states, unless
            the database reports a change. With 0, each read queries the version.
    """

    options: ClassVar[Mapping[str, type]] = {}
    """The arguments that the query of an address may set, with the types of their values."""
    is_atomic = True
    is_shared = True
    is_quick = False
    queue_part = 8 * 1024
    """The size in characters at which further waiting turns of a user go to another document."""

    def __init__(self, database: Database, *, timeout: float = 10.0, watch: float = 0.0) -> None:
        self.transactions = Transactions(database, timeout, watch)
        self._risk: str | None = None
        self._hidden: RecentBySize[tuple[str, str], tuple[str, Token]] = RecentBySize(
            _CACHED, lambda found: 100 + len(found[0])
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.database)!r})"

    @property
    def database(self) -> Database:
        """The database."""
        return self.transactions.database

    @property
    def risk(self) -> str | None:
        """How the server may lose a write, with the remedy; "" if writes survive a power cut, None if it did not answer.

        The server is asked until it answers. A risk is logged as a warning.
        """
        if self._risk is None:
            with suppress(DatabaseLost, BackendError):  # other calls raise the error
                self._risk = self.database.risk()
                if self._risk:
                    _logger.warning("%s: %s", self.database, self._risk)
        return self._risk

    @property
    def durability(self) -> Durability:
        """The failures that a returned write survives."""
        return "full" if self.risk == "" else "process"

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        if self.transactions.watch is not None:
            self.transactions.watch.close()
        self.database.close()

    # Locks

    def lock(self, user: str, timeout: float) -> AbstractContextManager[None]:
        """Exclude other writers of `user` in this process; the commit excludes those of other processes."""
        return self.transactions.lock(user, timeout)

    def attempt(self, user: str, timeout: float) -> AbstractContextManager[None]:
        """Hold the user's lock for one attempt of a transaction.

        Raises:
            RevisionConflict: The stored state is a different one. Nothing was stored; try again. It is raised at the
                end, and replaces an error of the block.
        """
        return self.transactions.attempt(user, timeout)

    def reading(self) -> AbstractContextManager[None]:
        """Give this thread one state of each user for the block: the state at the user's first read."""
        return self.transactions.reading()

    def of_each(self, users: Sequence[str], work: Callable[[str], R]) -> Iterator[R]:
        """Yield the result of `work` for each user, in order; it is called for eight users at once, in threads.

        In a block of `reading`, the calls read the states of this block.
        """
        if len(users) <= _FEW_USERS:
            return map(work, users)
        return self.transactions.of_each(users, work)

    def verify(self, user: str) -> None:
        """Check that what the caller's transaction has read is one state, the stored one; the caller holds the lock.

        Raises:
            RevisionConflict: Another process changed the user's memory since the transaction began.
        """
        self.transactions.verify(user)

    # Reading

    def token(self, user: str, kind: str) -> Token | None:
        """Return the version of a document, or None."""
        return self.transactions.head(user).versions.get(kind)

    def tokens(self, user: str, kinds: Sequence[str]) -> list[Token | None]:
        """Return the versions of several documents in one request."""
        versions = self.transactions.head(user).versions
        return [versions.get(kind) for kind in kinds]

    def versions(self, user: str) -> dict[str, Token]:
        """Return the versions of all documents, hidden ones included."""
        return self.transactions.head(user).versions

    def read(self, user: str, kind: str) -> Stored | None:
        """Return a document, or None."""
        check_user(user)
        hold = self.transactions.hold_of_caller(user)
        if hold is not None and hold.group is not None and kind in hold.group.texts:
            return Stored(hold.group.texts[kind], hold.group.head.versions[kind])
        seen = self.transactions.seen(user) if hold is None else None
        found = self.transactions.text(user, kind, seen)
        begun = seen if hold is None else hold.head
        if begun is not None and begun.versions.get(kind) != (found and found[1]):
            if hold is None:
                self.transactions.refresh(user)  # its newest record may be older than the text
            else:
                self.transactions.verify(user)  # what another process removed is no hand edit
        return Stored(*found) if found is not None else None

    def kinds(self, user: str) -> list[str]:
        """Return the names of the user's documents."""
        return sorted(kind for kind in self.transactions.head(user).versions if not is_hidden(kind))

    def listing(self, user: str, folder: str) -> list[str]:
        """Return the names of the user's documents below a folder such as `items/`."""
        return [kind for kind in self.kinds(user) if kind.startswith(folder)]

    def last_record(self, user: str) -> str | None:
        """Return the newest history record."""
        return self.transactions.head(user).record

    def records(self, user: str) -> Iterator[str]:
        """Yield all records, newest first, read in pages.

        In an attempt, the pending ones of its group are included. In a block of `reading`, its state has the newest.
        """
        check_user(user)
        hold = self.transactions.hold_of_caller(user)
        head = hold.head if hold is not None else self.transactions.seen(user)
        if hold is not None and hold.group is not None:
            yield from [text for _, text in reversed(hold.group.records)]
            head = hold.group.base
        below, size, most = WHOLE_HISTORY, 1, _PAGE  # most callers need only the newest
        if head is not None and head.record is not None:
            yield head.record
            below = next_sequence(head.record) - 1
            size, most = _FEW, _PAGE if hold is None else _LARGE_PAGE
        while below > 1:  # the first record has the number 1
            page = self.transactions.asked(partial(self.database.records, user, below, size))
            yield from (text for _, text in page)
            if len(page) < size:
                return
            below, size = page[-1][0], min(4 * size, most)  # each record costs a read in Firestore

    def users(self) -> list[str]:
        """Return all user ids that have a document, sorted."""
        return sorted(set(self.transactions.asked(lambda: list(self.database.users()))))

    def erased_users(self) -> list[str]:
        """Return the ids of users with a fencing token above 0 and without a document, sorted."""
        return sorted(set(self.transactions.asked(lambda: list(self.database.erased()))))

    def epoch(self, user: str) -> int:
        """Return the fencing token: the number of erasures of the user's data."""
        return self.transactions.head(user).epoch

    def erased(self, user: str) -> int:
        """Return the fencing token that the last complete erasure set; 0 if there was none."""
        return int(self.hidden(user, ERASED) or 0)

    def place(self, user: str, kind: str) -> str:
        """Return the document's location for messages."""
        return f"{self.database}/{user}/{kind}.toml"

    # Writing

    def commit(self, user: str, commit: Commit) -> dict[str, Token]:
        """Store a transaction as one step; the caller holds the user's lock.

        Raises:
            RevisionConflict: Another process changed the user's memory since the transaction began. Hidden documents
                that the transaction has not read, such as a queue, do not count.
        """
        head = self.transactions.head(user)
        records = [(next_sequence(text) - 1, text) for text in commit.records]
        is_fresh = all(head.versions.get(kind) == token for kind, token in commit.expected.items())
        if head.record is not None and records:
            is_fresh = is_fresh and records[0][0] == next_sequence(head.record)
        if not is_fresh:  # a document was read after the head, and another process wrote in between
            raise self.transactions.conflict(user)
        step, hold = Step(commit.texts, records=records), self.transactions.hold_of_caller(user)
        hidden, deadline = hold.hidden if hold else (), time.monotonic() + self.transactions.timeout
        while True:
            try:
                return self.transactions.commit(user, head, step)
            except RevisionConflict:
                before, head = head, self.transactions.head(user)
                if time.monotonic() > deadline or head.shown(hidden) != before.shown(hidden):
                    raise

    def save_edit(
        self,
        user: str,
        kind: str,
        text: str,
        *,
        version: Token | None,
        fencing_token: int | None = None,
    ) -> None:
        """Store a hand edit; the engine merges it with the writes since its base version.

        Args:
            user: The user id.
            kind: The document's name.
            text: The edited text. Its `_meta.seq` names the version that was edited.
            version: The stored version that it replaces; a hand edit in that version must already be in history.
            fencing_token: The user's fencing token when the text was read; with None it is not compared.

        Raises:
            Forgotten: Data of the user was erased since.
            RevisionConflict: The document has another version, or another process was faster.
        """
        with self._joined(user):
            head = self.transactions.head(user)
            if fencing_token not in (None, head.epoch):
                raise Forgotten(
                    f"{self.place(user, kind)}: data of this user was forgotten since the edit began, and the"
                    " edit may contain it. Nothing was stored. Edit the current text."
                )
            if head.versions.get(kind) != version:
                raise self.transactions.conflict(user)
            self.transactions.apply(user, head, Step({kind: text}))

    # Hidden documents

    def hidden(self, user: str, kind: str) -> str:
        """Return the text of a hidden document; "" if there is none."""
        return "".join(self.hidden_parts(user, kind).values())

    def hidden_parts(self, user: str, kind: str) -> dict[str, str]:
        """Return the parts of a hidden document in order, by names such as `.queue`, `.queue/2`; all are of one state.

        Raises:
            RevisionConflict: Another process has changed them since the caller's transaction began, or without one, at
                each attempt during the timeout.
        """
        if self.transactions.hold_of_caller(user) is None:
            return repeated(partial(self._parts, user, kind), self.transactions.timeout)
        return self._parts(user, kind)

    def _parts(self, user: str, kind: str) -> dict[str, str]:
        hold, versions = self.transactions.hold_of_caller(user), self.versions(user)
        names = _parts_of(kind, versions)
        if hold is not None:
            hold.hidden.update((kind, *names))
        found = {name: self._hidden.get((user, name)) or ("", None) for name in names}
        missing = [name for name in names if found[name][1] != versions[name]]
        if missing:
            found |= self.transactions.asked(partial(self.database.read, user, missing))
        for name in names:
            self._hidden.keep((user, name), found[name])
        if all(found[name][1] == versions[name] for name in missing):
            return {name: found[name][0] for name in names}
        if hold is not None:
            raise self.transactions.conflict(user)
        self.transactions.refresh(user)
        raise RevisionConflict.of(user)

    def change_hidden(
        self,
        user: str,
        kind: str,
        change: Callable[[str, int], str],
        *,
        is_locked: bool = False,  # noqa: ARG002 - `Hold` has this information
    ) -> None:
        """Replace a hidden document in one step; "" removes it.

        Args:
            user: The user id.
            kind: The document's name, which begins with a dot.
            change: Called with the text and the fencing token of one state; returns the new text. It is called
                again if another process was faster.
            is_locked: Whether the caller holds the user's lock.

        Raises:
            RevisionConflict: Another process was faster at each attempt during the timeout.
        """
        self.change_parts(
            user, kind, lambda parts, epoch: {kind: change("".join(parts.values()), epoch)}
        )

    def change_parts(
        self, user: str, kind: str, change: Callable[[Mapping[str, str], int], Mapping[str, str]]
    ) -> None:
        """Change the parts of a hidden document in one step, like `change_hidden`; unchanged parts are not sent.

        `change` gets and returns the parts by their names, in order; the first one has the name of the document.

        Raises:
            BackendError: An attempt got no answer, and no later one succeeded; it is unknown whether the change is stored.
        """
        with self._joined(user) as is_first:
            hold = self.transactions.hold_of_caller(user)
            assert hold is not None  # noqa: S101 - for the type checker
            # A caller that already held the lock may have read other parts of the state.
            hold.may_assume, hold.lost = is_first, None

            def attempt() -> None:
                parts = self.hidden_parts(user, kind)
                head = self.transactions.head(user)
                fresh = change(parts, head.epoch)
                changed = {
                    name: text for name, text in fresh.items() if text and text != parts.get(name)
                }
                removed = [name for name in parts if not fresh.get(name)]
                if changed or removed:
                    versions = self.transactions.apply(user, head, Step(changed, removed=removed))
                    for name, token in versions.items():
                        self._hidden.keep((user, name), (changed[name], token))
                elif hold.is_assumed:
                    hold.head, hold.may_assume = None, False  # the stored text may be different
                    attempt()

            try:
                repeated(attempt, self.transactions.timeout)
            except (BackendError, RevisionConflict) as error:
                if hold.lost is None:
                    raise
                # Not from `hold.lost`: after a conflict, the database can be reached.
                raise unknown_outcome(self.database, hold.lost) from error

    def holders(self, kind: str) -> list[str]:
        """Return the ids of the users with a hidden document, sorted."""
        return sorted(set(self.transactions.asked(lambda: list(self.database.holders(kind)))))

    # Removal

    def erase(self, user: str, kind: str) -> None:
        """Remove a document if it exists; the caller holds the user's lock."""
        head = self.transactions.head(user)
        if kind in head.versions:
            self.transactions.apply(user, head, Step(removed=[kind]))

    @contextmanager
    def _joined(self, user: str) -> Generator[bool]:
        """Hold the user's lock, unless this thread holds it; yield whether this begins a transaction."""
        hold = self.transactions.hold_of_caller(user)
        if hold is not None:
            assert not hold.is_attempt  # noqa: S101 - its step would be applied before those of its group
            yield False
            return
        seconds = self.transactions.timeout
        with ExitStack() as stack:
            try:
                stack.enter_context(self.transactions.lock(user, seconds))
            except LockTimeout as error:
                # The option `lock_timeout` of a diary does not apply here.
                raise LockTimeout(
                    f"{self.database}: another call of this process used the memory of {user!r} for {seconds:g} s."
                    " It may be a transaction, or wait for the server. Try again."
                ) from error
            yield True

    def rewrite(self, user: str, rewrite: Rewrite) -> dict[str, str]:
        """Store a redaction and the new fencing token as one step; the caller holds the user's lock.

        Raises:
            RevisionConflict: Another process changed the user's memory since the redaction was computed.
        """
        head, shown = self.transactions.head(user), self.kinds(user)
        erasures = rewrite.epoch - head.epoch
        if rewrite.removes_user:
            step = Step(removed=shown, dropped=WHOLE_HISTORY, erasures=erasures)
        elif rewrite.history is None:
            step = Step(erasures=erasures)
        else:
            texts = [*self.records(user)][::-1]
            kept = [rewrite.history[text] for text in texts if text in rewrite.history]
            contents = {
                kind: each.text for kind, each in rewrite.documents.items() if not each.is_removed
            }
            removed = [kind for kind, each in rewrite.documents.items() if each.is_removed]
            records = [(next_sequence(text) - 1, text) for text in (*kept, *rewrite.added)]
            step = Step(contents, removed, records, WHOLE_HISTORY, erasures)
        step = self._with_hidden(user, head, rewrite, step)
        self.transactions.apply(user, head, step)
        found = self.transactions.asked(lambda: self.database.read(user, shown))
        return {
            f"{kind}.toml": sha256(found[kind][0].encode()).hexdigest() for kind in sorted(found)
        }

    def _with_hidden(self, user: str, head: Head, rewrite: Rewrite, step: Step) -> Step:
        """Add the redaction of the hidden documents to a step."""
        names = [kind for kind in head.versions if is_hidden(kind) and kind != ERASED]
        contents, removed = dict(step.contents), [*step.removed]
        if rewrite.erased:
            contents[ERASED] = str(rewrite.erased)
        found = self.transactions.asked(lambda: self.database.read(user, names))
        for kind in sorted({name.partition("/")[0] for name in names}):
            parts = _parts_of(kind, found)
            text = "".join(found[name][0] for name in parts)
            fresh = redact_hidden(kind, user, rewrite.selection, text, rewrite.epoch)
            if fresh == text:
                continue
            if fresh:
                contents[kind] = fresh
            removed += [name for name in parts if name not in contents]
        return replace(step, contents=contents, removed=removed)

    def prune(self, user: str, seq: int, snapshot: str) -> None:
        """Replace all history up to transaction `seq` by a snapshot; the caller holds the lock."""
        self.transactions.apply(
            user, self.transactions.head(user), Step(records=[(seq, snapshot)], dropped=seq)
        )


def _parts_of(kind: str, names: Iterable[str]) -> list[str]:
    """Return the names of the parts of a hidden document, in order."""
    found = [name for name in names if name.partition("/")[0] == kind]
    return sorted(found, key=lambda name: (len(name), name))
