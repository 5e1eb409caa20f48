"""Stores memories in Firestore; one batched write with preconditions commits.

The documents are those of TOMLDiary 0.9, and one with the state of the user:

    app/memory/alice/preferences.toml      content, updated_at, version
    app/memory/alice/_tomldiary            revision, erasures, generation, first, seq, record, trash
    app/memory/alice/_tomldiary/history-7/000000000004     seq, record
    app/memory/_tomldiary/bob              is_hidden: has no documents; holds: hidden documents

A text that is too large for one document is written in parts before the batch:

    app/memory/alice/preferences.toml/parts/…

Each history has a random number, and a rewritten one gets another number. If it is too large for one request, its
first records are written before the batch, because it is not read before the state document has its number.

`trash` names replaced data that must be deleted. If a process dies before it deletes this data, the next write of the
user does.
"""

from __future__ import annotations

import contextlib
import random
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

from tomldiary.errors import BackendError
from tomldiary.history.record import next_sequence
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.storage.shared.database import (
    WHOLE_HISTORY,
    DatabaseLost,
    Head,
    Step,
    is_hidden,
    parsing,
)
from tomldiary.storage.shared.firestore.batch import ANY, LARGEST, MOST_DELETES, Batch
from tomldiary.storage.shared.firestore.connection import (
    HEAD,
    HISTORY,
    PARTS,
    SUFFIX,
    Connection,
    Refused,
    user_of,
)
from tomldiary.toml.document import FORMAT_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tomldiary.storage.protocol import Token

_NO_MARKS: dict[str, Any] = {"is_hidden": False, "holds": []}
_KINDS_OF_0_9 = "preferences", "conversations"
_MOST_READS = 1000
_LEFT = "*"
"""In `trash`: all earlier histories, and all parts of steps that killed processes did not commit."""


@dataclass(slots=True)
class FirestoreHead(Head):
    """The state of a user, with the version of the state document."""

    generation: int = 0
    first: int = 0
    trash: list[str] = field(default_factory=list[str])
    time: Any = None
    parts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The parts of each document, by its name in Firestore."""

    def take(self, snapshot: Any) -> None:
        """Set all fields from the state document."""
        values = snapshot.to_dict()
        self.revision, self.epoch = values["revision"], values["erasures"]
        self.generation, self.first = values["generation"], values["first"]
        self.record, self.trash = values["record"], values["trash"]
        self.time = snapshot.update_time

    def fields(self) -> dict[str, Any]:
        """Return the content of the state document."""
        record = self.record
        is_small = record is not None and len(record.encode()) < LARGEST // 4
        return {
            "revision": self.revision,
            "erasures": self.epoch,
            "generation": self.generation,
            "first": self.first,
            "seq": next_sequence(record) - 1,
            "record": record if is_small else None,
            "trash": self.trash,
        }


_HEAD_FIELDS = tuple(FirestoreHead().fields())


class FirestoreDatabase:
    """All users below one path of a Firestore database."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._listed = connection.listed

    def __str__(self) -> str:
        return str(self.connection)

    def risk(self) -> str:
        """Return "": a commit waits until it is stored in several places."""
        return ""

    # Reading

    def head(self, user: str, known: Head | None = None) -> Head:
        """Return the state of a user by one query, which reads no text of a document.

        A query costs a read for each document. With `known`, only three documents are read, unless a step was applied
        since.
        """
        if isinstance(known, FirestoreHead):
            same = self._same(user, known)
            if same is not None:
                return same
        query = self.connection.user(user).select([*_HEAD_FIELDS, PARTS])
        head, is_long = FirestoreHead(), False
        for each in self._listed(query.stream):
            if each.id == HEAD:
                with parsing(self, user):
                    head.take(each)
                    is_long = head.record is None and each.get("seq") > 0
            elif each.id.endswith(SUFFIX):
                kind = unquote(each.id.removesuffix(SUFFIX))
                head.versions[kind] = each.update_time
                head.parts[each.id] = each.to_dict().get(PARTS) or []
        if is_long:
            newest = self._records(user, head, WHOLE_HISTORY, 1)
            head.record = newest[0][1] if newest else None
        return head

    def _same(self, user: str, known: FirestoreHead) -> FirestoreHead | None:
        """Return a known state with the current versions of what TOMLDiary 0.9 writes; None if a step was applied since."""
        state = self.connection.head(user)
        places = {self.connection.document(user, kind): kind for kind in _KINDS_OF_0_9}
        head = copy(known)
        head.versions, head.parts = dict(known.versions), dict(known.parts)
        for each in self._listed(self.connection.client.get_all, [state, *places], [PARTS]):
            kind = places.get(each.reference)
            if kind is not None and each.exists:
                head.versions[kind] = each.update_time
                head.parts[each.id] = each.to_dict().get(PARTS) or []
            elif kind is not None:
                head.versions.pop(kind, None)
            elif each.update_time != known.time:
                return None
        return head

    def read(self, user: str, kinds: Sequence[str]) -> dict[str, tuple[str, Token]]:
        """Return the texts and versions of those documents that exist."""
        if not kinds:
            return {}
        places = {self.connection.document(user, kind): kind for kind in kinds}
        found = self._listed(self.connection.client.get_all, list(places))
        return {
            places[each.reference]: (self._text(each, "content"), each.update_time)
            for each in found
            if each.exists
        }

    def _text(self, snapshot: Any, field: str) -> str:
        """Return a text, joined if it is stored in parts."""
        values = snapshot.to_dict()
        names: list[str] = values.get(PARTS) or []
        if not names:
            text = values.get(field, "")
            # Another program may store anything; these words are no TOML, so an error names the document.
            return text if isinstance(text, str) else f"the field {field} is not a text"
        parts = snapshot.reference.collection(PARTS)
        found = self._listed(self.connection.client.get_all, [*map(parts.document, names)])
        texts = {each.id: each.get("content") for each in found if each.exists}
        if len(texts) < len(names):
            raise DatabaseLost("a document was replaced while it was read")
        return "".join(texts[name] for name in names)

    def records(self, user: str, below: int, limit: int) -> list[tuple[int, str]]:
        """Return at most `limit` history records with lower sequence numbers, newest first."""
        snapshot = self.connection.call(self.connection.head(user).get)
        if not snapshot.exists:
            return []
        head = FirestoreHead()
        with parsing(self, user):
            head.take(snapshot)
        return self._records(user, head, below, limit)

    def _records(
        self, user: str, head: FirestoreHead, below: int, limit: int
    ) -> list[tuple[int, str]]:
        query = (
            self.connection.history(user, head.generation)
            .order_by("seq", direction="DESCENDING")
            .start_after({"seq": below})
            .end_at({"seq": head.first})
            .limit(limit)
        )
        found = self._listed(query.stream)
        return [(each.get("seq"), self._text(each, "record")) for each in found]

    def users(self) -> Iterator[str]:
        """Yield the ids of all users with documents, in pages of the client library."""
        left_out = {*self._hidden(), HEAD}
        for each in self._listed(self.connection.base.collections):
            if each.id not in left_out:
                yield user_of(each.id)

    def erased(self) -> Iterator[str]:
        """Yield the ids of all users without documents and with erased data."""
        for user in map(user_of, self._hidden()):
            if self.head(user).epoch:
                yield user

    def _hidden(self) -> set[str]:
        """Return the path segments of the users whose documents are all hidden."""
        names = [each.id for each in self._marked("is_hidden", "==", value=True)]
        # TOMLDiary 0.9, which does not know the marks, may have written since.
        places = [
            self.connection.document(user_of(name), kind)
            for name in names
            for kind in _KINDS_OF_0_9
        ]
        seen: set[str] = set()
        for start in range(0, len(places), _MOST_READS):
            page = places[start : start + _MOST_READS]
            found = self._listed(self.connection.client.get_all, page, [PARTS])
            seen.update(each.reference.parent.id for each in found if each.exists)
        return {*names} - seen

    def holders(self, kind: str) -> Iterator[str]:
        """Yield the ids of all users with a hidden document."""
        yield from (user_of(each.id) for each in self._marked("holds", "array_contains", kind))

    def _marked(self, name: str, operator: str, value: object) -> list[Any]:
        from google.cloud.firestore import FieldFilter  # noqa: PLC0415 - an optional dependency

        chosen = FieldFilter(name, operator, value)
        query = self.connection.base.collection(HEAD).where(filter=chosen).select([])
        return self._listed(query.stream)

    # Writing

    def apply(self, user: str, head: Head, step: Step) -> Head | None:
        """Apply a step if neither the head nor a document has changed since `head` was read."""
        assert isinstance(head, FirestoreHead)  # noqa: S101 - only this class makes heads for it
        head = copy(head)
        if step.erasures and self.head(user).versions != head.versions:
            return None  # a program without revisions wrote a document that `head` may lack
        if not clear_trash(self.connection, user, head):
            return None
        batch = Batch(self.connection)
        state, after = self.connection.head(user), head.after(step, dict.fromkeys(step.contents))
        after.generation, after.first = head.generation, head.first
        self._put_records(user, head, step, after, batch)
        places = {
            kind: self.connection.document(user, kind) for kind in (*step.contents, *step.removed)
        }
        now = datetime.now(UTC).isoformat()
        for kind, content in step.contents.items():
            values = {"updated_at": now, "version": FORMAT_VERSION}
            batch.put_text(places[kind], "content", content, values, head.versions.get(kind))
        for kind in step.removed:
            batch.delete(places[kind], head.versions[kind])
        changed = [each.id for each in places.values()]
        after.trash += [f"{name}/{part}" for name in changed for part in head.parts.get(name, ())]
        if step.erasures:
            after.trash.append(_LEFT)
        # TOMLDiary 0.9 deletes the state document of a user, but not the mark.
        marked = _marks(head.versions) if head.time is not None else None
        marks = _marks(after.versions)
        if marks not in (marked, _NO_MARKS):
            batch.put(self.connection.mark(user), marks, ANY)
        elif marks != marked:
            batch.delete(self.connection.mark(user), ANY)
        before, fields = head.fields(), after.fields()
        if head.time is not None:  # each field costs time in the client
            fields = {name: each for name, each in fields.items() if each != before[name]}
        batch.put(state, fields, head.time)
        try:
            results = batch.commit()
        except Refused:
            batch.take_back()
            return None
        after.time = results[state.path]
        after.versions.update({kind: results[places[kind].path] for kind in step.contents})
        after.parts = {**head.parts, **{name: [] for name in changed}, **batch.parts}
        with contextlib.suppress(DatabaseLost, BackendError):
            # If this fails, the next write of the user deletes the trash.
            clear_trash(self.connection, user, after)
        return after

    def _put_records(
        self, user: str, head: FirestoreHead, step: Step, after: FirestoreHead, batch: Batch
    ) -> None:
        """Put the history records of a step, and set in `after` where the history is."""
        is_new = head.record is None or step.dropped == WHOLE_HISTORY
        if is_new:
            # Random, because a killed process may have left records in the next one, and TOMLDiary 0.9 deletes the
            # state document of a user, but not the history below it.
            after.generation += random.getrandbits(32) + 1
        if step.dropped == WHOLE_HISTORY:
            after.trash.append(f"{HISTORY}{head.generation}")
            after.first = 0
        elif step.dropped:
            after.first = step.dropped
            after.trash.append(f"{HISTORY}{head.generation}<{step.dropped}")
        for seq, record in step.records:
            if is_new and batch.is_large:
                batch.flush()  # a history is not read before the state document names it
            target = self.connection.history(user, after.generation).document(f"{seq:012d}")
            # A snapshot replaces the record with its number.
            version = ANY if seq == after.first else None
            batch.put_text(target, "record", record, {"seq": seq}, version)

    def touch(self, user: str) -> None:
        """Add 1 to the revision of a user."""
        from google.cloud.firestore import Increment  # noqa: PLC0415 - an optional dependency

        place, change = self.connection.head(user), {"revision": Increment(1)}
        with contextlib.suppress(Refused):  # there is no such user
            self.connection.call(place.update, change, is_conditional=True)

    def check_writes(self) -> None:
        """Do nothing: Firestore has no replicas that take reads only."""

    def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        self.connection.close()


def _marks(kinds: Iterable[str]) -> dict[str, Any]:
    """Return the content of a user's mark, from the names of all documents."""
    names = [*kinds]
    return {"is_hidden": all(map(is_hidden, names)), "holds": sorted(filter(is_hidden, names))}


# Deletion of replaced data: parts of documents, and histories


def clear_trash(connection: Connection, user: str, head: FirestoreHead) -> bool:
    """Delete the data that earlier steps replaced; return False if `head` is not the stored state."""
    if not head.trash:
        return True
    for entry in head.trash:
        _delete_replaced(connection, user, head, entry)
    place = connection.head(user)
    option = connection.client.write_option(last_update_time=head.time)
    try:
        done = connection.call(place.update, {"trash": []}, option, is_conditional=True)
    except Refused:
        return False
    head.trash, head.time = [], done.update_time
    return True


def _delete_replaced(connection: Connection, user: str, head: FirestoreHead, entry: str) -> None:
    if entry.startswith(HISTORY):
        name, _, below = entry.partition("<")
        left = connection.head(user).collection(name)
        _delete_all(
            connection, left.end_before({"seq": int(below)}).order_by("seq") if below else left
        )
        return
    if entry == _LEFT:
        _delete_left(connection, user, head)
        return
    name, _, part = entry.rpartition("/")
    if part not in head.parts.get(name, ()):
        target = connection.user(user).document(name).collection(PARTS).document(part)
        connection.call(target.delete)


def _delete_left(connection: Connection, user: str, head: FirestoreHead) -> None:
    """Delete earlier histories, and the parts of documents and of these histories that no document names."""
    # The lists contain the documents that do not exist and have parts.
    listed = connection.listed
    places, left = listed(connection.user(user).list_documents), list[Any]()
    for history in listed(connection.head(user).collections):
        if history.id != f"{HISTORY}{head.generation}":
            places += listed(history.list_documents)
            left += listed(history.select([]).stream)
    for place in places:
        parts = listed(place.collection(PARTS).select([]).stream)
        left += [part for part in parts if part.id not in head.parts.get(place.id, ())]
    for each in left:
        # One that is newer than the head belongs to a later step.
        if each.create_time <= head.time:
            connection.call(each.reference.delete)


def _delete_all(connection: Connection, query: Any) -> None:
    """Delete the history records that a query finds, and their parts."""
    query = query.limit(MOST_DELETES).select([PARTS])
    while found := connection.listed(query.stream):
        batch = connection.client.batch()
        for each in found:
            for part in each.to_dict().get(PARTS) or ():
                batch.delete(each.reference.collection(PARTS).document(part))
            batch.delete(each.reference)
        connection.call(batch.commit)


class FirestoreBackend(SharedBackend):
    """Stores all users in Firestore, with the documents of TOMLDiary 0.9; see `Connection` for the arguments."""

    options: ClassVar = {"database": str, "timeout": float}
    queue_part = 128 * 1024
    """As in `SharedBackend`, but larger, because each document of a user costs a read whenever they are listed."""

    def __init__(
        self,
        project_id: str,
        base_path: str = "tomldiary/users",
        credentials_path: str | None = None,
        credentials_dict: Mapping[str, Any] | None = None,
        database: str = "(default)",
        *,
        timeout: float = 10.0,
    ) -> None:
        connection = Connection(
            project_id, base_path, credentials_path, credentials_dict, database, timeout=timeout
        )
        super().__init__(FirestoreDatabase(connection), timeout=timeout)
