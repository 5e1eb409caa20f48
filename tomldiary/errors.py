"""The exception classes of the library.

```
DiaryError
├── IdentifierError (ValueError)       an invalid user, session or document name
├── SchemaError (TypeError)            an invalid preference table or extractor
├── InvalidValue (ValueError)          a value that TOML or a rule does not allow
├── UnknownCategory (ValueError)       a category that is not in the preference table
├── UnknownEntry (KeyError)            an entry that does not exist
├── LimitReached                       a collection that is full
├── ImmutableEntry                     an entry whose rule forbids changing or removing it
├── WeakClaim                          a less sure source would replace a fact
├── DocumentError                      a document that cannot be used; has path, line, column
│   ├── InvalidTOML (ValueError)       does not parse
│   ├── UnsafeDocument (ValueError)    refused before parsing: size, nesting, dotted keys
│   ├── NewerVersion                   written by a newer version; never rewritten
│   └── HistoryPruned                  a transaction older than the kept history
├── Conflict                           another writer changed what this write is based on
│   ├── HandEditConflict               another program saved the document during the write
│   ├── EntryConflict                  entries have other values than this write expects
│   ├── SequenceConflict               the last transaction is not the expected one
│   ├── OperationConflict              an idempotency key was used for other content
│   ├── RevisionConflict               another process changed the user's memory in a shared database
│   └── RollbackConflict               the transactions cannot be undone
├── Forgotten                          data of the user was erased during this operation
├── TurnTaken                          another writer has taken over the turn
├── NestedTransaction (RuntimeError)   a transaction of another user is open
├── LockTimeout (TimeoutError)         another process or thread held the user's lock too long
├── HookError                          a strict hook refused a transaction; nothing was changed
├── BackendError                       the storage failed; nothing was changed
│   └── CommittedUnpublished           the change is in history, but its file is not replaced yet
├── NotSupported (NotImplementedError) a feature of a host's interface that a diary does not have
├── MissingExtra (ImportError)         an optional dependency is not installed
├── UnsupportedFormat (ValueError)     a chat log in an unknown format
├── ExtractionError                    the extractor failed; nothing was changed
│   └── ExtractorUnusable              the extractor cannot run: no key, package or model
└── WriterBusy                         the writer's queue is full
```
"""

from __future__ import annotations

import copyreg
import re
from contextlib import suppress
from typing import Any
from unicodedata import category

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
]


_OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""The categories of characters that a terminal obeys or hides: names from callers and models may contain them."""
_NEEDED = "\n\t\u200c\u200d"
"""Line breaks and tabs, and the joiners of emoji and of Persian and Indic words."""


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        repr(char)[1:-1] if category(char) in _OBEYED and char not in _NEEDED else char
        for char in text
    )


class DiaryError(Exception):
    """Base of all errors of this library."""

    def __str__(self) -> str:
        return _escaped(super().__str__())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy the message and the fields instead of the constructor's arguments."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType] - not in typeshed


class IdentifierError(DiaryError, ValueError):
    """An invalid name of a user, a session or a document."""


class SchemaError(DiaryError, TypeError):
    """An invalid preference table, type of facts, rule or extractor."""


class InvalidValue(DiaryError, ValueError):
    """An invalid value. `where` is its path in TOML, or the name of an option."""

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


def wrong_type(value: object, expected: str, where: str, hint: str = "") -> InvalidValue:
    """Return the error for a value of another type than expected; `hint` says what to do."""
    found = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    return InvalidValue(f"expected {expected}, found {found}. {hint}".rstrip(), where=where)


def attribute_hint(value: object, *names: str) -> str:
    """Return a hint to give an attribute of an object in its place; "" if it has none of `names`."""
    for name in names:
        with suppress(Exception):  # a property of a host's object may fail
            if isinstance(getattr(value, name), str | int):
                return f"Give its `{name}`."
    return ""


_SIMILARITY = 0.8
"""The least similarity of a name that is meant by a misspelt one."""


def missing_attribute(owner: object, name: str, use: str | None = None) -> AttributeError:
    """Return the error about an attribute that an object lacks.

    Args:
        owner: The object.
        name: The attribute.
        use: What to use instead, if it is known.

    Raises:
        AttributeError: The object has the attribute, and reading it failed; then this is the error of the reading.
    """
    if name in dir(type(owner)):
        object.__getattribute__(owner, name)
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if use:
        return AttributeError(f"{text}. Use {use}.", name=name, obj=owner)
    if not name.startswith("_"):
        import difflib  # noqa: PLC0415 - few programs need it

        # `dir` of a user has no names of coroutines.
        names = [each for each in dir(owner) if not each.startswith("_")]
        names += [f"a{each}" for each in names if hasattr(type(owner), f"a{each}")]
        for similar in difflib.get_close_matches(name, names, 1, _SIMILARITY):
            # Without `name`, because Python would suggest the same; IPython suggests nothing.
            return AttributeError(f"{text}. Use {similar}.", obj=owner)
    return AttributeError(text, name=name, obj=owner)


def wrong_value(value: object, expected: str, where: str, hint: str = "") -> InvalidValue:
    """Return the error for a value that is not allowed; `hint` says what to do."""
    return InvalidValue(
        f"expected {expected}, found {printed(value)}. {hint}".rstrip(), where=where
    )


_MOST_SHOWN = 200
"""The length of a value in an error, in characters."""


def printed(value: object) -> str:
    """Return the `repr` of a value for an error, on one line and cut if it is long."""
    try:
        text = " ".join(repr(value).split("\n"))
    except ValueError:  # Python prints no integer of more than 4,300 digits
        return "an integer of more than 4,300 digits"
    return _shortened(text)


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


class UnknownCategory(DiaryError, ValueError):
    """A category that is not in the preference table."""

    def __init__(self, category: str, allowed: list[str]) -> None:
        known = ", ".join(allowed) or "none"
        super().__init__(f"unknown category {printed(category)}. Use one of: {known}.")
        self.category = category
        self.allowed = allowed


class UnknownEntry(DiaryError, KeyError):
    """An entry that does not exist. `where` is its key."""

    def __init__(self, where: str, hint: str = "") -> None:
        super().__init__(where)
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        key = self.where if self.where and self.where.isprintable() else repr(self.where)
        return _escaped(f"{_shortened(key)} does not exist. {self.hint}".rstrip())


class LimitReached(DiaryError):
    """A collection that already has the maximum number of entries."""

    def __init__(self, where: str, limit: int, setting: str = "its Constraint(limit=…)") -> None:
        super().__init__(
            f"{where} is full ({limit}/{limit}). Update or remove an entry, or raise {setting}."
        )
        self.where = where
        self.limit = limit


class ImmutableEntry(DiaryError):
    """An entry whose rule forbids changes and removal. `where` is its key."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} is never changed, because its Constraint(immutable=True) forbids it. Store another entry, or"
            " forget its session."
        )
        self.where = where


class WeakClaim(DiaryError):
    """A new value for a fact has a lower confidence than the stored value.

    `where` is the key of the fact. `stored` and `claimed` are the confidences, from 0 to 1.
    """

    def __init__(self, where: str, stored: float, claimed: float) -> None:
        super().__init__(
            f"{where} has confidence {stored:g}, and the new value only {claimed:g}. Nothing was changed."
            " Use force=True to store it."
        )
        self.where = where
        self.stored = stored
        self.claimed = claimed


class DocumentError(DiaryError):
    """An invalid or unsupported document. The file is left unchanged."""

    def __init__(
        self, message: str, *, path: str = "", line: int | None = None, column: int | None = None
    ) -> None:
        place = ":".join(str(part) for part in (path, line, column) if part not in ("", None))
        super().__init__(f"{place}: {message}" if place else message)
        self.path = path
        self.line = line
        self.column = column


class InvalidTOML(DocumentError, ValueError):
    """A document that is not valid TOML."""


class UnsafeDocument(DocumentError, ValueError):
    """A document that was refused before parsing, because parsing could take too long."""


class NewerVersion(DocumentError):
    """A document in a newer version of the format. It is never rewritten."""


class HistoryPruned(DocumentError):
    """The requested transaction is older than the kept history.

    Attributes:
        first: The number of the oldest kept transaction.
        since: The time of that transaction, in ISO 8601.
    """

    def __init__(self, first: int, since: str) -> None:
        super().__init__(
            f"history begins at transaction {first} ({since}), and older transactions were dropped. Use"
            f" {first} or later."
        )
        self.first = first
        self.since = since


class Conflict(DiaryError):
    """Another writer changed the data that this write is based on. Nothing was written.

    Attributes:
        keys: The entries in conflict, or the idempotency key.
        where: The document or its file; "" if there is no single one.
        expected: The expected values by entry key, or one expected value.
        found: The stored values, in the same form.
        hint: The next step for the caller.
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
    """Another program saved a document during the write."""

    @classmethod
    def changed(cls, where: str) -> HandEditConflict:
        """Return the error for a document that changed during a write."""
        return cls("changed while it was being written.", where=where, hint="Try again.")

    @classmethod
    def busy(cls, where: str, seconds: float) -> HandEditConflict:
        """Return the error for a document that another program is still saving after `seconds`."""
        return cls(
            f"still being written by another program after {seconds:g} s.",
            where=where,
            hint="Close the editor and try again.",
        )


class EntryConflict(Conflict):
    """Entries have other values than the write expects. `keys` lists them."""


class SequenceConflict(Conflict):
    """The last transaction is not the expected one."""

    @classmethod
    def of(cls, expected: int, last: int) -> SequenceConflict:
        """Return the error for the expected and the last transaction number."""
        return cls(
            f"transaction {expected} was expected to be the last one, but {last} is.",
            expected=expected,
            found=last,
            hint="Read again.",
        )


class RevisionConflict(Conflict):
    """Another process changed the user's memory during a transaction. Nothing was written."""

    @classmethod
    def of(cls, user: str) -> RevisionConflict:
        """Return the error for a user."""
        return cls(
            f"another process changed the memory of {user!r} during this transaction.",
            hint="Run the transaction again.",
        )


class OperationConflict(Conflict):
    """An idempotency key was used for different content. `keys` contains it."""

    @classmethod
    def of(cls, operation: str) -> OperationConflict:
        """Return the error for an operation id of another turn or transaction."""
        return cls(
            f"operation id {operation!r} was used for different content.",
            keys=[operation],
            hint="Use a new id.",
        )


class RollbackConflict(Conflict):
    """The transactions cannot be undone. `keys` lists the conflicting entries, if any."""


class Forgotten(DiaryError):
    """Data of the user was erased during this operation. Nothing was written."""

    @classmethod
    def since_run(cls) -> Forgotten:
        """Return the error for a run during which everything was erased."""
        return cls(
            "everything of this user was forgotten since this run began. Nothing was stored."
        )

    @classmethod
    def meanwhile(cls) -> Forgotten:
        """Return the error for an operation that began before an erasure and may contain the erased data."""
        return cls(
            "something of this user was forgotten since this work began, and it may hold what was forgotten."
            " Nothing was written; do it again if it is still wanted."
        )


class TurnTaken(DiaryError):
    """Another writer has taken over the turn. Nothing was written."""


class NestedTransaction(DiaryError, RuntimeError):
    """The transaction that is open in this task or thread does not allow the call."""


class LockTimeout(DiaryError, TimeoutError):
    """Another writer held the user's lock for too long."""


class BackendError(DiaryError):
    """The storage failed. Nothing was changed, unless the message or the subclass states otherwise."""


class HookError(DiaryError):
    """A strict hook refused the transaction or failed. Nothing was changed."""


class CommittedUnpublished(BackendError):
    """The change is committed in history, but its file could not be replaced yet."""


class NotSupported(DiaryError, NotImplementedError):
    """A feature of a framework's interface that a diary does not support. The message names an alternative."""


class MissingExtra(DiaryError, ImportError):
    """An optional dependency is missing. The message contains the install command."""

    def __init__(self, what: str, extra: str = "", *, package: str = "") -> None:
        install = package or f'"tomldiary-kit[{extra}]"'
        super().__init__(
            f"{what} needs an optional dependency. Run: python -m pip install {install}"
        )
        self.extra = extra


class UnsupportedFormat(DiaryError, ValueError):
    """A chat log in an unknown format."""


class ExtractionError(DiaryError):
    """The extractor failed, or its answer is invalid. Nothing was written."""


class ExtractorUnusable(ExtractionError):
    """The extractor cannot run. Nothing was changed.

    Its key, package or model is missing, or it was used before a fork.
    """


class WriterBusy(DiaryError):
    """The writer's queue is full. Try again later, or use `submit`, which waits."""


def cause_of(error: BaseException) -> str:
    """Return a description of an error for a log: its type, and its message if that never quotes stored text."""
    name = type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        place = f": {error.filename}" if error.filename else ""
        return f"{name}: {error.strerror}{place}"
    is_safe = isinstance(error, _ABOUT_STORAGE) or str(error) in _STATES
    return f"{name}: {error}" if is_safe else name


_ABOUT_STORAGE = (
    BackendError, Conflict, DocumentError, Forgotten, LimitReached, LockTimeout, MissingExtra,
    NotSupported, WriterBusy,
)  # fmt: skip
_STATES = {"MemoryWriter is closed. Create another one."}

# A path at the beginning of a message, or in quotes, may contain spaces.
_PATH = r"(?:/|[A-Za-z]:\\)"
_PATHS = re.compile(
    rf"^{_PATH}[^:\n]*|(?<=')(?={_PATH})[^'\n]*|(?<=\")(?={_PATH})[^\"\n]*|(?<![\w.<&]){_PATH}[^\s:,;)'\"]+"
)


def without_paths(message: str) -> str:
    """Return the message of an error for a model, with absolute paths reduced to file names."""
    return _PATHS.sub(lambda path: re.split(r"[/\\]", path[0].rstrip("/\\"))[-1], message)
