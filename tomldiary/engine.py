"""The one write path: lock, read what is there now, change it, log it, publish it.

Readers take no lock; they get immutable documents from a cache that one `stat` keeps honest.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tomldiary.backends.base import Commit, digest
from tomldiary.errors import Conflict
from tomldiary.history import (
    Change,
    Record,
    block_changes,
    next_sequence,
    render_record,
)
from tomldiary.models import FORMAT_VERSION
from tomldiary.outside import Known, look
from tomldiary.timeline import EMPTY, Timeline
from tomldiary.toml.document import Document
from tomldiary.toml.values import render_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.backends.base import Backend
    from tomldiary.toml.edit import Edit

__all__ = ["Engine", "Source", "Transaction"]

R = TypeVar("R")

_CACHED_DOCUMENTS = 4096
_PATIENCE = 3.0  # seconds that a write waits for an editor to finish saving
_GLANCE = 0.05  # seconds between two looks at a file that is being saved
_ATTEMPTS = 20
_EMPTY = Document.parse("")


@dataclass(frozen=True, slots=True)
class Source:
    """Why a transaction happens: what history says about it."""

    type: str
    session: str = ""
    actor: str = ""
    reason: str = ""
    operation: str = ""


class Transaction:
    """Changes to the documents of one user, on fresh state, under the user's lock."""

    def __init__(self, engine: Engine, user: str) -> None:
        self.user = user
        self._engine = engine
        self._edits: dict[str, Edit] = {}
        self._bases: dict[str, Known | None] = {}

    def edit(self, kind: str) -> Edit:
        """Return the edit of a document, which starts from what is stored now."""
        edit = self._edits.get(kind)
        if edit is None:
            base = self._engine.load(self.user, kind)
            self._bases[kind] = base
            edit = (base.document if base is not None else self._engine.template).edit()
            self._edits[kind] = edit
        return edit

    def changed(self) -> dict[str, tuple[Known | None, Edit]]:
        """Return the documents with changes, by kind."""
        return {
            kind: (self._bases[kind], edit) for kind, edit in self._edits.items() if edit.is_changed
        }


class Engine:
    """Reads and writes the documents of one backend. Thread-safe.

    Args:
        backend: Where the documents are.
        schema_name: Written to `_meta.schema_name` of new documents.
        lock_timeout: Seconds a writer waits for another one.
    """

    def __init__(self, backend: Backend, schema_name: str, *, lock_timeout: float = 30.0) -> None:
        self.backend = backend
        self.schema_name = schema_name
        self.lock_timeout = lock_timeout
        name = render_value(schema_name)
        self.template = Document.parse(
            f'[_meta]\nversion = "{FORMAT_VERSION}"\nschema_name = {name}\n'
        )
        self._cache: OrderedDict[tuple[str, str], Known] = OrderedDict()
        self._guard = threading.Lock()

    def document(self, user: str, kind: str) -> Document:
        """Return a document as it is now; an empty one if there is none.

        Raises:
            DocumentError: It does not parse, is unsafe to parse, or is of a newer version.
        """
        cached = self.load(user, kind)
        return cached.document if cached is not None else _EMPTY

    def cached(self, user: str, *kinds: str) -> list[Document] | None:
        """Return these documents if that needs nothing but a look at the files' status, else None."""
        found: list[Document] = []
        if not self.backend.is_quick:
            return None
        for kind in kinds:
            cached, token = self._cache.get((user, kind)), self.backend.token(user, kind)
            if token is None:
                found.append(_EMPTY)
                continue
            if cached is None or cached.is_young or cached.token != token:
                return None
            found.append(cached.document)
        return found

    def load(self, user: str, kind: str) -> Known | None:
        """Return a document with the version it was read at, or None if there is none."""
        key = (user, kind)
        cached = self._cache.get(key)
        token = self.backend.token(user, kind)
        if token is None:
            self._cache.pop(key, None)
            return None
        if cached is not None and cached.token == token and not cached.is_young:
            return cached
        stored = self.backend.read(user, kind)
        if stored is None:
            return None
        fresh = look(self.backend, user, kind, stored, cached)
        self._remember(key, fresh)
        return fresh

    def _remember(self, key: tuple[str, str], cached: Known) -> None:
        with self._guard:
            self._cache[key] = cached
            self._cache.move_to_end(key)
            while len(self._cache) > _CACHED_DOCUMENTS:
                self._cache.popitem(last=False)

    def write(self, user: str, change: Callable[[Transaction], R], source: Source) -> R:
        """Apply `change` to fresh state and commit; a transaction without effect writes nothing.

        `change` is called again if a document was saved by somebody outside between reading and
        writing it, so it must have no effect but on its transaction.

        Raises:
            Conflict: Somebody kept saving the document all the time.
            LockTimeout: Another writer kept the lock.
            BackendError: The storage failed; nothing was changed.
        """
        patience = time.monotonic() + _PATIENCE
        with self.backend.lock(user, self.lock_timeout):
            for attempt in range(_ATTEMPTS):
                transaction = Transaction(self, user)
                result = change(transaction)
                changed = transaction.changed()
                while any(base is not None and base.is_settling for base, _ in changed.values()):
                    if time.monotonic() > patience:
                        break
                    # Somebody's editor is saving: what it has not written yet is not deleted.
                    time.sleep(_GLANCE)
                    transaction = Transaction(self, user)
                    result = change(transaction)
                    changed = transaction.changed()
                if not changed:
                    return result
                try:
                    self._commit(user, changed, source)
                except Conflict:
                    if attempt == _ATTEMPTS - 1:
                        raise
                    continue
                return result
        raise AssertionError  # the loop returns or raises

    def _commit(
        self, user: str, changed: dict[str, tuple[Known | None, Edit]], source: Source
    ) -> None:
        seq = next_sequence(self.backend.last_record(user))
        records: list[str] = []
        outside = self._outside_changes(user, changed, seq)
        if outside is not None:
            records.append(render_record(outside))
            seq += 1
        documents: dict[str, Document] = {}
        changes: list[Change] = []
        bases: dict[str, str] = {}
        results: dict[str, str] = {}
        for kind, (base, edit) in changed.items():
            self._stamp(edit, seq)
            document = edit.done()
            old = base.document if base is not None else _EMPTY
            documents[kind] = document
            changes += block_changes(kind, old.blocks, document.blocks)
            bases[kind] = base.digest if base is not None else EMPTY
            results[kind] = digest(document.text)
        record = Record(
            seq=seq,
            type=source.type,
            changes=changes,
            bases=bases,
            results=results,
            session=source.session,
            actor=source.actor,
            reason=source.reason,
            operation=source.operation,
        )
        records.append(render_record(record))
        # A file that does not parse is never overwritten: it catches up once somebody has mended it.
        broken = {
            kind: base for kind, (base, _) in changed.items() if base is not None and base.problem
        }
        tokens = self.backend.commit(
            user,
            Commit(
                {kind: doc.text for kind, doc in documents.items() if kind not in broken},
                {kind: base.token if base else None for kind, (base, _) in changed.items()},
                records,
            ),
        )
        for kind, document in documents.items():
            base = broken.get(kind)
            token = base.token if base is not None else tokens[kind]
            problem = base.problem if base is not None else None
            known = Known(token, document, results[kind], is_logged=True, problem=problem)
            self._remember((user, kind), known)

    def _stamp(self, edit: Edit, seq: int) -> None:
        meta: dict[str, object] = dict(edit.table(("_meta",)) or {})
        meta["version"] = FORMAT_VERSION
        meta.setdefault("schema_name", self.schema_name)
        meta["seq"] = seq
        edit.put(("_meta",), meta, at_head=True)

    def _outside_changes(
        self, user: str, changed: dict[str, tuple[Known | None, Edit]], seq: int
    ) -> Record | None:
        """Return a record of what people (or another program) saved since history's end, if anything."""
        changes: list[Change] = []
        bases: dict[str, str] = {}
        results: dict[str, str] = {}
        conflicts: list[str] = []
        for kind, (base, _) in changed.items():
            if base is None:
                last = Timeline(self.backend, user).last(kind) if seq > 1 else None
                if last is None or last.results[kind] == EMPTY:
                    continue
                # Somebody removed the file.
                text = Timeline(self.backend, user).text(kind)
                changes.append(Change(kind, 0, text, ""))
                bases[kind], results[kind] = last.results[kind], EMPTY
            elif base.logged is not None:
                changes += block_changes(kind, base.logged.blocks, base.document.blocks)
                bases[kind], results[kind] = digest(base.logged.text), base.digest
                conflicts += base.conflicts
            elif not base.is_logged:
                # The whole text: history does not know what it was before.
                changes.append(Change(kind, 0, "", base.document.text))
                bases[kind], results[kind] = EMPTY, base.digest
        if not results:
            return None
        return Record(seq, "hand", changes, bases, results, actor="hand", conflicts=conflicts)
