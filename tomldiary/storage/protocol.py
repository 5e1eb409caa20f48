"""What a storage engine has to offer: the core's sync protocol, and the public async one.

`Backend` is what the core speaks. `BackendProtocol` is the six-method async interface of the
ancestor, which third parties implement; the core reaches it through `six_verbs.SixVerbsBackend`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from tomldiary.identifiers import validate_identifier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tomldiary.errors import InvalidTOML
    from tomldiary.forgetting.selection import ForgetReceipt, Selection

__all__ = [
    "Backend",
    "BackendProtocol",
    "CheapTokens",
    "Commit",
    "DetectsSaves",
    "DisplacedEdit",
    "DocumentSource",
    "Durability",
    "FixedDocuments",
    "HistorySource",
    "KeepsDisplacedEdits",
    "Merge",
    "Stored",
    "Token",
    "validate_identifier",
]

Token = Any
"""Names one version of a stored document; compared with `==`, otherwise opaque."""

Durability = Literal["full", "process", "none"]
"""`full`: on the disk before a write returns. `process`: survives a killed process, not a power cut.
`none`: like `process`, and the background writer keeps its queue in memory."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A document as stored, with the token of exactly this version."""

    text: str
    token: Token
    problem: InvalidTOML | None = None
    """Why the text is not exactly what is stored: it is not UTF-8."""


@dataclass(slots=True)  # not frozen: those take longer to make
class Commit:
    """All that one transaction changes; it is stored as a whole or not at all. Never changed."""

    contents: Mapping[str, bytes]
    """New text of each changed document in UTF-8, by kind."""
    expected: Mapping[str, Token | None]
    """Version each changed document was read at; None: it did not exist."""
    records: list[str] = field(default_factory=list[str])
    """History records to append, oldest first."""
    replaces_save: bool = False
    """Whether a person's save gives way: should a power cut bring its file back, it would be merged again."""
    fingerprints: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the contents, as far as they are known."""

    @property
    def texts(self) -> dict[str, str]:
        """The contents as text."""
        return {kind: content.decode() for kind, content in self.contents.items()}


class HistorySource(Protocol):
    """Where the history of users is read."""

    def records(self, user: str, /) -> Iterator[str]:
        """Yield the texts of all history records, newest first."""
        ...


class DocumentSource(HistorySource, Protocol):
    """Where a document was read, with the history that tells hand edits from our own versions."""

    def place(self, user: str, kind: str, /) -> str:
        """Return where the document is, for messages to people."""
        ...


@runtime_checkable
class DetectsSaves(Protocol):
    """A backend that sees other programs write a document."""

    def is_being_saved(self, user: str, kind: str) -> bool:
        """Return whether another program has begun to save the document and not finished."""
        ...


@runtime_checkable
class CheapTokens(Protocol):
    """A backend that returns the versions of several documents in one call."""

    def tokens(self, user: str, kinds: Sequence[str]) -> Sequence[Token | None]:
        """Return what `token` returns for each document."""
        ...


@runtime_checkable
class FixedDocuments(Protocol):
    """A backend that keeps only documents of certain names, as it cannot list names."""

    @property
    def documents(self) -> tuple[str, ...] | None:
        """The names; None keeps any."""
        ...


class HistoryOfUser(DocumentSource, Protocol):
    """The history of one user, whose lock is held; the argument `user` is ignored."""

    def last_record(self, user: str, /) -> str | None:
        """Return the newest history record's text, or None."""
        ...


@dataclass(frozen=True, slots=True)
class DisplacedEdit:
    """A hand edit that a publication has displaced; the user's lock is held."""

    kind: str
    saved: Stored
    """The edit; it has no token."""
    standing: Stored | None
    """The published document, if it is the version that history ends at."""
    token: Token | None
    """The version of the published document, whatever it holds."""
    history: HistoryOfUser


Merge = Callable[[DisplacedEdit], Commit | None]
"""Returns the transaction that logs a displaced edit and publishes the result; None if history has it already.

Raises `DocumentError` for an edit that is incomplete or cannot be read.
"""


@runtime_checkable
class KeepsDisplacedEdits(Protocol):
    """A capability: the backend keeps hand edits that a publication displaced, and has the engine merge them."""

    merge_displaced: Merge | None


class Backend(DocumentSource, Protocol):
    """Synchronous storage of documents and history, one user at a time. Thread-safe.

    A backend with a local folder of its own may have an attribute `journal_folder`, a path: there a
    `MemoryWriter` keeps turns until they are applied, and `forget` has to look. Without it, or with None, a
    writer's queue is in memory. One that keeps only documents of certain names has them in `documents`.
    """

    @property
    def is_atomic(self) -> bool:
        """Whether a commit of several documents is all or nothing."""
        ...

    @property
    def durability(self) -> Durability:
        """What a returned commit survives."""
        ...

    @property
    def is_quick(self) -> bool:
        """Whether `token`, `is_new` and `epoch` touch no disk, so that an event loop may call them."""
        ...

    def is_new(self, user: str) -> bool:
        """Tell by one look whether nothing of the user is stored at all; False if that is not sure."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether several processes may write at once."""
        ...

    def lock(self, user: str, timeout: float) -> AbstractContextManager[None]:
        """Exclude other writers of `user`; raises LockTimeout after `timeout` seconds."""
        ...

    def token(self, user: str, kind: str) -> Token | None:
        """Return the version stored now, cheaply; None if the document does not exist."""
        ...

    def read(self, user: str, kind: str) -> Stored | None:
        """Return a document, or None. Raises BackendError if it cannot be read."""
        ...

    def kinds(self, user: str) -> list[str]:
        """Return the names of the user's documents, sorted; empty for an unknown user."""
        ...

    def commit(self, user: str, commit: Commit) -> dict[str, Token]:
        """Store a transaction and return the new versions.

        A document whose version is missing in the answer holds a save that came in at the same
        instant; history has ours, and the next look merges the two.

        Raises:
            Conflict: A document is not at its expected version.
            BackendError: Nothing was stored.
            CommittedUnpublished: History holds the change, a document does not show it yet.
        """
        ...

    def last_record(self, user: str) -> str | None:
        """Return the newest history record's text, or None."""
        ...

    def users(self) -> list[str]:
        """Return all user ids, sorted."""
        ...

    def erase(self, user: str, kind: str | None = None) -> bool:
        """Remove one document, or with `kind=None` everything of the user; False if there was nothing."""
        ...

    def epoch(self, user: str) -> int:
        """Return how often something of the user was forgotten; it outlives the user."""
        ...

    def forget(self, user: str, selection: Selection) -> ForgetReceipt:
        """Remove a selection from documents and history; the caller holds the user's lock."""
        ...

    def prune(self, user: str, seq: int, snapshot: str) -> None:
        """Let the record `snapshot` stand for all history up to transaction `seq`; the caller holds the lock.

        Raises:
            BackendError: The storage failed; history is as before, or begins with the snapshot.
        """
        ...


@runtime_checkable
class BackendProtocol(Protocol):
    """The async interface for storage of your own: six methods, any class that has them will do."""

    async def load(self, user_id: str, kind: str) -> str | None:
        """Return the document's text, or None if there is none. Raise on any failure.

        `kind` is "preferences" or "conversations". A backend that does not keep one of the others
        ("facts", "blocks", "receipts") raises KeyError, ValueError or NotImplementedError for it.
        """
        ...

    async def save(self, user_id: str, kind: str, content: str) -> None:
        """Create or replace the document."""
        ...

    async def exists(self, user_id: str, kind: str) -> bool:
        """Tell whether the document exists."""
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
