"""What a transaction becomes: the new texts of its documents, and the records that history gets.

What people (or another program) saved since history's end is stored first, as a transaction of its own.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from tomldiary.entries.kinds import entry_kind
from tomldiary.entries.models import FORMAT_VERSION
from tomldiary.errors import Conflict
from tomldiary.hand_edits.detect import NOTHING, Known, is_being_saved, look
from tomldiary.history.record import Change, Record, block_changes, next_sequence, render_record
from tomldiary.history.timeline import EMPTY, Timeline
from tomldiary.storage.protocol import Commit
from tomldiary.toml.diff import changed_spans
from tomldiary.toml.document import Document
from tomldiary.toml.edit import Edit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tomldiary.history.logged_kinds import LoggedKinds
    from tomldiary.history.record import Source
    from tomldiary.storage.protocol import Backend, DisplacedEdit, Token

__all__ = ["Changed", "Prepared", "Saves", "merge_displaced", "prepare", "prepare_saves"]

_GLANCE = 0.05  # seconds between two looks for a file that is gone

Changed = dict[str, "tuple[Known | None, Edit]"]
"""Documents with changes, by kind: what was known before, and the edit."""


@dataclass(slots=True)  # not frozen: those take longer to make
class Prepared:
    """A transaction that is ready to be stored. Never changed."""

    seq: int
    commit: Commit
    documents: dict[str, Document]
    results: dict[str, str]
    broken: dict[str, Known]
    """Documents whose files do not parse: they are never overwritten, and catch up once they do."""

    def known(self, tokens: Mapping[str, Token]) -> Iterator[tuple[str, Known | None]]:
        """Yield what is known of each document now that it is stored; None where a save came in between."""
        for kind, document in self.documents.items():
            base = self.broken.get(kind)
            if base is not None:
                token, problem = base.token, base.problem
            elif kind in tokens:
                token, problem = tokens[kind], None
            else:
                yield kind, None
                continue
            yield (
                kind,
                Known(
                    token,
                    document,
                    self.results[kind],
                    is_logged=True,
                    problem=problem,
                    seen=self.seq,
                ),
            )


@dataclass(frozen=True, slots=True)
class Saves:
    """What people saved, as a transaction that is ready to be stored.

    It is one of its own because a crash has to leave all of a transaction or nothing: ours is redone on the
    text it is based on, so where a save was merged that text must be in the file first.
    """

    commit: Commit
    saves: dict[str, Known]
    """The saved documents that there still are."""
    changed: Changed

    def rebased(self, tokens: Mapping[str, Token]) -> Changed:
        """Return the changes on what is stored now; on None where somebody has saved once more."""
        fresh = dict(self.changed)
        for kind, known in self.saves.items():
            token = tokens.get(kind) if known.is_merged else known.token
            base = None if token is None else replace(known, token=token, is_merged=False)
            fresh[kind] = (base, self.changed[kind][1])
        return fresh


def prepare_saves(
    backend: Backend, user: str, changed: Changed, logged: LoggedKinds, patience: float
) -> Saves | None:
    """Work out what people saved since history's end, if anything; the caller holds the user's lock.

    Raises:
        Conflict: A document that was gone is back, or may come back in longer than `patience` seconds.
    """
    known = [base for base, _ in changed.values()]
    if all(base is not None and base.is_logged and base.logged is None for base in known):
        return None
    last = backend.last_record(user)
    if last is None and not any(known):
        return None  # the first thing that is known of this user
    seq = next_sequence(last)
    changed = {
        kind: (base and _numbered(base, seq), edit) for kind, (base, edit) in changed.items()
    }
    record = _outside_changes(backend, user, changed, seq, logged, patience)
    if record is None:
        return None
    saves = {
        kind: base
        for kind, (base, _) in changed.items()
        if base is not None and kind in record.results
    }
    commit = Commit(
        {kind: base.document.encoded for kind, base in saves.items() if base.is_merged},
        {kind: base.token if base is not None else None for kind, (base, _) in changed.items()},
        [render_record(record)],
        replaces_save=True,
    )
    return Saves(commit, saves, changed)


def merge_displaced(edit: DisplacedEdit) -> Commit | None:
    """Return the transaction that logs a displaced hand edit; None if history has it already.

    Raises:
        DocumentError: The edit cannot be read or merged.
    """
    history = cast("Backend", edit.history)  # looking asks for nothing else
    standing = None
    if edit.standing is not None:
        document = Document.parse(edit.standing.text)
        standing = Known(edit.standing.token, document, document.fingerprint, is_logged=True)
    known = look(history, "", edit.kind, edit.saved, standing)
    if known.problem is not None:
        raise known.problem
    if known.is_logged:
        return None
    known = replace(known, token=edit.token)
    return _prepare_displaced(history, edit.kind, known, is_published=standing is not None)


def _prepare_displaced(backend: Backend, kind: str, known: Known, *, is_published: bool) -> Commit:
    """Return the transaction of a hand edit that is not in its document's file any more.

    Args:
        backend: For history.
        kind: The document.
        known: The save with ours merged into it, and the version that stands there.
        is_published: Whether the merged text takes the place of that, and not only history has it.
    """
    seq = next_sequence(backend.last_record(""))
    edit = Edit(known.document)
    if known.logged is not None:
        _keep_removed_ids(kind, edit, known.logged)
    known = _numbered(replace(known, document=edit.done(), is_merged=True), seq)
    record = Record(seq, "hand", [], {}, {}, actor="hand")
    _add_save(record, kind, known)
    contents = {kind: known.document.encoded} if is_published else {}
    return Commit(contents, {kind: known.token}, [render_record(record)], replaces_save=True)


def _keep_removed_ids(name: str, edit: Edit, before: Document) -> None:
    """Keep the ids of entries that a hand edit removed from being given out again."""
    kind = entry_kind(name)
    kind.keep_ids(edit, [path for path in kind.tables(before) if edit.table(path) is None])


def _numbered(known: Known, seq: int) -> Known:
    """Give a merged text a number of its own: an editor may open it before the next one is there."""
    if not known.is_merged:
        return known
    edit = Edit(known.document)
    meta = known.document.table(("_meta",)) or {}
    edit.put(("_meta",), {**meta, "seq": seq}, at_head=True)
    document = edit.done()
    return replace(known, document=document, digest=document.fingerprint)


def prepare(
    backend: Backend,
    user: str,
    changed: Changed,
    source: Source,
    schema_name: str,
    *,
    replaces_save: bool = False,
) -> Prepared:
    """Work out what is to be stored; the caller holds the user's lock.

    Args:
        backend: Where.
        user: Whose memory.
        changed: The documents.
        source: What history will say.
        schema_name: For new documents.
        replaces_save: Whether a save was stored just before.

    Raises:
        DiaryError: A result is larger than a reader would accept, or history cannot be read.
    """
    seq = next_sequence(backend.last_record(user))
    record = Record(
        seq=seq,
        type=source.type,
        changes=[],
        bases={},
        results={},
        session=source.session,
        actor=source.actor,
        reason=source.reason,
        operation=source.operation,
        content=source.fingerprint() if source.operation else "",
    )
    documents: dict[str, Document] = {}
    contents: dict[str, bytes] = {}
    expected: dict[str, Token | None] = {}
    broken: dict[str, Known] = {}
    for kind, (base, edit) in changed.items():
        if base is not None and base.logged is not None:
            _keep_removed_ids(kind, edit, base.logged)
        _stamp(edit, seq, schema_name)
        documents[kind] = document = edit.done()
        record.results[kind] = document.fingerprint
        if base is None:
            old, record.bases[kind], expected[kind] = NOTHING, EMPTY, None
        else:
            old, record.bases[kind], expected[kind] = base.document, base.digest, base.token
            replaces_save = replaces_save or base.is_merged
        spans = edit.spans if edit.base is old else changed_spans(old.blocks, document.blocks)
        record.changes.extend([Change(kind, *span) for span in spans])
        if base is not None and base.problem:
            broken[kind] = base
        else:
            contents[kind] = document.encoded
    commit = Commit(
        contents, expected, [render_record(record)], replaces_save, fingerprints=record.results
    )
    return Prepared(seq, commit, documents, record.results, broken)


def _stamp(edit: Edit, seq: int, schema_name: str) -> None:
    meta = edit.table(("_meta",)) or {}
    if meta.get("version") == FORMAT_VERSION and "schema_name" in meta and "seq" in meta:
        edit.set(("_meta",), "seq", seq)
        return
    changed = {**meta, "version": FORMAT_VERSION}
    changed.setdefault("schema_name", schema_name)
    edit.put(("_meta",), {**changed, "seq": seq}, at_head=True)


def _outside_changes(
    backend: Backend, user: str, changed: Changed, seq: int, logged: LoggedKinds, patience: float
) -> Record | None:
    """Return a record of what people (or another program) saved since history's end, if anything."""
    saved = Record(seq, "hand", [], {}, {}, actor="hand")
    for kind, (base, _) in changed.items():
        if base is None:
            if seq == 1 or not logged.may_hold(user, kind):
                continue
            last = Timeline(backend, user).last(kind)
            if last is None or last.results[kind] == EMPTY:
                continue
            _wait_for_return(backend, user, kind, patience)
            # Somebody removed the file.
            text = Timeline(backend, user).text(kind)
            saved.changes.append(Change(kind, 0, text, ""))
            saved.bases[kind], saved.results[kind] = last.results[kind], EMPTY
        else:
            _add_save(saved, kind, base)
    return saved if saved.results else None


def _add_save(record: Record, kind: str, known: Known) -> None:
    """Add to a record what somebody saved since history's end, if anything."""
    if known.logged is not None:
        record.changes.extend(block_changes(kind, known.logged.blocks, known.document.blocks))
        record.bases[kind], record.results[kind] = known.logged.fingerprint, known.digest
        record.conflicts.extend(known.conflicts)
    elif not known.is_logged:
        # The whole text: history does not know what it was before.
        record.changes.append(Change(kind, 0, "", known.document.text))
        record.bases[kind], record.results[kind] = EMPTY, known.digest


def _wait_for_return(backend: Backend, user: str, kind: str, patience: float) -> None:
    """Wait until a file that is gone was removed, and not only made way for what an editor is about to write."""
    deadline = time.monotonic() + patience
    while backend.token(user, kind) is None:
        if not is_being_saved(backend, user, kind):
            return
        if time.monotonic() >= deadline:
            raise Conflict(f"{backend.place(user, kind)} was taken away just now. Try again.")
        time.sleep(_GLANCE)
    raise Conflict(f"{backend.place(user, kind)} was saved by somebody just now.")
