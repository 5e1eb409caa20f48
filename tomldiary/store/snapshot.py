"""Immutable snapshots of namespaces and their documents, and the view of a batch on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from tomldiary.entries.kinds.parts import part_of
from tomldiary.store.item import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tomldiary.engine.deadlines import Deadlines
    from tomldiary.hand_edits.detect import Known
    from tomldiary.identifiers.namespaces import Namespace
    from tomldiary.storage.protocol import Token
    from tomldiary.toml.document import Document


class Part:
    """One document of a namespace."""

    __slots__ = ("document", "earlier", "kind", "made", "tables", "token")

    def __init__(
        self, kind: str, known: Known | None, document: Document, before: Part | None
    ) -> None:
        self.kind = kind
        self.token = None if known is None else lasting_token(known)
        """See `lasting_token`."""
        self.document = document
        self.tables: Mapping[str, Any] = document.table(("items",)) or {}
        """The values in the document by key, including invalid items."""
        self.made: dict[str, Entry] | None = None
        """The items, once they are used."""
        self.earlier = {} if before is None else before.made or before.earlier
        """The items of the last version that made them, until this one does."""

    @property
    def entries(self) -> dict[str, Entry]:
        """The items by key; unchanged ones are the same objects as in the previous version."""
        if self.made is None:
            old, found = self.earlier, dict[str, Entry]()
            for key, table in self.tables.items():
                known = old.get(key)
                if known is not None and known.table is table:
                    found[key] = known
                elif type(table) is dict:
                    found[key] = Entry(key, cast("dict[str, Any]", table))
            self.made, self.earlier = found, {}
        return self.made

    @property
    def is_empty(self) -> bool:
        """Whether the document has no item."""
        return not any(type(table) is dict for table in self.tables.values())


def lasting_token(known: Known) -> Token | None:
    """Return the version of a document's file; None if the content may change while the version stays equal."""
    # Writes to a broken document go only to history.
    return None if known.is_young or known.problem is not None else known.token


class Snapshot:
    """The items of one namespace at one point in time."""

    __slots__ = ("_entries", "_ordered", "base", "is_empty", "namespace", "parts", "user")

    def __init__(
        self,
        user: str,
        namespace: Namespace,
        parts: tuple[Part, ...] = (),
        entries: dict[str, Entry] | None = None,
    ) -> None:
        self.user = user
        self.namespace = namespace
        self.parts = parts
        self._entries = entries
        self._ordered: list[Entry] | None = None
        self.base = part_of(parts[0].kind)[0] if parts else ""
        self.is_empty = not entries and all(part.is_empty for part in parts)
        """Whether the namespace has no item; listings ask for it each time."""

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The items by key; of a key that a hand edit duplicated, the newest item."""
        if self._entries is None:
            if len(self.parts) == 1:
                return self.parts[0].entries
            several = [part.entries for part in self.parts]
            found: dict[str, Entry] = {}
            for entries in several:
                found.update(entries)
            if len(found) < sum(map(len, several)):
                every = chain.from_iterable(entries.values() for entries in several)
                found = {each.key: each for each in sorted(every, key=attrgetter("updated"))}
            self._entries = found
        return self._entries

    @property
    def searched(self) -> Mapping[str, Part | Snapshot]:
        """The parts that an index follows, by name: the documents, or this object if there are none."""
        return {part.kind: part for part in self.parts} if self.parts else {"": self}

    @property
    def ordered(self) -> list[Entry]:
        """The items, newest first, then by key."""
        if self._ordered is None:
            self._ordered = sorted(self.entries.values(), key=attrgetter("order"))
        return self._ordered

    def get(self, key: str) -> Entry | None:
        """Return an item, or None."""
        if self._entries is not None:
            return self._entries.get(key)
        # Not from `entries`, because joining the entries of all parts is as slow as a search.
        found = [
            entry
            for part in self.parts
            if key in part.tables and (entry := part.entries.get(key)) is not None
        ]
        return max(reversed(found), key=attrgetter("updated"), default=None)


@dataclass
class View:
    """The namespaces that a batch reads."""

    deadlines: Callable[[str], Deadlines]
    """Returns the expiry times of a user's items."""
    clock: Callable[[], int]
    """Returns the time in microseconds since 1970; called at most once."""
    omits_expired: bool
    """Whether expired items are omitted."""
    is_shared: bool
    """Whether several operations must see the same state of a namespace."""
    signed_in: str | None
    """The only user whose namespaces are shown in addition to the shared ones; None shows all."""
    is_over: Callable[[str, Mapping[str, Any]], bool] | None
    """Returns whether a rule expired an entry, by kind and key; None is never."""

    def __post_init__(self) -> None:
        self._seen: dict[tuple[str, Namespace], Snapshot] = {}
        self._read: dict[str, list[tuple[str, Entry]]] = {}

    def pinned(self, snapshot: Snapshot) -> Snapshot:
        """Return the namespace in the state that the batch read first."""
        return self._seen.setdefault((snapshot.user, snapshot.namespace), snapshot)

    @cached_property
    def _now(self) -> int:
        return self.clock()

    def seen(self, user: str, namespace: Namespace) -> Snapshot | None:
        """Return a namespace if the batch has read it, or None."""
        return self._seen.get((user, namespace))

    @property
    def omits_entries(self) -> bool:
        """Whether stored entries may be omitted."""
        return self.omits_expired or self.is_over is not None

    def is_shown(self, snapshot: Snapshot, entry: Entry) -> bool:
        """Return whether reads show an item; `omits_expired` and `is_over` can hide it."""
        if self.is_over is not None and self.is_over(f"{snapshot.base}/{entry.key}", entry.table):
            return False
        if entry.expires is None or not self.omits_expired:
            return True
        return not self.deadlines(snapshot.user).is_over(snapshot.base, entry, self._now)

    def read(self, snapshot: Snapshot, entry: Entry) -> None:
        """Record a read of an item, which restarts its time to live."""
        if entry.expires is not None:
            self._read.setdefault(snapshot.user, []).append((snapshot.base, entry))

    def refresh(self) -> None:
        """Restart the time to live of the items that were read."""
        for user, items in self._read.items():
            self.deadlines(user).refresh(items, self._now)
