"""Erases a selection of one user's data permanently by rewriting documents and history, and previews an erasure.

Each version of a document is rebuilt from history, split into tables, and joined without the redacted states.
Changes and fingerprints are computed again from the redacted versions. So no record holds redacted text, and
`as_of`, `diff` and `rollback` still work.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import starmap, zip_longest
from operator import eq
from typing import TYPE_CHECKING

from tomldiary.engine.hand_edits import add_save
from tomldiary.engine.transaction import block_changes
from tomldiary.entries.kinds import (
    CONVERSATIONS,
    EPISODES,
    entry_key,
    entry_kind,
    home_of,
    unread_tables,
)
from tomldiary.errors import DiaryError, DocumentError, InvalidTOML, InvalidValue, LockTimeout
from tomldiary.forgetting.redact_tables import Replay, Tables, Versions, joined
from tomldiary.forgetting.selection import RECEIPTS, ForgetReceipt, Selection
from tomldiary.hand_edits.detect import Known, is_being_saved, look
from tomldiary.history.record import (
    OPTIONAL_TEXTS,
    Change,
    HistoryIndex,
    Record,
    next_sequence,
    parse_record,
    render_record,
)
from tomldiary.history.timeline import EMPTY
from tomldiary.identifiers.namespaces import ROOT
from tomldiary.runtime.unstored_turns import await_stored
from tomldiary.storage.locks import wait_for_save
from tomldiary.storage.protocol import Backend, LocalFolder, Rewrite, RewrittenDocument, Stored
from tomldiary.toml.document import Document, Path, digest
from tomldiary.toml.edit import Edit
from tomldiary.toml.values import render_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tomldiary.engine.engine import Engine
    from tomldiary.toml.lexer import Block

_MOST_KEPT = 10_000_000
"""Characters of documents and history whose versions stay parsed; they need about six times as much memory."""


def forget(engine: Engine, user: str, selection: Selection) -> ForgetReceipt:
    """Erase a selection from the user's documents and history permanently.

    Raises:
        HandEditConflict: Another program kept saving a document. Nothing was forgotten.
        LockTimeout: Another writer kept the lock, or submitted turns are not stored yet. Nothing was forgotten.
        NestedTransaction: A transaction is open here.
        DocumentError: A document cannot be read. Nothing was changed.
        BackendError: The storage failed. The message says whether something was changed.
    """
    counted: list[ForgetReceipt] = []
    engine.refuse_open(user)
    if not await_stored(engine.backend, user, engine.lock_timeout):
        raise LockTimeout(
            f"turns of {user!r} were submitted, and are not stored after {engine.lock_timeout:g} s. Nothing was"
            " forgotten. Check the log of the writer, and try again."
        )
    parsed = Parsed()
    made = _made_ahead(engine, user, selection, parsed)

    def run() -> ForgetReceipt:
        if not selection.everything:
            # Erasure keeps hand edits unchanged, so hand edits of immutable entries are reverted first.
            engine.restore_immutable(user)
            current = _current(engine, user, selection, made, parsed)
            rewrite, receipt = current.rewrite, current.receipt
        else:
            # Count only once, because with a long history another process could write during each count.
            if not counted:
                counted.append(_count_all(engine, user))
            receipt = counted[0]
            rewrite = Rewrite(selection.to_table(), engine.backend.epoch(user) + 1)
        files = engine.backend.rewrite(user, rewrite)
        return replace(receipt, keys=(), epoch=rewrite.epoch, files=files)

    return engine.rewrite(user, run)


def _count_all(engine: Engine, user: str) -> ForgetReceipt:
    """Return the counts of an erasure of everything, from the headers of tables in history and documents."""
    versions: dict[str, Versions] = {}
    found: set[tuple[str, Path]] = set()
    records = 0

    def add(kind: str, text: str) -> None:
        known = versions.setdefault(kind, Versions(kind))
        with suppress(DocumentError):  # unreadable text can still be erased
            found.update((home_of(kind), path) for path in known.paths(text))

    with suppress(DiaryError):  # an unreadable file can still be removed
        for text in engine.backend.records(user):
            with suppress(InvalidTOML):
                for change in parse_record(text).changes:
                    add(change.doc, change.old)
                    add(change.doc, change.new)
                records += 1
        for kind in engine.backend.kinds(user):
            with suppress(DiaryError):
                stored = engine.backend.read(user, kind)
                add(kind, stored.text if stored is not None else "")
    return _receipt(found, records)


def _receipt(erased: set[tuple[str, Path]], records: int) -> ForgetReceipt:
    keys = {(home, entry_key(path, home)) for home, path in erased}  # each once in all layouts
    conversations = sum(entry_kind(home) is CONVERSATIONS for home, _ in keys)
    return ForgetReceipt(len(keys) - conversations, conversations, records, keys=_keys(erased))


def _keys(entries: set[tuple[str, Path]]) -> tuple[str, ...]:
    return tuple(sorted({entry_key(path, home) for home, path in entries}))


def preview(engine: Engine, user: str, selection: Selection) -> ForgetReceipt:
    """Return the counts that `forget` would return now; change nothing.

    Raises:
        NestedTransaction: A transaction is open here.
        HandEditConflict: Another program kept saving a document.
        DocumentError: A document cannot be read, unless everything is selected.
    """
    receipt = ForgetReceipt()
    engine.refuse_open(user)
    if engine.kinds(user) or engine.backend.last_record(user):  # documents may be deleted by hand
        parsed = Parsed()
        made = _made_ahead(engine, user, selection, parsed)
        with engine.backend.lock(user, engine.lock_timeout):
            if selection.everything:
                receipt = _count_all(engine, user)
            else:
                receipt = _current(engine, user, selection, made, parsed).receipt
    return replace(receipt, epoch=engine.backend.epoch(user), is_done=False)


# The redacted history and documents


@dataclass(slots=True)
class Parsed:
    """What one computation has parsed. If another write interferes, the next one parses only what it changed."""

    documents: dict[str, Known] = field(default_factory=dict[str, "Known"])
    versions: dict[str, Versions] | None = field(default_factory=dict[str, "Versions"])
    """By document; None if the memory has more than `most` characters."""
    most: int = _MOST_KEPT

    def of(self, kind: str) -> Versions:
        """Return the versions of a document."""
        new = Versions(kind)
        return new if self.versions is None else self.versions.setdefault(kind, new)


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
    """Documents whose names are erased too, also in history, because the session that created them chose the names."""
    sessions: set[str] = field(default_factory=set[str])
    """Sessions of the redacted states."""
    emptied: int = 0
    """Records that lost their session, actor, reason and operation id."""


def erase(
    records: Sequence[Record], texts: Mapping[str, str], selection: Selection, parsed: Parsed
) -> Erased:
    """Redact a selection in a history, oldest record first, and in the current documents.

    Raises:
        DocumentError: A current document cannot be read.
        InvalidValue: An entry cannot be removed because of its TOML form.
    """
    done = Erased(list(records), dict(texts))
    kinds = list(dict.fromkeys([*texts, *(kind for record in records for kind in record.results)]))
    parts: dict[tuple[int, str], _Part] = {}
    touched: set[int] = set()
    conflicts: set[str] = set()
    for kind, document, replay in _studied(records, texts, kinds, selection, parsed):
        text = texts.get(kind)
        document.decide()
        for part in _parts(document, replay):
            parts[part.number, kind] = part
            if part.is_touched:
                touched.add(part.number)
        if text is not None:
            done.texts[kind] = joined(document.blocks(text))
            done.changed[kind] = document.prove(text, done.texts[kind])
        if (
            kind.startswith(ROOT)
            and document.is_all_gone()
            and Document.parse(done.texts.get(kind, "")).is_bare
        ):
            done.removed.add(kind)
        done.gone += [(kind, path) for path in document.gone()]
        done.sessions |= document.sessions()
        conflicts |= {render_path(path) for path in document.affected}
    turn = selection.turn or selection.source
    redacted_sessions = {*done.sessions, turn.rpartition("#")[0]} - {""}
    for number, record in enumerate(records):
        noted = (record.reason, record.operation, record.actor)
        touches = (
            number in touched
            or (bool(selection.session_id) and record.session == selection.session_id)
            or any(selection.is_mentioned(text, record.session) for text in noted)
        )
        fresh = _without(record, number, parts, conflicts, done.removed)
        if touches:
            fresh = replace(fresh, **dict.fromkeys(OPTIONAL_TEXTS, ""))
        elif record.type == "turn" and record.session in redacted_sessions:
            # A reader could confirm a guess of the redacted text with the id and the fingerprint of the turn.
            fresh = replace(fresh, operation="", content="")
        if fresh != record:
            done.records[number] = fresh
            done.emptied += touches
    return done


def _studied(
    records: Sequence[Record],
    texts: Mapping[str, str],
    kinds: Sequence[str],
    selection: Selection,
    parsed: Parsed,
) -> Iterator[tuple[str, Tables, Replay]]:
    """Yield each document with its collected states, which include those of the other parts of its kind."""
    now = datetime.now(UTC)
    groups: dict[str, list[str]] = {}
    for kind in kinds:
        known = entry_kind(kind)
        groups.setdefault(known.name if known.is_split else kind, []).append(kind)

    # Episodes are studied first, because they select what was derived from them. Pending changes are studied late,
    # because an entry may get another id when it is promoted or accepted, and receipts last, because the entries that
    # their operations wrote select them.
    def place(names: list[str]) -> tuple[bool, bool, bool]:
        kind = entry_kind(names[0])
        return names[0] == RECEIPTS, kind.is_private, kind is not EPISODES

    for names in sorted(groups.values(), key=place):
        found: list[tuple[str, Tables, Replay]] = []
        for kind in names:
            text = texts.get(kind)
            document = Tables(parsed.of(kind), selection, found[0][1] if found else None)
            replay = Replay(records, kind, text)
            for number, before, after in replay.steps():
                when = datetime.fromisoformat(records[number].time)
                try:
                    document.study(before, when)
                    document.study(after, when)
                    if selection.key:
                        document.study_change(before, after)
                except DocumentError:
                    replay.lose(number)
            if text is not None:
                document.study(text, now)
            found.append((kind, document, replay))
            if selection.key:
                copies = selection.copies | document.statements()
                selection = replace(selection, copies=copies)
        if selection.key:
            for kind, document, _ in found:
                former = selection.former | document.select_former_ids(texts.get(kind, ""))
                selection = replace(selection, former=former)
        selection = _with_episodes(selection, found)
        for kind, document, replay in found:
            yield kind, document, replay
            # The caller has decided by now what it redacts.
            receipts = selection.receipts | document.operations(replay)
            selection = replace(selection, receipts=receipts)


def _with_episodes(selection: Selection, found: list[tuple[str, Tables, Replay]]) -> Selection:
    """Return the selection with the episodes in its documents, whose derived entries a time or a text does not select."""
    if selection.before or selection.matching:
        return selection
    documents = (document for kind, document, _ in found if entry_kind(kind) is EPISODES)
    ids = {path[-1] for document in documents for path in document.gone()}
    return replace(selection, episodes=selection.episodes | ids)


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
            changes = block_changes(document.kind, Document(old, {}), Document(new, {}))
        new_digest = digest(new_text)
        base = EMPTY if record.bases[document.kind] == EMPTY else old_digest
        yield _Part(number, changes, base, new_digest, document.is_touched(before, after))
        at, old, old_text, old_digest = after, new, new_text, new_digest


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


@dataclass(frozen=True, slots=True)
class Plan:
    """A redaction with its counts, and the state that it was computed from."""

    rewrite: Rewrite
    receipt: ForgetReceipt
    history: Sequence[str]
    """The records, oldest first."""
    stored: Mapping[str, Stored]
    """The documents, also their texts: a file that changes twice within milliseconds may keep its version token."""

    def is_current(self, backend: Backend, user: str) -> bool:
        """Return whether the state is still the same; the caller holds the user's lock."""
        return (
            backend.epoch(user) + 1 == self.rewrite.epoch
            and {kind: backend.read(user, kind) for kind in backend.kinds(user)} == self.stored
            and all(starmap(eq, zip_longest(backend.records(user), reversed(self.history))))
        )


def _made_ahead(engine: Engine, user: str, selection: Selection, parsed: Parsed) -> Plan | None:
    """Compute a redaction without the user's lock, because it may take longer than other writers wait for the lock."""
    if not selection.everything and isinstance(engine.backend, LocalFolder):
        # Also if a write interferes; `plan` under the lock raises lasting errors again, and waits for saves.
        with suppress(DiaryError):
            return plan(engine, user, selection, 0, parsed)
    return None


def _current(
    engine: Engine, user: str, selection: Selection, made: Plan | None, parsed: Parsed
) -> Plan:
    """Return the redaction of the current state; the caller holds the user's lock."""
    if made is not None and made.is_current(engine.backend, user):
        return made
    return plan(engine, user, selection, engine.save_timeout, parsed)


def plan(engine: Engine, user: str, selection: Selection, timeout: float, parsed: Parsed) -> Plan:
    """Compute a redaction and its counts. This writes nothing. Wait `timeout` seconds for saves of other programs.

    Raises:
        HandEditConflict: Another program kept saving a document.
        DocumentError: A document cannot be read, so nothing in it can be redacted.
        InvalidValue: An entry cannot be removed because of its TOML form, or nothing reads a table.
    """
    epoch = engine.backend.epoch(user) + 1
    history: list[str] = []
    records: list[Record] = []
    for text in reversed([*engine.backend.records(user)]):
        with suppress(InvalidTOML):  # a damaged record cannot be searched, so it is removed
            records.append(parse_record(text))
            history.append(text)
    stored, known = _documents(engine.backend, user, history, timeout, parsed.documents)
    parsed.documents.update(known)
    for kind, found in known.items():
        _check_is_read(engine.backend.place(user, kind), kind, found.document)
    number = next_sequence(engine.backend.last_record(user))
    saved = Record(number, "hand", [], {}, {}, actor="hand")
    for kind, found in known.items():
        add_save(saved, kind, found)
    all_records = [*records, saved] if saved.results else records
    texts = {kind: found.document.text for kind, found in known.items()}
    if sum(map(len, [*history, *texts.values()])) > parsed.most:
        parsed.versions = None
    erased = erase(all_records, texts, selection, parsed)
    removed = erased.removed & known.keys()
    if texts == erased.texts and all_records == erased.records and not removed:
        return Plan(Rewrite(selection.to_table(), epoch), ForgetReceipt(), history, stored)
    gone = {(home_of(name), path) for name, path in erased.gone}
    changed = {(home_of(name), path) for name, paths in erased.changed.items() for path in paths}
    receipt = replace(_receipt(gone, erased.emptied), keys=_keys(gone | changed))
    forget = Record(
        number + len(all_records) - len(records), "forget", [], {}, {},
        reason=f"entries: {receipt.entries}, conversations: {receipt.conversations},"
        f" records: {receipt.records}",
    )  # fmt: skip
    _keep_ids(erased, forget)
    fresh = {
        text: text if record is old else render_record(record)
        for text, old, record in zip(history, records, erased.records, strict=False)
    }
    added = [render_record(record) for record in [*erased.records[len(records) :], forget]]
    documents = {
        kind: RewrittenDocument(
            text, known[kind].token, erased.changed.get(kind, []), kind in removed
        )
        for kind, text in erased.texts.items()
        if text != stored[kind].text or kind in removed
    }
    operations = {old.operation for old in all_records} - {new.operation for new in erased.records}
    selection = replace(selection, operations=sorted(operations))
    rewrite = Rewrite(
        selection.to_table(), epoch, fresh, added, documents, patience=engine.save_timeout
    )
    return Plan(rewrite, receipt, history, stored)


def _documents(
    backend: Backend, user: str, history: Sequence[str], timeout: float, cached: Mapping[str, Known]
) -> tuple[dict[str, Stored], dict[str, Known]]:
    """Return each document as it is stored, and as history or a hand edit has it."""
    source = _ReadableHistory(backend, history)
    index = HistoryIndex(source, user)
    deadline = time.monotonic() + timeout
    stored: dict[str, Stored] = {}
    known: dict[str, Known] = {}
    for kind in backend.kinds(user):
        while (file := backend.read(user, kind)) is not None:
            found = look(source, user, kind, file, cached.get(kind), index)
            if found.problem is not None:
                raise found.problem
            if not found.is_settling:
                known[kind], stored[kind] = found, file
                break
            wait_for_save(source.place(user, kind), deadline, timeout)
    return stored, known


def _check_is_read(place: str, kind: str, document: Document) -> None:
    for root in unread_tables(kind, document):
        raise InvalidValue(
            "may contain data to forget, but nothing reads it in this document. Nothing was forgotten."
            " Remove the table, or move it to the right document.",
            where=f"{place}: {render_path((root,))}",
        )


class _ReadableHistory:
    """A document source for one user, with only the records that can be parsed (given oldest first)."""

    def __init__(self, backend: Backend, history: Sequence[str]) -> None:
        self._backend = backend
        self._history = history

    def records(self, user: str) -> Iterator[str]:  # noqa: ARG002 - the records of one user
        return reversed(self._history)

    def place(self, user: str, kind: str) -> str:
        return self._backend.place(user, kind)

    def is_being_saved(self, user: str, kind: str) -> bool:
        return is_being_saved(self._backend, user, kind)


def _keep_ids(erased: Erased, forget: Record) -> None:
    """Reserve the ids of erased entries in the documents, so that no new entry gets one of them."""
    gone: dict[str, list[Path]] = {}
    for name, path in erased.gone:
        gone.setdefault(name, []).append(path)
    # History may still have earlier states of an entry that was removed from its document.
    for name, paths in erased.changed.items():
        if paths:
            gone.setdefault(name, []).extend(paths)
    for name in gone.keys() & erased.texts.keys():
        document = Document.parse(erased.texts[name])
        edit = Edit(document)
        removed = [path for path in gone[name] if edit.table(path) is None]
        entry_kind(name).keep_ids(edit, removed)
        if not edit.is_changed:
            continue
        edit.set_meta(seq=forget.seq)
        fresh = edit.done()
        forget.changes.extend(block_changes(name, document, fresh))
        forget.bases[name] = document.fingerprint
        forget.results[name] = fresh.fingerprint
        erased.texts[name] = fresh.text
