"""Three versions of a document become one: a person's save, what we wrote meanwhile, and their base.

Tables are the unit. A table that only one side changed is taken from that side; where both changed
it, the person wins, and ours stays in history as a conflict. The result starts from the person's
text, so comments, order and everything untouched stay as they were saved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tomldiary.toml.blockedit import split_tail
from tomldiary.toml.values import render_path, same_value

if TYPE_CHECKING:
    from tomldiary.toml.document import Document, Path

__all__ = ["Merged", "merge"]

_META = "_meta"


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged document, and the tables in which a person's change displaced ours."""

    document: Document
    conflicts: list[str] = field(default_factory=list[str])


def merge(base: Document, ours: Document, theirs: Document) -> Merged:
    """Merge `ours` into `theirs`, both grown from `base`."""
    edit = theirs.edit()
    conflicts: list[str] = []
    for path in _changed(base, ours):
        old, new, now = base.own_values(path), ours.own_values(path), theirs.own_values(path)
        if _same(now, new):
            continue
        if path[0] == _META:
            if new is not None:
                edit.put(
                    path, {**(theirs.table(path) or {}), **_kept_by_us(new, now)}, at_head=True
                )
            continue
        if not _same(now, old):
            conflicts.append(render_path(path))
            continue
        if new is None:
            edit.delete(path)
            continue
        _take(edit, base, ours, theirs, path, new)
    return Merged(edit.done(), conflicts)


def _take(
    edit: Any, base: Document, ours: Document, theirs: Document, path: Path, new: dict[str, Any]
) -> None:
    block, known = ours.index.get(path), theirs.index.get(path)
    untouched = (
        known is None
        or (was := base.index.get(path)) is None
        or split_tail(was.text)[0] == split_tail(known.text)[0]
    )
    if block is not None and untouched:
        edit.restore(path, block.text, new, after=ours.before(path))
    else:
        edit.put(path, {**(theirs.table(path) or {}), **new})


def _changed(base: Document, ours: Document) -> list[Path]:
    """Return the tables that differ, in the order of the documents."""
    paths = dict.fromkeys([*base.index, *ours.index])
    shared = ours.sharing_blocks_of(base).index
    return [
        path
        for path in paths
        if shared.get(path) is not base.index.get(path)
        and not _same(base.own_values(path), ours.own_values(path))
    ]


def _same(left: dict[str, Any] | None, right: dict[str, Any] | None) -> bool:
    return left is right or (left is not None and right is not None and same_value(left, right))


def _kept_by_us(ours: dict[str, Any], theirs: dict[str, Any] | None) -> dict[str, Any]:
    """Return the bookkeeping that only we do; what else a person wrote into `_meta` stays."""
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
