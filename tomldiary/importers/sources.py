"""The sources: for each program, a function that reads a user's memories from its files as plain data.

A memory is read as records of five kinds, and content that is not imported is counted.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tomldiary.entries.constraints import names_type
from tomldiary.errors import InvalidValue
from tomldiary.ingest.messages import message_text, messages_of
from tomldiary.ingest.source import (
    MOST_BYTES,
    JsonObject,
    as_list,
    as_object,
    as_text,
    json_time,
    load,
    read_text,
)
from tomldiary.runtime.installation import optional
from tomldiary.storage.shared.database import without_secrets
from tomldiary.storage.shared.urls import open_url
from tomldiary.text.visible import escape_for_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_SQLITE = b"SQLite format 3\0"
# "*" because older tables lack the columns for a time to live.
_ITEMS = "SELECT prefix, key, value, * FROM store ORDER BY prefix, key"
_GRAPH = "knowledge-graph"
_CHECKPOINTS = {"checkpoint", "checkpoint_write"}
_TRIPLES = "triples"
_LATEST = datetime.max.replace(tzinfo=UTC)
_EXPORTED = {"blocks", "episodes", "facts"}
_FIRESTORE = "firestore://"
_MEM0 = {"id", "memory", "hash", "metadata", "categories", "created_at", "updated_at", "user_id", "role", "attributed_to", "score"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Note:
    """One remembered sentence. It becomes a preference, whose id is derived from `id`."""

    id: str
    text: str
    labels: tuple[str, ...] = ()
    """Its categories in the source, of which the first one that the preference table has becomes that of the entry."""
    when: datetime | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A named text. It becomes a block."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Fact:
    """Typed fields. They become a fact of the type."""

    type: str
    data: Mapping[str, Any]
    session: str = ""
    confidence: float = 1.0
    when: datetime | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    source: str = ""
    """The text in the source that names where it comes from, or the id of an episode in the source."""


@dataclass(frozen=True, slots=True)
class Episode:
    """The verbatim text of one turn. It becomes an episode."""

    input: str
    output: str
    session: str
    when: datetime | None = None
    id: str = ""
    """The id in the source, by which facts name it."""


@dataclass(frozen=True, slots=True)
class Item:
    """A value in a namespace. It becomes an item."""

    namespace: tuple[str, ...]
    key: str
    value: Mapping[str, Any]
    times: tuple[datetime, datetime] | None = None
    """The times of creation and of the last update."""
    ttl: float | None = None
    """The lifetime in minutes after the import and after each read; None is unlimited."""


Record: TypeAlias = Note | Block | Fact | Episode | Item


@dataclass(slots=True)
class Found:
    """The memory of one user in a source.

    place    : the file, folder or address of the source
    user     : the user's id in the source
    records  : the records, in the order of the source
    left_out : the numbers of skipped values, by a phrase such as "embedding"
    users    : the other users with records in the source
    documents: the documents of a diary, which are imported unchanged
    temporal : the types of facts with intervals, and the fields that identify a fact
    """

    place: str
    user: str
    records: list[Record] = field(default_factory=list[Record])
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    users: set[str] = field(default_factory=set[str])
    documents: dict[str, str] = field(default_factory=dict[str, str])
    temporal: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def leave_out(self, phrase: str, count: int = 1) -> None:
        """Count content that is not imported."""
        if count:
            self.left_out[phrase] = self.left_out.get(phrase, 0) + count


# Files


def _json(place: str) -> list[object]:
    """Return the values of a JSON array or of JSON Lines, or a single JSON object as a list."""
    return load(Path(place), known="a file in JSON or JSON Lines", max_bytes=MOST_BYTES)


def _whole(records: list[object]) -> JsonObject:
    """Return the object that is the only record; empty if there are several."""
    return as_object(records[0]) if len(records) == 1 else {}


def _listed(records: list[object], *names: str) -> list[JsonObject]:
    """Return the records as objects, or those in the list under one of `names` in a single object."""
    whole = _whole(records)
    for name in names:
        if name in whole:
            return _objects(whole, name)
    return [as_object(each) for each in records]


def _objects(each: JsonObject, name: str) -> list[JsonObject]:
    return [as_object(one) for one in as_list(each.get(name))]


def _is_sqlite(place: str) -> bool:
    path = Path(place)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _without_views(*request: object) -> int:
    """Refuse what a view reads, for SQLite: a query of a view may never end, and Ctrl-C does not stop it."""
    return sqlite3.SQLITE_DENY if request[-1] is not None else sqlite3.SQLITE_OK


def _rows(place: str, query: str) -> Iterator[sqlite3.Row]:
    """Yield the rows of a SQLite database, which is opened read-only."""
    address = f"{Path(place).resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.row_factory = sqlite3.Row  # a row can be read by position and by column
            database.set_authorizer(_without_views)
            yield from database.execute(query)
    except sqlite3.Error as error:
        raise InvalidValue(
            f"this database does not have the expected tables ({error}). Check --from", where=place
        ) from error


def _stored_json(value: Any, place: str) -> Any:
    """Return a JSON value, parsed if it is text."""
    try:
        return json.loads(value) if isinstance(value, str | bytes) else value
    except (ValueError, RecursionError) as error:
        raise InvalidValue(
            "the value of a record is not JSON. Check --from", where=place
        ) from error


# Sentences


def _mem0(found: Found) -> None:
    """Read the result of `Memory.get_all` or a platform export, `{"results": [{"id", "memory", …}]}`."""
    records = _json(found.place)
    found.leave_out("relation of a graph", len(as_list(_whole(records).get("relations"))))
    for memory in _listed(records, "results", "memories"):
        text, owner = as_text(memory.get("memory")), as_text(memory.get("user_id"))
        if not escape_for_model(text):
            found.leave_out("record without a memory")
        elif owner and owner != found.user:
            found.users.add(owner)
        elif "assistant" in (memory.get("role"), memory.get("attributed_to")):
            # A message has a role; what mem0's model extracts has the field `attributed_to`.
            found.leave_out("statement of the assistant")
        else:
            metadata = as_object(memory.get("metadata"))
            category = as_text(metadata.get("category"))
            found.leave_out("field of metadata", len(metadata) - bool(category))
            filled = {key for key, value in memory.items() if value}
            found.leave_out("other field", len(filled - _MEM0))
            named = (category, *map(as_text, as_list(memory.get("categories"))))
            labels = tuple(dict.fromkeys(each for each in named if each))
            created, id_ = json_time(memory.get("created_at")), as_text(memory.get("id"))
            found.records.append(Note(id_, text, labels, created))


def _chatgpt(found: Found) -> None:
    """Read the memories in `conversations.json` of an export, which are messages to the tool `bio`."""
    for conversation in _listed(_json(found.place)):
        found.leave_out("record that is not a conversation", "mapping" not in conversation)
        turns = 0
        for message in messages_of(conversation):
            if as_text(message.get("recipient")) != "bio":
                turns += 1
            elif text := message_text(message).strip():
                moment = json_time(message.get("create_time"))
                found.records.append(Note(as_text(message.get("id")), text, when=moment))
        found.leave_out('message of a conversation, which "tomldiary ingest" reads', turns)


# Blocks


def _letta(found: Found) -> None:
    """Read an agent file (`.af`), version 1 with `core_memory` or version 2 with `blocks`, or a list of blocks."""
    records = _json(found.place)
    for block in _listed(records, "blocks", "core_memory"):
        name, text = as_text(block.get("label")), block.get("value")
        if not name or not isinstance(text, str):
            found.leave_out("record that is not a memory block")
            continue
        found.records.append(Block(name, text))
        found.leave_out("description of a block", bool(block.get("description")))
    whole = _whole(records)
    for agent in (whole, *_objects(whole, "agents")):
        found.leave_out("message", len(as_list(agent.get("messages"))))
    found.leave_out("tool", len(as_list(whole.get("tools"))))
    found.leave_out("file", len(as_list(whole.get("files"))))


def _markdown(found: Found) -> None:
    """Read `CLAUDE.md`, `MEMORY.md`, or a folder of such files; the name of a block is the path without `.md`."""
    root = Path(found.place)
    if not root.exists():
        raise InvalidValue(
            "there is no such file. Check the path.", where=without_secrets(found.place)
        )
    inside = sorted(path for path in root.rglob("*") if path.suffix.lower() == ".md")
    for path in inside if root.is_dir() else [root]:
        inner = path.relative_to(root) if root.is_dir() else Path(path.name)
        if any(part.startswith(".") for part in inner.parts):
            found.leave_out("hidden file")
        elif path.is_symlink() or not path.is_file():
            found.leave_out("link")
        elif not (text := read_text(path)).strip():
            found.leave_out("empty file")
        else:
            found.records.append(Block(inner.with_suffix("").as_posix(), text))


# Items


def _mcp_memory(found: Found) -> None:
    """Read the graph of the Model Context Protocol's memory server: entities by name, relations by ends and type."""
    for record in _listed(_json(found.place)):
        kind, name = as_text(record.get("type")), as_text(record.get("name"))
        if kind == "entity" and name:
            said = as_list(record.get("observations"))
            texts = [each for each in said if isinstance(each, str)]
            found.leave_out("observation that is not text", len(said) - len(texts))
            entity = as_text(record.get("entityType"))
            value = {"name": name, "entityType": entity, "observations": texts}
            found.records.append(Item((found.user, _GRAPH, "entities"), name, value))
        elif kind == "relation":
            value = {name: as_text(record.get(name)) for name in ("from", "relationType", "to")}
            key = " | ".join(value.values())
            found.records.append(Item((found.user, _GRAPH, "relations"), key, value))
        else:
            found.leave_out("record that is neither an entity nor a relation")


def _langgraph_store(found: Found) -> None:
    """Read `SqliteStore`, `PostgresStore`, or `item.dict()` of items: namespaces with the user as a label."""
    now = datetime.now(UTC)
    for item, expires in _items(found.place):
        if not item.namespace or not item.key or not isinstance(item.value, dict):
            found.leave_out("record that is not an item")
        elif found.user not in item.namespace:
            found.users.add("/".join(item.namespace))
        elif expires is not None and expires <= now:
            found.leave_out("expired item")
        else:
            found.records.append(item)


def _items(place: str) -> Iterator[tuple[Item, datetime | None]]:
    """Yield the items with their expiry times."""
    for row in _item_rows(place):
        labels = (
            as_text(row["prefix"]).split(".") if "prefix" in row else as_list(row.get("namespace"))
        )
        item = Item(
            tuple(map(as_text, labels)),
            as_text(row.get("key")),
            _stored_json(row.get("value"), place),
            _times(row.get("created_at"), row.get("updated_at")),
            row.get("ttl_minutes"),
        )
        yield item, json_time(row.get("expires_at"))


def _item_rows(place: str) -> Iterable[Mapping[str, Any]]:
    if "://" in place:
        return _postgres(place)
    return map(dict, _rows(place, _ITEMS)) if _is_sqlite(place) else _listed(_json(place), "items")


def _times(created: object, updated: object) -> tuple[datetime, datetime] | None:
    first, last = json_time(created), json_time(updated)
    return None if first is None or last is None else (first, max(first, last))


def _postgres(place: str) -> Iterator[dict[str, Any]]:
    psycopg = optional("psycopg", "A PostgreSQL store", "postgres")
    try:
        with psycopg.connect(place, row_factory=psycopg.rows.dict_row) as database:
            yield from database.execute(_ITEMS)
    except psycopg.Error as error:
        raise InvalidValue(
            f"the table of the store cannot be read ({type(error).__name__}). Check the address and the permissions"
        ) from error


# Facts


def _memstate(found: Found) -> None:
    """Read the facts of MemState, which have no users: the database of its `SQLiteStorage`, or JSON."""
    place = found.place
    if _is_sqlite(place):
        stored = _rows(place, "SELECT data FROM facts ORDER BY rowid")
        facts = [as_object(_stored_json(data, place)) for (data,) in stored]
        found.leave_out("record of the log", next(_rows(place, "SELECT count(*) FROM tx_log"))[0])
    else:
        facts = _listed(_json(place), "facts")
    for fact in facts:
        name, payload = as_text(fact.get("type")), as_object(fact.get("payload"))
        if not name or not payload:
            found.leave_out("record that is not a fact")
        elif "checkpoint_ns" in payload or name in _CHECKPOINTS:
            found.leave_out("checkpoint of a LangGraph thread")
        elif not names_type(name):
            found.leave_out(f"fact of {name!r}, which cannot name a type of facts")
        else:
            data = {key: value for key, value in payload.items() if not key.startswith("_")}
            found.leave_out("field that begins with an underscore", len(payload) - len(data))
            session, moment = as_text(fact.get("session_id")), json_time(fact.get("ts"))
            source = as_text(fact.get("source"))
            found.records.append(Fact(name, data, session, when=moment, source=source))


def _loomflow(found: Found) -> None:
    """Read `memory.export()` of loomflow or jeevesagent; facts become triples with intervals."""
    found.temporal[_TRIPLES] = ("subject", "predicate")
    for each in map(as_object, _json(found.place)):
        owner = as_text(each.get("user_id"))
        if owner and owner != found.user:
            found.users.add(owner)
            continue
        found.leave_out("record that is not an export", not each.keys() & _EXPORTED)
        for block in _objects(each, "blocks"):
            name = as_text(block.get("name"))
            if name:
                found.records.append(Block(name, as_text(block.get("content"))))
            else:
                found.leave_out("block without a name")
        sessions: dict[str, str] = {}
        for turn in _objects(each, "episodes"):
            calls = turn.get("tool_transcript") or turn.get("tool_calls")
            found.leave_out("tool transcript", bool(calls))
            said, answered = as_text(turn.get("input")), as_text(turn.get("output"))
            session, moment = as_text(turn.get("session_id")), json_time(turn.get("occurred_at"))
            id_ = as_text(turn.get("id"))
            if said.strip() or answered.strip():
                found.records.append(Episode(said, answered, session, moment, id_))
            else:
                found.leave_out("episode without text")
            if id_:
                sessions[id_] = session
        _triples(found, _objects(each, "facts"), sessions)


def _triples(found: Found, stored: list[JsonObject], sessions: Mapping[str, str]) -> None:
    """Read facts with intervals, without those that change nothing; `sessions` are those of the episodes by id."""
    facts: list[Fact] = []
    for each in stored:
        sources = [as_text(source) for source in as_list(each.get("sources"))]
        source = next((name for name in sources if name in sessions), "")
        fact = replace(_triple(each), source=source, session=sessions.get(source, ""))
        if not fact.data["subject"] or not fact.data["predicate"]:
            found.leave_out("fact without a subject or a predicate")
        elif fact.valid_to and fact.valid_to <= (fact.valid_from or datetime.now(UTC)):
            found.leave_out("fact that ends when it begins, or earlier")
        else:
            facts.append(fact)
        found.leave_out("source of a fact", len(sources) - bool(source))
    until: dict[tuple[str, ...], datetime] = {}
    for fact in _longest_first(facts):
        said, end = tuple(fact.data.values()), fact.valid_to or _LATEST
        if said in until and end <= until[said]:  # it would end the equal fact when it begins
            found.leave_out("fact in the interval of an equal one")
        else:
            found.records.append(fact)
            until[said] = end


def _longest_first(facts: Iterable[Fact]) -> list[Fact]:
    """Return facts by their start, and of one start by their end, the latest first.

    A fact without a start begins at the import, so it is last.
    """
    by_end = sorted(facts, key=lambda fact: fact.valid_to or _LATEST, reverse=True)
    return sorted(by_end, key=lambda fact: fact.valid_from or _LATEST)


def _triple(fact: JsonObject) -> Fact:
    given = fact.get("confidence")
    return Fact(
        _TRIPLES,
        {name: as_text(fact.get(name)) for name in ("subject", "predicate", "object")},
        confidence=float(min(max(given, 0), 1)) if isinstance(given, int | float) else 1.0,
        when=json_time(fact.get("recorded_at")),
        valid_from=json_time(fact.get("valid_from")),
        valid_to=json_time(fact.get("valid_until")),
    )


# Documents


def _firestore(found: Found) -> None:
    """Read the two documents of a user of TOMLDiary 0.9 at `firestore://project/base/path`."""
    if not found.place.startswith(_FIRESTORE):
        raise InvalidValue(
            "expected an address such as firestore://project/base/path",
            where=without_secrets(found.place),
        )
    backend = open_url(found.place)
    for kind in ("preferences", "conversations"):
        stored = backend.read(found.user, kind)
        if stored is not None:
            found.documents[kind] = stored.text
    if not found.documents:
        found.users.update(backend.users())


SOURCES: Final[dict[str, Callable[[Found], None]]] = {
    "mem0": _mem0,
    "letta": _letta,
    "mcp-memory": _mcp_memory,
    "claude-md": _markdown,
    "memory-md": _markdown,
    "langgraph-store": _langgraph_store,
    "langmem": _langgraph_store,
    "memstate": _memstate,
    "loomflow": _loomflow,
    "tomldiary-firestore": _firestore,
    "chatgpt": _chatgpt,
}
"""The function that reads the memory of a user, by the name of the source."""
