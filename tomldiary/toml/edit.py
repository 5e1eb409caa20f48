"""Edits of single tables of a document that keep all other text byte for byte."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from tomldiary.errors import InvalidTOML
from tomldiary.toml.block_edit import edit_block
from tomldiary.toml.document import (
    META,
    Document,
    Path,
    Table,
    ValueEdit,
    find_table,
    keep_comments,
    rendered_again,
    split_tail,
)
from tomldiary.toml.lexer import KEY, Block, header_path, split_blocks
from tomldiary.toml.parse import MAX_BYTES, parse_toml, too_large
from tomldiary.toml.values import render_block, render_path, same_value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

_KEY = re.compile(rf"^([ \t\ufeff]*)({KEY})(?=[ \t]*[.=])", re.MULTILINE)
"""The first key of a line."""
_HEADER_KEY = re.compile(rf"^([ \t]*\[\[?[ \t]*)({KEY})", re.MULTILINE)
"""The first key of a header."""
_ENDS_IN_COMMENT = re.compile(r"^[ \t\ufeff]*#.*(?<!\"\"\"|''')\r?\n\Z", re.MULTILINE)


class Edit(ValueEdit):
    """Collects changes to the tables of one document; `done` returns the new document."""

    redact: Callable[[Path, Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Applied to the path and the values of each table that is put, except `_meta`."""

    def __init__(self, document: Document, *, is_changed: bool = False) -> None:
        super().__init__(document)
        self.base = document
        self._is_reordered = False
        self.is_changed = is_changed
        """Whether the edit differs from its original document."""
        self._blocks = list(document.blocks)
        self._index = dict(document.index)
        self._parents = dict(document.parents)
        self.size = document.size
        """The number of characters of the text after the changes so far."""
        first, second = self._blocks[0], self._blocks[len(self._blocks) > 1]
        self.newline = "\r\n" if "\r\n" in first.text or "\r\n" in second.text else "\n"

    def put(self, path: Path, data: Mapping[str, Any]) -> None:
        """Set the table at `path` to `data`; only keys that differ are written.

        A new table is inserted after its siblings, and `_meta` before all other tables.

        Raises:
            InvalidValue: TOML cannot represent a value, or the table cannot be changed in place.
        """
        if self.redact is not None and path[0] != META:
            data = self.redact(path, data)
        old = self._found(path)
        if old is None:
            self._insert(path, data)
        elif same_value(old, data):
            return
        else:
            self._change(path, old, data)
        self.is_changed = True
        self._set_data(path, dict(data))

    def replace_values(
        self, path: Path, old: Mapping[str, Any] | None, new: Mapping[str, Any]
    ) -> None:
        """Replace the values `old` of the table at `path` by `new`; its other keys stay, such as inner tables."""
        known = self.table(path) or {}
        self.put(path, {**{key: known[key] for key in known if key not in (old or ())}, **new})

    def restore(
        self,
        path: Path,
        text: str,
        data: Mapping[str, Any],
        *,
        after: Path | None = None,
        behind: str = "",
    ) -> None:
        """Restore the table at `path` with the text of another version of the document.

        Args:
            path: The table.
            text: Its blocks in the other version: attached comments, header and lines, and those of its lists of tables.
            data: The values of these lines, without inner tables that have headers.
            after: The block before it in that version; None inserts a new table after its siblings.
            behind: The text between these two blocks that belongs to neither, such as a comment.

        Raises:
            DocumentError: A value above the table is not a table.
        """
        body = split_tail(text)[0]
        first, *others = split_blocks(body)[1:]
        kept = self._drop_replaced(path, data, [] if first.is_array else others)
        known, block = self.table(path), self._index.get(path)
        inner = {
            key: value for key, value in (known or {}).items() if self._has_header((*path, key))
        }
        if block is not None:
            tail = block.text[len(split_tail(block.text)[0]) :]
            body = split_tail(first.text)[0] if kept else body
            if block is not self._blocks[-1] and not body.endswith("\n"):
                body += self.newline  # the other version ended with this block
            first, *others = split_blocks(body + tail)[1:]
            at = self._position(block)
            self._swap(at, first)
            for number, each in enumerate(others, at + 1):
                self._add(each, number)
        elif known is not None:
            self.put(path, {**inner, **data})
            return
        else:
            self._insert(path, data, text=body, after=after, behind=behind)
            self._is_reordered = True
        self._set_data(path, {**data, **inner})
        self.is_changed = True

    def _drop_replaced(self, path: Path, data: Mapping[str, Any], lists: Sequence[Block]) -> bool:
        """Remove the tables below `path` that a restored text replaces: lists of tables, and those that it writes itself.

        Return True, and keep them, if the text has the same `lists` as the document.
        """
        known = self._found(path)
        if known is None or path not in self._parents:
            return False
        keys = {each.path[len(path)] for each in self._below(path)}
        keys = {key for key in keys if key in data or isinstance(known.get(key), list)}
        size = len(path)
        now = [each for each in self._below(path) if each.path[size] in keys]
        if lists and [split_tail(each.text)[0] for each in now] == [
            split_tail(each.text)[0] for each in lists
        ]:
            return True
        for key in keys:
            self._drop((*path, key))
        left = {key: value for key, value in known.items() if key not in keys}
        # A table without a header may have existed only because of them.
        self._set_data(path, left if left or path in self._index else None)
        return False

    def delete(self, path: Path) -> bool:
        """Remove the table at `path` with its attached comments; False if there is none."""
        if self.table(path) is None:
            return False
        had_header = self._has_header(path)
        holder = self._holder(path[:-1])
        inner = self._own_values(holder)  # read before the headers of inner tables are removed
        self._drop(path)
        rest = path[len(holder.path) :]
        is_written = find_table(inner, rest) is not None
        if is_written:
            holder = self._holder(path[:-1])
            self._rewrite(holder, inner, self._without(inner, holder.path, rest))
        self.is_changed = True
        self._set_data(path, None)
        if had_header and not is_written:  # else the tables above it are still written
            self._drop_empty(path[:-1])
        return True

    def _drop_empty(self, path: Path) -> None:
        """Remove the empty tables at and above `path` that existed only because of a header below them."""
        for end in range(len(path), 0, -1):
            if self.table(path[:end]) or path[:end] in self._index:
                return
            (find_table(self._data, path[: end - 1]) or {}).pop(path[end - 1], None)

    def take_text(self, document: Document) -> None:
        """Take the text of a document that has the same values."""
        self._blocks, self._data = list(document.blocks), document.data
        self._index, self._parents = dict(document.index), dict(document.parents)
        self.size = document.size
        self._owned, self.stamp = {}, object()
        self.is_changed = self._is_reordered = True

    def nest(self, keys: Collection[str], parent: str) -> bool:
        """Move tables of the root below the one at `parent`, with their text and position; False if that is not possible.

        Raises:
            DocumentError: The value at `parent` is not a table.
        """
        known = self._found((parent,)) or {}
        try:
            document = Document.parse(
                "".join([_nested(each, keys, parent) for each in self._blocks])
            )
        except InvalidTOML:
            return False  # such as for a `parent` that is written inline
        left = {key: value for key, value in self._data.items() if key not in keys}
        moved = {key: self._data[key] for key in keys}
        if not same_value(document.data, {**left, parent: {**known, **moved}}):
            return False
        self.take_text(document)
        return True

    def peek(self) -> Document:
        """Return the document with the changes so far; the edit can be continued."""
        self._owned = {}  # tables of the returned document must be copied before further changes
        return Document(list(self._blocks), self._data, memo=self.memo, stamp=self.stamp)

    def savepoint(self) -> Callable[[], None]:
        """Return a function that undoes all later changes; it may be called once."""
        self._owned = {}  # tables of this state must be copied before further changes
        state = {
            **vars(self),
            "_owned": {},
            "_blocks": list(self._blocks),
            "_index": dict(self._index),
            "_parents": dict(self._parents),
            "touched": dict(self.touched),
        }
        return lambda: vars(self).update(state)

    def done(self, place: str = "") -> Document:
        """Return the changed document, or the same object if nothing changed.

        Args:
            place: The name of the document, for the error.

        Raises:
            UnsafeDocument: The result is larger than the parser accepts.
        """
        if not self.is_changed:
            return self.base
        # Parsing gives the entries the order of the text, as readers see them.
        if self._is_reordered:
            return Document.parse(self.peek().text).sharing_blocks_of(self.base)
        document = Document(
            self._blocks,
            self._data,
            None,
            self._index,
            self._parents,
            memo=self.memo,
            stamp=self.stamp,
        )
        if len(document.encoded) > MAX_BYTES:
            raise too_large(place)
        return document

    # Blocks

    def _insert(
        self,
        path: Path,
        data: Mapping[str, Any],
        *,
        text: str | None = None,
        after: Path | None = None,
        behind: str = "",
    ) -> None:
        anchor = self._blocks[-1]
        # After a sibling with a header, another header is always possible.
        if len(path) == 1 or anchor.path[:-1] != path[:-1]:
            holder = self._holder(path[:-1])
            rest = path[len(holder.path) :]
            inner = self._own_values(holder)
            if rest[0] in inner and not self._has_siblings(path, rest, inner):
                # The parent is written inline, so a header would define it twice.
                self._rewrite(holder, inner, _with(inner, rest, dict(data)))
                return
            anchor = self._anchor(path)
        is_made = text is None
        if text is None:
            text = render_block(path, data, newline=self.newline)
        blocks = self._blocks
        if after:
            anchor = self._index.get(after) or anchor
        body, tail = split_tail(anchor.text)
        if behind.strip() and tail.rstrip() == behind.rstrip():
            # The anchor still exists, and stays before the new block.
            body, tail = anchor.text.rstrip() + self.newline, ""
        written = body.removeprefix("\ufeff")
        if written and not written.endswith("\n"):
            body += self.newline
        gap = self.newline if written.strip() else ""
        at = self._position(anchor)
        self._swap(at, Block(anchor.path, body + gap, anchor.is_array))
        if at + 1 < len(blocks) and not tail:
            tail = self.newline  # a blank line before the text that follows
        if tail and not text.endswith("\n"):
            text += self.newline
        if is_made:
            self._add(Block(path, text + tail), at + 1)
            return
        for number, each in enumerate(split_blocks(text + tail)[1:], at + 1):
            self._add(each, number)

    def _anchor(self, path: Path) -> Block:
        """Return the block after which a new table is inserted: that of its closest relative, the last, or the head."""
        for depth in range(len(path) - 1, 0, -1):
            for block in reversed(self._blocks):
                if block.path[:depth] == path[:depth]:
                    return block
        return self._blocks[0 if path[0] == META else -1]

    def _change(self, path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        holder = self._holder(path)
        if holder.path == path:
            if path in self._parents:
                self._change_with_subtables(path, old, new)
            else:
                self._rewrite(holder, old, new)
            return
        rest = path[len(holder.path) :]
        inner = self._own_values(holder)
        written = find_table(inner, rest)
        if path in self._parents:
            if written is None:
                self._give_header(path, old, new)
            self._change_with_subtables(path, old, new)
        elif written is not None:
            self._rewrite_at(path, inner, new)
        else:
            self._insert(path, new)  # the tables that implied it were removed

    def _give_header(self, path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Write a header for a table that exists only because of the tables below it."""
        own = {key: value for key, value in new.items() if key not in old}
        text = render_block(path, own, newline=self.newline)
        self._add(Block(path, text + self.newline), self._position(self._below(path)[0]))
        self._set_data(path, {**old, **own})

    def _change_with_subtables(
        self, path: Path, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> None:
        changed = [
            key
            for key in old
            if self._has_header((*path, key))
            and not (key in new and same_value(old[key], new[key]))
        ]
        left = [
            key for key in changed if isinstance(old[key], dict) and isinstance(new.get(key), dict)
        ]
        for key in left:
            self.put((*path, key), new[key])
        inner = self._own_values(self._holder(path))
        for key in changed:
            if key not in left:
                self._drop((*path, key))
        self._rewrite_at(path, inner, new)

    def _rewrite_at(self, path: Path, inner: Table, new: Mapping[str, Any]) -> None:
        """Replace the values of a table among those of its block, `inner`, except those of tables with headers."""
        holder = self._holder(path)
        rest = path[len(holder.path) :]
        written = find_table(inner, rest) or {}
        # A table may be written in dotted keys here and go on below a header elsewhere.
        parts = {
            key: written.get(key) if self._has_header((*path, key)) else new[key] for key in new
        }
        want = {key: value for key, value in parts.items() if value is not None}
        if same_value(written, want):
            return
        if not want and rest and self._has_header(path):
            self._rewrite(holder, inner, self._without(inner, holder.path, rest))
        else:
            self._rewrite(holder, inner, _with(inner, rest, want) if rest else want)

    def _rewrite(self, block: Block, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Replace the values that are written in a block."""
        made = rendered_again(block, old, new, self.newline)
        if made is None:
            made = edit_block(block, old, new, newline=self.newline)
            if block is not self._blocks[-1] and _ENDS_IN_COMMENT.search(made.text):
                # Without a blank line, the comment would belong to the next table.
                made = Block(made.path, made.text + self.newline)
        self._swap(self._position(block), made)

    def _drop(self, path: Path) -> None:
        """Remove the table or the array of tables at `path`, with all tables below it."""
        own = [self._index[path]] if path in self._index else []
        if path in self._parents:
            own = [each for each in self._blocks if each.path[: len(path)] == path]
        for block in own:
            self._remove(block)

    def _add(self, block: Block, at: int) -> None:
        self._blocks.insert(at, block)
        self.size += len(block.text)
        if not block.is_array:
            self._index[block.path] = block
        self._count(block, 1)

    def _remove(self, block: Block) -> None:
        # A block that parses alone ends where the lexer found its end.
        parse_toml(split_tail(block.text)[0])
        at = self._position(block)
        before = self._blocks[at - 1]
        del self._blocks[at]
        self.size -= len(block.text)
        self._count(block, -1)
        is_last = at == len(self._blocks)
        self._swap(at - 1, keep_comments(before, block, is_last=is_last))
        if self._index.get(block.path) is block:  # lists of tables are not in it
            del self._index[block.path]

    def _swap(self, at: int, new: Block) -> None:
        """Replace the block at a position."""
        block = self._blocks[at]
        if new.text == block.text and new.path == block.path:
            return
        self._blocks[at] = new
        self.size += len(new.text) - len(block.text)
        if self._index.get(block.path) is block:  # lists of tables are not in it
            if new.path != block.path:
                del self._index[block.path]
                self._count(block, -1)
                self._count(new, 1)
            if not new.is_array:
                self._index[new.path] = new

    def _count(self, block: Block, step: int) -> None:
        """Count a block that was added (1) or removed (-1) in the paths above it."""
        parents, path = self._parents, block.path
        for end in range(1, len(path) + block.is_array):  # those of `above`, without a list of them
            number = parents.get(path[:end], 0) + step
            if number:
                parents[path[:end]] = number
            else:
                del parents[path[:end]]

    def _position(self, block: Block) -> int:
        """Return the position of a block; a search from the start is slow for the last one, the most frequent."""
        return len(self._blocks) - 1 if self._blocks[-1] is block else self._blocks.index(block)

    def _holder(self, path: Path) -> Block:
        """Return the closest block at or above `path`; the head if there is none."""
        for end in range(len(path), 0, -1):
            block = self._index.get(path[:end])
            if block is not None:
                return block
        return self._blocks[0]

    def _below(self, path: Path) -> list[Block]:
        size = len(path)
        return [b for b in self._blocks if len(b.path) > size and b.path[:size] == path]

    def _has_header(self, path: Path) -> bool:
        """Return whether the table or list at `path`, or a table below it, has a header."""
        return path in self._index or path in self._parents

    def _has_siblings(self, path: Path, rest: Path, inner: Table) -> bool:
        """Return whether a table above `path` has headers below it, and no value in its block, `inner`.

        `rest` is the path in that block. Such a table accepts further headers.
        """
        return any(
            self._has_header(path[:-end]) and find_table(inner, rest[:-end]) is None
            for end in range(1, len(rest))
        )

    def _own_values(self, block: Block) -> Table:
        """Return the values that are written in `block`, without those of inner tables that have headers."""
        table = self.table(block.path) or {}
        below = [key for key in table if self._has_header((*block.path, key))]
        # Dotted keys may add to inner tables with headers. A backslash may be in such a key.
        if below and any(key in block.text for key in (*below, "\\")):
            return find_table(parse_toml(block.text), block.path) or {}
        return {key: table[key] for key in table if key not in below}

    def _without(self, table: Table, base: Path, path: Path) -> Table:
        """Return the table at `base` without the one at `path` in it, and without empty ones that have headers."""
        changed = dict(table)
        inner = changed.pop(path[0])
        if path[1:]:
            where = (*base, path[0])
            left = self._without(inner, where, path[1:])
            if left or not self._has_header(where):
                changed[path[0]] = left
        return changed


def _nested(block: Block, keys: Collection[str], parent: str) -> str:
    """Return the text of a block with `parent` before those of the root keys in it that are in `keys`."""

    def new_key(match: re.Match[str]) -> str:
        found = header_path(f"[{match[2]}]")
        if found is None or found[0][0] not in keys:
            return match[0]
        return f"{match[1]}{render_path((parent, *found[0]))}"

    # The first header in a block is its own.
    return _HEADER_KEY.sub(new_key, block.text, 1) if block.path else _KEY.sub(new_key, block.text)


def _with(table: Table, path: Path, value: Table) -> Table:
    changed = dict(table)
    inner = changed.get(path[0])
    known = cast("Table", inner) if isinstance(inner, dict) else {}
    changed[path[0]] = value if len(path) == 1 else _with(known, path[1:], value)
    return changed
