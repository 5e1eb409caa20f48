"""Recall: ranks as the store does, and indexes only what changed."""

from __future__ import annotations

import random

import pytest

from tomldiary import Diary
from tomldiary.retrieval.lexical_index import WordTable
from tomldiary.store.operations import Put, Search
from tomldiary.store.store import ItemStore


def test_recall_scores_entries_as_the_store_does():
    numbers = random.Random(3)
    words = [f"w{n}" for n in range(60)]
    diary = Diary("memory:")
    alice, store = diary.user("alice"), ItemStore(diary)
    texts = [" ".join(numbers.choices(words, k=numbers.randint(3, 40))) for _ in range(200)]
    with alice.transaction():
        for text in texts:
            alice.add_episode(text, "said", session_id="s1")
    store.run([Put(("alice", "n"), f"{n}", {"said": text}) for n, text in enumerate(texts)])
    for _ in range(20):
        query = " ".join(numbers.sample(words, 3))
        items = store.run([Search(("alice", "n"), query=query, limit=10)])[0]
        hits = alice.recall(query, 10, kinds=["episodes"])
        assert [hit.score for hit in hits] == [item.score for item in items]
        assert {hit.text for hit in hits} & {f"{item.value['said']}\nsaid" for item in items}


def test_a_write_indexes_only_the_changed_entry(monkeypatch):
    alice = Diary("memory:").user("alice")
    for n in range(20):
        alice.upsert_preference("likes", f"tea number {n}")
        alice.add_episode(f"cup {n}", "ok", session_id="s1")
    assert alice.recall("tea cup")
    statements = []
    execute = WordTable.execute

    def counted(self, statement, values=()):
        statements.append(statement.split()[0])
        return execute(self, statement, values)

    monkeypatch.setattr(WordTable, "execute", counted)
    alice.upsert_preference("likes", "green tea of the morning")
    assert alice.recall("green")[0].text == "green tea of the morning"
    assert statements.count("INSERT") == 1
    assert "DELETE" not in statements


def test_recall_reads_only_the_documents_of_the_kinds_asked_for(monkeypatch):
    diary = Diary("memory:")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    alice.add_episode("tea", "ok", session_id="s1")
    read = []
    document = diary.engine.document
    monkeypatch.setattr(
        diary.engine, "document", lambda user, kind: read.append(kind) or document(user, kind)
    )
    assert [hit.kind for hit in alice.recall("tea", kinds=["preferences"])] == ["preferences"]
    assert read == ["preferences"]


def test_recall_finds_no_entry_of_a_transaction_that_failed():
    alice = Diary("memory:").user("alice")
    alice.upsert_preference("likes", "green tea")

    def fail():
        with alice.transaction():
            alice.upsert_preference("likes", "black tea")
            assert {hit.text for hit in alice.recall("tea")} == {"green tea", "black tea"}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [hit.text for hit in alice.recall("tea")] == ["green tea"]
