"""Several changes of one user as one: all or nothing, on fresh state, under one lock.

The transaction owns the lock, not the thread. Calls made inside it by the same task or thread join
it and see its changes; another task of the same loop waits; another user's memory is out of reach,
because two writers who each hold one user and want the other would wait for ever.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tomldiary.errors import NestedTransaction
from tomldiary.hand_edits.detect import NOTHING
from tomldiary.history.record import Source, fingerprint
from tomldiary.runtime.async_bridge import SCOPE, current_task
from tomldiary.toml.edit import Edit

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from tomldiary.engine.engine import Engine
    from tomldiary.hand_edits.detect import Known
    from tomldiary.runtime.async_bridge import OwnThread
    from tomldiary.toml.document import Document

__all__ = ["Source", "Transaction", "fingerprint", "open_here"]


class Transaction:
    """Changes to the documents of one user, on fresh state, under the user's lock.

    Args:
        engine: Commits it.
        user: Whose memory.
        before: Documents as transactions before this one leave them, which are stored together with it.
    """

    def __init__(
        self, engine: Engine, user: str, before: Mapping[str, Known] | None = None
    ) -> None:
        self.user = user
        self.engine = engine
        self.is_open = False
        self.task = current_task()
        self.thread = threading.get_ident()
        self.worker: OwnThread | None = None
        """Where the blocking calls of the task run that owns the transaction."""
        self.patience: float = 3.0
        """Seconds that it waits for an editor to finish saving a document."""
        self.session = ""
        """Of which session what is written here is that names none of its own."""
        self.has_operation = False
        """Whether it may be a repetition, which what is asked for tells."""
        self.contents: list[str] = []
        """What is asked for, if it has an operation."""
        self.seq: int | None = None
        """Its number, once it is committed."""
        self._before: Mapping[str, Known] = before or {}
        self._edits: dict[str, Edit] = {}
        self._bases: dict[str, Known | None] = {}
        self._seen: dict[str, Known | None] = {}
        """Documents as just looked at by `documents`: a commit compares their versions in any case."""

    @contextmanager
    def opened(self) -> Generator[None]:
        """Let the calls made in a `with` block be part of this."""
        self.is_open = True
        outer = SCOPE.set(self)
        try:
            yield
        finally:
            self.is_open = False
            SCOPE.reset(outer)

    def edit(self, kind: str) -> Edit:
        """Return the edit of a document, which starts from what is stored now.

        Raises:
            NotSupported: The backend cannot keep this document.
        """
        edit = self._edits.get(kind)
        if edit is None:
            self.engine.check_kept(kind)
            base = self._bases[kind] = self._settled(kind)
            edit = Edit(base.document if base is not None else self.engine.template)
            self.engine.undo_edits(self.user, kind, edit, base)
            self._edits[kind] = edit
        return edit

    def replace(self, kind: str, document: Document) -> None:
        """Let a document be another one; what it was stays in history."""
        if kind not in self._bases:
            self.engine.check_kept(kind)
            self._bases[kind] = self._settled(kind)
        self._edits[kind] = Edit(document, is_changed=True)

    def _settled(self, kind: str) -> Known | None:
        known = self._before.get(kind)
        if known is not None:
            return known
        if kind in self._seen:
            seen = self._seen.pop(kind)
            if seen is None or not seen.is_settling:
                return seen
        return self.engine.settled(self.user, kind, self.patience)

    def document(self, kind: str) -> Document:
        """Return a document with the changes made so far."""
        edit = self._edits.get(kind)
        if edit is None:
            return base_of(
                self._before.get(kind) or self.engine.load(self.user, kind, is_written=True)
            )
        return edit.peek() if edit.is_changed else (base_of(self._bases[kind]))

    def documents(self, kinds: Sequence[str]) -> list[Document]:
        """Return documents like `document`, some of which are going to be changed at once."""
        others = [kind for kind in kinds if kind not in self._edits and kind not in self._before]
        seen = self._seen = dict(zip(others, self.engine.load_all(self.user, others), strict=True))
        return [base_of(seen[kind]) if kind in seen else self.document(kind) for kind in kinds]

    def kinds(self) -> list[str]:
        """Return the documents that were asked for to be changed."""
        return list(self._edits)

    def changed(self) -> dict[str, tuple[Known | None, Edit]]:
        """Return the documents with changes, by kind."""
        return {
            kind: (self._bases[kind], edit) for kind, edit in self._edits.items() if edit.is_changed
        }

    def is_owned_here(self) -> bool:
        """Tell whether the code that runs now is the one that opened the transaction, or called by it."""
        task = current_task()
        if task is None or task is self.task:
            return True
        # Sync code that runs a loop of its own inside the block waits for that loop's tasks.
        return self.task is None and threading.get_ident() == self.thread

    def is_joined_by(self, engine: Engine, user: str) -> bool:
        """Tell whether a call made here and now belongs to this transaction.

        Raises:
            NestedTransaction: The call is about another user of the same diary.
        """
        if not self.is_open or self.engine is not engine:
            return False
        if not self.is_owned_here():
            return False  # a task that was started inside, and runs on its own
        if user != self.user:
            raise NestedTransaction(
                "a transaction of another user is open here. Finish it first: each user has a lock, and"
                " two transactions that wait for each other's would never end."
            )
        return True


def base_of(known: Known | None) -> Document:
    """Return the document a transaction started from."""
    return known.document if known is not None else NOTHING


def open_here() -> Transaction | None:
    """Return the transaction that is open in this task or thread."""
    scope = SCOPE.get()
    return scope if isinstance(scope, Transaction) else None
