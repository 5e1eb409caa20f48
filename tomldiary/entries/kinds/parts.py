"""Parts: the documents of bounded size that the entries of one kind are spread over, read and changed as one.

    preferences.toml      the only one as long as it has space; TOMLDiary 0.9 reads it too
    preferences/002.toml  takes the next entries

Rules look at all parts: equal texts, limits, ids and keys. A change writes only the part that holds the entry,
and a new entry goes to the last part. No entry is ever moved. Where two parts hold one key, the first one counts.
The further documents of a namespace of items are `work~2`, since `work/002` is a namespace of its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from tomldiary.logging import get_logger
from tomldiary.toml.block_edit import render_block
from tomldiary.toml.document import Document, find_table
from tomldiary.toml.lexer import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tomldiary.entries.kind import EntryKind, Tables
    from tomldiary.toml.document import Path, Table
    from tomldiary.toml.edit import Edit

__all__ = [
    "LARGEST",
    "JoinedEdit",
    "duplicates",
    "join",
    "part_name",
    "part_of",
    "parts_among",
]

LARGEST = 128 * 1024
"""Characters that a document has at most before a new entry goes to another one."""
_PART = re.compile(r"(.+)~([2-9]|[1-9][0-9]{1,8})")
_FURTHER = re.compile(r"[^/]+/(00[2-9]|0[1-9][0-9]|[1-9][0-9]{2,8})", re.ASCII)
_logger = get_logger(__name__)
_META, _NEXT = "_meta", "next_ids"
_BARE = 500  # characters of a document without entries, at the most
_EMPTY = 2  # blocks of a document without entries: the head and `_meta`


def part_name(document: str, number: int) -> str:
    """Return the name of a further document of the same items by number, from 1 on: `work~2`."""
    return document if number == 1 else f"{document}~{number}"


def part_of(document: str) -> tuple[str, int]:
    """Undo `part_name`."""
    found = _PART.fullmatch(document)
    return (document, 1) if found is None else (found.group(1), int(found.group(2)))


def parts_among(name: str, listed: Iterable[str]) -> list[str]:
    """Return the parts of a kind by its name in their order; the first one may not exist."""
    further = [each for each in listed if each.startswith(f"{name}/") and _FURTHER.fullmatch(each)]
    return [name, *sorted(further, key=_number_of)]


def _number_of(part: str) -> int:
    return int(part.partition("/")[2] or 1)


def join(kind: EntryKind, parts: Sequence[Document]) -> Document:
    """Return all parts as one document, to read; its text has the tables of one part behind those of another."""
    if len(parts) == 1:
        return parts[0]
    meta = _meta_of([part.table((_META,)) for part in parts])
    data: Table = {} if meta is None else {_META: meta}
    for key in dict.fromkeys(key for part in parts for key in part.data):
        if key != _META:
            values = [part.data[key] for part in parts if key in part.data]
            data[key] = _merged(values, _depth(kind, (key,)) - 1)
    stamp = tuple([part.stamp for part in parts])
    return Document(_blocks(parts), data, memo=_memo(parts), stamp=stamp)


def _depth(kind: EntryKind, path: Path) -> int:
    """Return the length of the path of an entry: the short layout leaves out the root table."""
    return kind.depth - (path[:1] != (kind.name,))


def _merged(values: list[Any], levels: int) -> Any:
    """Return the tables at one path as one; `levels` are left down to entries. The first entry counts."""
    tables = [cast("Table", value) for value in values if type(value) is dict]
    if not tables or levels == 0 or len(values) == 1:
        return tables[0] if tables else values[0]
    found: Table = {}
    for table in tables:
        if found.keys().isdisjoint(table):
            found.update(table)
        else:
            if levels == 1:
                _logger.warning(
                    "two parts hold one key, and the first counts; problems() says which"
                )
            for key, value in table.items():
                found[key] = _merged([found[key], value], levels - 1) if key in found else value
    return found


def _meta_of(found: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Return the `_meta` of the first part, with the highest of the ids that any part reserves."""
    metas = [meta for meta in found if meta is not None]
    if not metas:
        return None
    marks: dict[str, int] = {}
    for meta in metas:
        reserved: Any = meta.get(_NEXT)
        for category, number in cast(
            "Table", reserved if isinstance(reserved, dict) else {}
        ).items():
            if isinstance(number, int):
                marks[category] = max(number, marks.get(category, 0))
    return {**metas[0], _NEXT: marks} if marks else {**metas[0]}


def _blocks(parts: Sequence[Document]) -> list[Block]:
    blocks = list(parts[0].blocks)
    known = parts[0].index.keys() | {()}
    is_same = any(not known.isdisjoint(each.index.keys() - {(_META,)}) for each in parts[1:])
    for part in parts[1:]:
        if blocks and not blocks[-1].text.endswith("\n\n"):
            last = blocks[-1]
            gap = "\n" if last.text.endswith("\n") else "\n\n"
            blocks[-1] = Block(last.path, last.text + gap, last.is_array)
        others = [block for block in part.blocks[1:] if block.path[:1] != (_META,)]
        if is_same:  # a header that two parts have stands once
            others = [block for block in others if block.is_array or block.path not in known]
            known = known | part.index.keys()
        blocks += others
    return blocks


def _memo(parts: Iterable[Tables]) -> dict[Any, Any]:
    """Return the indexes of the first part that has entries; what is worked out from all parts is kept there."""
    for part in parts:
        if not isinstance(part, Document) or len(part.blocks) > _EMPTY:
            return part.memo
    return {}


def duplicates(
    kind: EntryKind, documents: Mapping[str, Document | None]
) -> Iterator[tuple[str, Path, str]]:
    """Yield each entry that does not count since an earlier part has its key: part, path and the earlier part."""
    first: dict[Path, str] = {}
    for name in parts_among(kind.name, documents) if kind.is_split else ():
        document = documents.get(name)
        if document is None:
            continue
        for path in kind.tables(document):
            place = path if path[0] == kind.name else (kind.name, *path)
            earlier = first.setdefault(place, name)
            if earlier != name:
                yield name, path, earlier


class JoinedEdit:
    """Changes to the entries of all parts of a kind: each is written to the part that holds it.

    Args:
        kind: The kind of the entries.
        parts: The parts in their order, as they are stored or as edits of them.
        edit: Returns the edit of a part, and calls `include` if it is new.
        limit: Characters of a part; None never begins another one.
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
        self._sizes: dict[str, int] = {}
        """Characters of parts that took new entries."""
        self._joined: tuple[object, dict[Path, dict[str, Any]]] = (None, {})

    def include(self, part: str, edit: Edit) -> None:
        """Read and change a part through its edit from now on."""
        self._parts[part] = edit

    @property
    def memo(self) -> dict[Any, Any]:
        """The indexes over all parts."""
        return _memo(self._parts.values())

    @property
    def stamp(self) -> object:
        """The identity of this version of the entries."""
        stamps = tuple([part.stamp for part in self._parts.values()])
        return stamps[0] if len(stamps) == 1 else stamps

    def table(self, path: Path) -> Mapping[str, Any] | None:
        """Return the table at a path; of tables above entries, one of the entries of all parts."""
        parts = list(self._parts.values())
        if len(parts) == 1:
            return parts[0].table(path)
        if path[:1] == (_META,):
            found = _meta_of([part.table((_META,)) for part in parts])
            return None if found is None else find_table({_META: found}, path)
        levels = _depth(self._kind, path) - len(path)
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

    def put(self, path: Path, data: Mapping[str, Any], *, at_head: bool = False) -> None:
        """Make the table at `path` hold exactly `data`, in the part that holds it.

        Raises:
            InvalidValue: As `Edit.put`.
        """
        if path[:1] == (_META,):
            self._edit(next(iter(self._parts))).put(path, data, at_head=at_head)
            return
        name = self.holder(path)
        if name is None:
            length = len(render_block(path, data)) if self._limit is not None else 0
            name = self._roomy(length)
        self._edit(name).put(path, data, at_head=at_head)

    def restore(
        self, path: Path, text: str, data: Mapping[str, Any], *, after: Path | None = None
    ) -> None:
        """Write the table at `path` as another version of its document did; see `Edit.restore`."""
        name = self.holder(path) or self._roomy(len(text))
        self._edit(name).restore(path, text, data, after=after)

    def own_values(self, path: Path) -> dict[str, Any] | None:
        """Return the values of the table at `path` without tables below it that have headers."""
        name = self.holder(path)
        return None if name is None else self._edit(name).peek().own_values(path)

    def delete(self, path: Path) -> bool:
        """Remove the table at `path` from all parts; False if there is none."""
        holders = [name for name, part in self._parts.items() if part.table(path) is not None]
        for name in holders:
            self._edit(name).delete(path)
        return bool(holders)

    def holder(self, path: Path) -> str | None:
        """Return the first part that holds a table, or the entry that it is a part of."""
        entry = path[: _depth(self._kind, path)]
        for name, part in self._parts.items():
            if part.table(entry) is not None:
                return name
        return None

    def _roomy(self, length: int) -> str:
        """Return the part that takes a new entry: the last one, else any half empty one, else a new one."""
        limit = self._limit
        last = next(reversed(self._parts))
        if limit is None:
            return last
        for name in reversed(self._parts):
            size = self._sizes.get(name) or self._parts[name].size
            if size + length <= limit or size < _BARE:
                self._sizes[name] = size + length
                return name
            limit = (self._limit or 0) // 2
        return f"{self._kind.name}/{_number_of(last) + 1:03d}"
