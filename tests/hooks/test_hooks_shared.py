"""Hooks on PostgreSQL, Redis and Firestore: cursors, erasures and refused writes."""

from __future__ import annotations

import pytest

from engines import SERVERS, space
from outside_index import ScriptedIndex
from requests_counted import counted
from tomldiary import Diary
from tomldiary.errors import HookError
from tomldiary.hooks.delivery import Delivery
from tomldiary.hooks.reader import newest
from tomldiary.runtime.sources import HOOKS


@pytest.mark.parametrize("name", SERVERS)
def test_a_shared_database_keeps_cursors_and_delivers_erasures(name):
    place, index, other = space(name), ScriptedIndex(), ScriptedIndex()
    with Diary(place.url, agent="rules") as diary:
        diary.hooks.add(index, name="index", strict=True)
        alice = diary.user("alice")
        alice.upsert_preference("likes", "tea")
        alice.blocks.set("persona", "kind", session_id="s2")
        assert diary.hooks.flush()
        assert index.texts("alice") == {"likes/pref001": "tea", "blocks/persona": "kind"}
        index.error = ConnectionError()
        with pytest.raises(HookError):
            alice.blocks.set("persona", "refused")
        index.error = None
        assert alice.blocks["persona"].text == "kind"
        assert diary.hooks.flush()
        assert index.texts("alice")["blocks/persona"] == "kind"
        alice.forget(session_id="s2")
        assert diary.hooks.flush()
        assert index.texts("alice") == {"likes/pref001": "tea"}
    with Diary(place.url, agent="rules") as diary:
        alice = diary.user("alice")
        alice.forget(everything=True)
        assert diary.users() == []
        assert diary.engine.backend.holders(HOOKS) == ["alice"]
        diary.hooks.add(other, name="other")
        diary.hooks.add(index, name="index")
        assert diary.hooks.flush()
        assert not index.entries
        assert diary.engine.backend.holders(HOOKS) == []
        alice.blocks.set("persona", "again")
        assert [change.text for change in diary.changes(follow=False)] == ["again"]


def fed(diary):
    return {each.key: each.text for each in diary.changes(follow=False) if not each.is_reset}


def indexed(diary, work):
    index = ScriptedIndex()
    getattr(Delivery(diary.engine, "index", index), work)("alice")
    return index.texts("alice")


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("work", ["deliver", "reconcile", "feed"])
def test_a_write_of_another_process_fails_no_read_of_hooks(name, work):
    place, writes = space(name), ["new"]
    backend = place.backend()
    with Diary(place.url, agent="rules") as other, Diary(backend) as diary:
        alice = other.user("alice")
        alice.upsert_preference("likes", "tea")
        alice.blocks.set("persona", "kind")
        alice.prune_history(keep=1)  # a new feed begins with the whole state
        read = backend.read

        def overtaken(user, kind):
            while writes:
                alice.blocks.set("persona", writes.pop())
            return read(user, kind)

        backend.read = overtaken
        found = fed(diary) if work == "feed" else indexed(diary, work)
        assert not writes
        assert found == {"likes/pref001": "tea", "blocks/persona": "new"}


@pytest.mark.parametrize("name", SERVERS)
def test_a_check_for_undelivered_changes_is_one_request(name, monkeypatch):
    url = space(name).url  # first, because this skips the test without the server
    counts = counted(name, monkeypatch)
    with Diary(url, agent="rules") as diary:
        diary.user("alice").upsert_preference("likes", "tea")
        delivery = Delivery(diary.engine, "index", ScriptedIndex())
        delivery.deliver("alice")
        assert not delivery.is_behind("alice")
        for check in (delivery.is_behind, lambda user: newest(diary.engine, user)):
            counts.clear()
            check("alice")
            assert counts["requests"] == 1
