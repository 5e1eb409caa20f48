"""The interface to consumers of history: the change of one entry, and the position in a user's history."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one entry of one user; with `is_reset`, all entries of the user are invalid.

    The same change may be delivered more than once, always with the same `id`.
    """

    user: str
    key: str
    """The key of the entry, as `history` shows it; "" for a reset."""
    epoch: int
    """The number of earlier erasures of the user's data."""
    seq: int
    """The number of the transaction; together with `epoch` it is the revision of the entry."""
    time: str = ""
    type: str = ""
    """The type of the transaction; "reset" for a reset, "state" for an entry that follows one."""
    session: str = ""
    actor: str = ""
    reason: str = ""
    before: Mapping[str, Any] | None = None
    """The fields of the entry before; always None for hooks."""
    after: Mapping[str, Any] | None = None
    """The fields of the entry after; None if it was removed."""
    text: str = ""
    """The text of the entry; "" if it was removed."""

    @property
    def id(self) -> str:
        """An identifier that is the same for each delivery of the same change."""
        return f"{self.user}@{self.epoch}.{self.seq}/{self.key}"

    @property
    def is_reset(self) -> bool:
        """Whether all entries of the user must be dropped, because data was forgotten or history starts again."""
        return self.type == "reset"

    @property
    def digest(self) -> str:
        """A fingerprint of `after`, to compare an index with the memory; "" if the entry was removed."""
        if self.after is None:
            return ""
        text = json.dumps(dict(self.after), sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Position:
    """The position that a consumer has reached in the history of one user."""

    epoch: int = 0
    seq: int = 0
    time: str = ""
    """The time of transaction `seq`, to detect another history with the same numbers."""


START = -1
"""The sequence number of a consumer that has received nothing; it gets the whole state of the user."""


@dataclass(frozen=True, slots=True)
class Found:
    """One result of a search in a hook, with the current text of the entry."""

    user: str
    key: str
    text: str
    score: float
    """Higher is better."""


@runtime_checkable
class ChangeHook(Protocol):
    """The interface of every hook."""

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply changes of one user, in order; called again with the same changes after an error.

        Of several changes of one entry since the last call, only the last one is passed.
        """
        ...


@runtime_checkable
class IndexHook(ChangeHook, Protocol):
    """A hook that can list its entries, so that drift can be detected and repaired."""

    def wants(self, change: Change) -> bool:
        """Return whether the hook keeps this entry."""
        ...

    def stored(self, user: str) -> Mapping[str, str]:
        """Return the `digest` of each entry of a user by key."""
        ...

    def users(self) -> Iterable[str]:
        """Return the ids of all users with entries."""
        ...

    def clear(self) -> None:
        """Remove all entries."""
        ...


@runtime_checkable
class SearchHook(Protocol):
    """A hook that can search its entries."""

    def search(self, query: str, *, user: str, limit: int) -> list[tuple[str, str, float]]:
        """Return key, digest and score of the best entries of a user, best first; a higher score is better.

        If hits that no longer hold are left out, the method is called again with a higher limit, up to 1,000. Return
        fewer entries than `limit` if there are no more.
        """
        ...
