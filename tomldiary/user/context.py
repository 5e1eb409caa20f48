"""The context that the parts of a `UserDiary` share: the user, the diary's rules and its documents."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar

from tomldiary.engine.rules import key_with_kind
from tomldiary.entries.kinds import KINDS, PREFERENCES, entry_kind, find_entry, path_of
from tomldiary.entries.kinds.items import renewed
from tomldiary.entries.kinds.pending import Why, held_entry
from tomldiary.errors import InvalidValue, SchemaError, missing_attribute, wrong_type
from tomldiary.logging import get_logger, tell
from tomldiary.past.as_of import PastTexts
from tomldiary.past.queries import HistoryQueries, Made, change_made
from tomldiary.runtime.async_bridge import async_twin
from tomldiary.runtime.views import Viewed, pretty
from tomldiary.text.visible import one_line
from tomldiary.toml.values import When, checked_flag, checked_text, moment, start_of, timestamp
from tomldiary.user.pending.held import DRAFTS, Overlay, drafts_of, held_back, hold
from tomldiary.user.recall import recall_indexes

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Coroutine,
        ItemsView,
        Iterable,
        Iterator,
        KeysView,
        Mapping,
        ValuesView,
    )
    from contextlib import AbstractContextManager
    from datetime import datetime

    from tomldiary.diary import Diary
    from tomldiary.engine.engine import Engine
    from tomldiary.engine.transaction import Transaction
    from tomldiary.entries.kind import Until
    from tomldiary.errors import DocumentError, UnknownEntry
    from tomldiary.history.record import Source
    from tomldiary.past.as_of import PastDocuments
    from tomldiary.runtime.views import DictView, ListView
    from tomldiary.toml.document import Document, Path

S = TypeVar("S")
E = TypeVar("E")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
if TYPE_CHECKING:
    MethodAndTwin = tuple[
        Callable[Concatenate[object, P], R],
        Callable[Concatenate[object, P], Coroutine[Any, Any, R]],
    ]
    """A blocking method of any class, and its coroutine twin."""
_logger = get_logger(__name__)
_CHECKED = "table"
"""The key of a document's memo with the version whose preference table was checked."""


class UserContext:
    """One user of a diary, in the current state or at a point of history.

    Args:
        diary: The diary, with its schemas, limits and engine.
        user_id: The user.
        past: The documents of a point of history; None reads the current ones.
    """

    is_draft = False
    """Whether this is the context of a session's drafts."""

    def __init__(self, diary: Diary, user_id: str, past: PastDocuments | None = None) -> None:
        self.diary = diary
        self.user_id = user_id
        self.past = past
        # A past state has a separate index, so that it never displaces the current one.
        self.indexes = diary.indexes if past is None else recall_indexes()

    @property
    def engine(self) -> Engine:
        """The engine that reads and writes the current documents.

        Raises:
            DiaryError: This context is a point of history, which is read-only.
        """
        if self.past is not None:
            raise self.past.refusal()
        return self.diary.engine

    @property
    def history(self) -> PastTexts:
        """The reader of past versions of the documents.

        Raises:
            DiaryError: This context is a point of history.
        """
        return PastTexts(self.engine, self.user_id)

    def queries(self) -> HistoryQueries:
        """Return the queries of the history."""
        return HistoryQueries(self.diary, self.history, self.read, self.kinds)

    def document(self, kind: str) -> Document:
        """Return a document, inside a transaction including its changes."""
        if self.past is not None:
            return self.past.document(kind)
        return self.diary.engine.document(self.user_id, kind)

    def problem(self, kind: str) -> DocumentError | None:
        """Return the error that currently prevents use of a document, or None."""
        known = None if self.past is not None else self.diary.engine.load(self.user_id, kind)
        return None if known is None else known.problem

    def read(self, name: str) -> Document:
        """Return the entries of a kind or a document without the hand edits that its rules forbid."""
        if self.past is not None:
            return self.past.entries(name)
        document = self.diary.engine.readable(self.user_id, name)
        if name == PREFERENCES.name and document.memo.get(_CHECKED) is not document.stamp:
            document.memo[_CHECKED] = document.stamp
            self._check_table(document)
        return document

    def _check_table(self, preferences: Document) -> None:
        """Warn once of preferences that were written with another table, and that nothing reads with this one."""
        diary, other = self.diary, str(preferences.meta.get("schema_name", ""))
        if not other or other in diary.known_tables:
            return
        unlisted = PREFERENCES.unlisted(preferences, diary)
        categories = [path[-1] for path in unlisted if preferences.table(path)]
        if categories:
            diary.known_tables.add(other)
            named = "category" if len(categories) == 1 else "categories"
            told = (
                f"preferences were written with the table {other}. This diary has {diary.schema_name}, which lacks"
                f" the {named} {', '.join(categories)}, so these are not read. Open the diary with"
                f" pref_table_cls={other}."
            )
            tell(_logger, one_line(told))  # a name may contain characters that a terminal obeys

    def part(self, name: str) -> Document:
        """Return one document without the hand edits that its rules forbid."""
        if self.past is not None:
            return self.past.document(name)
        return self.diary.engine.readable_part(self.user_id, name)

    def reading(self) -> AbstractContextManager[None]:
        """Return a context in which this thread reads one state of the user, with as few requests as possible."""
        return self.diary.engine.reading()

    def kinds(self) -> list[str]:
        """Return the names of the user's documents."""
        if self.past is not None:
            return self.past.kinds
        return self.diary.engine.kinds(self.user_id)

    def expected_kinds(self) -> list[str]:
        """Return the names of the user's documents and of those that reads look for, since only files are listed."""
        listed = self.kinds()
        looked_for = (name for kind in KINDS.values() for name in kind.documents(listed))
        return list(dict.fromkeys([*looked_for, *listed]))

    @property
    def epoch(self) -> int:
        """The number of erasures of this user; 0 for a point of history."""
        return 0 if self.past is not None else self.diary.engine.backend.epoch(self.user_id)

    def is_over(self, key: str, entry: Mapping[str, Any]) -> bool:
        """Return whether the lifetime of an entry has ended by its constraint; `key` begins with the kind.

        It ends at a time of the clock, so that no read of the past shows what has expired.
        """
        rules = self.diary.entry_rules
        return rules.has_times and rules.is_over(key, entry, self.moment(None))

    def kept(self, name: str, document: Document) -> Document:
        """Return a document, or all parts of a kind as one, without expired entries."""
        return self.diary.entry_rules.kept(name, document, self.moment(None))

    def unexpired(self, name: str) -> Document:
        """Return the result of `read` without expired entries."""
        return self.kept(name, self.read(name))

    @property
    def until(self) -> Until | None:
        """The function that returns the expiry of an item, which reads can extend; None in the past."""
        if self.past is not None:
            return None
        return self.diary.engine.deadlines(self.user_id).until_moment

    def moment(self, given: When | None) -> datetime:
        """Return a time in UTC; None is now, or the time of the point of history."""
        if given is not None:
            return start_of(given, "valid_at")
        return self.diary.engine.now() if self.past is None else self.past.moment

    def path(self, key: str) -> Path:
        """Return the path of the entry with a key; a singleton key names the temporal fact that holds.

        Raises:
            UnknownEntry: The text is not a key.
            InvalidValue: Two entries have this key.
        """

        def exists(path: Path) -> bool:
            return find_entry(path, self.kinds(), self.read) is not None

        path = path_of(key, self.diary.allowed, self.diary.fact_schemas, exists)
        return entry_kind(path[0]).resolved(path, self.read, self.diary, self.moment(None))

    def session(self, given: str) -> str:
        """Return the session to store: the given one, or that of the open transaction."""
        return session_name(given) or self.engine.session_here(self.user_id)

    def write(
        self,
        change: Callable[[Transaction], R],
        source: Source,
        *,
        ephemeral: bool = False,
        on_repeat: Callable[[int], R] | None = None,
    ) -> R:
        """Commit a change on fresh state; see `Engine.write`.

        A change by an untrusted actor is held for review instead.

        Args:
            change: The function that makes the change.
            source: The origin of the change, for the history record.
            ephemeral: Whether the change becomes a draft of the session.
            on_repeat: See `Engine.write`.

        Raises:
            NestedTransaction: The source has an operation id, but an open transaction can only be repeated as a whole.
            InvalidValue: The change is ephemeral but has no session.
        """
        self.engine.refuse_nested(self.user_id, source.operation)
        if checked_flag(ephemeral, "ephemeral"):
            drafts: str | None = self.session(source.session)
        else:
            joined = None if self.is_draft else self.engine.transaction_of(self.user_id)
            drafts = None if joined is None else joined.drafts
        if drafts is not None:
            context = DraftContext(self.diary, self.user_id, drafts)
            return context.write(change, source, on_repeat=on_repeat)
        origin = source.actor or self.engine.actor_here(self.user_id)
        held = held_back(self.diary, self.user_id, change, source, origin) if origin else None
        if held is not None:
            return self.engine.write(self.user_id, held, source, on_repeat=on_repeat)
        return self._stored(change, source, origin, on_repeat)

    def fingerprinted(self, operation: str, value: T) -> T:
        """Return texts of a request as they are in its fingerprint: redacted if it is stored, against guesses of secrets.

        Names are not, because they are stored as they are, and another name is another request.

        Args:
            operation: The operation id of the request; "" is none.
            value: The texts.
        """
        redactor, outer = self.diary.redactor, self.engine.transaction_of(self.user_id)
        if redactor is None or not (operation or (outer and outer.has_operation)):
            return value
        return redactor.uncounted(value)

    def _stored(
        self,
        change: Callable[[Transaction], R],
        source: Source,
        origin: str,
        on_repeat: Callable[[int], R] | None,
    ) -> R:
        """Commit a change by a trusted actor."""
        return self.engine.write(
            self.user_id, lambda tx: tx.stamped(change, origin), source, on_repeat=on_repeat
        )

    def change_made(self, seq: int) -> Made:
        """Return the one entry that a transaction wrote, as the result of a repeated call."""
        return change_made(self.engine.backend, self.user_id, seq)


def without_twins(names: Iterable[str]) -> list[str]:
    """Return the names that completion shows: those of coroutine twins are omitted."""
    every = {*names}
    return sorted(name for name in every if not (name[0] == "a" and name[1:] in every))


class UserPart:
    """Verbs of one user for one purpose.

    Args:
        context: The user's context.
    """

    def __init__(self, context: UserContext) -> None:
        self._context = context
        self._diary = context.diary

    def __dir__(self) -> list[str]:
        return without_twins(object.__dir__(self))


class Accessor(Viewed, UserPart, ABC, Generic[E]):
    """Verbs of one user for one kind of entries, such as `alice.facts`; a call lists the entries.

    Iteration and `len` are those of the list. `accessor[id]` is an entry by its id, and `id in accessor` says whether
    there is one; both take each form of the id that `get` takes.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._context.user_id!r})"

    _repr_pretty_ = pretty

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_attribute(self, name)

    @abstractmethod
    def __call__(self) -> ListView[E] | DictView[str, E]:
        """Return the entries."""

    @abstractmethod
    def get(self, id: str, /) -> E | None:  # noqa: A002 - the word of the verbs
        """Return one entry, or None."""

    @abstractmethod
    def _unknown(self, id: str) -> UnknownEntry:  # noqa: A002 - as in `get`
        """Return the error for an id without an entry."""

    def __getitem__(self, id: str) -> E:  # noqa: A002 - as in `get`
        """Return one entry.

        Raises:
            UnknownEntry: There is no such entry. A KeyError.
        """
        found = self.get(id)
        if found is None:
            raise self._unknown(id)
        return found

    def __contains__(self, entry: object) -> bool:
        """Return whether there is an entry with an id, or an equal entry."""
        key: Any = getattr(entry, "id", None) if isinstance(entry, Viewed) else entry
        if not isinstance(key, str):
            return False
        try:
            found: Any = self.get(key)
        except (SchemaError, InvalidValue):  # no type of facts has this name, or it is no id
            return False
        return found is not None and (key is entry or found == entry)

    def __len__(self) -> int:
        return len(self())

    def _ipython_key_completions_(self) -> list[str]:
        """Return the ids that IPython completes after `accessor["`."""
        listed: Any = self()
        return [each if isinstance(each, str) else each.id for each in listed]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame of the entries that a call without arguments lists.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return self().to_pandas()


class ListAccessor(Accessor[E]):
    """An accessor whose call returns a list, such as `alice.facts`; iteration yields the entries."""

    @abstractmethod
    def __call__(self) -> ListView[E]:
        """Return the entries."""

    def __getitem__(self, id: str) -> E:  # noqa: A002 - as in `get`
        if isinstance(id, int | slice):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            hint = "A call returns the list with its positions: accessor()[0]."
            raise wrong_type(id, "text", "id", hint)
        return super().__getitem__(id)

    def __iter__(self) -> Iterator[E]:
        return iter(self())


class DictAccessor(Accessor[E]):
    """An accessor whose call returns a dict, such as `alice.blocks`; iteration yields the keys.

    The call reads all entries at once; `dict(accessor)` reads them one after the other.
    """

    @abstractmethod
    def __call__(self) -> DictView[str, E]:
        """Return the entries by key."""

    def __iter__(self) -> Iterator[str]:
        return iter(self())

    def keys(self) -> KeysView[str]:
        """Return the keys of all entries."""
        return self().keys()

    def values(self) -> ValuesView[E]:
        """Return all entries, read at once."""
        return self().values()

    def items(self) -> ItemsView[str, E]:
        """Return the keys and entries, read at once."""
        return self().items()


class DraftContext(UserContext):
    """One user of a diary, including the drafts of one session. Writes become drafts.

    Args:
        diary: The diary, with its schemas, limits and engine.
        user_id: The user.
        session_id: The session.

    Raises:
        InvalidValue: The session is empty.
    """

    is_draft = True

    def __init__(self, diary: Diary, user_id: str, session_id: str) -> None:
        super().__init__(diary, user_id)
        self.session_id = session_of_drafts(session_id)
        self.indexes = recall_indexes()

    def overlay(self) -> Overlay:
        """Return the documents with the drafts in them."""
        drafts = drafts_of(super().document(DRAFTS), self.session_id)
        changes = {
            place: self._lasting(*place, held_entry(entry)) for place, (_, entry) in drafts.items()
        }
        return Overlay(super().part, super().kinds(), changes)

    def _lasting(
        self, document: str, path: Path, entry: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        """Return the fields of a draft; if its lifetime has ended, as if it was promoted now, which begins it again."""
        if entry is None:
            return None
        end, now = moment(entry.get("_expires")), self.moment(None)
        if not self.is_over(key_with_kind(path, document), entry) and (end is None or now < end):
            return entry
        return renewed({**entry, "_updated": timestamp(now)})

    def document(self, kind: str) -> Document:
        """Return a document with the drafts in it."""
        return self.overlay().document(kind)

    def part(self, name: str) -> Document:
        """Return a document with the drafts in it."""
        return self.document(name)

    def read(self, name: str) -> Document:
        """Return the entries of a kind with the drafts among them."""
        return self.overlay().entries(name)

    def kinds(self) -> list[str]:
        """Return the names of the user's documents."""
        return list(self.overlay())

    def session(self, given: str) -> str:
        """Return the session to store."""
        return session_name(given) or self.session_id

    def _stored(
        self,
        change: Callable[[Transaction], R],
        source: Source,
        origin: str,
        on_repeat: Callable[[int], R] | None,
    ) -> R:
        """Store the effects of a change as drafts of the session."""
        expires = timestamp(self.diary.engine.now() + self.diary.draft_lifetime)
        why = Why(DRAFTS, self.session_id, origin, source.reason, expires)
        held = functools.partial(hold, change=change, why=why)
        source = replace(source, is_draft=True)
        return self.engine.write(self.user_id, held, source, on_repeat=on_repeat)


def session_name(given: str | None) -> str:
    """Return the id of a session as plain text; "" for None.

    Raises:
        InvalidValue: The id is not text.
    """
    return "" if given is None else checked_text(given, "session_id")


def session_of_drafts(given: str | None) -> str:
    """Return the id of a session that may have drafts as plain text.

    Raises:
        InvalidValue: The id is empty or not text.
    """
    name = session_name(given)
    if not name:
        raise InvalidValue(
            "a draft belongs to a session. Pass the session's id.", where="session_id"
        )
    return name


def delegated(
    part: Callable[[UserContext], S],
    method: Callable[Concatenate[S, P], R],
    owner: str = "UserDiary",
) -> MethodAndTwin[P, R]:
    """Return a method that calls `method` on a part of the user's diary, and its coroutine twin.

    Args:
        part: The function that makes the part from the user's context; it must be cheap.
        method: A method of the part.
        owner: The class on which callers know the method, which Python's errors about arguments name.
    """
    context_of: Callable[[object], UserContext] = attrgetter("_context")
    method.__qualname__ = f"{owner}.{method.__name__}"

    @functools.wraps(method)
    def call(self: object, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(part(context_of(self)), *args, **kwargs)

    return call, async_twin(call)
