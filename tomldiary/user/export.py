"""The profile, export and import of one user's memory."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from tomldiary.engine.transaction import NotStored
from tomldiary.entries.fields import reserved_ids, sessions
from tomldiary.entries.kinds import (
    KINDS,
    entries_in,
    entry_kind,
    entry_path,
    home_of,
    own_tables,
    own_values,
)
from tomldiary.entries.kinds.parts import in_other_layout, part_name, part_of
from tomldiary.entries.preferences import reserve_ids
from tomldiary.errors import DocumentError, EntryConflict, InvalidValue
from tomldiary.hand_edits.detect import check_version
from tomldiary.hand_edits.three_way_merge import NOTHING
from tomldiary.history.record import Source, next_sequence
from tomldiary.history.timeline import EMPTY, Timeline
from tomldiary.identifiers.namespaces import ROOT as ITEMS
from tomldiary.identifiers.namespaces import document_of, is_hashed, namespace_of, stated_namespace
from tomldiary.past.queries import Differences, differences
from tomldiary.storage.local.publish import checked_kind
from tomldiary.toml.document import Document
from tomldiary.toml.edit import Edit
from tomldiary.toml.values import (
    check_unicode,
    checked_flag,
    checked_text,
    decode_nulls,
    json_value,
    render_path,
    same_value,
    timestamp,
)
from tomldiary.user.context import UserPart
from tomldiary.user.pending.held import check_rules, has_same_content, renumbered

if TYPE_CHECKING:
    from tomldiary.engine.transaction import Transaction
    from tomldiary.history.record import Record
    from tomldiary.toml.document import Path

EXPORT_VERSION = 1
_FORMAT = "tomldiary"
_TRYING = 0.5  # seconds in which an export reads without the lock while others write
_PAUSE = 0.02  # seconds between two reads of documents that are being written


class UserExport(UserPart):
    """Exports, imports and counts the entries of one user."""

    def profile(self) -> dict[str, Any]:
        """Return the number of entries of each kind, as JSON values without remembered text.

        Returns:
            `user`; entries in `preferences` by category, `conversations`, `facts` by type (currently valid
            ones), `blocks` by name (characters), `episodes`, `items` by namespace, `drafts` and `quarantine`;
            `sessions`, the number of sessions that the entries name; and `last_seen`, the time of the last
            conversation or episode, or "".
        """
        at = self._context.moment(None)
        found: dict[str, Any] = {"user": self._context.user_id}
        times: list[str] = []
        named: set[str] = set()
        with self._context.reading():
            listed = self._context.kinds()
            for kind in KINDS.values():
                documents = {name: self._context.unexpired(name) for name in kind.documents(listed)}
                bound = kind.within("", self._context.until)
                found[kind.name] = bound.profile(documents, self._diary, at)
                for document in documents.values():
                    times += kind.seen(document, self._diary)
                    for path, entry in kind.tables(document).items():
                        named |= sessions(kind, path, entry)
        return {**found, "sessions": len(named), "last_seen": max(times, default="")}

    def export(self, *, entries: bool = False, history: bool = False) -> dict[str, Any]:
        """Return all documents as of one transaction, as JSON values.

        Args:
            entries: Whether to include the fields of all entries for other programs; an import ignores them.
            history: Whether to include the history; an import ignores it and begins a new one.

        Returns:
            `format`, `version`, `user`, `time`, `seq` (the last included transaction), and `documents`: the
            TOML texts by name, byte for byte, but without hand edits that a rule forbids. With `entries` also the
            fields by key, and with `history` the records as TOML texts, oldest first.

        Raises:
            DocumentError: A document cannot be read, so the export would be incomplete.
        """
        checked_flag(entries, "entries")
        checked_flag(history, "history")
        seq, documents = self._consistent()
        more: dict[str, Any] = {}
        if entries:
            kept = {name: self._context.kept(name, each) for name, each in documents.items()}
            found = entries_in(kept)
            more["entries"] = {one.key: json_value(decode_nulls(one.fields)) for one in found}
        if history:
            records = [*self._diary.engine.backend.records(self._context.user_id)][::-1]
            more["history"] = [text for text in records if next_sequence(text) - 1 <= seq]
        return {
            "format": _FORMAT,
            "version": EXPORT_VERSION,
            "user": self._context.user_id,
            "time": timestamp(),
            "seq": seq,
            "documents": {
                kind: document.text for kind, document in sorted(documents.items()) if document.text
            },
            **more,
        }

    def import_(
        self, data: Mapping[str, Any], *, replace: bool = False, actor: str = "", reason: str = ""
    ) -> list[str]:
        """Import an export as one transaction, and return the documents that changed.

        A document that has no entries yet becomes the exported one, with its comments. Otherwise missing
        entries are added, and an entry with different content is a conflict.

        Args:
            data: The result of `export` for any user, or the same data loaded from JSON. The user's id
                in namespaces is replaced by that of this user.
            replace: Make the memory equal to `data`; history keeps removed entries.
            actor: The author of the change, for history.
            reason: The reason for the change, for history.

        Raises:
            InvalidValue, IdentifierError: `data` is not an export, or a fact in it breaks the rules of its type.
            DocumentError: A document in `data` does not parse, or has a newer format.
            Conflict: An entry exists with different content; `keys` lists them. Nothing was changed.
            ImmutableEntry, LimitReached: A rule forbids it. Nothing was changed.
        """
        return self._import(data, Source("import", "", actor, reason), replace=replace)[0]

    def import_preview(self, data: Mapping[str, Any], *, replace: bool = False) -> Differences:
        """Return the entries that `import_` would add, change or remove, without changing anything.

        Args:
            data: As for `import_`.
            replace: As for `import_`.

        Raises:
            InvalidValue, IdentifierError, DocumentError, Conflict, ImmutableEntry, LimitReached: As `import_`.
        """
        return self._import(data, None, replace=replace)[1]

    def _import(
        self, data: Mapping[str, Any], why: Source | None, *, replace: bool
    ) -> tuple[list[str], Differences]:
        """Return the documents and the entries that change; if `why` is None, roll the change back."""
        checked_flag(replace, "replace")
        documents = _renamed(_checked(data), data.get("user"), self._context.user_id)
        if self._diary.redactor is not None:
            redact = self._diary.redacted_entry
            documents = {kind: _redacted(kind, each, redact) for kind, each in documents.items()}
        found = Differences()

        def change(tx: Transaction) -> list[str]:
            stored = tx.engine.kinds(self._context.user_id)
            for kind in filter(tx.engine.is_guarded, stored):
                tx.edit(kind)  # undoes forbidden hand edits, which the import must not complete
            before = {kind: tx.document(kind) for kind in {*documents, *stored}}
            given = {kind: self._context.kept(kind, each) for kind, each in documents.items()}
            with tx.nested(source):
                _put(tx, before, given, replace=replace)
                check_rules(tx, before, self._diary)
                changed = sorted(tx.changed())
                if why is None:
                    found[:] = differences(
                        (kind, before.get(kind, NOTHING), tx.document(kind)) for kind in changed
                    )
                    raise NotStored
            return changed

        engine = self._context.engine
        has_pending = any(entry_kind(kind).is_private for kind in documents)
        if has_pending and why is not None and engine.transaction_of(self._context.user_id) is None:
            # Before the import, because `renumbered` expects its number.
            engine.log_hand_edits(self._context.user_id)
        texts = {kind: each.text for kind, each in documents.items()}
        asked = (self._context.fingerprinted("" if why is None else why.operation, texts), replace)
        source = dataclasses.replace(why or Source("import"), asked=asked)
        with suppress(NotStored):
            return self._context.write(change, source), found
        return [], found

    def _consistent(self) -> tuple[int, dict[str, Document]]:
        """Return the number of the last transaction, and all documents in the state after it.

        Readers take no lock, and a transaction publishes its documents in order. Therefore a read is
        consistent if nothing was committed meanwhile and it contains all of the last transaction.
        """
        if self._context.past is not None:
            return self._context.past.seq, self._documents()
        timeline = Timeline(self._context.engine.backend, self._context.user_id)
        deadline = time.monotonic() + _TRYING
        while time.monotonic() < deadline:
            record = next(timeline.records(), None)
            documents = self._documents()
            if next(timeline.records(), None) == record and _shows(documents, record):
                return record.seq if record is not None else 0, documents
            time.sleep(_PAUSE)
        # Other writers keep committing, or a crash left a document unpublished: take the lock.
        with self._context.engine.transaction(self._context.user_id, Source("export")):
            record = next(timeline.records(), None)
            return record.seq if record is not None else 0, self._documents()

    def _documents(self) -> dict[str, Document]:
        documents: dict[str, Document] = {}
        with self._context.reading():
            for kind in self._context.expected_kinds():
                problem = self._context.problem(kind)
                if problem is not None:
                    raise problem
                documents[kind] = self._context.part(kind)
        return documents


def _shows(documents: Mapping[str, Document], record: Record | None) -> bool:
    """Return whether documents contain all changes of a transaction."""
    if record is None:
        return True
    return all(
        kind not in documents
        if result == EMPTY
        else _is_at(documents.get(kind), record.seq, result)
        for kind, result in record.results.items()
    )


def _is_at(document: Document | None, seq: int, result: str) -> bool:
    """Return whether a document is the result of a transaction, or newer."""
    found = (document or NOTHING).meta.get("seq", 0)
    if isinstance(found, int) and found >= seq:
        return True
    # The `seq` of a hand edit is the number in the version that was edited, so compare the content.
    return document is not None and document.fingerprint == result


def _checked(data: Mapping[str, Any]) -> dict[str, Document]:
    """Return the documents of an export.

    Raises:
        InvalidValue: `data` is not an export, has another version, or contains a value that no file can store.
        IdentifierError: A name is not a valid document name.
        DocumentError: A document does not parse, or has a newer format.
    """
    if not isinstance(data, Mapping) or data.get("format") != _FORMAT:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise InvalidValue(
            'this is not an export: format = "tomldiary" is missing. Give what an export returned; another'
            " program's memory needs its source, as in: tomldiary import FILE --from mem0.",
            where="import",
        )
    if data.get("version") != EXPORT_VERSION:
        raise InvalidValue(
            f"expected {EXPORT_VERSION}, found {data.get('version')!r}. Upgrade tomldiary-kit.",
            where="import.version",
        )
    texts: Any = data.get("documents")
    if not isinstance(texts, Mapping):
        raise InvalidValue("expected a table of documents.", where="import.documents")
    documents: dict[str, Document] = {}
    for kind, text in cast("Mapping[Any, Any]", texts).items():
        where = f"import.documents.{kind}"
        name = checked_text(kind, where)
        checked_kind(name)
        given = checked_text(text, where)
        check_unicode(given, where)
        document = Document.parse(given, path=where)
        check_version(document, where)
        documents[name] = _migrated(name, document, where)
    return documents


def _migrated(name: str, document: Document, place: str) -> Document:
    """Return a document in the newest layout; `place` names it in an error."""
    edit = Edit(document)
    edit.file = lambda: place
    entry_kind(name).migrate(edit)
    return edit.done()


def _renamed(documents: dict[str, Document], old: object, new: str) -> dict[str, Document]:
    """Return documents of items, renamed and with their namespaces changed to another user's id."""
    if not isinstance(old, str) or old == new:
        return documents
    found: dict[str, Document] = {}
    for kind, document in documents.items():
        base, number = part_of(kind)
        labels = None
        if kind.startswith(ITEMS):
            labels = namespace_of(old, base)
            if labels is None and is_hashed(base):
                labels = stated_namespace(old, base, document.meta.get("namespace"))
        if labels is None:
            found[kind] = document
            continue
        fresh = (
            (new, *labels[1:])
            if labels[0] == old
            else tuple(new if label == old else label for label in labels)
        )
        base = document_of(new, fresh)
        while part_name(base, number) in found:
            number += 1
        edit = Edit(document)
        edit.set_meta(namespace=list(fresh))
        found[part_name(base, number)] = edit.done()
    return found


def _redacted(
    kind: str, document: Document, redact: Callable[[Path, Mapping[str, Any]], Mapping[str, Any]]
) -> Document:
    """Return a document with the values of every table redacted."""
    edit = Edit(document)
    edit.redact = redact
    for path in own_tables(kind, document):
        if path[0] != "_meta":
            edit.put(path, edit.table(path) or {})
    return edit.done() if edit.is_changed else document


def _put(
    tx: Transaction,
    before: Mapping[str, Document],
    documents: Mapping[str, Document],
    *,
    replace: bool,
) -> None:
    """Add the documents of an export to those of a user, or with `replace` overwrite these.

    Raises:
        EntryConflict: An entry exists with different content.
    """
    conflicts: list[str] = []
    filled = {home_of(kind) for kind, each in before.items() if _has_entries(each)}
    for kind, document in sorted(documents.items()):
        if entry_kind(kind).is_private:
            document = renumbered(tx, document, kind)  # noqa: PLW2901 - the same document
        if before[kind].text and not _has_entries(before[kind]) and not _has_entries(document):
            continue  # only their `_meta` would differ
        stored = before[kind]
        if not replace:
            stored = _migrated(kind, stored, tx.engine.backend.place(tx.user, kind))
        if stored.text and _numbered_like(stored, document).text == stored.text:
            continue  # only the number of the last transaction would differ
        is_kept = tx.engine.lists_documents or kind == home_of(kind)
        if is_kept and (replace or home_of(kind) not in filled):
            tx.replace(kind, document)
        else:
            conflicts += _added(tx, kind, document)
    if replace:
        for kind in before.keys() - documents.keys():
            if _has_entries(before[kind]):
                tx.replace(kind, NOTHING)
    if conflicts:
        raise EntryConflict(
            f"{', '.join(conflicts)} exists with different content. Nothing was imported;"
            " replace=True makes the memory equal to the export.",
            keys=conflicts,
        )


def _numbered_like(one: Document, other: Document) -> Document:
    """Return `other` with the transaction number of `one`."""
    edit = Edit(other)
    if "seq" in one.meta:
        edit.set_meta(seq=one.meta["seq"])
    return edit.done()


def _has_entries(document: Document) -> bool:
    return any(value and key != "_meta" for key, value in document.data.items())


def _added(tx: Transaction, kind: str, document: Document) -> list[str]:
    """Add missing tables to a document, and return the keys of those that exist with different values."""
    if any(block.is_array for block in document.blocks):
        raise DocumentError("lists of tables cannot be merged. Use replace=True.", path=kind)
    known = entry_kind(kind)
    edit = tx.entries(known.name if known.is_split else kind)
    if not known.is_split:
        known.migrate(tx.edit(kind))  # so that an entry has one path in both
    conflicts: list[str] = []
    for path, values in own_tables(kind, document).items():
        if path[0] == "_meta":
            continue
        block = document.index.get(path)
        place = path
        if known.is_split and known.has_short_layout and entry_path(kind, path) == path:
            other = in_other_layout(known, path)  # no write changes the layout of a split kind
            place = path if edit.table(path) or edit.table(other) is None else other
        if edit.table(place) is not None:
            if not has_same_content(own_values(kind, edit, place) or {}, values):
                conflicts.append(render_path(place))
        elif block is not None and same_value(values, document.own_values(path)):
            edit.restore(path, block.text, values, after=document.before(path))
        else:
            edit.put(path, values)
    # Ids that were assigned before the export are not reused.
    reserve_ids(edit, ((name, at - 1) for name, at in reserved_ids(document.meta).items()))
    return conflicts
