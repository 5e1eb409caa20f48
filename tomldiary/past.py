"""Looking back and going back: what changed, why, how it was, and undoing it."""

from __future__ import annotations

import difflib
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from tomldiary.episodes import homes_of
from tomldiary.errors import Conflict, DiaryError, DocumentError, UnknownEntry
from tomldiary.fact_rules import FactRules
from tomldiary.history import SNAPSHOT
from tomldiary.outside import NOTHING
from tomldiary.preferences import Preferences
from tomldiary.retention import Retention
from tomldiary.timeline import Timeline, pruned
from tomldiary.toml.document import Document
from tomldiary.toml.lexer import split_blocks
from tomldiary.toml.values import render_path, same_value
from tomldiary.transaction import Source
from tomldiary.twins import async_twin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from tomldiary.engine import Engine
    from tomldiary.history import Record
    from tomldiary.toml.document import Path
    from tomldiary.toml.lexer import Block
    from tomldiary.user import UserDiary

__all__ = ["Difference", "HistoryEntry", "Origin", "Past", "Rollback"]

_DEPTH = {"preferences": 3, "conversations": 2, "facts": 3}
_USUAL_DEPTH = 2
_USUAL = ("preferences", "conversations")


@dataclass(frozen=True, slots=True)
class Difference:
    """One entry in two states; None where it did not exist."""

    key: str
    """`category/id` of a preference; elsewhere with the document in front, as in `facts/diet/user`."""
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """What one transaction did to one entry."""

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
    """Whether a person's change displaced ours here; `before` is what we had written."""


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


@dataclass(frozen=True, slots=True)
class Rollback:
    """What going back did, or with `dry_run` would do."""

    undone: list[int]
    """The transactions that were undone, newest first."""
    keys: list[str]
    """The entries that changed."""
    conflicts: list[str] = field(default_factory=list[str])
    """Entries that somebody changed since; overwritten only with `force`."""
    forbidden: list[str] = field(default_factory=list[str])
    """Facts whose type does not let them go back; `force` changes nothing about that."""


class Past(Retention):
    """The part of `UserDiary` that looks back."""

    diary: Any
    user_id: str
    _engine: Engine

    def history(self, key: str | None = None, *, limit: int = 50) -> list[HistoryEntry]:
        """Return what happened to an entry, or to all of them, newest first.

        Args:
            key: `category/id`, `conversations/session`, `facts/type/key`, `blocks/name` or
                `episodes/id`; None for everything.
            limit: Most changes returned.
        """
        wanted = None if key is None else self._path(key)
        found: list[HistoryEntry] = []
        for record in self._timeline().records():
            for entry in _entries(record):
                if wanted is None or entry.key == _key(wanted):
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
        path = self._path(key)
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
            key=_key(path),
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
            old = _entries_of(Document.parse(texts[kind]), kind)
            new = _entries_of(
                self._engine.document(self.user_id, kind)
                if later is None
                else Document.parse(later[kind]),
                kind,
            )
            found += [
                Difference(_key(path), old.get(path), new.get(path))
                for path in dict.fromkeys([*old, *new])
                if not _same(old.get(path), new.get(path))
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
        frozen = _Frozen(lambda kind: self._texts(seq, [kind])[kind], seq, kinds)
        # Says right now if history does not reach back.
        frozen.keep(self._texts(seq, _USUAL))
        return UserDiary(self.diary, self.user_id, engine=cast("Any", frozen))

    aas_of = async_twin(as_of)

    def rollback(
        self,
        steps: int = 1,
        *,
        session_id: str | None = None,
        to: int | datetime | None = None,
        dry_run: bool = False,
        force: bool = False,
        actor: str = "",
        reason: str = "",
    ) -> Rollback:
        """Undo the last `steps` transactions by writing their inverse as a new one.

        History is never erased, so undoing the undo brings the same entries back, byte for byte.

        Args:
            steps: How many transactions to undo.
            session_id: Only those of this session.
            to: Undo everything after this transaction or time, instead of a number of steps.
            dry_run: Only say what would happen.
            force: Overwrite entries that were changed since by others.
            actor: Who did it, for history.
            reason: Why, for history.

        Raises:
            Conflict: There is nothing to undo, an entry was changed since (`keys` lists them), or
                something was forgotten since. Nothing is written.
            HistoryPruned: Some of it is older than the kept history. Nothing is written.
        """
        source = Source("rollback", session_id or "", actor, reason)
        with self._engine.transaction(self.user_id, source) as transaction:
            records = self._undoable(steps, session_id, to)
            if not records:
                raise Conflict("there is no transaction to undo.")
            before, expected = _inverse(records)
            conflicts = [
                _key(path)
                for (kind, path), want in expected.items()
                if not _same(transaction.document(kind).own_values(path), want and want[1])
            ]
            done = Rollback(
                [record.seq for record in records],
                sorted({_key(path) for _, path in before}),
                conflicts,
                self._forbidden(transaction, before),
            )
            if done.forbidden and not dry_run:
                raise Conflict(
                    f"{', '.join(done.forbidden)} cannot go back: the constraint of its type forbids it."
                    " Nothing was undone.",
                    keys=done.forbidden,
                )
            if conflicts and not force and not dry_run:
                raise Conflict(
                    f"{', '.join(conflicts)} changed since. Nothing was undone; force=True overwrites.",
                    keys=conflicts,
                )
            if not dry_run:
                self._restore(transaction, records[-1].seq, before)
            return done

    arollback = async_twin(rollback)

    def _forbidden(self, transaction: Any, before: _States) -> list[str]:
        states = {
            path: state and state[1] for (kind, path), state in before.items() if kind == "facts"
        }
        if not states:
            return []
        rules = FactRules(transaction.document("facts"), self.diary.fact_schemas)
        return [_key(path) for path in rules.forbidden(states)]

    def _kinds(self) -> list[str]:
        """Return all documents there are or were, as far as history is kept."""
        known = self._timeline().kinds()
        known.update(self._engine.backend.kinds(self.user_id))
        return [*_USUAL, *sorted(known.difference(_USUAL))]

    def _restore(self, transaction: Any, oldest: int, before: _States) -> None:
        back: dict[str, dict[Path, tuple[Block, dict[str, Any]]]] = {}
        for (kind, path), state in before.items():
            if state is not None:
                back.setdefault(kind, {})[path] = state
                continue
            edit = transaction.edit(kind)
            book = Preferences(edit, self.diary.turn_rules.preferences)
            if kind == "preferences" and book.has(path):
                book.forget(path[1], path[2])  # which also keeps its id from being given out again
            else:
                edit.delete(path)
        for kind, states in back.items():
            edit = transaction.edit(kind)
            after: Path | None = None
            order: list[Path] = []
            if any(edit.table(path) is None for path in states):  # what is there stays where it is
                text = self._texts(oldest - 1, [kind])[kind]
                order = [
                    block.path for block in split_blocks(text) if block.path and not block.is_array
                ]
            # In their order, so that each finds what it stood behind, or what that stood behind.
            for path in order:
                state = states.pop(path, None)
                if state is not None:
                    edit.restore(path, state[0].text, state[1], after=after)
                if edit.table(path) is not None:
                    after = path
            for path, state in states.items():
                edit.restore(path, state[0].text, state[1])

    def _undoable(
        self, steps: int, session_id: str | None, to: int | datetime | None
    ) -> list[Record]:
        floor = self._sequence(to) if to is not None else None
        found: list[Record] = []
        forgotten = 0
        for record in self._timeline().records():
            if floor is not None and record.seq <= floor:
                break
            if record.type == SNAPSHOT:
                raise pruned(record)
            if record.type == "forget":
                forgotten = forgotten or record.seq
            if session_id is not None and record.session != session_id:
                continue
            if forgotten:
                raise Conflict(
                    f"something was forgotten in transaction {forgotten}, and what was before it cannot be"
                    f" brought back as it was. Undo at most what came after {forgotten}. Nothing was undone."
                )
            found.append(record)
            if floor is None and len(found) >= steps:
                break
        return found

    def _timeline(self) -> Timeline:
        return Timeline(self._engine.backend, self.user_id)

    def _texts(self, at: int | datetime, kinds: Collection[str]) -> dict[str, str]:
        """Return the texts of documents as they were at a point of history."""
        now: dict[str, str] = {}
        for kind in kinds:
            with suppress(DocumentError):  # a file that cannot be read is not needed to look back
                known = self._engine.load(self.user_id, kind)
                if known is not None and (known.is_logged or known.logged is not None):
                    now[kind] = (known.logged or known.document).text
        return self._timeline().texts(kinds, self._sequence(at), now)

    def _sequence(self, at: int | datetime) -> int:
        return self._timeline().sequence_at(at) if isinstance(at, datetime) else at

    def _path(self, key: str) -> Path:
        first, _, rest = key.partition("/")
        if first == "preferences" and "/" in rest:
            category, _, name = rest.partition("/")
            return ("preferences", category, name)
        if first == "conversations" and rest:
            return ("conversations", rest)
        if first in self.diary.allowed and rest:
            return ("preferences", first, rest)
        if first in {"blocks", "episodes"} and rest:
            return (first, rest)
        if first == "facts" and "/" in rest:
            name, _, entry = rest.partition("/")
            return (first, name, entry)
        raise UnknownEntry(
            key,
            "A key is category/id, conversations/session, facts/type/key, blocks/name or episodes/id.",
        )


_State = "tuple[Block, dict[str, Any]] | None"
_States = dict[tuple[str, "Path"], "tuple[Block, dict[str, Any]] | None"]


class _Frozen:
    """Stands in for the engine of a past state: reads what was, writes nothing."""

    def __init__(self, text_of: Callable[[str], str], seq: int, kinds: list[str]) -> None:
        self._text_of = text_of
        self._kinds = kinds
        self._documents: dict[str, Document] = {}
        self.seq = seq
        self.is_frozen = True
        self.lists_documents = True

    def document(self, _user: str, kind: str) -> Document:
        """Return a document as it was."""
        if kind not in self._kinds:
            return NOTHING
        if kind not in self._documents:
            self.keep({kind: self._text_of(kind)})
        return self._documents[kind]

    def keep(self, texts: Mapping[str, str]) -> None:
        """Take in documents as they were."""
        self._documents.update({kind: Document.parse(text) for kind, text in texts.items()})

    def kinds(self, _user: str) -> list[str]:
        """Return the documents there were."""
        return self._kinds

    def load(self, _user: str, _kind: str) -> None:
        """Return None: there is no file behind it."""

    def __getattr__(self, name: str) -> Any:
        raise DiaryError(
            f"this is the memory as it was after transaction {self.seq}; it cannot be changed ({name})."
        )


def _inverse(records: Sequence[Record]) -> tuple[_States, _States]:
    """Return the states to go back to, and the states expected now, of all entries that were changed."""
    before: _States = {}
    expected: _States = {}
    for record in records:  # newest first
        old: _States = {}
        new: _States = {}
        # A table that was moved is taken out by one change and put in by another.
        for change in record.changes:
            for text, states in ((change.old, old), (change.new, new)):
                document = Document.parse(text)
                for path in document.index:
                    if path[0] != "_meta":
                        states[change.doc, path] = _state(document, path)
        for place in dict.fromkeys([*old, *new]):
            was, became = old.get(place), new.get(place)
            if not _same(was and was[1], became and became[1]):
                expected.setdefault(place, became)
                before[place] = was
    return before, expected


def _state(document: Document, path: Path) -> tuple[Block, dict[str, Any]] | None:
    block = document.index.get(path)
    return None if block is None else (block, document.own_values(path) or {})


def _entries(record: Record) -> Iterator[HistoryEntry]:
    """Yield what a record did to each entry."""
    if record.type == SNAPSHOT:
        return
    for kind in dict.fromkeys(change.doc for change in record.changes):
        old: dict[Path, dict[str, Any]] = {}
        new: dict[Path, dict[str, Any]] = {}
        for change in record.changes:
            if change.doc == kind:  # see `_inverse`
                for text, found in ((change.old, old), (change.new, new)):
                    for path, entry in _entries_of(Document.parse(text), kind).items():
                        found[path] = {**found.get(path, {}), **entry}
        for path in dict.fromkeys([*old, *new]):
            if not _same(old.get(path), new.get(path)):
                yield HistoryEntry(
                    record.seq,
                    record.time,
                    record.type,
                    record.session,
                    record.actor,
                    record.reason,
                    _key(path),
                    old.get(path),
                    new.get(path),
                    render_path(path) in record.conflicts,
                )


def _entries_of(document: Document, kind: str) -> dict[Path, dict[str, Any]]:
    """Return the entries of a document, or of a part of one, by path; both layouts count."""
    found: dict[Path, dict[str, Any]] = {}
    root = kind.partition("/")[0]
    depth = _DEPTH.get(root, _USUAL_DEPTH)

    def walk(table: dict[str, Any], path: Path, left: int) -> None:
        for key, value in table.items():
            if isinstance(value, dict):
                inner = cast("dict[str, Any]", value)
                if left == 1:
                    found[(*path, key)] = inner
                else:
                    walk(inner, (*path, key), left - 1)

    for key, value in document.data.items():
        if isinstance(value, dict) and key != "_meta":
            inner = cast("dict[str, Any]", value)
            if key == root:
                walk(inner, (key,), depth - 1)
            elif kind == "preferences":
                walk(inner, (key,), 1)
    return found


def _same(left: dict[str, Any] | None, right: dict[str, Any] | None) -> bool:
    return left is right or (left is not None and right is not None and same_value(left, right))


def _key(path: Path) -> str:
    return "/".join(path[1:] if path[0] == "preferences" else path)
