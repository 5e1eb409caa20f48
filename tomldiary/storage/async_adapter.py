"""Adapts a third-party async backend with six methods to the sync protocol of the core.

All coroutines of the backend run on one private event loop thread. The six methods set these limits:

1. Several documents are saved in sequence, not atomically.
2. A write of another process to the same storage is not detected while a document is written.
3. Only documents with fixed names are stored, as no method lists names.
"""

from __future__ import annotations

import inspect
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from tomldiary.errors import BackendError, CommittedUnpublished, NotSupported
from tomldiary.history.record import Record, next_sequence, render_record
from tomldiary.runtime.async_bridge import is_of_another_loop, run_coroutine
from tomldiary.runtime.lru import RecentBySize
from tomldiary.storage.locks import UserLocks
from tomldiary.storage.protocol import BackendProtocol, Commit, Durability, Rewrite, Stored
from tomldiary.toml.document import digest
from tomldiary.toml.values import checked_names

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from contextlib import AbstractContextManager


_REQUIRED = ("conversations", "preferences")
_OPTIONAL = ("blocks", "facts", "receipts")
"""Kinds that are stored if the backend accepts them."""
_RECORDS = 1 << 24  # characters of history records in memory; each quotes the user's last change
_UNKNOWN_KIND = (LookupError, ValueError, TypeError, NotImplementedError, AssertionError)
"""The errors that a backend raises for an unknown kind; any other error is a storage failure."""


class SixVerbsBackend:
    """Wraps any object with load, save, exists, delete, delete_user and list_users."""

    is_atomic = False
    is_shared = False
    is_quick = False
    documents = tuple(sorted((*_REQUIRED, *_OPTIONAL)))
    """The documents that can be stored. Others could not be found, because no method lists names."""
    durability: Durability = "process"

    def __init__(self, wrapped: BackendProtocol) -> None:
        self.wrapped = wrapped
        self._locks = UserLocks(None)
        self._records: RecentBySize[str, str] = RecentBySize(_RECORDS, len)
        self._epochs: dict[str, int] = {}
        self._erased: dict[str, int] = {}
        self._unknown: set[str] = set()  # optional kinds that the backend has refused

    def __repr__(self) -> str:
        return f"SixVerbsBackend({self.wrapped!r})"

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        if not inspect.iscoroutine(work):
            raise BackendError(
                f"{type(self.wrapped).__name__} has a method that is not a coroutine function. Define all six"
                " methods with `async def`, and return the result."
            )
        try:
            # An interrupted call does not cancel a running `save`.
            return run_coroutine(work, name="tomldiary-backend", is_stopped=False)
        except RuntimeError as error:
            if not is_of_another_loop(error):
                raise
            raise BackendError(
                f"{type(self.wrapped).__name__} uses a connection of another event loop ({error}). The diary runs"
                " its methods in a separate event loop. Open connections inside them, and share none with the host."
            ) from error

    def lock(self, user: str, timeout: float) -> AbstractContextManager[None]:
        """Exclude other writers in this process."""
        return self._locks.hold(user, timeout)

    def token(self, user: str, kind: str) -> str | None:
        """Return the fingerprint of the stored text; this loads it."""
        stored = self.read(user, kind)
        return stored.token if stored is not None else None

    def read(self, user: str, kind: str) -> Stored | None:
        """Return a document, or None."""
        if kind not in self.documents:
            return None
        text = self._asked(self.wrapped.load, user, kind)
        if text is None or text == "":
            return None
        if not isinstance(text, str):
            raise BackendError(
                f"{self.place(user, kind)}: load returned {type(text).__name__}, expected text or None."
            )
        return Stored(text, digest(text))

    def kinds(self, user: str) -> list[str]:
        """Return the names of `documents` that exist for the user."""
        return [kind for kind in self.documents if self._asked(self.wrapped.exists, user, kind)]

    def _asked(
        self, method: Callable[[str, str], Coroutine[Any, Any, Any]], user: str, kind: str
    ) -> Any:
        """Return the result of a backend method for a document; None for an unknown optional kind."""
        if kind in _REQUIRED:
            return self._call(method(user, kind))
        try:
            answer = self._call(method(user, kind))
        except _UNKNOWN_KIND:
            self._unknown.add(kind)
            return None
        self._unknown.discard(kind)
        return answer

    def commit(self, user: str, commit: Commit) -> dict[str, str]:
        """Save the documents in sequence; the caller holds the lock.

        Raises:
            NotSupported: The backend does not support a document's kind. Nothing was stored.
        """
        unknown = ", ".join(sorted(self._unknown.intersection(commit.contents)))
        if unknown:
            raise NotSupported(
                f"{type(self.wrapped).__name__} does not store documents of the kind {unknown}: its load or"
                " exists raises an error for them. Support this kind in the backend, or use a folder."
            )
        tokens: dict[str, str] = {}
        for kind, text in commit.texts.items():
            try:
                self._call(self.wrapped.save(user, kind, text))
            except Exception as error:
                if not tokens:
                    raise BackendError(
                        f"{self.place(user, kind)}: could not be saved ({error}). Nothing was changed."
                    ) from error
                saved = ", ".join(tokens)
                raise CommittedUnpublished(
                    f"{self.place(user, kind)}: could not be saved ({error}), but {saved} was saved."
                    " Save the turn again."
                ) from error
            tokens[kind] = digest(text)
        if commit.records:
            self._records.keep(user, commit.records[-1])
        return tokens

    def last_record(self, user: str) -> str | None:
        """Return the user's newest record of this process, unless very many others were newer.

        The six methods store no history.
        """
        return self._records.get(user)

    def records(self, user: str) -> Iterator[str]:
        """Yield the result of `last_record`, if any."""
        record = self._records.get(user)
        if record is not None:
            yield record

    def users(self) -> list[str]:
        """Return all user ids."""
        found = self._call(self.wrapped.list_users())
        return sorted(checked_names(found, f"list_users of {type(self.wrapped).__name__}"))

    def erase(self, user: str, kind: str) -> None:
        """Remove a document if it exists."""
        self._call(self.wrapped.delete(user, kind))

    def epoch(self, user: str) -> int:
        """Return the number of erasures by this process; the six methods cannot store it."""
        return self._epochs.get(user, 0)

    def erased(self, user: str) -> int:
        """Return the fencing token that the last complete erasure in this process set; 0 if there was none."""
        return self._erased.get(user, 0)

    def rewrite(self, user: str, rewrite: Rewrite) -> dict[str, str]:
        """Store a redaction, one document at a time; the caller holds the lock.

        An interrupted call must be repeated.
        """
        self._epochs[user] = rewrite.epoch
        self._erased[user] = rewrite.erased or self.erased(user)
        if rewrite.removes_user:
            self._call(self.wrapped.delete_user(user))
            self._records.pop(user)
            return {}
        read = {kind: self.read(user, kind) for kind in self.kinds(user)}
        texts = {kind: found.text for kind, found in read.items() if found is not None}
        if rewrite.history is not None:
            fresh = {kind: document.text for kind, document in rewrite.documents.items()}
            texts.update(fresh)
            # The newest record quotes the last change, so it is replaced; the sequence must continue.
            seq = next_sequence(self._records.get(user))
            results = {kind: digest(text) for kind, text in texts.items()}
            record = render_record(Record(seq, "forget", [], results, results))
            contents = {kind: text.encode() for kind, text in fresh.items()}
            self.commit(user, Commit(contents, {}, [record]))
        return {kind: sha256(text.encode()).hexdigest() for kind, text in texts.items()}

    def prune(self, user: str, seq: int, snapshot: str) -> None:
        """Do nothing: the six methods store no history."""

    def place(self, user: str, kind: str) -> str:
        """Return the document's location for messages."""
        return f"{type(self.wrapped).__name__}:{user}/{kind}"
