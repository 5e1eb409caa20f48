"""Three-way merge of a hand edit with the agent's writes since the base version.

The unit is a table. A table that one side changed is taken from that side. If both sides changed it, the hand edit
wins, and the other change stays in history as a conflict. The result starts from the text of the hand edit, so
comments, order and untouched tables stay as they were saved.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tomldiary.entries.kinds import entry_path, own_tables, own_values
from tomldiary.toml.block_edit import split_tail
from tomldiary.toml.document import Document, Path, Table
from tomldiary.toml.edit import Edit
from tomldiary.toml.lexer import Block
from tomldiary.toml.values import render_path, same_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = ["Merged", "changed_tables", "closest", "merge"]

_META = "_meta"
_BLANK = re.compile(r"\n[ \t\r]*\n")


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged document, and the tables in which a hand edit displaced our change."""

    document: Document
    conflicts: list[str] = field(default_factory=list[str])


def merge(kind: str, base: Document, ours: Document, theirs: Document) -> Merged:
    """Merge our changes since `base` into the hand edit `theirs`; all three are versions of the document `kind`."""
    edit = Edit(theirs)
    conflicts: list[str] = []
    for path in changed_tables(kind, base, ours):
        old, new, now = (own_values(kind, each, path) for each in (base, ours, theirs))
        if same_value(now, new):
            continue
        if path[0] == _META:
            if new is not None:
                edit.put(path, {**(theirs.table(path) or {}), **_kept_by_us(new, now)})
            continue
        if not same_value(now, old):
            conflicts.append(render_path(path))
            continue
        if new is None and entry_path(kind, path) is not None:
            edit.delete(path)
            continue
        _take(edit, base, ours, theirs, path, old, new or {})
    for path in _rewritten(base, ours, theirs):
        edit.restore(path, ours.index[path].text, ours.own_values(path) or {})
    return Merged(_with_comments(base, ours, edit.done()), conflicts)


def closest(kind: str, versions: Sequence[Document], saved: Document) -> Document:
    """Return the version that a hand edit differs least from: in values, then in text, then the newest."""

    def distance(version: Document) -> tuple[int, int]:
        known = {block.text for block in version.blocks}
        return len(changed_tables(kind, version, saved)), sum(
            block.text not in known for block in saved.blocks
        )

    return versions[0] if len(versions) == 1 else min(reversed(versions), key=distance)


def _rewritten(base: Document, ours: Document, theirs: Document) -> list[Path]:
    """Return the tables that `ours` rewrote with the same values, and that the hand edit did not rewrite."""
    return [
        path
        for path, block in ours.index.items()
        if (was := base.index.get(path)) is not None
        and (now := theirs.index.get(path)) is not None
        and path[0] != _META
        and block.text != was.text
        and _body(now) == _body(was) != _body(block)
        and same_value(base.own_values(path), ours.own_values(path))
    ]


def _body(block: Block) -> str:
    return split_tail(block.text)[0]


def _with_comments(base: Document, ours: Document, merged: Document) -> Document:
    """Add the comments between tables that `ours` gained since `base` and the merged text lacks."""
    if all(block.text in {known.text for known in base.blocks} for block in ours.blocks):
        return merged
    known = {comment for document in (base, merged) for _, comment in _comments(document)}
    missing = [(path, comment) for path, comment in _comments(ours) if comment not in known]
    if not missing:
        return merged
    blocks = list(merged.blocks)
    for path, comment in missing:
        at = next((n for n, block in enumerate(blocks) if block.path == path), len(blocks) - 1)
        text = blocks[at].text
        newline = "\r\n" if "\r\n" in comment else "\n"
        gap = newline if text.endswith("\n") else newline * 2
        end = newline if at < len(blocks) - 1 else ""
        kept = text[: -len(newline)] if text.endswith(newline * 2) else text
        added = f"{kept}{gap if kept else ''}{comment}{newline}{end}"
        blocks[at] = Block(blocks[at].path, added, blocks[at].is_array)
    return Document(blocks, merged.data)


def _comments(document: Document) -> Iterator[tuple[Path, str]]:
    """Yield the comments that belong to no table, with the table before them."""
    for block in document.blocks:
        for part in _BLANK.split(split_tail(block.text)[1]):
            if part.strip():
                yield block.path, part.strip("\r\n")


def _take(
    edit: Edit,
    base: Document,
    ours: Document,
    theirs: Document,
    path: Path,
    old: Table | None,
    new: Table,
) -> None:
    block, known = ours.index.get(path), theirs.index.get(path)
    untouched = (
        known is None
        or (was := base.index.get(path)) is None
        or split_tail(was.text)[0] == split_tail(known.text)[0]
    )
    if block is not None and untouched and same_value(new, ours.own_values(path)):
        edit.restore(path, block.text, new, after=ours.before(path))
    else:
        edit.replace_values(path, old, new)


def changed_tables(kind: str, base: Document, ours: Document) -> list[Path]:
    """Return the tables that differ, in the order of the documents."""
    before, after = own_tables(kind, base), own_tables(kind, ours)
    return [
        path for path in {**before, **after} if not same_value(before.get(path), after.get(path))
    ]


def _kept_by_us(ours: dict[str, Any], theirs: dict[str, Any] | None) -> dict[str, Any]:
    """Return our fields of `_meta` to keep: those that only the engine writes, and those that the edit lacks."""
    managed = {
        "seq",
        "next_ids",
        "turns_since_compaction",
        "total_turns",
        "last_run",
        "turns_at_last_run",
    }
    return {
        key: value for key, value in ours.items() if key in managed or key not in (theirs or {})
    }
