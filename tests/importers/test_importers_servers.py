"""Imports from databases that run: LangGraph's PostgresStore, and TOMLDiary 0.9 in Firestore.

The documents of `peers/tomldiary_firestore.json` were stored by TOMLDiary 0.9; `peers/make_fixtures.py` says how.
"""

from __future__ import annotations

import json
import os
import tomllib
import uuid
from pathlib import Path

import pytest
from pydantic import BaseModel

from command_line import program
from tomldiary import Diary, PreferenceItem
from tomldiary.importers import carry_over
from tomldiary.store.operations import Get
from tomldiary.store.store import ItemStore

PEERS = Path(__file__).parent / "peers"
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


class MyTable(BaseModel):
    likes: dict[str, PreferenceItem] = {}
    allergies: dict[str, PreferenceItem] = {}


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
    theirs = json.loads((PEERS / "tomldiary_firestore.json").read_text("utf-8"))
    base = f"app/{uuid.uuid4().hex}"
    client = firestore.Client(project="import-test")
    try:
        for name, stored in theirs.items():
            client.document(f"{base}/{name}").set(stored)
    finally:
        client.close()
    alice = Diary(tmp_path / "m", MyTable, agent="rules").user("alice")
    place = f"firestore://import-test/{base}"
    planned = carry_over(alice, "tomldiary-firestore", place, dry_run=True)
    assert planned.added == carry_over(alice, "tomldiary-firestore", place).added
    assert sorted(planned.added) == ["allergies/pref001", "conversations/s1", "conversations/s2", "likes/pref001"]  # fmt: skip
    for kind in ("preferences", "conversations"):
        mine, stored = (tomllib.loads(text) for text in (alice.document(kind), theirs[f"alice/{kind}.toml"]["content"]))  # fmt: skip
        tables = [stored[kind]] if kind == "conversations" else stored[kind].values()
        for entry in (entry for table in tables for entry in table.values()):
            entry["_origin"] = "import"
        assert mine[kind] == stored[kind]
    assert carry_over(alice, "tomldiary-firestore", place).added == []
    assert alice.last_transaction() == 1


@pytest.mark.skipif(not FIRESTORE, reason="FIRESTORE_EMULATOR_HOST names no emulator")
def test_the_command_imports_documents_of_another_table_silently(tmp_path):
    firestore = pytest.importorskip("google.cloud.firestore")
    base = f"app/{uuid.uuid4().hex}"
    text = '_meta.schema_name = "Food"\npreferences.tastes.a.text = "hot"\n'
    client = firestore.Client(project="import-test")
    client.document(f"{base}/al/preferences.toml").set({"content": text})
    client.close()
    words = ["--from", "tomldiary-firestore", "--user", "al", "--path", tmp_path / "m", "--yes"]
    done = program("import", f"firestore://import-test/{base}", *words)
    assert ("  + tastes/a" in done.stdout, done.stderr) == (True, "")
