"""Blocks found by their path, in version after version of a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tomldiary.toml.lexer import Block

__all__ = ["BlockIndex", "Index", "copy_of"]

_MANY = 1000  # blocks from which on a copy of them all is saved, at the price of looking twice
_SHARE = 8  # a copy takes over changes of up to this part of the whole


class BlockIndex(Mapping[tuple[str, ...], "Block"]):
    """Many blocks by path. A copy shares with the original all but what changed lately."""

    __slots__ = ("_changed", "_settled")

    def __init__(
        self,
        settled: dict[tuple[str, ...], Block],
        changed: dict[tuple[str, ...], Block | None] | None = None,
    ) -> None:
        self._settled = settled  # shared: never changed
        self._changed = {} if changed is None else changed
        """What stands there instead; None where nothing stands any more."""

    def copy(self) -> BlockIndex:
        """Return one that can be changed without changing this one."""
        if len(self._changed) * _SHARE > len(self._settled):
            return BlockIndex(self._settled_now())
        return BlockIndex(self._settled, dict(self._changed))

    def _settled_now(self) -> dict[tuple[str, ...], Block]:
        """Return all blocks, in the order of `__iter__`."""
        found = dict(self._settled)
        for path, block in self._changed.items():
            if block is not None:
                found[path] = block
            else:
                found.pop(path, None)
        return found

    def get(self, path: tuple[str, ...], default: Block | None = None) -> Block | None:  # pyright: ignore[reportIncompatibleMethodOverride] - a default of None only
        """Return the block at `path`, or `default`."""
        changed = self._changed
        found = changed[path] if path in changed else self._settled.get(path)
        return default if found is None else found

    def __getitem__(self, path: tuple[str, ...]) -> Block:
        """Return the block at `path`; KeyError if there is none."""
        found = self.get(path)
        if found is None:
            raise KeyError(path)
        return found

    def __contains__(self, path: object) -> bool:
        """Return whether a block stands at `path`."""
        if path in self._changed:
            return self._changed[path] is not None  # pyright: ignore[reportArgumentType] - any object may be asked for
        return path in self._settled

    def __setitem__(self, path: tuple[str, ...], block: Block) -> None:
        """Let `block` stand at `path`."""
        self._changed[path] = block

    def __delitem__(self, path: tuple[str, ...]) -> None:
        """Let nothing stand at `path`."""
        self._changed[path] = None

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        """Yield the paths."""
        changed = self._changed
        yield from (path for path in self._settled if changed.get(path, self) is not None)
        yield from (
            path
            for path, block in changed.items()
            if block is not None and path not in self._settled
        )

    def __len__(self) -> int:
        """Return how many blocks there are."""
        return sum(1 for _ in self)


Index = dict[tuple[str, ...], "Block"] | BlockIndex
"""Blocks by path."""


def copy_of(index: Index) -> Index:
    """Return an index that can be changed without changing this one."""
    if isinstance(index, dict):
        return dict(index) if len(index) < _MANY else BlockIndex(index)
    return index.copy()
