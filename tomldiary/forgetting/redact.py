"""History as if something had never been said: the same transactions, without it.

Each version of a document is brought back in turn, cut into its tables, and put together again without
what is forgotten. Changes and fingerprints are made anew from these versions, so that nothing of the
old ones is left and looking back works as before.
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
from tomldiary.store.namespaces import ROOT
from tomldiary.toml.document import Document
from tomldiary.toml.edit import Edit
from tomldiary.toml.fingerprint import digest
from tomldiary.toml.values import render_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tomldiary.forgetting.selection import Selection
    from tomldiary.storage.protocol import Stored, Token
    from tomldiary.toml.document import Path
    from tomldiary.toml.lexer import Block

__all__ = ["Erased", "Plan", "erase", "is_bare", "plan"]

_PATIENCE = 3.0  # seconds to wait for an editor to finish saving
_GLANCE = 0.05  # seconds between two looks at a file that is being saved


@dataclass(slots=True)
class Erased:
    """What history and documents are without what is forgotten."""

    records: list[Record]
    """One for each record that was given; equal to it where there was nothing to take out."""
    texts: dict[str, str]
    """The documents now."""
    gone: list[tuple[str, Path]] = field(default_factory=list[tuple[str, "Path"]])
    """Entries that nothing is left of, with their document."""
    changed: dict[str, list[Path]] = field(default_factory=dict[str, list["Path"]])
    """Entries that the documents had otherwise, by document."""
    removed: set[str] = field(default_factory=set[str])
    """Documents that go with their names, in history, too: the session that makes a namespace names it."""
    sessions: set[str] = field(default_factory=set[str])
    """Sessions that had to do with what is forgotten."""
    emptied: int = 0
    """Records that lost who, why and what."""


def erase(records: Sequence[Record], texts: Mapping[str, str], selection: Selection) -> Erased:
    """Take a selection out of a history, oldest record first, and out of the documents as they are now.

    Raises:
        DocumentError: A document as it is now cannot be read.
        InvalidValue: An entry is written in a way that it cannot be taken out of.
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
            # The id and the fingerprint of a turn can be guessed from its text, which may be what is forgotten.
            fresh = replace(fresh, operation="", content="")
        if fresh != record:
            done.records[number] = fresh
            done.emptied += touches
    return done


@dataclass(slots=True)
class _Part:
    """What a record says about one document, made anew."""

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
            # What nobody can bring back cannot be looked through either: nothing of it stays, and the
            # fingerprints are those of no text.
            bases[kind], results[kind] = secrets.token_hex(16), secrets.token_hex(16)
            continue
        changes += part.changes
        bases[kind], results[kind] = part.base, part.result
    kept = [name for name in record.conflicts if name not in conflicts]
    return replace(record, changes=changes, bases=bases, results=results, conflicts=kept)


@dataclass(slots=True)
class Plan:
    """All that forgetting changes in history and documents."""

    records: list[Record]
    """One for each record there is; the same object where nothing changes."""
    added: list[Record] = field(default_factory=list[Record])
    """What is logged behind them: what people saved meanwhile, and the forgetting itself."""
    texts: dict[str, str] = field(default_factory=dict[str, str])
    """The documents that change."""
    changed: dict[str, list[Path]] = field(default_factory=dict[str, list["Path"]])
    """The entries that change in them."""
    tokens: dict[str, Token] = field(default_factory=dict[str, "Token"])
    """The versions of all documents that this was worked out from."""
    removed: set[str] = field(default_factory=set[str])
    """Those of the documents that change of which nothing is left, not even the name."""
    sessions: set[str] = field(default_factory=set[str])
    """Sessions that had to do with what is forgotten."""
    receipt: ForgetReceipt = field(default_factory=ForgetReceipt)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to forget."""
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
    """Work out what forgetting changes; nothing is written.

    Args:
        user: Whose memory.
        history: The texts of all records, oldest first.
        records: The same, parsed.
        read: Returns the documents as they are stored now.
        selection: What to forget.
        place: Names a document for messages.
        is_being_saved: Tells whether somebody is half way through saving a document, where that can be told.

    Raises:
        HandEditConflict: Another program kept saving a document.
        DocumentError: A document cannot be read just now. Nothing can be taken out of it.
        InvalidValue: An entry is written in a way that it cannot be taken out of.
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
    """Note in the documents that the ids of what is forgotten are not given out again."""
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
    """Documents whose history was read before, under the user's lock."""

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
