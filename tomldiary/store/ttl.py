"""The removal of expired items, once or periodically; see `engine.deadlines`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tomldiary.history.record import Source
from tomldiary.logging import get_logger
from tomldiary.store.writes import remove_items
from tomldiary.toml.values import check_timeout, checked_number

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from tomldiary.engine.deadlines import Deadlines
    from tomldiary.engine.engine import Engine
    from tomldiary.engine.transaction import Transaction
    from tomldiary.identifiers.namespaces import Namespace
    from tomldiary.store.catalog import Catalog

_logger = get_logger(__name__)


class Sweeper:
    """Removes expired items periodically, in a separate thread.

    Args:
        sweep: The function that removes expired items and returns their number.
    """

    def __init__(self, sweep: Callable[[], int]) -> None:
        self._sweep = sweep
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._done: Future[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, minutes: float) -> Future[None]:
        """Start sweeping at an interval in minutes, if not running yet; the future is done when the sweeper ends.

        Cancelling the future stops the sweeper.

        Raises:
            InvalidValue: `minutes` is not a number above 0.
        """
        from concurrent.futures import Future  # noqa: PLC0415 - only a sweeper needs it

        checked_number(minutes, "interval", "minutes above 0", lambda each: each > 0)
        if self.is_running and self._done is not None and not self._stop.is_set():
            return self._done
        stop = self._stop = threading.Event()
        done: Future[None] = Future()
        done.add_done_callback(lambda _: stop.set())
        self._done = done
        self._thread = threading.Thread(
            target=self._run,
            args=(min(minutes * 60, threading.TIMEOUT_MAX), stop, done),
            name="tomldiary-sweeper",
            daemon=True,
        )
        self._thread.start()
        return done

    def stop(self, timeout: float | None = None) -> bool:
        """Stop the thread, and return whether it ended within `timeout` seconds.

        Raises:
            InvalidValue: `timeout` is not a number.
        """
        check_timeout(timeout)
        self._stop.set()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self, seconds: float, stop: threading.Event, done: Future[None]) -> None:
        while not stop.wait(seconds):
            try:
                self._sweep()
            except Exception:  # later sweeps must run, or expired items accumulate
                _logger.exception("a sweep failed; the next one tries again")
        if done.set_running_or_notify_cancel():
            done.set_result(None)


def expired(catalog: Catalog, deadlines: Deadlines, now: int) -> dict[Namespace, list[str]]:
    """Return the keys of the expired items of a user by namespace."""
    found: dict[Namespace, list[str]] = {}
    for snapshot in catalog.snapshots():
        keys = [
            entry.key
            for entry in snapshot.entries.values()
            if deadlines.is_over(snapshot.base, entry, now)
        ]
        if keys:
            found[snapshot.namespace] = keys
    return found


def sweep(engine: Engine, catalog: Catalog, deadlines: Deadlines, clock: Callable[[], int]) -> int:
    """Remove the expired items of a user and return their number."""

    def write(tx: Transaction) -> int:
        # Checked under the lock: another writer may have put or read an item.
        found = expired(catalog, deadlines, clock())
        for namespace, keys in found.items():
            remove_items(tx, catalog, namespace, keys)
        return sum(map(len, found.values()))

    return engine.write(catalog.user, write, Source("expire", actor="store"))
