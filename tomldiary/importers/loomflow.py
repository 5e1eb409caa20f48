"""loomflow and jeevesagent: the result of `memory.export()` as JSON, with blocks, episodes and facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.importers.files import json_records
from tomldiary.importers.records import Block, Episode, Fact, Found
from tomldiary.ingest.source import as_list, as_object, as_text, json_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.ingest.source import JsonObject

__all__ = ["read"]

_TRIPLES = "triples"
_PARTS = {"blocks", "episodes", "facts"}
_FIELDS = ("subject", "predicate", "object")


def read(place: str, user: str) -> Found:
    """Read an export; facts become triples with intervals."""
    found = Found(temporal={_TRIPLES: ("subject", "predicate")})
    exported = [as_object(each) for each in json_records(place)]
    for each in exported:
        owner = as_text(each.get("user_id"))
        if owner and owner != user:
            found.users.add(owner)
            continue
        found.leave_out("record that is not an export", not each.keys() & _PARTS)
        for block in _objects(each, "blocks"):
            name = as_text(block.get("name"))
            if name:
                found.records.append(Block(name, as_text(block.get("content"))))
            else:
                found.leave_out("block without a name")
        for turn in _objects(each, "episodes"):
            found.leave_out("tool transcript", bool(turn.get("tool_transcript") or turn.get("tool_calls")))  # fmt: skip
            said, answered = as_text(turn.get("input")), as_text(turn.get("output"))
            session, moment = as_text(turn.get("session_id")), json_time(turn.get("occurred_at"))
            found.records.append(Episode(said, answered, session, moment))
        for fact in map(_triple, _objects(each, "facts")):
            if not fact.data["subject"] or not fact.data["predicate"]:
                found.leave_out("fact without a subject or a predicate")
            elif fact.valid_from and fact.valid_to and fact.valid_to <= fact.valid_from:
                found.leave_out("fact that ends when it begins, or earlier")
            else:
                found.records.append(fact)
        sources = (len(as_list(fact.get("sources"))) for fact in _objects(each, "facts"))
        found.leave_out("source of a fact", sum(sources))
    return found


def _triple(fact: JsonObject) -> Fact:
    given = fact.get("confidence")
    return Fact(
        _TRIPLES,
        {name: as_text(fact.get(name)) for name in _FIELDS},
        confidence=float(min(max(given, 0), 1)) if isinstance(given, int | float) else 1.0,
        when=json_time(fact.get("recorded_at")),
        valid_from=json_time(fact.get("valid_from")),
        valid_to=json_time(fact.get("valid_until")),
    )


def _objects(each: JsonObject, name: str) -> Iterator[JsonObject]:
    return (as_object(one) for one in as_list(each.get(name)))
