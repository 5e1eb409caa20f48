"""MemState: the SQLite database of its `SQLiteStorage`, or facts as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.importers.files import is_sqlite, json_records, listed, parsed, rows
from tomldiary.importers.records import Fact, Found
from tomldiary.ingest.source import as_object, as_text, json_time

if TYPE_CHECKING:
    from tomldiary.ingest.source import JsonObject

__all__ = ["read"]

_CHECKPOINTS = {"checkpoint", "checkpoint_write"}


def read(place: str, user: str) -> Found:  # noqa: ARG001 - facts of MemState have no users
    """Read all facts with their types and sessions."""
    found = Found()
    for fact in _facts(place):
        name, payload = as_text(fact.get("type")), as_object(fact.get("payload"))
        if not name or not payload:
            found.leave_out("record that is not a fact")
        elif "checkpoint_ns" in payload or name in _CHECKPOINTS:
            found.leave_out("checkpoint of a LangGraph thread")
        else:
            data = {key: value for key, value in payload.items() if not key.startswith("_")}
            found.leave_out("field that begins with an underscore", len(payload) - len(data))
            session, moment = as_text(fact.get("session_id")), json_time(fact.get("ts"))
            found.records.append(Fact(name, data, session, when=moment))
    if is_sqlite(place):
        found.leave_out("record of the log", next(rows(place, "SELECT count(*) FROM tx_log"))[0])
    return found


def _facts(place: str) -> list[JsonObject]:
    if is_sqlite(place):
        return [as_object(parsed(data, place)) for (data,) in rows(place, "SELECT data FROM facts ORDER BY rowid")]  # fmt: skip
    return listed(json_records(place), "facts")
