"""A TOML document as text and values at once, changed one table at a time.

Documents are immutable: readers keep theirs while a writer prepares the next one through `Edit`.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from tomldiary.errors import InvalidValue
from tomldiary.toml.lexer import Block, split_blocks
from tomldiary.toml.parse import parse_toml
from tomldiary.toml.values import render_path, render_value, same_value

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = [
    "Document",
    "Overlay",
    "Path",
    "Table",
    "digest",
    "find_table",
    "fingerprint",
]

Table = dict[str, Any]
Path = tuple[str, ...]
"""The keys that lead to a table, outermost first."""


_META = "_meta"
_EMPTY = 2  # blocks of a document without entries: the head and `_meta`
_DIGITS = 32


def fingerprint(data: bytes) -> str:
    """Return what identifies a version of a document: the first 128 bits of its SHA-256, in hexadecimal digits."""
    return sha256(data).hexdigest()[:_DIGITS]


def digest(text: str) -> str:
    """Return the fingerprint of a text in UTF-8."""
    return fingerprint(text.encode())


class Document:
    """One parsed TOML text; `data` is shared between versions and must not be changed."""

    __slots__ = (
        "_encoded", "_fingerprint", "_has_arrays", "_index", "_parents", "_text", "blocks", "data", "memo",
        "stamp",
    )  # fmt: skip

    def __init__(
        self,
        blocks: list[Block],
        data: Table,
        text: str | None = None,
        index: dict[Path, Block] | None = None,
        parents: set[Path] | None = None,
        *,
        has_arrays: bool | None = None,
        memo: dict[Any, Any] | None = None,
        stamp: object = None,
    ) -> None:
        self.blocks = blocks
        self.data = data
        self._text = text
        self._index = index
        self._parents = parents
        self._has_arrays = has_arrays
        self._encoded: bytes | None = None
        self._fingerprint = ""
        self.memo: dict[Any, Any] = {} if memo is None else memo
        """Incremental indexes of this version or an earlier one; each checks its own version."""
        self.stamp = stamp or object()
        """The identity of the entries in this version; `_meta` does not count."""

    @classmethod
    def parse(cls, text: str, *, path: str = "") -> Document:
        """Parse `text`, guards first.

        Raises:
            UnsafeDocument: Refused before parsing; see `check_text`.
            InvalidTOML: Does not parse; has `path`, `line` and `column`.
        """
        data = parse_toml(text, path=path)
        return cls(split_blocks(text), data, text)

    @property
    def text(self) -> str:
        """The document, byte for byte what its blocks hold."""
        if self._text is None:
            self._text = "".join([block.text for block in self.blocks])
        return self._text

    @property
    def is_bare(self) -> bool:
        """Whether it has neither a table that is not empty, except `_meta`, nor a line that is a comment."""
        tables = (table for key, table in self.data.items() if key != _META)
        return not any(tables) and not re.search(r"^\s*#", self.text, re.MULTILINE)

    @property
    def size(self) -> int:
        """How many characters the text has."""
        return len(self.text)

    @property
    def encoded(self) -> bytes:
        """The text in UTF-8."""
        if self._encoded is None:
            self._encoded = self.text.encode()
        return self._encoded

    @property
    def fingerprint(self) -> str:
        """The digest of the text; see `fingerprint`."""
        if not self._fingerprint:
            self._fingerprint = fingerprint(self.encoded)
        return self._fingerprint

    @property
    def index(self) -> dict[Path, Block]:
        """Blocks by the path of their header; `[[arrays]]` are left out. Not to be changed."""
        if self._index is None:
            self._index = {
                block.path: block for block in self.blocks if block.path and not block.is_array
            }
        return self._index

    @property
    def has_arrays(self) -> bool:
        """Whether there is a list of tables, `[[…]]`, in it."""
        if self._has_arrays is None:
            self._has_arrays = any(block.is_array for block in self.blocks)
        return self._has_arrays

    @property
    def parents(self) -> set[Path]:
        """Every path that has a block below it."""
        if self._parents is None:
            self._parents = {
                block.path[:end] for block in self.blocks for end in range(1, len(block.path))
            }
        return self._parents

    def table(self, path: Path) -> Mapping[str, Any] | None:
        """Return the table at `path`, or None; not a copy."""
        return find_table(self.data, path)

    def own_values(self, path: Path) -> Table | None:
        """Return the values of the table at `path` without tables below it that have headers."""
        found = find_table(self.data, path)
        if found is None:
            return None
        return {
            key: value
            for key, value in found.items()
            if (*path, key) not in self.index and (*path, key) not in self.parents
        }

    def before(self, path: Path) -> Path | None:
        """Return the path of the table that stands in front of a table, or None."""
        previous: Path | None = None
        for block in self.blocks:
            if block.path == path:
                return previous
            previous = block.path or previous
        return None

    def sharing_blocks_of(self, other: Document) -> Document:
        """Return this document with the other's block objects wherever the text is the same.

        Two texts that were parsed apart can then be compared block by block like two versions.
        """
        known = {block.text: block for block in other.blocks}
        blocks = [known.get(block.text, block) for block in self.blocks]
        return Document(blocks, self.data, self._text)

    def overlay(self) -> Overlay:
        """Start changes that only live in memory."""
        return Overlay(self)


class Overlay:
    """A document's values, changed in memory only; unchanged tables stay shared with the document."""

    def __init__(self, document: Document) -> None:
        self._data = document.data
        # The empty documents that memories start from are shared; their indexes are not.
        self.memo: dict[Any, Any] = document.memo if len(document.blocks) > _EMPTY else {}
        self.stamp = document.stamp
        """The identity of the entries, with the changes so far."""
        self.touched: dict[Path, Mapping[str, Any] | None] = {}
        """The tables that were written, each as it was before that; whoever empties it sees what comes next."""
        self._owned: dict[int, Table] = {}
        self._changed = False

    @property
    def is_changed(self) -> bool:
        """Whether anything differs from the document the changes began with."""
        return self._changed

    def table(self, path: Path) -> Mapping[str, Any] | None:
        """Return the table at `path` as changed so far; not a copy."""
        return find_table(self._data, path)

    def put(self, path: Path, data: Mapping[str, Any]) -> None:
        """Make the table at `path` hold exactly `data`.

        Raises:
            InvalidValue: A value that TOML cannot hold.
        """
        old = self.table(path)
        if old is not None and same_value(old, data):
            return
        if old is None:
            render_path(path)
            self._check_way(path)
        for key, value in data.items():
            if old is None or key not in old or old[key] is not value:
                render_value(value, where=".".join((*path, key)))
        self._set_data(path, dict(data))
        self._changed = True

    def delete(self, path: Path) -> bool:
        """Remove the table at `path`; False if there is none."""
        if self.table(path) is None:
            return False
        self._set_data(path, None)
        self._changed = True
        return True

    def rename(self, old: Path, new: Path) -> bool:
        """Move the table `old` to `new`; False if that is not possible."""
        data = self.table(old)
        if data is None or self.table(new) is not None:
            return False
        self._set_data(old, None)
        self._set_data(new, dict(data))
        self._changed = True
        return True

    def _check_way(self, path: Path) -> None:
        """Raise InvalidValue if something that is no table stands on the way to `path`."""
        table = self._data
        for end, key in enumerate(path, 1):
            found: Any = table.get(key)
            if found is None:
                break
            if not isinstance(found, dict):
                raise InvalidValue(
                    "expected a table, found a single value or a list. Remove it or choose another"
                    " name.",
                    where=render_path(path[:end]),
                )
            table = cast("Table", found)

    # Only the tables on the way are copied.

    def _set_data(self, path: Path, value: Table | None) -> None:
        if path[0] != _META:
            self.stamp = object()
            self.touched.setdefault(path, self.table(path))
        if id(self._data) not in self._owned:
            self._data = dict(self._data)
            self._owned[id(self._data)] = self._data
        table = self._data
        for key in path[:-1]:
            inner: Table = table.get(key, {})
            if id(inner) not in self._owned:
                inner = dict(inner)
                self._owned[id(inner)] = inner
                table[key] = inner
            table = inner
        if value is None:
            table.pop(path[-1], None)
        else:
            table[path[-1]] = value


def find_table(data: Table, path: Path) -> Table | None:
    """Return the table at `path`, or None."""
    found: Any = data
    for key in path:
        if type(found) is not dict:  # pyright: ignore[reportUnknownArgumentType] - any TOML value
            return None
        found = found.get(key)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - any TOML value
    return found if isinstance(found, dict) else None  # pyright: ignore[reportUnknownVariableType] - any TOML value
