"""Protocols of a storage backend: the sync protocol of the core, and the public async one.

The core calls `Backend`. `BackendProtocol` is the six-method async interface of TOMLDiary 0.9, which third
parties implement. The core calls it through `async_adapter.SixVerbsBackend`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tomldiary.errors import DocumentError
    from tomldiary.storage.files import FileSystem

R = TypeVar("R")
Token = Any
"""Identifies one version of a stored document; compared with `==`, otherwise opaque."""

Durability = Literal["full", "process", "none"]
"""`full`: a write is on disk before it returns. `process`: a write survives a killed process, but not a power cut.
`none`: like `process`, but the background writer keeps its queue in memory."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A document as stored, with the token of exactly this version."""

    text: str
    token: Token
    problem: DocumentError | None = None
    """The error if the stored bytes are not UTF-8, or too many to be read; the text is then an approximation."""


@dataclass(slots=True)  # not frozen: frozen dataclasses are slower to create
class Commit:
    """All changes of one transaction, stored as a whole or not at all. Treat it as immutable."""

    contents: Mapping[str, bytes]
    """New text of each changed document in UTF-8, by kind."""
    expected: Mapping[str, Token | None]
    """The version at which each changed document was read; None if it did not exist."""
    records: list[str] = field(default_factory=list[str])
    """History records to append, oldest first."""
    replaces_save: bool = False
    """Whether the commit replaces a hand edit. File names are then synced, or a power cut could restore the edit."""
    fingerprints: Mapping[str, str] = field(default_factory=dict[str, str])
    """The known fingerprints of the contents, by kind."""

    @property
    def texts(self) -> dict[str, str]:
        """The contents as text."""
        return {kind: content.decode() for kind, content in self.contents.items()}


@dataclass(frozen=True, slots=True)
class RewrittenDocument:
    """The redacted version of a document."""

    text: str
    token: Token
    """The version that was redacted."""
    tables: list[tuple[str, ...]]
    """The tables that differ. If another program has saved the document since, only these are replaced."""
    is_removed: bool = False
    """Whether the document is removed, unless such a hand edit has added something."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A redaction of one user, stored as a whole; by default, it redacts neither documents nor history."""

    selection: Mapping[str, Any]
    """The selection to forget, as a TOML table; `{"everything": True}` is all data of the user."""
    epoch: int
    """The user's new fencing token."""
    history: Mapping[str, str] | None = None
    """The new text of each history record, by its text; a record that is not listed is removed."""
    added: list[str] = field(default_factory=list[str])
    """History records to append, oldest first."""
    documents: Mapping[str, RewrittenDocument] = field(default_factory=dict[str, RewrittenDocument])
    erased_before: int = 0
    """The new result of `TellsErasure.erased`, for a copy of a user; 0 keeps the stored one."""
    patience: float = 3.0
    """How long to wait for another program that has a document open for writing, in seconds."""

    @property
    def erased(self) -> int:
        """The new result of `TellsErasure.erased`; 0 keeps the stored one."""
        return self.epoch if self.removes_user else self.erased_before

    @property
    def removes_user(self) -> bool:
        """Whether all data of the user is removed; the other fields are then ignored."""
        return bool(self.selection.get("everything"))


class HistorySource(Protocol):
    """Reads the history of users."""

    def records(self, user: str, /) -> Iterator[str]:
        """Yield the texts of all history records, newest first."""
        ...


class DocumentSource(HistorySource, Protocol):
    """Locates documents, and reads the history that distinguishes hand edits from logged versions."""

    def place(self, user: str, kind: str, /) -> str:
        """Return the location of the document, for messages."""
        ...


@runtime_checkable
class DetectsSaves(Protocol):
    """A backend that detects that another program is writing a document."""

    def is_being_saved(self, user: str, kind: str) -> bool:
        """Return whether another program has begun to save the document and has not finished."""
        ...


@runtime_checkable
class CheapTokens(Protocol):
    """A backend that returns the versions of several documents in one call."""

    def tokens(self, user: str, kinds: Iterable[str]) -> Sequence[Token | None]:
        """Return what `token` returns for each document."""
        ...


@runtime_checkable
class ListsFolders(CheapTokens, Protocol):
    """A backend that lists one folder of a user's documents."""

    def listing(self, user: str, folder: str) -> list[str]:
        """Return the names of the user's documents below a folder such as `items/`, sorted.

        Callers do not change the result, because the backend may return the same object again, until a commit to
        one of its documents.
        """
        ...


@runtime_checkable
class OptimisticWrites(Protocol):
    """A backend that runs a transaction on an assumed state, and verifies this state at the end."""

    def attempt(self, user: str, timeout: float) -> AbstractContextManager[None]:
        """Hold the user's lock for one attempt of a transaction.

        Raises:
            RevisionConflict: The stored state is a different one. Nothing was stored; try again. It is raised at the
                end, and replaces an error of the block.
        """
        ...

    def verify(self, user: str) -> None:
        """Check that what the caller's transaction has read is one state, the stored one; the caller holds the lock.

        Raises:
            RevisionConflict: Another process changed the user's memory since the transaction began.
        """
        ...


@runtime_checkable
class ReadsOneState(Protocol):
    """A backend that reads several documents at one state of each user, with fewer requests."""

    def reading(self) -> AbstractContextManager[None]:
        """Give this thread one state of each user for the block: the state at the user's first read.

        After a write of this thread, the next read of the user returns the new state.
        """
        ...


@runtime_checkable
class ReadsUsersAtOnce(Protocol):
    """A backend whose calls mostly wait for a server, so that several users are read in less time at once."""

    def of_each(self, users: Sequence[str], work: Callable[[str], R]) -> Iterator[R]:
        """Yield the result of `work` for each user, in order; it is called for several users at once, in threads.

        In a block of `reading`, the calls read the states of this block.
        """
        ...


@runtime_checkable
class ListsErased(Protocol):
    """A backend that lists erased users, of whom only the fencing token remains."""

    def erased_users(self) -> list[str]:
        """Return the ids of users with a fencing token above 0 and without a document, sorted."""
        ...


@runtime_checkable
class TellsErasure(Protocol):
    """A backend that stores the fencing token of a user's last complete erasure."""

    def erased(self, user: str) -> int:
        """Return the fencing token that the last complete erasure set; 0 if there was none. It outlives the user."""
        ...


@runtime_checkable
class PrefersPartSize(Protocol):
    """A backend where large documents make writes slow."""

    @property
    def part_size(self) -> int:
        """The size of a document in characters at which new entries go to another document."""
        ...


@runtime_checkable
class KeepsJournal(Protocol):
    """A backend with a local folder for the turns of background writers; `rewrite` removes selected turns there."""

    @property
    def journal_folder(self) -> Path | None:
        """The folder; None keeps the writer's queue in memory."""
        ...


@runtime_checkable
class KeepsHidden(Protocol):
    """A backend that stores hidden documents of users, which are in no listing, export or history.

    `rewrite` redacts those whose kind is registered in `runtime.sources`, and removes the others. A hidden document may
    outlive its user.
    """

    def hidden(self, user: str, kind: str) -> str:
        """Return the text of a hidden document; "" if there is none."""
        ...

    def change_hidden(
        self, user: str, kind: str, change: Callable[[str, int], str], *, is_locked: bool = False
    ) -> None:
        """Replace a hidden document atomically; "" removes it.

        Args:
            user: The user id.
            kind: The document's name, which begins with a dot.
            change: Called with the text and the user's fencing token; returns the new text. It may be called several
                times.
            is_locked: Whether the caller holds the user's lock.
        """
        ...

    def holders(self, kind: str) -> list[str]:
        """Return the ids of the users with a hidden document, sorted."""
        ...


@runtime_checkable
class Closable(Protocol):
    """A backend with open files or connections."""

    def close(self) -> None:
        """Close files and connections; a later call opens them again."""
        ...


@runtime_checkable
class LocalFolder(KeepsJournal, Protocol):
    """A backend that stores all users in one local folder."""

    @property
    def base_path(self) -> Path:
        """The folder."""
        ...

    @property
    def files(self) -> FileSystem:
        """Makes all file operations below the folder."""
        ...

    def is_forgetting(self, user: str) -> bool:
        """Return whether a forget job of the user is not finished, so that its documents may be older than `epoch`.

        The job of a killed process is finished here.
        """
        ...

    def index_folder(self, user: str) -> Path:
        """Return the folder for data derived from a user's documents; it may be deleted at any time."""
        ...

    def known_users(self) -> list[str]:
        """Return the ids of all users with a folder, even one without documents, sorted."""
        ...


@runtime_checkable
class WrapsBackend(Protocol):
    """A backend that adapts another object, which identifies the storage."""

    @property
    def wrapped(self) -> object:
        """The adapted object."""
        ...


@runtime_checkable
class FixedDocuments(Protocol):
    """A backend that stores only documents with fixed names, because it cannot list names."""

    @property
    def documents(self) -> tuple[str, ...] | None:
        """The names; None if any name is allowed."""
        ...


@dataclass(frozen=True, slots=True)
class DisplacedEdit:
    """A hand edit that a publication has displaced; the caller holds the user's lock."""

    kind: str
    saved: Stored
    """The edit; it has no token."""
    standing: Stored | None
    """The published document, if it is the version that history ends at."""
    token: Token | None
    """The version of the published document, even if `standing` is None."""
    history: DocumentSource
    """The history of the user, whatever the argument `user`."""


Merge = Callable[[DisplacedEdit], Commit | None]
"""Returns the transaction that logs a displaced edit and publishes the result; None if history already has the edit.

Raises `DocumentError` for an edit that is incomplete or cannot be read.
"""


@runtime_checkable
class KeepsDisplacedEdits(Protocol):
    """A backend that keeps displaced edits and calls the engine to merge them."""

    merge_displaced: Merge | None


@runtime_checkable
class Backend(DocumentSource, Protocol):
    """Synchronous storage of documents and history, one user at a time. Thread-safe.

    The protocols above are optional capabilities. A caller checks once with `isinstance` whether a backend has one.
    """

    @property
    def is_atomic(self) -> bool:
        """Whether a commit of several documents is atomic."""
        ...

    @property
    def durability(self) -> Durability:
        """The failures that a returned commit survives."""
        ...

    @property
    def is_quick(self) -> bool:
        """Whether `token` and `epoch` access no disk, so that an event loop may call them."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether several processes may write at once."""
        ...

    def lock(self, user: str, timeout: float) -> AbstractContextManager[None]:
        """Exclude other writers of `user`; raises LockTimeout after `timeout` seconds."""
        ...

    def token(self, user: str, kind: str) -> Token | None:
        """Return the stored version at low cost; None if the document does not exist."""
        ...

    def read(self, user: str, kind: str) -> Stored | None:
        """Return a document, or None. Raises BackendError if it cannot be read."""
        ...

    def kinds(self, user: str) -> list[str]:
        """Return the names of the user's documents, sorted; empty for an unknown user. The caller must not change them.

        A list that was returned before may be returned again only if nothing of the user was erased since.
        """
        ...

    def commit(self, user: str, commit: Commit) -> dict[str, Token]:
        """Store a transaction and return the new versions.

        If the result has no version for a document, a concurrent hand edit is in its place. History has the
        version of the transaction, and the next access merges the two.

        Raises:
            Conflict: A document is not at its expected version.
            BackendError: Nothing was stored.
            CommittedUnpublished: History has the change, but a document was not published.
        """
        ...

    def last_record(self, user: str) -> str | None:
        """Return the newest history record's text, or None."""
        ...

    def users(self) -> list[str]:
        """Return all user ids, sorted."""
        ...

    def erase(self, user: str, kind: str) -> None:
        """Remove a document if it exists; the caller holds the user's lock."""
        ...

    def epoch(self, user: str) -> int:
        """Return the fencing token: the number of erasures of the user's data. It outlives the user."""
        ...

    def rewrite(self, user: str, rewrite: Rewrite) -> dict[str, str]:
        """Store a redaction and the new fencing token; the caller holds the user's lock.

        Returns:
            The SHA-256 of each of the user's files afterwards, in hexadecimal digits, by name.

        Raises:
            BackendError: The storage failed; the message states whether something was changed.
        """
        ...

    def prune(self, user: str, seq: int, snapshot: str) -> None:
        """Replace all history up to transaction `seq` by the record `snapshot`; the caller holds the lock.

        Raises:
            BackendError: The storage failed; history is unchanged, or begins with the snapshot.
        """
        ...


@runtime_checkable
class BackendProtocol(Protocol):
    """The async interface for custom storage: any class with these six methods."""

    async def load(self, user_id: str, kind: str) -> str | None:
        """Return the document's text, or None if it does not exist. Raise on any failure.

        Every backend stores the kinds "preferences" and "conversations". The kinds "facts", "blocks" and
        "receipts" are optional: a backend without one raises KeyError, ValueError or NotImplementedError.
        """
        ...

    async def save(self, user_id: str, kind: str, content: str) -> None:
        """Create or replace the document."""
        ...

    async def exists(self, user_id: str, kind: str) -> bool:
        """Return whether the document exists."""
        ...

    async def delete(self, user_id: str, kind: str) -> None:
        """Remove the document if it exists."""
        ...

    async def delete_user(self, user_id: str) -> None:
        """Remove everything of the user."""
        ...

    async def list_users(self) -> list[str]:
        """Return the ids of all users that have documents."""
        ...
