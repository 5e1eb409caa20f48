"""A save that comes in while a block of changes runs: the block cannot be run again, so the two are merged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tomldiary.engine.commit import prepare, prepare_saves
from tomldiary.engine.transaction import base_of
from tomldiary.errors import Conflict
from tomldiary.hand_edits.three_way_merge import rebased

if TYPE_CHECKING:
    from tomldiary.engine.commit import Changed
    from tomldiary.engine.engine import Engine
    from tomldiary.engine.transaction import Source, Transaction

__all__ = ["log_only", "on_what_was_saved"]


def on_what_was_saved(
    engine: Engine, transaction: Transaction, changed: Changed
) -> tuple[Changed, bool]:
    """Return the changes on what is stored now, and whether one of them gives way to the person's."""
    fresh: Changed = {}
    gives_way = False
    for kind, (base, edit) in changed.items():
        now = engine.settled(transaction.user, kind, transaction.patience)
        if now is None:
            fresh[kind] = None, edit
            continue
        merged, conflicts = rebased(base_of(base), edit.peek(), now.document)
        engine.undo_edits(transaction.user, kind, merged, now)
        fresh[kind] = now, merged
        gives_way = gives_way or bool(conflicts)
    return fresh, gives_way


def log_only(engine: Engine, user: str, changed: Changed, source: Source) -> bool:
    """Commit changes to history, and leave the files that were saved meanwhile to the next look, which merges.

    So history has what we wrote, and that the person won. False if nothing was done: history does not end at what
    the changes are based on, a file has come or gone, or there was one more save.
    """
    now = {kind: engine.backend.token(user, kind) for kind in changed}
    if any((base is None) != (now[kind] is None) for kind, (base, _) in changed.items()):
        return False
    try:
        if prepare_saves(engine.backend, user, changed, engine.logged, patience=0.0) is not None:
            return False
        prepared = prepare(engine.backend, user, changed, source, engine.schema_name)
        contents, expected = prepared.commit.contents, prepared.commit.expected
        same = {kind for kind, token in expected.items() if now[kind] == token}
        commit = replace(
            prepared.commit,
            contents={kind: text for kind, text in contents.items() if kind in same},
            expected={kind: expected[kind] for kind in same},
        )
        engine.store(user, replace(prepared, commit=commit))
    except Conflict:
        return False
    return True
