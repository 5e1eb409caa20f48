"""What the memory returns belongs to the caller: changing it changes neither the memory nor its file."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tomldiary import Diary
from tomldiary_langgraph import DiaryStore


def spoil(value: Any) -> None:
    """Change every list and table within a value."""
    if isinstance(value, dict):
        for each in [*value.values()]:
            spoil(each)
        value["spoilt"] = "spoilt"
    elif isinstance(value, list):
        for each in value:
            spoil(each)
        value.append("spoilt")


@pytest.fixture
def alice(tmp_path):
    diary = Diary(tmp_path, agent="rules", quarantine=["tool"])
    alice = diary.user("alice")
    alice.add_turn("I'm allergic to walnuts.", "Noted.", "monday")
    alice.upsert_preference("likes", "dark roast", contexts=["morning"])
    alice.upsert_preference("likes", "milk", contexts=["evening"], actor="tool")
    alice.draft("monday").upsert_preference("likes", "tea", contexts=["noon"])
    DiaryStore(diary).put(
        ("alice", "trips"), "porto", {"with": ["Bo"], "flat": {"near": ["river"]}}
    )
    return alice


@pytest.mark.parametrize(
    "read",
    [
        lambda alice: alice.entry("preferences", "likes/pref001"),
        lambda alice: alice.draft("monday").entry("preferences", "likes/pref001"),
        lambda alice: alice.as_of(3).entry("preferences", "likes/pref001"),
        lambda alice: alice.entry("conversations", "monday"),
        lambda alice: asyncio.run(alice.diary.last_conversations("alice")),
        lambda alice: [alice.drafts()[0].after, alice.drafts()[0].before],
        lambda alice: [alice.review()[0].after, alice.review()[0].before],
        lambda alice: alice.items.get("trips/porto"),
        lambda alice: alice.items.update("trips/porto", {"days": 7}),
    ],
)
def test_a_value_that_was_returned_shares_nothing_with_the_memory(alice, read):
    spoil(read(alice))
    alice.items.update("trips/porto", {"days": 7})
    alice.upsert_preference("likes", "dark roasts", id="pref001")
    asyncio.run(alice.diary.ensure_session("alice", "tuesday"))
    assert "spoilt" not in str(alice.export(entries=True))
    assert "spoilt" not in "".join(map(alice.document, alice.documents()))


def test_the_list_of_documents_belongs_to_the_caller(alice):
    names = [*alice.documents()]
    time.sleep(0.05)  # a folder that was changed within the last 10 ms is listed again
    alice.documents().clear()
    alice.documents().clear()
    assert alice.documents() == names
