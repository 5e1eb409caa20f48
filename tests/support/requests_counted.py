"""Counts what a client library asks its server: requests, and the documents that Firestore charges for."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

_FIRESTORE = "google.cloud.firestore_v1.services.firestore.client"
_READS = {"run_query": "document", "batch_get_documents": "found"}


def counted(engine: str, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the counters of an engine, which grow from now on: `requests`, `reads`, `writes` and `deletes`."""
    counts: Counter[str] = Counter()
    {"postgres": _postgres, "redis": _redis, "firestore": _firestore}[engine](monkeypatch, counts)
    return counts


def _wrap(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, counts: Counter[str]) -> None:
    original = getattr(owner, name)

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts["requests"] += 1
        return original(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, counting)


def _postgres(monkeypatch: pytest.MonkeyPatch, counts: Counter[str]) -> None:
    psycopg = import_module("psycopg")
    _wrap(monkeypatch, psycopg.Cursor, "execute", counts)
    _wrap(monkeypatch, psycopg.Connection, "_exec_command", counts)  # BEGIN and COMMIT


def _redis(monkeypatch: pytest.MonkeyPatch, counts: Counter[str]) -> None:
    _wrap(monkeypatch, import_module("redis").Redis, "execute_command", counts)


def _firestore(monkeypatch: pytest.MonkeyPatch, counts: Counter[str]) -> None:
    client = import_module(_FIRESTORE).FirestoreClient
    commit = client.commit

    def counting(self: Any, request: Any, **kwargs: Any) -> Any:
        counts["requests"] += 1
        for write in request["writes"]:
            counts[
                "deletes" if type(write).pb(write).WhichOneof("operation") == "delete" else "writes"
            ] += 1
        return commit(self, request=request, **kwargs)

    monkeypatch.setattr(client, "commit", counting)
    for name, part in _READS.items():
        monkeypatch.setattr(client, name, _reading(getattr(client, name), name, part, counts))


def _reading(original: Any, name: str, part: str, counts: Counter[str]) -> Any:
    def counting(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        counts["requests"] += 1
        answers = original(self, *args, **kwargs)

        def read() -> Iterator[Any]:
            found = 0
            for answer in answers:
                # A missing document is charged as well.
                found += name == "batch_get_documents" or part in answer
                yield answer
            counts["reads"] += max(1, found)  # a query without a result costs one read

        return read()

    return counting
