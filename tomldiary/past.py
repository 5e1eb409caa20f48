"""Looking back: what changed, why, and how it was."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tomldiary.entry_changes import HistoryEntry, entries_in, entry_changes
from tomldiary.entry_paths import entry_key, path_of
from tomldiary.episodes import homes_of
from tomldiary.errors import UnknownEntry
from tomldiary.past_engine import FrozenEngine
from tomldiary.past_texts import USUAL_KINDS
from tomldiary.retention import Retention
from tomldiary.rollback import GoingBack, Rollback
from tomldiary.toml.document import Document
from tomldiary.toml.values import same_value
from tomldiary.twins import async_twin

if TYPE_CHECKING:
    from datetime import datetime

    from tomldiary.user import UserDiary

__all__ = ["Difference", "HistoryEntry", "Origin", "Past", "Rollback"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One entry in two states; None where it did not exist."""

    key: str
    """`category/id` of a preference; elsewhere with the document in front, as in `facts/diet/user`."""
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an entry comes from."""

    key: str
    text: str
    session: str
    """The session that created it."""
    turn: str
    """The turn it was taken from, `session#turn`, where the extractor said so."""
    is_verified: bool
    """False if a rule stored a sentence that nobody checked."""
    confirmations: int
    """How often it came up."""
    changes: list[HistoryEntry]
    """All that happened to it in the kept history, oldest first."""


class Past(GoingBack, Retention):
    """The part of `UserDiary` that looks back."""

    def history(self, key: str | None = None, *, limit: int = 50) -> list[HistoryEntry]:
        """Return what happened to an entry, or to all of them, newest first.

        Args:
            key: `category/id`, `conversations/session`, `facts/type/key`, `blocks/name` or
                `episodes/id`; None for everything.
            limit: Most changes returned.
        """
        wanted = None if key is None else path_of(key, self.diary.allowed)
        found: list[HistoryEntry] = []
        for record in self._timeline().records():
            for entry in entry_changes(record):
                if wanted is None or entry.key == entry_key(wanted):
                    found.append(entry)
                    if len(found) >= limit:
                        return found
        return found

    ahistory = async_twin(history)

    def why(self, key: str) -> Origin:
        """Return where an entry comes from: the turn, the session, and every change since.

        Raises:
            UnknownEntry: There is no such entry, now or in the kept history.
        """
        path = path_of(key, self.diary.allowed)
        changes = self.history(key, limit=1_000_000)[::-1]
        kinds = homes_of(self._kinds(), path[1]) if path[0] == "episodes" else [path[0]]
        documents = (self._engine.document(self.user_id, kind) for kind in kinds)
        now = next((entry for found in documents if (entry := found.table(path)) is not None), None)
        entry = (
            dict(now)
            if now is not None
            else next((change.after or change.before for change in reversed(changes)), None)
        )
        if entry is None:
            kept = self.kept_history()
            since = f", which begins with transaction {kept.first}" if kept.is_pruned else ""
            raise UnknownEntry(key, f"It is not in the kept history either{since}.")
        count = entry.get("_count", entry.get("_turns", 1))
        return Origin(
            key=entry_key(path),
            text=str(entry.get("text", entry.get("summary", ""))),
            session=str(entry.get("_created_by", ""))
            or (path[-1] if path[0] == "conversations" else ""),
            turn=str(entry.get("_source", "")),
            is_verified=entry.get("_verified", True) is not False,
            confirmations=count if isinstance(count, int) else 1,
            changes=changes,
        )

    awhy = async_twin(why)

    def diff(
        self, before: int | datetime | None = None, after: int | datetime | None = None
    ) -> list[Difference]:
        """Return the entries that differ between two points of history.

        Args:
            before: A transaction number or a time; None is the transaction before the last.
            after: The same; None is now.

        Raises:
            DocumentError: History does not reach back that far.
        """
        if before is None:
            newest = next((record.seq for record in self._timeline().records()), 0)
            before = max(0, newest - 1)
        kinds = self._kinds()
        texts = self._texts(before, kinds)
        later = None if after is None else self._texts(after, kinds)
        found: list[Difference] = []
        for kind in texts:
            old = entries_in(Document.parse(texts[kind]), kind)
            new = entries_in(
                self._engine.document(self.user_id, kind)
                if later is None
                else Document.parse(later[kind]),
                kind,
            )
            found += [
                Difference(entry_key(path), old.get(path), new.get(path))
                for path in dict.fromkeys([*old, *new])
                if not same_value(old.get(path), new.get(path))
            ]
        return found

    adiff = async_twin(diff)

    def diff_text(self, before: int | datetime, after: int | datetime | None = None) -> str:
        """Return the same difference as a unified diff of the files."""
        kinds = self._kinds()
        texts = self._texts(before, kinds)
        later = None if after is None else self._texts(after, kinds)
        parts: list[str] = []
        for kind in texts:
            new = self._engine.document(self.user_id, kind).text if later is None else later[kind]
            lines = difflib.unified_diff(
                texts[kind].split("\n"),
                new.split("\n"),
                f"{kind}.toml",
                f"{kind}.toml",
                lineterm="",
            )
            parts += lines
        return "\n".join(parts)

    def as_of(self, at: int | datetime) -> UserDiary:
        """Return the memory as it was right after a transaction, or at a time; it cannot be written.

        Args:
            at: A transaction number, or a time (without a zone: UTC).

        Raises:
            HistoryPruned: What was before the kept history was dropped; names what is kept.
            DocumentError: History does not reach back that far.
        """
        from tomldiary.user import UserDiary  # noqa: PLC0415 - which is made of this module

        seq = self._sequence(at)
        kinds = self._kinds()
        frozen = FrozenEngine(lambda kind: self._texts(seq, [kind])[kind], seq, kinds)
        # Says right now if history does not reach back.
        frozen.keep(self._texts(seq, USUAL_KINDS))
        return UserDiary(self.diary, self.user_id, engine=cast("Any", frozen))

    aas_of = async_twin(as_of)
