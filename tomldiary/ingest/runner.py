"""A chat log into memory: every turn exactly once, however often it is started and stopped."""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from tomldiary.errors import BackendError, DiaryError, LockTimeout
from tomldiary.history.record import next_sequence, parse_record
from tomldiary.ingest.ledger import LEDGER_NAME, Ledger
from tomldiary.ingest.reading import read_turns
from tomldiary.runtime.async_bridge import run_coroutine
from tomldiary.storage.local.backend import LocalBackend
from tomldiary.storage.memory import MemoryBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from tomldiary.diary import Diary
    from tomldiary.ingest.turns import ChatTurn

__all__ = ["IngestReport", "ingest"]

_GROUP = 32
"""Turns that are begun together: one sync of the ledger for all of them."""


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What became of a chat log.

    turns   : turns in the log
    applied : turns that were read into memory now
    skipped : turns that were there already
    seconds : time it took
    entries : preferences the user has afterwards
    bytes   : size of the user's documents afterwards
    notes   : one sentence for each kind of thing that was left out
    """

    turns: int
    applied: int
    skipped: int
    seconds: float
    entries: int
    bytes: int
    notes: list[str]


def ingest(
    diary: Diary,
    path: str | Path,
    user_id: str,
    *,
    format: str = "auto",  # noqa: A002 - the word of read_turns
    speaker: str | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> IngestReport:
    """Read a chat log into a user's memory; a turn that was read before is not applied again.

    A turn is known by its place in the log and by its texts, not by the name of the file: the same words
    at the same place of two logs without conversation ids count as one turn. Dates in memory are those of
    the log. It may be stopped at any point, by any means, and started again.

    Args:
        diary: Applies the turns, with its extractor and its preference table.
        path: A chat log that `read_turns` understands.
        user_id: Whose memory it goes into.
        format: As for `read_turns`.
        speaker: As for `read_turns`.
        progress: Called with the number of turns dealt with and of all turns, after each.

    Raises:
        InvalidValue, UnsupportedFormat: The log cannot be read. Nothing was changed.
        ExtractionError: The extractor failed on a turn. Turns before it are in memory; start again to go on.
        LockTimeout: Another ingest of the same user is at work.
        BackendError: The diary keeps no folder, or its storage failed.
    """
    started = time.perf_counter()
    log = read_turns(path, format=format, speaker=speaker)
    _ = diary.extractor  # a model that is not installed is noticed before anything is written
    applied = skipped = 0
    user = diary.user(user_id)
    if log.turns:
        with _ledger(diary, user_id, log.turns[0]) as ledger:
            if ledger.pending is not None:
                _settle(diary, user_id, ledger)
            todo: list[tuple[str, ChatTurn]] = []
            for turn in log.turns:
                mark = ledger.mark(turn.position, turn.user_msg, turn.assistant_msg)
                if mark not in ledger:
                    todo.append((mark, turn))
            skipped = len(log.turns) - len(todo)
            if progress is not None and skipped:
                progress(skipped, len(log.turns))
            for group in _groups(todo):
                session = group[0][1].session_id
                ledger.begin(
                    [mark for mark, _ in group],
                    session=ledger.mark(session),
                    after=_sequence(diary, user_id),
                )
                try:
                    for _, turn in group:
                        ledger.check_place()
                        user.add_turn(turn.user_msg, turn.assistant_msg, session, now=turn.when)
                        applied += 1
                        if progress is not None:
                            progress(skipped + applied, len(log.turns))
                except DiaryError:
                    _settle(diary, user_id, ledger)
                    raise
                ledger.finish(len(group))
    return IngestReport(
        turns=len(log.turns),
        applied=applied,
        skipped=skipped,
        seconds=time.perf_counter() - started,
        entries=sum(map(len, user.preferences().values())),
        bytes=sum(
            len(user.document(kind).encode()) for kind in diary.engine.backend.kinds(user_id)
        ),
        notes=[*log.skipped, *_full(diary, user_id)],
    )


def _groups(todo: list[tuple[str, ChatTurn]]) -> Iterator[list[tuple[str, ChatTurn]]]:
    """Cut into runs of one session, none longer than a group."""
    for _, run in groupby(todo, key=lambda item: item[1].session_id):
        turns = list(run)
        for begin in range(0, len(turns), _GROUP):
            yield turns[begin : begin + _GROUP]


def _sequence(diary: Diary, user_id: str) -> int:
    """Return the number of the user's last transaction, after what a crash left was finished."""
    engine = diary.engine
    with engine.backend.lock(user_id, engine.lock_timeout):
        return next_sequence(engine.backend.last_record(user_id)) - 1


def _settle(diary: Diary, user_id: str, ledger: Ledger) -> None:
    """Close the pending group with the number of its turns that history holds."""
    group = ledger.pending
    if group is None:
        return
    backend = diary.engine.backend
    found = 0
    with backend.lock(user_id, diary.engine.lock_timeout):
        backend.last_record(user_id)  # cuts off the torn end that a crash may have left
        for text in backend.records(user_id):
            record = parse_record(text)
            if record.seq <= group.after:
                break
            found += record.type == "turn" and ledger.mark(record.session) == group.session
    ledger.finish(min(found, len(group.turns)))


def _full(diary: Diary, user_id: str) -> list[str]:
    limit = diary.max_prefs_per_category
    return [
        f"{category} is full ({limit}/{limit}): what else was said about it may have been left out."
        for category, entries in diary.user(user_id).preferences().items()
        if len(entries) >= limit
    ]


# Memory that ends with the process has ledgers that do, too.
_volatile: weakref.WeakKeyDictionary[MemoryBackend, dict[str, tuple[threading.Lock, Ledger]]] = (
    weakref.WeakKeyDictionary()
)
_guard = threading.Lock()


@contextmanager
def _ledger(diary: Diary, user_id: str, first: ChatTurn) -> Generator[Ledger]:
    backend, timeout = diary.engine.backend, diary.engine.lock_timeout
    if isinstance(backend, LocalBackend):
        path = backend.folder(user_id) / LEDGER_NAME
        if not path.parent.is_dir():
            # The first transaction makes the user's folder, by the rules of the backend.
            run_coroutine(diary.ensure_session(user_id, first.session_id, context_now=first.when))
        with Ledger(path, sync=backend.durability == "full", timeout=timeout) as ledger:
            yield ledger
    elif isinstance(backend, MemoryBackend):
        with _guard:
            ledgers = _volatile.setdefault(backend, {})
            if user_id not in ledgers or backend.last_record(user_id) is None:
                ledgers[user_id] = (threading.Lock(), Ledger(None))
            lock, ledger = ledgers[user_id]
        if not lock.acquire(timeout=timeout):
            raise LockTimeout(
                f"another ingest of this user was at work for {timeout:g} s. Wait for it to end."
            )
        try:
            yield ledger
        finally:
            lock.release()
    else:
        raise BackendError(
            f"{backend!r}: what was read before is noted beside the files, and this storage has no folder."
            " Read the log into a diary in a folder."
        )
