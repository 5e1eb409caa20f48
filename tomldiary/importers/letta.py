"""Letta: an agent file (`.af`), version 1 with `core_memory` or version 2 with `blocks`, or a list of blocks."""

from __future__ import annotations

from tomldiary.importers.files import json_records, listed
from tomldiary.importers.records import Block, Found
from tomldiary.ingest.source import as_list, as_object, as_text

__all__ = ["read"]


def read(place: str, user: str) -> Found:  # noqa: ARG001 - an agent file has no users
    """Read the memory blocks of an agent."""
    found = Found()
    records = json_records(place)
    for block in listed(records, "blocks", "core_memory"):
        name, text = as_text(block.get("label")), block.get("value")
        if not name or not isinstance(text, str):
            found.leave_out("record that is not a memory block")
            continue
        found.records.append(Block(name, text))
        found.leave_out("description of a block", bool(block.get("description")))
    whole = as_object(records[0]) if len(records) == 1 else {}
    agents = [whole, *map(as_object, as_list(whole.get("agents")))]
    found.leave_out("message", sum(len(as_list(agent.get("messages"))) for agent in agents))
    found.leave_out("tool", len(as_list(whole.get("tools"))))
    found.leave_out("file", len(as_list(whole.get("files"))))
    return found
