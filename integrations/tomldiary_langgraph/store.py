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
)

from tomldiary.diary import Diary
from tomldiary.engine import Source, Transaction
from tomldiary.errors import NotSupported
from tomldiary.models import timestamp
from tomldiary.typed_entries import TypedEntries, checked_value, entry_times, entry_value
from tomldiary_langgraph.checks import check_op
from tomldiary_langgraph.filters import matches
from tomldiary_langgraph.namespaces import Place, is_label, parse_namespace, places

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from langgraph.store.base import Op, Result

    from tomldiary.typed_entries import Change

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
            check_op(op, self.diary.allowed)
            if isinstance(op, PutOp):
                place = self._place(op.namespace)
                value = op.value
                if value is not None:
                    value = checked_value(place.collection, op.key, value)
                puts[place, op.key] = value
        view = _View(self.diary)
        results = [self._read(view, op) for op in ops]
        self._write(puts)
        return results

    def _place(self, namespace: tuple[str, ...]) -> Place:
        return parse_namespace(namespace, self.diary.allowed)

    # Reading

    def _read(self, view: _View, op: Op) -> Result:
        if isinstance(op, GetOp):
            place = self._place(op.namespace)
            entry = view[place.user].get(place.collection, op.key)
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
                for key, entry in view[place.user].entries(place.collection)
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
            kinds = {place.collection[0] for place in wanted if place.user == user}
            for hit in self.diary.user(user).recall(query, _ALL, kinds=kinds):
                place, key = Place(user, (hit.kind,)), hit.key
                if hit.kind == "preferences":
                    category, _, key = hit.key.partition("/")
                    place = Place(user, (hit.kind, category))
                entry = view[user].get(place.collection, key) if place in wanted else None
                if entry is not None:
                    found.append(_item(SearchItem, place, key, entry, score=hit.score))
        found.sort(key=lambda item: item.score or 0.0, reverse=True)
        return found

    def _namespaces(self, view: _View, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        found = {
            place.namespace[: op.max_depth]
            for place in self._places(())
            if all(_fits(place.namespace, condition) for condition in op.match_conditions or ())
            and any(True for _ in view[place.user].entries(place.collection))
        }
        return sorted(found)[op.offset : op.offset + op.limit]

    # Writing

    def _write(self, puts: Mapping[tuple[Place, str], dict[str, Any] | None]) -> None:
        now = timestamp()
        mine: dict[str, list[Change]] = {}
        for (place, key), value in puts.items():
            mine.setdefault(place.user, []).append((place.collection, key, value))
        engine = self.diary.engine
        if len(mine) > 1:
            # Each user is a transaction of their own: find what fails before the first one.
            for user, changes in mine.items():
                TypedEntries.within(self.diary, Transaction(engine, user)).apply(changes, now)
        for user, changes in mine.items():

            def write(tx: Transaction, changes: list[Change] = changes) -> None:
                TypedEntries.within(self.diary, tx).apply(changes, now)

            engine.write(user, write, Source("put", actor="store"))


class _View(dict[str, TypedEntries]):
    """The entries of each user as they were when a batch first read them."""

    def __init__(self, diary: Diary) -> None:
        super().__init__()
        self._diary = diary

    def __missing__(self, user: str) -> TypedEntries:
        entries = self[user] = TypedEntries.stored(self._diary, user)
        return entries


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
