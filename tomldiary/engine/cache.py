"""Documents parsed once; a version token tells whether a cached one is still current."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from tomldiary.engine.transaction import open_here
from tomldiary.entries.kinds import KINDS, entry_kind
from tomldiary.entries.kinds.parts import join, parts_among
from tomldiary.errors import BackendError, DocumentError, HandEditConflict, InvalidTOML
from tomldiary.hand_edits.base_version import before_saves
from tomldiary.hand_edits.detect import NOTHING, Known, look
from tomldiary.history.index import Indexed, LoggedKinds
from tomldiary.history.timeline import Timeline
from tomldiary.runtime.forgettable_cache import let_go
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.runtime.lru import Recent
from tomldiary.storage.protocol import Backend, CheapTokens, FixedDocuments, ListsFolders, Token

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tomldiary.toml.document import Document

__all__ = ["DocumentCache"]

_CACHED_DOCUMENTS = 4096
_CACHED_JOINS = 256
_PAUSE = 0.05  # seconds between two reads of a file that is being saved


class DocumentCache:
    """Reads the documents of one backend without a lock. Thread-safe.

    Args:
        backend: Where the documents are.
        save_timeout: Seconds that a write waits for another program to finish saving.
    """

    def __init__(self, backend: Backend, *, save_timeout: float = 3.0) -> None:
        self.backend = backend
        self.save_timeout = save_timeout
        self._cheap_tokens = backend if isinstance(backend, CheapTokens) else None
        self.logged = LoggedKinds(backend)
        self._cache: Recent[tuple[str, str], Known] = Recent(_CACHED_DOCUMENTS)
        self._folders = backend if isinstance(backend, ListsFolders) else None
        self._fixed = backend if isinstance(backend, FixedDocuments) else None
        self._joins: Recent[tuple[str, str], tuple[list[Document], Document]] = Recent(
            _CACHED_JOINS
        )
        """The parts of each kind, and what they are as one document."""
        self._epochs: Recent[str, int] = Recent(_CACHED_DOCUMENTS)
        """The number of erasures of each user when their documents were cached."""
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock."""
        self._guard = threading.Lock()

    def cached(self, user: str, *kinds: str) -> list[Document] | None:
        """Return documents without waiting for a disk or a lock; None if that is not possible."""
        backend = self.backend
        if not backend.is_quick or open_here() is not None:
            return None
        known = [self._cache.get((user, kind)) for kind in kinds]
        if not any(known):
            # The first read of a user may have to recover their files, which waits for a lock.
            return [NOTHING for _ in kinds] if backend.is_new(user) else None
        found: list[Document] = []
        for kind, cached in zip(kinds, known, strict=True):
            token = backend.token(user, kind)
            if cached is None:
                if token is not None:
                    return None
                found.append(NOTHING)
            elif cached.is_young or cached.token != token:
                return None
            else:
                found.append(cached.document)
        return found

    def cached_entries(self, user: str, *kinds: str) -> list[Document] | None:
        """Return all entries of kinds as `cached` does, each kind as one document."""
        found = self.cached(user, *kinds)
        if found is None:
            return None
        for number, kind in enumerate(kinds):
            parts = self.parts(user, kind)
            if len(parts) > 1:
                known = self.cached(user, *parts)
                if known is None:
                    return None
                found[number] = self.join(user, kind, known)
        return found

    @property
    def lists_documents(self) -> bool:
        """Whether the backend finds documents whose names are not known before, such as episodes."""
        return self._fixed is None or self._fixed.documents is None

    def parts(self, user: str, kind: str) -> list[str]:
        """Return the documents that the entries of a kind are spread over; the first one may not exist."""
        known = KINDS.get(kind)
        if known is None or not known.is_split or not self.lists_documents:
            return [kind]
        self.backend.token(user, kind)  # recovery may bring back a part
        if self._folders is None:
            return parts_among(kind, self.backend.kinds(user))
        listed = self._folders.kinds_below(user, f"{kind}/")
        return parts_among(kind, listed) if listed else [kind]

    def join(self, user: str, kind: str, parts: list[Document]) -> Document:
        """Return the parts of a kind as one document; the same one as long as the parts are the same."""
        if len(parts) == 1:
            return parts[0]
        known = self._joins.get((user, kind))
        if known is not None and list(map(id, known[0])) == list(map(id, parts)):
            return known[1]
        made = join(entry_kind(kind), parts)
        with self._guard:
            self._joins.keep((user, kind), (parts, made))
        return made

    def with_base(self, user: str, kind: str) -> tuple[Document, Document]:
        """Return a document, and what it was before hand edits that are not followed by a write."""
        known = self.load(user, kind)
        if known is None:
            return NOTHING, NOTHING
        return known.document, self.before_saves(user, kind, known) or known.document

    def load(self, user: str, kind: str, *, is_written: bool = False) -> Known | None:
        """Return a document with the version it was read at, or None if there is none.

        Args:
            user: Whose.
            kind: Which.
            is_written: Whether the caller holds the user's lock. Then the document is the one that history
                ends at, also if its file could not be replaced.
        """
        key = (user, kind)
        cached = self._cache.get(key)
        token = self.backend.token(user, kind)
        if token is None:
            if self._cache.pop(key, None) is not None:
                self._notice_erasure(user)
            return None
        changes = self._changes(user) if is_written else None
        if cached is not None and _is_current(cached, token, kind, changes, is_written=is_written):
            return cached
        stored = self.backend.read(user, kind)
        if stored is None:
            return None
        if self._notice_erasure(user):
            cached = None
        fresh = look(self.backend, user, kind, stored, cached)
        fresh.seen = changes.last if changes is not None else -1
        self._remember(key, fresh)
        return fresh

    def load_all(self, user: str, kinds: Sequence[str]) -> list[Known | None]:
        """Return documents that are about to be written; the caller holds the user's lock."""
        if self._cheap_tokens is None:
            return [self.load(user, kind, is_written=True) for kind in kinds]
        found: list[Known | None] = []
        changes = self._changes(user)
        for kind, token in zip(kinds, self._cheap_tokens.tokens(user, kinds), strict=True):
            cached = self._cache.get((user, kind))
            if (
                token is None
                if cached is None
                else _is_current(cached, token, kind, changes, is_written=True)
            ):
                found.append(cached)
            else:
                found.append(self.load(user, kind, is_written=True))
        return found

    def _changes(self, user: str) -> Indexed[int] | None:
        try:
            return self.logged.changes(user)
        except InvalidTOML:
            return None  # history is damaged; the document is read again

    def settled(self, user: str, kind: str) -> Known | None:
        """Return a document for writing, after any save in progress by another program.

        Raises:
            HandEditConflict: The save took longer than `save_timeout`.
        """
        deadline = time.monotonic() + self.save_timeout
        while (known := self.load(user, kind, is_written=True)) is not None and known.is_settling:
            if time.monotonic() >= deadline:
                raise HandEditConflict.busy(self.backend.place(user, kind), self.save_timeout)
            time.sleep(_PAUSE)  # a half-written file must not be taken for deletions
        return known

    def before_saves(self, user: str, kind: str, known: Known) -> Document | None:
        """Return the document before the latest hand edits; None if there are none."""
        if known.is_saved:
            with suppress(DocumentError):  # history is damaged, or does not reach back that far
                return before_saves(Timeline(self.backend, user), kind)
        return known.logged

    def discard(self, user: str, kinds: Iterable[str]) -> None:
        """Drop cached documents, for example after a failed commit; the next read reads them again."""
        for kind in kinds:
            self._cache.pop((user, kind), None)

    def _notice_erasure(self, user: str) -> bool:
        """Drop a user's documents if another process has erased something since; return whether it has."""
        try:
            epoch = self.backend.epoch(user)
        except BackendError:
            return False  # the next write raises it
        with self._guard:
            known = self._epochs.get(user, epoch)
            self._epochs.keep(user, epoch)
        if known != epoch:
            self._drop(user)
        return known != epoch

    def _remember(self, key: tuple[str, str], cached: Known) -> None:
        if key[0] not in self._epochs:
            self._notice_erasure(key[0])
        with self._guard:
            self._cache.keep(key, cached)

    def _drop(self, user: str) -> None:
        let_go()
        with self._guard:
            for cache in (self._cache, self._joins):
                for key in [key for key in cache if key[0] == user]:
                    del cache[key]


def _is_current(
    cached: Known, token: Token | None, kind: str, changes: Indexed[int] | None, *, is_written: bool
) -> bool:
    """Return whether a cached document is that of this version of its file; see `DocumentCache.load`."""
    if cached.token != token or cached.is_young:
        return False
    if not is_written:
        return True
    if changes is None or not cached.is_logged or cached.is_merged:
        return False
    if cached.logged is not None or cached.problem is not None:
        return False  # the file did not hold the document at the end of history
    return changes.found.get(kind, changes.start) <= cached.seen
