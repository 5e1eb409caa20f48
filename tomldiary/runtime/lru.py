"""Mappings that evict the least recently stored entry, or the values that are used nowhere else."""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakValueDictionary

from tomldiary.runtime.forgettable_cache import cleared_on_forget
from tomldiary.runtime.fork_safety import fork_safe

if TYPE_CHECKING:
    from collections.abc import Callable

K = TypeVar("K")
V = TypeVar("V")
_LONGEST_CACHED = 500  # characters


def cached_if_short(function: Callable[[str], V], most: int = 65536) -> Callable[[str], V]:
    """Cache up to `most` results for short texts; those for long ones would fill the memory of a server after weeks.

    The cache is cleared whenever data is forgotten.
    """
    cached = cleared_on_forget(lru_cache(maxsize=most)(function))

    @wraps(function)
    def call(text: str) -> V:
        return cached(text) if len(text) <= _LONGEST_CACHED else function(text)

    return call


class Recent(OrderedDict[K, V]):
    """A mapping of at most `most` entries, which evicts the entry whose last `keep` is oldest.

    Not thread-safe: callers of `keep` hold the owner's lock.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: K, value: V) -> V:
        """Store a value as the most recent one, and return it."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self._most:
            self.popitem(last=False)
        return value


class RecentBySize(Generic[K, V]):
    """A cache of values with a maximum total size, which evicts the value whose last `keep` is oldest. Thread-safe.

    The latest value stays even if it is larger than the maximum.

    Args:
        most: The maximum sum of the sizes.
        size: Returns the size of a value.
    """

    def __init__(self, most: int, size: Callable[[V], int]) -> None:
        self._most = most
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self.get: Callable[[K], V | None] = self._values.get
        """Returns a value, or None."""
        self._sizes: dict[K, int] = {}
        self._total = 0
        self._guard = fork_safe(threading.Lock())

    def keep(self, key: K, value: V) -> None:
        """Store a value as the most recent one."""
        size = self._size(value)
        with self._guard:
            self._total += size - self._sizes.get(key, 0)
            self._sizes[key] = size
            self._values[key] = value
            self._values.move_to_end(key)
            while self._total > self._most and len(self._values) > 1:
                oldest, _ = self._values.popitem(last=False)
                self._total -= self._sizes.pop(oldest)

    def pop(self, key: K) -> V | None:
        """Remove a value and return it, or None."""
        with self._guard:
            self._total -= self._sizes.pop(key, 0)
            return self._values.pop(key, None)

    def drop(self, is_dropped: Callable[[K], bool]) -> None:
        """Remove the values of some keys."""
        with self._guard:
            found = [key for key in self._values if is_dropped(key)]
        for key in found:
            self.pop(key)

    def cache_clear(self) -> None:
        """Remove all values."""
        self.drop(lambda _key: True)


class PerUser(Generic[V]):
    """A cache with one object, such as an index, for each of the most recently used users. Thread-safe.

    After something of a user was forgotten, the user's object is created again.

    Args:
        make: Creates the object of a user.
        most: The maximum number of users.
    """

    def __init__(self, make: Callable[[str], V], most: int = 256) -> None:
        self._make = make
        self._known: Recent[str, tuple[int, V]] = Recent(most)
        self.last: Callable[[str], tuple[int, V] | None] = self._known.get
        """Returns the fencing token and the object that `of` returned last for a user, or None."""
        self._guard = fork_safe(threading.Lock())

    def of(self, user: str, epoch: int) -> V:
        """Return the object of a user; it is created again if the fencing token `epoch` has changed."""
        with self._guard:
            known = self._known.get(user)
            if known is None or known[0] != epoch:
                known = epoch, self._make(user)
            return self._known.keep(user, known)[1]

    def drop(self, user: str) -> None:
        """Remove the object of a user; the next call of `of` creates another one."""
        with self._guard:
            self._known.pop(user, None)


class WhileUsed(Generic[K, V]):
    """A mapping that keeps a value while another object refers to it. Thread-safe."""

    def __init__(self) -> None:
        self._values: WeakValueDictionary[K, V] = WeakValueDictionary()
        # Reentrant, because the garbage collector may run code of this package at any time.
        self._guard = fork_safe(threading.RLock())

    def setdefault(self, key: K, value: V) -> V:
        """Return the value of a key, which is `value` if there is none yet."""
        with self._guard:  # the method of the dictionary is not atomic
            return self._values.setdefault(key, value)
