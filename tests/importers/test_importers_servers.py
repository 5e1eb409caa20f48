"""Imports from databases that run: LangGraph's PostgresStore, and TOMLDiary 0.9 in Firestore."""

from __future__ import annotations

import json
import os
import uuid

import pytest

from tomldiary import Diary
from tomldiary.importers import carry_over
from tomldiary.store.operations import Get
from tomldiary.store.store import ItemStore

POSTGRES = os.environ.get("TOMLDIARY_TEST_POSTGRES", "")
FIRESTORE = os.environ.get("FIRESTORE_EMULATOR_HOST", "")

# As langgraph-checkpoint-postgres 3 creates it.
TABLE = """
CREATE TABLE store (
    prefix text NOT NULL, key text NOT NULL, value jsonb NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (prefix, key)
)
"""
PREFERENCES = """[_meta]
version = "0.3"
schema_name = "DefaultPrefTable"

[preferences.likes.pref001]
text = "tea"  # green
contexts = []
_count = 2
_created = "2025-01-01T00:00:00+00:00"
_updated = "2025-01-02T00:00:00+00:00"
"""


@pytest.mark.skipif(not POSTGRES, reason="TOMLDIARY_TEST_POSTGRES names no server")
def test_items_of_a_postgres_store_are_carried_over_once(tmp_path):
    psycopg = pytest.importorskip("psycopg")
    schema = f"import_{uuid.uuid4().hex}"
    place = f"{POSTGRES}?options=-csearch_path%3D{schema}"
    with psycopg.connect(POSTGRES, autocommit=True) as database:
        database.execute(f"CREATE SCHEMA {schema}")
        try:
            database.execute(f"SET search_path TO {schema}")
            database.execute(TABLE)
            value = {"text": "walnuts 🏔", "none": None}
            for prefix in ("alice.notes", "bob.notes"):
                row = (prefix, "n1", json.dumps(value))
                database.execute("INSERT INTO store (prefix, key, value) VALUES (%s, %s, %s)", row)
            alice = Diary(tmp_path / "m", agent="rules").user("alice")
            assert len(carry_over(alice, "langgraph-store", place).added) == 1
            assert carry_over(alice, "langgraph-store", place).added == []
            found = ItemStore(alice.diary).run([Get(("alice", "notes"), "n1")])[0]
            assert found.value == value
            times = database.execute("SELECT created_at, updated_at FROM store LIMIT 1").fetchone()
            assert (found.created_at, found.updated_at) == times
        finally:
            database.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.skipif(not FIRESTORE, reason="FIRESTORE_EMULATOR_HOST names no emulator")
def test_documents_of_tomldiary_in_firestore_are_carried_over_once(tmp_path):
    firestore = pytest.importorskip("google.cloud.firestore")
    base = f"app/{uuid.uuid4().hex}"
    client = firestore.Client(project="import-test")
    try:
        # As FirestoreBackend.save of TOMLDiary 0.9 stores it.
        stored = {"content": PREFERENCES, "updated_at": "2025-01-02T00:00:00Z", "version": "0.3"}
        client.document(f"{base}/alice/preferences.toml").set(stored)
    finally:
        client.close()
    alice = Diary(tmp_path / "m", agent="rules").user("alice")
    place = f"firestore://import-test/{base}"
    planned = carry_over(alice, "tomldiary-firestore", place, dry_run=True)
    assert planned.added == carry_over(alice, "tomldiary-firestore", place).added
    assert planned.added == ["likes/pref001"]
    assert alice.document("preferences").startswith(PREFERENCES.partition("[preferences")[0][:20])
    assert 'text = "tea"  # green' in alice.document("preferences")
    assert alice.preferences("likes")["pref001"].count == 2
    assert carry_over(alice, "tomldiary-firestore", place).added == []
    assert alice.last_transaction() == 1
