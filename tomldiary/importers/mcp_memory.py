"""The memory server of the Model Context Protocol: a graph of entities and relations in JSON Lines."""

from __future__ import annotations

from tomldiary.importers.files import json_records, listed
from tomldiary.importers.records import Found, Item
from tomldiary.ingest.source import as_list, as_text

__all__ = ["read"]

_GRAPH = "knowledge-graph"


def read(place: str, user: str) -> Found:
    """Read the graph as items: entities by name, relations by their ends and type."""
    found = Found()
    for record in listed(json_records(place)):
        kind = as_text(record.get("type"))
        if kind == "entity" and as_text(record.get("name")):
            said = as_list(record.get("observations"))
            observations = [each for each in said if isinstance(each, str)]
            found.leave_out("observation that is not text", len(said) - len(observations))
            value = {
                "name": as_text(record.get("name")),
                "entityType": as_text(record.get("entityType")),
                "observations": observations,
            }
            found.records.append(
                Item((user, _GRAPH, "entities"), as_text(record.get("name")), value)
            )
        elif kind == "relation":
            value = {name: as_text(record.get(name)) for name in ("from", "relationType", "to")}
            found.records.append(
                Item((user, _GRAPH, "relations"), " | ".join(value.values()), value)
            )
        else:
            found.leave_out("record that is neither an entity nor a relation")
    return found
