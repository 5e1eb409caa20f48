"""Constraints on entries of every kind hold whichever door a change comes through."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel

from hand_edits import age
from tomldiary import Constraint, Diary
from tomldiary.agents.verbs import MemoryVerbs
from tomldiary.errors import (
    ImmutableEntry,
    InvalidValue,
    LimitReached,
    RollbackConflict,
    SchemaError,
    UnknownEntry,
)
from tomldiary.store.operations import Get, List, Put, Search
from tomldiary.store.store import ItemStore
from tomldiary.views.show import as_text

WORK = ("alice", "work")
OLD = datetime.now(UTC) - timedelta(days=40)


class Note(BaseModel):
    key: str
    text: str
    author: str = ""


class Sign(BaseModel):
    text: str


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path, agent="rules")


@pytest.fixture
def alice(diary):
    return diary.user("alice")


def put(diary, key, value):
    ItemStore(diary).run([Put(WORK, key, value)])


WRITES = {
    "preferences/likes": lambda diary, text: diary.user("alice").upsert_preference(
        "likes", text, id="x"
    ),
    "blocks": lambda diary, text: diary.user("alice").blocks.set("x", text),
    "items/work": lambda diary, text: put(diary, "x", {"text": text}),
    "conversations": lambda diary, text: ItemStore(diary).run(
        [Put(("alice", "diary", "conversations"), "x", {"summary": text})]
    ),
}
each_kind = pytest.mark.parametrize("place", WRITES)


@each_kind
def test_an_immutable_entry_is_neither_changed_nor_removed(diary, alice, place):
    diary.constrain(place, Constraint(immutable=True))
    WRITES[place](diary, "first")
    before = alice.export()["documents"]
    key = "likes/x" if place.startswith("preferences") else f"{place}/x"
    with pytest.raises(ImmutableEntry):
        WRITES[place](diary, "second")
    assert "is never changed" in MemoryVerbs(alice, "s").forget(key)
    with pytest.raises((ImmutableEntry, InvalidValue)), alice.transaction():
        WRITES[place](diary, "third")
    assert alice.export()["documents"] == before
    assert alice.forget(everything=True)


@each_kind
def test_an_append_only_entry_may_grow(diary, alice, place):
    diary.constrain(place, Constraint(append_only=True))
    WRITES[place](diary, "one")
    WRITES[place](diary, "one two")
    for text in ("two", "one"):
        with pytest.raises(InvalidValue, match="may only grow"):
            WRITES[place](diary, text)
    assert alice.rollback(dry_run=True).forbidden
    with pytest.raises(RollbackConflict, match="a constraint forbids it"):
        alice.rollback()
    assert "one two" in str(alice.export()["documents"])


def test_lists_of_an_append_only_entry_may_grow_and_other_values_stay(diary):
    diary.constrain("items/work", Constraint(append_only=True))
    for tags in (["x"], ["x", "y"]):
        put(diary, "a", {"tags": tags, "n": 1})
    for value in ({"tags": ["y"], "n": 1}, {"tags": ["x", "y"], "n": 2}, {"tags": ["x", "y"]}):
        with pytest.raises(InvalidValue, match="may only grow"):
            put(diary, "a", value)


@each_kind
def test_a_full_collection_takes_no_new_entry(diary, alice, place):
    diary.constrain(place, Constraint(limit=1))
    WRITES[place](diary, "one")
    WRITES[place](diary, "two")
    more = {
        "preferences/likes": lambda: alice.upsert_preference("likes", "other", id="y"),
        "blocks": lambda: alice.blocks.set("y", "other"),
        "items/work": lambda: put(diary, "y", {"text": "other"}),
        "conversations": lambda: ItemStore(diary).run(
            [Put(("alice", "diary", "conversations"), "y", {"summary": "other"})]
        ),
    }
    with pytest.raises(LimitReached):
        more[place]()
    alice.upsert_preference("goals", "another category")


def test_a_field_that_tells_items_apart_has_each_value_once(diary):
    diary.constrain("items/work", Constraint(singleton_key="mail", required="mail"))
    put(diary, "a", {"mail": "x@y"})
    put(diary, "a", {"mail": "x@y", "n": 1})
    with pytest.raises(InvalidValue, match="items/work/a has the same mail"):
        put(diary, "b", {"mail": "x@y"})
    with pytest.raises(InvalidValue, match=r"items/work/b.mail: expected a value"):
        put(diary, "b", {"mail": " "})
    put(diary, "b", {"mail": "z@y"})


def test_a_rule_may_name_a_field_of_a_table_with_dots(diary):
    diary.constrain("items/work", Constraint(singleton_key="reply.mail", required="reply.mail"))
    put(diary, "a", {"reply": {"mail": "x@y"}})
    with pytest.raises(InvalidValue, match=r"items/work/a has the same reply\.mail"):
        put(diary, "b", {"reply": {"mail": "x@y"}})
    with pytest.raises(InvalidValue, match=r"items/work/b\.reply\.mail: expected a value"):
        put(diary, "b", {"reply": {"phone": "7"}})
    put(diary, "b", {"reply": {"mail": "z@y"}})


def test_an_entry_that_is_over_is_hidden_and_then_removed(diary, alice):
    for place in ("preferences/likes", "blocks"):
        diary.constrain(place, Constraint(ttl=timedelta(days=30)))
    with alice.transaction():
        alice.upsert_preference("likes", "old walnut", now=OLD)
        alice.upsert_preference("likes", "new walnut")
        alice.blocks.set("old", "an old walnut", now=OLD)
        alice.episodes.add("old walnut", "", now=OLD)
    assert [hit.text for hit in alice.recall("walnut", kinds=["preferences", "blocks"])] == [
        "new walnut"
    ]
    assert "old walnut" not in alice.render()
    for written in (False, True):
        assert ("old walnut" not in alice.document("preferences")) == written
        assert list(alice.preferences("likes")) == list(alice.preferences()["likes"]) == ["pref002"]
        assert "old" not in alice.blocks
        store, likes = ItemStore(diary), ("alice", "diary", "preferences", "likes")
        assert store.run([Get(likes, "pref001")]) == [None]
        (found,) = store.run([Search(likes, query="walnut")])
        assert [item.key for item in found] == ["pref002"]
        assert (list(alice.blocks), alice.blocks.get("old"), len(alice.blocks)) == ([], None, 0)
        alice.upsert_preference("goals", "any other write")
    assert len(alice.episodes()) == 1
    assert "old walnut" in alice.as_of(1).document("preferences")
    assert alice.upsert_preference("likes", "a third one")[0] == "pref003"


def test_a_time_at_the_end_of_the_calendar_is_never_over(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.constrain("preferences/likes", Constraint(ttl=timedelta(days=30)))
    diary.constrain("blocks", Constraint(ttl=timedelta.max))
    file = tmp_path / "ann" / "preferences.toml"
    file.parent.mkdir()
    file.write_text('[preferences.likes.walnut]\ntext = "walnut"\n_updated = 9999-12-31\n')
    ann = diary.user("ann")
    ann.blocks.set("walnut", "brown")
    assert {hit.key for hit in ann.recall("walnut")} == {"likes/walnut", "walnut"}
    assert list(ann.preferences("likes")) == list(ann.blocks) == ["walnut"]


def test_no_read_shows_an_entry_that_is_over(diary, alice):
    for place in ("preferences", "blocks", "conversations", "episodes", "items/work"):
        diary.constrain(place, Constraint(ttl=timedelta(days=30)))
    with alice.transaction():
        alice.upsert_preference("likes", "old walnut", now=OLD)
        alice.blocks.set("walnut", "old", now=OLD)
        alice.episodes.add("old walnut", "", session_id="e", now=OLD)
    alice.add_turn("Hm.", "Yes.", session_id="walnut", now=OLD)
    put(diary, "walnut", {"text": "old"})
    diary.engine.now = lambda: datetime.now(UTC) + timedelta(days=31)
    store, work = ItemStore(diary), ("alice", "work")
    assert store.cached_item(work, "walnut") is None
    assert store.run([Get(work, "walnut"), Search(work), List()]) == [None, [], []]
    assert (alice.items.get("work/walnut"), alice.items()) == (None, {})
    assert (alice.conversations(), alice.episodes.list(), alice.episodes.messages("e")) == (
        {},
        [],
        [],
    )
    assert alice.similar("likes", "old walnut") == []
    shown = [diary.pretty_preferences("alice"), diary.pretty_conversations("alice")]
    assert not any("walnut" in asyncio.run(each) for each in shown)
    assert "0 entries" in as_text(diary)
    assert "walnut" not in as_text(alice)
    counts = alice.profile()
    assert not any(
        counts[kind] for kind in ("preferences", "conversations", "blocks", "episodes", "items")
    )


def test_an_entry_that_is_over_is_not_read_by_its_key(diary, alice):
    for place in ("preferences", "conversations"):
        diary.constrain(place, Constraint(ttl=timedelta(days=30)))
    alice.upsert_preference("likes", "walnut", session_id="s")
    alice.add_turn("Hm.", "Yes.", session_id="s")
    assert alice.entry("preferences", "likes/pref001")["text"] == "walnut"
    diary.engine.now = lambda: datetime.now(UTC) + timedelta(days=31)
    for kind, key in ("preferences", "likes/pref001"), ("conversations", "s"):
        with pytest.raises(UnknownEntry):
            alice.entry(kind, key)


def test_a_write_finds_no_entry_that_is_over(diary, alice):
    for place in ("preferences", "blocks", "items/work"):
        diary.constrain(place, Constraint(ttl=timedelta(days=30)))
    diary.register_schema("note", Note, Constraint(singleton_key="key", ttl=timedelta(days=30)))
    with alice.transaction():
        alice.upsert_preference("likes", "walnut", now=OLD)
        alice.blocks.set("notes", "old", now=OLD)
        alice.facts.commit(Note(key="a", text="old", author="x"), confidence=0.9, now=OLD)
    with pytest.raises(UnknownEntry):
        alice.blocks.replace("notes", "old", "new")
    assert alice.blocks.append("notes", "new").text == "new"
    assert alice.upsert_preference("likes", "Walnut.")[1].count == 1
    alice.facts.commit(Note(key="a", text="new", author="x"), confidence=0.1)
    assert alice.facts.get("note/a").data.text == "new"


@pytest.mark.parametrize("said", ["old walnut", "new walnut"])
def test_an_extractor_gets_no_entry_that_is_over(tmp_path, said):
    def extract(message, *, deps):
        assert "old walnut" not in message.replace(deps.user_msg, "")
        deps.upsert("likes", "pref001", deps.user_msg, [])

    diary = Diary(tmp_path, agent=extract, max_prefs_per_category=1)
    diary.constrain("preferences/likes", Constraint(ttl=timedelta(days=30)))
    ann = diary.user("ann")
    ann.upsert_preference("likes", "old walnut", now=OLD)
    assert ann.add_turn(said, "Noted.", session_id="s").skipped == []
    assert [item.text for item in ann.preferences("likes").values()] == [said]


@pytest.mark.parametrize(
    ("text", "left"), [("Old walnut.", "Old walnut."), (None, "old walnut"), ("new", "new")]
)
def test_what_a_turn_says_of_an_entry_that_ends_meanwhile_is_stored(diary, text, left):
    def extract(message, *, deps):
        deps.upsert("likes", "pref001", text, ["soup"])
        deps.upsert("likes", "pref001", None, ["salad"])
        diary.engine.now = lambda: datetime.now(UTC) + timedelta(days=31)

    diary.agent = extract
    diary.constrain("preferences/likes", Constraint(ttl=timedelta(days=30)))
    ann = diary.user("ann")
    ann.upsert_preference("likes", "old walnut")
    assert ann.add_turn("Walnut.", "Noted.", session_id="s").skipped == []
    diary.engine.now = lambda: datetime.now(UTC)
    (found,) = ann.preferences("likes").values()
    assert (found.text, found.contexts) == (left, ["soup", "salad"])


def test_no_episode_that_is_over_is_consolidated(diary, alice):
    diary.constrain("episodes", Constraint(ttl=timedelta(days=30)))
    with alice.transaction():
        alice.episodes.add("I love walnuts.", "", now=OLD)
        alice.episodes.add("I love chess.", "")
    assert alice.consolidate().read == 1
    assert [item.text for item in alice.preferences("likes").values()] == ["I love chess."]


def test_an_entry_that_replaces_one_that_is_over_obeys_the_rule(diary, alice):
    rule = Constraint(ttl=timedelta(days=30), required="text", limit=1)
    diary.constrain("items/work", rule)
    put(diary, "a", {"text": "old"})
    diary.engine.now = lambda: datetime.now(UTC) + timedelta(days=31)
    with pytest.raises(InvalidValue, match="expected a value"):
        put(diary, "a", {"text": " "})
    put(diary, "b", {"text": "new"})


def test_the_most_exact_rule_counts(diary, alice):
    diary.constrain("blocks", Constraint(immutable=True))
    diary.constrain("blocks/notes", Constraint())
    alice.blocks.set("notes", "one")
    alice.blocks.set("notes", "two")
    alice.blocks.set("persona", "one")
    with pytest.raises(ImmutableEntry):
        alice.blocks.set("persona", "two")


def test_an_empty_list_is_no_value_of_a_required_field(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.constrain("preferences/likes", Constraint(required="contexts"))
    alice = diary.user("alice")
    with pytest.raises(InvalidValue, match=r"likes/pref001\.contexts: expected a value"):
        alice.upsert_preference("likes", "tea")
    key, _ = alice.upsert_preference("likes", "tea", contexts=["morning"])
    assert alice.preferences("likes")[key].contexts == ["morning"]


def test_a_turn_skips_what_a_constraint_forbids_and_keeps_the_rest(diary, alice):
    diary.constrain("preferences/likes", Constraint(limit=1))
    alice.upsert_preference("likes", "tea")
    done = alice.add_turn("I love jazz. I'm allergic to nuts.", "Noted.", session_id="s")
    assert (done.applied, len(done.skipped)) == (1, 1)
    assert done.skipped[0].startswith("preferences/likes is full (1/1).")
    assert [each.text for each in alice.preferences("likes").values()] == ["tea"]
    assert len(alice.preferences("allergies")) == 1
    assert alice.conversations()["s"].turns == 1


def test_operations_of_a_turn_may_break_a_constraint_before_they_meet_it(diary, alice):
    key, _ = alice.upsert_preference("likes", "tea")

    def replaces(_, deps):
        deps.upsert("likes", "new", "coffee")
        deps.forget("likes", key)

    diary.constrain("preferences/likes", Constraint(limit=1))
    diary.agent = replaces
    done = alice.add_turn("Rather coffee.", "Noted.", session_id="s")
    assert (done.applied, done.skipped) == (2, [])
    assert [each.text for each in alice.preferences("likes").values()] == ["coffee"]


def test_a_new_entry_gets_the_place_that_a_later_operation_frees(diary, alice):
    key, _ = alice.upsert_preference("likes", "tea")

    def replaces(_, deps):
        new = deps.upsert("likes", "new", "coffee").id
        deps.upsert("dislikes", "new", "milk")
        deps.prefs["preferences"]["likes"][new]["contexts"] = ["morning"]
        deps.forget("likes", key)

    diary.constrain("preferences/likes", Constraint(limit=1))
    diary.constrain("preferences/dislikes", Constraint(required="contexts"))
    diary.agent = replaces
    done = alice.add_turn("Rather coffee, without milk.", "Noted.", session_id="s")
    assert (done.applied, len(done.skipped)) == (3, 1)
    (left,) = alice.preferences("likes").values()
    assert (left.text, left.contexts) == ("coffee", ["morning"])


def test_later_operations_on_a_forbidden_entry_do_not_reach_another_one(diary, alice):
    diary.constrain("preferences/likes", Constraint(required="contexts"))

    def adds(_, deps):
        first = deps.upsert("likes", "new", "tea").id
        deps.upsert("likes", "new", "coffee", ["morning"])
        deps.prefs["preferences"]["likes"][first]["text"] = "green tea"

    diary.agent = adds
    done = alice.add_turn("Hm.", "Yes.", session_id="s")
    assert (done.applied, len(done.skipped)) == (1, 2)
    assert [each.text for each in alice.preferences("likes").values()] == ["coffee"]


@pytest.mark.parametrize("text", ["", " ", "\u200b"])
def test_a_text_without_visible_characters_is_no_required_value(diary, alice, text):
    diary.constrain("blocks/persona", Constraint(required="text"))
    with pytest.raises(InvalidValue, match="it is required"):
        alice.blocks.set("persona", text)
    assert alice.blocks.all() == {}


def test_a_turn_in_a_block_that_meets_a_constraint_at_its_end_is_kept(diary, alice):
    diary.constrain("blocks/persona", Constraint(required="text"))
    with alice.transaction():
        alice.set_block("persona", "")
        done = alice.add_turn("I love jazz.", "Noted.", session_id="s")
        alice.set_block("persona", "Brief.")
    assert (done.applied, done.skipped) == (1, [])
    assert [each.text for each in alice.preferences("likes").values()] == ["I love jazz."]


@pytest.mark.parametrize("quarantine", [(), {"model"}])
def test_a_fact_that_a_constraint_forbids_does_not_undo_others(tmp_path, quarantine):
    diary = Diary(tmp_path, quarantine=quarantine)
    diary.register_schema("note", Note, Constraint(singleton_key="key", required="author"))

    def commits(_, deps):
        deps.commit_fact("note", {"key": "a", "text": "one", "author": "x"})
        deps.commit_fact("note", {"key": "b", "text": "two"})
        deps.remove_fact("note/a")
        deps.commit_fact("note", {"key": "c", "text": "three", "author": "x"})

    alice = diary.with_agent(commits).user("alice")
    done = alice.add_turn("Hm.", "Yes.", session_id="s")
    if quarantine:
        alice.review.accept(*(each.id for each in alice.review()))
    assert (done.applied, len(done.skipped)) == (3, 1)
    assert "facts/note/b.author: expected a value" in done.skipped[0]
    assert [each.data.key for each in alice.facts("note")] == ["c"]


def test_facts_have_the_same_rules(diary, alice):
    rules = Constraint(singleton_key="key", append_only=True, required="author", limit=2)
    diary.register_schema("note", Note, rules)
    alice.facts.commit(Note(key="a", text="one", author="x"))
    alice.facts.commit(Note(key="a", text="one two", author="x"))
    with pytest.raises(InvalidValue, match="may only grow"):
        alice.facts.commit(Note(key="a", text="two", author="x"))
    with pytest.raises(InvalidValue, match=r"facts/note/b.author: expected a value"):
        alice.facts.commit(Note(key="b", text="one"))
    with pytest.raises(InvalidValue, match="may only grow"):
        alice.facts.delete("note/a")
    assert alice.facts.get("note/a").data.text == "one two"


def test_a_fact_that_is_over_is_hidden(diary, alice):
    diary.register_schema("note", Note, Constraint(ttl=timedelta(days=30)))
    alice.facts.commit(Note(key="a", text="old walnut"), now=OLD)
    assert alice.recall("walnut") == []
    assert alice.export(entries=True)["entries"] == {}
    for written in (False, True):
        assert ("old walnut" not in (alice.document("facts") or "")) == written
        assert (alice.facts.count(), alice.facts.query(), alice.facts.get("note/a")) == (
            0,
            [],
            None,
        )
        alice.blocks.set("x", "any other write")


def test_a_question_about_the_past_shows_no_fact_that_is_over(diary, alice):
    rule = Constraint(singleton_key="key", temporal=True, ttl=timedelta(days=30))
    diary.register_schema("note", Note, rule)
    start, then = datetime(2020, 1, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC)
    alice.facts.commit(Note(key="b", text="new walnut"), valid_from=start)
    alice.facts.commit(Note(key="a", text="old walnut"), now=OLD, valid_from=start)
    for when in (then, datetime.now(UTC) + timedelta(days=60)):
        assert [each.data.key for each in alice.facts.query("note", valid_at=when)] == ["b"]
        assert [hit.key for hit in alice.recall("walnut", valid_at=when)] == ["note/b@2020-01-01"]
        assert "old walnut" not in alice.render(valid_at=when)
        assert alice.facts.get("note/a", valid_at=when) is None


def test_an_import_obeys_the_rules(diary, alice):
    diary.constrain("blocks", Constraint(limit=1))
    bob = diary.user("bob")
    alice.blocks.set("one", "x")
    other = Diary("memory:").user("carol")
    other.blocks.set("two", "y")
    for verb in (alice.import_preview, alice.import_):
        with pytest.raises(LimitReached):
            verb(other.export())
    bob.import_(other.export())
    assert list(bob.blocks()) == ["two"]


@pytest.mark.parametrize(
    ("place", "rule"),
    [
        ("hats", {}),
        ("preferences/hats", {}),
        ("facts/diet", {}),
        ("blocks/", {"immutable": True}),
        ("preferences/likes/", {"immutable": True}),
        ("blocks", {"temporal": True}),
        ("blocks", {"normalise": "text"}),
        ("blocks", {"ttl": timedelta(0)}),
        ("blocks", {"append_only": True, "temporal": True}),
    ],
)
def test_a_rule_that_cannot_hold_is_refused(diary, place, rule):
    with pytest.raises(SchemaError):
        diary.constrain(place, Constraint(**rule))


def test_a_rule_holds_for_a_category_without_the_root_table(tmp_path):
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice/preferences.toml").write_text('[likes.tea]\ntext = "tea"\n')
    diary = Diary(tmp_path, agent="rules")
    diary.constrain("preferences/likes", Constraint(immutable=True))
    with pytest.raises(ImmutableEntry):
        diary.user("alice").upsert_preference("likes", "coffee", id="tea")


def test_a_rollback_counts_the_entries_of_all_namespaces(diary, alice):
    put(diary, "x", {"text": "one"})
    ItemStore(diary).run([Put(("alice", "home"), "y", {"text": "two"})])
    ItemStore(diary).run([Put(("alice", "home"), "y", None)])
    diary.constrain("items", Constraint(limit=1))
    assert alice.rollback(dry_run=True).forbidden == ["items/home/y"]
    with pytest.raises(RollbackConflict):
        alice.rollback()


def test_an_import_in_a_transaction_keeps_its_immutable_facts(diary, alice):
    diary.register_schema("note", Note, Constraint(singleton_key="key", immutable=True))
    archive = alice.export()
    with alice.transaction() as memory:
        memory.facts.commit(Note(key="a", text="one"))
        with pytest.raises(ImmutableEntry):
            memory.import_(archive, replace=True)
    assert alice.facts.get("note/a").data.text == "one"


def test_a_fact_from_the_past_is_counted_then_whatever_other_types_require(diary, alice):
    diary.register_schema("note", Note, Constraint(temporal=True, limit=1, singleton_key="key"))
    diary.register_schema("sign", Sign, Constraint(required="text"))
    alice.facts.commit(Note(key="a", text="one"))
    alice.facts.commit(Note(key="b", text="two"), now=OLD, valid_to=OLD + timedelta(days=1))
    assert len(alice.facts.query("note", include_ended=True)) == 2


# Hand edits

FILES = {
    "preferences/likes": "preferences",
    "blocks": "blocks",
    "items/work": "items/work",
    "conversations": "conversations",
}


def saved(folder, place, change):
    """Save a file by hand after a change of its text."""
    file = folder / "alice" / f"{FILES[place]}.toml"
    before = file.read_text()
    after = change(before)
    assert after != before
    file.write_text(after)
    age(file)  # no need to wait for an editor
    return file


def copied(table, **fields):
    """Return a change that adds a copy of the entry `x` under another name."""

    def change(text):
        start = text.index(f"{table}.x]")
        body = text[text.index("\n", start) :].split("\n\n")[0]
        for old, new in fields.items():
            body = body.replace(old, new)
        return f"{text.rstrip()}\n\n[{table}.y]{body}\n"

    return change


TABLES = {
    "preferences/likes": "preferences.likes",
    "blocks": "blocks",
    "items/work": "items",
    "conversations": "conversations",
}
FIELDS = {"conversations": "summary"}


@each_kind
@pytest.mark.parametrize("rule", ["immutable", "append_only", "required", "limit", "singleton_key"])
def test_a_hand_edit_that_breaks_a_rule_is_undone_and_recorded(tmp_path, place, rule):
    diary, field = Diary(tmp_path, agent="rules"), FIELDS.get(place, "text")
    alice = diary.user("alice")
    WRITES[place](diary, "first")
    value = {"limit": 1, "required": field, "singleton_key": field}.get(rule, True)
    diary.constrain(place, Constraint(**{rule: value}))
    is_change = rule in {"immutable", "append_only", "required"}
    wrong = "" if rule == "required" else "other"
    change = (
        (lambda text: text.replace('"first"', f'"{wrong}"')) if is_change else copied(TABLES[place])
    )
    file = saved(tmp_path, place, change)
    readers = [alice, Diary(tmp_path, agent="rules").user("alice")]
    readers[1].diary.constrain(place, Constraint(**{rule: value}))
    for reader in readers:
        assert "first" in reader.render()
        assert len(reader.recall("first other")) == 1
        assert "other" not in reader.render()
    WRITES[place](diary, "first and more") if rule != "immutable" else alice.forget(before=OLD)
    stored = file.read_text()
    assert wrong == "" or wrong not in stored
    assert f"{TABLES[place]}.y" not in stored
    assert "first" in stored
    assert "hand" in [change.actor for change in alice.history()]


def test_a_forbidden_hand_edit_during_a_transaction_is_undone(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.constrain("preferences/likes", Constraint(immutable=True))
    alice = diary.user("alice")
    alice.upsert_preference("likes", "first")
    with alice.transaction() as tx:
        tx.upsert_preference("goals", "rest")
        file = saved(tmp_path, "preferences/likes", lambda text: text.replace("first", "other"))
    assert '"first"' in file.read_text()
    assert "other" not in file.read_text()
    assert "hand" in [change.actor for change in alice.history()]
    assert [item.text for item in alice.preferences("goals").values()] == ["rest"]


def test_a_damaged_history_before_a_hand_edit_stops_no_write(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "first")
    saved(tmp_path, "preferences/likes", lambda text: text.replace("first", "other"))
    diary.engine.log_hand_edits("alice")
    (history,) = (tmp_path / "alice/history").iterdir()
    history.write_text(history.read_text().replace("first", "fir", 1))
    again = Diary(tmp_path, agent="rules")
    again.constrain("preferences/likes", Constraint(immutable=True))
    again.user("alice").upsert_preference("goals", "rest")
    assert len(again.user("alice").preferences("goals")) == 1


def test_neither_reads_nor_exports_have_a_forbidden_hand_edit(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    for place in ("preferences", "blocks", "conversations", "episodes", "items"):
        diary.constrain(place, Constraint(immutable=True))
    alice, bob = diary.user("alice"), diary.user("bob")
    alice.upsert_preference("likes", "first", id="x")
    alice.blocks.set("x", "first")
    alice.blocks.set("removed", "first")
    alice.episodes.add("first", "", session_id="s1")
    ItemStore(diary).run([Put(("alice", "diary", "conversations"), "s2", {"summary": "first"})])
    put(diary, "x", {"text": "first"})
    profile, entries = alice.profile(), alice.export(entries=True)["entries"]
    for file in (tmp_path / "alice").rglob("*.toml"):
        if file.parent.name != "history":
            shown = file.read_text().partition("[blocks.removed]")[0]
            file.write_text(shown.replace("first", "other"))
            age(file)
    shown = [
        alice.blocks(),
        alice.episodes.list(),
        alice.why("likes/x"),
        ItemStore(diary).run([Get(WORK, "x"), Search(WORK)]),
        asyncio.run(diary.preferences("alice")),
        asyncio.run(diary.last_conversations("alice")),
        alice.draft("s1").blocks(),
        alice.export(),
    ]
    assert all("first" in repr(each) and "other" not in repr(each) for each in shown)
    with alice.transaction():
        assert ItemStore(diary).run([Get(WORK, "x")])[0].value == {"text": "first"}
    assert alice.profile() == profile
    assert alice.export(entries=True)["entries"] == entries
    bob.import_(alice.export())
    assert bob.export(entries=True)["entries"] == entries
    alice.import_(alice.export())  # no conflict with what it undoes
    assert alice.export(entries=True)["entries"] == entries


def test_a_forbidden_hand_edit_can_be_rolled_back(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.blocks.set("x", "first")
    diary.constrain("blocks", Constraint(immutable=True))
    saved(tmp_path, "blocks", lambda text: text.replace("first", "second"))
    assert alice.rollback(dry_run=True).forbidden == []
    alice.rollback()
    assert alice.blocks.get("x").text == "first"


def test_an_import_does_not_complete_a_forbidden_hand_edit(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice, bob = diary.user("alice"), diary.user("bob")
    diary.constrain("blocks/x", Constraint(immutable=True))
    alice.blocks.set("x", "first")
    bob.blocks.set("y", "second")
    saved(tmp_path, "blocks", lambda text: text.partition("[blocks.x]")[0])
    with pytest.raises(ImmutableEntry):
        alice.import_(bob.export(), replace=True)
    alice.import_(bob.export())
    assert {name: each.text for name, each in alice.blocks.all().items()} == {
        "x": "first",
        "y": "second",
    }


def test_a_table_that_is_no_entry_can_be_rolled_back(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    diary.constrain("blocks", Constraint(limit=1, required="text"))
    alice.blocks.set("x", "first")
    saved(tmp_path, "blocks", lambda text: f"{text}\n[items]\nbad = 1\n")
    alice.rollback()
    assert alice.rollback().keys


def test_a_hand_edit_within_the_rules_is_kept(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    WRITES["preferences/likes"](diary, "first")
    rules = Constraint(append_only=True, limit=2, required="text", singleton_key="text")
    diary.constrain("preferences/likes", rules)
    saved(tmp_path, "preferences/likes", lambda text: text.replace('"first"', '"first, then"'))
    saved(tmp_path, "preferences/likes", copied("preferences.likes", first="second"))
    assert [each.text for each in alice.preferences("likes").values()] == [
        "first, then",
        "second, then",
    ]


def test_a_hand_edit_that_makes_an_entry_equal_to_a_later_one_is_undone(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea", id="a")
    alice.upsert_preference("likes", "jazz", id="b")
    diary.constrain("preferences/likes", Constraint(singleton_key="text"))
    saved(tmp_path, "preferences/likes", lambda text: text.replace('"tea"', '"jazz"'))
    assert [each.text for each in alice.preferences("likes").values()] == ["tea", "jazz"]


def test_facts_added_by_hand_beyond_the_limit_are_undone(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.register_schema("note", Note, Constraint(singleton_key="key", limit=2))
    alice = diary.user("alice")
    alice.facts.commit(Note(key="a", text="x"))
    file = tmp_path / "alice/facts.toml"
    more = "".join(f'\n[facts.note.{key}]\nkey = "{key}"\ntext = "x"\n' for key in "bcd")
    file.write_text(file.read_text() + more)
    age(file)
    assert [fact.data.key for fact in alice.facts.query("note")] == ["a", "b"]
    alice.facts.update("note/a", {"text": "y"})
    assert "facts.note.b" in file.read_text()
    assert "facts.note.c" not in file.read_text()
    assert [each.key for each in alice.history("facts/note/c")] == ["facts/note/c"] * 2


def test_the_time_of_a_hand_edit_is_that_of_the_current_clock(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    rule = Constraint(immutable=True, ttl=timedelta(days=30))
    diary.constrain("preferences/likes", rule)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    diary.engine.now = lambda: datetime.now(UTC) + timedelta(days=31)
    file = tmp_path / "alice/preferences.toml"
    now = diary.engine.now().isoformat()
    text = re.sub("_updated = .*", f'_updated = "{now}"', file.read_text().replace("tea", "jazz"))
    file.write_text(text)
    age(file)
    assert [each.text for each in alice.preferences("likes").values()] == ["jazz"]


def test_an_update_that_makes_two_entries_alike_is_refused(diary, alice):
    alice.upsert_preference("likes", "tea", id="a")
    alice.upsert_preference("likes", "jazz", id="b")
    diary.constrain("preferences/likes", Constraint(singleton_key="text"))
    with pytest.raises(InvalidValue, match="has the same text"):
        alice.upsert_preference("likes", "tea", id="b")
    alice.upsert_preference("likes", "tea", id="a")
