"""Text files with paths and versions, as memory stores of agent frameworks need them.

A path `owner/…/name` of three or more parts is a text block of this owner; a shorter one belongs to no user.
Therefore forgetting a user also removes the files under the user's name. A write names the version that it is based
on. It may have an operation id; with the same id it has an effect once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tomldiary.engine.transaction import Source
from tomldiary.entries.fields import entry_text
from tomldiary.entries.kinds.blocks import Blocks
from tomldiary.entries.models import timestamp
from tomldiary.errors import Conflict, InvalidValue
from tomldiary.identifiers.namespaces import SHARED
from tomldiary.runtime.lru import Recent
from tomldiary.text.visible import visible

if TYPE_CHECKING:
    from tomldiary.diary import Diary
    from tomldiary.engine.transaction import Transaction
    from tomldiary.entries.kind import EditedTables, Tables

_KIND, _RECEIPTS = "blocks", "receipts"
_METADATA, _OPERATION = "_metadata", "_operation"
_REMEMBERED = 4096  # operations whose owner is known without a search
_SEARCHED_OWNERS = 256
_KEPT_RECEIPTS = 1_024  # of each owner
_PART = re.compile(r"[A-Za-z0-9_.-]{1,200}")  # as in the stores of pydantic-ai-harness
_OTHER_FORM = 0.5
_MAX_METADATA = 4_096
_ALL = 1_000_000


class OperationReused(Conflict):
    """An operation id was used before, for another operation. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as it was read."""

    content: str
    """The text for a model, without hidden characters; `version` refers to the stored text."""
    version: str
    operation: str | None
    """The operation that wrote this version."""
    metadata: dict[str, str] | None


@dataclass(frozen=True, slots=True)
class FileMutation:
    """The result of a write or a removal."""

    version: str | None
    is_replayed: bool
    existed: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A file that matches a search, best first."""

    path: str
    content: str
    words: list[str]
    score: float


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search, best first."""

    found: list[Found]
    scanned: int
    """The number of files that were searched."""
    is_cut: bool
    """Whether some files, or parts of files, were not searched."""


class MemoryFiles:
    """The files of a diary. Thread-safe; the methods block.

    Args:
        diary: Where they are kept.
    """

    def __init__(self, diary: Diary) -> None:
        self.diary = diary
        self._owners: Recent[str, str] = Recent(_REMEMBERED)

    def read(self, path: str) -> StoredFile | None:
        """Return a file, or None.

        Raises:
            InvalidValue: The path is invalid.
        """
        owner, name = _place(path)
        entry = Blocks(self.diary.engine.document(owner, _KIND)).find(name)
        return None if entry is None else _file(entry)

    def done(self, operation: str, fingerprint: str) -> FileMutation | None:
        """Return the result of one of an owner's last 1,024 operations, or None.

        Operations of other processes are found if there are at most 256 owners; `write` and `delete` always find
        them.

        Raises:
            OperationReused: The id was used for another operation.
        """
        owner = self._owners.get(operation)
        owners = [SHARED, *self.diary.users()] if owner is None else [owner]
        for each in owners if len(owners) <= _SEARCHED_OWNERS else ():
            receipts = self.diary.engine.document(each, _RECEIPTS)
            if done := _receipt(receipts, operation, fingerprint):
                return done
        return None

    def write(
        self,
        path: str,
        content: str,
        *,
        expected: str | None,
        operation: str = "",
        fingerprint: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> FileMutation:
        """Create or replace a file that has the expected version (None: it does not exist).

        Args:
            path: The file.
            content: All of its text.
            expected: The version that was read.
            operation: An id of this write, which has an effect once; "" is none.
            fingerprint: A digest of the request, to distinguish a repetition from another use of the id.
            metadata: Texts about this write; they replace those of the last write.

        Raises:
            Conflict: The version is another one. Nothing was changed.
            OperationReused: The operation id was used for another operation.
            InvalidValue: The path is invalid, or the content or the metadata cannot be stored.
        """
        _check_metadata(metadata or {})

        def change(tx: Transaction, name: str, old: Mapping[str, Any] | None) -> str:
            moment = timestamp()
            edit = tx.edit(_KIND)
            book = Blocks(edit)
            book.put(name, content, now=moment, pinned=False if old is None else None)
            entry = dict(book.find(name) or {})
            entry.pop(_METADATA, None)
            entry.pop(_OPERATION, None)
            entry["_updated"] = moment  # a new version, even if it says the same
            if operation:
                entry[_OPERATION] = operation
            if metadata:
                # The edit redacts the other fields only.
                entry[_METADATA] = self.diary.redacted(dict(metadata))
            edit.put((_KIND, name), entry)
            return _file(entry).version

        return self._change("write_file", path, expected, operation, fingerprint, change)

    def delete(
        self, path: str, *, expected: str | None, operation: str = "", fingerprint: str = ""
    ) -> FileMutation:
        """Remove a file that has the expected version (None: it does not exist).

        Raises:
            Conflict: The version is another one. Nothing was changed.
            OperationReused: The operation id was used for another operation.
        """

        def change(tx: Transaction, name: str, old: Mapping[str, Any] | None) -> None:
            if old is not None:
                Blocks(tx.edit(_KIND)).delete(name)

        return self._change("delete_file", path, expected, operation, fingerprint, change)

    def paths(self, prefix: str = "") -> Iterator[str]:
        """Yield the paths that begin with a prefix, sorted.

        Raises:
            InvalidValue: No path can begin with the prefix.
        """
        check_prefix(prefix)
        yield from sorted(path for path, _ in self._below(prefix))

    def search(self, prefix: str, query: str, *, most: int, window: int) -> Search:
        """Return the files directly below a prefix that match a query, best first.

        The score of a file is the number of occurrences of the query's words at the beginning of its text, also
        inside other words, plus twice the number in its path. Files that contain only other forms of the words
        score 0.5.

        Args:
            prefix: The scope to search; files in deeper scopes belong to other owners.
            query: Words.
            most: The maximum number of files searched.
            window: The number of characters searched at the beginning of a file.

        Raises:
            InvalidValue: No path can begin with the prefix.
        """
        check_prefix(prefix)
        terms = query.lower().split()
        files = {
            path: entry_text(entry)
            for path, entry in self._below(prefix)
            if "/" not in path[len(prefix) :]
        }
        paths = sorted(files)
        chosen = {path: visible(files[path][:window]) for path in paths[:most]}
        found: list[Found] = []
        for path, text in chosen.items():
            lower, place = text.lower(), path[len(prefix) :].lower()
            score = sum(lower.count(term) + 2 * place.count(term) for term in terms)
            if score:
                found.append(Found(path, text, terms, float(score)))
        known = {one.path for one in found}
        for path, words in self._other_forms(prefix, query):
            # The position of another form in a text is unknown, so the whole text must have been searched.
            if path in chosen and path not in known and len(files[path]) <= window:
                found.append(Found(path, chosen[path], words, _OTHER_FORM))
        found.sort(key=lambda one: (-one.score, one.path))
        is_cut = any(len(files[path]) > window for path in paths[: most + 1])
        return Search(found, min(len(paths), most), is_cut or len(paths) > most)

    def _other_forms(self, prefix: str, query: str) -> Iterator[tuple[str, list[str]]]:
        """Yield the paths of files that contain other forms of a query's words, with these forms."""
        # Of other scripts, names of files and numbers the index finds parts, which are no forms of words.
        query = " ".join(word for word in query.split() if word.isascii() and word.isalpha())
        for owner in self._owners_below(prefix) if query else ():
            for hit in self.diary.user(owner).recall(query, _ALL, kinds=(_KIND,)):
                path = _path(owner, hit.key)
                if path is not None:
                    yield path, hit.reasons

    def _below(self, prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the files whose paths begin with a prefix."""
        for owner in self._owners_below(prefix):
            for name, entry in Blocks(self.diary.engine.document(owner, _KIND)).entries():
                path = _path(owner, name)
                if path is not None and path.startswith(prefix):
                    yield path, entry

    def _owners_below(self, prefix: str) -> set[str]:
        head, slash, _ = prefix.partition("/")
        users = set(self.diary.users()) if not slash else {head} - {""}
        return {SHARED, *users}

    def _change(
        self,
        kind: str,
        path: str,
        expected: str | None,
        operation: str,
        fingerprint: str,
        change: Callable[[Transaction, str, Mapping[str, Any] | None], str | None],
    ) -> FileMutation:
        owner, name = _place(path)

        def apply(tx: Transaction) -> FileMutation:
            # Under the lock, so that no other process does the same meanwhile.
            if done := _receipt(tx.document(_RECEIPTS), operation, fingerprint):
                return done
            old = Blocks(tx.edit(_KIND)).find(name)
            current = None if old is None else _file(old).version
            if current != expected:
                raise Conflict(
                    f"{path!r} has changed since it was read. Read it again.", keys=[path]
                )
            done = FileMutation(change(tx, name, old), is_replayed=False, existed=old is not None)
            if operation:
                _keep_receipt(tx.edit(_RECEIPTS), operation, self._kept(fingerprint), done)
            return done

        result = self.diary.engine.write(owner, apply, Source(kind, actor="agent"))
        if operation:
            self._owners.keep(operation, owner)
        return result

    def _kept(self, fingerprint: str) -> str:
        """Return the digest of a request as stored: "" if the diary redacts, as it could confirm a guess of a secret."""
        return fingerprint if self.diary.redactor is None else ""


def _place(path: str) -> tuple[str, str]:
    """Return the owner of a path, and the name of its block.

    Raises:
        InvalidValue: A part is empty, has more than 200 characters or others than ASCII letters, digits and `_.-`,
            or leads out of its folder.
    """
    if any(not _PART.fullmatch(part) or ".." in part or part == "." for part in path.split("/")):
        raise InvalidValue(
            f"{path!r} is no path. Write parts of ASCII letters, digits and _.- with a slash between them, up to 200"
            " characters each.",
            where="path",
        )
    owner, slash, name = path.partition("/")
    return (owner, name) if slash and "/" in name else (SHARED, path)


def check_prefix(prefix: str) -> None:
    """Raise InvalidValue if no path can begin with `prefix`; "" and a path with a slash at its end are valid."""
    if prefix:
        _place(prefix.removesuffix("/"))


def _path(owner: str, name: str) -> str | None:
    """Return the path of a block; None if no path can name it."""
    path = name if owner == SHARED else f"{owner}/{name}"
    try:
        return path if _place(path) == (owner, name) else None
    except InvalidValue:
        return None


def _check_metadata(metadata: Mapping[Any, Any]) -> None:
    texts = [*metadata.keys(), *metadata.values()]
    if not all(isinstance(text, str) and "\0" not in text for text in texts):
        raise InvalidValue("expected texts without NUL characters.", where="metadata")
    if sum(map(len, texts)) > _MAX_METADATA:
        raise InvalidValue(f"more than {_MAX_METADATA:,} characters. Shorten it.", where="metadata")


def _file(entry: Mapping[str, Any]) -> StoredFile:
    text, operation, metadata = (entry_text(entry), entry.get(_OPERATION), entry.get(_METADATA))
    # A hand edit changes the text and nothing else, and a write of the same text only the time.
    seen = f"{entry.get('_updated', '')}\0{text}"
    version = hashlib.sha256(seen.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    known: Mapping[str, Any] = {}
    if isinstance(metadata, Mapping):
        known = cast("Mapping[str, Any]", metadata)
    return StoredFile(
        visible(text),
        version,
        operation if isinstance(operation, str) else None,
        {key: str(value) for key, value in known.items()} or None,
    )


def _receipt(receipts: Tables, operation: str, fingerprint: str) -> FileMutation | None:
    found = receipts.table((_RECEIPTS, operation)) if operation else None
    if found is None:
        return None
    if found.get("fingerprint") not in {fingerprint, ""}:  # "" may be of any request; see `_kept`
        raise OperationReused(
            f"operation {operation!r} was done already, with other arguments. Use a new id.",
            keys=[operation],
        )
    return FileMutation(
        str(found["version"]) if "version" in found else None,
        is_replayed=True,
        existed=found.get("existed") is True,
    )


def _keep_receipt(edit: EditedTables, operation: str, fingerprint: str, done: FileMutation) -> None:
    version = {} if done.version is None else {"version": done.version}
    edit.put(
        (_RECEIPTS, operation), {"fingerprint": fingerprint, **version, "existed": done.existed}
    )
    kept = list(edit.table((_RECEIPTS,)) or {})
    for old in kept[:-_KEPT_RECEIPTS]:
        edit.delete((_RECEIPTS, old))
