"""Forgetting facts, blocks and episodes: no byte is left, others' words stay, nothing comes back."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel

from hand_edits import age
from six_verbs import SixVerbs
from tomldiary import Constraint, Diary
from tomldiary.errors import NotSupported, UnknownEntry
from tomldiary.history.timeline import Timeline
from tomldiary_langgraph import DiaryStore


class Diet(BaseModel):
    role: str
    food: str
    note: str | None = None


class Home(BaseModel):
    who: str
    city: str


class Stay(Home):
    until: str | None = None


class Trip(BaseModel):
    towns: list[str]


class Birth(BaseModel):
    who: str
    place: str


def opened(place):
    diary = Diary(place, agent="rules", durability=None if place == "memory:" else "process")
    diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
    diary.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))
    diary.register_schema("birth", Birth, Constraint(singleton_key="who", immutable=True))
    return diary


@pytest.fixture(params=["files", "memory"])
def alice(request, tmp_path):
    return opened("memory:" if request.param == "memory" else tmp_path / "m").user("alice")


def hits(user, tmp_path, *words):
    """The words that are left anywhere: in what the backend holds, and in bytes and names of files."""
    backend = user.diary.engine.backend
    texts = [backend.read(user.user_id, kind).text for kind in backend.kinds(user.user_id)]
    found = "\n".join([*texts, *backend.records(user.user_id)]).encode()
    for path in tmp_path.rglob("*"):
        found += path.name.encode() + (path.read_bytes() if path.is_file() else b"")
    return [word for word in words if word.encode() in found]


def replays(user):
    """History still leads to the documents there are, and every point of it can be read."""
    backend = user.diary.engine.backend
    timeline = Timeline(backend, user.user_id)
    for kind in backend.kinds(user.user_id):
        assert timeline.text(kind) == backend.read(user.user_id, kind).text
    for seq in range(1, user.last_transaction() + 1):
        past = user.as_of(seq)
        past.query("diet"), past.query("home"), past.blocks(), past.episodes()
    return True


def told(user):
    user.commit(
        Diet(role="canary-key", food="canary-food"),
        session_id="session-one",
        reason="canary-reason",
    )
    user.commit(Birth(who="canary-who", place="canary-place"), session_id="session-one")
    user.commit(Home(who="user", city="canary-city"), session_id="session-one")
    user.set_block("canary-block", "canary-text", session_id="session-one")
    user.add_episode("canary-in", "canary-out", session_id="session-one")
    user.commit(Diet(role="user", food="kept-food"), session_id="s2")
    user.set_block("notes", "kept-text", session_id="s2")
    user.add_episode("kept-in", "kept-out", session_id="s2")


CANARIES = [
    f"canary-{word}"
    for word in ["key", "food", "reason", "who", "place", "city", "block", "text", "in", "out"]
]
KEPT = ["kept-food", "kept-text", "kept-in", "kept-out"]


def test_a_session_is_forgotten_in_every_document_and_nothing_else_is(alice, tmp_path):
    told(alice)
    assert hits(alice, tmp_path, *CANARIES, *KEPT) == [*CANARIES, *KEPT]
    receipt = alice.forget(session_id="session-one")
    assert hits(alice, tmp_path, *CANARIES, *KEPT, "session-one") == KEPT
    assert (receipt.entries, receipt.conversations) == (5, 0)
    assert [fact.data.food for fact in alice.query("diet")] == ["kept-food"]
    assert list(alice.blocks()) == ["notes"]
    assert [episode.input for episode in alice.episodes()] == ["kept-in"]
    assert (alice.query("home"), alice.query("birth")) == ([], [])
    assert alice.recall("canary") == []
    assert replays(alice)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_entries_of_a_transaction_belong_to_its_session(alice, tmp_path, is_async):
    """Also what the store puts; who names another session within one is of that."""
    store = DiaryStore(alice.diary)

    def write(name, **session):
        alice.upsert_preference("likes", f"{name}-likes", **session)
        identity = alice.commit(Diet(role=f"{name}-role", food=f"{name}-food"), **session)
        alice.update(identity, {"note": f"{name}-note"}, **session)
        alice.set_block(f"{name}-block", f"{name}-text", **session)
        alice.append_block(f"{name}-block", f"{name}-more", **session)
        alice.replace_in_block(f"{name}-block", f"{name}-more", f"{name}-other", **session)
        alice.add_episode(f"{name}-in", f"{name}-out", **session)

    async def write_all():
        async with alice.atransaction(session_id="session-one"):
            await asyncio.to_thread(write, "canary")
            await asyncio.to_thread(write, "kept", session_id="s2")
            await store.aput(("alice", "things"), "canary-key", {"text": "canary-item"})

    if is_async:
        asyncio.run(write_all())
    else:
        with alice.transaction(session_id="session-one"):
            write("canary")
            write("kept", session_id="s2")
            store.put(("alice", "things"), "canary-key", {"text": "canary-item"})
    words = ["likes", "role", "food", "note", "block", "text", "other", "in", "out"]
    canaries = [f"canary-{word}" for word in [*words, "key", "item"]]
    kept = [f"kept-{word}" for word in words]
    assert hits(alice, tmp_path, *canaries, *kept) == [*canaries, *kept]
    alice.forget(session_id="session-one")
    assert hits(alice, tmp_path, *canaries, *kept, "session-one") == kept


TYPED = [
    (("preferences", "likes"), "canary-key", {"text": "canary-likes"}, {"more": "canary-more"}),
    (("facts", "diet"), "canary-role", {"role": "canary-role", "food": "canary-food"}, {"note": "canary-note"}),
    (("blocks",), "canary-key", {"text": "canary-text"}, {"more": "canary-more"}),
    (("episodes",), "canary-key", {"input": "canary-in", "output": "canary-out"}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("labels", "key", "value", "more"), TYPED, ids=[each[0][0] for each in TYPED])  # fmt: skip
def test_a_typed_entry_put_by_the_store_belongs_to_its_session(
    alice, tmp_path, labels, key, value, more
):
    store = DiaryStore(alice.diary)
    with alice.transaction(session_id="session-one"):
        store.put(("alice", "diary", *labels), key, value)
    if more:
        with alice.transaction(session_id="session-one"):
            store.put(("alice", "diary", *labels), key, {**value, **more})
    canaries = [*value.values(), *more.values()]
    assert hits(alice, tmp_path, *canaries) == canaries
    alice.forget(session_id="session-one")
    assert hits(alice, tmp_path, *canaries, "session-one") == []


def test_everything_covers_every_kind_of_document(alice, tmp_path):
    told(alice)
    alice.forget(everything=True)
    assert hits(alice, tmp_path, *CANARIES, *KEPT, "alice") == []
    assert (alice.profile()["facts"], alice.blocks(), alice.episodes()) == ({}, {}, [])


def test_before_covers_every_kind_of_entry(alice, tmp_path):
    border = datetime(2026, 1, 2, tzinfo=UTC)
    for day, word in ((1, "canary"), (3, "kept")):
        when = datetime(2026, 1, day, tzinfo=UTC)
        alice.commit(Diet(role=word, food=f"{word}-food"), now=when)
        alice.set_block(word, f"{word}-text", now=when)
        alice.add_episode(f"{word}-in", f"{word}-out", now=when)
    alice.forget(before=border)
    words = [
        f"{word}-{what}" for word in ("canary", "kept") for what in ("food", "text", "in", "out")
    ]
    assert hits(alice, tmp_path, *words) == words[4:]
    assert replays(alice)


def test_a_source_covers_confirmed_entries_of_every_kind(alice, tmp_path):
    alice.commit(
        Diet(role="a", food="canary-one"), session_id="session-one", source="session-one#1"
    )
    alice.commit(Diet(role="b", food="kept-two"), session_id="session-one", source="session-one#2")
    alice.commit(Diet(role="a", food="canary-one"), session_id="s2")
    alice.forget(source="session-one#1")
    assert hits(alice, tmp_path, "canary-one", "kept-two") == ["kept-two"]
    assert [fact.id for fact in alice.query("diet")] == ["diet/b"]


def test_a_fact_returns_to_the_version_of_other_sessions(alice, tmp_path):
    alice.commit(Diet(role="user", food="kept-food"), session_id="session-one")
    alice.commit(Diet(role="user", food="canary-food"), session_id="s2")
    alice.forget(session_id="s2")
    assert hits(alice, tmp_path, "canary-food") == []
    assert alice.get("diet/user").data.food == "kept-food"
    assert replays(alice)


def test_additions_of_others_do_not_keep_forgotten_parts(alice, tmp_path):
    """An update or an append leaves the words of others in the entry, under its own name."""
    alice.commit(Diet(role="user", food="canary-food"), session_id="session-one")
    alice.update("diet/user", {"note": "from s2"}, session_id="s2")
    alice.update("diet/user", {"note": "from nobody"})
    alice.set_block("notes", "kept-line", session_id="s0")
    alice.append_block("notes", "canary-line", session_id="session-one")
    alice.append_block("notes", "more", session_id="s2")
    alice.replace_in_block("notes", "more", "less", session_id="s3")
    alice.commit(Home(who="user", city="canary-city"), session_id="session-one")
    alice.update("home/user", {"city": "kept-city"}, session_id="s2")
    alice.forget(session_id="session-one")
    assert hits(alice, tmp_path, "canary-food", "canary-line", "canary-city", "session-one") == []
    assert alice.get("diet/user") is None
    assert alice.block("notes").text == "kept-line"
    assert replays(alice)


def test_a_commit_or_set_makes_its_session_author_of_the_whole(alice):
    alice.commit(Diet(role="user", food="vegan"), session_id="session-one")
    alice.update("diet/user", {"note": "x"}, session_id="s2")
    alice.commit(Diet(role="user", food="fish"), session_id="s3")
    alice.set_block("notes", "one", session_id="session-one")
    alice.append_block("notes", "two", session_id="s2")
    alice.set_block("notes", "three", session_id="s3")
    alice.forget(session_id="session-one")
    assert alice.get("diet/user").data.food == "fish"
    assert alice.block("notes").text == "three"


@pytest.mark.parametrize("selector", [{"session_id": "s1"}, {"source": "s1"}])
@pytest.mark.parametrize("is_temporal", [False, True])
def test_an_update_of_all_fields_keeps_no_words(alice, tmp_path, is_temporal, selector):
    alice.diary.register_schema("stay", Stay, Constraint(temporal=is_temporal))
    key = alice.facts.commit(
        "stay", {"who": "walnut", "city": "cashew"}, session_id="s1", source="s1#1"
    )
    alice.facts.update(key, {"who": "pear", "city": "plum"}, session_id="s2")
    alice.forget(**selector)
    [fact] = alice.facts.query("stay")
    assert (fact.data.who, fact.source, fact.updated_by) == ("pear", "", "s2")
    assert hits(alice, tmp_path, "walnut", "cashew") == []


def test_a_text_that_stays_in_a_list_of_a_fact_keeps_its_session(alice, tmp_path):
    alice.diary.register_schema("trip", Trip)
    key = alice.facts.commit("trip", {"towns": ["walnut"]}, session_id="s1")
    alice.facts.update(key, {"towns": ["walnut", "Rome"]}, session_id="s2")
    alice.forget(session_id="s1")
    assert hits(alice, tmp_path, "walnut") == []


def test_a_fact_updated_at_its_start_keeps_all_its_sessions(alice, tmp_path):
    start = datetime(2026, 5, 1, tzinfo=UTC)
    alice.facts.commit("home", {"who": "walnut", "city": "Rome"}, session_id="s1", now=start)
    alice.facts.update("home/walnut", {"city": "Porto"}, session_id="s2", now=start)
    alice.forget(session_id="s1")
    assert alice.facts.query("home", include_ended=True) == []
    assert hits(alice, tmp_path, "walnut") == []


def test_a_session_that_says_a_whole_fact_again_keeps_it(alice):
    alice.facts.commit("diet", {"role": "u", "food": "rice"}, session_id="s1")
    alice.facts.update("diet/u", {"food": "plum"}, session_id="s2")
    alice.facts.commit("diet", {"role": "u", "food": "plum"}, session_id="s2")
    alice.forget(session_id="s1")
    assert alice.facts.get("diet/u").data.food == "plum"


@pytest.mark.parametrize("old", ["walnut", "  walnut\n"])
def test_a_block_of_which_nothing_stays_has_one_author(alice, tmp_path, old):
    alice.blocks.set("a", old, session_id="s1")
    alice.blocks.replace("a", "walnut", "pear", session_id="s2")
    alice.blocks.set("b", old, session_id="s1")
    alice.blocks.replace("b", "walnut", "", session_id="s2")
    alice.blocks.append("b", "plum", session_id="s3")
    alice.forget(session_id="s1")
    assert [block.text.strip() for block in alice.blocks.values()] == ["pear", "plum"]
    assert hits(alice, tmp_path, "walnut") == []


def test_a_block_that_another_session_sets_again_stays(alice):
    alice.blocks.set("a", "pear", session_id="s1")
    alice.blocks.set("a", "pear", session_id="s2")
    alice.forget(session_id="s1")
    assert alice.blocks["a"].text == "pear"


def test_a_text_that_an_extractor_edits_belongs_to_its_session(alice):
    class Editor:
        def run(self, message, *, deps):
            deps.prefs["preferences"]["likes"]["pref001"]["text"] = message.split()[-1]

    alice.upsert_preference("likes", "walnut", session_id="s1")
    ann = alice.diary.with_agent(Editor()).user("alice")
    ann.add_turn("pear", "ok", "s2")
    word = ann.preferences("likes")["pref001"].text
    ann.forget(session_id="s1")
    assert ann.preferences("likes")["pref001"].text == word
    ann.forget(session_id="s2")
    assert not ann.preferences("likes")


def test_entries_removed_earlier_are_erased_from_history(alice, tmp_path):
    alice.commit(Diet(role="user", food="canary-food"), session_id="session-one")
    alice.set_block("notes", "canary-text", session_id="session-one")
    key = alice.add_episode("canary-in", "canary-out", session_id="session-one")
    alice.delete("diet/user")
    alice.forget_block("notes")
    alice.forget_episode(key)
    assert len(hits(alice, tmp_path, *CANARIES)) == 4
    alice.forget(session_id="session-one")
    assert hits(alice, tmp_path, *CANARIES) == []


@pytest.mark.parametrize("selector", [{"session_id": "gone"}, {"matching": "walnut"}])
def test_an_entry_with_tables_in_several_places_is_erased_whole(tmp_path, selector):
    alice = opened(tmp_path).user("alice")
    alice.upsert_preference("likes", "tea", session_id="s")
    file = tmp_path / "alice/preferences.toml"
    file.write_text(f"{file.read_text()}{SCATTERED}")
    age(file)
    alice.upsert_preference("likes", "juice", session_id="s")
    assert alice.forget(**selector).entries == 1
    assert hits(alice, tmp_path, "walnut", "gone") == []
    assert [item.text for item in alice.preferences("likes").values()] == ["tea", "milk", "juice"]


SCATTERED = """
[preferences.likes.pref002]
text = "walnut bread"
_created_by = "gone"

[preferences.likes.pref003]
text = "milk"

[preferences.likes.pref002.more]
note = "walnut cake"
"""


def test_forgotten_entries_never_return(alice, tmp_path):
    told(alice)
    exported = alice.export()
    alice.forget(session_id="session-one")
    for key in ("facts/diet/canary-key", "blocks/canary-block"):
        assert alice.history(key) == []
        with pytest.raises(UnknownEntry):
            alice.why(key)
    for seq in range(1, alice.last_transaction() + 1):
        assert all("canary" not in text for text in alice.as_of(seq).export()["documents"].values())
    assert "canary" in str(exported)  # only what left the store still has it


def test_forgetting_in_random_histories_leaves_no_byte(tmp_path):
    rng = random.Random(11)
    for number in range(4):
        alice = opened("memory:" if number % 2 else tmp_path / str(number)).user("alice")
        said = {"s0": [], "session-one": [], "s2": []}
        keys = []
        for step in range(25):
            session = rng.choice(list(said))
            word = f"w{number}x{step}y"
            said[session].append(word)
            match rng.randrange(6):
                case 0:
                    alice.commit(Diet(role=rng.choice("ab"), food=word), session_id=session)
                case 1:
                    alice.commit(Home(who=rng.choice("ab"), city=word), session_id=session)
                case 2:
                    alice.set_block(rng.choice("ab"), word, session_id=session)
                case 3:
                    alice.append_block(rng.choice("ab"), word, session_id=session)
                case 4:
                    keys.append(alice.add_episode(word, word, session_id=session))
                case 5 if alice.query("diet"):
                    alice.update(alice.query("diet")[0].id, {"note": word}, session_id=session)
        alice.forget(session_id="session-one")
        assert hits(alice, tmp_path / str(number), *said["session-one"]) == []
        for fact in alice.query("diet"):
            assert fact.updated_by != "session-one"
        assert {e.session_id for e in alice.episodes()} <= {"s0", "s2"}
        assert replays(alice)


def test_an_interval_without_its_successor_is_open_again(alice):
    old = datetime.now(UTC) - timedelta(days=2)
    alice.commit(Home(who="user", city="Paris"), session_id="session-one", valid_from=old)
    alice.commit(Home(who="user", city="Tokyo"), session_id="s2")
    alice.forget(session_id="s2")
    assert [fact.data.city for fact in alice.query("home")] == ["Paris"]


def test_six_methods_forget_facts_and_blocks():
    storage = SixVerbs()
    diary = Diary(storage, agent="rules")
    diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
    alice = diary.user("alice")
    alice.commit(Diet(role="user", food="canary-food"), session_id="session-one")
    alice.set_block("notes", "canary-text", session_id="session-one")
    alice.set_block("other", "kept-text", session_id="session-two")
    assert {hit.kind for hit in alice.recall("canary")} == {"facts", "blocks"}
    assert set(alice.export()["documents"]) == {"facts", "blocks"}
    with pytest.raises(NotSupported, match="cannot list its documents"):
        alice.add_episode("canary-in", "canary-out")
    alice.forget(session_id="session-one")
    assert "canary" not in str(storage.texts)
    assert "kept-text" in str(storage.texts)
    alice.forget(everything=True)
    assert storage.texts == {}


@pytest.mark.parametrize(("second", "left"), [("s1", []), ("s2", ["walnut"])])
def test_a_text_of_two_stays_theirs_when_one_that_repeated_it_goes(alice, second, left):
    alice.blocks.set("plan", "walnut", session_id="s1")
    alice.blocks.append("plan", "chess", session_id="s2")
    alice.blocks.set("plan", "walnut\nchess", session_id="s3")
    alice.forget(session_id="s3")
    assert [each.text for each in alice.blocks.values()] == ["walnut\nchess"]
    alice.forget(session_id=second)
    assert [each.text for each in alice.blocks.values()] == left
    assert alice.traces({"s1": "walnut", "s2": "chess"}[second]) == alice.traces(second) == []
