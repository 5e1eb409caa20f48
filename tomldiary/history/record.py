"""The log of transactions: append-only TOML, one checksummed `[[tx]]` record for each; and an index of it.

The envelope of a record (sequence, time, type) comes first, then the payload. The payload holds the session,
actor and reason, and for every document the exact text that was removed and inserted. So a commit can be redone
byte for byte.

    [[tx]]
    check = "1f6c0d9a"              # CRC-32 of the rest of the record, in hex
    seq = 12
    time = "2026-11-20T03:37:54.320748+00:00"
    type = "turn"
    session = "s1"
    boot = "5f0c…"                  # fingerprint of the boot that wrote it, and of the user's folder
    base = { preferences = "…" }    # fingerprint of each document before
    result = { preferences = "…" }  # and after
    changes = [ … { doc = "preferences", at = 310, old = "…", new = "…" } … ]
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from tomldiary.errors import InvalidTOML
from tomldiary.runtime.forgettable_cache import cleared_on_forget
from tomldiary.toml.document import Document
from tomldiary.toml.values import checked_text, render_key, render_text, render_value, timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tomldiary.storage.protocol import HistorySource

HEADER = "[[tx]]\n"
"""Every record starts with this line, and no line inside a record looks like it."""
END = "\n]\n"
"""Every record ends with these lines, and no line inside a record looks like them."""
_as_json = json.JSONEncoder(sort_keys=True, default=str).encode
_CALLER_FIELDS = (
    ("session", "session_id"),
    ("actor", "actor"),
    ("reason", "reason"),
    ("operation", "operation_id"),
)
"""The fields of a transaction that callers set, and the names of their arguments."""
OPTIONAL_TEXTS = ("session", "actor", "reason", "operation", "content")
"""The texts that a record has only if they are not empty. Forgetting clears them, because they may name the content."""
LOST = "lost"
"""The type of a placeholder for records that another program has removed; it is never stored."""
SNAPSHOT = "snapshot"
"""The type of the record that replaces all transactions up to its number with the documents at that time."""
_SNAPSHOT = re.compile(
    rf'\[\[tx\]\]\ncheck = "[^"]*"\nseq = [0-9]+\ntime = "[^"]*"\ntype = "{SNAPSHOT}"\n'
)
_SEQ = re.compile(r"^seq = (\d+)$", re.MULTILINE)
_TIME = re.compile(r'^time = "([^"]*)"$', re.MULTILINE)
_TYPE = re.compile(r'^type = "([^"]*)"$', re.MULTILINE)
_OPERATION = re.compile(r'^(operation|content) = (".*")$', re.MULTILINE)
_RESULT = re.compile(r"^result = \{(.*)\}$", re.MULTILINE)
OWN_LINES = re.compile(r'^(?:check|boot) = "[^"]*"\n?', re.MULTILINE)
"""The lines of a record that differ between storages."""
_CHECK = re.compile(r'\[\[tx\]\]\ncheck = "([0-9a-f]{8})"\n')


@dataclass(slots=True)  # not frozen: frozen ones are slower to create
class Source:
    """The source of a transaction, as history records it. Never changed."""

    type: str
    session: str = ""
    actor: str = ""
    reason: str = ""
    operation: str = ""
    """The idempotency key of the caller; a repeated key has no further effect."""
    content: str = ""
    """Fingerprint of the request, to detect another use of the same `operation`."""
    is_new: bool = False
    """Whether `operation` was just generated, so that history need not be searched for it."""
    asked: tuple[Any, ...] = ()
    """The request, without its type, used instead of `content`; its fingerprint is computed only if needed."""
    is_draft: bool = False
    """Whether the writes become drafts of the session, which is another request than to store them."""

    def __post_init__(self) -> None:
        for name, argument in _CALLER_FIELDS:
            given = getattr(self, name)
            if type(given) is not str:
                setattr(self, name, "" if given is None else checked_text(given, argument))

    def fingerprint(self) -> str:
        """Return the fingerprint of the request; "" if there is none."""
        if self.content or not self.asked:
            return self.content
        return fingerprint(f"draft {self.type}" if self.is_draft else self.type, *self.asked)


def fingerprint(*asked: Any) -> str:
    """Return a digest of a request."""
    return hashlib.sha256(_as_json(asked).encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(slots=True)  # not frozen: see above
class Change:
    """The replacement of the text `old` by `new` in document `doc`. Never changed.

    `at` is the offset in characters in the version before the transaction. `new` may begin with a blank
    line that separates added blocks from the text before.
    """

    doc: str
    at: int
    old: str
    new: str


@dataclass(slots=True)  # not frozen: see above
class Record:
    """One transaction as logged; not changed once it is rendered."""

    seq: int
    type: str
    changes: list[Change]
    bases: dict[str, str]
    results: dict[str, str]
    time: str = field(default_factory=timestamp)
    session: str = ""
    actor: str = ""
    reason: str = ""
    operation: str = ""
    content: str = ""
    conflicts: list[str] = field(default_factory=list[str])
    """Tables in which a hand edit displaced our change."""
    boot: str = ""
    """Fingerprint of the boot that wrote it."""

    def parts(self) -> dict[str, tuple[list[Document], list[Document]]]:
        """Return the changed blocks of each document before and after; see `Document.parse_parts`."""
        changes: dict[str, tuple[list[str], list[str]]] = {}
        for change in self.changes:
            old, new = changes.setdefault(change.doc, ([], []))
            old.append(change.old)
            new.append(change.new)
        parse = Document.parse_parts
        return {doc: (parse(old), parse(new)) for doc, (old, new) in changes.items()}


def render_record(record: Record) -> str:
    """Render a record as TOML text that ends with a line break."""
    # Every value is on one line, so that no stored text can look like a record's first line.
    lines = [f'seq = {record.seq}\ntime = "{record.time}"\ntype = {render_text(record.type)}\n']
    for name in OPTIONAL_TEXTS:
        value = getattr(record, name)
        if value:
            lines.append(f"{name} = {render_text(value, where=name)}\n")
    if record.conflicts:
        lines.append(f"conflicts = {render_value(record.conflicts)}\n")
    if record.boot:
        lines.append(f"boot = {render_text(record.boot)}\n")
    lines.append(f"base = {_table(record.bases)}\nresult = {_table(record.results)}\nchanges = [\n")
    for change in record.changes:
        doc, old, new = render_text(change.doc), render_text(change.old), render_text(change.new)
        lines.append(f"    {{ doc = {doc}, at = {change.at}, old = {old}, new = {new} }},\n")
    lines.append("]\n")
    body = "".join(lines)
    return _checked(body)


def _checked(body: str) -> str:
    return f'{HEADER}check = "{crc32(body.encode()):08x}"\n{body}'


def stamped(text: str, boot: str) -> str:
    """Return a rendered record with the fingerprint of the boot; an altered record is unchanged."""
    head = _CHECK.match(text)
    if head is None:
        return text
    # Every value is on one line, so no stored text can look like the start of a line.
    head_lines, base, rest = text[head.end() :].partition("\nbase = ")
    # A copied record has the boot of another machine.
    head_lines = head_lines.partition("\nboot = ")[0]
    return _checked(f"{head_lines}\nboot = {render_text(boot)}{base}{rest}")


def _table(texts: dict[str, str]) -> str:
    pairs = [f"{render_key(key)} = {render_text(text, where=key)}" for key, text in texts.items()]
    return f"{{ {', '.join(pairs)} }}" if pairs else "{}"


def is_whole(text: str) -> bool:
    """Return whether a record matches its checksum: it is neither torn nor altered."""
    head = _CHECK.match(text)
    return head is not None and f"{crc32(text[head.end() :].encode()):08x}" == head.group(1)


def parse_record(text: str) -> Record:
    """Parse one record.

    Raises:
        InvalidTOML: The record is torn or was altered.
    """
    head = _CHECK.match(text)
    if head is None or not is_whole(text):
        number = _SEQ.search(text)
        raise InvalidTOML(
            f"history record {number[1] if number else '?'} was altered: it does not match its checksum. Run"
            ' "tomldiary doctor" for the file and the place, and restore the file from a backup.'
        )
    # Our rendered texts are also valid JSON, which is parsed much faster than TOML.
    head_lines, _, changed = text[head.end() :].partition("\nchanges = [\n")
    data: dict[str, Any] = {}
    for line in head_lines.split("\n"):
        name, _, value = line.partition(" = ")
        data[name] = _read_table(value) if value.startswith("{") else json.loads(value)
    return Record(
        seq=data["seq"],
        time=data["time"],
        type=data["type"],
        conflicts=data.get("conflicts", []),
        boot=data.get("boot", ""),
        bases=data["base"],
        results=data["result"],
        changes=[
            Change(_text(doc), int(at), _text(old), _text(new))
            for doc, at, old, new in _CHANGE.findall(changed)
        ],
        **{name: data.get(name, "") for name in OPTIONAL_TEXTS},
    )


_STRING = r'"(?:[^"\\]|\\.)*+"'
_PAIR = re.compile(rf"([A-Za-z0-9_-]+|{_STRING}) = ({_STRING})")
_CHANGE = re.compile(
    rf"    \{{ doc = ({_STRING}), at = (\d+), old = ({_STRING}), new = ({_STRING}) \}},\n"
)


def _read_table(text: str) -> dict[str, str]:
    return {
        _text(key) if key[0] == '"' else key: _text(value) for key, value in _PAIR.findall(text)
    }


def _text(literal: str) -> str:
    try:
        return str(json.loads(literal)) if "\\" in literal else literal[1:-1]
    except ValueError:  # damaged; the checksum of the record reveals it
        return literal[1:-1]


def next_sequence(last: str | None) -> int:
    """Return the sequence number after the record `last`; 1 if `last` is None."""
    if last is None:
        return 1
    found = _SEQ.search(last)  # the backend has verified the record
    if found is None:
        raise InvalidTOML(
            'a history record has no sequence number. Run "tomldiary doctor" for the file and the place.'
        )
    return int(found.group(1)) + 1


def sequence_of(text: str) -> int:
    """Return the number of a record; 0 if it is torn, where `next_sequence` raises an error."""
    try:
        return next_sequence(text) - 1
    except InvalidTOML:
        return 0  # parsing it raises the error


def envelope_of(text: str | None) -> tuple[int, str]:
    """Return the number and the time of a record, without parsing the rest; 0 and "" for None."""
    found = _TIME.search(text) if text is not None else None
    return next_sequence(text) - 1, found.group(1) if found is not None else ""


def operation_of(text: str) -> tuple[str, str]:
    """Return a record's operation id and the fingerprint of its request; "" if missing. The rest is not parsed."""
    # Every value is on one line, so no stored text can look like one of these lines.
    head = text[: text.find("\nbase = ")]
    found = {name: _text(value) for name, value in _OPERATION.findall(head)}
    return found.get("operation", ""), found.get("content", "")


def results_of(text: str) -> dict[str, str]:
    """Return the documents that a record changed with their fingerprints after it, without parsing the rest."""
    found = _RESULT.search(text)
    return _read_table(found[1]) if found is not None else {}


def type_of(text: str) -> str:
    """Return the type of a record, without parsing it; "" if it has none."""
    found = _TYPE.search(text)
    return found.group(1) if found is not None else ""


def is_snapshot(text: str) -> bool:
    """Return whether a record is a snapshot, without parsing it."""
    return _SNAPSHOT.match(text) is not None


def is_lost(text: str | None) -> bool:
    """Return whether a record is a placeholder for removed records, without parsing it."""
    return text is not None and f'"\ntype = "{LOST}"\n' in text[:200]


# The index of a history


class Latest(NamedTuple):
    """The newest record that changed a document."""

    seq: int
    type: str
    result: str
    """The fingerprint of the document after the transaction."""


@dataclass(slots=True)
class Indexed:
    """What the newest records of a history say; it may contain keys of records that were dropped since.

    Readers use it without a lock, so its documents are not changed once it is complete.
    """

    last: int = 0
    """The number of the newest transaction."""
    newest: int = 0
    """The `_identity` of its record; it differs if the indexed history was not stored, or was replaced."""
    start: int = -1
    """The number of the transaction after which all records are indexed; 0 is the whole history, -1 is unknown."""
    documents: dict[str, Latest | None] = field(default_factory=dict[str, "Latest | None"])
    """The newest record of each document; None if it was altered."""
    operations: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    """By idempotency key: the transaction, and the fingerprint of the request. Only used under the user's lock."""

    def ends_with(self, text: str) -> bool:
        """Return whether a record is the newest indexed one."""
        return self.last == sequence_of(text) and self.newest == _identity(text)

    def knows(self, kind: str) -> bool:
        """Return whether the records before the indexed ones are not needed for a document."""
        return kind in self.documents or not self.start

    def add(self, text: str, *, has_operations: bool = True) -> None:
        """Add the record before the oldest indexed one, with its operation unless only readers use this."""
        seq = sequence_of(text)
        if not self.newest:
            self.last, self.newest = seq, _identity(text)
        if seq:
            self.start = 0 if is_snapshot(text) else seq - 1
        results = results_of(text)
        if not results.keys() <= self.documents.keys():
            type_, is_intact = type_of(text), is_whole(text)
            for kind, result in results.items():
                self.documents.setdefault(kind, Latest(seq, type_, result) if is_intact else None)
        if not has_operations:
            return
        operation, content = operation_of(text)
        if operation:
            self.operations.setdefault(operation, (seq, content))

    def then(self, newer: Indexed) -> Indexed:
        """Return this index with the records after it."""
        documents, operations = self.documents | newer.documents, self.operations
        if newer.operations:
            operations = operations | newer.operations
        return Indexed(newer.last, newer.newest, self.start, documents, operations)


class HistoryIndex:
    """The index of one user's history, which is read from the newest record backwards as far as needed.

    Thread-safe: a race only repeats work. Readers and writers keep what they know apart, because a reader may see an
    older or another history than the writer: without the transactions that are about to be stored, or a restored one.

    Args:
        source: The storage of the history.
        user: The user.
    """

    def __init__(self, source: HistorySource, user: str) -> None:
        self._source = source
        self._user = user
        self._read: Indexed | None = None
        """What `of` has read."""
        self._written: Indexed | None = None
        """What `at` and `note` know, under the user's lock."""

    def of(self, kind: str) -> Latest | None:
        """Return the newest record that changed document `kind`, or None.

        What the records say about other documents is kept. Later only the new records are read. If the answer is not
        among them, at least twice as many records are read. So many documents need a few passes over history.

        Raises:
            InvalidTOML: The record was altered.
        """
        texts = self._texts()
        newest = next(texts, None)
        if newest is None:
            return None
        known = self._written
        if known is None or not known.knows(kind) or not known.ends_with(newest):
            known = self._read
        self._read = found = _back_to(kind, chain([newest], texts), known)
        latest = found.documents.get(kind)
        if latest is not None or kind not in found.documents:
            return latest
        altered = next((text for text in self._texts() if kind in results_of(text)), None)
        if altered is None:  # the history was replaced since
            return None
        record = parse_record(altered)  # raises the error, unless the record was restored since
        return Latest(record.seq, record.type, record.results[kind])

    def at(self, record: str | None, *, is_whole: bool = False) -> Indexed:
        """Return the index of a history that ends with `record`; the caller holds the user's lock.

        It covers the whole history if `is_whole`, otherwise at least the records since the first call.

        Raises:
            InvalidTOML: The record has no number.
        """
        last, newest = next_sequence(record) - 1, _identity(record)
        known = self._written
        if known is None or (known.last, known.newest) != (last, newest):
            continued = self._after(known) if known is not None else None
            known = continued or Indexed(start=last)
        if is_whole and known.start:
            known = self._after(Indexed()) or known
        if (known.last, known.newest) != (last, newest):
            # The last record is a placeholder, which is not among the stored ones, or none was read.
            known = replace(known, last=last, newest=newest)
        self._written = known
        return known

    def note(self, made: Record, text: str, last: str | None) -> None:
        """Add the latest transaction, stored as `text` after the record `last`; the caller holds the user's lock."""
        known = self._written
        if known is not None and known.newest == _identity(last):
            self._written = None  # an interruption must not leave a half noted transaction
            newer = Indexed(made.seq, _identity(text))
            for kind, result in made.results.items():
                newer.documents[kind] = Latest(made.seq, made.type, result)
            if made.operation:
                known.operations[made.operation] = (made.seq, made.content)
            self._written = known.then(newer)

    def is_dropped(self, seq: int) -> bool:
        """Return whether the record of a transaction was dropped from history since, for example by retention."""
        older = (text for text in self._source.records(self._user) if 0 < sequence_of(text) <= seq)
        found = next(older, None)
        return found is None or is_snapshot(found)

    def _texts(self) -> Iterator[str]:
        """Yield the records, newest first, without a torn end that was never acknowledged."""
        texts = iter(self._source.records(self._user))
        newest = next(texts, None)
        if newest is not None and _is_whole(newest):
            yield newest
        yield from texts

    def _after(self, known: Indexed) -> Indexed | None:
        """Return an index with all records after its end, or None if history does not continue it.

        This is the case if the user was removed, history was rewritten, or an indexed transaction was not stored.
        """
        fresh = Indexed()
        for text in self._texts():
            if 0 < sequence_of(text) <= known.last:
                return known.then(fresh) if known.ends_with(text) else None
            fresh.add(text)
            if not fresh.start:
                break
        fresh.start = 0
        return fresh


def _back_to(kind: str, texts: Iterable[str], known: Indexed | None) -> Indexed:
    """Return the index of the records, newest first, until the newest one of a document; `known` has read some."""
    fresh, least = Indexed(), 0
    for text in texts:
        if known is not None and 0 < sequence_of(text) <= known.last:
            is_same = known.ends_with(text)
            if is_same and (kind in fresh.documents or known.knows(kind)):
                return known.then(fresh) if fresh.newest else known
            if is_same:
                least = (fresh.last or known.last) + known.last - 2 * known.start
            known = None  # its records are read again
        fresh.add(text, has_operations=False)
        is_enough = known is None and fresh.last - fresh.start >= least
        if not fresh.start or (is_enough and kind in fresh.documents):
            return fresh
    fresh.start = 0
    return fresh


# Cached, because the newest record is checked for each document that is read.
_is_whole = cleared_on_forget(lru_cache(maxsize=4)(is_whole))


@cleared_on_forget
@lru_cache(maxsize=16)  # a transaction on many documents asks for each of them
def _identity(record: str | None) -> int:
    """Return the hash of a record without the lines that differ between storages."""
    head, _, rest = (record or "").partition("\nbase = ")
    return hash((OWN_LINES.sub("", head).rstrip("\n"), rest))
