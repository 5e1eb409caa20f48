"""Items that a store puts are found, shown, explained and counted like any other entry."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta

import pytest

from tomldiary import Diary
from tomldiary.errors import InvalidValue, UnknownEntry
from tomldiary.store.operations import Get, Put
from tomldiary.store.store import ItemStore

WORK = ("alice", "memories", "work")


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path)


@pytest.fixture
def store(diary):
    store = ItemStore(diary)
    store.run([Put(WORK, "a/b", {"text": "owns a red bicycle"}), Put(WORK, "k2", {"n": 7})])
    return store


def test_recall_finds_an_item_under_the_key_that_why_takes(diary, store):
    alice = diary.user("alice")
    (hit,) = alice.recall("bicycle")
    assert (hit.kind, hit.key, hit.text) == ("items", "memories/work/a%2fb", "owns a red bicycle")
    assert alice.why(hit.full_key).text == hit.text
    assert [change.key for change in alice.history(hit.full_key)] == [hit.full_key]
    assert not alice.recall("bicycle", kinds=["facts"])


def test_an_item_in_a_later_document_of_its_namespace_is_updated(diary, store):
    diary.engine.part_size = 2_000
    for number in range(9):
        store.run([Put(WORK, f"k{number}", {"text": "x" * 300, "n": number})])
    alice = diary.user("alice")
    assert "items/memories/work~2" in alice.documents()
    alice.items.update("memories/work/k8", {"n": 80})
    assert [each.value["n"] for each in store.run([Get(WORK, "k8"), Get(WORK, "k7")])] == [80, 7]
    assert len(alice.items()) == 10


def test_items_are_listed_by_the_key_that_get_takes(diary, store):
    alice = diary.user("alice")
    store.run([Put(("alice", "memories"), "k/é", {"text": "x", "_own": None, "key": "y"})])
    store.run([Put(WORK, "gone", {"text": "x"}, ttl=1e-9), Put(("alice", "mem"), "k", {"n": 1})])
    found = alice.items()
    assert found == alice.items.list() == asyncio.run(alice.items.alist())
    assert list(found) == [
        "mem/k",
        "memories/k%2f\u00e9",
        "memories/work/a%2fb",
        "memories/work/k2",
    ]
    assert all(alice.items.get(key) == value for key, value in found.items())
    assert list(alice.items("mem")) == ["mem/k"]
    assert list(alice.items("memories/work")) == ["memories/work/a%2fb", "memories/work/k2"]
    assert list(alice.as_of(1).items()) == ["memories/work/a%2fb", "memories/work/k2"]
    alice.draft("s").items.update("memories/work/k2", {"n": 8})
    assert alice.items()["memories/work/k2"] == {"n": 7}
    assert alice.draft("s").items()["memories/work/k2"] == {"n": 8}
    frame = found.to_pandas()
    assert {*frame.columns} == {"key", "full_key", "n", "text", "_own", "data.key"}
    assert diary.user("bob").items() == {}
    with pytest.raises(InvalidValue, match="namespace: expected text, found tuple"):
        alice.items(WORK)


def test_equal_keys_of_two_namespaces_are_two_hits(diary, store):
    store.run([Put(("alice", "home"), "a/b", {"text": "a blue bicycle"})])
    keys = {hit.full_key for hit in diary.user("alice").recall("bicycle")}
    assert keys == {"items/memories/work/a%2fb", "items/home/a%2fb"}


def test_render_shows_items_behind_everything_else(diary, store):
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    lines = alice.render().splitlines()[1:-1]
    assert lines == [
        "- likes: tea",
        "- memories/work: n = 7",
        "- memories/work: owns a red bicycle",
    ]
    assert alice.render("bicycle").splitlines()[1] == "- memories/work: owns a red bicycle"
    assert alice.as_of(1).render().splitlines()[1:-1] == lines[1:]


def test_an_item_that_is_not_indexed_is_neither_found_nor_shown(diary, store):
    store.run([Put(WORK, "raw", {"bytes": "Ymljd2Vs bicycle"}, index=False)])
    alice = diary.user("alice")
    assert len(alice.recall("bicycle")) == 1
    assert "Ymljd2Vs" not in alice.render()


def test_an_expired_item_is_neither_found_nor_shown(diary, store):
    store.run([Put(WORK, "soon", {"text": "a bicycle for an hour"}, ttl=60)])
    alice = diary.user("alice")
    later = datetime.now(UTC) + timedelta(hours=2)
    assert len(alice.recall("bicycle")) == 2
    assert len(alice.recall("bicycle", valid_at=later)) == 1
    assert "for an hour" in alice.render()
    assert "for an hour" not in alice.render(valid_at=later)


def test_an_expired_item_is_neither_counted_nor_changed_by_its_key(diary, store):
    store.run([Put(WORK, "soon", {"text": "a bicycle for an hour"}, ttl=60)])
    alice = diary.user("alice")
    assert alice.profile()["items"] == {"memories/work": 3}
    diary.engine.now = lambda: datetime.now(UTC) + timedelta(hours=2)
    assert alice.profile()["items"] == {"memories/work": 2}
    with pytest.raises(UnknownEntry):
        alice.items.update("memories/work/soon", {"n": 1})
    with pytest.raises(UnknownEntry):
        alice.items.delete("memories/work/soon")
    assert alice.last_transaction() == 2


def test_a_hand_written_item_expires_although_no_put_stored_it(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    ItemStore(diary).run([Put(WORK, "put", {"text": "a bicycle"})])
    (file,) = tmp_path.glob("alice/items/**/*.toml")
    with file.open("a") as handle:
        for key, when in (("over", "2020-01-01"), ("later", "2099-01-01")):
            handle.write(f'\n[items.{key}]\ntext = "a bicycle"\n_expires = {when}T00:00:00Z\n')
    found = {hit.key for hit in diary.user("alice").recall("bicycle")}
    assert found == {"memories/work/put", "memories/work/later"}


def test_an_update_keeps_dates_as_a_put_does(diary, store):
    alice, value = diary.user("alice"), {"due": date(2026, 1, 2), "at": [datetime.now(UTC)]}
    store.run([Put(WORK, "put", value)])
    with alice.transaction(operation_id="1"):
        alice.items.update("memories/work/k2", value)
    assert alice.items["memories/work/k2"] == {"n": 7, **alice.items["memories/work/put"]}


@pytest.mark.parametrize("ttl", ["inf", "nan", "1e300", "-5"])
def test_an_update_keeps_the_expiry_if_a_hand_edit_made_the_time_to_live_invalid(tmp_path, ttl):
    diary = Diary(tmp_path, agent="rules")
    ItemStore(diary).run([Put(WORK, "put", {"text": "a bicycle"}, ttl=60.0)])
    (file,) = tmp_path.glob("alice/items/**/*.toml")
    file.write_text(file.read_text().replace("_ttl = 60.0", f"_ttl = {ttl}"))
    items = diary.user("alice").items
    items.update("memories/work/put", {"text": "a car"})
    assert items["memories/work/put"] == {"text": "a car"}


@pytest.mark.parametrize("key", ["put", ""])
def test_a_key_without_a_namespace_names_no_item(diary, key):
    items = diary.user("alice").items
    assert items.get(key) is None
    with pytest.raises(UnknownEntry, match="items/namespace/key"):
        items.update(key, {"text": "x"})


def test_an_item_that_reads_keep_alive_is_found_and_shown(diary, store):
    """What the store extends at each read is not over for recall either, whatever the file says."""
    key = "a/b later"
    store.run([Put(WORK, key, {"text": "a bicycle for an hour"}, ttl=60)])
    alice, put = diary.user("alice"), datetime.now(UTC)
    entry = store.catalog("alice").snapshot(WORK).get(key)
    later, over = put + timedelta(minutes=90), put + timedelta(hours=3)
    assert "for an hour" not in alice.render(valid_at=later)
    diary.engine.deadlines("alice").refresh([("items/memories/work", entry)], entry.expires)
    for reader in (alice, diary.with_agent("rules").user("alice")):
        assert len(reader.recall("bicycle", valid_at=later)) == 2
        assert "for an hour" in reader.render(valid_at=later)
        assert "for an hour" not in reader.render(valid_at=over)
    assert "for an hour" in alice.as_of(alice.last_transaction()).render()
    store.run([Put(WORK, "gone", {"text": "x"}, ttl=1e-9)])
    assert (alice.items.get("memories/work/gone"), store.run([Get(WORK, key)])[0] is None) == (
        None,
        False,
    )
    assert alice.items.get("memories/work/a%2fb later") == {"text": "a bicycle for an hour"}


def test_items_of_other_users_are_not_found(diary, store):
    bob = diary.user("bob")
    assert bob.recall("bicycle") == []
    assert bob.render() == ""
