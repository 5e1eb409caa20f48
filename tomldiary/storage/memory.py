"""Documents and history in the memory of this process: for tests and temporary data."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

from tomldiary.errors import HandEditConflict
from tomldiary.history.record import next_sequence
from tomldiary.identifiers.user_ids import checked_user
from tomldiary.runtime.sources import redact_hidden
from tomldiary.storage.async_methods import AsyncVerbs
from tomldiary.storage.locks import LOCK_TIMEOUT, UserLocks
from tomldiary.storage.protocol import Commit, Durability, Rewrite, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


class MemoryBackend(AsyncVerbs):
    """Keeps all data in dictionaries until the process ends. Thread-safe."""

    is_atomic = True
    is_quick = True
    is_shared = False
    durability: Durability = "none"

    def __init__(self) -> None:
        self._documents: dict[str, dict[str, Stored]] = {}
        self._records: dict[str, list[str]] = {}
        self._epochs: dict[str, int] = {}
        self._erased: dict[str, int] = {}
        self._hidden: dict[str, dict[str, str]] = {}
        self._locks = UserLocks(None)
        self._tokens = itertools.count(1)

    def __repr__(self) -> str:
        return "MemoryBackend()"

    def lock(self, user: str, timeout: float) -> AbstractContextManager[None]:
        """Exclude other writers in this process."""
        return self._locks.hold(checked_user(user), timeout)

    def token(self, user: str, kind: str) -> int | None:
        """Return the version, a number that is never reused."""
        stored = self._documents.get(user, {}).get(kind)
        return stored.token if stored is not None else None

    def read(self, user: str, kind: str) -> Stored | None:
        """Return a document, or None."""
        return self._documents.get(user, {}).get(kind)

    def kinds(self, user: str) -> list[str]:
        """Return the names of the user's documents."""
        return sorted(self._documents.get(user, {}))

    def commit(self, user: str, commit: Commit) -> dict[str, int]:
        """Store a transaction; the caller holds the user's lock."""
        mine = dict(self._documents.get(user, {}))
        tokens: dict[str, int] = {}
        for kind, text in commit.texts.items():
            if self.token(user, kind) != commit.expected.get(kind):
                raise HandEditConflict.changed(self.place(user, kind))
            tokens[kind] = next(self._tokens)
            mine[kind] = Stored(text, tokens[kind])
        self._records.setdefault(user, []).extend(commit.records)
        self._documents[user] = mine
        return tokens

    def last_record(self, user: str) -> str | None:
        """Return the newest history record."""
        records = self._records.get(user)
        return records[-1] if records else None

    def records(self, user: str) -> Iterator[str]:
        """Yield all records, newest first."""
        yield from reversed(list(self._records.get(user, [])))

    def users(self) -> list[str]:
        """Return all user ids that have a document."""
        return sorted(user for user, documents in list(self._documents.items()) if documents)

    def erased_users(self) -> list[str]:
        """Return the ids of users with a fencing token above 0 and without a document, sorted."""
        return sorted(user for user in list(self._epochs) if not self._documents.get(user))

    def erase(self, user: str, kind: str) -> None:
        """Remove a document if it exists; the caller holds the user's lock."""
        mine = dict(self._documents.get(user, {}))
        mine.pop(kind, None)
        self._documents[user] = mine

    def epoch(self, user: str) -> int:
        """Return the fencing token: the number of erasures of the user's data."""
        return self._epochs.get(user, 0)

    def erased(self, user: str) -> int:
        """Return the fencing token that the last complete erasure set; 0 if there was none."""
        return self._erased.get(user, 0)

    # Hidden documents

    def hidden(self, user: str, kind: str) -> str:
        """Return the text of a hidden document; "" if there is none."""
        return self._hidden.get(user, {}).get(kind, "")

    def change_hidden(
        self, user: str, kind: str, change: Callable[[str, int], str], *, is_locked: bool = False
    ) -> None:
        """Replace a hidden document; "" removes it."""
        with nullcontext() if is_locked else self.lock(user, LOCK_TIMEOUT):
            fresh = change(self.hidden(user, kind), self.epoch(user))
            mine = dict(self._hidden.get(user, {}))
            if fresh:
                mine[kind] = fresh
            else:
                mine.pop(kind, None)
            self._hidden[user] = mine

    def holders(self, kind: str) -> list[str]:
        """Return the ids of the users with a hidden document, sorted."""
        return sorted(user for user, hidden in list(self._hidden.items()) if kind in hidden)

    # Removal

    def rewrite(self, user: str, rewrite: Rewrite) -> dict[str, str]:
        """Store a redaction and the new fencing token; the caller holds the user's lock."""
        self._epochs[user] = rewrite.epoch
        self._erased[user] = rewrite.erased or self.erased(user)
        for kind in self._hidden.get(user, {}):
            redact = partial(redact_hidden, kind, user, rewrite.selection)
            self.change_hidden(user, kind, redact, is_locked=True)
        if rewrite.removes_user:
            self._records.pop(user, None)
            self._documents.pop(user, None)
        elif rewrite.history is not None:
            mine = dict(self._documents.get(user, {}))
            for kind, document in rewrite.documents.items():
                mine[kind] = Stored(document.text, next(self._tokens))
                if document.is_removed:
                    del mine[kind]
            self._documents[user] = mine
            records = self._records.get(user, [])
            kept = [rewrite.history[text] for text in records if text in rewrite.history]
            self._records[user] = [*kept, *rewrite.added]
        return {
            f"{kind}.toml": sha256(found.text.encode()).hexdigest()
            for kind, found in self._documents.get(user, {}).items()
        }

    def prune(self, user: str, seq: int, snapshot: str) -> None:
        """Replace all history up to transaction `seq` by a snapshot; the caller holds the lock."""
        kept = [text for text in self._records.get(user, []) if next_sequence(text) - 1 > seq]
        self._records[user] = [snapshot, *kept]

    def place(self, user: str, kind: str) -> str:
        """Return the document's location for messages."""
        return f"memory:{user}/{kind}.toml"
