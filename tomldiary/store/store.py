"""The items of all users, with four operations: get, put, search and list.

A batch is validated completely before anything is written. Its reads see the state before the batch, and of
several puts to one key the last one is stored. The changes of one user are one transaction. Separate calls
fail separately. Safe for threads and for any number of processes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

from tomldiary.engine.transaction import open_here
from tomldiary.entries.kinds import FACTS, ITEMS, typed_kinds
from tomldiary.entries.kinds.collections import checked_value
from tomldiary.errors import DiaryError, DocumentError, NotSupported, wrong_type
from tomldiary.history.record import Source
from tomldiary.identifiers.namespaces import SHARED, Namespace, document_of
from tomldiary.logging import get_logger
from tomldiary.runtime.callables import refuse_async
from tomldiary.runtime.lru import RecentBySize
from tomldiary.storage.protocol import LocalFolder
from tomldiary.storage.shared.database import DatabaseLost
from tomldiary.store.batch import Batches, PreparedBatch
from tomldiary.store.item import Entry
from tomldiary.store.operations import (
    Get,
    Item,
    List,
    Operation,
    Owners,
    Put,
    Result,
    Search,
    UserLabel,
    checked,
    is_typed,
    shortened,
)
from tomldiary.store.search import Finder, as_item, by_user
from tomldiary.store.snapshot import Snapshot, View, lasting_token
from tomldiary.store.ttl import Sweeper, expired, sweep
from tomldiary.store.typed_entries import TypedEntries
from tomldiary.store.writes import ItemPuts
from tomldiary.toml.values import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tomldiary.diary import Diary
    from tomldiary.engine.transaction import Transaction
    from tomldiary.retrieval.vector_index import Embedding
    from tomldiary.storage.protocol import Token

_logger = get_logger(__name__)
_LISTED_SIZE = 256  # of a listed document in the cache of namespaces, counted as characters
_USER_SIZE = 1024  # the size of a user in this cache
_LISTED = {ITEMS.name, *(kind.name for kind in typed_kinds())}
R = TypeVar("R")
Owned = dict[str, None]
"""A set of users in order."""


class ItemStore(ItemPuts):
    """The items of a diary, and its typed entries as the namespaces `(user, "diary", …)`.

    Args:
        diary: The diary, with its storage and rules.
        user_label: The label that is the owner of a namespace; see `UserLabel`.
        omit_expired: Whether reads omit expired items before they are removed.
        embedding: The embedding of texts; None searches by words.
        few_users: The number of users up to which listings are made of their items in memory. Of more users, names
            are cached.

    Raises:
        InvalidValue: `user_label` has an unsupported type.
        MissingExtra: There is an embedding, and numpy is not installed.
    """

    def __init__(
        self,
        diary: Diary,
        *,
        user_label: UserLabel = 0,
        omit_expired: bool = False,
        embedding: Embedding | None = None,
        few_users: int = 256,
    ) -> None:
        super().__init__(diary, Owners(user_label))
        self._few_users = few_users
        self._omit_expired = omit_expired
        self.sweeper = Sweeper(self.sweep)
        self._finder = Finder(diary, embedding, self._stored)
        self._batches = Batches(self.finish)
        self._listed: RecentBySize[
            str, tuple[list[str], Sequence[Token | None], list[Namespace]]
        ] = RecentBySize(
            diary.engine.cached_characters,
            lambda listed: _USER_SIZE + _LISTED_SIZE * len(listed[0]),
        )
        """The documents of each user with their versions, and the user's namespaces."""
        backend = diary.engine.backend
        self._folder = backend if isinstance(backend, LocalFolder) else None

    # Batches

    def run(
        self, ops: Sequence[Operation], *, session: str = "", signed_in: str | None = None
    ) -> list[Result]:
        """Run operations and return their results in the same order.

        Args:
            ops: The operations.
            session: The session of the puts, for history and erasure; "" if there is none.
            signed_in: The user that a server authenticated. Namespaces of other users are then refused,
                and searches and listings omit them. None allows all.

        Raises:
            InvalidValue: An operation is invalid, or a value breaks the schema. Nothing was written.
            IdentifierError: A namespace belongs to a user who is not signed in. Nothing was read.
            LimitReached: A category is full. Nothing was written.
            BackendError: The storage failed. The changes of some users in the batch may have been written.
        """
        work = self.prepare(ops, signed_in)
        vectors = self._finder.vectors
        texts: Sequence[Sequence[float]] = ()
        queries: Sequence[Sequence[float]] = ()
        if vectors is not None and (work.texts or work.queries):
            count = len(work.all_texts)
            asked, embedding = [*work.all_texts, *work.queries], vectors.embedding
            found = embedding.checked(embedding.embed(asked), len(asked))
            texts, queries = found[:count], found[count:]
        return self.finish(work, texts, queries, session=session)

    async def arun(
        self, user: str, prepare: Callable[[], PreparedBatch], session: str = "", *, puts: bool
    ) -> list[Result]:
        """Run a batch without blocking the event loop, together with the others that wait for the user.

        Args:
            user: The result of `one_owner`.
            prepare: The function that makes the batch; called in a worker thread. It needs no vectors.
            session: As in `run`.
            puts: Whether it has only puts; otherwise it has only gets.

        Raises:
            InvalidValue: An operation is invalid. Nothing of this batch was written.
            BackendError: The storage failed. Nothing of this batch was written.
        """
        return await self._batches.done((user, puts), (session, prepare))

    def cached_item(
        self, namespace: Namespace, key: str, signed_in: str | None = None
    ) -> Item | None:
        """Return an item if one `stat` suffices to validate it; None does not mean that it is missing.

        Raises:
            IdentifierError: The item belongs to a user who is not signed in.
        """
        if type(key) is not str or is_typed(namespace) or self.diary.entry_rules.has_times:
            return None
        catalog = self._catalogs.get(self._owners.owner(namespace, key, signed_in))
        known = catalog.find(namespace, key) if catalog is not None else None
        return None if known is None or known[1].expires is not None else as_item(*known)

    def prepare(self, ops: Sequence[Operation], signed_in: str | None = None) -> PreparedBatch:
        """Validate operations, and determine the texts to embed for them.

        Args:
            ops: The operations.
            signed_in: As in `run`.

        Raises:
            InvalidValue: An operation is not valid, or a value breaks the schema.
            IdentifierError: A namespace belongs to a user who is not signed in.
        """
        work = PreparedBatch([self._checked(op, signed_in) for op in ops], signed_in=signed_in)
        vectors = self._finder.vectors
        if vectors is None:
            return work
        put: dict[str, list[str]] = {}
        for op in work.ops:
            if isinstance(op, Put) and op.value is not None:
                found = vectors.embedding.texts(op.value, op.index)
                put.setdefault(self._owners.owner(op.namespace, op.key), []).extend(found)
        # Read before the namespaces that are searched, so that a later erasure refuses their vectors.
        searched: list[Snapshot] = []
        work.epochs = {user: self.diary.engine.awaited_epoch(user) for user in put}
        work.owners = frozenset(put)
        for op in work.ops:
            if isinstance(op, Search) and op.query and op.query.strip():
                searched += self.below(op.prefix, signed_in, work.epochs)
                work.asked.append(op.query)
        work.asked = list(dict.fromkeys(work.asked))
        redactor = self.diary.redactor
        work.queries = work.asked if redactor is None else redactor.uncounted(work.asked)
        missing = {user: vectors.of(user).missing(mine) for user, mine in put.items()}
        for user, mine in by_user(searched).items():
            known = missing.setdefault(user, [])
            below = vectors.of(user).missing_below(mine)
            known += [text for text in below if text not in known]
        work.texts = {user: mine for user, mine in missing.items() if mine}
        return work

    def finish(
        self,
        work: PreparedBatch,
        texts: Sequence[Sequence[float]] = (),
        queries: Sequence[Sequence[float]] = (),
        *,
        session: str = "",
    ) -> list[Result]:
        """Run a prepared batch; see `run`.

        Args:
            work: The result of `prepare`.
            texts: A vector for each text of the batch.
            queries: A vector for each query of the batch.
            session: As in `run`.

        Raises:
            InvalidValue: The number of vectors or their dimension is wrong.
        """
        puts = [op for op in work.ops if isinstance(op, Put)]
        vectors, given = self._finder.vectors, iter(texts)
        if vectors is not None:
            for user, mine in work.texts.items():
                add = vectors.add if user in work.owners else vectors.add_searched
                add(user, mine, list(islice(given, len(mine))), work.epochs[user])
        results: list[Result] = [None] * len(puts)
        if len(puts) < len(work.ops):
            asked = dict(zip(work.asked, queries, strict=True))
            engine = self.diary.engine
            view = View(
                engine.deadlines,
                self._clock.now,
                omits_expired=self._omit_expired,
                is_shared=len(work.ops) > 1,
                signed_in=work.signed_in,
                is_over=self.diary.entry_rules.ends(engine.now()),
            )
            with engine.reading():
                results = [self._read(view, op, asked) for op in work.ops]
            view.refresh()
        if puts:
            self._write(puts, session)
        return results

    def _checked(self, op: Operation, signed_in: str | None = None) -> Operation:
        redactor = self.diary.redactor
        if redactor is not None and isinstance(op, Put) and op.value is not None:
            op = replace(op, value=redactor.values(op.value))  # before it is embedded
        if isinstance(op, Put) and op.value is not None and is_typed(op.namespace):
            found = self._checked_typed(op)
        else:
            found = checked(op)
        if isinstance(found, List):
            self._owners.check_prefix(found.prefix, signed_in)
        elif isinstance(found, Search):
            if is_typed(found.prefix):
                self._typed.check_prefix(found.prefix)
            self._owners.check_prefix(found.prefix, signed_in)
        else:
            if is_typed(found.namespace):
                self._typed.collection(found.namespace)
            if signed_in is not None:
                self._owners.owner(found.namespace, found.key, signed_in)
        return found

    def _checked_typed(self, op: Put) -> Put:
        """Return a validated put of a typed entry; its value must meet the entry's rules."""
        found = checked(replace(op, value=None))
        assert isinstance(found, Put)  # noqa: S101 - for the type checker
        collection = self._typed.collection(found.namespace)
        if found.ttl is not None:
            raise NotSupported(
                "ttl: typed entries of a diary do not expire. Omit the ttl, or use another namespace."
            )
        return replace(found, value=checked_value(collection, found.key, op.value))

    # Reading

    def _read(self, view: View, op: Operation, vectors: Mapping[str, Sequence[float]]) -> Result:
        if isinstance(op, Get):
            snapshot, entry = self._get(view, op)
            if entry is None or not view.is_shown(snapshot, entry):
                return None
            if op.refresh:
                view.read(snapshot, entry)
            return as_item(snapshot, entry)
        if isinstance(op, Search):
            epochs: dict[str, int] = {}
            # Only for a query, because reading a token costs as much as a search without one.
            below = self.below(op.prefix, view.signed_in, epochs if op.query else None)
            snapshots = [view.pinned(each) for each in below]
            # An earlier operation may have read a state of before the token, so no vector of it is stored.
            epochs.update((now.user, -1) for now in below if view.pinned(now) is not now)
            return self._finder.search(view, op, snapshots, vectors, epochs)
        if isinstance(op, List):
            return self._list(view, op)
        return None

    def _get(self, view: View, op: Get) -> tuple[Snapshot, Entry | None]:
        if is_typed(op.namespace):
            return self._typed.find(op.namespace, op.key)
        user = self._owners.owner(op.namespace, op.key)
        known = view.seen(user, op.namespace)
        if known is None:
            catalog = self.catalog(user)
            # It validates only the item's document, but the others of a batch may need the namespace's other documents.
            found = None if view.is_shared else catalog.find(op.namespace, op.key)
            if found is not None:
                return found
            known = view.pinned(catalog.snapshot(op.namespace))
        return known, known.get(op.key)

    def _list(self, view: View, op: List) -> list[Namespace]:
        owners, typed = self._places(op.prefix, view.signed_in)
        found: list[Namespace] = []
        needed = op.offset + op.limit
        is_sorted = True
        for user, names in self._of_each(
            owners | typed, lambda user: self._names(view, user, op, owners, typed)
        ):
            is_sorted = is_sorted and (not found or not names or found[-1] < names[0])
            found += names
            # Namespaces of the remaining users sort after these.
            if (
                self._owners.are_in_order
                and is_sorted
                and len(found) >= needed > 0
                and found[needed - 1][:1] <= (user,)
            ):
                break
        return (found if is_sorted else sorted(set(found)))[op.offset : needed]

    def _names(
        self, view: View, user: str, op: List, owners: Owned, typed: Owned
    ) -> Sequence[Namespace]:
        """Return the namespaces of a user that show an item and fit an operation, shortened and sorted."""
        names: Sequence[Namespace] = ()
        conditions = op.further_conditions
        is_plain = not (
            view.is_shared or view.omits_entries or self.diary.engine.transaction_of(user)
        )
        # Items in memory answer faster.
        is_one_of_many = len(owners) > self._few_users and user in owners and user in typed
        if is_plain and not op.prefix and is_one_of_many:
            found = [
                each for each in self._names_of(user) if all(one.fits(each) for one in conditions)
            ]
            return found if op.max_depth is None else shortened(found, op.max_depth)
        snapshots = self._typed.snapshots(user, op.prefix) if user in typed else []
        if user in owners and not view.is_shared and not view.omits_entries:
            catalog = self.catalog(user)
            if not snapshots and not conditions:
                return catalog.names(op.prefix, op.max_depth)
            names = catalog.names(op.prefix)
        elif user in owners:
            snapshots += self.catalog(user).snapshots(op.prefix)
        shown = [
            each.namespace
            for each in map(view.pinned, snapshots)
            if not view.omits_entries
            or any(view.is_shown(each, entry) for entry in each.entries.values())
        ]
        found = [
            labels
            for labels in chain(names, shown)
            if all(each.fits(labels) for each in conditions)
        ]
        return shortened(found, op.max_depth)

    def _names_of(self, user: str) -> Sequence[Namespace]:
        """Return all namespaces of a user, cached for many more users than their documents are."""
        engine = self.diary.engine
        kinds = [kind for kind in engine.backend.kinds(user) if kind.partition("/")[0] in _LISTED]
        tokens = engine.tokens(user, kinds)
        seen = self._listed.get(user)
        if seen is not None and seen[:2] == (kinds, tokens):
            return seen[2]
        # Not the names of the catalog, which may be 20 ms older than the versions.
        found = [*self.catalog(user).snapshots(), *self._typed.snapshots(user, ())]
        names = sorted({each.namespace for each in found})
        known = [engine.load(user, kind, token) for kind, token in zip(kinds, tokens, strict=True)]
        # The names of facts depend on the time.
        if FACTS.name not in {kind.partition("/")[0] for kind in kinds} and tokens == [
            each and lasting_token(each) for each in known
        ]:
            self._listed.keep(user, (kinds, tokens, names))
        return names

    # Single items

    def update(
        self,
        namespace: Namespace,
        key: str,
        change: Callable[[dict[str, Any] | None], Mapping[str, Any] | None],
        *,
        index: bool | list[str] | None = None,
        ttl: float | None = None,
        session: str = "",
        signed_in: str | None = None,
    ) -> Item | None:
        """Replace a value atomically by the result of a function, and return the item.

        Args:
            namespace: The namespace of the item.
            key: The key of the item.
            change: The function that returns the new value, or None to remove the item. It gets a copy of the value, or None
                for a missing item. It may be called again. What it writes for this user is part of the transaction.
            index: As in `Put`.
            ttl: As in `Put`.
            session: As in `run`.
            signed_in: As in `run`.

        Raises:
            InvalidValue: `change` is no plain function, or the returned value cannot be stored. Nothing was written.
            IdentifierError: The namespace belongs to a user who is not signed in.
            NestedTransaction: `change` wrote to another user.
        """
        if not callable(change):
            raise wrong_type(
                change, "a function of the old value", "fn", "To store a value, use put."
            )
        refuse_async(change, "fn")
        probe = self._checked(Get(namespace, key), signed_in)
        assert isinstance(probe, Get)  # noqa: S101 - for the type checker
        owner = self._owners.owner(probe.namespace, probe.key)

        def write(tx: Transaction) -> Item | None:
            before = self._entry_within(tx, probe.namespace, probe.key)
            with tx.opened():
                made = change(None if before is None else copied(before.value))
            put = self._checked(Put(probe.namespace, probe.key, made, index, ttl))  # pyright: ignore[reportArgumentType] - checked there
            assert isinstance(put, Put)  # noqa: S101 - for the type checker
            self._apply(tx, [put], session)
            # Read inside the transaction, because another writer may commit before a later read.
            after = self._entry_within(tx, probe.namespace, probe.key)
            if after is None:
                return None
            return Item(probe.namespace, probe.key, copied(after.value), *after.moments)

        source = Source("update", session, actor="store", asked=(probe.namespace, probe.key))
        return self.commit(owner, write, source)

    def _entry_within(self, tx: Transaction, namespace: Namespace, key: str) -> Entry | None:
        """Return an entry with the changes of a transaction, or None."""
        if is_typed(namespace):
            table = TypedEntries(self.diary, tx.user, tx).get(
                self._typed.collection(namespace), key
            )
            return None if table is None else Entry(key, table)
        # Reads do not see writes to a document that a hand edit broke, because these are only in history.
        documents = self.catalog(tx.user).documents(tx, namespace).values()
        tables = [document.table(("items", key)) for document in documents]
        entries = [Entry(key, table) for table in tables if table is not None]
        if not entries:
            return None
        # As `Snapshot.get` does, because a hand edit may have duplicated the key.
        entry = max(reversed(entries), key=lambda each: each.updated)
        deadlines, base = self.diary.engine.deadlines(tx.user), document_of(tx.user, namespace)
        if self._omit_expired and deadlines.is_over(base, entry, self._clock.now()):
            return None
        return entry

    # Expiry

    def sweep(self) -> int:
        """Remove the expired items and return their number.

        Raises:
            DiaryError: The items of a user cannot be read or removed; those of all others were removed, unless the
                database cannot be reached.
        """
        engine, now = self.diary.engine, self._clock.now
        count, errors = 0, list[DiaryError]()
        users = engine.backend.users()

        def is_due(user: str) -> bool | DiaryError:
            try:
                with engine.reading():
                    return bool(expired(self.catalog(user), engine.deadlines(user), now()))
            except DiaryError as error:
                if isinstance(error.__cause__, DatabaseLost):
                    raise  # each other user would wait for the database, too
                return error

        # The removals are in this thread, which may be that of a hook that must not write.
        for user, found in zip(users, engine.of_each(users, is_due), strict=True):
            try:
                if isinstance(found, DiaryError):
                    raise found
                if found:
                    count += sweep(engine, self.catalog(user), engine.deadlines(user), now)
            except DiaryError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return count

    # Owners and prefixes

    def _all_owners(self) -> list[str]:
        engine, folder, joined = self.diary.engine, self._folder, open_here()
        stored = folder.known_users() if folder is not None else engine.backend.users()
        if joined is None or engine.transaction_of(joined.user) is None:
            return stored
        return sorted({*stored, joined.user})  # the transaction may be the first of its user

    def below(
        self, prefix: Namespace, signed_in: str | None = None, tokens: dict[str, int] | None = None
    ) -> list[Snapshot]:
        """Return the current non-empty namespaces that begin with a prefix.

        Args:
            prefix: The first labels of the namespaces.
            signed_in: As in `run`.
            tokens: Gets the fencing token of each user without one, as it is before the user's namespaces are read.
        """
        owners, typed = self._places(prefix, signed_in)

        def snapshots(user: str) -> list[Snapshot]:
            if tokens is not None and user not in tokens:
                tokens[user] = self.diary.engine.epoch_read(user)
            items = self.catalog(user).snapshots(prefix) if user in owners else []
            return items + (self._typed.snapshots(user, prefix) if user in typed else [])

        return [*chain.from_iterable(mine for _, mine in self._of_each(owners | typed, snapshots))]

    def _stored(self, user: str) -> list[Snapshot]:
        """Return all non-empty namespaces of a user."""
        return self.catalog(user).snapshots() + self._typed.snapshots(user, (user,))

    def _places(self, prefix: Namespace, signed_in: str | None) -> tuple[Owned, Owned]:
        """Return the users who may have items, and those who may have typed entries, below a prefix."""
        if is_typed(prefix):
            return {}, dict.fromkeys(prefix[:1])
        owner, known = self._owners.below(prefix), list[str]()
        if not prefix or owner is None:
            known = self._all_owners() if signed_in is None else sorted({signed_in, SHARED})
        owners = dict.fromkeys(known if owner is None else [owner])
        users = [
            user
            for user in prefix or known
            if user != SHARED and (signed_in is None or user == signed_in)
        ]
        return owners, dict.fromkeys(users if len(prefix) <= 1 else ())

    def _of_each(
        self, owners: Owned, look: Callable[[str], Sequence[R]]
    ) -> Iterator[tuple[str, Sequence[R]]]:
        """Yield each owner with its results; a listing of several users omits an unreadable one.

        Raises:
            DocumentError: There is at most one owner besides the shared one, and a document cannot be read.
        """
        is_listing = len(owners) - (SHARED in owners) > 1

        def tried(owner: str) -> Sequence[R] | DocumentError:
            try:
                return look(owner)
            except DocumentError as error:
                return error

        names = sorted(owners)
        for owner, found in zip(names, self.diary.engine.of_each(names, tried), strict=True):
            if not isinstance(found, DocumentError):
                yield owner, found
            elif is_listing:
                _logger.warning("a user is omitted from a listing: %r: %s", owner, found)
            else:
                raise found
