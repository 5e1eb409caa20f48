"""Redaction: rewrites documents and history without a selection, and keeps the transactions.

Each version of a document is rebuilt from history, split into tables, and joined without the redacted states.
Changes and fingerprints are computed again from the redacted versions. So no record holds redacted text, and
`as_of`, `diff` and `rollback` still work.
"""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tomldiary.entries.kinds import CONVERSATIONS, entry_kind
from tomldiary.errors import DocumentError, HandEditConflict
from tomldiary.forgetting.redact_tables import Tables
from tomldiary.forgetting.replay import Replay
from tomldiary.forgetting.selection import ForgetReceipt
from tomldiary.forgetting.versions import joined
from tomldiary.hand_edits.detect import look
from tomldiary.history.record import Change, Record, block_changes, redo
from tomldiary.history.timeline import EMPTY
from tomldiary.identifiers.namespaces import ROOT
from tomldiary.toml.document import Document, digest
from tomldiary.toml.edit import Edit
from tomldiary.toml.values import render_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tomldiary.forgetting.selection import Selection
    from tomldiary.storage.protocol import Stored, Token
    from tomldiary.toml.document import Path
    from tomldiary.toml.lexer import Block

__all__ = ["Erased", "Plan", "erase", "is_bare", "plan"]

_PATIENCE = 3.0  # seconds to wait for an editor to finish saving
_GLANCE = 0.05  # seconds between two reads of a file that is being saved


@dataclass(slots=True)
class Erased:
    """The redacted history and documents."""

    records: list[Record]
    """One for each given record; equal to it if nothing was redacted in it."""
    texts: dict[str, str]
    """The redacted text of each document."""
    gone: list[tuple[str, Path]] = field(default_factory=list[tuple[str, "Path"]])
    """Entries that are erased completely, with their document."""
    changed: dict[str, list[Path]] = field(default_factory=dict[str, list["Path"]])
    """Entries whose current values change, by document."""
    removed: set[str] = field(default_factory=set[str])
    """Documents erased with their names, also in history: the session that created a namespace chose its name."""
    sessions: set[str] = field(default_factory=set[str])
    """Sessions of the redacted states."""
    emptied: int = 0
    """Records that lost their session, actor, reason and operation id."""


def erase(records: Sequence[Record], texts: Mapping[str, str], selection: Selection) -> Erased:
    """Redact a selection in a history, oldest record first, and in the current documents.

    Raises:
        DocumentError: A current document cannot be read.
        InvalidValue: An entry cannot be removed in the form it is written in.
    """
    done = Erased(list(records), dict(texts))
    kinds = list(dict.fromkeys([*texts, *(kind for record in records for kind in record.results)]))
    now = datetime.now(UTC)
    parts: dict[tuple[int, str], _Part] = {}
    touched: set[int] = set()
    conflicts: set[str] = set()
    for kind in kinds:
        text = texts.get(kind)
        document, replay = Tables(kind, selection), Replay(records, kind, text)
        for number, before, after in replay.steps():
            when = datetime.fromisoformat(records[number].time)
            try:
                document.study(before, when)
                document.study(after, when)
            except DocumentError:
                replay.lose(number)
        if text is not None:
            document.study(text, now)
        document.decide()
        for part in _parts(document, replay):
            parts[part.number, kind] = part
            if part.is_touched:
                touched.add(part.number)
        if text is not None:
            done.texts[kind] = document.transform(text)
            done.changed[kind] = document.prove(text, done.texts[kind])
        if kind.startswith(ROOT) and document.is_all_gone() and is_bare(done.texts.get(kind, "")):
            done.removed.add(kind)
        done.gone += [(kind, path) for path in document.gone()]
        done.sessions |= document.sessions()
        conflicts |= {render_path(path) for path in document.affected}
    redacted_sessions = {*done.sessions, selection.source.rpartition("#")[0]} - {""}
    for number, record in enumerate(records):
        touches = (
            number in touched
            or (bool(selection.session_id) and record.session == selection.session_id)
            or any(map(selection.is_mentioned, (record.reason, record.operation, record.actor)))
        )
        fresh = _without(record, number, parts, conflicts, done.removed)
        if touches:
            fresh = replace(fresh, session="", actor="", reason="", operation="", content="")
        elif record.type == "turn" and record.session in redacted_sessions:
            # A reader could confirm a guess of the redacted text with the id and the fingerprint of the turn.
            fresh = replace(fresh, operation="", content="")
        if fresh != record:
            done.records[number] = fresh
            done.emptied += touches
    return done


@dataclass(slots=True)
class _Part:
    """The redacted part of a record that concerns one document."""

    number: int
    changes: list[Change]
    base: str
    result: str
    is_touched: bool


def _parts(document: Tables, replay: Replay) -> Iterator[_Part]:
    at: str | None = None
    old: list[Block] = []
    old_text, old_digest = "", digest("")
    for number, before, after in replay.steps():
        record = replay.records[number]
        if at != before:
            old = document.blocks(before)
            old_text = joined(old)
            old_digest = digest(old_text)
        new = document.blocks(after)
        new_text = joined(new)
        changes = [change for change in record.changes if change.doc == document.kind]
        if (old_text, new_text) != (before, after):
            changes = block_changes(document.kind, old, new)
            if redo(old_text, replace(record, changes=changes), document.kind) != new_text:
                changes = [Change(document.kind, 0, old_text, new_text)]
        new_digest = digest(new_text)
        base = EMPTY if record.bases[document.kind] == EMPTY else old_digest
        yield _Part(number, changes, base, new_digest, document.is_touched(before, after))
        at, old, old_text, old_digest = after, new, new_text, new_digest


def is_bare(text: str) -> bool:
    """Return whether a document holds neither an entry nor a comment."""
    tables = {key: table for key, table in Document.parse(text).data.items() if key != "_meta"}
    return not any(tables.values()) and not re.search(r"^\s*#", text, re.MULTILINE)


def _without(
    record: Record,
    number: int,
    parts: Mapping[tuple[int, str], _Part],
    conflicts: set[str],
    removed: set[str],
) -> Record:
    changes: list[Change] = []
    bases: dict[str, str] = {}
    results: dict[str, str] = {}
    for kind in record.results:
        if kind in removed:
            continue
        part = parts.get((number, kind))
        if part is None:
            # A version that history cannot rebuild cannot be searched. Its changes are dropped, and its
            # fingerprints are replaced by random ones, which match no text.
            bases[kind], results[kind] = secrets.token_hex(16), secrets.token_hex(16)
            continue
        changes += part.changes
        bases[kind], results[kind] = part.base, part.result
    kept = [name for name in record.conflicts if name not in conflicts]
    return replace(record, changes=changes, bases=bases, results=results, conflicts=kept)


@dataclass(slots=True)
class Plan:
    """All changes of one redaction to history and documents."""

    records: list[Record]
    """One for each existing record; the same object if it does not change."""
    added: list[Record] = field(default_factory=list[Record])
    """The records to append: unlogged hand edits, and the redaction itself."""
    texts: dict[str, str] = field(default_factory=dict[str, str])
    """The new text of each document that changes."""
    changed: dict[str, list[Path]] = field(default_factory=dict[str, list["Path"]])
    """The entries that change, by document."""
    tokens: dict[str, Token] = field(default_factory=dict[str, "Token"])
    """The versions of all documents that the plan is based on."""
    removed: set[str] = field(default_factory=set[str])
    """The documents in `texts` that are removed with their names."""
    sessions: set[str] = field(default_factory=set[str])
    """Sessions of the redacted states."""
    receipt: ForgetReceipt = field(default_factory=ForgetReceipt)

    @property
    def is_empty(self) -> bool:
        """Whether the selection matches nothing."""
        return not self.added


def plan(
    user: str,
    history: Sequence[str],
    records: Sequence[Record],
    read: Callable[[], dict[str, Stored]],
    selection: Selection,
    place: Callable[[str, str], str],
    is_being_saved: Callable[[str, str], bool] | None = None,
) -> Plan:
    """Compute the changes of a redaction; write nothing.

    Args:
        user: The user whose memory is redacted.
        history: The texts of all records, oldest first.
        records: The same records, parsed.
        read: Returns the stored documents.
        selection: What to erase.
        place: Names a document for messages.
        is_being_saved: Returns whether another program is saving a document; None if that cannot be detected.

    Raises:
        HandEditConflict: Another program kept saving a document.
        DocumentError: A document cannot be read just now, so nothing in it can be redacted.
        InvalidValue: An entry cannot be removed in the form it is written in.
    """
    source = _RecordedDocuments(history, place, is_being_saved)
    patience = time.monotonic() + _PATIENCE
    while True:
        stored = read()
        known = {kind: look(source, user, kind, text, None) for kind, text in stored.items()}
        for found in known.values():
            if found.problem is not None:
                raise found.problem
        settling = next((kind for kind, found in known.items() if found.is_settling), None)
        if settling is None:
            break
        if time.monotonic() > patience:
            raise HandEditConflict.busy(place(user, settling), _PATIENCE)
        time.sleep(_GLANCE)
    seq = records[-1].seq if records else 0
    saved = Record(seq + 1, "hand", [], {}, {}, actor="hand")
    for kind, found in known.items():
        if found.logged is not None:
            changes = block_changes(kind, found.logged.blocks, found.document.blocks)
            saved.bases[kind] = found.logged.fingerprint
            saved.conflicts.extend(found.conflicts)
        elif not found.is_logged:
            changes = [Change(kind, 0, "", found.document.text)]
            saved.bases[kind] = EMPTY
        else:
            continue
        saved.changes.extend(changes)
        saved.results[kind] = found.digest
    all_records = [*records, saved] if saved.results else list(records)
    texts = {kind: found.document.text for kind, found in known.items()}
    erased = erase(all_records, texts, selection)
    removed = erased.removed & stored.keys()
    if texts == erased.texts and all_records == erased.records and not removed:
        return Plan(list(records))
    gone = len(erased.gone)
    conversations = sum(entry_kind(name) is CONVERSATIONS for name, _ in erased.gone)
    receipt = ForgetReceipt(gone - conversations, conversations, erased.emptied)
    last = all_records[-1].seq if all_records else 0
    forget = Record(
        last + 1, "forget", [], {}, {},
        reason=f"entries: {receipt.entries}, conversations: {receipt.conversations},"
        f" records: {receipt.records}",
    )  # fmt: skip
    _keep_ids(erased, forget)
    return Plan(
        erased.records[: len(records)],
        [*erased.records[len(records) :], forget],
        {
            kind: text
            for kind, text in erased.texts.items()
            if text != stored[kind].text or kind in removed
        },
        erased.changed,
        {kind: text.token for kind, text in stored.items()},
        removed,
        erased.sessions,
        receipt,
    )


def _keep_ids(erased: Erased, forget: Record) -> None:
    """Reserve the ids of erased entries in the documents, so that no new entry gets one of them."""
    gone: dict[str, list[Path]] = {}
    for name, path in erased.gone:
        gone.setdefault(name, []).append(path)
    for name in gone.keys() & erased.texts.keys():
        document = Document.parse(erased.texts[name])
        edit = Edit(document)
        entry_kind(name).keep_ids(edit, gone[name])
        if not edit.is_changed:
            continue
        edit.put(("_meta",), {**(edit.table(("_meta",)) or {}), "seq": forget.seq}, at_head=True)
        fresh = edit.done()
        forget.changes.extend(block_changes(name, document.blocks, fresh.blocks))
        forget.bases[name] = document.fingerprint
        forget.results[name] = fresh.fingerprint
        erased.texts[name] = fresh.text


class _RecordedDocuments:
    """A document source whose history was already read under the user's lock."""

    def __init__(
        self,
        history: Sequence[str],
        place: Callable[[str, str], str],
        is_being_saved: Callable[[str, str], bool] | None,
    ) -> None:
        self._history = history
        self._place = place
        self._is_being_saved = is_being_saved

    def records(self, user: str) -> Iterator[str]:  # noqa: ARG002 - those of one user
        return reversed(self._history)

    def place(self, user: str, kind: str) -> str:
        return self._place(user, kind)

    def is_being_saved(self, user: str, kind: str) -> bool:
        return self._is_being_saved is not None and self._is_being_saved(user, kind)
