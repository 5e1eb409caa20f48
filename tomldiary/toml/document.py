"""A TOML document as text and as values.

Documents are immutable: readers keep their version while a writer creates the next one with `Edit`.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from tomldiary.toml.lexer import Block, split_blocks
from tomldiary.toml.parse import parse_toml
from tomldiary.toml.values import render_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
    """Return the fingerprint of a document's bytes: the first 128 bits of their SHA-256, in hexadecimal."""
    return sha256(data).hexdigest()[:_DIGITS]


def digest(text: str) -> str:
    """Return the fingerprint of a text encoded as UTF-8."""
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
        """The identity of the entries in this version, without `_meta`."""

    @classmethod
    def parse(cls, text: str, *, path: str = "") -> Document:
        """Return `text` as a document, after the checks of `check_text`.

        Raises:
            UnsafeDocument: The text was refused before parsing; see `check_text`.
            InvalidTOML: The text does not parse; the error has `path`, `line` and `column`.
        """
        data = parse_toml(text, path=path)
        return cls(split_blocks(text), data, text)

    @property
    def text(self) -> str:
        """The text of the document, which is that of its blocks byte for byte."""
        if self._text is None:
            self._text = "".join([block.text for block in self.blocks])
        return self._text

    @property
    def has_entries(self) -> bool:
        """Whether the document has more blocks than the head and `_meta`."""
        return len(self.blocks) > _EMPTY

    @property
    def is_bare(self) -> bool:
        """Whether all tables except `_meta` are empty and no line is a comment."""
        tables = (table for key, table in self.data.items() if key != _META)
        return not any(tables) and not re.search(r"^\s*#", self.text, re.MULTILINE)

    @property
    def size(self) -> int:
        """The number of characters of the text."""
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
        """The blocks by the path of their header, without `[[arrays]]`; must not be changed."""
        if self._index is None:
            self._index = {
                block.path: block for block in self.blocks if block.path and not block.is_array
            }
        return self._index

    @property
    def has_arrays(self) -> bool:
        """Whether the document has an array of tables, `[[…]]`."""
        if self._has_arrays is None:
            self._has_arrays = any(block.is_array for block in self.blocks)
        return self._has_arrays

    @property
    def parents(self) -> set[Path]:
        """All paths that have a block below them."""
        if self._parents is None:
            self._parents = {
                block.path[:end] for block in self.blocks for end in range(1, len(block.path))
            }
        return self._parents

    def table(self, path: Path) -> Mapping[str, Any] | None:
        """Return the table at `path`, or None; it is not a copy."""
        return find_table(self.data, path)

    def own_values(self, path: Path) -> Table | None:
        """Return the values of the table at `path` without inner tables that have headers."""
        found = find_table(self.data, path)
        if found is None:
            return None
        return {
            key: value
            for key, value in found.items()
            if (*path, key) not in self.index and (*path, key) not in self.parents
        }

    def line_of(self, where: str) -> int | None:
        """Return the line of the field or table at `where`, a path in TOML syntax; None if no line is found."""
        exact = below = None
        around = (0, 0)  # the length of the innermost table around it, and its line
        number = 1
        for block in self.blocks:
            place = render_path(block.path) if block.path else ""
            is_around = bool(place) and (where == place or where.startswith(f"{place}."))
            if is_around or (below is None and place.startswith(f"{where}.")):
                lines = block.text.split("\n")
                field = re.escape(where[len(place) + 1 :].partition(".")[0]) if is_around else ""
                header = number + (_first(r"\s*\[", lines) or 0)
                if not is_around:
                    below = header  # of a table without a header of its own
                elif not field:
                    exact = header
                else:
                    around = max(around, (len(place), header))
                    at = _first(rf"\s*[\"']?{field}[\"']?\s*[=.]", lines)
                    exact = exact if at is None else number + at
            number += block.text.count("\n")
        return exact or below or around[1] or None

    def place_of(self, where: str, file: str) -> str:
        """Return the name of the document's file with the line of `where`, if there is one."""
        line = self.line_of(where)
        return file if line is None else f"{file}:{line}"

    def before(self, path: Path) -> Path | None:
        """Return the path of the table before the one at `path`, or None."""
        previous: Path | None = None
        for block in self.blocks:
            if block.path == path:
                return previous
            previous = block.path or previous
        return None

    def sharing_blocks_of(self, other: Document) -> Document:
        """Return this document with the block objects of `other` where their texts are equal.

        Two documents that were parsed separately can then be compared by block identity, like two versions.
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


def _first(pattern: str, lines: Sequence[str]) -> int | None:
    """Return the index of the first line that begins with a pattern."""
    return next((at for at, line in enumerate(lines) if re.match(pattern, line)), None)
