"""Parts: documents of bounded size with the entries of one kind, read and changed as one document.

    preferences.toml      the only part as long as it has space; TOMLDiary 0.9 also reads it
    preferences/002.toml  has the next entries

Rules for equal texts, limits, ids and keys apply to all parts together. A change writes only the part with the entry,
and a new entry is added to the last part. Entries are never moved. If two parts have the same key, the first one is
valid. The further documents of a namespace of items are `work~2`, because `work/002` is another namespace.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from tomldiary.entries.fields import NEXT_IDS, reserved_ids
from tomldiary.logging import get_logger
from tomldiary.toml.document import Document, Path, Table, find_table
from tomldiary.toml.lexer import Block
from tomldiary.toml.values import render_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tomldiary.entries.kind import EntryKind, Tables
    from tomldiary.toml.edit import Edit

LARGEST = 128 * 1024
"""The number of characters of a document above which a new entry is added to another one."""
_PART = re.compile(r"(.+)~([2-9]|[1-9][0-9]{1,8})")
_FURTHER = re.compile(r"[^/]+/(00[2-9]|0[1-9][0-9]|[1-9][0-9]{2,8})", re.ASCII)
_logger = get_logger(__name__)
_NEARLY_EMPTY = 500  # the maximum number of characters of a document without entries
_META = "_meta"


def part_name(document: str, number: int) -> str:
    """Return the name of a part of an items document by its number, from 1 on: `work~2`."""
    return document if number == 1 else f"{document}~{number}"


def part_of(document: str) -> tuple[str, int]:
    """Return the document and the number of a result of `part_name`."""
    found = _PART.fullmatch(document)
    return (document, 1) if found is None else (found.group(1), int(found.group(2)))


def parts_among(name: str, listed: Iterable[str]) -> list[str]:
    """Return the parts of a kind in order; the first one may not exist."""
    further = [each for each in listed if each.startswith(f"{name}/") and _FURTHER.fullmatch(each)]
    return [name, *sorted(further, key=_number_of)]


def further_part(name: str, parts: Sequence[str]) -> str:
    """Return the name of the part of a kind after these parts."""
    return f"{name}/{_number_of(parts[-1]) + 1:03d}"


def _number_of(part: str) -> int:
    """Return the number of a part, counted from 1."""
    return int(part.partition("/")[2] or 1)


def depth_of(kind: EntryKind, path: Path) -> int:
    """Return the length of the path of the entry at or above a path; the short layout omits the root table."""
    return kind.depth - (path[:1] != (kind.name,))


def entry_at(kind: EntryKind, path: Path) -> Path | None:
    """Return the path of the entry that contains the table at `path`; None if the table is above all entries."""
    if not path or path[0] == _META:
        return None
    depth = depth_of(kind, path)
    return path[:depth] if len(path) >= depth else None


def path_in(kind: EntryKind, document: Document, path: Path) -> Path:
    """Return the path of an entry in a document, which may have another layout."""
    short = path[1:]
    is_short = kind.has_short_layout and short[0] in kind.short_roots(document)
    return short if is_short and document.table(short) is not None else path


def in_one_layout(kind: EntryKind, old: dict[Path, Table], new: Mapping[Path, Table]) -> None:
    """Give the entries before a change of their layout the paths after it, because it does not change them."""
    for path in [*old] if kind.has_short_layout else ():
        other = in_other_layout(kind, path)
        if path not in new and other in new:
            old[other] = old.pop(path)


def in_other_layout(kind: EntryKind, path: Path) -> Path:
    """Return the path of an entry in the short layout for one in the long layout, and the other way round."""
    return path[1:] if path[0] == kind.name else (kind.name, *path)


def join(kind: EntryKind, parts: Sequence[Document]) -> Document:
    """Return all parts as one document for reading; its text has the tables of the parts in order."""
    if len(parts) == 1:
        return parts[0]
    meta = _meta_of([part.table((_META,)) for part in parts])
    data: Table = {} if meta is None else {_META: meta}
    for key in dict.fromkeys(key for part in parts for key in part.data):
        if key != _META:
            values = [part.data[key] for part in parts if key in part.data]
            data[key] = _merged(values, depth_of(kind, (key,)) - 1)
    stamp = tuple([part.stamp for part in parts])
    # Most readers need only the values, so the blocks are not joined yet.
    return Document(partial(_blocks, parts), data, memo=memo_of(parts), stamp=stamp)


def _merged(values: list[Any], levels: int) -> Any:
    """Return the tables at one path as one table; `levels` is the depth of the entries in it.

    If several parts have the same entry, the first one is used.
    """
    tables = [cast("Table", value) for value in values if type(value) is dict]
    if not tables or levels == 0 or len(values) == 1:
        return tables[0] if tables else values[0]
    found: Table = {}
    for table in tables:
        found.update(table)
    if len(found) < sum(map(len, tables)):
        if levels == 1:
            _logger.warning("two parts hold one key, and the first counts; problems() says which")
        for key in found:
            values = [table[key] for table in tables if key in table]
            found[key] = _merged(values, levels - 1)
    return found


def _meta_of(found: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Return the `_meta` of the first part, with the highest reserved ids of all parts."""
    metas = [meta for meta in found if meta is not None]
    if not metas:
        return None
    marks: dict[str, int] = {}
    for category, number in chain.from_iterable(reserved_ids(meta).items() for meta in metas):
        marks[category] = max(number, marks.get(category, 0))
    return {**metas[0], NEXT_IDS: marks} if marks else {**metas[0]}


def _blocks(parts: Sequence[Document]) -> list[Block]:
    blocks = list(parts[0].blocks)
    known = set(parts[0].index)
    for part in parts[1:]:
        last = blocks[-1]
        if not last.text.endswith("\n\n"):
            gap = "\n" if last.text.endswith("\n") else "\n\n"
            blocks[-1] = Block(last.path, last.text + gap, last.is_array)
        blocks += [
            block
            for block in part.blocks[1:]
            if block.path[:1] != (_META,) and (block.is_array or block.path not in known)
        ]
        known.update(part.index)  # a header that two parts have is added once
    return blocks


def memo_of(parts: Iterable[Tables]) -> dict[Any, Any]:
    """Return the memo of the first part with entries, which also stores data derived from all parts."""
    for part in parts:
        if not isinstance(part, Document) or part.has_entries:
            return part.memo
    return {}


class JoinedEdit:
    """An edit of the entries of all parts of a kind; each entry is written to the part that holds it.

    Args:
        kind: The kind of the entries.
        parts: The parts in order, as stored documents or as edits.
        edit: Returns the edit of a part, and calls `include` if the edit is new.
        limit: The size in characters up to which a part accepts new entries; None never starts another part.
    """

    def __init__(
        self,
        kind: EntryKind,
        parts: Mapping[str, Document | Edit],
        edit: Callable[[str], Edit],
        limit: int | None,
    ) -> None:
        self._kind = kind
        self._parts = dict(parts)
        self._edit = edit
        self._limit = limit
        self._joined: tuple[object, dict[Path, dict[str, Any]]] = (None, {})

    def include(self, part: str, edit: Edit) -> None:
        """Use an edit of a part for all further reads and changes."""
        self._parts[part] = edit

    @property
    def memo(self) -> dict[Any, Any]:
        """The indexes over all parts."""
        first, *others = self._parts.values()
        return memo_of([first, *others]) if others else first.memo

    @property
    def stamp(self) -> object:
        """The identity of this version of the entries."""
        stamps = tuple([part.stamp for part in self._parts.values()])
        return stamps[0] if len(stamps) == 1 else stamps

    def table(self, path: Path) -> Mapping[str, Any] | None:
        """Return the table at a path; a table above entries has the entries of all parts."""
        parts = list(self._parts.values())
        if len(parts) == 1:
            return parts[0].table(path)
        if path[:1] == (_META,):
            found = _meta_of([part.table((_META,)) for part in parts])
            return None if found is None else find_table({_META: found}, path)
        levels = depth_of(self._kind, path) - len(path)
        if levels <= 0:
            name = self.holder(path)
            return None if name is None else self._parts[name].table(path)
        stamp = self.stamp
        if self._joined[0] != stamp:
            self._joined = (stamp, {})
        known = self._joined[1]
        if path not in known:
            tables = [table for part in parts if (table := part.table(path)) is not None]
            known[path] = _merged(tables, levels) if tables else {}
        return known[path] or None

    def put(self, path: Path, data: Mapping[str, Any]) -> None:
        """Set the table at `path` to exactly `data`, in the part that holds it.

        Raises:
            InvalidValue: As `Edit.put`.
        """
        if path[:1] == (_META,):
            self._edit(next(iter(self._parts))).put(path, data)
            return
        name = self.holder(path)
        if name is None:
            length = len(render_block(path, data)) if self._limit is not None else 0
            name = self._part_for(length)
        self._edit(name).put(path, data)

    def restore(
        self, path: Path, text: str, data: Mapping[str, Any], *, after: Path | None = None
    ) -> None:
        """Restore the table at `path` from another version of its document; see `Edit.restore`."""
        name = self.holder(path) or self._part_for(len(text))
        self._edit(name).restore(path, text, data, after=after)

    def own_values(self, path: Path) -> dict[str, Any] | None:
        """Return the values of the table at `path`, without subtables that have headers."""
        name = self.holder(path)
        return None if name is None else self._edit(name).peek().own_values(path)

    def delete(self, path: Path) -> bool:
        """Remove the table at `path` from all parts; return False if it does not exist."""
        holders = [name for name, part in self._parts.items() if part.table(path) is not None]
        for name in holders:
            self._edit(name).delete(path)
        return bool(holders)

    def is_last(self, path: Path) -> bool:
        """Return whether no later part has tables beside the new one at `path`."""
        *_, last = (name for name, part in self._parts.items() if part.table(path[:-1]))
        return last == self.holder(path)

    def holder(self, path: Path) -> str | None:
        """Return the first part that holds the entry of a table, or None."""
        entry = path[: depth_of(self._kind, path)]
        for name, part in self._parts.items():
            if part.table(entry) is not None:
                return name
        return None

    def _part_for(self, length: int) -> str:
        """Return the part for a new entry: the last one, otherwise one that is half empty, otherwise a new one."""
        limit = self._limit
        last = next(reversed(self._parts))
        if limit is None:
            return last
        for name in reversed(self._parts):
            size = self._parts[name].size
            if size + length <= limit or size < _NEARLY_EMPTY:
                return name
            limit = (self._limit or 0) // 2
        return further_part(self._kind.name, [last])


def duplicates(
    kind: EntryKind, documents: Mapping[str, Document]
) -> Iterator[tuple[str, Path, str]]:
    """Yield the document and the path of each entry that is not read, and the document of the entry that has its key.

    The long layout counts before the short one, and an earlier part before a later one.
    """
    first: dict[Path, str] = {}
    parts = parts_among(kind.name, documents) if kind.is_split else ()
    stored = [
        (name, path) for name in parts if name in documents for path in kind.tables(documents[name])
    ]
    for name, path in sorted(stored, key=lambda each: each[1][0] != kind.name):
        place = path if path[0] == kind.name else (kind.name, *path)
        if place in first:
            yield name, path, first[place]
        first.setdefault(place, name)
