"""mem0: the result of `Memory.get_all` or a platform export, `{"results": [{"id", "memory", …}]}`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.importers.files import json_records, listed
from tomldiary.importers.records import Found, Note
from tomldiary.ingest.source import as_list, as_object, as_text, json_time
from tomldiary.text.visible import escape_for_model

if TYPE_CHECKING:
    from tomldiary.ingest.source import JsonObject

__all__ = ["read"]

_SHOWN = {"id", "memory", "hash", "metadata", "categories", "created_at", "updated_at", "user_id", "role", "score"}  # fmt: skip


def read(place: str, user: str) -> Found:
    """Read the memories of a user, including those without a user."""
    found, records = Found(), json_records(place)
    if len(records) == 1:
        found.leave_out("relation of a graph", len(as_list(as_object(records[0]).get("relations"))))
    for memory in listed(records, "results", "memories"):
        text, owner = as_text(memory.get("memory")), as_text(memory.get("user_id"))
        if not escape_for_model(text):
            found.leave_out("record without a memory")
        elif owner and owner != user:
            found.users.add(owner)
        else:
            labels = _labels(memory)
            metadata = as_object(memory.get("metadata"))
            found.leave_out("field of metadata", len(metadata.keys() - {"category"}))
            found.leave_out("other field", len({key for key, value in memory.items() if value} - _SHOWN))  # fmt: skip
            category = as_text(metadata.get("category")) or next(iter(labels), "")
            created = json_time(memory.get("created_at"))
            found.records.append(Note(as_text(memory.get("id")), text, category, labels, created))
    return found


def _labels(memory: JsonObject) -> tuple[str, ...]:
    named = as_text(as_object(memory.get("metadata")).get("category"))
    listed_too = [as_text(each) for each in as_list(memory.get("categories"))]
    return tuple(dict.fromkeys(each for each in (named, *listed_too) if each))
