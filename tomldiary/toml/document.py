"""A TOML document as text and values at once, changed one table at a time.

Documents are immutable: readers keep theirs while a writer prepares the next one through `Edit`.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from tomldiary.toml.lexer import Block, split_blocks
from tomldiary.toml.parse import parse_toml

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = [
    "Document",
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
    def has_entries(self) -> bool:
        """Whether it has more than the head and `_meta`."""
        return len(self.blocks) > _EMPTY

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


def find_table(data: Table, path: Path) -> Table | None:
    """Return the table at `path`, or None."""
    found: Any = data
    for key in path:
        if type(found) is not dict:  # pyright: ignore[reportUnknownArgumentType] - any TOML value
            return None
        found = found.get(key)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - any TOML value
    return found if isinstance(found, dict) else None  # pyright: ignore[reportUnknownVariableType] - any TOML value
