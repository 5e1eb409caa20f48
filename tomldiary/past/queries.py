"""Queries of one user's history: changes, the origin of an entry, differences and past documents."""

from __future__ import annotations

import difflib
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from tomldiary.entries.fields import SOURCE_HINT, bare_source, count_of, entry_data, shares_turn
from tomldiary.entries.kinds import entry_key, entry_kind, find_entry, home_of, path_of
from tomldiary.entries.kinds.episodes import episode_entries, episode_kinds
from tomldiary.entries.kinds.parts import in_one_layout, path_in
from tomldiary.entries.kinds.pending import held_entry
from tomldiary.errors import UnknownEntry
from tomldiary.history.record import SNAPSHOT, Record
from tomldiary.history.timeline import Timeline
from tomldiary.past.as_of import PastDocuments, PastTexts, Point, point_of, reread
from tomldiary.past.retention import Retention
from tomldiary.runtime.views import ListView, Viewed
from tomldiary.toml.document import Document, Path
from tomldiary.toml.edit import Edit
from tomldiary.toml.values import (
    changed_keys,
    checked_count,
    checked_flag,
    checked_limit,
    checked_text,
    render_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from tomldiary.entries.kind import Rules
    from tomldiary.storage.protocol import HistorySource

MOST_CHANGES = 50
"""The maximum number of changes that `history` returns without `limit`."""
_State = dict[str, Any] | None
"""The fields of an entry; None where it does not exist."""
_Homes = dict[str, tuple[dict[Path, dict[str, Any]], dict[Path, dict[str, Any]]]]
"""The entries of two states, by home and path."""
_BOOKKEEPING = re.compile(r"_(count|created|created_by|said_by|turns|updated|updated_by) = ")


@dataclass(frozen=True, slots=True, repr=False)
class HistoryEntry(Viewed):
    """The change of one entry by one transaction."""

    seq: int
    time: str
    type: str
    session: str
    actor: str
    reason: str
    key: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    is_conflict: bool = False
    """Whether a hand edit displaced a written change; `before` is that change."""

    @property
    def source(self) -> str:
        """The turn that the entry was extracted from, `session#turn` or `episodes/id`; "" if there is none."""
        return str((self.after or self.before or {}).get("_source", ""))


class Changes(ListView[HistoryEntry]):
    """Changes of entries, from history."""


@dataclass(frozen=True, slots=True, repr=False)
class Difference(Viewed):
    """The fields of one entry in two states; None if it did not exist."""

    key: str
    """`category/id` for a preference, `items/namespace/key` for an item.

    For other entries the document comes first, as in `facts/diet/user`.
    """
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class Differences(ListView[Difference]):
    """The entries that differ between two states."""


@dataclass(frozen=True, slots=True, repr=False)
class Origin(Viewed):
    """The origin of an entry."""

    key: str
    text: str
    session: str
    """The session that created it."""
    turn: str
    """The turn it was extracted from, `session#turn`; "" if the extractor did not report it.

    Turns that were read together are `session#first-last`.
    """
    is_verified: bool
    """False for a sentence that a rule stored and that is not confirmed yet; True for all other content."""
    confirmations: int
    """How many times a preference was stated, or the turns of a conversation; 1 for other entries, which are not counted."""
    origin: str
    """The source of its content: the actor of the last write, "hand", "rule", "model" or "model:…"; "" if unknown."""
    changes: Changes
    """All its changes in the kept history, oldest first."""


class HistoryQueries:
    """Queries the history of one user.

    Args:
        rules: The rules of the entries.
        past: The user's history.
        read: Returns the current entries of a kind or a document; for a draft, including the session's drafts.
        kinds: Returns the names of these documents.
    """

    def __init__(
        self,
        rules: Rules,
        past: PastTexts,
        read: Callable[[str], Document],
        kinds: Callable[[], list[str]],
    ) -> None:
        self._rules = rules
        self._past = past
        self._read = read
        self._kinds = kinds

    def history(
        self,
        key: str | None = None,
        *,
        limit: int | None = MOST_CHANGES,
        offset: int = 0,
        session_id: str | None = None,
        actor: str | None = None,
        source: str | None = None,
        since: Point | None = None,
        until: Point | None = None,
    ) -> Changes:
        """Return the changes of an entry, or of all entries, newest first.

        Args:
            key: `category/id`, `conversations/session`, `facts/type/key`, `blocks/name`,
                `episodes/id` or `items/namespace/key`, as `history` shows it; None returns all changes. The singleton
                key of a temporal fact, as in `facts/home/user`, returns those of all its intervals.
            limit: The maximum number of changes; None is all.
            offset: The number of newest changes to skip.
            session_id: Only changes of this session.
            actor: Only changes by this actor.
            source: Only changes of entries that were extracted from this turn, `session#turn` or `episodes/id`.
                `why(key).turn` returns it for an entry. The episode of a turn is one of these entries, and
                names its turn. Entries of turns that were read together are those of each of these turns.
            since: Only changes after this transaction, or from this time on; see `as_of` for points.
            until: Only changes up to this transaction or time. A date means its start, so the next day includes it.

        Raises:
            UnknownEntry: `key` is not the key of an entry.
            InvalidValue: `since` or `until` is not a point of history, or a number is negative.
        """
        limit, offset = checked_limit(limit), checked_count(offset, "offset")
        most = None if limit is None else offset + limit
        for name, text in (("session_id", session_id), ("actor", actor), ("source", source)):
            checked_text(
                "" if text is None else text, name, SOURCE_HINT if name == "source" else ""
            )
        start = None if since is None else point_of(since, "since")
        end = None if until is None else point_of(until, "until")
        rules = self._rules
        path = None if key is None else path_of(key, rules.allowed, rules.fact_schemas)
        wanted = path and entry_key(path)
        base_key = str if path is None else entry_kind(path[0]).base_key(path, rules)
        sources = None if source is None else self._names_of(source)
        found: list[HistoryEntry] = []
        naming, after = path[-1] if path else "", start if isinstance(start, int) else 0
        for record in self._past.timeline().records(naming, after=after):
            if (
                (session_id is not None and record.session != session_id)
                or (actor is not None and record.actor != actor)
                or not _is_between(record, start, end)
            ):
                continue
            found += [
                each
                for each in entry_changes(record)
                if wanted in {None, each.key, base_key(each.key)}
                and (sources is None or any(shares_turn(each.source, one) for one in sources))
            ]
            if most is not None and len(found) >= most:
                break
        return Changes(found[offset:most])

    def _names_of(self, source: str) -> list[str]:
        """Return a source, the turn of the episode that it names, and the episodes of that turn."""
        turn = self.turn_of(source) or source
        documents = episode_kinds(self._kinds()) if "#" in turn else []
        entries = chain.from_iterable(episode_entries(self._read(name)) for name in documents)
        ids = [key for key, entry in entries if shares_turn(str(entry.get("_source", "")), turn)]
        return [*dict.fromkeys((source, turn, *ids))]

    def turn_of(self, source: str) -> str:
        """Return the turn of an episode, which is given by key or id; "" if it has none and for other sources."""
        name = bare_source(source)
        if not name or (name == source and ("#" in name or "/" in name)):
            return ""
        with suppress(UnknownEntry):
            found = find_entry(("episodes", name), self._kinds(), self._read)
            # Only a removed one is searched in the history.
            return str(found[2].get("_source", "")) if found else self.why(f"episodes/{name}").turn
        return ""

    def why(self, key: str) -> Origin:
        """Return the origin of an entry: the turn, the session, and every change since.

        Raises:
            UnknownEntry: There is no such entry, now or in the kept history.
        """
        rules = self._rules
        path = path_of(key, rules.allowed, rules.fact_schemas)
        kind = entry_kind(path[0])
        # A temporal fact may be named by its singleton key.
        path = kind.resolved(path, self._read, rules, self._past.engine.now())
        named = entry_key(path)
        records = self._past.timeline().records(path[-1])
        base_key = kind.base_key(path, rules)
        found = [
            each
            for record in records
            for each in entry_changes(record)
            if named in {each.key, base_key(each.key)}
        ]
        changes = Changes([each for each in reversed(found) if each.key == named])
        names, usual = kind.places(path, dict.fromkeys([*self._kinds(), *self._past.kinds()]))
        documents = map(self._read, names)
        places = ((document, path_in(kind, document, usual)) for document in documents)
        tables = ((place, document.table(place)) for document, place in places)
        place, now = next((each for each in tables if each[1] is not None), (usual, None))
        entry = (
            dict(now)
            if now is not None
            else next((change.after or change.before for change in reversed(changes)), None)
        )
        if entry is None:
            if found:
                raise UnknownEntry(
                    key, f"No such fact holds now; the last change is of {found[0].key}."
                )
            kept = Retention(self._past).kept_history()
            since = f", which begins with transaction {kept.first}" if kept.is_pruned else ""
            raise UnknownEntry(
                key, f"It is not in the kept history either{since}. The history shows all keys."
            )
        return Origin(
            key=named,
            text=kind.text(entry),
            session=str(entry.get("_created_by", "")) or kind.session(path[-1]),
            turn=str(entry.get("_source", "")),
            is_verified=entry.get("_verified", True) is not False,
            confirmations=count_of(entry.get("_count", entry.get("_turns")), 1),
            origin="hand" if self._is_edited(names, place, entry) else _origin_of(entry, changes),
            changes=changes,
        )

    def _is_edited(self, names: Collection[str], path: Path, entry: Mapping[str, Any]) -> bool:
        """Return whether the content of an entry comes from a hand edit that is not logged yet."""
        engine, user = self._past.engine, self._past.user_id
        for part in engine.kinds(user):
            known = engine.load(user, part) if home_of(part) in names else None
            if known is not None and known.logged is not None:
                old, new = (each.table(path) or {} for each in (known.logged, known.document))
                if entry_data(old) != entry_data(new) == entry_data(entry):
                    return True
        return False

    @reread
    def diff(self, before: Point | None = None, after: Point | None = None) -> Differences:
        """Return the entries that differ between two points of history.

        Args:
            before: A transaction number or a time, as for `as_of`; None is the transaction before the last.
            after: A transaction number or a time; None is now.

        Raises:
            InvalidValue: An argument is not a point of history, or there is no such transaction.
            DocumentError: History does not reach back that far.
        """
        with self._past.engine.reading():
            if before is None:
                before = max(0, self._past.newest() - 1)
            return differences(self._versions(before, after))

    def _versions(
        self, before: Point, after: Point | None
    ) -> Iterator[tuple[str, Document, Document]]:
        """Yield each document's name and its versions at two points of history; None is now."""
        kinds = self._past.kinds()
        texts = self._past.texts(before, kinds, "before")
        later = None if after is None else self._past.texts(after, kinds, "after")
        for kind, text in texts.items():
            if later is None:
                new = self._past.engine.document(self._past.user_id, kind)
            else:
                new = Document.parse(later[kind])
            yield kind, Document.parse(text), new

    @reread
    def diff_text(
        self, before: Point, after: Point | None = None, *, bookkeeping: bool = True
    ) -> str:
        """Return the difference between two points of history as a unified diff of the files, without its last newline.

        With that newline, `patch` and `git apply` accept it, unless `bookkeeping` is False.

        Args:
            before: As for `diff`.
            after: As for `diff`.
            bookkeeping: Whether it includes `_meta`, counters, times and sessions.
        """
        checked_flag(bookkeeping, "bookkeeping")
        parts: list[str] = []
        for kind, *documents in self._versions(before, after):
            # The name of a file that does not exist is the one that programs expect.
            (was, old), (now, new) = (
                (
                    f"{kind}.toml" if document.text else "/dev/null",
                    _lines(document.text if bookkeeping else _without_bookkeeping(document)),
                )
                for document in documents
            )
            parts += difflib.unified_diff(old, new, was, now)
        return "".join(parts).removesuffix("\n")

    @reread
    def documents_at(self, at: Point) -> PastDocuments:
        """Return the documents in their state right after a transaction, or at a time.

        Raises:
            InvalidValue: `at` is not a point of history, or there is no such transaction.
            HistoryPruned: `at` is older than the kept history; the error names the first kept transaction.
            DocumentError: History does not reach back that far.
        """
        seq = self._past.sequence(at)
        point = point_of(at)
        moment = point if isinstance(point, datetime) else self._past.timeline().moment_of(seq)
        kinds = self._past.kinds()
        found = PastDocuments(self._past, seq, kinds, moment)
        found.read(kinds[:2])  # raises here if history does not reach back
        return found


def _origin_of(entry: Mapping[str, Any], changes: Sequence[HistoryEntry]) -> str:
    """Return the source of an entry's content; `changes` are the changes of the entry, oldest first."""
    now = entry_data(entry)
    for change in reversed(changes):
        # A rollback restores the content of another change.
        wrote = now == entry_data(change.after or {}) != entry_data(change.before or {})
        if not wrote or change.type == "rollback":
            continue
        if "_origin" in entry and change.type != "hand":
            break
        if change.type in {"turn", "consolidate"}:
            if change.type == "turn" and change.actor:  # a redacted transaction has neither
                return change.reason or "rule"
            return "rule" if "_verified" in entry else "model"
        return change.actor
    return str(entry.get("_origin", ""))


def entry_changes(record: Record) -> Iterator[HistoryEntry]:
    """Yield the change of each entry by a record."""
    for kind, path, before, after in table_changes(record):
        yield HistoryEntry(
            record.seq,
            record.time,
            record.type,
            record.session,
            record.actor,
            record.reason,
            entry_key(path, kind),
            before,
            after,
            render_path(path) in record.conflicts,
        )


def table_changes(record: Record) -> Iterator[tuple[str, Path, _State, _State]]:
    """Yield each entry that a record changed: its home, its path, and its fields before and after."""
    if record.type == SNAPSHOT:
        return
    homes: _Homes = {}
    for name, states in record.parts().items():
        # A moved table is removed by one change and inserted by another, possibly in another part.
        for parts, found in zip(states, homes.setdefault(home_of(name), ({}, {})), strict=True):
            for part in parts:
                for path, entry in entry_kind(name).tables(part).items():
                    found[path] = {**found.get(path, {}), **entry}
    yield from _changed(homes)


def _changed(homes: _Homes) -> Iterator[tuple[str, Path, _State, _State]]:
    """Yield each entry that differs between two states: its home, its path, and its fields in both."""
    for home, (old, new) in homes.items():
        in_one_layout(entry_kind(home), old, new)
        for path in changed_keys(old, new):
            yield home, path, old.get(path), new.get(path)


class Made(NamedTuple):
    """The one entry that a transaction wrote."""

    key: str
    fields: dict[str, Any]
    is_pending: bool
    """Whether the transaction stored it as a draft, or held it for review."""


def change_made(source: HistorySource, user: str, seq: int) -> Made:
    """Return the one entry that a transaction wrote, as the result of a repeated call."""
    records = Timeline(source, user).records()
    record = next(record for record in records if record.seq == seq)
    # The transaction may also have removed expired entries, so an entry that still exists is preferred.
    # No entry does if the transaction undid the change of a draft, which removes the draft.
    changes = [*table_changes(record)]
    home, path, before, after = next((each for each in changes if each[3] is not None), changes[0])
    fields = after or before or {}
    if not entry_kind(home).is_private:
        return Made(entry_key(path, home), fields, is_pending=False)
    return Made(str(fields.get("key", "")), held_entry(fields) or {}, is_pending=after is not None)


def _lines(text: str) -> list[str]:
    """Return the lines of a text for a unified diff. `splitlines` would split them at other characters, too."""
    *lines, last = text.split("\n")
    ending = [f"{last}\n\\ No newline at end of file\n"] if last else []
    return [*(f"{line}\n" for line in lines), *ending]


def _without_bookkeeping(document: Document) -> str:
    edit = Edit(document)
    edit.delete(("_meta",))
    lines = edit.done().text.split("\n")
    return "\n".join(line for line in lines if _BOOKKEEPING.match(line) is None)


def differences(versions: Iterable[tuple[str, Document, Document]]) -> Differences:
    """Return the entries that differ between two versions of documents; each pair comes with the document's name."""
    homes: _Homes = {}
    for name, *documents in versions:
        for found, document in zip(
            homes.setdefault(home_of(name), ({}, {})), documents, strict=True
        ):
            for path, entry in entry_kind(name).tables(document).items():
                found.setdefault(path, entry)
    return Differences(
        Difference(entry_key(path, home), old, new) for home, path, old, new in _changed(homes)
    )


def _is_between(record: Record, first: int | datetime | None, last: int | datetime | None) -> bool:
    """Return whether a record is between two points; the caller checks `first` if it is a number."""
    when = datetime.fromisoformat(record.time)
    if isinstance(first, datetime) and when < first:
        return False
    if isinstance(last, datetime):
        return when <= last
    return last is None or record.seq <= last
