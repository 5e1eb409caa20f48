"""The namespaces of one user, cached in memory and validated against the files at every read.

A snapshot of a namespace is immutable, and a batch reads each namespace from its first snapshot. An unchanged
entry is the same object in the next snapshot, so indexes detect changes by comparing identities.
"""

from __future__ import annotations

import threading
import time
from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tomldiary.entries.kinds.parts import part_name, part_of
from tomldiary.errors import IdentifierError, InvalidValue
from tomldiary.identifiers.namespaces import ROOT, Namespace, document_of, is_hashed, namespace_of
from tomldiary.logging import get_logger
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.storage.protocol import Listing, ListsFolders
from tomldiary.store.operations import shortened
from tomldiary.store.snapshot import Part, Snapshot

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tomldiary.engine.engine import Engine
    from tomldiary.engine.transaction import Transaction
    from tomldiary.store.item import Entry
    from tomldiary.toml.document import Document

_TRUSTED = 0.02  # seconds; a listing may miss edits in place that are more recent
_PAGES = 256  # the maximum number of cached prefixes, to limit memory
_logger = get_logger(__name__)


@dataclass(slots=True)
class _Page:
    """A cached listing: the sorted non-empty namespaces below a prefix, and the versions of the documents read.

    It has no reference to snapshots, so that an unused page keeps no old document in memory.
    """

    version: int
    names: dict[int | None, list[Namespace]]
    """The distinct first labels of the namespaces, by their number; all labels for None."""
    bases: list[str]
    tokens: dict[str, Any]
    """The versions of the documents, by kind."""
    listing: Listing | None
    """The listing when the documents were last checked."""
    checked_at: float
    """The time of this check, on the monotonic clock."""


class Catalog:
    """The namespaces of one user. Thread-safe."""

    def __init__(self, engine: Engine, user: str) -> None:
        self.user = user
        self._engine = engine
        self._backend = engine.backend
        self._parts: dict[str, Part] = {}
        """The documents as last read, by name."""
        # A namespace is identified by the name of its first document, the base.
        self._numbers: dict[str, list[int]] = {}
        """The numbers of the documents of each namespace, sorted."""
        self._namespaces: dict[str, Namespace] = {}
        """The labels of each namespace; () if they are unknown."""
        self._sorted: list[tuple[Namespace, str]] = []
        """The labels and the base of each namespace of the last listing, sorted by labels."""
        self._snapshots: dict[str, Snapshot] = {}
        self._listed: Listing | None = None
        """The documents and folders at the last listing; None before the first one."""
        self._has_changes = False
        """Whether documents were added or removed since."""
        self._version = 0
        """Increased when a namespace is added, changed or removed."""
        self._pages: dict[Namespace, _Page] = {}
        """By prefix."""
        self._lists = engine.backend if isinstance(engine.backend, ListsFolders) else None
        self._replaces = self._lists is not None and self._lists.replaces_files
        self._guard = fork_safe(threading.RLock())

    def snapshot(self, namespace: Namespace) -> Snapshot:
        """Return the current state of a namespace, in a transaction including its changes; empty if it is missing."""
        base = document_of(self.user, namespace)
        self._open()
        with self._guard:
            if self._listed is None:
                self._list()
            return self._snapshot(base, namespace)

    def snapshots(self, prefix: Namespace = ()) -> list[Snapshot]:
        """Return all non-empty namespaces that begin with a prefix, sorted."""
        self._open()
        with self._guard:
            page = self._page(prefix)
            return [self._snapshots[base] for base in page.bases]

    def names(self, prefix: Namespace, depth: int | None = None) -> Sequence[Namespace]:
        """Return the first labels of the namespaces that `snapshots` returns, each once, sorted.

        Args:
            prefix: The first labels of the namespaces.
            depth: The maximum number of labels; None returns all.

        A hand edit that overwrites a file in place can be missed for 20 ms. Replaced files are detected at
        once by the folder's time; all writers of this package replace files.
        """
        self._open()
        with self._guard:
            names = self._page(prefix, is_trusted=True).names
            found = names.get(depth)
            if found is None:
                found = names[depth] = shortened(names[None], depth)
            return found

    def _page(self, prefix: Namespace, *, is_trusted: bool = False) -> _Page:
        self._list()
        page = self._pages.get(prefix)
        started, listing = time.monotonic(), self._listed
        if page is not None and page.version == self._version:
            is_recent = is_trusted and started - page.checked_at < _TRUSTED
            if is_recent and listing is page.listing and self._replaces:
                return page
            if (
                self._engine.transaction_of(self.user) is None
                and self._tokens(page.tokens) == page.tokens
            ):
                page.listing, page.checked_at = listing, started
                return page
        return self._made_page(prefix, started)

    def _made_page(self, prefix: Namespace, started: float) -> _Page:
        """Return a page of the current documents, reading only those that changed."""
        size, joined, listing = len(prefix), self._engine.transaction_of(self.user), self._listed
        below = [(base, labels) for labels, base in self._sorted if labels[:size] == prefix]
        kinds = [part_name(base, each) for base, _ in below for each in self._numbers.get(base, ())]
        tokens = self._tokens(kinds) if joined is None else {}
        found = [self._snapshot(base, labels, tokens) for base, labels in below]
        parts = [part for each in found for part in each.parts]
        found = [each for each in found if not each.is_empty]
        made = _Page(
            self._version,
            {None: [each.namespace for each in found]},
            [each.base for each in found],
            {part.kind: part.known.token for part in parts if part.known is not None},
            listing,
            started,
        )
        # Do not cache very recent files, because another change may leave their version equal.
        if joined is None and all(part.shows_changes for part in parts):
            if len(self._pages) >= _PAGES:
                self._pages.clear()
            self._pages[prefix] = made
        return made

    def _tokens(self, kinds: Collection[str]) -> dict[str, Any]:
        """Return the current versions of documents."""
        return dict(zip(kinds, self._engine.tokens(self.user, kinds), strict=True))

    def _open(self) -> None:
        """Let the backend complete recovery after a crash, which takes the user's lock.

        Call it without the guard. Writers hold this lock when they take the guard, so the reverse order
        could deadlock.
        """
        if self._engine.cheap_tokens is not None:
            self._engine.cheap_tokens.tokens(self.user, ())
        else:
            self._backend.token(self.user, "preferences")

    def find(self, namespace: Namespace, key: str) -> tuple[Snapshot, Entry] | None:
        """Return a cached item with its snapshot if its document is unchanged, or None."""
        before = self._snapshots.get(document_of(self.user, namespace))
        if before is None or self._engine.transaction_of(self.user) is not None:
            return None
        holding = None
        for part in before.parts:
            if key in part.tables:
                if holding is not None:
                    return None  # a hand edit duplicated the key
                holding = part
        if holding is None or not holding.is_at(self._backend.token(self.user, holding.kind)):
            return None
        entry = holding.entries.get(key)
        return None if entry is None else (before, entry)

    def documents(self, tx: Transaction, namespace: Namespace) -> dict[str, Document]:
        """Return the documents of a namespace by name, with the changes of a transaction."""
        base = document_of(self.user, namespace)
        self._open()
        with self._guard:
            if self._listed is None:
                self._list()
            numbers = list(self._numbers.get(base, ()))
        while True:
            # Another process may have added a document after the last known one.
            number = numbers[-1] + 1 if numbers else 1
            kinds = [part_name(base, each) for each in (*numbers, number)]
            found = tx.documents(kinds)
            if not found[-1].data:
                return {kind: each for kind, each in zip(kinds, found, strict=True) if each.data}
            with self._guard:
                self._add(base, number, namespace)
            numbers.append(number)

    def _snapshot(
        self, base: str, namespace: Namespace, tokens: Mapping[str, Any] | None = None
    ) -> Snapshot:
        """Return the current snapshot of a namespace; without the `tokens` of a listing, look for an added document."""
        numbers = self._numbers.get(base)
        found: list[Part] = []
        looked_for = () if tokens is not None else (numbers[-1] + 1,) if numbers else (1,)
        for number in (*(numbers or ()), *looked_for):
            kind = part_name(base, number)
            part = self._part(kind, tokens.get(kind) if tokens else None)
            if part is None:
                self._dropped(base, number)
                continue
            found.append(part)
            if numbers is None or number > numbers[-1]:
                self._add(base, number, namespace)
                return self._snapshot(base, namespace)  # there may be further documents
        if not found:  # not cached, because any number of missing namespaces may be read
            self._version += self._snapshots.pop(base, None) is not None
            return Snapshot(self.user, namespace)
        before = self._snapshots.get(base)
        if before is not None and before.parts == tuple(found):
            return before
        made = self._snapshots[base] = Snapshot(self.user, namespace, tuple(found))
        self._version += 1
        return made

    def _part(self, kind: str, token: Any = None) -> Part | None:
        """Return the current version of a document, or None; `token` is its version if it was just read."""
        part = self._parts.get(kind)
        joined = self._engine.transaction_of(self.user)
        if joined is not None:
            document = joined.document(kind)
            if part is not None and part.document is document:
                return part
            return Part(kind, None, document, part) if document.text or document.data else None
        token = token or self._backend.token(self.user, kind)
        if part is not None and part.is_at(token):
            return part
        known = self._engine.load(self.user, kind, token)
        if known is None:
            self._parts.pop(kind, None)
            return None
        if part is not None and part.document is known.document:
            part.known = known
            return part
        made = self._parts[kind] = Part(kind, known, known.document, part)
        return made

    def _add(self, base: str, number: int, namespace: Namespace) -> None:
        insort(self._numbers.setdefault(base, []), number)
        self._namespaces[base] = namespace
        self._has_changes = True
        self._version += 1

    def _dropped(self, base: str, number: int) -> None:
        numbers = self._numbers.get(base, [])
        if number in numbers:
            self._has_changes = True
            self._numbers[base] = [each for each in numbers if each != number]
            if not self._numbers[base]:
                del self._numbers[base], self._namespaces[base]

    # Which documents there are

    def _list(self) -> None:
        before, found = self._listed, self._documents()
        is_same = found is before or (found == before and all(self._namespaces.values()))
        if is_same and not self._has_changes:
            self._listed = found
            return
        kinds = found.kinds
        numbers: dict[str, list[int]] = {}
        for base, number in map(part_of, kinds):
            insort(numbers.setdefault(base, []), number)
        namespaces = {
            base: self._namespaces.get(base) or self._namespace(base, numbers[base][0])
            for base in numbers
        }
        self._version += numbers != self._numbers or namespaces != self._namespaces
        self._numbers, self._namespaces = numbers, namespaces
        self._sorted = sorted((labels, base) for base, labels in self._namespaces.items() if labels)
        for kind in self._parts.keys() - kinds:
            del self._parts[kind]
        for base in self._snapshots.keys() - numbers.keys():
            del self._snapshots[base]
        # Last, because a document of an unknown namespace is read above, and that can fail.
        self._listed, self._has_changes = found, False

    def _documents(self) -> Listing:
        """Return the documents and folders of all namespaces, with the documents that an open transaction adds."""
        joined = self._engine.transaction_of(self.user)
        if self._lists is not None:
            found = self._lists.listing(self.user, ROOT)
        else:
            found = Listing.of(self._backend.kinds(self.user), ROOT)
        if joined is None:
            return found
        return found._replace(kinds=Listing.of({*found.kinds, *joined.kinds()}, ROOT).kinds)

    def _namespace(self, base: str, number: int) -> Namespace:
        found = namespace_of(self.user, base)
        if found is None and is_hashed(base):
            found = self._stored_namespace(base, number)
        if found is None:
            # A copied file under a name that is not a document's name.
            _logger.warning("%s is ignored, because its namespace is unknown", base)
        return found or ()

    def _stored_namespace(self, base: str, number: int) -> Namespace | None:
        """Return the namespace that a document states, if it matches the document's name."""
        try:
            part = self._part(part_name(base, number))
            labels = part.document.meta.get("namespace") if part is not None else None
            if not isinstance(labels, list):
                return None
            found = tuple(str(label) for label in cast("list[Any]", labels))
            return found if document_of(self.user, found) == base else None
        except (IdentifierError, InvalidValue):  # a file or a label was named by hand
            return None
