"""Stores hand edits that history does not have yet, as transactions of their own before the write that found them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tomldiary.engine.transaction import block_changes, keep_removed_ids, prepare
from tomldiary.errors import HandEditConflict
from tomldiary.hand_edits.detect import Known, is_being_saved, look
from tomldiary.history.record import Change, Record, next_sequence, render_record
from tomldiary.history.timeline import EMPTY, Timeline
from tomldiary.storage.locks import wait_for_save
from tomldiary.storage.protocol import Backend, Commit, DisplacedEdit, LocalFolder
from tomldiary.toml.document import Document
from tomldiary.toml.edit import Edit

if TYPE_CHECKING:
    from tomldiary.engine.engine import Engine
    from tomldiary.engine.transaction import Changed, Prepared
    from tomldiary.history.record import Source


class Saves(NamedTuple):
    """Hand edits, as a transaction that is ready to be stored.

    It is separate from the write that found the edits. After a crash a transaction is redone on its base text, so
    the merged text must be in the file first.
    """

    record: Record
    commit: Commit
    saves: dict[str, Known]
    """The edited documents that still exist."""
    changed: Changed


def prepare_saves(engine: Engine, user: str, changed: Changed, patience: float) -> Saves | None:
    """Prepare the hand edits that history does not have yet, if any; the caller holds the user's lock.

    Raises:
        HandEditConflict: A removed document exists again, or is still being saved after `patience` seconds.
    """
    seq = next_sequence(engine.backend.last_record(user))
    # In a database no editor has the document open, so that a number of its own tells each edit from its base version.
    is_copy = not isinstance(engine.backend, LocalFolder)
    changed = {
        kind: (base and _numbered(base, seq, is_copy=is_copy), edit)
        for kind, (base, edit) in changed.items()
    }
    record = _hand_record(engine, user, changed, seq, patience)
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
    return Saves(record, commit, saves, changed)


def merge_displaced(edit: DisplacedEdit) -> Commit | None:
    """Return the transaction that logs a displaced hand edit, or None if history has it already.

    Raises:
        DocumentError: The edit cannot be read or merged.
    """
    standing = None
    if edit.standing is not None:
        document = Document.parse(edit.standing.text)
        standing = Known(edit.standing.token, document, is_logged=True)
    known = look(edit.history, "", edit.kind, edit.saved, standing)
    if known.problem is not None:
        raise known.problem
    if known.is_logged:
        return None
    seq = next_sequence(next(edit.history.records(""), None))
    fresh = Edit(known.document)
    if known.logged is not None:
        keep_removed_ids(edit.kind, fresh, known.logged)
    known = _numbered(replace(known, document=fresh.done(), is_merged=True), seq)
    record = Record(seq, "hand", [], {}, {}, actor="hand")
    add_save(record, edit.kind, known)
    # If our version is no longer in the file, the file has a newer hand edit, so this one is only logged.
    contents = {edit.kind: known.document.encoded} if standing is not None else {}
    expected = {edit.kind: edit.token}
    return Commit(contents, expected, [render_record(record)], replaces_save=True)


def _numbered(known: Known, seq: int, *, is_copy: bool = False) -> Known:
    """Write the number of the transaction into a merged text, because an editor may open it before the next write.

    An edited copy gets the number as well.
    """
    is_edited_copy = is_copy and known.logged is not None
    if known.is_logged or not (known.is_merged or is_edited_copy):
        return known
    edit = Edit(known.document)
    edit.set_meta(seq=seq)
    return replace(known, document=edit.done(), is_merged=True)


def log_only(engine: Engine, user: str, changed: Changed, source: Source) -> Prepared | None:
    """Prepare changes that a hand edit displaces, for history only; merging the edit reports them as a conflict.

    The edited files are unchanged; the next read merges them. Return None if this is not possible, because history
    does not end at the base of the changes, or because a file was created or removed.

    Raises:
        HandEditConflict: A removed document exists again.
    """
    now = {kind: engine.backend.token(user, kind) for kind in changed}
    if any((base is None) != (now[kind] is None) for kind, (base, _) in changed.items()):
        return None
    if prepare_saves(engine, user, changed, patience=0.0) is not None:
        return None
    prepared = prepare(changed, source, engine.schema_name, engine.backend.last_record(user))
    contents, expected = prepared.commit.contents, prepared.commit.expected
    same = {kind for kind, token in expected.items() if now[kind] == token}
    commit = replace(
        prepared.commit,
        contents={kind: text for kind, text in contents.items() if kind in same},
        expected={kind: expected[kind] for kind in same},
    )
    return replace(prepared, commit=commit)


def _hand_record(
    engine: Engine, user: str, changed: Changed, seq: int, patience: float
) -> Record | None:
    """Return a record of the hand edits since the end of history, if any."""
    saved = Record(seq, "hand", [], {}, {}, actor="hand")
    for kind, (base, _) in changed.items():
        if base is None:
            if seq == 1 or kind not in engine.whole_history(user).documents:
                continue
            last = engine.index(user).of(kind)
            if last is None or last.result == EMPTY:
                continue
            _wait_for_return(engine.backend, user, kind, patience)
            # The file was removed permanently.
            text = Timeline(engine.backend, user).text(kind)
            saved.changes.append(Change(kind, 0, text, ""))
            saved.bases[kind], saved.results[kind] = last.result, EMPTY
        else:
            add_save(saved, kind, base)
    return saved if saved.results else None


def add_save(record: Record, kind: str, known: Known) -> None:
    """Add the hand edit of one document to a record, if there is one."""
    if known.logged is not None:
        record.changes.extend(block_changes(kind, known.logged, known.document))
        record.bases[kind] = known.logged.fingerprint
        record.results[kind] = known.document.fingerprint
        record.conflicts.extend(known.conflicts)
    elif not known.is_logged:
        # Log the whole text, because history has no earlier one.
        record.changes.append(Change(kind, 0, "", known.document.text))
        record.bases[kind], record.results[kind] = EMPTY, known.document.fingerprint


def _wait_for_return(backend: Backend, user: str, kind: str, patience: float) -> None:
    """Wait until it is certain that a missing file was removed: an editor may remove it for a moment to save it.

    Raises:
        HandEditConflict: The file exists again, or is still being saved after `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while backend.token(user, kind) is None:
        if not is_being_saved(backend, user, kind):
            return
        wait_for_save(backend.place(user, kind), deadline, patience)
    raise HandEditConflict.changed(backend.place(user, kind))
