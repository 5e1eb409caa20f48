"""What is worked out from a category's entries, kept up to date from one version to the next.

An entry that did not change is the same object in the next version, so only what changed is looked at
again. One object serves drafts, readers and writers of a user at once: it follows whoever asks.
"""

from __future__ import annotations

import threading
from operator import is_
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from tomldiary.runtime.fork_safety import renew_after_fork

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Following", "Memo", "ask", "is_followed"]

F = TypeVar("F", bound="Following")
T = TypeVar("T")

_STRIDE = 64  # entries compared at once

Memo = dict[Any, "Following"]
"""What was worked out from a document; handed on from version to version."""


class Following:
    """Base of what follows one category; hold `lock` from `follow` to the last use of what it found."""

    lock: threading.Lock

    def __init__(self, category: str) -> None:
        self.category = category
        self._keys: list[str] = []
        self._entries: list[Any] = []
        self._places: dict[str, int] = {}
        self._stamp: object = None
        self.lock = threading.Lock()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start anew with a new lock: another thread may have been half way through a change."""
        self.lock = threading.Lock()
        self._cut(0)

    def is_at(self, stamp: object) -> bool:
        """Tell whether `stamp` is the version that was followed last."""
        return self._stamp is stamp

    def follow(self, stamp: object, keys: list[str], entries: list[Any]) -> None:
        """Take over version `stamp`: ids and entries in the order of the file."""
        self._stamp = None  # nothing is known if this fails half way
        known = min(len(self._keys), len(keys))
        if keys[:known] != self._keys[:known]:
            known = 0  # something was removed or moved: positions are no longer what they were
        if known < len(self._keys):
            self._cut(known)
        for start in range(0, known, _STRIDE):
            before, now = self._entries[start : start + _STRIDE], entries[start : start + _STRIDE]
            if not all(map(is_, before, now)):
                for number, (old, new) in enumerate(zip(before, now, strict=False), start):
                    if old is not new:
                        self._take(number, keys[number], new)
        for number in range(known, min(len(keys), len(entries))):
            self._take(number, keys[number], entries[number])
        self._stamp = stamp

    def note(self, before: object, after: object, key: str, entry: Any) -> None:
        """Take over version `after`, which differs from `before` only in `entry`; a new one is the last."""
        if self._stamp is before:
            self._stamp = None
            self._take(self._places.get(key, len(self._keys)), key, entry)
            self._stamp = after

    def pass_over(self, before: object, after: object) -> None:
        """Take over version `after`, which differs from `before` in another category only."""
        if self._stamp is before:
            self._stamp = after

    def _take(self, number: int, key: str, entry: Any) -> None:
        if number == len(self._keys):
            self._keys.append(key)
            self._entries.append(None)
            self._places[key] = number
        self._put(number, key, entry)
        self._entries[number] = entry

    def _cut(self, known: int) -> None:
        """Let go of everything from position `known` on."""
        self._stamp = None
        for key in self._keys[known:]:
            del self._places[key]
        del self._keys[known:]
        del self._entries[known:]
        self._forget(known)

    def _put(self, number: int, key: str, entry: Any) -> None:
        """Take in what stands at a position, in place of what stood there; it may be no entry."""
        raise NotImplementedError

    def _forget(self, known: int) -> None:
        """Let go of what was taken in from position `known` on."""
        raise NotImplementedError


class _Version(Protocol):
    """A version of a document, or of an edit of one."""

    @property
    def memo(self) -> Memo: ...
    @property
    def stamp(self) -> object: ...


def ask(
    version: _Version,
    key: tuple[object, ...],
    make: Callable[[], F],
    columns: Callable[[], tuple[list[str], list[Any]]],
    question: Callable[[F], T],
) -> T:
    """Ask what is worked out from a table, as it is in a version.

    Args:
        version: The document.
        key: What is worked out, and of which table.
        make: Makes it, if nobody has asked before.
        columns: Returns the ids of the table and what stands there, in the order of the file.
        question: Called with the lock held.
    """
    found = version.memo.get(key)
    if found is None:
        found = version.memo.setdefault(key, make())
    with found.lock:
        if not found.is_at(version.stamp):
            found.follow(version.stamp, *columns())
        return question(cast("F", found))


def is_followed(version: _Version, key: tuple[object, ...]) -> bool:
    """Tell whether that is worked out already, so that `ask` has nothing to do."""
    found = version.memo.get(key)
    return found is not None and found.is_at(version.stamp)
