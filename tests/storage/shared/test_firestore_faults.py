"""Firestore: codes that a repetition may resolve are repeated for the time of the option; others are one sentence at once."""

from __future__ import annotations

import asyncio
import importlib
import os
import time

import pytest

import engines
import servers
from tomldiary import BackendError, Diary
from tomldiary.storage.shared.firestore.connection import Refused

pytest.importorskip("grpc")
TIMEOUT = 0.8  # seconds
IN_TIME = 20  # seconds: a busy machine takes part of them; without the limit the client tries for a minute


@pytest.fixture
def proxy(monkeypatch):
    from firestore_proxy import FirestoreProxy  # noqa: PLC0415 - needs grpc

    engines.space("firestore")  # skips without an emulator
    made = FirestoreProxy(os.environ[servers.FIRESTORE])
    monkeypatch.setenv(servers.FIRESTORE, made.address)
    yield made
    made.close()


@pytest.fixture
def alice(proxy):
    url = engines.space("firestore").url
    with Diary(url, agent="rules") as diary:
        user = diary.user("alice")
        user.upsert_preference("likes", "tea")
        proxy.calls.clear()
        # The first connection may take longer on a busy machine.
        transactions = diary.engine.backend.transactions
        transactions.timeout = transactions.database.connection.once["timeout"] = TIMEOUT
        yield user
        diary.engine.backend.close()


def texts(alice):
    return sorted(item.text for item in alice.preferences("likes").values())


@pytest.mark.parametrize(
    "code",
    [
        "UNAVAILABLE",
        "DEADLINE_EXCEEDED",
        "INTERNAL",
        "RESOURCE_EXHAUSTED",
        "ABORTED",
        "UNKNOWN",
        "CANCELLED",
    ],
)
def test_a_read_is_repeated_after_a_code_that_may_pass(proxy, alice, code):
    proxy.faults = [("RunQuery", code)] * 2
    assert texts(alice) == ["tea"]
    assert proxy.calls.count("RunQuery") >= 3
    proxy.always = ("*", code)
    begin = time.monotonic()
    with pytest.raises(BackendError, match=rf"cannot be reached.*{proxy.address}") as caught:
        alice.preferences()
    assert TIMEOUT <= time.monotonic() - begin < IN_TIME
    assert ("a quota of the project" in str(caught.value)) == (code == "RESOURCE_EXHAUSTED")
    assert ("needs a larger timeout" in str(caught.value)) == (code == "DEADLINE_EXCEEDED")


@pytest.mark.parametrize("method", ["RunQuery", "BatchGetDocuments"])
def test_a_read_that_breaks_between_two_documents_is_repeated(proxy, alice, method):
    alice.set_block("persona", "a pilot")
    elsewhere = Diary(f"{alice.diary.engine.backend.database}", agent="rules").user("alice")
    proxy.faults = [(method, "BROKEN")] * 2
    assert texts(elsewhere) == ["tea"]
    assert elsewhere.export()["documents"].keys() == {"preferences", "blocks"}
    assert proxy.faults == []
    elsewhere.diary.close()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("PERMISSION_DENIED", "permission is denied. Check the role of the account"),
        ("UNAUTHENTICATED", "permission is denied. Check the role of the account"),
        ("INVALID_ARGUMENT", "Firestore refused"),
        ("UNIMPLEMENTED", "Firestore refused"),
    ],
)
def test_other_codes_are_one_error_at_once(proxy, alice, code, message):
    proxy.always = ("*", code)
    for call in (alice.preferences, lambda: alice.upsert_preference("likes", "milk")):
        proxy.calls.clear()
        with pytest.raises(BackendError, match=message) as caught:
            call()
        assert len(proxy.calls) == 1
        assert "\n" not in str(caught.value)


def test_a_database_without_firestore_is_one_error_of_a_read(proxy, alice):
    proxy.always = ("*", "FAILED_PRECONDITION")
    with pytest.raises(BackendError, match="Firestore refused"):
        alice.preferences()


def test_a_missing_document_is_told_from_a_missing_database(alice):
    exceptions = importlib.import_module("google.api_core.exceptions")

    def refuse():
        raise exceptions.NotFound(
            "No document to update: projects/p/databases/(default)/documents/a/b"
        )

    with pytest.raises(Refused):
        alice.diary.engine.backend.database.connection.run(refuse, is_conditional=True)


def test_a_server_that_never_answers_is_given_up_in_time(proxy, alice):
    proxy.always = ("*", "HANG")
    begin = time.monotonic()
    with pytest.raises(BackendError, match="cannot be reached"):
        alice.preferences()
    assert time.monotonic() - begin < IN_TIME


@pytest.mark.parametrize(
    "code",
    [
        "UNAVAILABLE",
        "RESOURCE_EXHAUSTED",
        "ABORTED",
        "LOST UNAVAILABLE",
        "LOST ABORTED",
        "LOST UNKNOWN",
        "LOST CANCELLED",
    ],
)
def test_a_write_is_applied_once_after_a_code_that_may_pass(proxy, alice, code):
    proxy.faults = [("Commit", code)] * 2
    with alice.transaction() as transaction:  # is not repeated
        transaction.upsert_preference("likes", "coffee")
    assert proxy.faults == [] or code.startswith("LOST")
    assert texts(alice) == ["coffee", "tea"]
    assert [entry.seq for entry in alice.history()] == [2, 1]
    assert alice.problems() == []


def test_a_write_to_a_server_that_is_away_has_no_unknown_outcome(proxy, alice):
    proxy.close()
    with pytest.raises(BackendError):
        alice.preferences()  # this connection was open
    with pytest.raises(BackendError, match="cannot be reached"):
        alice.upsert_preference("likes", "coffee")


def test_a_large_document_is_written_within_the_timeout_or_not_at_all(proxy, alice):
    backend = alice.diary.engine.backend
    proxy.always = ("Commit", "UNAVAILABLE")
    begin = time.monotonic()
    with pytest.raises(BackendError, match=r"unknown whether|cannot be reached"):
        asyncio.run(backend.save("alice", "blocks", f'text = "{"x" * 1_000_000}"\n'))
    assert time.monotonic() - begin < IN_TIME
    assert proxy.calls.count("Commit") < 50  # with pauses in between
    proxy.always = ("", "")
    assert backend.kinds("alice") == ["preferences"]
