"""What one batch sees: each namespace as it was when the batch first read it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.store.item import Entry
    from tomldiary.store.namespaces import Namespace
    from tomldiary.store.snapshot import Snapshot
    from tomldiary.store.ttl import Deadlines

__all__ = ["View"]


class View:
    """The namespaces that a batch reads.

    Args:
        deadlines: Tells until when the items of a user live.
        clock: Tells the time, in microseconds since 1970; asked once, if at all.
        omits_expired: Whether what has expired is left out.
        is_shared: Whether several operations are to see a namespace alike.
        signed_in: The only user whose namespaces are shown beside the shared ones; None shows all.
    """

    def __init__(
        self,
        deadlines: Callable[[str], Deadlines],
        clock: Callable[[], int],
        *,
        omits_expired: bool,
        is_shared: bool,
        signed_in: str | None = None,
    ) -> None:
        self.signed_in = signed_in
        self._deadlines = deadlines
        self._clock = clock
        self.omits_expired = omits_expired
        self.is_shared = is_shared
        self._seen: dict[tuple[str, Namespace], Snapshot] = {}
        self._read: dict[str, list[tuple[Namespace, Entry]]] = {}

    def pinned(self, snapshot: Snapshot) -> Snapshot:
        """Return a namespace as it was when the batch first read it."""
        if not self.is_shared:
            return snapshot
        return self._seen.setdefault((snapshot.user, snapshot.namespace), snapshot)

    @cached_property
    def _now(self) -> int:
        return self._clock()

    def seen(self, user: str, namespace: Namespace) -> Snapshot | None:
        """Return a namespace if the batch has read it."""
        return self._seen.get((user, namespace))

    def is_shown(self, snapshot: Snapshot, entry: Entry) -> bool:
        """Tell whether reads show an item: expired ones only until they are removed, or not at all."""
        if entry.expires is None or not self.omits_expired:
            return True
        return not self._deadlines(snapshot.user).is_over(snapshot.namespace, entry, self._now)

    def read(self, snapshot: Snapshot, entry: Entry) -> None:
        """Note that an item was read and is to live on."""
        if entry.expires is not None:
            self._read.setdefault(snapshot.user, []).append((snapshot.namespace, entry))

    def refresh(self) -> None:
        """Give what was read its time to live again."""
        for user, items in self._read.items():
            self._deadlines(user).refresh(items, self._now)
