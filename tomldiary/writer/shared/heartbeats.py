"""Signs of life of the writers on a shared database.

A writer with claims changes its own hidden document several times during its lease. Another writer takes it for dead if
this document is gone, or did not change for the time of the lease, measured by the observer's clock.

The documents are those of sixteen users of this package: `.writers-0` to `.writers-f`, by the first digit of the
writer's id. So few writers change one user, and none reads the signs of all.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, Conflict
from tomldiary.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tomldiary.storage.shared.backend import SharedBackend

__all__ = ["Heartbeats"]

_logger = get_logger(__name__)
_BEATS = 5  # signs of life in a lease
_FORGET_AFTER = 20  # leases without a sign of life until a writer's document is removed


def _place(writer: str) -> str:
    """Return the user whose document shows that a writer lives."""
    return f".writers-{writer[:1]}"


class Heartbeats:
    """Shows that this writer is alive, and tells which others are.

    Args:
        backend: The database.
        lease: Seconds without a sign of life after which a writer is dead.
    """

    def __init__(self, backend: SharedBackend, lease: float) -> None:
        self.id = secrets.token_hex(8)
        """The id of this writer."""
        self.lease = lease
        self._backend = backend
        self._interval = lease / _BEATS
        self._seen: dict[str, tuple[object, float]] = {}
        """The version of each other writer's document, and when it was first seen."""
        self._beaten = self._observed = -lease
        self._beats = 0

    def beat(self) -> None:
        """Show that this writer is alive, unless it did so a moment ago."""
        if time.monotonic() - self._beaten < self._interval:
            return
        self._beats += 1
        self._change(self.id, f"{self._beats}")
        self._beaten = time.monotonic()

    def observe(self, writers: Iterable[str]) -> None:
        """Note which writers have shown life, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._observed < self._interval:
            return
        self._observed = now
        for each in {writer[:1]: writer for writer in writers if writer}.values():
            self._look(each)

    def is_dead(self, writer: str) -> bool:
        """Return whether a writer has shown no life for the time of the lease, as the database says now."""
        if self._seems_dead(writer):
            self._look(writer)
        return self._seems_dead(writer)

    def sign_off(self) -> None:
        """Remove the document of this writer, which has no claims any more."""
        if self._beats:
            try:
                self._change(self.id, "")
            except (BackendError, Conflict) as error:
                _logger.warning("the writer %s cannot be signed off (%s)", self.id, error)

    def _seems_dead(self, writer: str) -> bool:
        seen = self._seen.get(writer)
        return seen is None or time.monotonic() - seen[1] > self.lease

    def _look(self, writer: str) -> None:
        """Read the signs of a writer, and of those with documents beside it; remove those that ended long ago."""
        now = time.monotonic()
        known = {name: sign for name, sign in self._seen.items() if name[:1] == writer[:1]}
        self._seen = {name: sign for name, sign in self._seen.items() if name not in known}
        for kind, version in self._backend.versions(_place(writer)).items():
            name = kind.removeprefix(".")
            before = known.get(name)
            is_same = before is not None and before[0] == version
            self._seen[name] = before if before is not None and is_same else (version, now)
            if now - self._seen[name][1] > _FORGET_AFTER * self.lease:
                self._change(name, "")

    def _change(self, writer: str, text: str) -> None:
        self._backend.change_hidden(_place(writer), f".{writer}", lambda _text, _epoch: text)
