"""The accessors `facts`, `blocks` and `episodes`, what completion shows, and the deprecated names."""

import asyncio
import inspect
import re
from datetime import UTC, datetime

import pytest
from pydantic import BaseModel

from tomldiary import Constraint, Diary
from tomldiary.errors import DiaryError, InvalidValue, SchemaError, UnknownEntry
from tomldiary.user.deprecated import DeprecatedNames
from tomldiary.user.user import UserDiary
from tomldiary_langgraph import DiaryStore


class Diet(BaseModel):
    role: str
    food: str


HUGE = 10**30


@pytest.fixture
def alice():
    diary = Diary("memory:", agent="rules")
    diary.register_schema("diet", Diet, constraint=Constraint(singleton_key="role"))
    return diary.user("alice")


def public(names):
    return [name for name in names if not name.startswith("_")]


def test_completion_shows_at_most_30_names(alice):
    shown = public(dir(alice))
    assert len(shown) <= 30, "take a name for programs out of completion: _FOR_PROGRAMS in user.py"
    for name in (
        "facts",
        "blocks",
        "episodes",
        "preferences",
        "upsert_preference",
        "recall",
        "problems",
    ):
        assert name in shown


def test_completion_shows_no_deprecated_name_and_no_twin(alice):
    shown = set(public(dir(alice)))
    assert not shown & set(vars(DeprecatedNames))
    assert not {name for name in shown if name[0] == "a" and name[1:] in shown}


@pytest.mark.parametrize("name", ["facts", "blocks", "episodes", "items", "review"])
def test_completion_of_an_accessor_shows_no_twin(alice, name):
    shown = set(public(dir(getattr(alice, name))))
    assert "get" in shown
    assert not {each for each in shown if each[0] == "a" and each[1:] in shown}


def test_completion_of_a_diary_shows_its_verbs_and_not_its_parts(alice):
    shown = set(public(dir(alice.diary)))
    assert shown >= {"user", "users", "register_schema", "constrain", "hooks", "update_memory"}
    assert not shown & {"engine", "indexes", "turns", "trust", "redacted_entry"}
    hidden = set(public(object.__dir__(alice.diary))) - shown
    assert all(hasattr(alice.diary, name) for name in hidden)


def test_every_verb_has_a_coroutine_twin(alice):
    # An async context manager, no work, and what every mapping has.
    cheap = {"transaction", "draft", "keys", "values", "items"}
    parts = (alice, alice.facts, alice.blocks, alice.episodes, alice.items, alice.review)
    for part in parts:
        for name in public(object.__dir__(part)):
            verb = inspect.getattr_static(type(part), name, None)
            is_twin = inspect.iscoroutinefunction(verb) or name == "atransaction"
            if not inspect.isfunction(verb) or is_twin or name in cheap:
                continue
            if name.startswith(("plot_", "to_")):  # drawn in the thread that asks
                continue
            assert inspect.iscoroutinefunction(getattr(part, f"a{name}")), name


def test_facts_are_committed_changed_and_queried(alice):
    key = alice.facts.commit(Diet(role="user", food="rice"))
    assert alice.facts.update(key, {"food": "soup"}) == key
    assert alice.facts.get(key).data.food == "soup"
    assert [fact.id for fact in alice.facts.query("diet", limit=HUGE)] == [key]
    assert alice.facts.query("diet", offset=HUGE) == []
    assert alice.facts() == alice.facts("diet", {"food": "soup"}, 1) == alice.facts.query()
    assert alice.facts("diet", {"food": "rice"}) == []
    assert alice.facts.delete(key) == {"role": "user", "food": "soup"}
    assert alice.facts.get(key) is None


def test_a_verb_of_facts_names_those_of_preferences_for_their_keys(alice):
    alice.upsert_preference("likes", "tea")
    said = r"'likes' is a category of preferences, .* alice.upsert_preference or"
    for verb, *args in (("get",), ("delete",), ("update", {"text": "rye"})):
        with pytest.raises(SchemaError, match=said):
            getattr(alice.facts, verb)("likes/pref001", *args)
    with pytest.raises(SchemaError, match="'nope' is not registered"):
        alice.facts.get("nope/pref001")


UNKNOWN_ENTRIES = {
    "likes/pref009": [
        lambda user: user.remove_preference("likes", "pref009"),
        lambda user: user.upsert_preference("likes", id="pref009"),
        lambda user: user.entry("preferences", "likes/pref009"),
        lambda user: user.confirm("likes/pref009"),
        lambda user: user.why("likes/pref009"),
    ],
    "conversations/s9": [
        lambda user: user.remove_conversation("s9"),
        lambda user: user.entry("conversations", "s9"),
    ],
    "facts/diet/none": [
        lambda user: user.facts.update("diet/none", {"food": "soup"}),
        lambda user: user.facts.delete("diet/none"),
        lambda user: user.why("facts/diet/none"),
    ],
    "blocks/none": [
        lambda user: user.blocks["none"],
        lambda user: user.blocks.replace("none", "a", "b"),
        lambda user: user.blocks.delete("none"),
    ],
    "episodes/none": [lambda user: user.episodes.delete("none")],
    "items/work/none": [
        lambda user: user.items.update("work/none", {"a": 1}),
        lambda user: user.items.delete("work/none"),
    ],
    "quarantine/none": [
        lambda user: user.review.accept("none"),
        lambda user: user.review.edit("none", {"text": "tea"}),
    ],
}


@pytest.mark.parametrize(
    ("key", "call"),
    [(key, call) for key, calls in UNKNOWN_ENTRIES.items() for call in calls],
)
def test_the_error_for_an_unknown_entry_says_where_the_keys_are(alice, key, call):
    with pytest.raises(UnknownEntry) as caught:
        call(alice)
    assert caught.value.where == key
    assert str(caught.value).startswith(f"{key} does not exist. ")
    assert re.search(
        r"\) (returns|shows)|history shows|full_key|These wait: none", caught.value.hint
    )


def test_blocks_read_like_a_mapping(alice):
    alice.blocks.set("persona", "kind")
    alice.blocks.append("notes", "one")
    assert alice.blocks["persona"].text == "kind"
    assert list(alice.blocks) == ["persona", "notes"] == list(alice.blocks())
    assert len(alice.blocks) == 2
    assert dict(alice.blocks) == {**alice.blocks} == alice.blocks()
    assert [(name, block.text) for name, block in alice.blocks.items()] == [
        ("persona", "kind"),
        ("notes", "one"),
    ]
    assert [block.text for block in alice.blocks.values()] == ["kind", "one"]
    assert "notes" in alice.blocks
    assert "other" not in alice.blocks
    assert alice.blocks.get("other") is None
    with pytest.raises(KeyError, match=r"blocks/other does not exist\. blocks\.all\(\) returns"):
        alice.blocks["other"]
    assert alice.blocks.replace("notes", "one", "two").text == "two"
    assert alice.blocks.delete("notes").text == "two"
    assert list(alice.blocks.all()) == ["persona"]


def stocked():
    """Return a user with one or two entries of each accessor."""
    diary = Diary("memory:", agent="rules", quarantine={"web"})
    diary.register_schema("diet", Diet, constraint=Constraint(singleton_key="role"))
    alice = diary.user("alice")
    for role in ("user", "cook"):
        alice.facts.commit(Diet(role=role, food="rice"))
        alice.blocks.set(role, "kind")
        alice.episodes.add("Hello", role)
        DiaryStore(diary).put(("alice", "trips"), role, {"to": "Porto"})
        alice.upsert_preference("likes", role, actor="web")
    return alice


@pytest.mark.parametrize("name", ["facts", "blocks", "episodes", "items", "review"])
@pytest.mark.parametrize("place", ["user", "transaction", "draft", "past"])
def test_an_accessor_reads_like_what_its_call_returns(name, place):
    alice = stocked()
    past = alice.as_of(alice.last_transaction())
    with alice.transaction() as tx:
        user = {"user": alice, "transaction": tx, "draft": alice.draft("s1"), "past": past}[place]
        accessor = getattr(user, name)
        listed = accessor()
        assert list(accessor) == list(listed)
        assert len(accessor) == len(listed) == 2
        is_dict = isinstance(listed, dict)
        by_id = listed if is_dict else {each.id: each for each in listed}
        assert {key: accessor[key] for key in by_id} == by_id
        assert all(key in accessor for key in by_id)
        assert all(each in accessor for each in accessor)
        assert accessor._ipython_key_completions_() == list(by_id)
        missing = {"facts": "diet/none", "items": "trips/none"}.get(name, "none")
        for key in (missing, 7, "likes/pref001", [], Diet(role="user", food="rice")):
            assert key not in accessor
        with pytest.raises(KeyError, match=r"none does not exist\. .*(returns|full_key)"):
            accessor[missing]
        if is_dict:
            assert dict(accessor) == listed
            assert [*accessor.keys()] == [*accessor]
            assert [*accessor.items()] == [*listed.items()]
            assert [*accessor.values()] == [*listed.values()]


@pytest.mark.parametrize(
    ("name", "rendered"),
    [
        ("facts", "tomldiary.entries.facts.Facts.fact"),
        ("episodes", "tomldiary.user.episodes.to_episode"),
        ("items", "tomldiary.user.items.copied"),
    ],
)
def test_an_accessor_is_counted_without_rendering_its_entries(monkeypatch, name, rendered):
    accessor = getattr(stocked(), name)
    monkeypatch.setattr(rendered, None)
    assert accessor
    assert len(accessor) == 2
    assert 7 not in accessor
    with pytest.raises(TypeError):
        accessor()


def test_an_ended_fact_is_found_by_the_id_of_its_interval():
    diary = Diary("memory:", agent="rules")
    diary.register_schema("diet", Diet, Constraint(singleton_key="role", temporal=True))
    facts = diary.user("alice").facts
    ids = [
        facts.commit(Diet(role="user", food=food), valid_from=datetime(year, 1, 1, tzinfo=UTC))
        for food, year in (("rice", 2020), ("bread", 2024))
    ]
    ended, current = facts.query(include_ended=True)
    assert [*facts] == [current]
    assert [facts[each] for each in (*ids, "diet/user")] == [ended, current, current]
    assert all(each in facts for each in (*ids, ended, current))


def test_the_key_of_an_item_in_a_namespace_named_items_names_no_other_item():
    alice = Diary("memory:", agent="rules").user("alice")
    for namespace in (("items",), ("items", "trips"), ("trips",)):
        DiaryStore(alice.diary).put(("alice", *namespace), "porto", {"at": namespace[0]})
    assert list(alice.items) == ["items/porto", "items/items/trips/porto", "trips/porto"]
    assert {key: alice.items[key] for key in alice.items} == alice.items()
    shown = [*alice.items().to_pandas()["full_key"]]
    assert {*shown} == {each.key for each in alice.history()}
    assert [alice.items[key] for key in shown] == [*alice.items().values()]
    assert [*alice.items("items")] == ["items/porto", "items/items/trips/porto"]
    hits = alice.recall("items trips")
    assert {hit.key for hit in hits} == {*alice.items}
    assert {hit.full_key for hit in hits} == {*shown}
    for hit in hits:
        assert alice.items[hit.key] == alice.items[hit.full_key]
        assert hit.text in str(alice.items[hit.key])


def test_an_accessor_takes_each_form_of_an_id():
    alice = stocked()
    assert alice.facts["facts/diet/user"] == alice.facts["diet/user"]
    assert alice.items["items/trips/user"] == alice.items["trips/user"] == {"to": "Porto"}
    with pytest.raises(InvalidValue, match="id: expected text, found int"):
        alice.facts[0]


@pytest.mark.parametrize("name", ["facts", "episodes", "review"])
def test_a_position_in_place_of_an_id_says_that_a_call_lists(alice, name):
    accessor = getattr(alice, name)
    for position in (0, slice(2)):
        with pytest.raises(InvalidValue, match=r"id: expected text, .* accessor\(\)\[0\]"):
            accessor[position]


def test_the_key_of_a_hit_names_the_same_entry_for_every_accessor(alice):
    alice.blocks.set("notes", "Lisbon in May")
    alice.episodes.add("Lisbon?", "Yes.", session_id="s1")
    alice.facts.commit(Diet(role="user", food="Lisbon tarts"))
    DiaryStore(alice.diary).put(("alice", "trips"), "one", {"text": "Lisbon"})
    hits = alice.recall("Lisbon")
    assert sorted(hit.kind for hit in hits) == ["blocks", "episodes", "facts", "items"]
    for hit in hits:
        accessor = getattr(alice, hit.kind)
        assert accessor.get(hit.full_key) == accessor.get(hit.key) is not None
    assert "blocks/notes" in alice.blocks
    assert alice.blocks.append("blocks/notes", "or June").text == "Lisbon in May\nor June"
    assert alice.blocks.replace("blocks/notes", "or June", "").text == "Lisbon in May\n"
    assert list(alice.blocks) == ["notes"]
    assert alice.blocks.delete("blocks/notes").text == "Lisbon in May\n"
    assert alice.episodes.delete(f"episodes/{alice.episodes()[0].id}").output == "Yes."


def test_the_source_of_an_entry_names_its_episode():
    alice = Diary("memory:", agent="rules", episodes=True).user("alice")
    alice.add_turn("I love jazz.", "Noted.", session_id="s1")
    alice.add_turn("I hate rain.", "Noted.", session_id="s1")
    assert alice.episodes.get(alice.why("likes/pref001").turn).input == "I love jazz."
    assert alice.episodes.get("s1#2").input == "I hate rain."
    assert alice.episodes.get("s1#3") is None
    alice.episodes.add("I collect old maps.", "Noted.", session_id="s2")
    alice.consolidate()
    [hit] = alice.recall("maps", kinds=["preferences"])
    assert alice.episodes.get(hit.source).input == "I collect old maps."


def test_a_block_whose_name_begins_like_a_key_keeps_its_name(alice):
    DiaryStore(alice.diary).put(("alice", "diary", "blocks"), "blocks/notes", {"text": "one"})
    assert dict(alice.blocks) == alice.blocks()
    assert alice.blocks.append("blocks/notes", "two").text == "one\ntwo"
    assert list(alice.blocks) == ["blocks/notes"]


def test_a_new_item_is_said_to_come_from_a_store(alice):
    with pytest.raises(AttributeError, match=r"no attribute 'put'\. Use put\(.*DiaryStore"):
        alice.items.put("trips", "one")
    with pytest.raises(AttributeError, match=r"no attribute 'gett'\. Use get\.$"):
        alice.items.gett("trips/one")


def test_episodes_are_added_and_listed(alice):
    key = alice.episodes.add("Hello", "Hi.", session_id="s1")
    assert [episode.id for episode in alice.episodes()] == [key]
    assert alice.episodes("s2") == [] == alice.episodes.list(limit=0)
    assert alice.episodes.messages("s1", limit=1) == [{"role": "assistant", "content": "Hi."}]
    assert len(alice.episodes.list(limit=HUGE)) == 1
    assert len(alice.episodes.messages("s1", limit=HUGE)) == 2
    assert len(alice.recall("hello", limit=HUGE)) == 1
    assert alice.episodes.delete(key).input == "Hello"
    assert alice.episodes.list() == []


def test_a_transaction_has_the_same_accessors(alice):
    with alice.transaction(session_id="s1") as tx:
        key = tx.facts.commit(Diet(role="user", food="rice"))
        tx.blocks.set("persona", "kind")
        tx.episodes.add("Hello", "Hi.")
        assert tx.facts.get(key).data.food == "rice"
    assert {entry.seq for entry in alice.history()} == {1}
    assert len(alice.episodes.list("s1")) == 1


def test_a_failed_transaction_stores_nothing_of_the_accessors(alice):
    def fails():
        with alice.transaction() as tx:
            tx.facts.commit(Diet(role="user", food="rice"))
            tx.blocks.set("persona", "kind")
            tx.blocks.replace("persona", "rude", "kind")

    with pytest.raises(InvalidValue):
        fails()
    assert alice.documents() == []


def test_accessors_of_a_past_state_are_read_only(alice):
    alice.blocks.set("persona", "kind")
    alice.blocks.set("persona", "warm")
    past = alice.as_of(1)
    assert past.blocks["persona"].text == "kind"
    for write in (
        lambda: past.blocks.set("persona", "cold"),
        lambda: past.facts.commit(Diet(role="user", food="rice"), session_id="s1"),
        lambda: past.episodes.add("Hello", "Hi."),
        lambda: past.remove_preference("likes", "pref001"),
        past.history,
    ):
        with pytest.raises(DiaryError, match="after transaction 1"):
            write()
    assert alice.last_transaction() == 2


def test_coroutine_twins_do_the_same(alice):
    async def main():
        key = await alice.facts.acommit(Diet(role="user", food="rice"))
        async with alice.atransaction() as tx:
            await tx.facts.aupdate(key, {"food": "soup"})
            await tx.blocks.aset("persona", "kind")
        assert (await alice.facts.aget(key)).data.food == "soup"
        assert (await alice.blocks.aget("persona")).text == "kind"
        assert list(await alice.blocks.aall()) == ["persona"]
        await alice.episodes.aadd("Hello", "Hi.", session_id="s1")
        assert len(await alice.episodes.amessages("s1")) == 2

    asyncio.run(main())


def test_history_keeps_a_removed_preference(alice):
    key, _ = alice.upsert_preference("likes", "green tea")
    assert alice.remove_preference("likes", key).text == "green tea"
    assert alice.preferences("likes") == {}
    assert alice.history()[0].before["text"] == "green tea"
    alice.rollback()
    assert alice.preferences("likes")[key].text == "green tea"


def test_deprecated_names_do_what_the_accessors_do(alice):
    fact = alice.commit(Diet(role="user", food="rice"))
    alice.update(fact, {"food": "soup"})
    assert alice.get(fact) == alice.facts.get(fact)
    assert alice.query("diet") == alice.facts.query("diet")
    assert alice.delete(fact)["food"] == "soup"
    alice.set_block("persona", "kind")
    alice.append_block("persona", "calm")
    alice.replace_in_block("persona", "kind", "warm")
    assert alice.block("persona") == alice.blocks["persona"]
    with pytest.raises(UnknownEntry):
        alice.block("other")
    assert alice.forget_block("persona").text == "warm\ncalm"
    episode = alice.add_episode("Hello", "Hi.", session_id="s1")
    assert alice.session_messages("s1") == alice.episodes.messages("s1")
    assert alice.forget_episode(episode).input == "Hello"
    key, _ = alice.upsert_preference("likes", "green tea")
    assert alice.forget_preference("likes", key).text == "green tea"
    alice.add_turn("I like tea.", "Noted.", session_id="s1")
    alice.forget_conversation("s1")
    assert alice.conversations() == {}

    async def twins():
        await alice.aset_block("persona", "kind")
        assert list(await alice.ablocks()) == ["persona"]
        assert await alice.aepisodes() == []

    asyncio.run(twins())


def test_deprecated_names_say_what_to_use():
    names = set(public(vars(DeprecatedNames)))
    assert {"commit", "set_block", "add_episode", "forget_preference"} <= names
    for name in names:
        verb = getattr(UserDiary, name)
        if not inspect.iscoroutinefunction(verb):
            assert verb.__doc__.startswith("Deprecated: use `alice."), name
