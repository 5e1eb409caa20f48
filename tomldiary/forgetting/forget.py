"""Erases a selection of one user permanently, and previews the erasure."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from tomldiary.errors import InvalidTOML
from tomldiary.forgetting.redact import plan
from tomldiary.forgetting.selection import ForgetReceipt
from tomldiary.history.record import parse_record

if TYPE_CHECKING:
    from tomldiary.engine.engine import Engine
    from tomldiary.forgetting.selection import Selection
    from tomldiary.history.record import Record

__all__ = ["forget", "preview"]


def forget(engine: Engine, user: str, selection: Selection) -> ForgetReceipt:
    """Erase a selection from the user's documents and history permanently.

    Raises:
        HandEditConflict: Another program kept saving a document. Nothing was forgotten.
        NestedTransaction: A transaction is open here.
        DocumentError: A document cannot be read just now. Nothing was changed.
        BackendError: The storage failed. The message says whether something was changed.
    """
    with engine.rewriting(user):
        if not selection.everything:
            # Erasure keeps hand edits as they are, so hand edits of immutable entries are reverted first.
            engine.restore_immutable(user)
        return engine.backend.forget(user, selection)


def preview(engine: Engine, user: str, selection: Selection) -> ForgetReceipt:
    """Return the counts that `forget` would return now; change nothing.

    Raises:
        HandEditConflict: Another program kept saving a document.
        DocumentError: A document cannot be read just now.
    """
    backend = engine.backend
    if not engine.kinds(user):
        return ForgetReceipt(epoch=backend.epoch(user))
    with backend.lock(user, engine.lock_timeout):
        known: list[tuple[str, Record]] = []
        for text in backend.records(user):
            with suppress(InvalidTOML):  # a damaged record cannot be searched
                known.append((text, parse_record(text)))
        known.reverse()
        read = {kind: backend.read(user, kind) for kind in backend.kinds(user)}
        stored = {kind: found for kind, found in read.items() if found is not None}
        texts, records = [text for text, _ in known], [record for _, record in known]
        made = plan(user, texts, records, lambda: stored, selection, backend.place)
        return replace(made.receipt, epoch=backend.epoch(user))
