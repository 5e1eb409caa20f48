"""Where entries come from, and the quarantine of sources that are not trusted."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from outside_index import ScriptedIndex
from tomldiary import Constraint, Diary
from tomldiary.cli.app import app
from tomldiary.errors import (
    EntryConflict,
    ImmutableEntry,
    InvalidValue,
    LimitReached,
    UnknownEntry,
)
from tomldiary_langgraph import DiaryStore

SPAM = "casino bonus canary"


class Note(BaseModel):
    words: str


class Diet(BaseModel):
    role: str
    value: str


@pytest.fixture
def diary(tmp_path):
    made = Diary(
        tmp_path / "memories",
        agent="rules",
        quarantine={"web", "tool:crm"},
        max_prefs_per_category=3,
    )
    made.register_schema("diet", Diet, constraint=Constraint(singleton_key="role", immutable=True))
    return made


@pytest.fixture
def alice(diary):
    return diary.user("alice")


def planted(alice, **options):
    options = {"actor": "web:https://example.org", "session_id": "s1", **options}
    alice.upsert_preference("likes", SPAM, **options)
    (change,) = alice.review()
    return change


def test_a_turn_in_a_transaction_of_an_untrusted_actor_waits(tmp_path):
    alice = Diary(tmp_path, agent="rules", episodes=True, quarantine={"web"}).user("alice")
    with alice.transaction(actor="web:https://example.org"):
        alice.add_turn(f"I love {SPAM}s.", "Noted.", "s1")
    assert [change.key.partition("/")[0] for change in alice.review()] == ["likes", "episodes"]
    assert {change.origin for change in alice.review()} == {"web:https://example.org"}
    assert SPAM not in f"{alice.render()}{alice.preferences()}{alice.episodes()}"
    assert alice.conversations()["s1"].turns == 1
    alice.review.accept(*(change.id for change in alice.review()))
    assert alice.why("likes/pref001").origin == "web:https://example.org"
    with alice.transaction(actor="user"):
        alice.add_turn("I love short walks.", "Noted.", "s1")
    assert len(alice.preferences("likes")) == len(alice.episodes()) == 2


@pytest.mark.parametrize("is_table", [False, True])
def test_a_turn_of_an_untrusted_actor_leaves_no_summary(is_table):
    def extract(message, *, deps):
        if is_table:
            deps.convs["conversations"]["s1"]["summary"] = deps.user_msg
        else:
            deps.summarise(deps.user_msg, [SPAM])

    alice = Diary("memory:", agent=extract, quarantine={"web"}).user("alice")
    alice.add_turn("Hello.", "Noted.", "s1")
    with alice.transaction(actor="web"):
        alice.add_turn(SPAM, "Noted.", "s1")
    found = alice.conversations()["s1"]
    assert (found.turns, found.summary) == (2, "Hello.")


def test_no_later_turn_quotes_a_turn_of_an_untrusted_actor():
    earlier = []

    def extract(message, *, deps):
        earlier.append([said for said, _ in deps.earlier])

    alice = Diary("memory:", agent=extract, quarantine={"web"}).user("alice")
    alice.add_turn("Hello.", "Noted.", "s1")
    with alice.transaction(actor="web"):
        alice.add_turn(SPAM, "Noted.", "s1")

    async def held():
        async with alice.atransaction(actor="web"):
            await alice.aadd_turn(SPAM, "Noted.", "s1")

    asyncio.run(held())
    alice.add_turn("Bye.", "Noted.", "s1")
    assert earlier[-1] == ["Hello."]


def test_an_untrusted_actor_rolls_nothing_back(alice):
    alice.upsert_preference("likes", "tea", actor="user")
    with pytest.raises(InvalidValue, match="cannot wait for a review"):
        alice.rollback(actor="web:https://example.org")
    assert alice.preferences("likes")["pref001"].text == "tea"
    alice.rollback(actor="user")
    assert not alice.preferences("likes")


def test_no_reader_shows_what_waits_for_review(diary, alice):
    index = ScriptedIndex()
    diary.hooks.add(index, name="index")
    alice.upsert_preference("likes", "tea")
    change = planted(alice)
    assert (change.key, change.text, change.origin) == (
        "likes/pref002",
        SPAM,
        "web:https://example.org",
    )
    assert SPAM not in alice.render() + alice.render("casino bonus")
    assert [hit.text for hit in alice.recall("casino bonus canary tea")] == ["tea"]
    assert [item.text for item in alice.preferences("likes").values()] == ["tea"]
    assert [each.key for each in diary.changes(follow=False)] == ["likes/pref001"]
    assert diary.hooks.flush()
    assert index.texts("alice") == {"likes/pref001": "tea"}
    diary.close()


@pytest.mark.parametrize("actor", ["web", "web:page", "tool:crm"])
def test_every_verb_of_an_actor_without_trust_waits(alice, actor):
    alice.facts.commit(Diet(role="user", value="vegan"), actor=actor)
    alice.blocks.set("persona", SPAM, actor=actor)
    alice.episodes.add(SPAM, "answer", actor=actor)
    with alice.transaction(actor=actor):
        alice.blocks.set("within", SPAM)
    assert len(alice.review()) == 4
    assert len(alice.facts.query("diet")) == len(alice.blocks) == len(alice.episodes()) == 0


def test_items_that_are_put_in_a_transaction_without_trust_wait(diary, alice):
    store = DiaryStore(diary)
    store.put(("alice", "notes"), "old", {"text": "tea"})
    with alice.transaction(actor="web", session_id="s1"):
        store.put(("alice", "notes"), "old", {"text": SPAM})
        store.put(("alice", "new"), "a", {"t": 1})
        store.update(("alice", "notes"), "more", lambda old: {"text": SPAM})
    assert alice.items() == {"notes/old": {"text": "tea"}}
    assert {(each.key, each.session, each.origin) for each in alice.review()} == {
        (key, "s1", "web") for key in ("items/notes/old", "items/new/a", "items/notes/more")
    }
    alice.review.accept(*[each.id for each in alice.review()])
    assert {*alice.items()} == {"notes/old", "new/a", "notes/more"}


def test_conversations_that_an_actor_without_trust_removes_or_imports_wait(diary, alice):
    alice.add_turn("I love tea.", "Noted.", session_id="s1")
    alice.remove_conversation("s1", actor="web")
    assert [*alice.conversations()] == ["s1"]
    bob = diary.user("bob")
    data = alice.export()
    documents = data["documents"]
    del documents["quarantine"]
    documents["conversations"] = documents["conversations"].replace('""', f'"{SPAM}"')
    bob.import_(data, actor="web:dump")
    assert SPAM not in bob.render() + bob.document("conversations")
    assert [each.key for each in bob.review()] == ["conversations/s1", "likes/pref001"]
    bob.review.accept(*[each.id for each in bob.review()])
    assert bob.conversations()["s1"].summary == SPAM
    carol = diary.user("carol")
    carol.import_(data, actor="web:dump")
    carol.forget(session_id="s1")
    assert (list(carol.review()), carol.traces(SPAM)) == ([], [])
    alice.review.accept("2")
    assert not alice.conversations()


@pytest.mark.parametrize("way", ["verb", "draft", "transaction"])
def test_a_draft_is_no_way_around_the_review(alice, way):
    if way == "verb":
        alice.blocks.set("plan", SPAM, session_id="s1", actor="web", ephemeral=True)
    elif way == "draft":
        alice.draft("s1").blocks.set("plan", SPAM, actor="web:page")
    else:
        with alice.transaction(session_id="s1", actor="web", ephemeral=True) as tx:
            tx.blocks.set("plan", SPAM)
    assert (alice.drafts(), SPAM in alice.draft("s1").render()) == ([], False)
    alice.promote_session("s1")
    assert not alice.blocks()
    (change,) = alice.review()
    alice.review.accept(change.id)
    assert alice.blocks["plan"].text == SPAM


def test_other_actors_do_not_wait(alice):
    for actor in ("", "user", "tool", "tool:search", "webmaster"):
        alice.blocks.set(f"by {actor}", "text", actor=actor)
    assert alice.review() == []
    assert len(alice.blocks) == 5


_PENDING = pytest.mark.parametrize(
    ("held", "decide"),
    [
        ({"actor": "web"}, lambda alice: alice.review.accept(alice.review()[0].id)),
        ({"ephemeral": True}, lambda alice: alice.promote_session("s")),
    ],
)


@_PENDING
def test_a_decision_conflicts_with_an_earlier_write_of_its_transaction(alice, held, decide):
    alice.blocks.set("plan", "old")
    alice.blocks.set("plan", "held", session_id="s", **held)
    with alice.transaction():
        alice.blocks.set("plan", "ours")
        with pytest.raises(EntryConflict):
            decide(alice)
    assert alice.blocks["plan"].text == "ours"


@_PENDING
def test_a_decision_on_a_change_of_its_transaction_has_no_conflict(alice, held, decide):
    with alice.transaction():
        alice.blocks.set("plan", "ours")
        alice.blocks.set("plan", "held", session_id="s", **held)
        decide(alice)
    assert alice.blocks["plan"].text == "held"


@_PENDING
def test_a_pending_change_restores_no_entry_that_its_transaction_removed(alice, held, decide):
    with alice.transaction():
        alice.blocks.set("plan", "ours")
        alice.blocks.set("plan", "held", session_id="s", **held)
        alice.blocks.delete("plan")
    with pytest.raises(EntryConflict):
        decide(alice)
    assert "plan" not in alice.blocks


def test_an_accepted_change_keeps_its_origin_and_is_undone_by_rollback(alice):
    change = planted(alice)
    alice.review.accept(change.id, reason="checked")
    origin = alice.why("likes/pref001")
    assert (origin.text, origin.origin, origin.session) == (SPAM, "web:https://example.org", "s1")
    assert alice.history(limit=1)[0].reason == "checked"
    alice.rollback()
    assert [each.id for each in alice.review()] == [change.id]
    assert not alice.preferences("likes")


def test_an_edited_change_still_waits_and_a_rejected_one_is_gone(alice):
    change = planted(alice)
    assert alice.review.edit(change.id, {"text": "other"}).text == "other"
    assert not alice.preferences("likes")
    with pytest.raises(InvalidValue, match="belong to the diary"):
        alice.review.edit(change.id, {"_origin": "user"})
    assert [each.text for each in alice.review.reject(change.id)] == ["other"]
    assert alice.review() == []
    with pytest.raises(UnknownEntry, match="These wait: none"):
        alice.review.accept(change.id)
    with pytest.raises(InvalidValue, match=r"name the changes\. These wait: none"):
        alice.review.reject()


@pytest.mark.parametrize("is_new", [True, False])
def test_a_change_after_a_trusted_one_of_its_transaction_has_no_conflict(alice, is_new):
    if not is_new:
        alice.blocks.set("plan", "first")
    with alice.transaction():
        alice.blocks.set("plan", "second", actor="user")
        alice.blocks.set("plan", "third", actor="web")
    (change,) = alice.review.accept(*[each.id for each in alice.review()])
    assert alice.blocks["plan"].text == "third"
    assert change.is_new is False


def test_a_change_between_two_trusted_ones_of_its_transaction_has_a_conflict(alice):
    with alice.transaction():
        for text, actor in (("first", "user"), ("second", "web"), ("third", "user")):
            alice.blocks.set("plan", text, actor=actor)
    (change,) = alice.review()
    with pytest.raises(EntryConflict, match=r"blocks/plan changed since\."):
        alice.review.accept(change.id)
    assert alice.blocks["plan"].text == "third"


def test_an_entry_written_by_a_machine_whose_clock_is_fast_has_no_conflict(alice):
    alice.blocks.set("plan", "first")
    export = alice.export()
    text = export["documents"]["blocks"]
    export["documents"]["blocks"] = re.sub('(?<=_updated = ")....', "2999", text)
    alice.import_(export, replace=True)
    alice.blocks.set("plan", "second", actor="web")
    alice.review.accept(*[each.id for each in alice.review()])
    assert alice.blocks["plan"].text == "second"


def test_the_removal_of_an_entry_that_expires_in_the_same_transaction_has_no_conflict(diary, alice):
    diary.constrain("blocks", Constraint(ttl=timedelta(days=30)))
    alice.blocks.set("plan", "first")
    alice.blocks.delete("plan", actor="web")
    diary.engine.now = lambda: datetime.now(UTC) + timedelta(days=31)
    (change,) = alice.review.accept(*[each.id for each in alice.review()])
    assert change.after is None
    assert alice.review() == []


def test_accepted_changes_name_the_entries_that_hold_them(alice):
    for text in ("tea", "milk", "chess"):
        alice.upsert_preference("likes", text, actor="web")
    alice.upsert_preference("likes", "chess", actor="user")
    made = alice.review.accept(*[each.id for each in alice.review()])
    assert [each.key for each in made] == ["likes/pref002", "likes/pref003", "likes/pref001"]
    assert [alice.why(each.key).text for each in made] == ["tea", "milk", "chess"]
    assert {each.key.partition("/")[2] for each in made} == {each.path[-1] for each in made}


def test_an_accepted_fact_that_is_equal_to_another_one_names_it(diary, alice):
    diary.register_schema("note", Note)
    for actor in ("web", "user"):
        alice.facts.commit(Note(words="tea"), actor=actor)
    (made,) = alice.review.accept(*[each.id for each in alice.review()])
    assert [f"facts/{fact.id}" for fact in alice.facts] == [made.key] == ["/".join(made.path)]


def test_two_changes_of_one_entry_are_made_together_only_with_force(alice):
    for text in ("one", "two"):
        alice.blocks.set("plan", text, actor=f"web:{text}")
        alice.upsert_preference("likes", text, actor=f"web:{text}")
    first, third, second, fourth = [each.id for each in alice.review()]
    with pytest.raises(
        EntryConflict, match=f"{first}, {second} are different changes of one entry"
    ) as error:
        alice.review.accept(first, second)
    assert error.value.keys == ["blocks/plan"]
    assert len(alice.review()) == 4
    alice.review.accept(
        third, fourth
    )  # new entries with ids that are assigned when they are stored
    assert len(alice.preferences("likes")) == 2
    alice.review.accept(second, first, force=True)
    assert alice.blocks["plan"].text == "one"


def test_equal_changes_of_one_entry_are_made_together(alice):
    alice.upsert_preference("likes", "tea")
    for number in (1, 2):
        alice.upsert_preference("likes", "tea", actor=f"web:{number}")
        alice.blocks.set("plan", "Lyon", actor=f"web:{number}")
    alice.review.accept(*[each.id for each in alice.review()])
    assert (alice.blocks["plan"].text, alice.review()) == ("Lyon", [])
    for number in (1, 2):
        alice.blocks.delete("plan", actor=f"web:{number}")
    alice.review.accept(*[each.id for each in alice.review()])
    assert "plan" not in alice.blocks


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("fields", [{"text": ""}, {"text": "\u200b"}, {"tone": "dark"}])
def test_an_edit_that_no_preference_may_be_is_refused_at_once(alice, fields, is_new):
    key = None if is_new else alice.upsert_preference("likes", "tea")[0]
    alice.upsert_preference("likes", "casino", id=key, actor="web")
    (change,) = alice.review()
    with pytest.raises(InvalidValue, match=r"the text is blank|no such field"):
        alice.review.edit(change.id, fields)
    alice.review.accept(change.id)
    assert [each.text for each in alice.preferences("likes").values()] == ["casino"]


def test_a_blank_text_that_a_person_wrote_is_not_accepted(tmp_path, alice):
    key, _ = alice.upsert_preference("likes", "tea")
    alice.upsert_preference("likes", "casino", id=key, actor="web")
    file = tmp_path / "memories/alice/quarantine.toml"
    file.write_text(file.read_text().replace('text = "casino"', 'text = ""'))
    with pytest.raises(InvalidValue, match="the text is blank"):
        alice.review.accept(alice.review()[0].id)
    assert alice.preferences("likes")[key].text == "tea"


@pytest.mark.parametrize(
    "fields", [{"value": 7}, {"role": "other"}, {"value": None}, {"vlue": "x"}]
)
def test_an_edit_that_no_fact_may_be_is_refused_at_once(alice, fields):
    alice.facts.commit(Diet(role="user", value="vegan"), actor="web")
    (change,) = alice.review()
    with pytest.raises(InvalidValue, match=r"^facts\.diet\.user|no such field"):
        alice.review.edit(change.id, fields)
    alice.review.accept(change.id)
    assert alice.facts.get("diet/user").data.value == "vegan"


@pytest.mark.parametrize("fields", [{"text": 5}, {"text": None}, {"contexts": "morning"}, "tea"])
def test_a_change_is_not_edited_into_what_no_entry_is(alice, fields):
    change = planted(alice)
    with pytest.raises(InvalidValue, match=r"expected (text|a list of text|a table), found"):
        alice.review.edit(change.id, fields)
    assert [each.text for each in alice.review()] == [change.text]


def test_a_text_that_a_person_made_a_number_is_not_accepted(tmp_path, alice):
    alice.blocks.set("persona", "short", actor="web")
    file = tmp_path / "memories/alice/quarantine.toml"
    file.write_text(file.read_text().replace('text = "short"', "text = 5"))
    with pytest.raises(InvalidValue, match=r"blocks\.persona\.text: expected text, found number"):
        alice.review.accept("1")
    assert (len(alice.blocks), len(alice.review())) == (0, 1)


def test_a_source_that_repeats_itself_waits_once(alice):
    planted(alice)
    planted(alice)
    alice.upsert_preference("likes", "other", actor="web")
    assert len(alice.review()) == 2


def test_a_removal_that_is_repeated_waits_once(alice):
    alice.upsert_preference("likes", "tea")
    for _ in range(2):
        alice.remove_preference("likes", "pref001", actor="web")
    (waiting,) = alice.review()
    with pytest.raises(InvalidValue, match="removes the entry and has no fields"):
        alice.review.edit(waiting.id, {"text": "coffee"})
    alice.review.accept(waiting.id)
    assert alice.preferences("likes") == {}


def test_an_equal_fact_without_a_key_waits_once_and_is_stored_once(diary, alice):
    diary.register_schema("note", Note, Constraint())
    for _ in range(2):
        alice.facts.commit(Note(words="x"), actor="web")
    (waiting,) = alice.review()
    alice.facts.commit(Note(words="x"), session_id="s1")
    alice.review.accept(waiting.id)
    assert alice.facts.count("note") == 1


def test_each_end_of_a_fact_waits(diary, alice):
    diary.register_schema("note", Note, Constraint("words", temporal=True))
    alice.facts.commit(Note(words="x"), valid_from=datetime(2020, 1, 1, tzinfo=UTC))
    ends = [datetime(year, 1, 1, tzinfo=UTC) for year in (2090, 2091)]
    for end in (*ends, ends[1]):
        alice.facts.update("note/x", {}, valid_to=end, actor="web")
    first, second = alice.review()
    alice.review.reject(first.id)
    alice.review.accept(second.id)
    assert alice.facts.get("note/x").valid_to == ends[1]


def test_of_two_reviews_at_once_only_one_decides(alice):
    change = planted(alice)
    results = []

    def accept():
        try:
            results.append(alice.review.accept(change.id))
        except UnknownEntry as error:
            results.append(error)

    threads = [threading.Thread(target=accept) for _ in range(2)]
    with alice.transaction():  # both wait for it
        for thread in threads:
            thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    assert [type(each) for each in results].count(UnknownEntry) == 1
    (item,) = alice.preferences("likes").values()
    assert item.count == 1


def test_an_edit_is_returned_although_another_review_decides_at_once(diary, alice, monkeypatch):
    alice.upsert_preference("likes", "one", actor="web")
    (change,) = alice.review()
    write = diary.engine.write

    def write_and_reject(*args):
        done = write(*args)
        monkeypatch.undo()
        alice.review.reject(change.id)
        return done

    monkeypatch.setattr(diary.engine, "write", write_and_reject)
    assert alice.review.edit(change.id, {"text": "other"}).text == "other"
    assert alice.review() == []


def test_accepting_obeys_the_rules_and_changes_of_today(diary, alice):
    change = planted(alice)
    for text in ("one", "two", "three"):
        alice.upsert_preference("likes", text)
    with pytest.raises(LimitReached):
        alice.review.accept(change.id)
    alice.remove_preference("likes", "pref002")
    alice.review.accept(change.id)
    assert alice.preferences("likes")["pref004"].text == SPAM
    alice.blocks.set("persona", "kind")
    alice.blocks.append("persona", SPAM, actor="web")
    (waiting,) = alice.review()
    assert waiting.before["text"] == "kind"
    alice.blocks.set("persona", "changed since")
    with pytest.raises(EntryConflict, match="blocks/persona changed since"):
        alice.review.accept(waiting.id)
    alice.review.accept(waiting.id, force=True)
    assert alice.blocks["persona"].text == f"kind\n{SPAM}"
    alice.facts.commit(Diet(role="user", value="vegan"), actor="web")
    (fact,) = alice.review()
    alice.facts.commit(Diet(role="user", value="omnivore"))
    with pytest.raises(ImmutableEntry):
        alice.review.accept(fact.id, force=True)
    assert alice.facts.get("diet/user").data.value == "omnivore"


def test_accepting_an_imported_conversation_keeps_the_turns_counted_since(alice):
    other = Diary("memory:", agent="rules").user("alice")
    other.add_turn("Hello.", "Hi.", session_id="s1")
    alice.import_(other.export(), actor="web:dump")
    for _ in range(3):
        alice.add_turn("Hello.", "Hi.", session_id="s1")
    alice.review.accept(*[each.id for each in alice.review()], force=True)
    assert alice.conversations()["s1"].turns == 3


def test_a_change_that_pruned_history_no_longer_shows_is_a_conflict(alice):
    alice.upsert_preference("likes", "tea")
    alice.upsert_preference("likes", "spam", id="pref001", actor="web")
    (waiting,) = alice.review()
    alice.upsert_preference("likes", "coffee", id="pref001")
    alice.blocks.set("note", "x")
    alice.prune_history(keep=1)
    with pytest.raises(EntryConflict, match="likes/pref001"):
        alice.review.accept(waiting.id)
    assert alice.preferences("likes")["pref001"].text == "coffee"


def test_an_operation_id_that_waits_is_repeated_without_effect(alice):
    answers = [
        alice.upsert_preference("likes", SPAM, actor="web", operation_id="op1") for _ in range(2)
    ]
    assert [(key, item.text) for key, item in answers] == [("pref001", SPAM)] * 2
    assert len(alice.review()) == 1


def test_forgetting_reaches_what_waits(tmp_path, alice):
    planted(alice)
    alice.blocks.set("notes", "said by s2", session_id="s2")
    alice.blocks.append("notes", "more", session_id="s1", actor="web")
    alice.forget(session_id="s2")
    assert [each.key for each in alice.review()] == ["likes/pref001"]
    alice.forget(session_id="s1")
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SPAM.encode() not in stored
    assert b"said by s2" not in stored


def test_extracted_entries_wait_while_conversations_are_counted(tmp_path):
    alice = Diary(tmp_path, agent="rules", quarantine={"rule"}).user("alice")
    alice.add_turn("I'm allergic to walnuts.", "Noted.", session_id="s1")
    assert not any(alice.preferences().values())
    assert alice.conversations()["s1"].turns == 1
    (change,) = alice.review()
    alice.review.accept(change.id)
    origin = alice.why(change.key)
    assert (origin.origin, origin.turn, origin.is_verified) == ("rule", "s1#1", False)


def test_a_pending_change_is_shown_and_made_by_its_path_alone(tmp_path, alice):
    alice.blocks.set("persona", "kind")
    alice.blocks.set("other", "x", actor="web")
    path = tmp_path / "memories/alice/quarantine.toml"
    text = path.read_text("utf-8").replace('key = "blocks/other"', 'key = "likes/harmless"')
    planted = [
        '[quarantine.all]\nkey = "likes/one"\ndocument = "blocks"\npath = ["blocks"]',
        '[quarantine.own]\nkey = "likes/two"\ndocument = "quarantine"\npath = ["quarantine", "x"]',
        '[quarantine.odd]\nkey = 5\npath = "x"\nentry = 3',
        '[quarantine.new]\ndocument = "notes"\npath = ["notes", "x"]\nentry = { text = "x" }',
        '[quarantine.bad]\ndocument = "preferences"\npath = "x"\nis_new = true\nentry = { text = "x" }',
    ]
    path.write_text("\n\n".join([text, *planted, ""]), "utf-8")
    assert [(each.id, each.key) for each in alice.review()] == [
        ("2", "blocks/other"), ("all", ""), ("own", ""), ("odd", ""), ("new", ""), ("bad", ""),
    ]  # fmt: skip
    for name in ("all", "own", "odd", "new", "bad"):
        with pytest.raises(InvalidValue, match="names no entry"):
            alice.review.accept(name)
        with pytest.raises(InvalidValue, match="names no entry"):
            alice.review.edit(name, {"text": "y"})
    alice.review.reject("all", "own", "odd", "new", "bad")
    assert [*alice.blocks] == ["persona"]


@pytest.mark.parametrize(
    ("is_new", "edited", "found"),
    [
        (True, "", "nothing"),
        (True, 'entry = "dark roast"', "text"),
        (False, 'entry = "dark roast"', "text"),
    ],
)
def test_a_pending_change_without_its_fields_removes_no_entry(
    tmp_path, alice, is_new, edited, found
):
    stored = [] if is_new else [alice.upsert_preference("likes", "coffee")]
    for options in ({"actor": "web"}, {"session_id": "s1", "ephemeral": True}):
        alice.upsert_preference("likes", "roast", id=None if is_new else "pref001", **options)
    stored = stored or [alice.upsert_preference("likes", "coffee")]
    for name in ("quarantine", "drafts"):
        path = tmp_path / f"memories/alice/{name}.toml"
        path.write_text(re.sub("(?m)^entry = .*", edited, path.read_text("utf-8")), "utf-8")
    drafted, reviewed = sorted(map(str, alice.problems()))
    assert f"entry: expected a table, found {found}." in drafted
    assert f"entry: expected a table, found {found}." in reviewed
    waits = alice.review()[0].id
    for decide in (lambda: alice.review.accept(waits), lambda: alice.promote_session("s1")):
        with pytest.raises(InvalidValue, match="the pending change has no fields"):
            decide()
    for seen in (alice, alice.draft("s1")):
        assert [*seen.preferences("likes").items()] == stored


def test_what_is_consolidated_waits_and_is_forgotten_with_its_episode(tmp_path):
    alice = Diary(tmp_path, agent="rules", quarantine={"rule"}).user("alice")
    episode = alice.episodes.add("I'm allergic to walnuts.", "Noted.", session_id="s1")
    alice.consolidate()
    alice.consolidate()
    assert not any(alice.preferences().values())
    (change,) = alice.review()
    assert change.reason == f"episodes/{episode}"
    alice.review.accept(change.id)
    assert alice.why(change.key).origin == "rule"
    alice.rollback()
    alice.forget(session_id="s1")
    assert alice.review() == []
    assert alice.traces("walnuts") == []


def test_a_confirmation_by_an_actor_without_trust_waits(tmp_path):
    alice = Diary(tmp_path, agent="rules", quarantine={"web"}).user("alice")
    alice.add_turn("I love tea.", "Noted.", session_id="s1")
    alice.confirm("likes/pref001", actor="web:forum")
    assert alice.why("likes/pref001").is_verified is False
    alice.review.accept(alice.review()[0].id)
    assert alice.why("likes/pref001").is_verified is True


def test_why_names_the_origin_and_confirm_verifies(tmp_path):
    def extract(message, deps):
        deps.upsert("likes", "new", "jazz", [])

    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.add_turn("I'm allergic to walnuts.", "Noted.", session_id="s1")
    ((category, items),) = [each for each in alice.preferences().items() if each[1]]
    key = f"{category}/{next(iter(items))}"
    assert (alice.why(key).origin, alice.why(key).is_verified) == ("rule", False)
    alice.confirm(key)
    assert (alice.why(key).origin, alice.why(key).is_verified) == ("rule", True)
    alice.upsert_preference("likes", "tea", actor="tool:crm")
    alice.blocks.set("later", "text")
    alice.prune_history(keep=1)
    assert alice.why("likes/pref001").origin == "tool:crm"
    alice.blocks.set("persona", "kind", actor="me")
    alice.confirm("blocks/persona")
    assert (alice.why("blocks/persona").origin, alice.why("blocks/persona").is_verified) == (
        "me",
        True,
    )
    Diary(tmp_path, agent=extract).user("alice").add_turn("I like jazz.", "Fine.", session_id="s2")
    assert alice.why("likes/pref002").origin == "model"
    with pytest.raises(UnknownEntry):
        alice.confirm("likes/pref009")


def test_a_rollback_restores_the_origin_with_the_content(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.add_turn("I love tea.", "Noted.", session_id="s1")
    alice.blocks.set("persona", "brief", actor="agent")
    changes = {
        "likes/pref001": lambda: alice.upsert_preference("likes", "x", id="pref001", actor="crm"),
        "blocks/persona": lambda: alice.blocks.delete("persona", actor="crm"),
    }
    for key, change in changes.items():
        before = alice.why(key).origin
        change()
        alice.rollback()
        assert alice.why(key).origin == before == {"l": "rule", "b": "agent"}[key[0]]


def test_the_extractor_is_the_origin_of_the_conversation_that_it_counted(tmp_path):
    def listen(message, *, deps):
        deps.summarise("Talked about tea.", ["tea"])

    for name, extractor, origin in (("a", "rules", "rule"), ("b", listen, "model")):
        alice = Diary(tmp_path / name, agent=extractor).user("alice")
        alice.add_turn("I love tea.", "ok", "s1")
        assert alice.why("conversations/s1").origin == origin


def test_all_that_an_actor_changed_in_a_transaction_names_its_origin(diary, alice, tmp_path):
    with alice.transaction():
        alice.upsert_preference("likes", "tea")
        alice.upsert_preference("likes", "jazz", actor="user")
        alice.upsert_preference("likes", "green tea", id="pref001", actor="tool")
        alice.blocks.set("notes", "x", actor="assistant")
        alice.blocks.set("notes", "x", actor="assistant", pinned=True)
    origins = [alice.why(key).origin for key in ("likes/pref001", "likes/pref002", "blocks/notes")]
    assert origins == ["tool", "user", "assistant"]
    bob = diary.user("bob")
    alice.facts.commit("diet", {"role": "user", "value": "vegan"})
    bob.import_(alice.export(), actor="import")
    assert '_origin = "import"' in bob.document("facts")
    assert bob.document("preferences").count('_origin = "import"') == 2


def test_an_origin_ends_with_the_content_that_it_is_about(tmp_path):
    def extract(message, deps):
        deps.upsert("likes", "pref001", "espresso, double", [])

    diary = Diary(tmp_path, agent=extract)
    alice = diary.user("alice")
    file, key = tmp_path / "alice/preferences.toml", "likes/pref001"

    def by_user(text="espresso"):
        alice.upsert_preference("likes", text, id="pref001", actor="user")
        assert alice.why(key).origin == "user"

    by_user()
    file.write_text(file.read_text("utf-8").replace("espresso", "ristretto"), "utf-8")
    assert (alice.why(key).text, alice.why(key).origin) == ("ristretto", "hand")
    alice.blocks.set("later", "the hand edit is logged with it")
    alice.upsert_preference("likes", "jazz")
    assert alice.why(key).origin == "hand"
    alice.confirm(key)
    assert alice.why(key).origin == "hand"
    by_user()
    DiaryStore(diary).put(("alice", "diary", "preferences", "likes"), "pref001", {"text": "mate"})
    assert (alice.why(key).text, alice.why(key).origin) == ("mate", "store")
    for actor in ("", "slack"):
        by_user()
        alice.upsert_preference("likes", "green tea", id="pref001", actor=actor)
        assert (alice.why(key).text, alice.why(key).origin) == ("green tea", actor)
    by_user()
    alice.add_turn("A double one.", "Noted.", session_id="s1")
    assert (alice.why(key).text, alice.why(key).origin) == ("espresso, double", "model")
    assert "_origin" not in file.read_text("utf-8")
    alice.rollback()
    assert (alice.why(key).text, alice.why(key).origin) == ("espresso", "user")


def test_a_hand_written_entry_has_its_origin_before_it_is_logged(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea", actor="user")
    file = tmp_path / "alice/preferences.toml"
    file.write_text(
        file.read_text("utf-8") + '\n[preferences.likes.mine]\ntext = "jazz"\n', "utf-8"
    )
    assert alice.why("likes/mine").origin == "hand"
    assert alice.why("likes/pref001").origin == "user"


def test_the_command_line_lists_edits_accepts_and_rejects(tmp_path, alice):
    planted(alice)
    alice.blocks.set("persona", "x", actor="web")
    where = ["--user", "alice", "--path", str(tmp_path / "memories")]

    def call(*words):
        return CliRunner().invoke(app, [*words, *where])

    assert "likes/pref001  casino bonus canary\n" in call("review").output
    assert json.loads(call("review", "--json").output)[1]["key"] == "blocks/persona"
    call("review", "edit", "2", "--text", "")
    assert "removed" not in call("review").output
    call("review", "edit", "1", "--text", "tea")
    assert "1 change accepted" in call("review", "accept", "1").output
    call("review", "reject", "2")
    assert alice.review() == []
    assert alice.preferences("likes")["pref001"].text == "tea"
    for wrong in (["burn", "1"], ["accept"], ["edit", "1"], ["list", "1"]):
        assert isinstance(call("review", *wrong).exception, InvalidValue)


def test_a_quarantine_may_be_a_function_and_is_never_one_text(tmp_path):
    async def waits(_actor):
        return False

    alice = Diary(tmp_path, agent="rules", quarantine=lambda actor: actor != "user").user("alice")
    alice.blocks.set("one", "x", actor="user")
    alice.blocks.set("two", "x", actor="anything")
    alice.blocks.set("three", "x")
    assert [*alice.blocks] == ["one", "three"]
    with pytest.raises(InvalidValue, match="a set of actors"):
        Diary(tmp_path, agent="rules", quarantine="web")
    with pytest.raises(InvalidValue, match="quarantine: an async function cannot be used"):
        Diary(tmp_path, agent="rules", quarantine=waits)
    with pytest.raises(InvalidValue, match=r"quarantine: a call with \(actor\) fails"):
        Diary(tmp_path, agent="rules", quarantine=lambda: True)


def test_the_time_to_live_of_an_item_begins_with_the_decision(diary, alice):
    with alice.transaction(actor="web:x"):
        DiaryStore(diary).put(("alice", "trips"), "k", {"text": "porto"}, ttl=60)
    (change,) = alice.review()
    alice.review.accept(change.id)
    stored = diary.engine.document("alice", "items/trips").table(("items", "k"))
    lived = [datetime.fromisoformat(stored[name]) for name in ("_updated", "_expires")]
    assert stored["_updated"] > change.after["_updated"]
    assert lived[1] - lived[0] == timedelta(minutes=60)


def test_a_verification_ends_when_the_content_is_replaced(diary, alice):
    alice.add_turn("I love tea.", "Noted.", session_id="s1")
    alice.upsert_preference("likes", "I love TEA", id="pref001", session_id="s2")
    assert alice.why("likes/pref001").is_verified is False  # the same, in another spelling
    alice.upsert_preference("likes", "espresso", id="pref001", session_id="s2")
    assert alice.why("likes/pref001").is_verified is True  # no rule stored this text
    diary.register_schema("note", Note)
    fact = f"facts/{alice.facts.commit(Note(words='a'))}"
    alice.blocks.set("persona", "kind")
    keys = ["likes/pref001", fact, "blocks/persona"]
    for key in keys:
        alice.confirm(key)
        assert alice.history(key)[0].after["_verified"] is True
    alice.upsert_preference("likes", "ristretto", id="pref001", actor="assistant")
    alice.facts.update(fact, {"words": "b"}, actor="assistant")
    alice.blocks.append("persona", "quick", actor="assistant")
    assert not [key for key in keys if "_verified" in alice.history(key)[0].after]
