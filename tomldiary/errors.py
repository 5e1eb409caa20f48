"""Every error the library raises on purpose.

```
DiaryError
├── IdentifierError (ValueError)       a user, session or document name that cannot be used
├── SchemaError (TypeError)            a preference table class that cannot be read as categories
├── InvalidValue (ValueError)          a value that TOML or the entry's rule does not allow
├── UnknownCategory (ValueError)       a category the schema does not have
├── UnknownEntry (KeyError)            an id that is not in the diary
├── LimitReached                       a collection that is full
├── ImmutableEntry                     an entry whose rule forbids changing or removing it
├── WeakClaim                          a less sure source would replace a fact
├── DocumentError                      a document that cannot be used; has path, line, column
│   ├── InvalidTOML (ValueError)       does not parse
│   ├── UnsafeDocument (ValueError)    refused before parsing: size, nesting, dotted keys
│   ├── NewerVersion                   written by a newer version; never rewritten
│   └── HistoryPruned                  older than the history that is kept
├── Conflict                           another writer changed what this write is based on
│   ├── HandEditConflict               another program keeps saving the document
│   ├── EntryConflict                  entries have other values than this write expects
│   ├── SequenceConflict               another transaction is the last one
│   ├── OperationConflict              an idempotency key was used for other content
│   ├── RevisionConflict               another process changed the user in a shared database
│   └── RollbackConflict               history cannot be undone that way
├── Forgotten                          something was forgotten while this work was under way
├── TurnTaken                          another writer has taken a turn over
├── NestedTransaction (RuntimeError)   a transaction of another user is open
├── LockTimeout (TimeoutError)         another process or thread held the user's lock too long
├── HookError                          a strict hook refused a transaction; nothing was changed
├── BackendError                       the storage failed; nothing was changed
│   └── CommittedUnpublished           the change is in history, the file will follow
├── NotSupported (NotImplementedError) a feature of a host's interface that a diary does not have
├── MissingExtra (ImportError)         an optional dependency is not installed; names the install command
├── UnsupportedFormat (ValueError)     a chat log in a format that is not known
├── ExtractionError                    the extractor failed; nothing was changed
│   └── ExtractorUnusable              the extractor cannot run: no key, package or model
└── WriterBusy                         the writer's queue is full
```
"""

from __future__ import annotations

import copyreg
import re
from typing import Any

__all__ = [
    "BackendError",
    "CommittedUnpublished",
    "Conflict",
    "DiaryError",
    "DocumentError",
    "EntryConflict",
    "ExtractionError",
    "ExtractorUnusable",
    "Forgotten",
    "HandEditConflict",
    "HistoryPruned",
    "HookError",
    "IdentifierError",
    "ImmutableEntry",
    "InvalidTOML",
    "InvalidValue",
    "LimitReached",
    "LockTimeout",
    "MissingExtra",
    "NestedTransaction",
    "NewerVersion",
    "NotSupported",
    "OperationConflict",
    "RevisionConflict",
    "RollbackConflict",
    "SchemaError",
    "SequenceConflict",
    "TurnTaken",
    "UnknownCategory",
    "UnknownEntry",
    "UnsafeDocument",
    "UnsupportedFormat",
    "WeakClaim",
    "WriterBusy",
    "cause_of",
    "without_paths",
]


class DiaryError(Exception):
    """Base of all errors of this library."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the message and the fields, not the arguments that they were made of."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType] - not in typeshed


class IdentifierError(DiaryError, ValueError):
    """A name that cannot identify a user, a session or a document."""


class SchemaError(DiaryError, TypeError):
    """A class that cannot serve as a preference table."""


class InvalidValue(DiaryError, ValueError):
    """A value that cannot be stored; `where` names it in TOML words."""

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class UnknownCategory(DiaryError, ValueError):
    """A category that the preference table does not have."""

    def __init__(self, category: str, allowed: list[str]) -> None:
        known = ", ".join(allowed) or "none"
        super().__init__(f"unknown category {category!r}. Use one of: {known}.")
        self.category = category
        self.allowed = allowed


class UnknownEntry(DiaryError, KeyError):
    """An id that is not in the diary; `where` names it."""

    def __init__(self, where: str, hint: str = "") -> None:
        super().__init__(where)
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.where} does not exist. {self.hint}".rstrip()


class LimitReached(DiaryError):
    """A collection that holds as many entries as its rule allows."""

    def __init__(self, where: str, limit: int, setting: str = "its Constraint(limit=…)") -> None:
        super().__init__(
            f"{where} is full ({limit}/{limit}). Update or remove an entry, or raise {setting}."
        )
        self.where = where
        self.limit = limit


class ImmutableEntry(DiaryError):
    """An entry whose rule forbids changing or removing it; `where` names it."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} is never changed: its Constraint(immutable=True) forbids it. Store another entry, or"
            " forget the session it came from."
        )
        self.where = where


class WeakClaim(DiaryError):
    """A fact that a less sure source would replace.

    `where` names it; `stored` and `claimed` are the confidences, from 0 to 1.
    """

    def __init__(self, where: str, stored: float, claimed: float) -> None:
        super().__init__(
            f"{where} was said with confidence {stored:g}, and this claim has {claimed:g}. Nothing was changed;"
            " force=True stores it."
        )
        self.where = where
        self.stored = stored
        self.claimed = claimed


class DocumentError(DiaryError):
    """A document that cannot be used as it is. The file is left untouched."""

    def __init__(
        self, message: str, *, path: str = "", line: int | None = None, column: int | None = None
    ) -> None:
        place = ":".join(str(part) for part in (path, line, column) if part not in ("", None))
        super().__init__(f"{place}: {message}" if place else message)
        self.path = path
        self.line = line
        self.column = column


class InvalidTOML(DocumentError, ValueError):
    """A document that does not parse."""


class UnsafeDocument(DocumentError, ValueError):
    """A document refused before parsing, because parsing it could take too long."""


class NewerVersion(DocumentError):
    """A document written by a newer version of the format; it is never rewritten."""


class HistoryPruned(DocumentError):
    """The point is older than the kept history.

    Attributes:
        first: The oldest transaction in the kept history.
        since: Its time, ISO 8601.
    """

    def __init__(self, first: int, since: str) -> None:
        super().__init__(
            f"history is kept from transaction {first} ({since}) on; older transactions were dropped. Name"
            f" {first} or later."
        )
        self.first = first
        self.since = since


class Conflict(DiaryError):
    """Another writer changed what this write is based on; nothing was written.

    Attributes:
        keys: The entries in conflict, or the idempotency key.
        where: The document or its file; "" if there is no single one.
        expected: What the write is based on: values by entry key, or one value.
        found: What is stored instead, in the same form.
        hint: What to do.
    """

    def __init__(
        self,
        message: str,
        *,
        keys: list[str] | None = None,
        where: str = "",
        expected: object = None,
        found: object = None,
        hint: str = "",
    ) -> None:
        text = f"{where}: {message}" if where else message
        super().__init__(f"{text} {hint}" if hint else text)
        self.keys = keys or []
        self.where = where
        self.expected = expected
        self.found = found
        self.hint = hint


class HandEditConflict(Conflict):
    """Another program saved a document while it was being written."""

    @classmethod
    def changed(cls, where: str) -> HandEditConflict:
        """Return the error for a document that changed during a write."""
        return cls("changed while it was being written.", where=where, hint="Try again.")

    @classmethod
    def busy(cls, where: str, seconds: float) -> HandEditConflict:
        """Return the error for a document whose save has not ended after some seconds."""
        return cls(
            f"still being written by another program after {seconds:g} s.",
            where=where,
            hint="Close the editor and try again.",
        )


class EntryConflict(Conflict):
    """Entries have other values than this write expects; `keys` lists them."""


class SequenceConflict(Conflict):
    """The last transaction is not the expected one."""

    @classmethod
    def of(cls, expected: int, last: int) -> SequenceConflict:
        """Return the error for two transaction numbers."""
        return cls(
            f"transaction {expected} was expected to be the last one, but {last} is.",
            expected=expected,
            found=last,
            hint="Read again.",
        )


class RevisionConflict(Conflict):
    """Another process changed the user's memory during a transaction; nothing was written."""

    @classmethod
    def of(cls, user: str) -> RevisionConflict:
        """Return the error for a user."""
        return cls(
            f"another process changed the memory of {user!r} during this transaction.",
            hint="Run the transaction again.",
        )


class OperationConflict(Conflict):
    """An idempotency key was used for other content; `keys` holds it."""

    @classmethod
    def of(cls, operation: str) -> OperationConflict:
        """Return the error for an operation id in history."""
        return cls(
            f"operation id {operation!r} was used for different content.",
            keys=[operation],
            hint="Use a new id.",
        )


class RollbackConflict(Conflict):
    """The transactions cannot be undone; `keys` lists the entries in the way, if any."""


class Forgotten(DiaryError):
    """Data of the user was erased since this work began; nothing was written."""

    @classmethod
    def since_run(cls) -> Forgotten:
        """Return the error for the words of a run during which everything was erased."""
        return cls(
            "everything of this user was forgotten since this run began. Nothing was stored."
        )

    @classmethod
    def meanwhile(cls) -> Forgotten:
        """Return the error for work that began before something was erased, and may hold it."""
        return cls(
            "something of this user was forgotten since this work began, and it may hold what was forgotten."
            " Nothing was written; do it again if it is still wanted."
        )


class TurnTaken(DiaryError):
    """Another writer has taken a turn over; nothing was written."""


class NestedTransaction(DiaryError, RuntimeError):
    """A transaction of another user is open in this task or thread."""


class LockTimeout(DiaryError, TimeoutError):
    """Another writer held the user's lock for too long."""


class BackendError(DiaryError):
    """The storage failed. Unless the message or the subclass says otherwise, nothing was changed."""


class HookError(DiaryError):
    """A strict hook failed, so the transaction was refused. Nothing was changed."""


class CommittedUnpublished(BackendError):
    """The change is committed in history, but its file could not be replaced yet."""


class NotSupported(DiaryError, NotImplementedError):
    """A feature of a host's interface that a diary does not have; names the alternative."""


class MissingExtra(DiaryError, ImportError):
    """An optional dependency is missing; the message holds the command that installs it."""

    def __init__(self, what: str, extra: str = "", *, package: str = "") -> None:
        install = package or f'"tomldiary-kit[{extra}]"'
        super().__init__(
            f"{what} needs an optional dependency. Run: python -m pip install {install}"
        )
        self.extra = extra


class UnsupportedFormat(DiaryError, ValueError):
    """A chat log in a format that is not known."""


class ExtractionError(DiaryError):
    """The extractor failed, or its answer cannot be used; nothing was written."""


class ExtractorUnusable(ExtractionError):
    """The extractor cannot run at all: its key, package or model is missing, or was used before a fork. Nothing was changed."""


class WriterBusy(DiaryError):
    """The writer's queue is full; try again, or use `submit`, which waits."""


def cause_of(error: BaseException) -> str:
    """Return an error for a log: its type, and its message if that cannot quote stored text."""
    name = type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        place = f": {error.filename}" if error.filename else ""
        return f"{name}: {error.strerror}{place}"
    is_told = isinstance(error, _ABOUT_STORAGE) or str(error) in _STATES
    return f"{name}: {error}" if is_told else name


_ABOUT_STORAGE = (
    BackendError, Conflict, DocumentError, Forgotten, LimitReached, LockTimeout, MissingExtra, WriterBusy,
)  # fmt: skip
_STATES = {"MemoryWriter is closed"}

# A path at the beginning of a message, or in quotes, may contain spaces.
_PATH = r"(?:/|[A-Za-z]:\\)"
_PATHS = re.compile(
    rf"^{_PATH}[^:\n]*|(?<=')(?={_PATH})[^'\n]*|(?<=\")(?={_PATH})[^\"\n]*|(?<![\w.<&]){_PATH}[^\s:,;)'\"]+"
)


def without_paths(message: str) -> str:
    """Return an error's message for a model: of each absolute path only the file's name is left."""
    return _PATHS.sub(lambda path: re.split(r"[/\\]", path[0].rstrip("/\\"))[-1], message)
