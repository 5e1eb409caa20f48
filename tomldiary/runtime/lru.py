"""A mapping that forgets what was not used for longest."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

__all__ = ["Recent"]

K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V]):
    """Holds at most `most` entries; the others leave, those kept longest ago first.

    Of several threads that keep entries, each needs the owner's lock.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def keep(self, key: K, value: V) -> V:
        """Put in a value, or the same one again, as the one used last; return it."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self._most:
            self.popitem(last=False)
        return value
