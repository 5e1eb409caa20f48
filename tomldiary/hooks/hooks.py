"""The hooks of a diary: a thread for each hook delivers changes in the background and retries after errors."""

from __future__ import annotations

import random
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tomldiary.errors import (
    DiaryError,
    InvalidValue,
    LockTimeout,
    UnknownEntry,
    cause_of,
    wrong_type,
    wrong_value,
)
from tomldiary.hooks.delivery import NOT_AWAITED, Delivery, Repaired
from tomldiary.identifiers.user_ids import checked_user
from tomldiary.logging import get_logger
from tomldiary.runtime.callables import is_async, refuse_misfit
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.storage.locks import InterruptibleCondition
from tomldiary.storage.shared.database import DatabaseLost
from tomldiary.toml.values import (
    LONGEST_WAIT,
    check_instance,
    check_timeout,
    checked_count,
    checked_flag,
    checked_number,
    checked_pause,
    checked_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.engine.engine import Engine
    from tomldiary.entries.kind import Rules
    from tomldiary.hooks.change import Found
    from tomldiary.hooks.delivery import Hook

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_FIRST_PAUSE = 0.1  # seconds
_DOUBLINGS = 64  # the maximum number of times that a pause doubles; more would overflow
_DOWN_AFTER = 3  # users whose deliveries failed since the last success, after which deliveries for all users pause
_logger = get_logger(__name__)


@dataclass(slots=True)
class _Waiting:
    """The schedule of a user whose changes wait for delivery."""

    due: float = 0.0
    attempts: int = 0


class _Worker:
    """The thread that delivers to one hook."""

    def __init__(self, delivery: Delivery, *, poll: float, longest_pause: float) -> None:
        self.delivery = delivery
        self._delivered = self._failures = 0
        self._last_error = ""
        self._failing: set[str] = set()
        self._poll = checked_pause(poll, "poll")
        self._longest = checked_pause(longest_pause, "longest_pause")
        self.waiting: dict[str, _Waiting] = {}
        """The users whose changes wait for delivery."""
        self._next_scan = 0.0
        self._scans = self._scans_asked = 0
        self._failed_since: set[str] = set()
        """The users whose deliveries failed since the last success for any user."""
        self._resume_at = 0.0
        self._is_closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Create a new condition. A forked child has no thread, and starts one at its first write."""
        self._changed = InterruptibleCondition()
        self._thread: threading.Thread | None = None
        self._is_busy = False

    def start(self) -> None:
        """Start the thread unless it is running."""
        with self._changed:
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(
                    target=self._run, name=f"tomldiary-hook-{self.delivery.name}", daemon=True
                )
                self._thread.start()

    def notify(self, user: str) -> None:
        """Schedule the delivery of a user's changes."""
        with self._changed:
            self.waiting.setdefault(user, _Waiting())
            self._changed.notify_all()
        if self._thread is None:
            self.start()

    def close(self, timeout: float) -> None:
        """Stop the thread; undelivered changes stay in history for the next start."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
            if thread.is_alive():
                _logger.warning(
                    "the hook %s did not return within %g s; its thread ends when it returns",
                    self.delivery.name,
                    timeout,
                )

    def wait(self, deadline: float) -> bool:
        """Return whether all changes stored before the call are delivered by the deadline."""
        with self._changed:
            self._scans_asked += 1  # request a scan, because another process may have written
            wanted, self._next_scan = self._scans_asked, 0.0
            self._changed.notify_all()
            while self._scans < wanted or self.waiting or self._is_busy:
                left = deadline - time.monotonic()
                if left <= 0 or self._is_closed:
                    return False
                self._changed.wait(left)
            return True

    def stats(self) -> dict[str, Any]:
        """Return the figures of the hook; see `Hooks.stats`."""
        return {
            "delivered": self._delivered,
            "failures": self._failures,
            "failing": len(self._failing),
            "waiting": len(self.waiting),
            "last_error": self._last_error,
        }

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                user = self._next()
                while user is None and not self._is_closed and time.monotonic() < self._next_scan:
                    self._changed.notify_all()
                    self._changed.wait(self._until())
                    user = self._next()
                if self._is_closed:
                    return
                self._is_busy = True
            if user is None:
                self._scan()
            else:
                self._deliver(user)

    def _next(self) -> str | None:
        """Return a user whose delivery is due, or None; the caller holds the condition."""
        now = time.monotonic()
        if now < self._resume_at:
            return None
        return next((user for user, each in self.waiting.items() if each.due <= now), None)

    def _until(self) -> float:
        """Return the seconds until the next scan or delivery is due; the caller holds the condition."""
        dues = [max(each.due, self._resume_at) for each in self.waiting.values()]
        return max(0.0, min([self._next_scan, *dues]) - time.monotonic())

    def _scan(self) -> None:
        """Find users with undelivered changes that are unknown here: of other processes, or from before a crash."""
        began, number = time.monotonic(), self._scans_asked
        try:
            found = [user for user in self.delivery.users() if self._may_be_behind(user)]
        except Exception as error:  # noqa: BLE001 - the next scan retries after a storage error
            self._note_failure(error)
            with self._changed:
                self._next_scan = time.monotonic() + self._poll
            return
        with self._changed:
            for user in found:
                self.waiting.setdefault(user, _Waiting())
            took = time.monotonic() - began
            self._scans = number
            is_asked = self._scans_asked > number
            self._next_scan = 0.0 if is_asked else time.monotonic() + max(self._poll, 20 * took)
            self._changed.notify_all()

    def _may_be_behind(self, user: str) -> bool:
        """Return whether to deliver to a user; the delivery to one whose data cannot be read fails, not the scan."""
        try:
            return self.delivery.is_behind(user)
        except DiaryError as error:
            if isinstance(error.__cause__, DatabaseLost):
                raise  # each other user would wait for the database, too
            return True

    def _deliver(self, user: str) -> None:
        with self._changed:
            # A change during the delivery is scheduled again.
            waiting = self.waiting.pop(user, _Waiting())
        try:
            self._delivered += self.delivery.deliver(user)
        except LockTimeout:
            self._again(user, waiting)  # another process is delivering
        except BaseException as error:  # noqa: BLE001 - hooks may raise any error, and are retried
            self._note_failure(error)
            self._failing.add(user)
            self._failed_since.add(user)
            self._again(user, waiting)
        else:
            self._failed_since.clear()
            self._failing.discard(user)

    def _again(self, user: str, waiting: _Waiting) -> None:
        with self._changed:
            attempts = min(waiting.attempts + 1, _DOUBLINGS)
            self.waiting[user] = _Waiting(self._after_pause(attempts), attempts)
            # Grows with each further user, because a hook may also refuse the changes of a few users forever.
            more = len(self._failed_since) - _DOWN_AFTER
            if more >= 0:
                self._resume_at = self._after_pause(min(more, _DOUBLINGS))

    def _after_pause(self, doublings: int) -> float:
        pause = min(self._longest, _FIRST_PAUSE * 2.0**doublings)
        return time.monotonic() + random.uniform(pause / 2, pause)  # noqa: S311 - no secret

    def _note_failure(self, error: BaseException) -> None:
        self._failures += 1
        self._last_error = cause_of(error)
        if not self._failed_since:
            _logger.warning(
                "the hook %s failed (%s) and will be retried", self.delivery.name, cause_of(error)
            )


class Hooks:
    """The hooks of a diary by name, as `diary.hooks`.

    Args:
        engine: The engine of the diary.
        rules: The rules of the entries.
    """

    def __init__(self, engine: Engine, rules: Rules) -> None:
        self._engine = engine
        self._rules = rules
        self._workers: dict[str, _Worker] = {}

    def __repr__(self) -> str:
        return f"Hooks({', '.join(self._workers)})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def __getitem__(self, name: str) -> Hook:
        """Return the hook with this name.

        Raises:
            UnknownEntry: There is no such hook.
        """
        return self._worker(name).delivery.hook

    def _worker(self, name: str) -> _Worker:
        found = self._workers.get(checked_text(name, "name"))
        if found is None:
            known = ", ".join(self._workers) or "none"
            raise UnknownEntry(f"the hook {name!r}", f"The hooks are: {known}.")
        return found

    def add(
        self,
        hook: Hook,
        *,
        name: str,
        strict: bool = False,
        poll: float = 5.0,
        longest_pause: float = 60.0,
    ) -> None:
        """Add a hook and deliver all changes to it, starting after the last change that it received.

        Args:
            hook: An object with `apply(changes)`, or a function of the changes of one user. Use a hook from one
                diary at a time in a process.
            name: The name of the hook and its cursors: 1 to 40 characters of a-z, 0-9, "-" and "_". Each index needs a
                separate name.
            strict: Whether the hook also gets each transaction before it is stored, and an error refuses it.
            poll: The interval between two checks for changes of other processes, in seconds.
            longest_pause: The maximum time between two attempts at a failing hook, in seconds.

        Raises:
            InvalidValue: The name is invalid or in use, the hook has an unsupported type, other parameters or is a
                class or a coroutine function, or a time is not above 0.
            NotSupported: The backend cannot store cursors.
        """
        if not _NAME.fullmatch(checked_text(name, "name")):
            raise wrong_value(name, "1 to 40 characters of a-z, 0-9, - and _", "name")
        checked_flag(strict, "strict")
        if name in self._workers:
            raise InvalidValue(f"the hook {name!r} already exists. Remove it first.", where="name")
        check_instance(hook, "hook")
        given: Any = getattr(hook, "apply", hook)
        if not callable(given):
            raise wrong_type(hook, "an object with apply(changes), or a function", "hook")
        if is_async(given):
            raise InvalidValue(f"{NOT_AWAITED}.", where="hook")
        refuse_misfit(given, "changes", "hook", ())
        delivery = Delivery(self._engine, name, hook)
        worker = _Worker(delivery, poll=poll, longest_pause=longest_pause)
        self._workers[name] = worker
        self._engine.after_change.append(worker.notify)
        if strict:
            self._engine.before_commit.append(delivery.check)
        worker.start()

    def remove(self, name: str, timeout: float = 10.0) -> None:
        """Remove a hook; its cursors stay, so adding it again continues after its last change.

        Raises:
            UnknownEntry: There is no such hook.
            InvalidValue: `timeout` is not a number.
        """
        check_timeout(timeout)
        worker = self._worker(name)
        del self._workers[name]
        self._engine.after_change.remove(worker.notify)
        with suppress(ValueError):  # the hook is not strict
            self._engine.before_commit.remove(worker.delivery.check)
        worker.close(timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Remove all hooks. Undelivered changes stay in history, and are delivered when the hooks are added again.

        A hook that does not return within `timeout` seconds is named in a warning.
        """
        for name in list(self._workers):
            self.remove(name, timeout)

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until all hooks have the changes stored before the call; return False if `timeout` was too short.

        Raises:
            InvalidValue: `timeout` is not a number.
        """
        expected = f"a number of seconds, at most {LONGEST_WAIT:,}"
        checked_number(timeout, "timeout", expected, lambda each: each <= LONGEST_WAIT)
        deadline = time.monotonic() + timeout
        return all(worker.wait(deadline) for worker in list(self._workers.values()))

    def reconcile(self, name: str, user_id: str | None = None) -> Repaired:
        """Compare a hook with the memory of one user, or of all users, and repair it.

        Returns:
            The numbers of entries that were missing in the hook, differed, or had to be removed.

        Raises:
            UnknownEntry: There is no such hook.
            NestedTransaction: A transaction is open here.
        """
        delivery, total = self._worker(name).delivery, Repaired()
        for each in delivery.everybody() if user_id is None else [checked_user(user_id)]:
            found = delivery.reconcile(each)
            total.added += found.added
            total.changed += found.changed
            total.removed += found.removed
        return total

    def rebuild(self, name: str) -> Repaired:
        """Remove all entries from a hook, and deliver the whole memory again.

        Use it after the embedding of an index was changed.

        Raises:
            UnknownEntry: There is no such hook.
            NotSupported: The hook cannot be cleared.
            NestedTransaction: A transaction is open here.
        """
        delivery = self._worker(name).delivery
        for each in delivery.everybody():
            self._engine.refuse_open(each)
        delivery.clear()
        return self.reconcile(name)

    def search(self, name: str, query: str, *, user_id: str, limit: int = 5) -> list[Found]:
        """Return the entries of a user that a hook finds, best first.

        An entry that the memory no longer contains, or contains with different content, is left out, and so is a fact
        that does not hold now. So an outdated hook returns nothing that was removed or forgotten.

        Raises:
            UnknownEntry: There is no such hook.
            NotSupported: The hook cannot search.
            InvalidValue: `query` is not text, or `limit` is negative.
            IdentifierError: `user_id` is not a valid user id.
        """
        delivery, query = self._worker(name).delivery, checked_text(query, "query")
        count = checked_count(limit, "limit")
        return delivery.search(query, checked_user(user_id), count, self._rules)

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return for each hook: `delivered` changes, `failures`, `failing` and `waiting` users, `last_error`."""
        return {name: worker.stats() for name, worker in self._workers.items()}
