"""Three-way merge of a hand edit with the agent's writes since the base version.

The unit is a table. A table that one side changed is taken from that side. If both sides changed it, the hand edit
wins, and the other change stays in history as a conflict. The result starts from the text of the hand edit, so
comments, order and untouched tables stay as they were saved.

`_meta.seq` names the base version, because an editor keeps the number in the text it opened. An editor may also continue
from its own save, without reading the merged result.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tomldiary.entries.fields import last_used
from tomldiary.entries.kinds import entry_kind, entry_path, own_tables, own_values
from tomldiary.errors import DocumentError
from tomldiary.history.timeline import EMPTY, Timeline, redo
from tomldiary.toml.document import FORMAT_VERSION, META, Document, Path, Table, split_tail
from tomldiary.toml.edit import Edit
from tomldiary.toml.lexer import Block
from tomldiary.toml.values import changed_keys, render_path, same_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tomldiary.history.record import Latest, Record

NOTHING = Document.parse("")
_BLANK = re.compile(r"\n[ \t\r]*\n")


@dataclass(frozen=True, slots=True)
class Merged:
    """The merged document, and the tables in which a hand edit displaced our change."""

    document: Document
    conflicts: list[str] = field(default_factory=list[str])


def merge(kind: str, base: Document, ours: Document, theirs: Document) -> Merged:
    """Merge our changes since `base` into the hand edit `theirs`; all three are versions of the document `kind`."""
    if ours.meta.get("version") == FORMAT_VERSION != base.meta.get("version"):
        base, theirs = (_converted(kind, each) for each in (base, theirs))  # as ours was
    edit = Edit(theirs)
    conflicts: list[str] = []
    for path in _changed_tables(kind, base, ours):
        old, new, now = (own_values(kind, each, path) for each in (base, ours, theirs))
        if same_value(now, new):
            continue
        if path[0] == META:
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


def _converted(kind: str, document: Document) -> Document:
    """Return a document in the newest layout; itself if a value stands where a table belongs."""
    edit = Edit(document)
    with suppress(DocumentError):
        entry_kind(kind).migrate(edit)
    return edit.done()


def _closest(kind: str, versions: Sequence[Document], saved: Document) -> Document:
    """Return the version that a hand edit differs least from: in values, then in text, then the newest."""
    lines = {*saved.text.split("\n")}

    def distance(version: Document) -> tuple[int, int]:
        differing = lines.symmetric_difference(version.text.split("\n"))
        return len(_changed_tables(kind, version, saved)), len(differing)

    return versions[0] if len(versions) == 1 else min(reversed(versions), key=distance)


def _rewritten(base: Document, ours: Document, theirs: Document) -> list[Path]:
    """Return the tables that `ours` rewrote with the same values, and that the hand edit did not rewrite."""
    return [
        path
        for path, block in ours.index.items()
        if (was := base.index.get(path)) is not None
        and (now := theirs.index.get(path)) is not None
        and path[0] != META
        and block.text != was.text
        and _body(now) == _body(was) != _body(block)
        and same_value(base.own_values(path), ours.own_values(path))
        and ours.whole_block(path) is not None
    ]


def _body(block: Block) -> str:
    return split_tail(block.text)[0]


def _with_comments(base: Document, ours: Document, merged: Document) -> Document:
    """Add the comments between tables that `ours` gained since `base` and the merged text lacks."""
    texts = {block.text for block in base.blocks}
    if all(block.text in texts for block in ours.blocks):
        return merged
    known = {comment for _, comment in _comments(base)}
    lines = {line.strip() for line in merged.text.split("\n")}
    missing = [
        (path, comment)
        for path, comment in _comments(ours)
        if comment not in known and not lines.issuperset(map(str.strip, comment.split("\n")))
    ]
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
    block, known = ours.whole_block(path), theirs.index.get(path)
    untouched = known is None or (was := base.index.get(path)) is None or _body(was) == _body(known)
    if block is not None and untouched and same_value(new, ours.own_values(path)):
        edit.restore(path, block.text, new, after=ours.before(path))
    else:
        edit.replace_values(path, old, new)


def _changed_tables(kind: str, base: Document, ours: Document) -> list[Path]:
    """Return the tables that differ, in the order of the documents."""
    return changed_keys(own_tables(kind, base), own_tables(kind, ours))


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


# The base version


def base_of_save(
    timeline: Timeline, kind: str, saved: Document, ours: Document, last: Latest
) -> Document:
    """Return the version that a hand edit is based on.

    Args:
        timeline: The user's history.
        kind: The document.
        saved: The hand edit.
        ours: The document at the end of history.
        last: The record of that version.
    """
    seq = written_number(saved)
    if seq is None and written_number(ours) is not None:
        return _base_without_number(timeline, kind, saved, ours)
    if type(seq) is not int or not 0 < seq <= last.seq:
        return ours
    if seq == written_number(ours) and last.type != "hand":
        return ours
    try:
        records = list(timeline.records(after=seq - 1))
        if records and records[-1].seq == seq and kind not in records[-1].results:
            # The text was copied from another document, such as another part of the kind.
            return ours
        later = [each for each in reversed(records) if each.seq > seq and kind in each.results]
        if any(record.results[kind] == EMPTY for record in later):
            # The file was removed since, so all text of the save counts as new.
            return NOTHING
        base = _closest(kind, _versions(timeline, kind, seq, later, ours.text), saved)
        return _with_earlier_saves(base, kind, saved, later)
    except DocumentError:
        # History does not have the base version. With an empty base, neither side deletes anything.
        return NOTHING


def written_number(document: Document) -> object:
    """Return the transaction number in the `_meta` of a document."""
    return document.meta.get("seq")


def before_saves(timeline: Timeline, kind: str) -> Document:
    """Return a document before the hand edits at the end of history.

    Raises:
        DocumentError: History is damaged, or does not reach back that far.
    """
    for record in timeline.records():
        if kind in record.results and record.type != "hand":
            return Document.parse(timeline.text(kind, record.seq))
    return NOTHING


def _base_without_number(
    timeline: Timeline, kind: str, saved: Document, ours: Document
) -> Document:
    """Return the version that a hand edit without a number is based on.

    It is the current one, or one from before the diary first wrote to the file. An edit of an older one shares an entry
    with it, and has no entry as the diary wrote it since.
    """
    tables = entry_kind(kind).tables

    def stamps(document: Document) -> set[tuple[Path, str]]:
        used = ((path, last_used(entry)) for path, entry in tables(document).items())
        return {each for each in used if each[1]}

    entries, seen = tables(saved).keys(), stamps(saved) & stamps(ours)
    versions: list[Document] = []
    text = ""
    try:
        for record in timeline.first_edits(kind):
            text = redo(text, record, kind)
            versions.append(Document.parse(text))
    except DocumentError:
        return ours  # history is damaged
    older = [each for each in versions if entries & tables(each).keys() and seen <= stamps(each)]
    return _closest(kind, [*older, ours], saved)


def _versions(
    timeline: Timeline, kind: str, seq: int, later: list[Record], now: str
) -> list[Document]:
    """Return the versions of a document with the number `seq`, oldest first; `now` is its current text.

    A hand edit keeps the number of its base version, and an editor may continue from such an edit.
    """
    text = timeline.texts([kind], seq, {kind: now})[kind]
    versions = [Document.parse(text)]
    for record in later:
        if record.type != "hand":
            break
        text = redo("" if record.bases[kind] == EMPTY else text, record, kind)
        version = Document.parse(text)
        if written_number(version) != seq:
            break  # the edit was merged, so it has a new number
        versions.append(version)
    return versions


def _with_earlier_saves(
    base: Document, kind: str, saved: Document, later: list[Record]
) -> Document:
    """Return a base version with those tables of a hand edit that an earlier hand edit had already added to history.

    An editor that continues from its own save repeats these tables, and other writers may have changed them since.
    """
    saves = [
        [_tables(kind, parts) for parts in record.parts().get(kind, ([], []))]
        for record in later
        if record.type == "hand"
    ]
    edit = Edit(base)
    for path in _changed_tables(kind, base, saved) if saves else ():
        values = own_values(kind, saved, path)
        is_repeated = any(
            not same_value(old.get(path), new.get(path)) and same_value(new.get(path), values)
            for old, new in saves
        )
        if not is_repeated or path[0] == META:
            continue
        if values is None and entry_path(kind, path) is not None:
            edit.delete(path)
        else:
            edit.replace_values(path, own_values(kind, base, path), values or {})
    return edit.done() if edit.is_changed else base


def _tables(kind: str, parts: Sequence[Document]) -> dict[Path, Table]:
    """Return the tables of several parts of a text; of equal paths, the first one."""
    found: dict[Path, Table] = {}
    for part in reversed(parts):
        found |= own_tables(kind, part)
    return found
