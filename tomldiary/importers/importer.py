"""Imports the memory of another program: reads its records, and adds those that are missing.

The methods of the user store records as entries, in one transaction. Existing entries are never changed, so a second
import of the same records adds nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, create_model

from tomldiary.engine.transaction import NotStored
from tomldiary.entries.constraints import Constraint
from tomldiary.entries.kinds import FACTS, ITEMS, entry_key
from tomldiary.errors import DiaryError, InvalidValue, wrong_type
from tomldiary.identifiers.namespaces import document_of
from tomldiary.importers.sources import SOURCES, Block, Episode, Fact, Found, Item, Note, Record
from tomldiary.ingest.source import as_path
from tomldiary.runtime.views import Viewed, drawn
from tomldiary.storage.shared.database import without_secrets
from tomldiary.store.operations import Get, Put
from tomldiary.store.store import ItemStore
from tomldiary.text.similarity import identity
from tomldiary.toml.values import checked_flag, checked_table, checked_text, decode_nulls
from tomldiary.user.user import UserDiary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from tomldiary.diary import Diary

_ACTOR = "import"
_CATEGORY = "biography"
_SHORT_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DIGITS = 12
_NAMED = 5
_EXCERPT = 120  # characters of a record in an error


class _Imported(BaseModel):
    """The model of fact types that are defined only by the source."""

    model_config = ConfigDict(extra="allow")


@dataclass(slots=True, repr=False)
class Import(Viewed):
    """The result of an import, or with `dry_run` the changes that it would make.

    source   : the name of the source
    found    : the number of records in the source, by kind
    added    : the keys of the entries that were missing
    present  : the keys of the entries that existed with the same content
    kept     : the keys of the unchanged entries that existed with other content
    left_out : one phrase with a number for each kind of content that cannot be imported
    is_done  : whether the entries were stored
    """

    source: str
    found: dict[str, int] = field(default_factory=dict[str, int])
    added: list[str] = field(default_factory=list[str])
    present: list[str] = field(default_factory=list[str])
    kept: list[str] = field(default_factory=list[str])
    left_out: list[str] = field(default_factory=list[str])
    is_done: bool = False


def carry_over(
    alice: UserDiary,
    source: str,
    place: str | os.PathLike[str],
    *,
    their_user: str | None = None,
    category: str | None = None,
    singletons: Mapping[str, str] | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], object] | bool | None = None,
) -> Import:
    """Import the memory of a user from another program, in one transaction.

    Args:
        alice: The user.
        source: One of `SOURCES`.
        place: A file, a folder or an address, depending on the source.
        their_user: The user's id in the source, if it differs.
        category: The category of sentences without a category of the preference table; None is "biography".
        singletons: The singleton key by type of facts, for MemState.
        dry_run: Return the result without storing it. Entries that violate a rule raise the same errors.
        progress: Called after each record, for items once after the last, with the number of completed and of all
            records. True shows a progress bar, and False shows none. None shows one in IPython, if tqdm is installed
            and the import takes over a second.

    Raises:
        InvalidValue: `alice` is no user, or the source is unknown, unreadable, or has records of other users only.
            Nothing was changed.
        UnknownCategory, DiaryError: An entry cannot be stored. Nothing was changed.
    """
    checked_flag(dry_run, "dry_run")
    if not isinstance(alice, UserDiary):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise wrong_type(alice, "a user", "alice", "Give diary.user(user_id).")
    if checked_text(source, "source") not in SOURCES:
        raise InvalidValue(f"unknown source. Use one of: {', '.join(SOURCES)}", where=source)
    their_user = checked_text(their_user or "", "their_user")
    singletons = checked_table({} if singletons is None else singletons, "singletons")
    as_path(place, "place")
    place = os.fspath(place)  # not the path itself, which would change the slashes of an address
    found = Found(place, their_user or alice.user_id)
    SOURCES[source](found)
    if found.users and not found.records and not found.documents:
        named = ", ".join(sorted(found.users)[:_NAMED])
        raise InvalidValue(
            f"no records of {found.user!r} were found, but records of {named}. Give the user's id in"
            " the source with --their-user",
            where=without_secrets(place),
        )
    left_out = [f"{phrase}: {count}" for phrase, count in found.left_out.items()]
    result = Import(source, left_out=left_out)
    if found.users:
        result.left_out.append(f"records of other users: {', '.join(sorted(found.users)[:_NAMED])}")
    records = [_renamed(each, their_user, alice.user_id) for each in found.records]
    _register(alice.diary, found.temporal, records, singletons)
    # Before they are compared with what is stored, and before ids are derived from texts.
    records = [_redacted(each, alice.diary) for each in records]
    if found.documents:
        _import_documents(alice, found, result, dry_run=dry_run)
    else:
        with (
            drawn("progress:reporting", progress, "records") as report,
            suppress(NotStored),
            alice.transaction(actor=_ACTOR, reason=f"import from {source}"),
        ):
            _add_missing(_Memory(alice, records, category or _CATEGORY), records, result, report)
            if dry_run:
                raise NotStored
    result.is_done = not dry_run
    return result


def _import_documents(alice: UserDiary, found: Found, result: Import, *, dry_run: bool) -> None:
    data = {"format": "tomldiary", "version": 1, "user": found.user, "documents": found.documents}
    changes = alice.import_preview(data)
    result.found = {"document": len(found.documents)}
    result.added = [change.key for change in changes]
    if changes and not dry_run:
        alice.import_(data, actor=_ACTOR, reason=f"import from {result.source}")


def _register(
    diary: Diary,
    temporal: Mapping[str, tuple[str, ...]],
    records: list[Record],
    singletons: Mapping[str, str],
) -> None:
    """Register models that allow any fields for the types that the application has not registered."""
    names = dict.fromkeys(each.type for each in records if isinstance(each, Fact))
    for name in singletons:
        if names and name not in names:
            raise InvalidValue(
                f"no fact has this type. Use one of: {', '.join(names)}", where=f"singleton {name}"
            )
    for name in names:
        known = diary.fact_schemas.get(name)
        if known is not None and not issubclass(known.model, _Imported):
            continue  # registered by the application, with its rules
        keys = temporal.get(name)
        single = (singletons[name],) if name in singletons else keys
        required: dict[str, Any] = dict.fromkeys(single or (), (Any, ...))
        model = create_model("Imported", __base__=_Imported, **required)
        constraint = Constraint(
            single, temporal=keys is not None, normalise=keys[-1:] if keys else ()
        )
        diary.register_schema(name, model, constraint)


def _add_missing(
    memory: _Memory,
    records: list[Record],
    result: Import,
    report: Callable[[int, int], object] | None,
) -> None:
    """Add the records that are missing, and sort the keys of all into missing, present and different."""
    result.found = dict(Counter(type(each).__name__.lower() for each in records))
    for done, record in enumerate(records, 1):
        try:
            key, is_same = memory.find_or_add(record)
        except DiaryError as error:
            error.add_note(f"The record begins with {str(record)[:_EXCERPT]}")
            raise
        keys = result.added if is_same is None else result.present if is_same else result.kept
        keys.append(key)
        if report is not None and not isinstance(record, Item):
            report(done, len(records))
    memory.put_items()
    if report is not None and "item" in result.found:
        report(len(records), len(records))


class _Memory:
    """The memory of a user, and the added records, by their identifying content."""

    def __init__(self, alice: UserDiary, records: list[Record], category: str) -> None:
        self._alice = alice
        self._schemas = alice.diary.fact_schemas
        self._category = category
        self._store = ItemStore(alice.diary, user_label=self._owner)
        # Redacted like the records, because it may have been stored before the diary redacted.
        redacted = alice.diary.redacted
        notes = redacted(
            {
                f"{category}/{key}": item.text
                for category, entries in alice.preferences().items()
                for key, item in entries.items()
            }
        )
        self._notes = set(notes)
        self._texts = {identity(text): key for key, text in notes.items()}
        self._blocks = redacted({name: each.text for name, each in alice.blocks.all().items()})
        self._facts: dict[tuple[str, str], list[tuple[str, datetime | None]]] = {}
        self._singletons: dict[tuple[str, datetime | None], str] = {}
        for fact in alice.facts.query(include_ended=True):
            data = decode_nulls(self._schemas[fact.type].data(fact.data))
            with suppress(InvalidValue):  # redacted, it does not fit its type
                data = alice.diary.redacted_entry((FACTS.name, fact.type, ""), data)
            same = self._facts.setdefault((fact.type, _canonical(data)), [])
            same.append((fact.id, fact.valid_from))
            with suppress(InvalidValue):  # a hand edit made the key invalid
                if place := self._singleton(fact.type, data, fact.valid_from):
                    self._singletons[place] = fact.id
        asked = [each for each in records if isinstance(each, Item)]
        stored: list[Any] = self._store.run(
            [Get(each.namespace, each.key, refresh=False) for each in asked]
        )
        self._items: dict[tuple[tuple[str, ...], str], Mapping[str, Any]] = {
            (each.namespace, each.key): redacted(item.value)
            for each, item in zip(asked, stored, strict=True)
            if item is not None
        }
        self._episodes: dict[tuple[str, str, str], list[str]] = {}
        for each in alice.episodes.list():
            said = (each.session_id, *redacted((each.input, each.output)))
            self._episodes.setdefault(said, []).append(each.id)
        self._named: dict[str, str] = {}
        """The keys of episodes by their ids in the source."""
        self.missing_items: list[Item] = []

    def _owner(self, *_: object) -> str:
        return self._alice.user_id

    def find_or_add(self, record: Record) -> tuple[str, bool | None]:
        """Return the key of a record, and whether its entry had the same content; None if it is missing and added."""
        if isinstance(record, Note):
            return self._note(record)
        if isinstance(record, Block):
            return self._block(record)
        if isinstance(record, Fact):
            return self._fact(record)
        if isinstance(record, Episode):
            return self._episode(record)
        return self._item(record)

    def put_items(self) -> None:
        """Put the missing items in one batch."""
        self._store.run(
            [
                Put(each.namespace, each.key, dict(each.value), ttl=each.ttl, times=each.times)
                for each in self.missing_items
            ]
        )

    def _note(self, note: Note) -> tuple[str, bool | None]:
        alike = self._texts.get(identity(note.text))
        if alike is not None:
            return alike, True
        allowed = self._alice.diary.allowed
        category = next((each for each in note.labels if each in allowed), self._category)
        id_ = _note_id(note)
        self._texts[identity(note.text)] = key = f"{category}/{id_}"
        if key in self._notes:
            return key, False
        self._notes.add(key)
        self._alice.upsert_preference(
            category, note.text, id=id_, contexts=note.labels, now=note.when
        )
        return key, None

    def _block(self, block: Block) -> tuple[str, bool | None]:
        key, stored = f"blocks/{block.name}", self._blocks.get(block.name)
        if stored is not None:
            return key, stored == block.text
        self._blocks[block.name] = block.text
        self._alice.blocks.set(block.name, block.text)
        return key, None

    def _fact(self, fact: Fact) -> tuple[str, bool | None]:
        data = self._as_stored(fact)
        same = self._facts.setdefault((fact.type, _canonical(data)), [])
        for id_, start in same:
            if fact.valid_from is None or start == fact.valid_from:
                return f"facts/{id_}", True
        place = self._singleton(fact.type, data, fact.valid_from)
        if place in self._singletons:
            return f"facts/{self._singletons[place]}", False
        is_temporal = self._schemas[fact.type].constraint.temporal
        id_ = self._alice.facts.commit(
            fact.type,
            fact.data,
            session_id=fact.session,
            source=self._named.get(fact.source, fact.source),
            confidence=fact.confidence,
            force=True,  # the source has already resolved conflicts
            now=fact.when,
            valid_from=fact.valid_from if is_temporal else None,
            valid_to=fact.valid_to if is_temporal else None,
        )
        same.append((id_, fact.valid_from))
        if place is not None:
            self._singletons[place] = id_
        return f"facts/{id_}", None

    def _episode(self, episode: Episode) -> tuple[str, bool | None]:
        said = (episode.session, episode.input, episode.output)
        ids = self._episodes.get(said)
        is_known = bool(ids)
        if ids:
            id_ = ids.pop(0)
        else:
            id_ = self._alice.episodes.add(
                episode.input, episode.output, session_id=episode.session, now=episode.when
            )
        if episode.id:
            self._named[episode.id] = f"episodes/{id_}"
        return f"episodes/{id_}", True if is_known else None

    def _as_stored(self, fact: Fact) -> Mapping[str, Any]:
        """Return the fields of a fact as its type stores them; as they are if they do not fit it."""
        schema, path = self._schemas.get(fact.type), (FACTS.name, fact.type, "")
        with suppress(InvalidValue):
            data = fact.data if schema is None else decode_nulls(schema.checked_fields(fact.data))
            return self._alice.diary.redacted_entry(path, data)
        return fact.data

    def _singleton(
        self, name: str, data: Mapping[str, Any], start: datetime | None
    ) -> tuple[str, datetime | None] | None:
        """Return the unique singleton key of a fact, with the start for a temporal type; None without such a key."""
        schema = self._schemas.get(name)
        single = None if schema is None else schema.singleton(data)
        if schema is None or single is None or (schema.constraint.temporal and start is None):
            return None
        return f"{name}/{single}", start if schema.constraint.temporal else None

    def _item(self, item: Item) -> tuple[str, bool | None]:
        key = entry_key((ITEMS.name, item.key), document_of(self._alice.user_id, item.namespace))
        stored = self._items.get((item.namespace, item.key))
        if stored is not None:
            return key, stored == item.value
        self._items[item.namespace, item.key] = item.value
        self.missing_items.append(item)
        return key, None


def _renamed(record: Record, old: str | None, new: str) -> Record:
    """Return a record with the user's id in its namespace."""
    if not isinstance(record, Item):
        return record
    return replace(
        record, namespace=tuple(new if label == old else label for label in record.namespace)
    )


def _redacted(record: Record, diary: Diary) -> Record:
    """Return a record with its texts redacted as for storage, apart from a fact, whose type decides what its key is."""
    if isinstance(record, Fact):
        return record
    if isinstance(record, Note | Block):
        return replace(record, text=diary.redacted(record.text))
    if isinstance(record, Episode):
        said, answer = diary.redacted((record.input, record.output))
        return replace(record, input=said, output=answer)
    return replace(record, value=diary.redacted(record.value))


def _note_id(note: Note) -> str:
    """Return the entry id of a note, which is the same in each import."""
    wanted = f"imported-{note.id}"
    if note.id and _SHORT_ID.fullmatch(wanted):
        return wanted
    return f"imported-{_short(note.id or note.text)}"


def _canonical(data: Mapping[str, Any]) -> str:
    return json.dumps(data, sort_keys=True, default=str)


def _short(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
