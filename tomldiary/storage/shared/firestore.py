"""Memories in Firestore: one batched write with preconditions commits.

The documents are those of TOMLDiary 0.9, beside one that holds the state of the user:

    app/memory/alice/preferences.toml      content, updated_at, version
    app/memory/alice/_tomldiary            revision, erasures, generation, first, seq, record, trash
    app/memory/alice/_tomldiary/history-0/000000000007     seq, record
    app/memory/_tomldiary/bob              is_hidden: has no documents; holds: hidden documents

A text that is too large for one document is written in parts before the batch:

    app/memory/alice/preferences.toml/parts/…

A rewritten history gets a new generation. `trash` names what a step has replaced and what must be deleted. If a
process dies in between, the next write of the user deletes it.
"""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote
from uuid import uuid4

from tomldiary.errors import BackendError, IdentifierError, MissingExtra
from tomldiary.history.record import next_sequence
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.storage.shared.database import (
    WHOLE_HISTORY,
    DatabaseLost,
    Head,
    Step,
    is_hidden,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tomldiary.storage.protocol import Durability, Token

__all__ = ["FirestoreBackend", "FirestoreDatabase"]

R = TypeVar("R")
_HEAD = "_tomldiary"
_SUFFIX = ".toml"
_LARGEST = 900_000  # bytes of text in one document; Firestore allows 1 MiB with all fields
_LARGEST_BATCH = 3_000_000  # bytes of text; Firestore allows 10 MiB, its emulator 4 MiB
_MOST_DELETES = 400
_HEAD_FIELDS = ("revision", "erasures", "generation", "first", "seq", "record", "trash")
_ANY = "any version"
_NO_MARKS: dict[str, Any] = {"is_hidden": False, "holds": []}
_HISTORY = "history-"
_PARTS = "parts"


class FirestoreDatabase:
    """All users below one path of a Firestore database.

    Args:
        project_id: The Google Cloud project.
        base_path: A path with an even number of segments.
        credentials_path: A service account file.
        credentials_dict: The content of such a file.
        database: The name of the Firestore database.
        timeout: Seconds for one request.

    Raises:
        ValueError: Both credentials are given, or the path has an odd number of segments.
    """

    durability: Durability = "full"

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
        if credentials_path and credentials_dict:
            raise ValueError(
                "Cannot specify both credentials_path and credentials_dict. Please provide only one credential method."
            )
        self._path = base_path.strip("/")
        segments = [segment for segment in self._path.split("/") if segment]
        if len(segments) % 2 or not segments:
            raise ValueError(
                f"Invalid base_path '{base_path}': Firestore requires an EVEN number of path segments.\n"
                f"Current path has {len(segments)} segments: {segments}\n"
                "Firestore paths must alternate: collection/document/collection/document/...\n"
                "Please add one more segment to your base_path to make it even.\n"
                f"Example: '{base_path}/memory' (if your current path is just one segment)"
            )
        try:
            from google.cloud import firestore  # noqa: PLC0415 - an optional dependency
        except ImportError as error:
            raise MissingExtra("a Firestore backend", "firestore") from error
        self._project = project_id
        # The client would repeat a request for a minute; `answer` and `outcome` repeat it for the time of the option.
        self._once: dict[str, Any] = {"retry": None, "timeout": timeout}
        credentials = _credentials(credentials_path, credentials_dict)
        self._client: Any = self._run(
            lambda: firestore.Client(project=project_id, database=database, credentials=credentials)
        )
        self._base: Any = self._client.document("/".join(segments))

    def __str__(self) -> str:
        return f"firestore://{self._project}/{self._path}"

    def _run(self, work: Callable[[], R]) -> R:
        from google.api_core import exceptions  # noqa: PLC0415 - an optional dependency
        from google.auth import exceptions as auth  # noqa: PLC0415 - see above

        try:
            return work()
        except (exceptions.PermissionDenied, exceptions.Unauthenticated) as error:
            raise BackendError(
                f"{self}: permission is denied. Check the role of the account."
            ) from error
        except auth.GoogleAuthError as error:
            raise BackendError(
                f"{self}: there are no credentials. Give credentials_path, run `gcloud auth application-default"
                " login`, or set FIRESTORE_EMULATOR_HOST."
            ) from error
        except (
            exceptions.ServiceUnavailable,
            exceptions.DeadlineExceeded,
            exceptions.RetryError,
            exceptions.InternalServerError,
            exceptions.ResourceExhausted,
        ) as error:
            raise DatabaseLost(_reason(error)) from error
        except (exceptions.FailedPrecondition, exceptions.AlreadyExists, exceptions.Aborted):
            raise
        except exceptions.NotFound as error:
            if "database" not in f"{error}".lower():
                raise  # a document
            raise BackendError(
                f"{self}: the project has no such Firestore database. Create it, or name another one with ?database=."
            ) from error
        except exceptions.GoogleAPICallError as error:
            raise BackendError(f"{self}: Firestore refused ({error.message}).") from error

    def _user(self, user: str) -> Any:
        return self._base.collection(_segment(user))

    def _document(self, user: str, kind: str) -> Any:
        return self._user(user).document(_segment(kind) + _SUFFIX)

    def _history(self, user: str, generation: int) -> Any:
        return self._user(user).document(_HEAD).collection(f"{_HISTORY}{generation}")

    # Reading

    def head(self, user: str, kinds: Sequence[str] = ()) -> Head:
        """Return the state of a user by one query; without `kinds` it reads no text of a document."""
        fields = [*_HEAD_FIELDS, _PARTS, *(["content"] if kinds else [])]
        query = self._user(user).select(fields)
        head = _FirestoreHead()
        for each in self._run(lambda: list(query.stream(**self._once))):
            if each.id == _HEAD:
                head.take(each)
            elif each.id.endswith(_SUFFIX):
                kind = unquote(each.id.removesuffix(_SUFFIX))
                head.versions[kind] = each.update_time
                head.parts[each.id] = each.to_dict().get(_PARTS) or []
                if kind in kinds:
                    head.texts[kind] = self._text(each, "content")
        if head.seq and head.record is None:
            newest = self._records(user, head, WHOLE_HISTORY, 1)
            head.record = newest[0][1] if newest else None
        return head

    def read(self, user: str, kinds: Sequence[str]) -> dict[str, tuple[str, Token]]:
        """Return the texts and versions of those documents that exist."""
        places = {self._document(user, kind): kind for kind in kinds}
        found = self._run(lambda: list(self._client.get_all(list(places), **self._once)))
        return {
            places[each.reference]: (self._text(each, "content"), each.update_time)
            for each in found
            if each.exists
        }

    def _text(self, snapshot: Any, field: str) -> str:
        """Return a text, joined if it is stored in parts."""
        values = snapshot.to_dict()
        names: list[str] = values.get(_PARTS) or []
        if not names:
            return values.get(field) or ""
        parts = snapshot.reference.collection(_PARTS)
        found = self._run(
            lambda: list(self._client.get_all([parts.document(n) for n in names], **self._once))
        )
        texts = {each.id: each.get("content") for each in found if each.exists}
        if len(texts) < len(names):
            raise DatabaseLost("a document was replaced while it was read")
        return "".join(texts[name] for name in names)

    def records(self, user: str, below: int, limit: int) -> list[tuple[int, str]]:
        """Return at most `limit` history records with lower sequence numbers, newest first."""
        snapshot = self._run(lambda: self._user(user).document(_HEAD).get(**self._once))
        if not snapshot.exists:
            return []
        head = _FirestoreHead()
        head.take(snapshot)
        return self._records(user, head, below, limit)

    def _records(
        self, user: str, head: _FirestoreHead, below: int, limit: int
    ) -> list[tuple[int, str]]:
        query = (
            self._history(user, head.generation)
            .order_by("seq", direction="DESCENDING")
            .start_after({"seq": below})
            .end_at({"seq": head.first})
            .limit(limit)
        )
        found = self._run(lambda: list(query.stream(**self._once)))
        return [(each.get("seq"), self._text(each, "record")) for each in found]

    def users(self) -> Iterator[str]:
        """Yield the ids of all users with documents, in pages of the client library."""
        hidden = self._marked("is_hidden", "==", value=True)
        left_out = {each.id for each in hidden} | {_HEAD}
        for each in self._run(lambda: list(self._base.collections(**self._once))):
            if each.id not in left_out:
                yield unquote(each.id)

    def erased(self) -> Iterator[str]:
        """Yield the ids of all users without documents of whom data was erased."""
        for each in self._marked("is_hidden", "==", value=True):
            user = unquote(each.id)
            if self.head(user).epoch:
                yield user

    def holders(self, kind: str) -> Iterator[str]:
        """Yield the ids of all users with a hidden document."""
        yield from (unquote(each.id) for each in self._marked("holds", "array_contains", kind))

    def _marked(self, name: str, operator: str, value: object) -> list[Any]:
        from google.cloud.firestore import FieldFilter  # noqa: PLC0415 - an optional dependency

        chosen = FieldFilter(name, operator, value)
        query = self._base.collection(_HEAD).where(filter=chosen).select([])
        return self._run(lambda: list(query.stream(**self._once)))

    # Writing

    def apply(self, user: str, head: Head, step: Step) -> dict[str, Token] | None:
        """Apply a step if neither the head nor a document has changed since `head` was read."""
        from google.api_core import exceptions  # noqa: PLC0415 - an optional dependency

        assert isinstance(head, _FirestoreHead)  # noqa: S101 - only this class makes heads for it
        if not self._clear_trash(user, head):
            return None
        batch = _Batch(self._client, self._run, self._once)
        place = self._user(user).document(_HEAD)
        generation, first, trash = head.generation, head.first, list[str]()
        if step.dropped == WHOLE_HISTORY:
            trash.append(f"{_HISTORY}{generation}")
            generation, first = generation + 1, 0
        elif step.dropped:
            first = step.dropped
            trash.append(f"{_HISTORY}{generation}<{first}")
        for seq, record in step.records:
            target = self._history(user, generation).document(f"{seq:012d}")
            version = (
                _ANY if seq == first else None
            )  # a snapshot replaces the record with its number
            batch.put_text(target, "record", record, {"seq": seq}, version)
        now = datetime.now(UTC).isoformat()
        for kind, content in step.contents.items():
            values = {"updated_at": now, "version": "0.3"}
            version = head.versions.get(kind)
            batch.put_text(self._document(user, kind), "content", content, values, version)
        for kind in step.removed:
            batch.delete(self._document(user, kind), head.versions[kind])
        changed = [self._document(user, kind).id for kind in (*step.contents, *step.removed)]
        trash += [f"{name}/{part}" for name in changed for part in head.parts.get(name, ())]
        if (
            step.erasures
        ):  # a process that died may have left parts of a step that it did not commit
            trash += [
                f"{self._document(user, kind).id}/*" for kind in {*head.versions, *step.contents}
            ]
        left = {*head.versions, *step.contents}.difference(step.removed)
        before, after = _marks(head.versions) if head.revision else _NO_MARKS, _marks(left)
        if after not in (before, _NO_MARKS):
            batch.put(self._mark(user), after, _ANY)
        elif after != before:
            batch.delete(self._mark(user), _ANY)
        record = step.newest(head.record)
        is_small = record is not None and len(record.encode()) < _LARGEST // 4
        values = {
            "revision": head.revision + 1,
            "erasures": head.epoch + step.erasures,
            "generation": generation,
            "first": first,
            "seq": next_sequence(record) - 1,
            "record": record if is_small else None,
            "trash": trash,
        }
        batch.put(place, values, head.time)
        try:
            results = batch.commit()
        except (
            exceptions.FailedPrecondition,
            exceptions.AlreadyExists,
            exceptions.Aborted,
            exceptions.NotFound,
        ):
            batch.take_back()
            return None
        head.follow(values, results[place.path])
        head.parts = {**head.parts, **{name: [] for name in changed}, **batch.parts}
        with contextlib.suppress(DatabaseLost, BackendError):
            self._clear_trash(user, head)  # else the next write does it
        return {kind: results[self._document(user, kind).path] for kind in step.contents}

    def touch(self, user: str) -> None:
        """Add 1 to the revision of a user."""
        from google.api_core import exceptions  # noqa: PLC0415 - an optional dependency
        from google.cloud.firestore import Increment  # noqa: PLC0415 - see above

        place = self._user(user).document(_HEAD)
        with contextlib.suppress(exceptions.NotFound):
            self._run(partial(place.update, {"revision": Increment(1)}, **self._once))

    def _mark(self, user: str) -> Any:
        return self._base.collection(_HEAD).document(_segment(user))

    def _clear_trash(self, user: str, head: _FirestoreHead) -> bool:
        """Delete what earlier steps have replaced; return False if `head` is not the stored one."""
        from google.api_core import exceptions  # noqa: PLC0415 - an optional dependency

        if not head.trash:
            return True
        for entry in head.trash:
            self._delete_replaced(user, head, entry)
        place = self._user(user).document(_HEAD)
        option = self._client.write_option(last_update_time=head.time)
        try:
            done = self._run(lambda: place.update({"trash": []}, option=option, **self._once))
        except (exceptions.FailedPrecondition, exceptions.Aborted, exceptions.NotFound):
            return False
        head.trash, head.time = [], done.update_time
        return True

    def _delete_replaced(self, user: str, head: _FirestoreHead, entry: str) -> None:
        if entry.startswith(_HISTORY):
            name, _, below = entry.partition("<")
            left = self._user(user).document(_HEAD).collection(name)
            self._delete_all(
                left.end_before({"seq": int(below)}).order_by("seq") if below else left
            )
            return
        name, _, part = entry.rpartition("/")
        parts = self._user(user).document(name).collection(_PARTS)
        if part != "*":
            targets = [parts.document(part)]
        else:  # a part that is newer than the head belongs to a later step
            listed = parts.select([])
            found = self._run(lambda: list(listed.stream(**self._once)))
            targets = [each.reference for each in found if each.create_time <= head.time]
        kept = head.parts.get(name, ())
        for target in targets:
            if target.id not in kept:
                self._run(partial(target.delete, **self._once))

    def _delete_all(self, query: Any) -> None:
        """Delete the history records that a query finds, and their parts."""
        query = query.limit(_MOST_DELETES).select([_PARTS])
        while found := self._run(lambda: list(query.stream(**self._once))):
            batch = self._client.batch()
            for each in found:
                for part in each.to_dict().get(_PARTS) or ():
                    batch.delete(each.reference.collection(_PARTS).document(part))
                batch.delete(each.reference)
            self._run(lambda b=batch: b.commit(**self._once))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class _FirestoreHead(Head):
    """The state of a user, with the version of the document that holds it."""

    __slots__ = ("first", "generation", "parts", "seq", "time", "trash")

    def __init__(self) -> None:
        super().__init__()
        self.generation = 0
        self.first = 0
        self.seq = 0
        self.trash: list[str] = []
        self.time: Any = None
        self.parts: dict[str, list[str]] = {}
        """The parts of each document, by its name in Firestore."""

    def take(self, snapshot: Any) -> None:
        """Read the document."""
        values = snapshot.to_dict()
        self.revision, self.epoch, self.record = (
            values["revision"],
            values["erasures"],
            values["record"],
        )
        self.follow(values, snapshot.update_time)

    def follow(self, values: dict[str, Any], time: Any) -> None:
        """Take what `SharedBackend` does not follow itself."""
        self.generation, self.first, self.seq = values["generation"], values["first"], values["seq"]
        self.trash, self.time = values["trash"], time


class _Batch:
    """The writes of one step; texts that do not fit are written in parts before it."""

    def __init__(
        self, client: Any, run: Callable[[Callable[[], Any]], Any], once: Mapping[str, Any]
    ) -> None:
        self._client = client
        self._run = run
        self._once = once
        self._batch: Any = client.batch()
        self._paths: list[str] = []
        self._size = 0
        self._written: list[Any] = []
        self.parts: dict[str, list[str]] = {}
        """The parts of each document of this batch, by its name."""

    def put(self, place: Any, values: dict[str, Any], version: Token | None) -> None:
        """Create a document, or replace it at a version."""
        if version is None:
            self._batch.create(place, values)
        elif version == _ANY:
            self._batch.set(place, values)
        else:
            self._batch.update(place, values, self._client.write_option(last_update_time=version))
        self._paths.append(place.path)

    def put_text(
        self, place: Any, field: str, text: str, values: dict[str, Any], version: Token | None
    ) -> None:
        """Put a document with a text, in parts if the text or the batch would be too large."""
        size = len(text.encode())
        names: list[str] = []
        if size > _LARGEST or self._size + size > _LARGEST_BATCH:
            for part in _parts(text):
                names.append(uuid4().hex)
                target = place.collection(_PARTS).document(names[-1])
                self._run(partial(target.create, {"content": part}, **self._once))
                self._written.append(target)
            text = ""
        else:
            self._size += size
        self.parts[place.id] = names
        self.put(place, {**values, field: text, _PARTS: names}, version)

    def delete(self, place: Any, version: Token) -> None:
        """Delete a document at a version."""
        option = None if version == _ANY else self._client.write_option(last_update_time=version)
        self._batch.delete(place, option)
        self._paths.append(place.path)

    def commit(self) -> dict[str, Any]:
        """Commit, and return the new version of each document by its path."""
        done = self._run(lambda: self._batch.commit(**self._once))
        return {path: each.update_time for path, each in zip(self._paths, done, strict=True)}

    def take_back(self) -> None:
        """Delete the parts of a step that was not applied."""
        for part in self._written:
            self._run(partial(part.delete, **self._once))


def _reason(error: Exception) -> str:
    """Return why a request may be repeated: the kind of the error, and the emulator if one was asked."""
    emulator = os.environ.get("FIRESTORE_EMULATOR_HOST")
    kind = type(error).__name__
    if kind == "ResourceExhausted":
        kind += ", a quota of the project"
    return f"{kind}, with the emulator {emulator} of FIRESTORE_EMULATOR_HOST" if emulator else kind


def _marks(kinds: Iterable[str]) -> dict[str, Any]:
    """Return what the mark of a user says, given the names of the documents."""
    names = [*kinds]
    return {"is_hidden": all(map(is_hidden, names)), "holds": sorted(filter(is_hidden, names))}


def _parts(text: str) -> Iterator[str]:
    """Yield a text in pieces of at most `_LARGEST` bytes."""
    longest = _LARGEST // 4  # a character has at most four bytes
    for at in range(0, len(text), longest):
        yield text[at : at + longest]


def _segment(name: str) -> str:
    """Return a name as a segment of a path; the names that Firestore allows stay as they are, as in TOMLDiary 0.9."""
    if "/" in name or "%" in name:
        name = quote(name, safe=" !$&'()*+,;=:@~[]{}|^`\"<>\\#?")
    if name in {".", "..", _HEAD} or (name.startswith("__") and name.endswith("__")):
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name.encode()) > 1400:  # noqa: PLR2004 - Firestore allows 1,500 bytes
        raise IdentifierError("a Firestore id has at most 1,400 bytes. Use a shorter user id.")
    return name


def _credentials(path: str | None, values: Mapping[str, Any] | None) -> Any:
    if not path and not values:
        return None
    from google.oauth2 import service_account  # noqa: PLC0415 - an optional dependency

    made: Any = service_account.Credentials
    return (
        made.from_service_account_info(values) if values else made.from_service_account_file(path)
    )


class FirestoreBackend(SharedBackend):
    """Stores all users in Firestore, with the documents of TOMLDiary 0.9; see `FirestoreDatabase`."""

    options = ("database", "timeout")

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
        made = FirestoreDatabase(
            project_id, base_path, credentials_path, credentials_dict, database, timeout=timeout
        )
        super().__init__(made, timeout=timeout)
