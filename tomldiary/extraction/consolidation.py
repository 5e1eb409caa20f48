"""Extracts preferences and facts from episodes: each episode once, in order of their time.

    [consolidation."2026-11-20T06:50:12.123456Z"]     # in consolidation/2026-11: the result of an episode
    done = true
    _created_by = "s1"

The extractor's results are stored together with this mark, in one transaction. An episode whose extraction fails gets
`attempts` and `error` instead, does not block the others, and is read again by the next call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tomldiary.entries.facts import ALWAYS
from tomldiary.entries.kinds.episodes import (
    CONSOLIDATION,
    episode_entries,
    episode_kinds,
    happened,
    to_episode,
)
from tomldiary.errors import (
    DiaryError,
    ExtractionError,
    ExtractorUnusable,
    Forgotten,
    HookError,
    MissingExtra,
)
from tomldiary.extraction.operations import SetSummary
from tomldiary.history.record import Source
from tomldiary.logging import get_logger
from tomldiary.runtime.async_bridge import in_thread
from tomldiary.runtime.views import Viewed
from tomldiary.toml.values import checked_flag, checked_limit, timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from tomldiary.diary import Diary
    from tomldiary.engine.transaction import Transaction
    from tomldiary.entries.kinds.episodes import Episode
    from tomldiary.extraction.context import Exchange
    from tomldiary.extraction.operations import Applied, Operation
    from tomldiary.toml.document import Document

_ATTEMPTS = 3  # after something else of the user was forgotten meanwhile
_logger = get_logger(__name__)


@dataclass(slots=True, repr=False)
class Consolidated(Viewed):
    """The result of one call for a user's episodes."""

    read: int = 0
    """The number of episodes that were read and stored."""
    applied: int = 0
    """The number of the extractor's changes that were stored."""
    skipped: list[str] = field(default_factory=list[str])
    """One sentence for each change that a rule forbade."""
    failed: list[str] = field(default_factory=list[str])
    """The ids of episodes whose extraction failed; the next call tries them again."""


class _Pending(NamedTuple):
    """An episode that was not read yet."""

    episode: Episode
    document: str
    when: datetime
    earlier: tuple[tuple[str, str], ...]
    """The documents and the ids of the episodes before it in its session."""

    @property
    def mark(self) -> tuple[str, tuple[str, str]]:
        """The document and the path of its mark."""
        return f"{CONSOLIDATION}/{self.when:%Y-%m}", (CONSOLIDATION, self.episode.id)


async def consolidate(
    diary: Diary,
    user_id: str,
    *,
    limit: int | None = None,
    include_read: bool = False,
    attempts: int | None = None,
    ends_at: Callable[[DiaryError], bool] | None = None,
) -> Consolidated:
    """Read the episodes that were not read yet, and store the results of the diary's extractor.

    Args:
        diary: The diary with the extractor; see `Diary.with_agent`.
        user_id: The user.
        limit: The maximum number of episodes; None is all.
        include_read: Whether to include episodes whose turn was extracted when it was submitted.
        attempts: The number of failed attempts after which an episode is left out; None is no limit.
        ends_at: Returns whether to stop after an error.

    Raises:
        ExtractorUnusable, MissingExtra: The extractor cannot run at all. No episode was marked as failed.
        BackendError: The storage failed; earlier results are stored.
    """
    checked_limit(limit)
    checked_flag(include_read, "include_read")
    done = Consolidated()
    pending = await in_thread(
        _pending, diary, user_id, include_read=include_read, attempts=attempts
    )
    for each in pending:
        if limit is not None and done.read + len(done.failed) >= limit:
            break
        place = (user_id, each.episode.id)
        if place in diary.reading:
            continue  # another call is reading it
        diary.reading.add(place)
        try:
            applied = await _read(diary, user_id, each)
        except (ExtractorUnusable, MissingExtra):
            raise
        except (ExtractionError, HookError) as error:
            cause = type(error.__cause__ or error).__name__
            _logger.warning("an episode could not be read: %s; it is tried again later", cause)
            await in_thread(_note_failure, diary, user_id, each, cause)
            done.failed.append(each.episode.id)
            if ends_at is not None and ends_at(error):
                break
        else:
            if applied is not None:
                done.read += 1
                done.applied += applied.applied
                done.skipped += applied.skipped
        finally:
            diary.reading.discard(place)
    return done


def _pending(
    diary: Diary, user_id: str, *, include_read: bool, attempts: int | None
) -> list[_Pending]:
    """Return the episodes to read, oldest first, followed by those that failed before."""
    engine = diary.engine
    listed = engine.kinds(user_id)
    found: list[tuple[bool, datetime, _Pending]] = []
    before: dict[str, list[tuple[str, str]]] = {}
    marks: dict[str, Document] = {}
    rows = [
        (happened(entry), key, entry, document)
        for document in episode_kinds(listed)
        for key, entry in episode_entries(_episodes(diary, user_id, document))
    ]
    for at, key, entry, document in sorted(rows, key=lambda row: row[:2]):
        episode = to_episode(key, entry)
        session = before.setdefault(episode.session_id, [])
        earlier = tuple(session[-diary.context_turns :]) if diary.context_turns else ()
        session.append((document, key))
        if at == ALWAYS or ("_source" in entry and not include_read):
            continue
        each = _Pending(episode, document, at, earlier)
        name, path = each.mark
        if name not in marks:
            marks[name] = engine.document(user_id, name)
        known = marks[name].table(path) or {}
        is_parked = attempts is not None and _attempts(known) >= attempts
        if known.get("done") is not True and not is_parked:
            found.append(("error" in known, at, each))
    return [each for *_, each in sorted(found, key=lambda row: row[:2])]


async def _read(diary: Diary, user_id: str, each: _Pending) -> Applied | None:
    """Read one episode and store the result; return None if it was removed or read meanwhile."""
    for _ in range(_ATTEMPTS):
        epoch = await in_thread(diary.engine.awaited_epoch, user_id)  # before any data is read
        current = await in_thread(_current, diary, user_id, each)
        if current is None:
            return None
        operations = await _extract(diary, user_id, each.when, *current)
        try:
            return await in_thread(_commit, diary, user_id, each, operations, epoch)
        except Forgotten:
            continue  # maybe this episode, maybe something else
    return None


async def _extract(
    diary: Diary, user_id: str, when: datetime, episode: Episode, earlier: tuple[Exchange, ...]
) -> list[Operation]:
    said_at = when.astimezone()
    deps = await diary.turns.build_deps(user_id, episode.session_id, context_now=said_at)
    deps.earlier = earlier
    deps.user_msg, deps.assistant_msg = episode.input, episode.output
    deps.begin_turn()
    message = await in_thread(diary.turns.message, deps)
    try:
        found = await diary.turns.run_extractor(message, deps, diary.extraction_timeout)
    except (ExtractionError, MissingExtra):
        raise
    except DiaryError as error:  # of the extractor; it must not stop the other episodes
        raise ExtractionError(f"the episode could not be read ({type(error).__name__}).") from error
    # The session may have a summary of later turns, or no conversation at all.
    return [each for each in found if not isinstance(each, SetSummary)]


def _current(
    diary: Diary, user_id: str, each: _Pending
) -> tuple[Episode, tuple[Exchange, ...]] | None:
    """Return an episode and the exchanges before it as they are stored now; None if it is not to be read.

    They were listed earlier, and may be forgotten meanwhile.
    """
    places = [(each.document, each.episode.id), *each.earlier]
    with diary.engine.reading():
        if _is_done(diary, user_id, each):
            return None
        documents = {name: _episodes(diary, user_id, name) for name in {name for name, _ in places}}
    tables = [(key, documents[name].table(("episodes", key))) for name, key in places]
    (_, own), *others = tables
    if own is None:
        return None  # expired
    before = [to_episode(key, table) for key, table in others if table is not None]
    return to_episode(each.episode.id, own), tuple(
        (one.input[:1000], one.output[:1000]) for one in before
    )


def _episodes(diary: Diary, user_id: str, document: str) -> Document:
    """Return a document of episodes without expired ones and without forbidden hand edits."""
    engine = diary.engine
    return engine.kept(document, engine.readable_part(user_id, document))


def _is_done(diary: Diary, user_id: str, each: _Pending) -> bool:
    """Return whether an episode was removed, or read by another call."""
    name, path = each.mark
    engine = diary.engine
    if engine.document(user_id, each.document).table(("episodes", each.episode.id)) is None:
        return True
    return (engine.document(user_id, name).table(path) or {}).get("done") is True


def _commit(
    diary: Diary, user_id: str, each: _Pending, operations: Sequence[Operation], epoch: int
) -> Applied | None:
    episode, why = each.episode, _why(each)

    def change(tx: Transaction) -> Applied | None:
        if _is_done(diary, user_id, each):
            return None
        applied = diary.turns.apply(
            tx, operations, session_id=episode.session_id,
            now=timestamp(each.when), episode=episode.source or why.reason,
        )  # fmt: skip
        _put_mark(tx, each, {"done": True})
        return applied

    return diary.engine.write(user_id, change, why, epoch=epoch)


def _note_failure(diary: Diary, user_id: str, each: _Pending, cause: str) -> None:
    def change(tx: Transaction) -> None:
        if _is_done(diary, user_id, each):
            return
        name, path = each.mark
        attempts = _attempts(tx.edit(name).table(path) or {}) + 1
        _put_mark(tx, each, {"attempts": attempts, "error": cause})

    diary.engine.write(user_id, change, _why(each))


def _attempts(mark: Mapping[str, Any]) -> int:
    tried: Any = mark.get("attempts", 0)
    return tried if isinstance(tried, int) else 0


def _put_mark(tx: Transaction, each: _Pending, fields: Mapping[str, Any]) -> None:
    name, path = each.mark
    session = each.episode.session_id
    said = {"_created_by": session} if session else {}
    tx.edit(name).put(path, {**fields, "_created": each.episode.created, **said})


def _why(each: _Pending) -> Source:
    episode = each.episode
    return Source(
        "consolidate", episode.session_id, actor="extractor", reason=f"episodes/{episode.id}"
    )
