"""Ingest of a chat log: each turn is applied exactly once, also after an interruption.

Each turn is committed with an operation id derived from its place in the log and from its texts. History is the commit
point and stores the id, so a rerun recognises the stored turns. Forgetting a turn also removes its id.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from tomldiary.diary import diary_of
from tomldiary.errors import BackendError, DiaryError, Forgotten
from tomldiary.extraction.context import Turn
from tomldiary.extraction.operations import Applied, TurnOperation
from tomldiary.ingest.formats import read_turns
from tomldiary.runtime.async_bridge import run_coroutine
from tomldiary.runtime.views import Viewed, drawn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike
    from pathlib import Path

    from tomldiary.diary import Diary
    from tomldiary.ingest.turns import ChatTurn
    from tomldiary.text.redaction import Redactor

_ID_DIGITS = 32


@dataclass(frozen=True, slots=True, repr=False)
class IngestReport(Viewed):
    """The result of an ingest.

    turns   : number of turns in the log
    applied : number of turns that this call applied
    skipped : number of turns that were already applied
    seconds : duration of the call
    entries : number of the user's preferences afterwards
    bytes   : size of the user's documents afterwards
    notes   : one sentence for each kind of omitted content, for changes that did not fit, and for each full category
    """

    turns: int
    applied: int
    skipped: int
    seconds: float
    entries: int
    bytes: int
    notes: list[str]


def ingest(
    diary: Diary | str | PathLike[str],
    path: str | Path,
    user_id: str,
    *,
    format: str = "auto",  # noqa: A002 - the word of read_turns
    speaker: str | None = None,
    progress: Callable[[int, int], object] | bool | None = None,
) -> IngestReport:
    """Apply the turns of a chat log to a user's memory, each exactly once.

    A turn is identified by its place in the log and by its texts, not by the name of the file. Therefore the same texts
    at the same place of two logs without conversation ids are one turn. Dates in memory are those of the log. An
    interrupted ingest continues when it is started again. Retention removes operation ids together with their history.

    Args:
        diary: Applies the turns, with its extractor and its preference table; or its folder.
        path: A chat log that `read_turns` supports.
        user_id: The user whose memory is changed.
        format: As for `read_turns`.
        speaker: As for `read_turns`.
        progress: Called after each turn with the number of finished turns and of all turns. True shows a progress bar,
            False shows no bar. None shows a bar in IPython if tqdm is installed and the ingest takes over a second.

    Raises:
        InvalidValue, UnsupportedFormat: The log cannot be read, or `diary` is none. Nothing was changed.
        ExtractionError: The extractor failed on a turn. The turns before it are stored, and a note of the error
            counts them; start again to continue.
        Forgotten: Something of the user was forgotten during the ingest. The remaining turns were not applied.
        BackendError: The backend has no history, or the storage failed.
    """
    started = time.perf_counter()
    diary = diary_of(diary)
    log = read_turns(path, format=format, speaker=speaker)
    _ = diary.turns.extractor  # report a model that is not installed before anything is written
    user = diary.user(user_id)
    done: list[Applied] = []
    if log.turns:
        with drawn("progress:reporting", progress, "turns") as report:
            done = _apply_all(diary, user_id, log.turns, report)
    applied = sum(not each.is_repeated for each in done)
    unfit = [why for each in done for why in each.skipped]
    return IngestReport(
        turns=len(log.turns),
        applied=applied,
        skipped=len(log.turns) - applied,
        seconds=time.perf_counter() - started,
        entries=sum(map(len, user.preferences().values())),
        bytes=sum(
            len(user.document(kind).encode()) for kind in diary.engine.backend.kinds(user_id)
        ),
        notes=[*log.skipped, *_unfit(unfit), *_full(diary, user_id)],
    )


def _apply_all(
    diary: Diary,
    user_id: str,
    turns: Sequence[ChatTurn],
    report: Callable[[int, int], object] | None,
) -> list[Applied]:
    """Apply the turns that are not yet applied, and return their results."""
    backend, user = diary.engine.backend, diary.user(user_id)
    if not backend.is_atomic:
        raise BackendError(
            f"{backend!r} has no history, so turns that were already applied cannot be recognised."
            " Use a diary in a folder."
        )
    epoch, last = backend.epoch(user_id), user.last_transaction()
    done = diary.engine.done_operations(user_id)
    redactor = diary.redactor
    # An id of the redacted texts, because a guess of a secret could be confirmed with another one.
    redacted = turns if redactor is None else [_redacted(turn, redactor) for turn in turns]
    ids = map(operation_id, redacted)
    todo = [
        (id_, turn)
        for id_, turn in zip(ids, turns, strict=True)
        # A turn of before the diary redacted has the id of its own texts.
        if id_ not in done and operation_id(turn) not in done
    ]
    count, results = len(turns) - len(todo), list[Applied]()
    if report is not None and count:
        report(count, len(turns))
    for id_, turn in todo:
        if backend.epoch(user_id) != epoch or user.last_transaction() < last:
            raise Forgotten(
                "something of this user was forgotten during the ingest. The remaining turns were not applied."
                " Ingest the log again if they are still wanted."
            )
        said = Turn(user_id, turn.session_id, turn.user_msg, turn.assistant_msg, turn.when)
        try:
            began, _ = diary.sessions.take(user_id, turn.session_id)
            operation = TurnOperation(id_, id_, epoch, began=began)
            results.append(run_coroutine(diary.turns.process(said, operation)))
        except DiaryError as error:
            if count:
                stored = f"Turns of the log that are stored: {count} of {len(turns)}."
                error.add_note(f"{stored} Ingest it again to continue.")
            raise
        last = user.last_transaction()
        count += 1
        if report is not None:
            report(count, len(turns))
    return results


def _redacted(turn: ChatTurn, redactor: Redactor) -> ChatTurn:
    said, answer = redactor.uncounted((turn.user_msg, turn.assistant_msg))
    return replace(turn, user_msg=said, assistant_msg=answer)


def operation_id(turn: ChatTurn) -> str:
    """Return the operation id of a turn, which is the same for the same texts at the same place of a log."""
    hashed = sha256()
    for part in (turn.position, turn.user_msg, turn.assistant_msg):
        data = part.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8, "big") + data)
    return f"ingest-{hashed.hexdigest()[:_ID_DIGITS]}"


def _unfit(reasons: Sequence[str]) -> list[str]:
    if not reasons:
        return []
    were = "change was" if len(reasons) == 1 else "changes were"
    return [f"{len(reasons):,} {were} left out; the last one: {reasons[-1]}"]


def _full(diary: Diary, user_id: str) -> list[str]:
    limit = diary.max_prefs_per_category
    return [
        f"{category} is full ({limit}/{limit}): further statements about it may have been left out."
        for category, entries in diary.user(user_id).preferences().items()
        if len(entries) >= limit
    ]
