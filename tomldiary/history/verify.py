"""Verifies a user's whole history: checksums, numbers, and the results of redoing the records.

It changes nothing, takes no lock, and does not repair the traces of a crash.
"""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, DocumentError
from tomldiary.history.record import END, SNAPSHOT, Record, parse_record
from tomldiary.history.timeline import EMPTY, redo
from tomldiary.storage.local.backend import LocalBackend
from tomldiary.storage.local.layout import kinds_in
from tomldiary.storage.local.log import damaged, named_transaction, segments
from tomldiary.storage.log import own_line_ends
from tomldiary.toml.document import digest
from tomldiary.toml.parse import MAX_BYTES, decode_utf8

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.storage.protocol import Backend

_END = END.encode()
_CONFLICT = re.compile(rb"^(?:<{7}|>{7}) ", re.MULTILINE)
_SEQ = re.compile(r"^seq *= *(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Damage:
    """The first damaged record of a history."""

    place: str
    """`segment:line`, or the number of the record if the backend has no files."""
    seq: int | None
    """The number of the transaction, or None if it is unknown."""
    message: str
    is_torn: bool = False
    """Whether the record is a torn append that was never acknowledged."""
    is_gap: bool = False
    """Whether the records before this complete one are missing."""
    is_set_aside: bool = False
    """Whether a writer found the record damaged, moved it to a separate file and continued without it."""
    remedy: str = ""
    """What to do, if it is known which other program changed the record."""


@dataclass(slots=True)
class Walked:
    """The result of reading a whole history."""

    damage: Damage | None = None
    newest: Record | None = None
    """The newest complete record before the damage."""
    last: dict[str, Record] = field(default_factory=dict[str, "Record"])
    """The newest record of each document."""
    versions: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """The transaction that led to each version, by document and fingerprint."""


def verify(backend: Backend, user: str) -> Damage | None:
    """Return the first damage in a user's history, or None if every record is intact.

    It checks the checksum and the number of every record. Redoing each transaction must lead to the recorded
    fingerprints. A document that names a transaction after the end of history shows that acknowledged records
    are missing.
    """
    return walk(backend, user).damage


def walk(backend: Backend, user: str) -> Walked:
    """Check a user's history from its beginning to the first damage."""
    # Documents are read first, because a transaction is in history before its number is in a document.
    seen = _named_in_documents(backend, user)
    walked = Walked()
    texts: dict[str, str] = {}
    for place, data, is_end in _records(backend, user):
        record = _parsed(data)
        if record is None:
            walked.damage = _damaged(walked, place, data, seen, is_end=is_end)
            return walked
        walked.damage = _follow(walked, texts, record, place)
        if walked.damage is not None:
            break
    kind, named = max(seen.items(), key=lambda item: item[1], default=("", 0))
    end = walked.newest.seq if walked.newest is not None else 0
    if isinstance(backend, LocalBackend) and (
        aside := damaged(backend.files, backend.folder(user) / "history")
    ):
        # This cause replaces other damage, such as a missing number, because it explains the damage.
        walked.damage = Damage(
            str(aside[0]),
            None,
            "a damaged record at the end of history was moved here; its changes may be missing from history.",
            is_set_aside=True,
        )
    elif named > end and walked.damage is None:
        walked.damage = Damage(
            backend.place(user, kind),
            end + 1,
            f"the document was written by transaction {named}, but history ends at {end}. If the"
            f" number comes from a merge in git, or was typed by hand, set seq in [_meta] to {end}.",
        )
    return walked


def stored_text(backend: Backend, user: str, kind: str) -> str | None:
    """Return the stored text of a document, without the repairs of a normal read; None if it does not exist.

    Raises:
        BackendError: The document cannot be read.
        DocumentError: The document is not UTF-8, or too large.
    """
    if not isinstance(backend, LocalBackend):
        found = backend.read(user, kind)
        return None if found is None else found.text
    place = backend.place(user, kind)
    data = backend.files.read_file(place, most=MAX_BYTES)
    return None if data is None else decode_utf8(data[0], path=place)


def stored_kinds(backend: Backend, user: str) -> list[str]:
    """Return the names of the stored documents, without the recovery of a normal listing."""
    if not isinstance(backend, LocalBackend):
        return backend.kinds(user)
    return kinds_in(backend.files, backend.folder(user))


def _named_in_documents(backend: Backend, user: str) -> dict[str, int]:
    """Return the number of the transaction that wrote each document."""
    found: dict[str, int] = {}
    for kind in stored_kinds(backend, user):
        with suppress(BackendError, DocumentError):
            found[kind] = named_transaction(stored_text(backend, user, kind) or "")
    return found


def _records(backend: Backend, user: str) -> Iterator[tuple[str, bytes, bool]]:
    """Yield each record's place, its bytes, and whether it may be the last; oldest first."""
    if not isinstance(backend, LocalBackend):
        texts = list(backend.records(user))[::-1]
        for number, text in enumerate(texts, 1):
            place = f"history of {user}, record {number}"
            yield place, text.encode("utf-8", "surrogatepass"), number == len(texts)
        return
    paths = segments(backend.files, backend.folder(user) / "history")
    for path in paths:
        data = own_line_ends(backend.files.content(path))
        records = data.lstrip()  # readers skip blank lines before the first record
        line = 1 + data.count(b"\n", 0, len(data) - len(records))
        *whole, rest = records.split(_END)
        for record in [*(each + _END for each in whole), *([rest] if rest else [])]:
            yield f"{path}:{line}", record, path == paths[-1]
            line += record.count(b"\n")


def _parsed(data: bytes) -> Record | None:
    try:
        return parse_record(data.decode("utf-8"))
    except (ValueError, KeyError, TypeError):  # not UTF-8, altered, or not a record
        return None


def _damaged(
    walked: Walked, place: str, data: bytes, seen: dict[str, int], *, is_end: bool
) -> Damage:
    """Return the damage in bytes that should be one record."""
    seq = walked.newest.seq + 1 if walked.newest is not None else None
    if seq is None:
        line = _SEQ.search(data.decode("utf-8", "replace"))
        seq = int(line.group(1)[:18]) if line is not None else None
    acknowledged = seq is None or max(seen.values(), default=0) >= seq
    if is_end and not data.endswith(_END) and not acknowledged:
        return Damage(
            place, seq, "the last append was cut off; it was never acknowledged.", is_torn=True
        )
    if _CONFLICT.search(data):
        folder = shlex.quote(str(Path(place.rpartition(":")[0]).parent))
        remedy = f"The conflicts in documents stay if you take the history of HEAD: git -C {folder} checkout --no-overlay HEAD -- ."
        return Damage(place, seq, "git left a conflict here.", remedy=remedy)
    name = "a record" if seq is None else f"the record of transaction {seq}"
    return Damage(place, seq, f"{name} does not match its checksum.")


def _follow(walked: Walked, texts: dict[str, str], record: Record, place: str) -> Damage | None:
    """Redo one complete record; return the damage if it is inconsistent."""
    before = walked.newest
    if record.type == SNAPSHOT and before is not None and record.seq == before.seq:
        before = None  # older records were dropped, but some of their files still exist
        if any(
            kind in texts and texts[kind] and digest(texts[kind]) != wanted
            for kind, wanted in record.results.items()
        ):
            return Damage(place, record.seq, "the snapshot differs from the result of the records.")
    if before is not None and record.seq != before.seq + 1:
        return Damage(
            place,
            before.seq + 1,
            f"transaction {record.seq} follows {before.seq}: records are missing.",
            is_gap=True,
        )
    for kind, wanted in record.results.items():
        # The base is unknown if the document was last changed before the kept history.
        base = "" if record.bases[kind] == EMPTY else texts.get(kind)
        is_changed = any(change.doc == kind for change in record.changes)
        if base is not None and not is_changed and digest(base) != record.bases[kind]:
            # Redaction emptied this record, because the versions of the document could not be rebuilt.
            texts.pop(kind)
        elif base is not None:
            try:
                texts[kind] = text = redo(base, record, kind)
                begins_there = digest(base) == record.bases[kind]
                leads_there = begins_there and digest(text) == wanted
            except DocumentError:
                leads_there = False
            if not leads_there:
                return Damage(
                    place,
                    record.seq,
                    f"{kind}: transaction {record.seq} gives another text than its fingerprint says.",
                )
        walked.last[kind] = record
        walked.versions.setdefault(kind, {})[wanted] = record.seq
    walked.newest = record
    return None
