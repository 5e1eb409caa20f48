"""A diary as a LangGraph store: what is put here is what `tomldiary` reads, and the other way round."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, cast

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)

from tomldiary.conversations import Conversations
from tomldiary.diary import Diary
from tomldiary.engine import Source, Transaction
from tomldiary.errors import InvalidValue
from tomldiary.models import timestamp
from tomldiary.preferences import Preferences
from tomldiary_langgraph.entries import (
    Change,
    apply_changes,
    checked_value,
    entry_times,
    entry_value,
)
from tomldiary_langgraph.errors import NotSupported
from tomldiary_langgraph.filters import check_filter, matches
from tomldiary_langgraph.namespaces import (
    Place,
    check_prefix,
    is_label,
    parse_namespace,
    places,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from langgraph.store.base import Op, Result

__all__ = ["DiaryStore"]

_ALL = 1_000_000  # hits asked for, because prefix and filter come after the ranking
_ANY = "*"

T = TypeVar("T", bound=Item)


class DiaryStore(BaseStore):
    """The typed entries of a diary behind LangGraph's store interface, sync and async. Thread-safe.

    The namespaces are `(user, "diary", "preferences", category)`, with values such as
    `{"text": "dark roast", "contexts": ["morning"]}`, and `(user, "diary", "conversations")`, with
    `{"summary": "…", "keywords": […]}`. `text` and `summary` are required and stored without white
    space around them, keys of your own are kept, and the diary's rules hold: categories, limits, no
    text twice. Deleting and putting one key is replacing it; the counter of an entry stays.

    A search with `query` is ranked by words, and returns only what matches; scores of different
    users do not compare. `index` has no effect. There are no other namespaces, no TTL and no
    vectors. LangGraph allows no dot in a label, so a user whose id has one, such as an e-mail
    address, is reached through `diary.user(id)` but not through a store, and is not listed.

    A batch is checked as a whole before anything is written. Its reads see what was stored before it;
    of several puts to one key the last one counts; changes of one user are one transaction.

    Args:
        diary: A diary, or the folder of one with the built-in preference table.
        user_label: Which label of a namespace is the user; only 0, the first.

    Raises:
        NotSupported: Another `user_label`, or a put with a TTL.
    """

    def __init__(self, diary: Diary | str | os.PathLike[str], user_label: int = 0) -> None:
        if isinstance(user_label, bool) or user_label != 0:
            raise NotSupported(
                f"user_label={user_label!r}: in the namespaces of this store the user is the first"
                " label, user_label=0."
            )
        self.diary = diary if isinstance(diary, Diary) else Diary(diary)

    def __repr__(self) -> str:
        return f"DiaryStore({self.diary!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave; every write is finished when its call returns, so there is nothing to close."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """See `__exit__`."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations and return their results in the same order.

        Raises:
            ValueError: An operation is not valid, or a value breaks the schema. Nothing was written.
            LimitReached: A category is full. Nothing was written.
            BackendError: The storage failed. Of several users in one batch, some may have been written.
        """
        return self._run(list(ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations like `batch`, without holding the event loop."""
        return await asyncio.to_thread(self._run, list(ops))

    def _run(self, ops: list[Op]) -> list[Result]:
        puts: dict[tuple[Place, str], dict[str, Any] | None] = {}
        for op in ops:
            self._check(op)
            if isinstance(op, PutOp):
                place = self._place(op.namespace)
                value = op.value
                if value is not None:
                    value = checked_value(place, op.key, value)
                puts[place, op.key] = value
        view = _View(self.diary)
        results = [self._read(view, op) for op in ops]
        self._write([(place, key, value) for (place, key), value in puts.items()])
        return results

    def _place(self, namespace: tuple[str, ...]) -> Place:
        return parse_namespace(namespace, self.diary.allowed)

    # Checking

    def _check(self, op: Op) -> None:
        if not isinstance(op, GetOp | SearchOp | PutOp | ListNamespacesOp):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise InvalidValue(f"unknown operation: {type(op).__name__}.")
        _check_sequences(op)
        validate_op_namespace(op)
        if isinstance(op, GetOp | PutOp):
            self._place(op.namespace)
            if not isinstance(op.key, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidValue(f"expected text as a key, found {type(op.key).__name__}.")
            if isinstance(op, PutOp) and op.ttl is not None:
                raise NotSupported("ttl: entries of a diary do not expire. Put without a ttl.")
            return
        _check_count("limit", op.limit)
        _check_count("offset", op.offset)
        if isinstance(op, SearchOp):
            check_prefix(op.namespace_prefix, self.diary.allowed)
            if op.filter is not None:
                check_filter(op.filter)
            if op.query is not None and not isinstance(op.query, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidValue(
                    f"expected text, found {type(op.query).__name__}.", where="query"
                )
            return
        if op.max_depth is not None:
            _check_count("max_depth", op.max_depth, least=1)
        for condition in op.match_conditions or ():
            if condition.match_type not in {"prefix", "suffix"}:
                raise InvalidValue(
                    f"unknown match type {condition.match_type!r}. Use prefix or suffix."
                )

    # Reading

    def _read(self, view: _View, op: Op) -> Result:
        if isinstance(op, GetOp):
            place = self._place(op.namespace)
            entry = view.find(place, op.key)
            return None if entry is None else _item(Item, place, op.key, entry)
        if isinstance(op, SearchOp):
            return self._search(view, op)
        if isinstance(op, ListNamespacesOp):
            return self._namespaces(view, op)
        return None

    def _places(self, prefix: tuple[str, ...]) -> list[Place]:
        users = [prefix[0]] if prefix else filter(is_label, self.diary.users())
        return [
            place
            for user in users
            for place in places(user, self.diary.allowed)
            if place.namespace[: len(prefix)] == tuple(prefix)
        ]

    def _search(self, view: _View, op: SearchOp) -> list[SearchItem]:
        wanted = self._places(op.namespace_prefix)
        if op.query is not None and op.query.strip():
            found = self._ranked(view, wanted, op.query)
        else:
            found = [
                _item(SearchItem, place, key, entry)
                for place in wanted
                for key, entry in view.entries(place)
            ]
            found.sort(key=lambda item: (item.key, item.namespace))
            found.sort(key=lambda item: item.updated_at, reverse=True)
        condition = op.filter
        if condition:
            found = [item for item in found if matches(item.value, condition)]
        return found[op.offset : op.offset + op.limit]

    def _ranked(self, view: _View, wanted: list[Place], query: str) -> list[SearchItem]:
        found: list[SearchItem] = []
        for user in dict.fromkeys(place.user for place in wanted):
            kinds = {place.kind for place in wanted if place.user == user}
            for hit in self.diary.user(user).recall(query, _ALL, kinds=kinds):
                category, key = "", hit.key
                if hit.kind == "preferences":
                    category, _, key = hit.key.partition("/")
                place = Place(user, category)
                entry = view.find(place, key) if place in wanted else None
                if entry is not None:
                    found.append(_item(SearchItem, place, key, entry, score=hit.score))
        found.sort(key=lambda item: item.score or 0.0, reverse=True)
        return found

    def _namespaces(self, view: _View, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        found = {
            place.namespace[: op.max_depth]
            for place in self._places(())
            if all(_fits(place.namespace, condition) for condition in op.match_conditions or ())
            and any(True for _ in view.entries(place))
        }
        return sorted(found)[op.offset : op.offset + op.limit]

    # Writing

    def _write(self, changes: list[Change]) -> None:
        now = timestamp()
        mine: dict[str, list[Change]] = {}
        for change in changes:
            mine.setdefault(change[0].user, []).append(change)
        engine = self.diary.engine
        if len(mine) > 1:
            # Each user is a transaction of their own: find what fails before the first one.
            for user, some in mine.items():
                apply_changes(Transaction(engine, user), self.diary, some, now)
        for user, some in mine.items():

            def write(tx: Transaction, some: list[Change] = some) -> None:
                apply_changes(tx, self.diary, some, now)

            engine.write(user, write, Source("put", actor="store"))


class _View:
    """The documents as they were when a batch began; each is read once."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        self._books: dict[str, Preferences] = {}
        self._conversations: dict[str, Conversations] = {}

    def find(self, place: Place, key: str) -> Mapping[str, Any] | None:
        """Return an entry, or None."""
        if not place.category:
            return self._sessions(place.user).find(key)
        found = self._book(place.user).find(place.category, key)
        return None if found is None else found[1]

    def entries(self, place: Place) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the entries of a place by key."""
        if not place.category:
            return self._sessions(place.user).entries()
        return self._book(place.user).entries(place.category)

    def _book(self, user: str) -> Preferences:
        if user not in self._books:
            document = self._diary.engine.document(user, "preferences")
            self._books[user] = Preferences(document, self._diary.turn_rules.preferences)
        return self._books[user]

    def _sessions(self, user: str) -> Conversations:
        if user not in self._conversations:
            document = self._diary.engine.document(user, "conversations")
            self._conversations[user] = Conversations(document)
        return self._conversations[user]


def _item(kind: type[T], place: Place, key: str, entry: Mapping[str, Any], **more: Any) -> T:
    created, updated = entry_times(entry)
    return kind(
        namespace=place.namespace,
        key=key,
        value=entry_value(entry),
        created_at=created,
        updated_at=updated,
        **more,
    )


def _fits(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    path = cast("tuple[str, ...]", condition.path)
    if len(path) > len(namespace):
        return False
    if condition.match_type == "prefix":
        part = namespace[: len(path)]
    else:
        part = namespace[len(namespace) - len(path) :]
    return all(label in (_ANY, found) for label, found in zip(path, part, strict=True))


def _check_sequences(op: Op) -> None:
    """Refuse a text where labels belong: it would be read letter by letter."""
    if isinstance(op, ListNamespacesOp):
        labels: list[Any] = [condition.path for condition in op.match_conditions or ()]
    else:
        labels = [op.namespace_prefix if isinstance(op, SearchOp) else op.namespace]
    for found in labels:
        if not isinstance(found, tuple | list):
            raise InvalidValue(
                f"expected a tuple of labels, found {type(found).__name__}.", where="namespace"
            )


def _check_count(name: str, value: Any, *, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidValue(f"expected a whole number from {least} on, found {value!r}.", where=name)
