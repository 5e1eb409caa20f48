"""Incremental indexes of the entries of a table, updated from one version of a document to the next.

An unchanged entry is the same object in the next version, so an update reads only changed entries.
Drafts, readers and writers of a user share one index, and each call updates it to the caller's version.
"""

from __future__ import annotations

import threading
from itertools import compress
from operator import is_not
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tomldiary.runtime.fork_safety import renew_after_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from tomldiary.entries.kind import EditedTables, Tables

F = TypeVar("F", bound="IncrementalIndex")
T = TypeVar("T")


class IncrementalIndex:
    """Base class of the indexes; hold `lock` from `update` to the last use of the result."""

    lock: threading.Lock

    def __init__(self, category: str) -> None:
        self.category = category
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Clear the index and replace its lock, because another thread may have been changing it at the fork."""
        self.lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        """Drop everything that is indexed; an interrupted update may have left it inconsistent."""
        self._keys: list[str] = []
        self._entries: list[Any] = []
        self._places: dict[str, int] = {}
        self._strays: set[int] = set()
        """The positions of values that are not entries."""
        self._stamp: object = None
        """The version that is indexed; None during an update, and after an interrupted one."""

    @property
    def count(self) -> int:
        """The number of entries."""
        return len(self._keys) - len(self._strays)

    def update(self, stamp: object, table: Callable[[], Mapping[str, Any]]) -> None:
        """Update to version `stamp`; `table` returns its entries by id, in the order of the file."""
        if self._stamp == stamp:  # for several documents, a tuple of their stamps
            return
        values = table()
        keys, entries = list(values), list(values.values())
        if self._stamp is None:
            self._clear()
        self._stamp = None
        known = min(len(self._keys), len(keys))
        if keys[:known] != self._keys[:known]:
            # An entry was removed or moved, so the positions after it are invalid.
            pairs = zip(keys, self._keys, strict=False)
            known = next(number for number, (new, old) in enumerate(pairs) if new != old)
        if known < len(self._keys):
            self._cut(known)
        changed = [*compress(range(known), map(is_not, self._entries, entries))]
        for number in (*changed, *range(known, len(keys))):
            self._take(number, keys[number], entries[number])
        self._stamp = stamp

    def follow(self, before: object, after: object, changed: Mapping[str, Any]) -> None:
        """Update from version `before` to `after` by the entries that differ; of new ones, there is one, the last."""
        if self._stamp == before:
            self._stamp = None
            for key, entry in changed.items():
                self._take(self._places.get(key, len(self._keys)), key, entry)
            self._stamp = after

    def _take(self, number: int, key: str, entry: Any) -> None:
        if number == len(self._keys):
            self._keys.append(key)
            self._entries.append(None)
            self._places[key] = number
        self._put(number, key, entry)
        self._entries[number] = entry
        if type(entry) is dict:
            self._strays.discard(number)
        else:
            self._strays.add(number)

    def _cut(self, known: int) -> None:
        """Drop everything from position `known` on."""
        for key in self._keys[known:]:
            del self._places[key]
        del self._keys[known:]
        del self._entries[known:]
        self._strays = {number for number in self._strays if number < known}
        self._forget(known)

    def _put(self, number: int, key: str, entry: Any) -> None:
        """Replace the indexed value at a position; the new value may not be an entry."""
        raise NotImplementedError

    def _forget(self, known: int) -> None:
        """Drop the indexed values from position `known` on."""
        raise NotImplementedError


def ask(
    version: Tables,
    key: tuple[object, ...],
    make: Callable[[], F],
    table: Callable[[], Mapping[str, Any]],
    question: Callable[[F], T],
) -> T:
    """Return the result of a query to an index that is updated to a version.

    Args:
        version: The version of the document.
        key: The class of the index and the table.
        make: Creates the index on first use.
        table: Returns the values of the table by id, in the order of the file.
        question: Called with the lock held.
    """
    found = version.memo.get(key)
    if found is None:
        found = version.memo.setdefault(key, make())
    with found.lock:
        found.update(version.stamp, table)
        return question(cast("F", found))


def put_indexed(
    edit: EditedTables, path: tuple[str, ...], entry: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Store an entry in an edit and its indexes, which else read all entries again; return it as stored."""
    before, is_new = edit.stamp, edit.table(path) is None
    edit.put(path, entry)
    after, stored = edit.stamp, edit.table(path)
    for found in list(edit.memo.values()):
        if not isinstance(found, Marked):
            continue  # such as the lines of a message, which are asked for once in a turn
        is_other = found.category != path[-2]
        if is_other or not is_new or edit.is_last(path):
            with found.lock:
                found.follow(before, after, {} if is_other else {path[-1]: stored})
    return stored or {}


class Marked(IncrementalIndex):
    """Finds entries by marks: values that are derived from an entry, such as its normalised text."""

    def _clear(self) -> None:
        super()._clear()
        self._marks: list[tuple[Hashable, ...]] = []
        self._marked: dict[Hashable, set[int]] = {}

    def _marks_of(self, key: str, entry: Mapping[str, Any]) -> tuple[Hashable, ...]:
        """Return the marks of an entry."""
        raise NotImplementedError

    def _put(self, number: int, key: str, entry: Any) -> None:
        if number == len(self._marks):
            self._marks.append(())
        self._unmark(number)
        if type(entry) is dict:
            self._marks[number] = self._marks_of(key, cast("Mapping[str, Any]", entry))
            for mark in self._marks[number]:
                self._marked.setdefault(mark, set()).add(number)

    def _forget(self, known: int) -> None:
        for number in range(known, len(self._marks)):
            self._unmark(number)
        del self._marks[known:]

    def _unmark(self, number: int) -> None:
        for mark in self._marks[number]:
            places = self._marked[mark]
            places.discard(number)
            if not places:
                del self._marked[mark]
        self._marks[number] = ()
