"""Parts: documents of bounded size with the entries of one kind, read and changed as one document.

    preferences.toml      the only part as long as it has space; TOMLDiary 0.9 also reads it
    preferences/002.toml  has the next entries

Rules for equal texts, limits, ids and keys apply to all parts together. A change writes only the part with the entry,
and a new entry is added to the last part. Entries are never moved. If two parts have the same key, the first one is
valid. The further documents of a namespace of items are `work~2`, because `work/002` is another namespace.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from tomldiary.logging import get_logger
from tomldiary.toml.document import Document, Path, Table
from tomldiary.toml.lexer import Block

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tomldiary.entries.kind import EntryKind, Tables

__all__ = [
    "LARGEST",
    "duplicates",
    "join",
    "memo_of",
    "merged",
    "meta_of",
    "number_of",
    "part_name",
    "part_of",
    "parts_among",
]

LARGEST = 128 * 1024
"""The number of characters of a document above which a new entry is added to another one."""
_PART = re.compile(r"(.+)~([2-9]|[1-9][0-9]{1,8})")
_FURTHER = re.compile(r"[^/]+/(00[2-9]|0[1-9][0-9]|[1-9][0-9]{2,8})", re.ASCII)
_logger = get_logger(__name__)
_META, _NEXT = "_meta", "next_ids"


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
    return [name, *sorted(further, key=number_of)]


def number_of(part: str) -> int:
    """Return the number of a part, counted from 1."""
    return int(part.partition("/")[2] or 1)


def join(kind: EntryKind, parts: Sequence[Document]) -> Document:
    """Return all parts as one document for reading; its text has the tables of the parts in order."""
    if len(parts) == 1:
        return parts[0]
    meta = meta_of([part.table((_META,)) for part in parts])
    data: Table = {} if meta is None else {_META: meta}
    for key in dict.fromkeys(key for part in parts for key in part.data):
        if key != _META:
            values = [part.data[key] for part in parts if key in part.data]
            data[key] = merged(values, kind.depth_of((key,)) - 1)
    parents = set[Path]().union(*(part.parents for part in parts))
    stamp = tuple([part.stamp for part in parts])
    return Document(_blocks(parts), data, parents=parents, memo=memo_of(parts), stamp=stamp)


def merged(values: list[Any], levels: int) -> Any:
    """Return the tables at one path as one table; `levels` is the depth of the entries in it.

    If several parts have the same entry, the first one is used.
    """
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
                found[key] = merged([found[key], value], levels - 1) if key in found else value
    return found


def meta_of(found: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Return the `_meta` of the first part, with the highest reserved ids of all parts."""
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


def duplicates(
    kind: EntryKind, documents: Mapping[str, Document | None]
) -> Iterator[tuple[str, Path, str]]:
    """Yield the part, the path and the earlier part of each entry whose key an earlier part has."""
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
