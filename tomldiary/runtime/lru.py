"""A mapping with a maximum size, which evicts the least recently kept entry."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

__all__ = ["Recent"]

K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V]):
    """Holds at most `most` entries; the entry whose last `keep` is oldest is evicted first.

    Not thread-safe: threads that call `keep` need the owner's lock.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: K, value: V) -> V:
        """Store a value as the most recently kept one; return the value."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self._most:
            self.popitem(last=False)
        return value
