"""Preferences and facts in several documents behave as in one."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import tempfile
import time
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from typer.testing import CliRunner

import programs
from calls import noted_calls
from capabilities import needs_fork
from file_systems import HookedFiles, killed_before
from six_verbs import SixVerbs
from tomldiary import Conflict, Constraint, Diary, DiaryError
from tomldiary.cli.app import app
from tomldiary.doctor.doctor import check
from tomldiary.engine.engine import Source
from tomldiary.extraction.context import find_tool_writes
from tomldiary.storage.local.backend import LocalBackend
from tomldiary.storage.memory import MemoryBackend
from tomldiary.store.operations import Put
from tomldiary.store.store import ItemStore
from tomldiary.toml.document import Document
from tomldiary.toml.lexer import split_blocks
from tomldiary.views.memory import summary_of

SMALL = 900
HUGE = 2**40
START = datetime(2026, 1, 1, tzinfo=UTC)
CATEGORIES = ("likes", "dislikes")


class Diet(BaseModel):
    role: str
    food: str


class Home(BaseModel):
    who: str
    city: str


class Birth(BaseModel):
    who: str
    year: int


class Remark(BaseModel):
    note: str


def opened(place, part_size, *, limit=9):
    diary = Diary(
        place,
        agent="rules",
        durability="none" if isinstance(place, Path) else None,
        max_prefs_per_category=limit,
    )
    diary.engine.part_size = part_size
    diary.register_schema("diet", Diet, Constraint(singleton_key="role", limit=12))
    diary.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))
    diary.register_schema("birth", Birth, Constraint(singleton_key="who", immutable=True))
    diary.register_schema("remark", Remark)
    return diary


@pytest.fixture
def split(tmp_path):
    return opened(tmp_path / "m", SMALL, limit=1000)


def filled(diary, count=24, together=8):
    """Store three entries for each number, those of `together` numbers in one transaction."""
    alice = diary.user("alice")
    for first in range(0, count, together):
        with alice.transaction(session_id=f"s{first // together % 3}"):
            for number in range(first, min(first + together, count)):
                alice.upsert_preference("likes", f"thing number {number}")
                alice.facts.commit(Diet(role=f"r{number % 12}", food=f"food {number}"))
                alice.facts.commit(Birth(who=f"w{number}", year=number))
    return alice


def parts(alice, kind="preferences"):
    return [name for name in alice.documents() if name.partition("/")[0] == kind]


def file_of(diary, name):
    return Path(diary.engine.backend.place("alice", name))


def holder(alice, text, kind="preferences"):
    return next(name for name in parts(alice, kind) if text in alice.document(name))


def block_of(text, header):
    start = text.index(header)
    end = text.find("\n[", start + 1)
    return text[start : end + 1 if end >= 0 else len(text)]


# Random histories

NAMES = st.sampled_from([f"n{number}" for number in range(14)])
TEXTS = st.integers(0, 30).map(lambda number: f"text {number} " + "x" * (number * 7 % 90))
OPERATIONS = st.one_of(
    st.tuples(st.just("upsert"), st.sampled_from(CATEGORIES), TEXTS),
    st.tuples(st.just("change"), st.sampled_from(CATEGORIES), st.integers(1, 9), TEXTS),
    st.tuples(st.just("remove"), st.sampled_from(CATEGORIES), st.integers(1, 9)),
    st.tuples(st.just("diet"), NAMES, TEXTS),
    st.tuples(st.just("home"), NAMES, TEXTS, st.integers(0, 40)),
    st.tuples(st.just("birth"), NAMES, st.integers(0, 3)),
    st.tuples(st.just("remark"), TEXTS),
    st.tuples(st.just("update"), NAMES, TEXTS),
    st.tuples(st.just("delete"), st.sampled_from(["diet", "home", "birth"]), NAMES),
    st.tuples(st.just("rollback"), st.integers(1, 3)),
    st.tuples(st.just("forget"), st.integers(0, 2)),
    st.tuples(st.just("reopen")),
)


def run(alice, operation, number):
    """Return what an operation answers; an error as its type and text."""
    verb, *args = operation
    now = START + timedelta(minutes=number)
    why = {"session_id": f"s{number % 3}"}
    try:
        match verb:
            case "upsert":
                return alice.upsert_preference(*args, now=now, **why)[0]
            case "change":
                category, key, text = args
                return alice.upsert_preference(
                    category, text, id=f"pref{key:03d}", create=False, now=now, **why
                )[0]
            case "remove":
                return alice.remove_preference(args[0], f"pref{args[1]:03d}", **why).text
            case "diet":
                return alice.facts.commit(Diet(role=args[0], food=args[1]), now=now, **why)
            case "home":
                start = START - timedelta(days=args[2])
                home = Home(who=args[0], city=args[1])
                return alice.facts.commit(home, valid_from=start, now=now, **why)
            case "birth":
                return alice.facts.commit(Birth(who=args[0], year=args[1]), now=now, **why)
            case "remark":
                alice.facts.commit(Remark(note=args[0]), now=now, **why)
                return None  # its key is random
            case "update":
                return alice.facts.update(f"diet/{args[0]}", {"food": args[1]}, now=now, **why)
            case "delete":
                return alice.facts.delete(f"{args[0]}/{args[1]}", **why)
            case "rollback":
                done = alice.rollback(args[0])
                return [key for key in done.keys if "remark" not in key]
            case _:
                receipt = alice.forget(session_id=f"s{args[0]}")
                return receipt.entries, receipt.conversations
    except DiaryError as error:
        return type(error), str(error).partition("fact-")[0]


def memory(alice):
    """Return everything that readers see, without what says where entries are."""
    facts = {
        name: sorted((str(fact.data), fact.created_by, str(fact.valid_from), str(fact.valid_to)) for fact in found)
        for name in ("diet", "home", "birth", "remark")
        for found in [alice.facts.query(name, include_ended=True)]
    }  # fmt: skip
    return {
        "preferences": alice.preferences(),
        "facts": facts,
        "profile": {**alice.profile(), "last_seen": ""},
        "found": {(hit.text, round(hit.score, 6)) for hit in alice.recall("text 3 x", 1000)},
        "shown": sorted(alice.render(max_tokens=10**6).split("\n")),
    }


def changes(alice):
    """Return all changes of entries; the order within a transaction is that of the documents."""
    found = alice.history(limit=10**6)
    return sorted((each.seq, each.type, str(each.before), str(each.after)) for each in found)


@settings(max_examples=10)
@given(st.lists(OPERATIONS, max_size=60))
def test_split_memory_answers_like_an_unsplit_one(operations):
    place = Path(tempfile.mkdtemp())
    try:
        small, model = opened(place, SMALL), opened("memory:", HUGE).user("alice")
        for number, operation in enumerate(operations):
            if operation[0] == "reopen":
                small = opened(place, SMALL)
                assert memory(small.user("alice")) == memory(model)
                continue
            alice = small.user("alice")
            assert run(alice, operation, number) == run(model, operation, number), operation
        alice = small.user("alice")
        assert memory(alice) == memory(model)
        assert changes(alice) == changes(model)
        last = alice.last_transaction()
        if last:
            assert memory(alice.as_of(last)) == memory(model.as_of(last))
    finally:
        shutil.rmtree(place)


# Documents


def test_one_document_is_enough_until_it_is_full(split):
    alice = filled(split, 3)
    assert parts(alice) == ["preferences"]
    filled(split, together=1)
    names = parts(alice)
    assert names[:3] == ["preferences", "preferences/002", "preferences/003"]
    assert all(len(alice.document(name)) <= SMALL for name in names)


def test_the_first_search_of_several_parts_splits_no_text(split, tmp_path):
    assert len(parts(filled(split))) > 1
    alice = opened(tmp_path / "m", SMALL).user("alice")
    with noted_calls(split_blocks) as calls:
        assert alice.recall("thing number 3", kinds=["preferences"])
    assert not calls


def test_a_change_writes_only_the_part_that_holds_the_entry(split):
    alice = filled(split)
    before = {name: alice.document(name) for name in alice.documents()}
    alice.upsert_preference("likes", id="pref003")
    alice.facts.commit(Diet(role="r1", food="rice"))
    changed = [name for name, text in before.items() if alice.document(name) != text]
    assert changed == [holder(alice, "r1", "facts"), holder(alice, 'thing number 2"')]


def test_a_new_entry_goes_to_a_part_that_is_half_empty(split):
    alice = filled(split, together=1)
    count = len(parts(alice))
    for number in range(1, 6):
        alice.remove_preference("likes", f"pref{number:03d}")
    for number in range(4):
        alice.upsert_preference("likes", f"a small thing {number}")
    assert "a small thing" in alice.document("preferences")
    assert len(parts(alice)) == count


def test_a_large_document_stays_one_and_new_entries_go_to_another(tmp_path):
    filled(opened(tmp_path / "m", HUGE, limit=1000))
    split = opened(tmp_path / "m", SMALL, limit=1000)
    alice = split.user("alice")
    before = alice.document("preferences")
    assert alice.upsert_preference("likes", "thing number 3")[0] == "pref004"
    assert alice.upsert_preference("likes", "something else")[0] == "pref025"
    assert parts(alice) == ["preferences", "preferences/002"]
    assert len(alice.document("preferences")) - len(before) < 3
    assert "something else" in alice.document("preferences/002")


def test_a_backend_with_fixed_documents_keeps_one_document():
    backend = SixVerbs()
    diary = Diary(backend, agent="rules", max_prefs_per_category=1000)
    diary.engine.part_size = SMALL
    alice = diary.user("alice")
    for number in range(24):
        alice.upsert_preference("likes", f"thing number {number}")
    assert {kind for _, kind in backend.texts} <= {"preferences", "conversations"}
    assert len(alice.preferences("likes")) == 24


# Hand edits


def age(file, seconds=5):
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns - seconds * 10**9))


def save(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    age(file)


def test_hand_edit_in_the_second_part_is_read_logged_and_kept(split):
    alice = filled(split)
    name = parts(alice)[1]
    file = file_of(split, name)
    text = file.read_text().replace("[preferences.likes", "# mine\n[preferences.likes", 1)
    save(file, text + '\n[preferences.likes.tea]\ntext = "green tea"\n')
    assert alice.preferences("likes")["tea"].text == "green tea"
    assert alice.upsert_preference("likes", "Green tea!")[0] == "tea"
    assert "# mine" in file.read_text()
    assert alice.history("likes/tea")[-1].actor == "hand"
    assert not alice.problems()


def test_hand_edit_that_adds_a_part_is_read_and_written(split):
    alice = filled(split, 3)
    save(file_of(split, "preferences/007"), '[preferences.likes.tea]\ntext = "green tea"\n')
    assert alice.preferences("likes")["tea"].text == "green tea"
    alice.upsert_preference("likes", id="likes/tea", text="black tea")
    assert "black tea" in alice.document("preferences/007")


@pytest.mark.parametrize("kind", ["preferences", "facts"])
def test_hand_edit_may_move_an_entry_to_another_part(split, kind):
    alice = filled(split)
    names = parts(alice, kind)
    first, second = (file_of(split, name) for name in names[:2])
    text = first.read_text()
    header = "[preferences.likes.pref001]" if kind == "preferences" else "[facts.birth.w0]"
    block = block_of(text, header)
    before = memory(alice)
    save(second, second.read_text() + "\n" + block)
    save(first, text.replace(block, ""))
    assert memory(alice) == before
    assert not alice.problems()
    alice.upsert_preference("likes", id="pref001", text="a thing that was moved")
    alice.facts.commit(Diet(role="r0", food="bread"))
    with pytest.raises(DiaryError):
        alice.facts.commit(Birth(who="w0", year=7))
    assert alice.facts.get("birth/w0").data.year == 0
    assert header in second.read_text()
    assert header not in first.read_text()


def test_entry_that_is_moved_during_a_write_keeps_its_id(tmp_path):
    files = HookedFiles()
    diary = opened(LocalBackend(tmp_path, durability="none", files=files), SMALL)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    first, second = (file_of(diary, name) for name in ("preferences", "preferences/002"))
    text = first.read_text()
    block = block_of(text, "[preferences.likes.pref001]")

    def move(_operation, path, *_):
        if path == str(first):  # the parts were listed already
            files.hook = None
            save(second, block)
            save(first, text.replace(block, ""))

    files.hook = move
    assert alice.upsert_preference("likes", "jazz")[0] == "pref002"
    assert files.hook is None
    assert {key: item.text for key, item in alice.preferences("likes").items()} == {
        "pref001": "tea",
        "pref002": "jazz",
    }
    assert not alice.problems()


def test_change_of_an_entry_that_was_just_moved_waits_for_the_save(split):
    alice = filled(split)
    first, second = (file_of(split, name) for name in parts(alice)[:2])
    text = first.read_text()
    block = block_of(text, "[preferences.likes.pref001]")
    save(second, second.read_text() + "\n" + block)
    first.write_text(text.replace(block, ""))
    os.utime(first, (time.time() - 0.8,) * 2)  # within a second, an editor may write the rest
    alice.upsert_preference("likes", "a thing that was moved", id="pref001", create=False)
    assert "a thing that was moved" in second.read_text()
    assert "pref001" not in first.read_text()
    assert not alice.problems()


def test_hand_edit_may_swap_the_files_of_two_parts(split):
    alice = split.user("alice")
    for number in range(6):
        alice.upsert_preference("likes", f"thing number {number} {'x' * 40}")
    first, second = parts(alice)
    alice.remove_preference("likes", "pref002")
    alice.remove_preference("likes", "pref003")
    added, _ = alice.upsert_preference("likes", "a small thing")
    assert "a small thing" in alice.document(first)
    texts = {first: alice.document(second), second: alice.document(first)}
    before = memory(alice)
    for name, text in texts.items():
        save(file_of(split, name), text)
    assert memory(alice) == before
    alice.upsert_preference("likes", id=added, text="a changed thing")
    assert "a changed thing" in alice.document(second)
    assert alice.document(first) == texts[first]
    assert not alice.problems()


def test_hand_edit_cannot_change_an_immutable_fact_by_a_copy(split):
    alice = filled(split)
    names = parts(alice, "facts")
    last = holder(alice, "[facts.birth.w23]", "facts")
    assert last != names[0]
    first = file_of(split, names[0])
    save(first, first.read_text() + '\n[facts.birth.w23]\nwho = "w23"\nyear = 99\n')
    assert alice.facts.get("birth/w23").data.year == 23
    alice.facts.commit(Diet(role="r0", food="bread"))
    assert "year = 99" not in first.read_text()
    assert alice.facts.get("birth/w23").data.year == 23


def test_key_in_two_parts_is_reported_and_the_first_counts(split, caplog):
    alice = filled(split)
    last = parts(alice)[-1]
    file = file_of(split, last)
    save(file, file.read_text() + '\n[preferences.likes.pref001]\ntext = "a copy"\n')
    with caplog.at_level("WARNING"):
        assert alice.preferences("likes")["pref001"].text == "thing number 0"
    assert "two parts hold one key" in caplog.text
    problems = [str(problem) for problem in alice.problems()]
    assert any(f"{last}.toml: preferences.likes.pref001" in each for each in problems)
    found = [each for each in check(split) if "pref001" in each.message]
    line = file.read_text().split("\n").index("[preferences.likes.pref001]") + 1
    assert [(each.place, each.level) for each in found] == [(f"{file}:{line}", "warning")]
    assert "preferences.toml" in found[0].message
    number = sum(map(len, alice.preferences().values()))
    assert summary_of(split, "alice").counts["preferences"] == number
    alice.remove_preference("likes", "pref001")
    assert "pref001" not in alice.preferences("likes")


# History


def test_rollback_across_a_split_restores_both_parts(split):
    alice = filled(split, 3)
    before = memory(alice)
    with alice.transaction(session_id="s9") as tx:
        tx.upsert_preference("likes", id="pref001", text="changed")
        for number in range(40, 60):
            tx.upsert_preference("likes", f"thing number {number}")
    assert len(parts(alice)) > 2
    alice.rollback()
    assert memory(alice) == before
    alice.rollback()
    assert len(alice.preferences("likes")) == 23


def test_rollback_finds_an_entry_that_was_moved_to_another_part(split):
    alice = filled(split)
    alice.upsert_preference("likes", id="pref001", text="changed", session_id="s9")
    first, second = (file_of(split, name) for name in parts(alice)[:2])
    text = first.read_text()
    block = block_of(text, "[preferences.likes.pref001]")
    save(second, second.read_text() + "\n" + block)
    save(first, text.replace(block, ""))
    alice.rollback(session_id="s9")
    assert alice.preferences("likes")["pref001"].text == "thing number 0"
    assert not alice.problems()


def test_rollback_of_a_removal_refuses_if_another_part_has_the_key(split):
    alice = filled(split)
    alice.facts.delete("diet/r0", session_id="s9")
    for number in range(30, 40):
        alice.facts.commit(Birth(who=f"w{number}", year=number))
    alice.facts.commit(Diet(role="r0", food="bread"))
    with pytest.raises(Conflict):
        alice.rollback(session_id="s9")
    alice.rollback(session_id="s9", force=True)
    assert [fact.data.role for fact in alice.facts.query("diet")].count("r0") == 1
    assert not alice.problems()


def test_rollback_names_a_change_of_others_between_in_another_part(split):
    alice = filled(split, 1)
    alice.upsert_preference("likes", "one", id="mine", session_id="s9")
    filled(split)
    alice.remove_preference("likes", "mine", session_id="s9")
    alice.upsert_preference("likes", "two", id="mine", session_id="s8")
    alice.upsert_preference("likes", "three", id="mine", session_id="s9")
    assert alice.rollback(session_id="s9", dry_run=True).conflicts == []
    assert alice.rollback(2, session_id="s9", dry_run=True).conflicts == ["likes/mine"]
    alice.rollback(2, session_id="s9", force=True)
    assert alice.preferences("likes")["mine"].text == "one"


def test_rollback_of_a_session_undoes_the_copy_that_counts(split):
    alice = filled(split)
    first, *_, last = (file_of(split, name) for name in parts(alice))
    before = alice.preferences("likes")["pref024"].text
    alice.upsert_preference("likes", id="pref024", text="changed", session_id="s9")
    block = block_of(last.read_text(), "[preferences.likes.pref024]")
    save(first, first.read_text() + "\n" + block)
    assert alice.preferences("likes")["pref024"].text == "changed"
    alice.rollback(session_id="s9")
    assert alice.preferences("likes")["pref024"].text == before


@pytest.mark.parametrize("text_of_copy", ["thing number 0", "changed"])
@pytest.mark.parametrize("is_removed", [False, True])
def test_rollback_keeps_an_entry_that_was_copied_to_another_part_first(
    split, is_removed, text_of_copy
):
    alice = filled(split)
    first, second = (file_of(split, name) for name in parts(alice)[:2])
    text, before, last = first.read_text(), memory(alice), alice.last_transaction()
    block = block_of(text, "[preferences.likes.pref001]")
    save(second, second.read_text() + "\n" + block.replace("thing number 0", text_of_copy))
    alice.diary.engine.log_hand_edits("alice")
    save(first, text.replace(block, ""))
    alice.diary.engine.log_hand_edits("alice")
    if is_removed:
        alice.remove_preference("likes", "pref001")
    assert alice.last_transaction() == last + 2 + is_removed
    alice.rollback(to=last)
    assert memory(alice) == before
    assert not alice.problems()


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0)])
def test_rollback_removes_an_entry_that_hand_edits_added_to_two_parts(split, numbers):
    alice = filled(split)
    before, last = memory(alice), alice.last_transaction()
    for number in numbers:
        file = file_of(split, parts(alice)[number])
        save(file, file.read_text() + f'\n[preferences.likes.both]\ntext = "{number}"\n')
        split.engine.log_hand_edits("alice")
    alice.rollback(to=last)
    assert memory(alice) == before
    assert not alice.problems()


def test_rollback_of_a_removal_refuses_if_the_item_is_in_another_part(tmp_path):
    diary = opened(MemoryBackend(), 400)
    alice, store = diary.user("alice"), ItemStore(diary)

    def put(key, value, session="s9"):
        with alice.transaction(session_id=session):
            store.run([Put(("alice", "work"), key, value)])

    put("a", {"text": "x" * 300})
    put("a", None)
    put("b", {"text": "y" * 300}, "s8")
    put("a", {"text": "z" * 300}, "s8")
    with pytest.raises(Conflict, match=r"items/work/a changed since\."):
        alice.rollback(session_id="s9")
    alice.rollback(session_id="s9", force=True)
    assert alice.items("work")["work/a"] == {"text": "x" * 300}
    assert not alice.problems()


def test_rollback_lists_the_documents_of_all_namespaces_once():
    class Listing(MemoryBackend):
        def kinds(self, user):
            calls.append(user)
            return super().kinds(user)

    calls, diary = [], opened(Listing(), 400)
    alice, store = diary.user("alice"), ItemStore(diary)
    places = [(("alice", f"work{number % 9}"), f"k{number}") for number in range(45)]
    store.run([Put(*place, {"text": "x" * 90}) for place in places])
    store.run([Put(*place, None) for place in places])
    calls.clear()
    alice.rollback(dry_run=True)
    assert len(calls) < 4
    alice.rollback()
    assert len(alice.items("work4")) == len(places) / 9


def test_forget_finds_entries_in_all_parts(split):
    alice = filled(split, together=1)
    alice.forget(session_id="s1")
    assert len(alice.preferences("likes")) == 16
    folder = Path(split.engine.backend.folder("alice"))
    stored = "".join(file.read_text() for file in folder.rglob("*.toml"))
    assert all(f'thing number {number}"' not in stored for number in range(1, 24, 3))
    assert alice.upsert_preference("likes", "another")[0] == "pref025"


def test_why_and_history_find_an_entry_in_a_further_part(split):
    alice = filled(split)
    assert alice.why("likes/pref024").text == "thing number 23"
    assert alice.why("facts/birth/w23").changes
    assert [each.key for each in alice.history("likes/pref024")] == ["likes/pref024"]


# Exports, other processes, other readers


def test_export_of_parts_is_imported_into_one_document_and_back(split, tmp_path):
    alice = filled(split)
    data = alice.export()
    assert {"preferences/002", "facts/002"} <= data["documents"].keys()
    other = opened(tmp_path / "other", HUGE, limit=1000).user("alice")
    other.upsert_preference("likes", "thing number 3", now=START)
    other.remove_preference("likes", "pref001")
    other.import_(data)
    assert other.preferences() == alice.preferences()
    assert memory(other) == memory(alice)
    twin = opened(tmp_path / "twin", SMALL, limit=1000).user("alice")
    assert not [each for each in twin.import_preview(data) if each.after is None]
    twin.import_(data)
    assert twin.export()["documents"].keys() == data["documents"].keys()
    other.upsert_preference("likes", id="pref002", text="something else")
    with pytest.raises(Conflict):
        other.import_(data)


def test_import_does_not_store_a_key_in_two_parts(split, tmp_path):
    data = filled(split).export()
    name = holder(split.user("alice"), "thing number 23")
    alice = opened(tmp_path / "other", HUGE, limit=1000).user("alice")
    alice.upsert_preference("likes", "thing number 23", id="tea", now=START)
    part = {"documents": {name: data["documents"][name].replace("pref024", "tea")}}
    with pytest.raises(Conflict):
        alice.import_(
            {**data, **part, "documents": {name: part["documents"][name].replace("23", "99")}}
        )
    alice.import_({**data, **part})
    assert not alice.problems()


def test_import_into_fixed_documents_joins_the_parts(split):
    class Fixed(MemoryBackend):
        documents = ("conversations", "facts", "preferences")

    alice = filled(split)
    other = opened(Fixed(), SMALL, limit=1000).user("alice")
    other.import_(alice.export())
    assert parts(other) == ["preferences"]
    assert memory(other) == memory(alice)


def test_two_processes_split_one_memory_without_losing_entries(tmp_path):
    code = """
import sys
from tomldiary import Diary
diary = Diary(sys.argv[1], agent="rules", durability="none", max_prefs_per_category=1000)
diary.engine.part_size = 900
for number in range(40):
    diary.user("alice").upsert_preference("likes", f"thing {sys.argv[2]} {number}")
"""
    place = str(tmp_path / "m")
    running = [programs.start("-c", code, place, name) for name in ("a", "b")]
    assert [process.communicate() for process in running] == ["", ""]
    assert [process.returncode for process in running] == [0, 0]
    alice = opened(tmp_path / "m", SMALL).user("alice")
    texts = {item.text for item in alice.preferences("likes").values()}
    assert texts == {f"thing {name} {number}" for name in "ab" for number in range(40)}
    assert not alice.problems()
    assert all(len(alice.document(name)) <= SMALL for name in parts(alice))


def test_show_and_the_old_coroutines_join_the_parts(split):
    alice = filled(split)
    text = asyncio.run(split.preferences("alice"))
    shown = tomllib.loads(text)["preferences"]["likes"]
    assert list(shown) == list(alice.preferences("likes"))
    deps = asyncio.run(split.turns.build_deps("alice", "s1"))
    assert deps.prefs["preferences"]["likes"].keys() == shown.keys()
    show = ["show", "alice", "--path", str(split.engine.backend.base_path)]
    listed = json.loads(CliRunner().invoke(app, [*show, "--json"]).output)
    assert len(listed["preferences"]["likes"]) == 24
    assert len(listed["facts"]["facts"]["birth"]) == 24
    raw = CliRunner().invoke(app, [*show, "--raw", "--category", "likes"]).output
    assert "preferences/002.toml" in raw
    assert "facts" not in raw


@pytest.mark.parametrize("kind", ["preferences", "facts"])
def test_deleting_a_document_deletes_its_further_parts(split, kind, monkeypatch):
    alice = split.user("alice")
    for number in range(12):
        alice.upsert_preference("likes", f"thing {number} {'x' * 90}")
        alice.facts.commit(Remark(note=f"remark {number} {'x' * 90}"))
    backend = split.backend
    assert f"{kind}/002" in backend.kinds("alice")
    asyncio.run(backend.save("alice", f"{kind}/backup", "# of the host\n"))
    erase, erased = backend.erase, []
    monkeypatch.setattr(backend, "erase", lambda *args: erased.append(args[1]) or erase(*args))
    asyncio.run(backend.delete("alice", kind))
    assert erased[-1] == kind  # so that after a crash, `exists` shows that something is left
    assert [each for each in backend.kinds("alice") if each.startswith(kind)] == [f"{kind}/backup"]
    assert (len(alice.preferences("likes")), len(alice.facts())) == (
        (0, 12) if kind == "preferences" else (12, 0)
    )


def test_a_header_in_several_parts_stands_once_in_the_joined_text(split):
    alice = filled(split)
    for name in parts(alice)[1:4]:
        file = file_of(split, name)
        save(file, file.read_text() + "\n[preferences.likes]\n\n[preferences.dislikes]\n")
    text = asyncio.run(split.preferences("alice"))
    assert text.count("[preferences.dislikes]") == 1
    assert len(tomllib.loads(text)["preferences"]["likes"]) == 24


def test_a_turn_changes_an_entry_in_a_further_part(split):
    alice = filled(split)
    split.agent = lambda message, deps: deps.upsert("likes", "pref024", None, [])
    alice.add_turn("Thing number 23!", "Noted.", "s1")
    assert alice.preferences("likes")["pref024"].count == 2


def test_batch_of_500_goes_to_documents_of_bounded_size(tmp_path):
    diary = opened(tmp_path / "m", SMALL * 4, limit=1000)
    alice = diary.user("alice")
    with alice.transaction() as tx:
        for number in range(500):
            tx.upsert_preference("likes", f"thing number {number}")
    assert len(alice.preferences("likes")) == 500
    assert all(len(alice.document(name)) <= SMALL * 4 for name in parts(alice))
    assert alice.last_transaction() == 1


# Cases that random histories reach too rarely


def test_rules_do_not_see_a_forbidden_hand_edit_of_another_part(split):
    alice = filled(split)
    first = file_of(split, parts(alice, "facts")[0])
    save(first, first.read_text().replace('who = "w0"\nyear = 0', 'who = "w0"\nyear = 99'))
    assert "year = 99" in first.read_text()
    assert alice.facts.commit(Birth(who="w0", year=0)) == "birth/w0"
    assert "year = 99" not in first.read_text()


def test_forget_restores_immutable_facts_of_all_parts(split):
    alice = filled(split)
    last = file_of(split, parts(alice, "facts")[-1])
    save(last, last.read_text().replace("year = 23", "year = 99"))
    assert "year = 99" in last.read_text()
    alice.forget(session_id="s1")
    assert "year = 99" not in last.read_text()


def test_parts_begun_in_a_transaction_are_read_in_it(split):
    filled(split, 3)
    path = ("preferences", "likes", "tea")

    def change(tx):
        tx.edit("preferences/005").put(path, {"text": "tea"})
        return tx.entries("preferences").table(path)

    assert split.engine.write("alice", change, Source("test")) == {"text": "tea"}


def test_ids_reserved_in_any_part_are_not_given_out_again(split):
    alice = filled(split)
    alice.remove_preference("likes", "pref024")
    assert alice.upsert_preference("likes", "new")[0] == "pref025"
    alice.rollback()
    assert sum("next_ids" in alice.document(name) for name in parts(alice)) == 2
    assert alice.upsert_preference("likes", "newer")[0] == "pref026"


def test_forget_keeps_what_another_session_said_in_another_part(split):
    alice = filled(split)
    alice.facts.commit(Birth(who="x", year=1), session_id="s7")
    alice.facts.commit(Remark(note="x" * SMALL))
    split.register_schema("birth", Birth, Constraint(singleton_key="who"))
    alice.facts.delete("birth/x")
    alice.facts.commit(Remark(note="y" * SMALL))
    alice.facts.commit(Birth(who="x", year=1), session_id="s8")
    assert alice.forget(session_id="s7").entries == 0
    assert alice.facts.get("birth/x") is not None


def test_rollback_counts_the_facts_of_all_parts_for_their_limit(split):
    alice = filled(split)
    assert holder(alice, "[facts.diet.r11]", "facts") != "facts"
    alice.facts.delete("diet/r11", session_id="s9")
    alice.facts.commit(Diet(role="r99", food="bread"))
    with pytest.raises(DiaryError, match="cannot be rolled back"):
        alice.rollback(session_id="s9", force=True)


def test_import_compares_with_entries_of_other_parts(split):
    save(file_of(split, "preferences/002"), '[preferences.likes.tea]\ntext = "black"\n')
    alice = split.user("alice")
    data = alice.export()
    data["documents"] = {"preferences": '[preferences.likes.tea]\ntext = "green"\n'}
    with pytest.raises(Conflict):
        alice.import_(data)


def test_forgotten_entries_leave_the_joined_documents_in_memory(split):
    alice = filled(split)
    alice.upsert_preference("likes", "a thing that is a secret", session_id="s7")
    assert "is a secret" in split.engine.readable("alice", "preferences").text
    alice.forget(session_id="s7")
    kept = [each for each in gc.get_objects() if isinstance(each, Document)]
    assert not [each for each in kept if "that is a secret" in each.text]


def test_removed_temporal_facts_end_no_others(split):
    alice = split.user("alice")
    for who in ("a", "b"):
        alice.facts.commit(Home(who=who, city="x"), now=START, valid_from=START)
    alice.facts.delete("home/a")
    alice.facts.commit(Home(who="a", city="x"))
    assert [fact.data.who for fact in alice.facts.query("home")] == ["b", "a"]
    alice.facts.delete("home/a")
    assert alice.facts.get("home/a") is None


def test_writer_and_reader_show_an_entry_in_an_earlier_part_in_its_place(tmp_path):
    alice, other = (opened(tmp_path, SMALL).user("alice") for _ in range(2))
    for role in "abcdefghi":
        alice.facts.commit("diet", {"role": role, "food": "x" * 60})
    assert len(alice.documents()) > 1
    alice.facts.delete("diet/a")
    alice.facts.delete("diet/b")
    alice.facts.delete("diet/c")
    for role in "jklm":
        assert alice.facts.query("diet")  # the index of the writer is in use
        alice.facts.commit("diet", {"role": role, "food": "x" * 60})
    order = [fact.id for fact in other.facts.query("diet")]
    assert order != sorted(order)
    assert [fact.id for fact in alice.facts.query("diet")] == order


def test_tool_writes_in_a_further_part_are_known_to_the_turn(split):
    alice = filled(split)
    alice.upsert_preference("likes", "jazz at night", session_id="s1", actor="agent")
    assert holder(alice, "jazz") != "preferences"
    found = find_tool_writes(split.engine.backend, "alice", "s1", "", "")
    assert "jazz at night" in str(found)


@needs_fork
def test_a_part_that_a_killed_process_began_is_whole_or_absent(tmp_path):
    count = 1
    alice = opened(tmp_path / "full", SMALL, limit=1000).user("alice")
    long = "x" * 150
    while len(parts(alice)) < 2:
        alice.upsert_preference("likes", f"thing number {count} {long}")
        count += 1
    for number in range(1, 60, 2):
        place = tmp_path / str(number)
        alice = opened(place, SMALL, limit=1000).user("alice")
        for each in range(1, count - 1):
            alice.upsert_preference("likes", f"thing number {each} {long}")
        child = os.fork()
        if child == 0:
            files = HookedFiles(killed_before(number))
            diary = opened(LocalBackend(place, durability="none", files=files), SMALL, limit=1000)
            diary.user("alice").upsert_preference("likes", f"thing number {count - 1} {long}")
            os._exit(0)
        is_done = os.waitpid(child, 0)[1] == 0
        alice = opened(place, SMALL, limit=1000).user("alice")
        found = len(alice.preferences("likes"))
        assert found == alice.last_transaction()
        assert found == count - 1 if is_done else found in (count - 2, count - 1)
        assert alice.upsert_preference("likes", "last")[0] == f"pref{found + 1:03d}"
        if is_done:
            return
    raise AssertionError("the write never finished")
