"""Erasing one entry for good, or every mention of a text, and the proof that nothing is left."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from engines import space
from hand_edits import age
from tomldiary import Constraint, Diary, MemoryWriter, Turn
from tomldiary.cli.app import app
from tomldiary.errors import InvalidTOML, InvalidValue, UnknownEntry
from tomldiary.forgetting.redact_tables import Tables, Versions
from tomldiary.forgetting.selection import Selection
from tomldiary.history.timeline import Timeline
from tomldiary.store.operations import Put
from tomldiary.store.store import ItemStore
from waiting import until

CANARY = "Walnut"


@pytest.fixture
def alice(tmp_path):
    return Diary(tmp_path, agent="rules").user("alice")


def filled(alice):
    """A memory with a text in entries of every kind, in any case, and entries without it."""
    alice.upsert_preference("likes", f"{CANARY}s rock", contexts=["party"])
    alice.upsert_preference("likes", "tea", contexts=["walnut cake"])
    with alice.transaction(reason="she likes walnuts too"):
        alice.upsert_preference("likes", "jazz")
    alice.blocks.set("notes", "calm")
    alice.blocks.append("notes", "walnut pie", session_id="s3")
    alice.blocks.set("walnut", "named so")
    alice.episodes.add("do you like WALNUT?", "yes", now=datetime(2026, 1, 1, tzinfo=UTC))
    alice.episodes.add("hello", "hi", now=datetime(2026, 1, 2, tzinfo=UTC))
    alice.upsert_preference("likes", "walnut oil", session_id="s9", ephemeral=True)


def test_every_mention_of_a_text_is_erased_and_nothing_else(alice):
    filled(alice)
    counted = alice.forget(matching="walnut", dry_run=True)
    assert alice.traces(CANARY)
    done = alice.forget(matching="wALNUT")
    assert (done.entries, done.records) == (counted.entries, counted.records)
    assert alice.traces(CANARY) == []
    assert [item.text for item in alice.preferences("likes").values()] == ["jazz"]
    assert {name: block.text for name, block in alice.blocks().items()} == {"notes": "calm"}
    assert [each.input for each in alice.episodes()] == ["hello"]
    assert alice.drafts() == []


def test_only_changes_to_and_from_the_erased_text_lose_their_reason(alice):
    for number, text in enumerate(["tea", "walnut tea", "rum", "gin"]):
        alice.upsert_preference("likes", text, id="pref001", reason=f"reason {number}")
    alice.upsert_preference("likes", "walnuts", id="pref002", reason="reason 4")
    alice.remove_preference("likes", "pref002", reason="reason 5")
    alice.forget(matching="walnut")
    records = Timeline(alice.diary.engine.backend, "alice").records()
    reasons = [record.reason for record in records if record.type != "forget"]
    assert reasons[::-1] == ["reason 0", "", "", "reason 3", "", ""]


def test_a_turn_of_another_session_is_still_applied_once_after_a_text_was_erased(alice):
    for said, session in [("I love tea.", "s1"), ("I love walnuts.", "s2")]:
        alice.add_turn(said, "ok", session, operation_id=session)
    alice.forget(matching="walnut")
    alice.add_turn("I love tea.", "ok", "s1", operation_id="s1")
    assert alice.preferences("likes")["pref001"].count == 1


def test_the_last_text_of_an_entry_returns_with_its_comments_and_inner_tables(alice, tmp_path):
    file = tmp_path / "alice/preferences.toml"
    alice.upsert_preference("goals", "rest")
    mine = '[preferences.likes.mine]\ntext = "tea"  # every day\n'
    mine += "\n[preferences.likes.mine.more]\nx = 1  # one\n"
    file.write_text(f"{file.read_text()}\n{mine}")
    age(file)
    alice.upsert_preference("likes", "walnut tea", id="mine")
    alice.forget(matching="walnut")
    assert file.read_text().endswith(mine)


def test_a_redacted_text_that_has_a_selected_state_or_changes_another_is_refused():
    text = '[preferences.likes]\na = {{ text = "walnut" }}\nb = {{ text = "{}" }}\n'
    tables = Tables(Versions("preferences"), Selection(matching="walnut"))
    tables.study(text.format("tea"), datetime.now(UTC))
    tables.decide()
    made = '[preferences.likes]\nb = {{ text = "{}" }}\n'
    assert tables.prove(text.format("tea"), made.format("tea"))
    for wrong in (text.format("tea"), made.format("rum"), ""):
        with pytest.raises(InvalidValue, match="Nothing was forgotten"):
            tables.prove(text.format("tea"), wrong)
    with pytest.raises(InvalidTOML):
        tables.prove(text.format("tea"), made.format("tea") * 2)


def test_a_dry_run_names_what_would_be_erased_or_return_to_earlier_content(alice):
    filled(alice)
    alice.remove_preference("likes", "pref001")  # only history has it now
    episode = f"episodes/{alice.episodes()[0].id}"
    [draft] = [f"drafts/{each.id}" for each in alice.drafts()]
    counted = alice.forget(matching="walnut", dry_run=True)
    erased = ["blocks/walnut", draft, episode, "likes/pref001", "likes/pref002"]
    assert [*counted.keys] == sorted([*erased, "blocks/notes"])
    assert counted.entries == len(erased)
    assert "blocks/<wbr>notes" in counted._repr_html_()
    assert alice.forget(matching="walnut").keys == ()  # a key may be content
    assert alice.forget(matching="walnut", dry_run=True).keys == ()
    assert "likes/pref003" in alice.forget(everything=True, dry_run=True).keys
    assert alice.forget(everything=True).keys == ()


@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize("selector", ["key", "source"])
@pytest.mark.parametrize("place", ["folder", "memory"])
def test_an_episode_is_forgotten_with_what_was_extracted_from_its_turn(
    tmp_path, place, selector, is_removed
):
    diary = Diary(space(place, tmp_path).backend(), agent="rules", episodes=True)
    alice = diary.user("alice")
    alice.add_turn("I love walnuts. I'm allergic to walnut dust.", "Noted.", session_id="s1")
    alice.add_turn("I hate rain.", "Noted.", session_id="s1")
    episode = f"episodes/{alice.episodes()[0].id}"
    selected = ["allergies/pref001", episode, "likes/pref001"]
    assert sorted({each.key for each in alice.history(source=episode)}) == selected
    if is_removed:
        alice.episodes.delete(episode)
    chosen = {selector: episode}
    assert [*alice.forget(**chosen, dry_run=True).keys] == selected
    assert alice.forget(**chosen).entries == 3
    assert alice.traces("walnut") == []
    assert [hit.source for hit in alice.recall("rain")] == ["s1#2", "s1#2"]


def test_an_episode_without_a_turn_is_forgotten_with_what_was_derived_from_it_only(alice):
    filled(alice)
    key = alice.episodes.add("I love walnuts.", "Noted.", session_id="s1")
    before = len(alice.history(limit=None))
    assert alice.history(source=f"episodes/{key}") == []
    assert alice.forget(key=f"episodes/{key}").entries == 1
    assert len(alice.history(limit=None)) == before - 1


@pytest.mark.parametrize("has_turn", [False, True])
def test_an_episode_is_also_named_by_its_bare_id(tmp_path, has_turn):
    alice = Diary(tmp_path, agent="rules", episodes=True).user("alice")
    alice.diary.register_schema("note", Note)
    if has_turn:
        alice.add_turn("I love walnuts.", "Noted.", session_id="s1")
    else:
        alice.episodes.add("I love walnuts.", "Noted.", session_id="s1")
    name = alice.episodes()[0].id
    fact = f"facts/{alice.facts.commit(Note(text='walnut cake'), source=name)}"
    found = {each.key for each in alice.history(source=name)}
    assert fact in found
    assert ("likes/pref001" in found) == has_turn
    assert found == {each.key for each in alice.history(source=f"episodes/{name}")}
    assert fact in alice.forget(source=name, dry_run=True).keys
    alice.forget(key=f"episodes/{name}")
    assert alice.traces("walnut") == []


@pytest.mark.parametrize("prefix", ["", "episodes/"])
@pytest.mark.parametrize(
    "selector",
    [{"source": "s1#1"}, {"source": "s1"}, {"session_id": "s1"}, {"matching": "walnuts"}],
)
def test_a_fact_that_names_the_episode_of_a_turn_is_forgotten_with_the_turn(
    tmp_path, prefix, selector
):
    alice = Diary(tmp_path, agent="rules", episodes=True).user("alice")
    alice.diary.register_schema("note", Note)
    for session, food in (("s1", "walnuts"), ("s2", "figs")):
        alice.add_turn(f"I love {food}.", "Noted.", session_id=session)
        source = f"{prefix}{alice.episodes()[-1].id}"
        alice.facts.commit(Note(text=f"{food} are loved"), source=source)
    alice.facts.commit(Note(text="a tree"), source=alice.episodes()[0].id, session_id="s2")
    walnuts = next(fact for fact in alice.facts if "walnuts" in fact.data.text)
    assert f"facts/{walnuts.id}" in {each.key for each in alice.history(source="s1#1")}
    alice.forget(**selector)
    assert alice.traces("walnuts") == []
    # What another session said stays, but not if its source is forgotten.
    also = [] if "source" in selector else ["a tree"]
    assert sorted(fact.data.text for fact in alice.facts) == [*also, "figs are loved"]


def test_an_episode_without_an_id_is_the_source_of_no_entry(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    assert alice.history(source="episodes/") == []


@pytest.mark.parametrize(
    "text", ['say "hi"', "C:\\temp", "a\ttab", "two\nlines", "it's so", "café \N{BELL} 😀"]
)
@pytest.mark.parametrize("place", ["folder", "memory"])
def test_traces_find_every_text_that_only_history_has(tmp_path, place, text):
    alice = Diary(space(place, tmp_path).backend(), agent="rules").user("alice")
    alice.upsert_preference("likes", f"so {text}!")
    alice.remove_preference("likes", "pref001")
    assert [each for each in alice.traces(text) if "history" in each]
    alice.forget(matching=text)
    assert alice.traces(text) == []


@pytest.mark.parametrize("text", ['say "hi" in C:\\temp', 'a """quote"""', 'ends with "this"'])
def test_traces_find_texts_in_strings_on_several_lines(alice, text):
    alice.blocks.set("inside", f"first\nso {text}!")
    assert len(alice.traces(text)) == 2  # the document and its history
    alice.forget(key="blocks/inside")
    alice.blocks.set("end", f"first\n{text}")
    assert len(alice.traces(text)) == 2
    alice.forget(matching=text)
    assert alice.traces(text) == []


@pytest.mark.parametrize("stored", ["I love Café Größe.", "I love Cafe\u0301 Gro\u0308ße."])
@pytest.mark.parametrize("asked", ["café gröSSe", "CAFE\u0301 GRO\u0308ßE"])
def test_accents_are_found_in_both_forms_of_unicode(alice, tmp_path, stored, asked):
    alice.upsert_preference("likes", "cafe groups")
    alice.add_turn(stored, "Noted.", session_id="s1")
    assert alice.traces(asked)
    assert alice.forget(matching=asked).entries == 1
    assert alice.traces(asked) == []
    left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert not any(each.encode() in left for each in ("Caf\u00e9", "Cafe\u0301"))
    assert [item.text for item in alice.preferences("likes").values()] == ["cafe groups"]


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ("\u0130stanbul", "istanbul"),
        ("\u0131sparta", "ISPARTA"),
        ("John\u00a0Smith", "John Smith"),
        ("John Smith", "John\u202fSmith"),
        ("John\r\n\tSmith", "John Smith"),
        ("Jo\u00adhn\u200bSmith", "john smith"),
        (
            "Jose\u200b\u0301 \u1100\u200b\u1161 \u05e9\u05c1\u034f\u05b8",
            "José 가 \u05e9\u05b8\u05c1",
        ),
        ("John Smith", "john\u200bsm\u00adith"),
        ('say\u00a0"hi" to C:\\new', 'say "h\u200di"\nto C:\\new'),
        ("\uff2a\uff4f\uff48\uff4e Smith", "John Smith"),
        (
            "\u0665\u0660 \u0645\u0640\u200b\u0640\u062d",
            "50 \u0645\u062d",
        ),  # digits, and a longer word
        ("No. 505550555", "no. \u06f5\u06f0\u06f5\u06f5\u06f5\u06f0\u06f5\u06f5\u06f5"),
    ],
)
@pytest.mark.parametrize("is_long", [False, True])
def test_every_spelling_of_a_text_is_erased(alice, tmp_path, stored, asked, is_long):
    alice.blocks.set("doctor", "The therapist is in.")
    alice.blocks.set("a", f"first\n{stored}" if is_long else stored)
    alice.episodes.add(stored, "ok", session_id="s1")
    alice.blocks.set("b", "x", reason=stored)
    assert alice.traces(asked)
    assert alice.traces("the rapist") == []
    alice.forget(matching=asked)
    assert alice.traces(asked) == alice.traces(stored) == []
    left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert stored.encode() not in left
    assert [*alice.blocks()] == ["doctor", "b"]


@pytest.mark.parametrize("is_decided", [False, True])
@pytest.mark.parametrize("waits", [{"ephemeral": True}, {"actor": "web:page"}])
def test_a_waiting_change_is_forgotten_by_the_name_its_writer_chose(tmp_path, waits, is_decided):
    diary = Diary(tmp_path, agent="rules", quarantine={"web"})
    alice = diary.user("alice")
    alice.blocks.set("walnut", "calm", session_id="s1", **waits)
    alice.upsert_preference("likes", "tea", id="walnut", session_id="s1", **waits)
    with alice.transaction(session_id="s1", **waits):
        if "actor" in waits:  # the puts of a store are never drafts
            notes = ("alice", "notes")
            ItemStore(diary).run([Put(notes, "walnut", {"v": 1}), Put(notes, "k", {"walnut": 1})])
    if is_decided and "actor" in waits:
        for change in alice.review():
            alice.review.reject(change.id)
    elif is_decided:
        alice.discard_session("s1")
    assert alice.forget(matching="walnut").entries == (4 if "actor" in waits else 2)
    assert alice.traces("walnut") == []


class Note(BaseModel):
    text: str


class Home(BaseModel):
    who: str


def test_generated_ids_sessions_and_starts_of_facts_mention_no_text(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.register_schema("notes", Note)
    diary.register_schema("homes", Home, Constraint(singleton_key="who", temporal=True))
    alice = diary.user("alice")
    alice.facts.commit(Note(text="calm"))
    alice.facts.commit(Home(who="walnut"), valid_from=datetime(2026, 5, 1, tzinfo=UTC))
    key = "ada00000-0000-4000-8000-000000000000"  # as programs generate it
    ItemStore(diary).run([Put(("alice", "memories"), key, {"v": 1})])
    alice.add_turn("hello", "hi", session_id="chat of 2026")
    alice.episodes.add("I love jazz.", "ok", now=datetime(2026, 1, 1, tzinfo=UTC))
    alice.consolidate()
    for text in ("fact", "2026", "ada"):
        assert alice.forget(matching=text, dry_run=True).keys == ()
    assert [*alice.forget(matching="walnut", dry_run=True).keys] == [
        "facts/homes/walnut@2026-05-01"
    ]
    assert alice.forget(matching=key.upper(), dry_run=True).keys == (f"items/memories/{key}",)


class Contact(BaseModel):
    phone: int
    born: date


def test_numbers_and_times_are_erased_as_they_are_shown_and_stored(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.register_schema("contact", Contact)
    alice = diary.user("alice")
    fact = alice.facts.commit(Contact(phone=5551234, born=date(1980, 5, 6)))
    met = datetime(1980, 5, 6, 7, 8)  # noqa: DTZ001 - a time without a zone, as people write it
    ItemStore(diary).run([Put(("alice", "trips"), "x", {"at": [{"met": met}], "rate": 5551234.25})])
    ItemStore(diary).run([Put(("alice", "trips"), "y", {"at": datetime(2026, 1, 2, tzinfo=UTC)})])
    for text in ("2026-01-02T00:00:00+00:00", "2026-01-02T00:00:00Z"):
        assert alice.forget(matching=text, dry_run=True).keys == ("items/trips/y",)
    keys = {f"facts/{fact}", "items/trips/x"}
    assert {*alice.forget(matching="5551", dry_run=True).keys} == keys
    assert {*alice.forget(matching="1980-05-06", dry_run=True).keys} == keys
    for text in ("1980-05-06 07:08", "1980-05-06T07:08", "551234.25"):
        assert alice.forget(matching=text, dry_run=True).keys == ("items/trips/x",)
    alice.forget(matching="5551234")  # long enough to be in no digest and time of history
    assert alice.traces("5551234") == []


def test_a_waiting_change_without_its_path_is_forgotten(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "walnut cake", ephemeral=True, session_id="s1")
    file = tmp_path / "alice" / "drafts.toml"
    text, number = re.subn(r"(?m)^path = .*\n", "", file.read_text())
    assert number == 1
    file.write_text(text)
    assert alice.forget(matching="walnut").entries == 1
    assert alice.traces("walnut") == []


@pytest.mark.parametrize("text", ["walnut", "tea"])
def test_a_list_whose_tables_repeat_a_header_hinders_no_erasure(alice, tmp_path, text):
    alice.upsert_preference("likes", "walnut cake")
    alice.upsert_preference("likes", "jazz")
    with (tmp_path / "alice/preferences.toml").open("a") as opened:
        opened.write(
            f'\n[[notes]]\n[notes.sub]\ny = "{text}"\n\n[[notes]]\n[notes.sub]\ny = "tea"\n'
        )
    alice.forget(matching="walnut")
    assert alice.traces("walnut") == []
    assert [each.text for each in alice.preferences("likes").values()] == ["jazz"]
    assert ("[notes.sub]" in alice.document("preferences")) == (text == "tea")


def test_traces_find_a_text_that_json_escapes(alice, tmp_path):
    alice.blocks.set("a", "x")
    queue = tmp_path / ".tomldiary" / "queue.toml"
    said = json.dumps({"said": "\N{GRINNING FACE} John\u00a0\u00d6l\nSmith"})
    queue.write_text(f"turn = {json.dumps(said)}")
    assert alice.traces("\N{GRINNING FACE} john \u00f6l smith") == [".tomldiary/queue.toml"]


def test_the_random_key_of_a_folder_is_no_trace_of_a_text(tmp_path):
    (tmp_path / ".tomldiary").mkdir()
    (tmp_path / ".tomldiary/epochs.key").write_bytes(b"s2 " * 16)
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea", session_id="s2")
    alice.forget(session_id="s2")
    assert alice.traces("s2") == []


def test_traces_are_searched_while_a_writer_removes_its_journal(alice, tmp_path, monkeypatch):
    alice.blocks.set("a", "walnut")
    root = tmp_path / ".tomldiary" / "journal"
    for name in ("one", "two"):
        (root / name).mkdir(parents=True)
        (root / name / "000001.toml").touch()
    read = Path.read_bytes

    def read_late(path):
        if root in path.parents:
            shutil.rmtree(root)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_late)
    assert alice.traces("walnut")[0] == "alice/blocks.toml"
    assert not root.exists()


def test_traces_are_searched_beside_a_file_in_place_of_a_folder(alice, tmp_path):
    (tmp_path / "bob").write_text("no folder")
    assert Diary(tmp_path, agent="rules").user("bob").traces("walnut") == []
    alice.blocks.set("a", "walnut")
    shutil.rmtree(tmp_path / ".tomldiary")
    (tmp_path / ".tomldiary").write_text("no folder")
    assert alice.traces("walnut")[0] == "alice/blocks.toml"


def test_a_text_of_hidden_characters_cannot_be_forgotten(alice):
    alice.blocks.set("a", "x\u200by")
    with pytest.raises(InvalidValue, match="matching must be a non-empty string"):
        alice.forget(matching="\u200b")


def test_one_entry_is_erased_with_all_its_versions(alice):
    alice.upsert_preference("likes", "old secret")
    alice.upsert_preference("likes", "new canary", id="pref001")
    alice.upsert_preference("likes", "tea")
    alice.upsert_preference("likes", "draft canary", id="pref001", session_id="s1", ephemeral=True)
    receipt = alice.forget(key="likes/pref001")
    assert receipt.entries == 2
    assert alice.traces("secret") == alice.traces("canary") == []
    assert [*alice.preferences("likes")] == ["pref002"]
    assert alice.history("likes/pref001") == []
    assert alice.upsert_preference("likes", "jazz")[0] == "pref003"
    assert alice.forget(key="likes/pref001").entries == 0


def renamed(alice, tmp_path, old, new, text=CANARY):
    """Give the header of an entry another path, as a person does."""
    path = tmp_path / "alice" / "preferences.toml"
    path.write_text(path.read_text().replace(f"[preferences.{old}]", f"[preferences.{new}]"))
    os.utime(path, (1, 1))  # the save is over
    assert new.replace(".", "/") in [hit.key for hit in alice.recall(text)]


def test_an_entry_is_erased_under_the_ids_it_had_before_a_person_renamed_it(alice, tmp_path):
    alice.upsert_preference("likes", f"{CANARY} bread")
    alice.upsert_preference("likes", f"{CANARY} rolls", id="pref001")
    renamed(alice, tmp_path, "likes.pref001", "likes.bakery")
    alice.upsert_preference("likes", f"{CANARY} buns", id="bakery")
    renamed(alice, tmp_path, "likes.bakery", "routines.bakery")
    alice.upsert_preference("likes", f"{CANARY} oil")
    alice.remove_preference("likes", "pref002")
    alice.forget(key="routines/bakery")
    left = {change.key for change in alice.history() if CANARY in f"{change.before}{change.after}"}
    assert left == {"likes/pref002"}


def test_an_entry_whose_time_is_a_list_is_erased_under_its_earlier_id(alice, tmp_path):
    alice.upsert_preference("likes", f"{CANARY} bread")
    path = tmp_path / "alice" / "preferences.toml"
    path.write_text(re.sub("_created = .*", "_created = [1]", path.read_text()))
    renamed(alice, tmp_path, "likes.pref001", "likes.bakery")
    renamed(alice, tmp_path, "likes.bakery", "likes.baker")
    alice.forget(key="likes/baker")
    left = {change.key for change in alice.history() if CANARY in f"{change.before}{change.after}"}
    assert left == {"likes/pref001"}  # it had another time


@pytest.mark.parametrize("is_one_turn", [False, True])
@pytest.mark.parametrize(
    ("ids", "left"),
    [
        ({"pref002": "pref001", "pref003": "pref002"}, ["tea"]),
        ({"pref001": "pref002", "pref002": "pref001"}, ["oil", "tea"]),
    ],
    ids=["renumbered", "exchanged"],
)
def test_an_entry_is_erased_under_an_id_that_another_one_got_instead(
    alice, tmp_path, ids, left, is_one_turn
):
    texts = ("oil", f"{CANARY} bread", "tea")
    if is_one_turn:  # all entries have the time of the turn
        alice.add_turn(" ".join(f"I love {text}." for text in texts), "ok", "s1")
    else:
        for text in texts:
            alice.upsert_preference("likes", text)
    path = tmp_path / "alice" / "preferences.toml"
    head, *tables = path.read_text().split("\n\n")
    if "pref003" in ids:
        del tables[0]
    text = "\n\n".join([head, *tables])
    path.write_text(re.sub(r"pref\d+(?=\])", lambda found: ids.get(found[0], found[0]), text))
    os.utime(path, (1, 1))  # the save is over
    (hit,) = alice.recall(CANARY)
    alice.forget(key=hit.key)
    assert alice.traces(CANARY) == []
    assert sorted(item.text for item in alice.preferences("likes").values()) == [
        f"I love {text}." if is_one_turn else text for text in left
    ]


def test_an_entry_that_stays_keeps_the_versions_before_it_had_the_erased_id(alice, tmp_path):
    for key, text in (("oil", "oil"), ("oil", "olive oil"), ("bread", f"{CANARY} bread")):
        alice.upsert_preference("likes", text, id=key)
    renamed(alice, tmp_path, "likes.oil", "likes.first", "oil")
    alice.upsert_preference("dislikes", "noise")  # history has the name of each step
    renamed(alice, tmp_path, "likes.first", "likes.second", "oil")
    renamed(alice, tmp_path, "likes.bread", "likes.first")
    alice.forget(key="likes/first")
    assert alice.traces(CANARY) == []
    changes = alice.history("likes/oil")
    assert [change.after["text"] for change in changes if change.after] == ["olive oil", "oil"]


def test_an_entry_is_erased_under_a_name_that_another_one_has_now(alice, tmp_path):
    alice.blocks.set("plan", f"{CANARY} bread")
    path = tmp_path / "alice" / "blocks.toml"
    path.write_text(path.read_text().replace("[blocks.plan]", "[blocks.bakery]"))
    os.utime(path, (1, 1))  # the save is over
    alice.blocks.set("plan", "a trip")
    alice.blocks.set("plan", "a trip to Lyon")
    alice.forget(key="blocks/bakery")
    assert alice.traces(CANARY) == []
    assert [change.key for change in alice.history()] == ["blocks/plan", "blocks/plan"]
    assert alice.blocks["plan"].text == "a trip to Lyon"


def test_changes_that_wait_under_an_earlier_id_of_an_entry_are_erased(tmp_path):
    alice = Diary(tmp_path, agent="rules", quarantine={"web"}).user("alice")
    alice.upsert_preference("likes", f"{CANARY} bread")
    alice.upsert_preference("likes", f"{CANARY} buns", id="pref001", actor="web:x")
    alice.upsert_preference("likes", f"{CANARY} oil", id="pref001", session_id="s1", ephemeral=True)
    renamed(alice, tmp_path, "likes.pref001", "likes.bakery")
    alice.upsert_preference("likes", "tea")
    alice.upsert_preference("likes", "green tea", id="pref002", actor="web:x")
    alice.forget(key="likes/bakery")
    assert alice.traces(CANARY) == []
    assert [change.text for change in alice.review()] == ["green tea"]


@pytest.mark.parametrize("is_rolled_back", [False, True])
def test_an_erased_earlier_id_of_an_entry_leaves_the_entry(alice, tmp_path, is_rolled_back):
    alice.upsert_preference("likes", f"{CANARY} bread")
    renamed(alice, tmp_path, "likes.pref001", "likes.bakery")
    if is_rolled_back:
        alice.rollback(1)
    alice.forget(key="likes/bakery" if is_rolled_back else "likes/pref001")
    assert list(alice.preferences("likes")) == ["pref001" if is_rolled_back else "bakery"]


@pytest.mark.parametrize("kind", ["draft", "waiting change"])
def test_an_erased_entry_leaves_no_copy_that_had_another_id(tmp_path, kind):
    alice = Diary(tmp_path, agent="rules", quarantine={"web"}).user("alice")
    held = {"ephemeral": True} if kind == "draft" else {"actor": "web"}
    with alice.transaction(session_id="s", **held) as tx:
        tx.upsert_preference("likes", "a canary")
    alice.upsert_preference("likes", "tea")
    if kind == "draft":
        alice.promote_session("s")
    else:
        (waiting,) = alice.review()
        alice.review.edit(waiting.id, {"text": "the canary"})
        alice.review.accept(waiting.id)
    with alice.transaction(session_id="s2", **held) as tx:
        tx.upsert_preference("likes", "jazz", id="pref002")
        tx.upsert_preference("likes", "a dream")
    assert "canary" in alice.preferences("likes")["pref002"].text  # the change was for pref001
    alice.forget(key="likes/pref002")
    assert alice.traces("canary") == []
    assert [*alice.preferences("likes")] == ["pref001"]
    kept = alice.drafts() or alice.review()
    assert [each.text for each in kept] == ["a dream"]


def test_an_erased_entry_leaves_no_draft_that_joined_it_by_its_text(alice):
    alice.upsert_preference("likes", "a canary", id="mine", session_id="s", ephemeral=True)
    alice.upsert_preference("likes", "a canary")
    alice.promote_session("s")
    assert [*alice.preferences("likes")] == ["pref001"]
    alice.forget(key="likes/pref001")
    assert alice.traces("canary") == []


def test_a_draft_is_erased_with_the_session_whose_turn_its_entry_names(tmp_path):
    alice = Diary(tmp_path, agent=lambda message, deps: edited(deps)).user("alice")

    def edited(deps):
        deps.upsert("likes", "pref001", "walnut cake", [])

    alice.upsert_preference("likes", "walnut", session_id="first")
    alice.add_turn("Walnut cake.", "Fine.", session_id="turned")
    alice.upsert_preference("likes", "walnut cake", session_id="confirmed")
    alice.draft("drafted").upsert_preference("likes", id="pref001", contexts=["noon"])
    assert alice.drafts()
    alice.forget(session_id="turned")
    assert alice.traces("turned") == alice.drafts() == []
    assert alice.preferences("likes")["pref001"].text == "walnut cake"


def test_a_waiting_change_of_an_item_is_erased_by_its_id_whatever_it_says(tmp_path):
    diary = Diary(tmp_path, agent="rules", quarantine={"web"})
    alice, store = diary.user("alice"), ItemStore(diary)
    key, other = "11111111-2222-4333-8444-555555555555", "99999999-2222-4333-8444-555555555555"
    with alice.transaction(actor="web"):
        store.run([Put(("alice", "mem"), key, {"text": "a canary"})])
        store.run([Put(("alice", "mem"), other, {"text": "tea"})])
    store.run([Put(("alice", "mem"), key, {"text": "tea"})])
    assert len(alice.review()) == 2
    alice.forget(key=f"items/mem/{key}")
    assert alice.traces("canary") == []
    assert [each.key for each in alice.review()] == [f"items/mem/{other}"]


class Diet(BaseModel):
    role: str
    food: str


def test_a_draft_keeps_what_a_later_turn_said_after_the_first_is_erased(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
    alice = diary.user("alice")
    first, second = (
        f"episodes/{alice.episodes.add(each, each, session_id='s')}" for each in ("one", "two")
    )
    for source, food in ((first, "canary"), (second, "tea")):
        said = Diet(role="user", food=food)
        alice.facts.commit(said, ephemeral=True, session_id="s", source=source)
    alice.forget(key=first)
    assert alice.traces("canary") == []
    assert [each.after["food"] for each in alice.drafts()] == ["tea"]


def test_a_draft_stays_that_says_what_an_entry_said_after_its_turn(alice):
    alice.diary.register_schema("diet", Diet, Constraint())
    first = f"episodes/{alice.episodes.add('one', 'ok', session_id='s')}"
    tea = Diet(role="user", food="tea")
    alice.facts.commit(tea, session_id="s2", ephemeral=True)
    fact = alice.facts.commit(Diet(role="user", food="canary"), session_id="s", source=first)
    alice.facts.update(fact, {"food": "tea"}, session_id="s3")
    alice.forget(key=first)
    assert alice.traces("canary") == []
    assert [each.after["food"] for each in alice.drafts()] == ["tea"]


def test_keys_of_every_kind_can_be_erased(alice):
    filled(alice)
    ItemStore(alice.diary).run([Put(("alice", "mem"), "k1", {"text": "item canary"})])
    alice.add_turn("I like canary birds.", "Fine.", session_id="s7")
    (episode, _) = alice.episodes()
    keys = ["blocks/notes", f"episodes/{episode.id}", "items/mem/k1", "conversations/s7"]
    for key in keys:
        assert alice.forget(key=key, dry_run=True) != alice.forget(key="blocks/none", dry_run=True)
        alice.forget(key=key)
    assert alice.traces("item canary") == alice.traces("walnut pie") == []
    with pytest.raises(UnknownEntry):
        alice.forget(key="nonsense")
    for wrong in ("", " "):
        with pytest.raises(InvalidValue):
            alice.forget(matching=wrong)
        with pytest.raises(InvalidValue):
            alice.traces(wrong)
    for key in ("likes/pref001", "nonsense"):
        with pytest.raises(InvalidValue, match="exactly one"):
            alice.forget(key=key, matching="x")
    with pytest.raises(InvalidValue, match="key must be a non-empty string"):
        alice.forget(key=" ")


def test_generated_ids_and_times_do_not_count_as_mentions(alice):
    filled(alice)
    for text in ("pref", "2026", "likes", "_created", "text"):
        assert alice.forget(matching=text, dry_run=True).entries == 0


def test_waiting_turns_that_mention_the_text_are_erased(tmp_path):
    began, may_end = threading.Event(), threading.Event()

    def extract(message, deps):
        began.set()
        assert may_end.wait(20)

    alice = Diary(tmp_path, agent=extract).user("alice")
    with MemoryWriter(alice.diary, workers=1) as writer:
        for said in ("Hello.", "I like walnut bread.", "I like tea."):
            writer.submit_nowait(Turn("alice", "s1", said, "Fine."))
        assert began.wait(20)
        until(lambda: alice.traces("tea"))
        assert alice.traces("walnut")
        alice.forget(matching="walnut")
        assert alice.traces("walnut") == []
        assert alice.traces("tea")
        may_end.set()


def test_a_source_erases_waiting_turns_of_its_session_alone(tmp_path):
    alice = Diary(tmp_path, agent=lambda message, deps: deps.upsert()).user("alice")
    with MemoryWriter(alice.diary) as writer:
        for session, said in (("room", "walnut"), ("room#2", "pecan")):
            writer.submit_nowait(Turn("alice", session, said, "Fine."))
    assert alice.traces("walnut")
    assert alice.traces("pecan")
    alice.forget(source="room")
    assert alice.traces("walnut") == []
    assert alice.traces("pecan")


def test_what_a_model_extracted_from_a_turn_is_erased_by_its_source(alice):
    def extract(message, deps):
        deps.upsert("likes", "new", deps.user_msg, [])

    said = alice.diary.with_agent(extract).user("alice")
    for text in ("canary birds", "tea"):
        said.add_turn(text, "Fine.", session_id="s1")
    assert alice.why("likes/pref001").turn == "s1#1"
    alice.forget(source="s1#1")
    assert alice.traces("canary") == []
    assert [item.text for item in alice.preferences("likes").values()] == ["tea"]


def test_memory_in_a_process_has_no_trace_either():
    alice = Diary("memory:", agent="rules").user("alice")
    filled(alice)
    assert {"preferences", "history", "blocks"} <= {*alice.traces(CANARY)}
    alice.forget(matching="walnut")
    assert alice.traces(CANARY) == []


def test_the_command_line_erases_a_key_and_a_text(tmp_path, alice):
    filled(alice)

    def call(*words):
        return CliRunner().invoke(
            app, ["forget", *words, "--user", "alice", "--path", str(tmp_path)]
        )

    assert json.loads(call("--matching", "walnut", "--json").output)["is_done"] is False
    assert alice.traces(CANARY)
    assert "forgotten" in call("--matching", "walnut", "--yes").output
    assert "forgotten" in call("--key", "likes/pref003", "--yes").output
    assert alice.traces(CANARY) == alice.traces("jazz") == []
