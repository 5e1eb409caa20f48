"""Group commit: concurrent transactions of one user in a process are applied as one step of the database.

A transaction that ends while others of the user wait adds its changes to the group. The next one begins with them.
The last one applies the group as one step. No call returns before the step is applied. If the step is refused, all
transactions of the group run again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tomldiary.storage.shared.database import Head, Step

if TYPE_CHECKING:
    from tomldiary.storage.protocol import Token

__all__ = ["Group", "PendingVersion"]

_MOST_RECORDS = 64
_LARGEST = 1 << 20  # characters


class PendingVersion:
    """The version of a document in a pending step; once the step is applied, it equals the stored version."""

    __slots__ = ("version",)

    def __init__(self) -> None:
        self.version: Token | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether both are one version; before the step is applied, it equals only itself."""
        return other is self or (self.version is not None and bool(self.version == other))

    __hash__ = object.__hash__


class Group:
    """The pending changes of one user, which the next step applies; the user's lock guards them.

    Args:
        base: The state in the database that the first transaction began with.
    """

    def __init__(self, base: Head) -> None:
        self.base = base
        self.head = Head(base.revision, base.epoch, dict(base.versions), base.record)
        """The state that the next transaction begins with."""
        self.records: list[tuple[int, str]] = []
        self.done = threading.Event()
        """Set when the step was applied or refused."""
        self.error: Exception | None = None
        """The reason why the step was not applied."""
        self._contents: dict[str, str] = {}
        self._versions: dict[str, PendingVersion] = {}
        self._size = 0

    @property
    def step(self) -> Step:
        """All changes as one step."""
        return Step(self._contents, records=self.records)

    @property
    def is_full(self) -> bool:
        """Whether no further transaction should join."""
        return len(self.records) >= _MOST_RECORDS or self._size >= _LARGEST

    def add(self, step: Step) -> dict[str, Token]:
        """Add the changes of a transaction, and return the versions of its documents."""
        versions = {kind: PendingVersion() for kind in step.contents}
        self._contents.update(step.contents)
        self._versions.update(versions)
        self.records += step.records
        self._size += sum(map(len, step.contents.values()))
        self.head.texts.update(step.contents)
        self.head.versions.update(versions)
        self.head.record = step.newest(self.head.record)
        return dict(versions)

    def settle(self, versions: dict[str, Token]) -> None:
        """Mark the step as applied; `versions` are the known new versions."""
        for kind, version in versions.items():
            self._versions[kind].version = version
        self.done.set()

    def fail(self, error: Exception) -> None:
        """Mark the step as not applied."""
        self.error = error
        self.done.set()
