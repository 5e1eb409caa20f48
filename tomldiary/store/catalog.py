"""The namespaces of one user, cached in memory and validated against the files at every read.

A snapshot of a namespace is immutable, and a batch reads each namespace from its first snapshot. An unchanged
entry is the same object in the next snapshot, so indexes detect changes by comparing identities.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tomldiary.entries.kinds.parts import part_name, part_of
from tomldiary.identifiers.namespaces import (
    ROOT,
    Namespace,
    document_of,
    is_hashed,
    namespace_of,
    stated_namespace,
)
from tomldiary.logging import get_logger
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.runtime.lru import Recent
from tomldiary.store.operations import shortened
from tomldiary.store.snapshot import Part, Snapshot, lasting_token

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tomldiary.engine.engine import Engine
    from tomldiary.engine.transaction import Transaction
    from tomldiary.store.item import Entry
    from tomldiary.toml.document import Document

_TRUSTED = 0.02  # seconds; a listing may miss edits in place that are more recent
_PREFIXES = 256  # the maximum number of cached prefixes, to limit memory
_logger = get_logger(__name__)


class _Names(NamedTuple):
    """The sorted non-empty namespaces below a prefix, as they were read once."""

    listing: list[str] | None
    read_at: float
    """The time on the monotonic clock."""
    by_depth: dict[int | None, list[Namespace]]
    """The distinct first labels of the namespaces, by their number; all labels for None."""


class Catalog:
    """The namespaces of one user. Thread-safe."""

    def __init__(self, engine: Engine, user: str) -> None:
        self.user = user
        self._engine = engine
        self._backend = engine.backend
        self.size = 0
        """The characters of the documents that it keeps, for a limit of memory."""
        self._parts: dict[str, Part] = {}
        """The documents as last read, by name."""
        # A namespace is identified by the name of its first document, the base.
        self._kinds: dict[str, list[str]] = {}
        """The names of the documents of each namespace, in order."""
        self._namespaces: dict[str, Namespace] = {}
        """The labels of each namespace; () if they are unknown."""
        self._sorted: list[tuple[Namespace, str]] = []
        """The labels and the base of each namespace of the last listing, sorted by labels."""
        self._snapshots: dict[str, Snapshot] = {}
        self._listed: list[str] | None = None
        """The documents at the last listing; None before the first one."""
        self._has_changes = False
        """Whether documents were added or removed since."""
        self._names: Recent[Namespace, _Names] = Recent(_PREFIXES)
        """By prefix."""
        self._guard = fork_safe(threading.RLock())

    def snapshot(self, namespace: Namespace) -> Snapshot:
        """Return the current state of a namespace, in a transaction including its changes; empty if it is missing."""
        base = document_of(self.user, namespace)
        with self._reading():
            if self._listed is None:
                self._list()
            return self._snapshot(base, namespace)

    def snapshots(self, prefix: Namespace = ()) -> list[Snapshot]:
        """Return all non-empty namespaces that begin with a prefix, sorted."""
        with self._reading():
            self._list()
            return [each for each in self._below(prefix) if not each.is_empty]

    def names(self, prefix: Namespace, depth: int | None = None) -> Sequence[Namespace]:
        """Return the first labels of the namespaces that `snapshots` returns, each once, sorted.

        Args:
            prefix: The first labels of the namespaces.
            depth: The maximum number of labels; None returns all.

        A hand edit that overwrites a file in place can be missed for 20 ms. Replaced files are detected at
        once by the folder's time; all writers of this package replace files.
        """
        with self._reading():
            self._list()
            now, known = time.monotonic(), self._names.get(prefix)
            if known is None or known.listing is not self._listed or now - known.read_at > _TRUSTED:
                found = self._below(prefix)
                full = [each.namespace for each in found if not each.is_empty]
                known = _Names(self._listed, now, {None: full})
                # Do not cache very recent files, because another change may leave their version equal.
                if all(part.token is not None for each in found for part in each.parts):
                    self._names.keep(prefix, known)
            names = known.by_depth
            if depth not in names:
                names[depth] = shortened(names[None], depth)
            return names[depth]

    def _below(self, prefix: Namespace) -> list[Snapshot]:
        """Return the current namespaces of the last listing, reading only documents that changed."""
        size, joined = len(prefix), self._engine.transaction_of(self.user)
        below = [(base, labels) for labels, base in self._sorted if labels[:size] == prefix]
        kinds = [kind for base, _ in below for kind in self._kinds.get(base, ())]
        tokens = self._engine.tokens(self.user, kinds) if joined is None else [None] * len(kinds)
        now = dict(zip(kinds, tokens, strict=True))
        found: list[Snapshot] = []
        for base, labels in below:
            known = self._snapshots.get(base)
            stored = [now.get(kind) for kind in self._kinds.get(base, ())]
            if known is None or None in stored or stored != [part.token for part in known.parts]:
                known = self._snapshot(base, labels, now)
            found.append(known)
        return found

    def _reading(self) -> AbstractContextManager[object]:
        """Return a context that holds the guard, after what writers hold when they take it: another order could deadlock.

        These are the user's lock, which the backend takes to complete recovery after a crash, and an open transaction.
        """
        self._engine.tokens(self.user, ())
        joined = self._engine.transaction_of(self.user)
        return self._guard if joined is None else self._reading_in(joined)

    @contextmanager
    def _reading_in(self, transaction: Transaction) -> Generator[None]:
        with transaction.held(), self._guard:
            yield

    def find(self, namespace: Namespace, key: str) -> tuple[Snapshot, Entry] | None:
        """Return a cached item with its snapshot if its document is unchanged, or None."""
        before = self._snapshots.get(document_of(self.user, namespace))
        if before is None or self._engine.transaction_of(self.user) is not None:
            return None
        holding = [part for part in before.parts if key in part.tables]
        if len(holding) != 1:  # several if a hand edit duplicated the key
            return None
        part = holding[0]
        if part.token is None or part.token != self._backend.token(self.user, part.kind):
            return None
        entry = part.entries.get(key)
        return None if entry is None else (before, entry)

    def documents(self, tx: Transaction, namespace: Namespace) -> dict[str, Document]:
        """Return the documents of a namespace by name, with the changes of a transaction."""
        base = document_of(self.user, namespace)
        with self._guard:
            if self._listed is None:
                self._list()
            known = list(self._kinds.get(base, ()))
        while True:
            # Another process may have added a document after the last known one.
            kinds = [*known, next_part(base, known)]
            found = tx.documents(kinds)
            if not found[-1].data:
                return {kind: each for kind, each in zip(kinds, found, strict=True) if each.data}
            with self._guard:
                self._add(base, kinds[-1], namespace)
            known = kinds

    def _snapshot(
        self, base: str, namespace: Namespace, tokens: Mapping[str, Any] | None = None
    ) -> Snapshot:
        """Return the current snapshot of a namespace; without the `tokens` of a listing, look for an added document."""
        kinds = self._kinds.get(base, [])
        found: list[Part] = []
        for kind in kinds:
            part = self._part(kind, None if tokens is None else tokens.get(kind))
            if part is None:
                self._has_changes = True
            else:
                found.append(part)
        if tokens is None and self._part(added := next_part(base, kinds)) is not None:
            self._add(base, added, namespace)
            return self._snapshot(base, namespace)  # there may be further documents
        if not found:  # not cached, because any number of missing namespaces may be read
            self._snapshots.pop(base, None)
            return Snapshot(self.user, namespace)
        before = self._snapshots.get(base)
        if before is not None and before.parts == tuple(found):
            return before
        made = self._snapshots[base] = Snapshot(self.user, namespace, tuple(found))
        return made

    def _part(self, kind: str, token: Any = None) -> Part | None:
        """Return the current version of a document, or None; `token` is its version if it was just read."""
        part = self._parts.get(kind)
        joined = self._engine.transaction_of(self.user)
        if joined is not None:
            document = self._engine.readable_part(self.user, kind)
            if part is not None and part.document is document:
                return part
            return Part(kind, None, document, part) if document.text or document.data else None
        token = token or self._backend.token(self.user, kind)
        if part is not None and token is not None and part.token == token:
            return part
        known = self._engine.load(self.user, kind, token)
        if known is None:
            self._keep(kind, None)
            return None
        if part is not None and part.document is known.document:
            part.token = lasting_token(known)
            return part
        document = known.document
        if known.is_edited:
            document = self._engine.readable_part(self.user, kind)
        made = Part(kind, known, document, part)
        self._keep(kind, made)
        return made

    def _keep(self, kind: str, part: Part | None) -> None:
        before = self._parts.pop(kind, None)
        if before is not None:
            self.size -= before.document.size
        if part is not None:
            self._parts[kind] = part
            self.size += part.document.size

    def _add(self, base: str, kind: str, namespace: Namespace) -> None:
        known = self._kinds.setdefault(base, [])
        if kind not in known:  # another thread may have added it
            known.append(kind)
        self._namespaces[base] = namespace
        self._has_changes = True

    # Which documents there are

    def _list(self) -> None:
        before, found = self._listed, self._engine.listed(self.user, ROOT)
        is_same = found is before or (found == before and all(self._namespaces.values()))
        if is_same and not self._has_changes:
            self._listed = found
            return
        kinds: dict[str, list[str]] = {}
        for base, _, kind in sorted((*part_of(kind), kind) for kind in found):
            kinds.setdefault(base, []).append(kind)
        namespaces = {
            base: self._namespaces.get(base) or self._namespace(base, kinds[base][0])
            for base in kinds
        }
        self._kinds, self._namespaces = kinds, namespaces
        self._sorted = sorted((labels, base) for base, labels in namespaces.items() if labels)
        for kind in self._parts.keys() - found:
            self._keep(kind, None)
        for base in self._snapshots.keys() - kinds.keys():
            del self._snapshots[base]
        # Last, because a document of an unknown namespace is read above, and that can fail.
        self._listed, self._has_changes = found, False

    def _namespace(self, base: str, kind: str) -> Namespace:
        found = namespace_of(self.user, base)
        if found is None and is_hashed(base):
            part = self._part(kind)
            labels = part.document.meta.get("namespace") if part is not None else None
            found = stated_namespace(self.user, base, labels)
        if found is None:
            # A copied file under a name that is not a document's name.
            _logger.warning("%s is ignored, because its namespace is unknown", base)
        return found or ()


def next_part(base: str, kinds: Sequence[str]) -> str:
    """Return the name of a further document of a namespace that has some documents."""
    return part_name(base, part_of(kinds[-1])[1] + 1) if kinds else base
