"""A TOML document as text and as values.

Documents are immutable: readers keep their version while a writer creates the next one with `Edit`.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from tomldiary.errors import DocumentError, InvalidTOML
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.toml.lexer import Block, split_blocks
from tomldiary.toml.parse import TOKEN, parse_toml
from tomldiary.toml.values import render_block, render_lines, render_path, same_value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence


Table = dict[str, Any]
Path = tuple[str, ...]
"""The keys that lead to a table, outermost first."""


META = "_meta"
"""The table of a document that is no entry."""
FORMAT_VERSION = "0.3"
"""The version of the file format that is written; newer files are refused."""
_DIGITS = 32
_QUOTES = re.compile("\"\"\"|'''")
_guard = fork_safe(threading.Lock())


def fingerprint(data: bytes) -> str:
    """Return the fingerprint of a document's bytes: the first 128 bits of their SHA-256, in hexadecimal."""
    return sha256(data).hexdigest()[:_DIGITS]


def digest(text: str) -> str:
    """Return the fingerprint of a text encoded as UTF-8."""
    return fingerprint(text.encode())


class Document:
    """One parsed TOML text; `data` is shared between versions and must not be changed."""

    __slots__ = (
        "_before", "_blocks", "_encoded", "_fingerprint", "_index", "_parents", "_text", "data", "memo", "stamp",
    )  # fmt: skip

    def __init__(
        self,
        blocks: list[Block] | Callable[[], list[Block]],
        data: Table,
        text: str | None = None,
        index: dict[Path, Block] | None = None,
        parents: dict[Path, int] | None = None,
        *,
        memo: dict[Any, Any] | None = None,
        stamp: object = None,
    ) -> None:
        self._blocks = blocks
        self.data = data
        self._text = text
        self._index = index
        self._parents = parents
        self._before: dict[Path, Path | None] | None = None
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
        return cls(partial(split_blocks, text), data, text)  # reads need no blocks

    @classmethod
    def parse_part(cls, text: str) -> Document:
        """Return consecutive blocks of a document as a document.

        The blocks may begin inside an item of a list of tables, whose header must precede the next item. The result
        begins with this header if it is necessary.
        """
        try:
            return cls.parse(text)
        except InvalidTOML:
            blocks = split_blocks(text)
            lists: list[Path] = []
            for number, block in enumerate(blocks):
                before = [each.path for each in blocks[:number]]
                is_inside = any(path[: len(block.path)] == block.path for path in before)
                if block.is_array and is_inside and block.path not in (*before, *lists):
                    lists.append(block.path)
            heads = [f"[[{render_path(path)}]]\n" for path in sorted(lists, key=len)]
            return cls.parse("".join([*heads, text]))

    @classmethod
    def parse_parts(cls, texts: Sequence[str]) -> list[Document]:
        """Return several parts of one document, in its order, as one document.

        Each part is a document of its own if they do not fit together, as in older records, which may lack tables
        between them.
        """
        try:
            return [cls.parse_part("".join(texts))]
        except InvalidTOML:
            return [cls.parse_part(text) for text in texts]

    @property
    def blocks(self) -> list[Block]:
        """The blocks of the text; if a function makes them, it is called on first access."""
        found = self._blocks  # read once, because another thread may replace it
        if not callable(found):
            return found
        made = found()
        with _guard:  # all threads get the same objects, which edits find by identity
            if self._blocks is found:
                self._blocks = made
            return cast("list[Block]", self._blocks)

    @property
    def text(self) -> str:
        """The text of the document, which is that of its blocks byte for byte."""
        if self._text is None:
            self._text = "".join([block.text for block in self.blocks])
        return self._text

    @property
    def has_entries(self) -> bool:
        """Whether the document has more tables than `_meta`."""
        return any(key != META for key in self.data)

    @property
    def is_bare(self) -> bool:
        """Whether all tables except `_meta` are empty and no line is a comment."""
        tables = (table for key, table in self.data.items() if key != META)
        return not any(tables) and not re.search(r"^[ \t\ufeff]*#", self.text, re.MULTILINE)

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
    def parents(self) -> dict[Path, int]:
        """The number of blocks by each path above them, and above items of lists; must not be changed."""
        if self._parents is None:
            self._parents = Counter(path for block in self.blocks for path in above(block))
        return self._parents

    def table(self, path: Path) -> Mapping[str, Any] | None:
        """Return the table at `path`, or None; it is not a copy."""
        return find_table(self.data, path)

    @property
    def meta(self) -> Mapping[str, Any]:
        """The table `_meta`; empty if there is none."""
        return self.table((META,)) or {}

    def own_values(self, path: Path) -> Table | None:
        """Return the values of the table at `path` without inner tables that have headers."""
        found = find_table(self.data, path)
        if found is None:
            return None
        return {
            key: value
            for key, value in found.items()
            if isinstance(value, list)
            or ((*path, key) not in self.index and (*path, key) not in self.parents)
        }

    def whole_block(self, path: Path) -> Block | None:
        """Return the block at `path` if it has exactly the own values of its table, else None.

        A list of tables may have some of them, and the block may have dotted keys of inner tables with headers.
        """
        block, values = self.index.get(path), find_table(self.data, path) or {}
        others = [key for key in values if (*path, key) in self.parents]
        if block is None or any(isinstance(values[key], list) for key in others):
            return None
        if others and not same_value(
            find_table(parse_toml(block.text), path), self.own_values(path)
        ):
            return None
        return block

    def own_blocks(self, path: Path) -> list[Block]:
        """Return the blocks with the own values of the table at `path`: its header and its lists of tables.

        The list is empty if another block has some of the values.
        """
        block = self.index.get(path)
        values = self.own_values(path) or {}
        lists = [
            (*path, key)
            for key in values
            if isinstance(values[key], list) and (*path, key) in self.parents
        ]
        if not lists:
            whole = self.whole_block(path)
            return [] if whole is None else [whole]
        if block is None and len(lists) < len(values):
            return []
        size = len(path) + 1
        return [each for each in self.blocks if each is block or each.path[:size] in lists]

    def line_of(self, where: str) -> int | None:
        """Return the line of the field or table at `where`, a path in TOML syntax; None if no line is found."""
        exact = below = None
        around = (0, 0)  # the length of the innermost table around it, and its line
        number = 1
        for block in self.blocks:
            place = render_path(block.path) if block.path else ""
            inside = f"{place}." if block.path else ""  # the root is around all
            is_around = where == place or where.startswith(inside)
            if is_around or (below is None and place.startswith(f"{where}.")):
                lines = block.text.split("\n")
                field = re.escape(where[len(inside) :].partition(".")[0]) if is_around else ""
                header = number + (_first(r"\s*\[", lines) or 0)
                if not is_around:
                    below = header  # of a table without a header of its own
                elif not field:
                    exact = header
                else:
                    around = max(around, (len(place), header if place else 0))
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
        if self._before is None:  # an import asks for each table
            found: dict[Path, Path | None] = {}
            previous: Path | None = None
            for block in self.blocks:
                found.setdefault(block.path, previous)
                previous = block.path or previous
            self._before = found
        return self._before.get(path)

    def sharing_blocks_of(self, other: Document) -> Document:
        """Return this document with the block objects of `other` where their texts are equal.

        Two documents that were parsed separately can then be compared by block identity, like two versions.
        """
        known: dict[str, list[Block]] = {}
        for block in reversed(other.blocks):
            known.setdefault(block.text, []).append(block)
        # Each object stands once in a document, because an edit finds a block by its identity.
        blocks = [same.pop() if (same := known.get(block.text)) else block for block in self.blocks]
        return Document(blocks, self.data, self._text)


def split_tail(text: str) -> tuple[str, str]:
    """Split a block into its body and its tail.

    The tail has the blank lines at the end, and comments that a blank line separates from the table's last line.
    They belong to no entry, so they stay when the entry is deleted.
    """
    written = text.rstrip()
    if written and not written[written.rfind("\n") + 1 :].lstrip().startswith("#"):
        end = text.find("\n", len(written)) + 1
        return (text[:end], text[end:]) if end else (text, "")
    lines = text.split("\n")
    end = len(lines)
    while end > 0 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    if _QUOTES.search("\n".join(lines[end:])):
        # A multi-line string may end in lines that look like comments.
        ends = [
            each.end() for each in TOKEN.finditer(text) if each[0][0] != "#" and each[0].strip()
        ]
        end = text.count("\n", 0, ends[-1]) + 1 if ends else 0
    # Comments directly below the last line belong to the table.
    while end < len(lines) and lines[end].strip():
        end += 1
    if end == len(lines):
        return text, ""
    body = "".join(f"{line}\n" for line in lines[:end])
    tail = "\n".join(lines[end:])
    return body, tail


def keep_comments(before: Block, removed: Block, *, is_last: bool) -> Block:
    """Return the block before a removed one, with those comments of the removed one that belong to no table.

    Without a blank line, they would belong to the next table; `is_last` tells that there is none.
    """
    tail = split_tail(removed.text)[1]
    kept, gap = split_tail(before.text)
    if gap.strip():
        tail = gap + tail.lstrip("\r\n") if tail.strip() else gap
    elif before.text in {"", "\ufeff"} and not tail.strip():
        tail = ""  # no document begins with a blank line
    elif not tail and not is_last:
        tail = gap
    return Block(before.path, kept + tail, before.is_array)


def rendered_again(
    block: Block, old: Mapping[str, Any], new: Mapping[str, Any], newline: str = "\n"
) -> Block | None:
    """Return a block with other values of its table; None if the table differs from what `render_block` writes."""
    body, tail = split_tail(block.text)
    lines = render_lines(block.path, old)
    written = "".join(lines.values()).replace("\n", newline)
    header = f"[{render_path(block.path)}]{newline}"
    lead = body.removesuffix(header + written)
    if not block.path or lead == body or lead[-1:] not in {"", "\n"}:
        return None
    lines |= render_lines(block.path, replaced_values(old, new))
    written = "".join([lines[key] for key in new]).replace("\n", newline)
    return Block(block.path, f"{lead}{header}{written}{tail}")


def replaced_values(old: Mapping[str, Any], new: Mapping[str, Any]) -> Table:
    """Return the values of `new` that are not the same objects in `old`."""
    return {key: new[key] for key in new if key not in old or old[key] is not new[key]}


def above(block: Block) -> list[Path]:
    """Return the paths above a block; that of a list is above its items."""
    return [block.path[:end] for end in range(1, len(block.path) + block.is_array)]


def find_table(data: Table, path: Path) -> Table | None:
    """Return the table at `path`, or None."""
    found: Any = data
    try:
        for key in path:
            found = found.get(key)
            if found is None:
                return None
    except AttributeError:  # a single value or a list
        return None
    return found if isinstance(found, dict) else None  # pyright: ignore[reportUnknownVariableType] - any TOML value


class ValueEdit:
    """Collects changes to the tables of one document as values only; the result has no text and is never stored."""

    file: Callable[[], str] | None = None
    """Returns the name of the document's file, for errors."""

    def __init__(self, document: Document) -> None:
        self._data = document.data
        # Empty documents are shared between users, so their indexes must not be used.
        self.memo: dict[Any, Any] = document.memo if document.has_entries else {}
        self.stamp = document.stamp
        """The identity of the entries after the changes so far."""
        self.touched: dict[Path, Mapping[str, Any] | None] = {}
        """The previous values of each table that was written; callers may clear it to track later changes."""
        self._owned: dict[int, Table] = {}
        """The tables that were copied for a change; all other tables are shared with the document."""

    def table(self, path: Path) -> Mapping[str, Any] | None:
        """Return the table at `path` with the changes so far; it is not a copy."""
        return find_table(self._data, path)

    @property
    def meta(self) -> Mapping[str, Any]:
        """The table `_meta` with the changes so far; empty if there is none."""
        return self.table((META,)) or {}

    def set_meta(self, **values: Any) -> None:
        """Set values of the table `_meta`; its other values stay."""
        self.put((META,), {**self.meta, **values})

    def put(self, path: Path, data: Mapping[str, Any]) -> None:
        """Set the table at `path` to `data`.

        Raises:
            InvalidValue: TOML cannot represent a value.
            DocumentError: A value above the table is not a table.
        """
        known = self._found(path)
        if not same_value(known, data):
            render_block(path, replaced_values(known or {}, data))  # checks the path and the values
            self._set_data(path, dict(data))

    def delete(self, path: Path) -> bool:
        """Remove the table at `path`; False if there is none."""
        if self.table(path) is None:
            return False
        self._set_data(path, None)
        return True

    def nest(self, keys: Collection[str], parent: str) -> bool:  # noqa: ARG002 - an edit of a text can
        """Return False: without a text, removing a table and adding it elsewhere is the same."""
        return False

    def is_last(self, path: Path) -> bool:  # noqa: ARG002 - several documents need it
        """Return whether the new table at `path` stands after those beside it, where `put` adds it."""
        return True

    def _found(self, path: Path) -> Table | None:
        """Return the table at `path`, or None; raise DocumentError if it, or one above, is a value and no table."""
        table = self._data
        for end, key in enumerate(path, 1):
            found: Table | None = table.get(key)
            if found is None:
                return None
            if not isinstance(found, dict):  # pyright: ignore[reportUnnecessaryIsInstance] - any TOML value
                raise DocumentError(
                    f"{render_path(path[:end])}: expected a table, found a single value or a list. Remove it"
                    " or choose another name.",
                    path="" if self.file is None else self.file(),
                )
            table = found
        return table

    def _set_data(self, path: Path, value: Table | None) -> None:
        """Set or remove a table; only the tables above it are copied."""
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
        if path[0] != META:
            self.stamp = object()
            self.touched.setdefault(path, table.get(path[-1]))
        if value is None:
            table.pop(path[-1], None)
        else:
            table[path[-1]] = value


def _first(pattern: str, lines: Sequence[str]) -> int | None:
    """Return the index of the first line that begins with a pattern."""
    return next((at for at, line in enumerate(lines) if re.match(pattern, line)), None)
