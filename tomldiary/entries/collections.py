"""Typed entries as plain values by collection and key, for stores of other frameworks.

A collection is `("preferences", category)`, `("conversations",)`, `("facts", type)`, `("blocks",)` or
`("episodes",)`. A value is an entry without the fields that begin with an underscore, which the diary
keeps for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from tomldiary.entries.blocks import Blocks
from tomldiary.entries.constraints import toml_word
from tomldiary.entries.conversations import Conversations
from tomldiary.entries.episodes import episode_entries, episode_kinds, homes_of, new_episode
from tomldiary.entries.fact_rules import FactRules, Provenance
from tomldiary.entries.facts import facts_document, same_data
from tomldiary.entries.preferences import Preferences, entry_to_item
from tomldiary.entries.schema import item_type
from tomldiary.errors import InvalidValue
from tomldiary.toml.guards import MAX_DEPTH
from tomldiary.toml.values import NULL_FIELD, decode_nulls, encode_nulls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Self

    from tomldiary.diary import Diary
    from tomldiary.engine.engine import Transaction
    from tomldiary.toml.document import Document, Overlay

__all__ = [
    "Change",
    "Collection",
    "TypedEntries",
    "checked_value",
    "collections",
    "entry_times",
    "entry_value",
]

Collection = tuple[str, ...]
Change = tuple[Collection, str, "dict[str, Any] | None"]
"""Which collection and key, and the new value; None removes the entry."""

_UNKNOWN = datetime.fromtimestamp(0, UTC)
_TEXTS = {
    "preferences": ("text",),
    "conversations": ("summary",),
    "blocks": ("text",),
    "episodes": ("input", "output"),
}
_LABELS = {"preferences": "contexts", "conversations": "keywords"}


def collections(diary: Diary) -> list[Collection]:
    """Return all collections that a diary has: one for each category and each registered type of facts."""
    return [
        *(("preferences", category) for category in diary.allowed),
        ("conversations",),
        *(("facts", name) for name in diary.fact_schemas),
        ("blocks",),
        ("episodes",),
    ]


class TypedEntries:
    """The typed entries of one user: as they are stored, or within a transaction that changes them.

    Args:
        diary: Its rules hold: categories, limits, no text twice.
        tables: Returns the document of a kind, or an edit of it; asked once for each kind.
        kinds: Returns the names of the user's documents.
        tx: The transaction, if there is one.
        session: The session that writes.
    """

    def __init__(
        self,
        diary: Diary,
        tables: Callable[[str], Document | Overlay],
        kinds: Callable[[], Iterable[str]],
        tx: Transaction | None = None,
        session: str = "",
    ) -> None:
        self._diary = diary
        self._tables = tables
        self._kinds = kinds
        self._tx = tx
        self._session = session

    @classmethod
    def stored(cls, diary: Diary, user: str) -> Self:
        """Return a user's entries for reading; a document stays as it was when it was first read."""

        def read(kind: str) -> Document:
            if kind == "facts":
                return facts_document(diary.engine, user, diary.fact_schemas)
            return diary.engine.document(user, kind)

        return cls(diary, read, lambda: diary.engine.kinds(user))

    @classmethod
    def within(cls, diary: Diary, tx: Transaction, session: str = "") -> Self:
        """Return the entries of a transaction's user, for reading and writing."""
        return cls(diary, tx.edit, lambda: {*tx.engine.kinds(tx.user), *tx.changed()}, tx, session)

    # Reading

    def get(self, collection: Collection, key: str) -> Mapping[str, Any] | None:
        """Return an entry as it is in the file, or None; a temporal fact also by its singleton key."""
        match collection:
            case ("conversations",):
                return self._conversations.find(key)
            case ("facts", name):
                fact = self._facts.find(f"{name}/{key}")
                return None if fact is None else fact[1].entry
            case ("blocks",):
                return self._blocks.find(key)
            case ("episodes",):
                found = (document.table(("episodes", key)) for document in self._episodes(key))
                return next((entry for entry in found if entry is not None), None)
            case _:
                located = self._preferences.find(collection[1], key)
                return None if located is None else located[1]

    def entries(self, collection: Collection) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the entries of a collection by key, in the order of the file.

        Of temporal facts those that hold now.
        """
        match collection:
            case ("conversations",):
                yield from self._conversations.entries()
            case ("facts", name):
                now = datetime.now(UTC)
                yield from (
                    (held.key, held.entry) for held in self._facts.held(name) if held.holds(now)
                )
            case ("blocks",):
                yield from self._blocks.entries()
            case ("episodes",):
                for document in self._episodes():
                    yield from episode_entries(document)
            case _:
                yield from self._preferences.entries(collection[1])

    def _episodes(self, key: str | None = None) -> Iterator[Document | Overlay]:
        """Yield the documents with episodes, oldest first; with a key those that can hold it."""
        kinds = episode_kinds(self._kinds())
        for kind in kinds if key is None else homes_of(kinds, key):
            if kind not in self._seen:
                self._seen[kind] = self._tables(kind)
            yield self._seen[kind]

    @cached_property
    def _seen(self) -> dict[str, Document | Overlay]:
        return {}

    @cached_property
    def _facts(self) -> FactRules:
        return FactRules(self._tables("facts"), self._diary.fact_schemas)

    @cached_property
    def _blocks(self) -> Blocks:
        return Blocks(self._tables("blocks"))

    @cached_property
    def _preferences(self) -> Preferences:
        return Preferences(self._tables("preferences"), self._diary.turn_rules.preferences)

    @cached_property
    def _conversations(self) -> Conversations:
        return Conversations(self._tables("conversations"), self._diary.max_conversations)

    # Writing

    def apply(self, changes: Iterable[Change], now: str) -> None:
        """Apply checked changes: what leaves first, what is new last, so that a full category has room.

        Raises:
            UnknownCategory, LimitReached, ImmutableEntry, InvalidValue: The diary's rules say no; nothing may be committed.
        """
        late: list[tuple[Collection, str, dict[str, Any]]] = []
        for collection, key, value in changes:
            if value is None:
                self.delete(collection, key)
            else:
                late.append((collection, key, value))
        late.sort(key=lambda change: self.get(change[0], change[1]) is None)
        for collection, key, value in late:
            self.put(collection, key, value, now)

    def delete(self, collection: Collection, key: str) -> None:
        """Remove an entry if there is one."""
        if self.get(collection, key) is None:
            return
        match collection:
            case ("conversations",):
                self._conversations.delete(key)
            case ("facts", name):
                self._facts.delete(f"{name}/{key}")
            case ("blocks",):
                self._blocks.delete(key)
            case ("episodes",):
                for document in self._episodes(key):
                    cast("Overlay", document).delete(("episodes", key))
            case _:
                self._preferences.forget(collection[1], key)

    def put(self, collection: Collection, key: str, value: Mapping[str, Any], now: str) -> None:
        """Make an entry hold exactly a checked value; its counter and the date it was created stay.

        Raises:
            UnknownCategory, LimitReached, ImmutableEntry, InvalidValue: The diary's rules say no; nothing may be committed.
        """
        match collection:
            case ("conversations",):
                self._put_conversation(key, value, now)
            case ("facts", name):
                self._put_fact(name, key, value, now)
            case ("blocks",):
                self._put_block(key, value, now)
            case ("episodes",):
                when = datetime.fromisoformat(now)
                assert self._tx is not None  # noqa: S101 - only entries within one are written
                new_episode(self._tx, encode_nulls(value), when, self._session, key)
            case _:
                self._put_preference(collection[1], key, value, now)

    def _put_fact(self, name: str, key: str, value: Mapping[str, Any], now: str) -> None:
        schema = self._facts.schema(name)
        schema.check_fields(list(value))
        data = schema.checked(value)
        single = schema.singleton(value)
        if schema.constraint.temporal and key != single:
            known = self._facts.entry(name, key)
            if known is not None and same_data(known, data):
                return
            if known is not None or single is not None:
                raise InvalidValue(
                    "what held is not overwritten. Put what holds from now on to the singleton key, or"
                    " if there is none, to a new key.",
                    where=f"{name}.{key}",
                )
        self._facts.commit(schema, data, Provenance(now, self._session), key=key)

    def _put_block(self, key: str, value: Mapping[str, Any], now: str) -> None:
        book = self._blocks
        book.put(key, value["text"], now=now, session=self._session)
        entry = book.find(key)
        assert entry is not None  # noqa: S101 - it was just stored
        fresh = _entry(dict(value), entry, now)
        if entry_value(fresh) != entry_value(entry):
            self._edit("blocks").put(("blocks", key), fresh)

    def _put_preference(self, category: str, key: str, value: Mapping[str, Any], now: str) -> None:
        book = self._preferences
        where = f"{category}.{key}"
        outcome = book.upsert(
            category, key, value["text"], (), now=now, session=self._session, count_up=False
        )
        if outcome.action == "merged":
            raise InvalidValue(
                f"{category}/{outcome.id} holds the same text. Put to that key, or change the text.",
                where=where,
            )
        if outcome.id != key:
            raise InvalidValue(
                "ids of the form pref001 are given out by the diary, and this one may have belonged"
                " to something forgotten. Choose another key.",
                where=where,
            )
        found = book.find(category, key)
        assert found is not None  # noqa: S101 - it was just stored
        path, entry = found
        data = {**value, "text": entry["text"]}
        try:
            entry_to_item(data, item_type(self._diary.pref_table_cls, category))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, (where, *first["loc"])))
            raise InvalidValue(f"{first['msg']}.", where=place) from None
        self._edit("preferences").put(
            path, _entry(data, entry, now) | {"_updated_by": self._session}
        )

    def _put_conversation(self, key: str, value: Mapping[str, Any], now: str) -> None:
        book = self._conversations
        book.ensure(key, now=now)
        book.set_summary(key, value["summary"], None, now=now)
        entry = book.find(key)
        assert entry is not None  # noqa: S101 - it was just stored
        data = {**value, "summary": entry["summary"]}
        self._edit("conversations").put(("conversations", key), _entry(data, entry, now))

    def _edit(self, kind: str) -> Overlay:
        return cast("Overlay", self._tables(kind))


def entry_value(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry's data as a value of the caller's own."""
    return {
        key: _copied(value) for key, value in decode_nulls(entry).items() if not key.startswith("_")
    }


def entry_times(entry: Mapping[str, Any]) -> tuple[datetime, datetime]:
    """Return when an entry was created and last changed, in UTC; 1970 if nothing in it says so."""
    created, updated = _moment(entry.get("_created")), _moment(entry.get("_updated"))
    return created or updated or _UNKNOWN, updated or created or _UNKNOWN


def _moment(written: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(written))
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def checked_value(collection: Collection, key: str, value: Any) -> dict[str, Any]:
    """Return a copy of a value that fits its collection.

    Raises:
        InvalidValue: The text is missing or no text, the labels are no list of text, or a field belongs
            to the diary; names the field in TOML words.
    """
    where = f"{collection[-1]}.{key}"
    if not isinstance(value, Mapping):
        raise InvalidValue(f"expected a table, found {toml_word(value)}.", where=where)
    copied: dict[str, Any] = _copied(value, where)
    for name in copied:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise InvalidValue(f"expected text as a key, found {toml_word(name)}.", where=where)
        if name.startswith("_"):
            raise InvalidValue(
                "fields that begin with an underscore belong to the diary. Leave it out.",
                where=f"{where}.{name}",
            )
    for text in _TEXTS.get(collection[0], ()):
        _check_text(copied.get(text), f"{where}.{text}")
    labels = _LABELS.get(collection[0])
    if labels is None:
        return copied
    found = copied.setdefault(labels, [])
    if not isinstance(found, list):
        raise InvalidValue(
            f"expected a list of text, found {toml_word(found)}.", where=f"{where}.{labels}"
        )
    for number, label in enumerate(cast("Sequence[Any]", found)):
        _check_text(label, f"{where}.{labels}.{number}")
    return copied


def _check_text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise InvalidValue(f"expected text, found {toml_word(value)}.", where=where)


def _entry(data: dict[str, Any], old: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Return an entry with new data and the managed fields of the old one."""
    kept = {key: item for key, item in old.items() if key.startswith("_") and key != NULL_FIELD}
    kept["_updated"] = max(now, str(old.get("_updated", "")))
    return encode_nulls({**data, **kept})


def _copied(value: Any, where: str = "", depth: int = 0) -> Any:
    """Copy tables and lists, and take text and numbers out of their subclasses: files have only these."""
    if depth > MAX_DEPTH:  # also where a value contains itself
        raise InvalidValue(f"nested deeper than {MAX_DEPTH}. Flatten it.", where=where)
    if isinstance(value, Mapping):
        table = cast("Mapping[Any, Any]", value)
        return {key: _copied(item, where, depth + 1) for key, item in table.items()}
    if isinstance(value, list | tuple):
        return [_copied(item, where, depth + 1) for item in cast("Sequence[Any]", value)]
    if isinstance(value, str):
        return str.__str__(value)
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value
