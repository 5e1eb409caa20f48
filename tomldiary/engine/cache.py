"""Documents as everybody should see them, in a cache that one `stat` keeps honest."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from tomldiary.engine.transaction import open_here
from tomldiary.errors import BackendError, Conflict, DocumentError, InvalidTOML
from tomldiary.hand_edits.base_version import before_saves
from tomldiary.hand_edits.detect import NOTHING, look
from tomldiary.history.logged_kinds import LoggedKinds
from tomldiary.history.timeline import Timeline
from tomldiary.runtime.forgettable_cache import let_go
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.runtime.lru import Recent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tomldiary.hand_edits.detect import Known
    from tomldiary.history.index import Since
    from tomldiary.storage.protocol import Backend, Token
    from tomldiary.toml.document import Document

__all__ = ["KnownDocuments"]

_CACHED_DOCUMENTS = 4096
_PATIENCE = 3.0  # seconds that a write waits for an editor to finish saving
_GLANCE = 0.05  # seconds between two looks at a file that is being saved


class KnownDocuments:
    """The part of the engine that reads; readers take no lock. Thread-safe."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.logged = LoggedKinds(backend)
        self._cache: Recent[tuple[str, str], Known] = Recent(_CACHED_DOCUMENTS)
        self._epochs: Recent[str, int] = Recent(_CACHED_DOCUMENTS)
        """How often something of a user had been forgotten when we last looked."""
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock."""
        self._guard = threading.Lock()

    def cached(self, user: str, *kinds: str) -> list[Document] | None:
        """Return these documents if they are in memory and no disk is asked whether they are current, else None."""
        backend = self.backend
        if not backend.is_quick or open_here() is not None:
            return None
        known = [self._cache.get((user, kind)) for kind in kinds]
        if not any(known):
            # A user seen for the first time may have to be recovered, which waits for a lock.
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

    def load(self, user: str, kind: str, *, is_written: bool = False) -> Known | None:
        """Return a document with the version it was read at, or None if there is none.

        Args:
            user: Whose.
            kind: Which.
            is_written: Whether the user's lock is held: then the document is the one that history ends at, also
                where others wrote to history alone, as the file could not be replaced.
        """
        key = (user, kind)
        cached = self._cache.get(key)
        token = self.backend.token(user, kind)
        if token is None:
            if self._cache.pop(key, None) is not None:
                self._notice_forgetting(user)
            return None
        changes = self._changes(user) if is_written else None
        if cached is not None and _is_current(cached, token, kind, changes, is_written=is_written):
            return cached
        stored = self.backend.read(user, kind)
        if stored is None:
            return None
        if self._notice_forgetting(user):
            cached = None
        fresh = look(self.backend, user, kind, stored, cached)
        fresh.seen = changes.last if changes is not None else -1
        self._remember(key, fresh)
        return fresh

    def load_all(self, user: str, kinds: Sequence[str]) -> list[Known | None]:
        """Return documents that are to be written like `load`, in one look at all of them where the backend has that."""
        look = getattr(self.backend, "tokens", None)
        if look is None:
            return [self.load(user, kind, is_written=True) for kind in kinds]
        found: list[Known | None] = []
        changes = self._changes(user)
        for kind, token in zip(kinds, look(user, kinds), strict=True):
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

    def _changes(self, user: str) -> Since[int] | None:
        try:
            return self.logged.changes(user)
        except InvalidTOML:
            return None  # damaged: each look finds out for itself

    def settled(self, user: str, kind: str, patience: float = _PATIENCE) -> Known | None:
        """Return a document like `load`, once nobody's editor is half way through saving it.

        Raises:
            Conflict: Somebody kept saving it for `patience` seconds.
        """
        deadline = time.monotonic() + patience
        while (known := self.load(user, kind, is_written=True)) is not None and known.is_settling:
            if time.monotonic() >= deadline:
                raise Conflict(
                    f"{self.backend.place(user, kind)} is being saved by somebody all the time. Try again."
                )
            time.sleep(_GLANCE)  # what an editor has not written yet is not deleted
        return known

    def before_saves(self, user: str, kind: str, known: Known) -> Document | None:
        """Return what a document was before people changed it since we last wrote; None if they did not."""
        if known.is_saved:
            with suppress(DocumentError):  # history is damaged, or does not reach back that far
                return before_saves(Timeline(self.backend, user), kind)
        return known.logged

    def _notice_forgetting(self, user: str) -> bool:
        """Let go of a user's texts where another process has forgotten something since; tell whether it has."""
        try:
            epoch = self.backend.epoch(user)
        except BackendError:
            return False  # whoever writes is told
        with self._guard:
            known = self._epochs.get(user, epoch)
            self._epochs.keep(user, epoch)
        if known != epoch:
            self._drop(user)
        return known != epoch

    def _remember(self, key: tuple[str, str], cached: Known) -> None:
        if key[0] not in self._epochs:
            self._notice_forgetting(key[0])
        with self._guard:
            self._cache.keep(key, cached)

    def _drop(self, user: str) -> None:
        let_go()
        with self._guard:
            for key in [key for key in self._cache if key[0] == user]:
                del self._cache[key]


def _is_current(
    cached: Known, token: Token | None, kind: str, changes: Since[int] | None, *, is_written: bool
) -> bool:
    """Return whether a cached document holds for this version of its file; see `KnownDocuments.load`."""
    if cached.token != token or cached.is_young:
        return False
    if not is_written:
        return True
    if changes is None or not cached.is_plain:
        return False
    return changes.found.get(kind, changes.start) <= cached.seen
