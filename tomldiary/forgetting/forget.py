"""Erases a selection of one user permanently, and previews the erasure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tomldiary.errors import DiaryError
from tomldiary.forgetting.redact import plan
from tomldiary.forgetting.selection import ForgetReceipt, Selection
from tomldiary.storage.protocol import Rewrite

if TYPE_CHECKING:
    from tomldiary.engine.engine import Engine

__all__ = ["forget", "preview"]


def forget(engine: Engine, user: str, selection: Selection) -> ForgetReceipt:
    """Erase a selection from the user's documents and history permanently.

    Raises:
        HandEditConflict: Another program kept saving a document. Nothing was forgotten.
        NestedTransaction: A transaction is open here.
        DocumentError: A document cannot be read just now. Nothing was changed.
        BackendError: The storage failed. The message says whether something was changed.
    """

    def run() -> ForgetReceipt:
        if not selection.everything:
            # Erasure keeps hand edits as they are, so hand edits of immutable entries are reverted first.
            engine.restore_immutable(user)
        try:
            rewrite, receipt = plan(engine, user, selection)
        except DiaryError:
            if not selection.everything:
                raise
            # An unreadable file can still be removed.
            epoch = engine.backend.epoch(user) + 1
            rewrite, receipt = Rewrite(selection.to_table(), epoch), ForgetReceipt()
        return replace(receipt, epoch=rewrite.epoch, files=engine.backend.rewrite(user, rewrite))

    with engine.rewriting(user):
        return engine.repeated(run)


def preview(engine: Engine, user: str, selection: Selection) -> ForgetReceipt:
    """Return the counts that `forget` would return now; change nothing.

    Raises:
        HandEditConflict: Another program kept saving a document.
        DocumentError: A document cannot be read just now.
    """
    receipt = ForgetReceipt()
    if engine.kinds(user):
        with engine.backend.lock(user, engine.lock_timeout):
            _, receipt = plan(engine, user, selection)
    return replace(receipt, epoch=engine.backend.epoch(user), is_done=False)
