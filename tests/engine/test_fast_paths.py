"""Every shortcut gives what the long way gives, and a wrong guess is never believed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import tomllib
from dataclasses import replace
from datetime import UTC, datetime
from itertools import zip_longest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tomldiary import Constraint, Diary, PreferenceItem
from tomldiary.backends import LocalBackend
from tomldiary.engine.transaction import block_changes
from tomldiary.entries.preferences import PreferenceRules, Preferences
from tomldiary.errors import InvalidValue, LockTimeout
from tomldiary.extraction.message import relevant_lines
from tomldiary.history.record import (
    Change,
    Record,
    parse_record,
    render_record,
)
from tomldiary.history.timeline import Timeline, redo
from tomldiary.storage.locks import UserLocks
from tomldiary.text.similarity import same_text
from tomldiary.toml.document import Document
from tomldiary.toml.edit import Edit

TEXT = st.text(
    st.sampled_from("ab\"\\\n\t\r\0\x1f\x7fé\u2028\ufeff😀[]{}=, '#")
    | st.characters(exclude_categories=["Cs"]),
    max_size=20,
)
KINDS = st.dictionaries(st.sampled_from(["preferences", "items/a", "é b", 'q"']), TEXT, max_size=3)


@given(
    st.builds(
        Record,
        st.integers(1, 10**12),
        TEXT,
        st.lists(
            st.builds(Change, st.just("preferences") | TEXT, st.integers(0, 9), TEXT, TEXT),
            max_size=3,
        ),
        KINDS,
        KINDS,
        session=TEXT,
        reason=TEXT,
        conflicts=st.lists(TEXT, max_size=2),
    )
)
@settings(max_examples=30)
def test_a_rendered_record_is_read_as_a_parser_reads_it(record):
    text = render_record(record)
    assert parse_record(text) == record
    told = tomllib.loads(text)["tx"][0]
    assert (told["base"], told["result"]) == (record.bases, record.results)
    assert [change["new"] for change in told["changes"]] == [each.new for each in record.changes]


@pytest.mark.parametrize("word", ["plain", "grün 🌱"])
def test_the_spliced_document_is_the_joined_one_after_any_edits(word):
    choose = random.Random(7)
    document = Document.parse('# head\n[_meta]\nseq = 1\n\n[p.likes.k0]\ntext = "x"\n')
    for step in range(60):
        edit = Edit(document)
        edit.put(("_meta",), {"seq": step + 2})
        for _ in range(choose.randint(1, 4)):
            path = ("p", choose.choice(["likes", "goals"]), f"k{choose.randint(0, 9)}")
            chance = choose.random()
            if chance < 0.3 and edit.table(path) is not None:
                edit.delete(path)
            elif chance < 0.4:
                edit.take_text(Document.parse(edit.peek().text))
            else:
                edit.put(path, {"text": f"{word} {choose.randint(0, 99)}"})
        after = edit.done()
        joined = "".join(block.text for block in after.blocks)
        assert after.encoded.decode() == after.text == joined
        changes = block_changes("p", document, after)
        assert redo(document.text, Record(1, "", changes, {}, {}), "p") == joined
        for each in (document, after):
            assert dict(each.index) == {block.path: block for block in each.blocks if block.path}
        assert len(after.index) == len(after.blocks) - 1
        document = after


@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\n# a remark\n"])
def test_a_record_of_a_new_entry_omits_its_predecessor(end):
    before = Document.parse(f'[_meta]\nseq = 1\n\n[preferences.likes.a]\ntext = "tea"{end}')
    edit = Edit(before)
    edit.put(("preferences", "likes", "b"), {"text": "coffee"})
    after = edit.done()
    (change,) = block_changes("preferences", before, after)
    assert "tea" not in change.old + change.new
    assert [block.path for block in Document.parse(change.new).blocks if block.path] == [
        ("preferences", "likes", "b")
    ]
    assert redo(before.text, Record(1, "", [change], {}, {}), "preferences") == after.text


def test_a_record_includes_an_entry_extended_before_a_new_one():
    before = Document.parse('[_meta]\nseq = 1\n\n[preferences.likes.a]\ntext = "tea"\n')
    edit = Edit(before)
    edit.put(("preferences", "likes", "a"), {"text": "tea", "cups": 2})
    edit.put(("preferences", "likes", "b"), {"text": "coffee"})
    (span,) = block_changes("preferences", before, edit.done())
    old, new = Document.parse(span.old), Document.parse(span.new)
    assert old.data == {"preferences": {"likes": {"a": {"text": "tea"}}}}
    assert new.data["preferences"]["likes"] == {
        "a": {"text": "tea", "cups": 2},
        "b": {"text": "coffee"},
    }


RULES = PreferenceRules(("likes", "goals"), 1000)


def answers(tables):
    """What the long way says about a memory, and what is asked."""
    book = Preferences(tables, RULES)
    asked, wanted = [], []
    for category in RULES.categories:
        entries = dict(book.items(category))
        numbers = [int(key[4:]) for key in entries if key.startswith("pref")]
        wanted += [len(entries), max(numbers, default=0) + 1]
        asked += [book.count(category), book.next_number(category)]
        for text in ("Tea!", "word 3", "word 7"):
            same = [k for k, e in entries.items() if same_text(str(e["text"]), text)]
            wanted.append(same[0] if same else None)
            asked.append(book.same(category, text))
    return asked, wanted


def test_incremental_indexes_follow_drafts_writers_and_hand_edits():
    choose = random.Random(3)
    document = Document.parse(
        '[_meta]\n[preferences.likes.own]\ntext = "tea"\n[preferences]\nodd = 1\n'
    )
    for step in range(150):
        edits = [Edit(document), Edit(document)]  # a writer and a draft, which is given up
        for edit in edits:
            book = Preferences(edit, RULES)
            for _ in range(choose.randint(1, 3)):
                category = choose.choice(RULES.categories)
                keys = [key for key, _ in book.items(category)]
                if keys and choose.random() < 0.3:
                    edit.delete(book.find(category, choose.choice(keys))[0])  # as rolling back does
                else:
                    key = choose.choice([*keys, None, f"mine{step}"])
                    text = choose.choice(["tea", f"word {choose.randint(0, 9)}"])
                    book.upsert(category, key, text, (), now="2026", session="s", may_repeat=True)
                asked, wanted = answers(edit)
                assert asked == wanted
        asked, wanted = answers(document)
        assert asked == wanted  # also once others were followed
        document = edits[0].done()
        if step % 20 == 19:  # a person edits the file
            text = (
                document.text.replace('"word 3"', '"word 7"') + '\n[likes.short]\ntext = "word 3"\n'
            )
            document = Document.parse(text) if "likes.short" not in document.text else document


def test_the_lines_a_model_is_shown_are_those_of_a_new_index():
    choose = random.Random(5)
    words = ["tea", "jazz", "plants", "chess", "running", "of", "cats", "wine"]
    document = Document.parse(
        '[_meta]\n[preferences.likes.own]\ntext="tea"\n_count=1\n_updated="2"\n'
    )
    for step in range(40):
        edit = Edit(document)
        book = Preferences(edit, RULES)
        text = " ".join(choose.choices(words, k=3)) + f" {step}"
        keys = [key for key, _ in book.items("likes")]
        key = choose.choice(keys) if choose.random() < 0.4 else None
        category = choose.choice(RULES.categories) if key is None else "likes"
        said = None if key is not None and choose.random() < 0.5 else text  # confirmed, or changed
        book.upsert(category, key, said, (), now=f"2026-{choose.randint(10, 99)}", session="s")
        if step % 9 == 8:
            book.forget("likes", choose.choice(keys))
        document = edit.done()
        turn = " ".join(choose.choices(words, k=choose.randint(0, 3)))
        for budget in (100, 700, 10_000):
            found = Preferences(document, RULES)
            anew = Preferences(Document.parse(document.text), RULES)
            assert relevant_lines(found, turn, budget) == relevant_lines(anew, turn, budget)


def test_only_changed_entries_are_read_again_for_the_next_turn():
    document = Document.parse(
        '[_meta]\n[preferences.likes.a]\ntext = "tea"\n[preferences.likes.b]\ntext = "chess"\n'
    )
    relevant_lines(Preferences(document, RULES), "tea", 20)
    document.data["preferences"]["likes"]["a"]["text"] = "nothing"  # so that a read would show
    edit = Edit(document)
    Preferences(edit, RULES).upsert("likes", "b", "jazz", (), now="2026-01-02", session="s")
    book = Preferences(edit.done(), RULES)
    assert relevant_lines(book, "tea", 20) == (["- likes/a: tea (1×)"], 1)
    assert relevant_lines(book, "jazz", 21) == (["- likes/b: jazz (2×)"], 1)


def by_turns(rows):
    """Take the most important entry that is left, then the newest one that is left, and so on."""
    left, taken = list(rows), []
    order = [
        sorted(rows, key=lambda row: (row["_count"], row["_updated"]), reverse=True),
        sorted(
            sorted(rows, key=lambda row: (row["_count"], row["_updated"]), reverse=True),
            key=lambda row: row["_updated"],
            reverse=True,
        ),
    ]
    for pair in zip(*order, strict=True):
        for row in pair:
            if any(row is other for other in left):
                left = [other for other in left if other is not row]
                taken.append(row)
    return taken


def shown_the_long_way(alice):
    """Rank and render every entry, in one pass over what stands in the files."""
    tables = {
        kind: tomllib.loads(alice.document(kind))
        for kind in ("preferences", "conversations", "facts")
    }
    diets = [
        entry
        for entry in tables["facts"].get("facts", {}).get("diet", {}).values()
        if isinstance(entry["food"], str)
    ]
    diets.sort(key=lambda entry: entry["_updated"], reverse=True)
    lanes = [[f"diet: role = {entry['role']}, food = {entry['food']}" for entry in diets]]
    pinned = []
    for name in ("likes", "goals"):
        entries = tables["preferences"].get("preferences", {}).get(name, {}).values()
        rows = [entry for entry in entries if isinstance(entry, dict)]
        lines = [
            [
                f"{name}: {row['text']}" + (f" ({row['_count']}×)" if row["_count"] > 1 else "")
                for row in by_turns([row for row in rows if (row.get("pinned") is True) is first])
            ]
            for first in (True, False)
        ]
        pinned += lines[0]
        lanes.append(lines[1])
    talks = [
        entry
        for entry in tables["conversations"].get("conversations", {}).values()
        if entry["summary"]
    ]
    talks.sort(key=lambda entry: entry["_updated"], reverse=True)
    told = [f"conversation of {entry['_updated'][:10]}: {entry['summary']}" for entry in talks]
    lanes.append(told[:3])
    shared = [line for turn in zip_longest(*lanes) for line in turn if line is not None]
    return pinned + shared, told[3:]


class Diet(BaseModel):
    role: str
    food: str


def test_rendered_memory_equals_a_full_rendering_after_any_change(tmp_path):
    choose = random.Random(11)

    def sum_up(_message, *, deps):
        if choose.random() < 0.8:
            deps.summarise(f"talk {choose.randint(0, 99)}", None)

    diary = Diary(tmp_path, Both, agent=sum_up, durability="none", max_conversations=6)
    diary.register_schema("diet", Diet, constraint=Constraint(singleton_key="role"))
    alice = diary.user("alice")
    for step in range(70):
        now = datetime(2026, 11, choose.randint(1, 28), tzinfo=UTC)
        stored = [(c, key) for c, found in alice.preferences().items() for key in found]
        deed = choose.choice(["new", "new", "confirm", "forget", "fact", "talk", "hand"])
        if deed == "new" or not stored:
            pinned = {"pinned": True} if step % 5 == 0 else {}
            category = choose.choice(["likes", "goals"])
            alice.upsert_preference(category, f"word {choose.randint(0, 99)}", fields=pinned)
        elif deed == "confirm":
            category, key = choose.choice(stored)
            alice.upsert_preference(category, id=key, now=now)
        elif deed == "forget":
            alice.forget_preference(*choose.choice(stored))
        elif deed == "fact":
            fact = Diet(role=f"role {choose.randint(0, 4)}", food=f"food {step}")
            with contextlib.suppress(InvalidValue):  # a person has left nonsense in its place
                alice.commit(fact)
        elif deed == "talk":
            alice.add_turn("I said", "hm", f"s{choose.randint(0, 9)}", now=now)
        else:
            kind, old, new = choose.choice(
                [("preferences", '"word', '"my word'), ("facts", '"food', '7 # "food')]
            )
            file = tmp_path / f"alice/{kind}.toml"
            if file.exists():
                file.write_text(file.read_text().replace(old, new, 1))
                os.utime(file, (0, 0))
        shown, also_true = shown_the_long_way(alice)
        found = alice.memory_lines()
        assert (found.shown, found.also_true) == (shown, also_true)
        assert asyncio.run(alice.amemory_lines()) == found


def test_memory_lines_are_current_and_read_outside_the_event_loop(tmp_path, files):
    elsewhere, alice = (
        Diary(backend, Both, agent="rules").user("alice")
        for backend in (tmp_path, LocalBackend(tmp_path, files=files))
    )
    alice.upsert_preference("likes", "tea")
    alice.set_block("persona", "brief")
    threads = []
    files.hook = lambda *_: threads.append(threading.get_ident())

    async def told():
        threads.clear()
        found = await alice.amemory_lines()
        assert threads
        return found.shown, threading.get_ident() in threads

    async def tell():
        first = await told()
        again = await told()
        await asyncio.to_thread(elsewhere.upsert_preference, "likes", "jazz")
        after = await told()
        await asyncio.to_thread(alice.upsert_preference, "goals", "rest")
        return first, again, after, await told()

    tea, jazz, persona = "likes: tea", "likes: jazz", "persona:\n  brief"
    assert asyncio.run(tell()) == (
        ([persona, tea], False),
        ([persona, tea], False),
        ([persona, jazz, tea], False),
        ([persona, jazz, "goals: rest", tea], False),
    )


class Both(BaseModel):
    likes: dict[str, PreferenceItem] = {}
    goals: dict[str, PreferenceItem] = {}


class Table(BaseModel):
    likes: dict[str, PreferenceItem] = {}


def test_past_states_are_equal_from_either_end_of_history(tmp_path):
    choose = random.Random(1)
    diary = Diary(tmp_path, Table, agent="rules", durability="process")
    alice, file = diary.user("alice"), tmp_path / "alice/preferences.toml"
    for step in range(30):
        keys = list(alice.preferences("likes"))
        if step == 15:
            file.write_text(file.read_text().replace("thing", "Ding") + "# a note\n")
            os.utime(file, (0, 0))
        elif keys and choose.random() < 0.3:
            alice.forget_preference("likes", choose.choice(keys))
        else:
            alice.upsert_preference("likes", f"thing {step}")
    timeline, last = Timeline(diary.engine.backend, "alice"), alice.last_transaction()
    now = {"preferences": file.read_text()}
    for seq in range(last + 1):
        asked = ["preferences", "conversations"]
        long_way = timeline.texts(asked, seq)
        assert timeline.texts(asked, seq, now) == long_way
        for wrong in (
            "",
            "x",
            now["preferences"].replace("thing", "think"),
            long_way["preferences"],
        ):
            assert timeline.texts(asked, seq, {"preferences": wrong}) == long_way


def test_a_wrong_reverse_change_is_detected():
    diary = Diary("memory:", Table, agent="rules")
    alice = diary.user("alice")
    for number in range(3):
        alice.upsert_preference("likes", f"thing {number}")
    alice.upsert_preference("likes", "thing four", id="pref001")
    backend = diary.engine.backend
    newest, *older = backend.records("alice")
    last = parse_record(newest)
    changes = [replace(each, old=each.old.replace("thing 0", "thing X")) for each in last.changes]
    assert changes != last.changes
    records = [render_record(replace(last, changes=changes)), *older]
    backend.records = lambda _user: iter(records)
    now = {"preferences": alice.document("preferences")}
    timeline = Timeline(diary.engine.backend, "alice")
    found = timeline.texts(["preferences"], 3, now)
    assert found == timeline.texts(["preferences"], 3)
    assert "thing 0" in found["preferences"]


def test_a_fencing_token_of_another_process_is_seen(tmp_path):
    ours, other = LocalBackend(tmp_path), LocalBackend(tmp_path)
    for epoch in range(1, 4):
        other.epochs.write("alice", epoch)
        os.utime(tmp_path / ".tomldiary/epochs", (epoch, epoch))  # long ago, so it is remembered
        assert ours.epoch("alice") == ours.epoch("alice") == epoch


def test_a_child_forked_inside_the_lock_leaves_it_to_its_parent(tmp_path):
    locks, others = UserLocks(tmp_path), UserLocks(tmp_path)
    with locks.hold("alice", 1):
        hold = locks.hold("bob", 1)
        hold.__enter__()
        child = os.fork()
        if child == 0:
            hold.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(LockTimeout), others.hold("bob", 0.01):
            pass
        hold.__exit__(None, None, None)
    with others.hold("bob", 1), others.hold("alice", 1):
        pass


def test_a_failure_releases_the_lock(tmp_path):
    locks = UserLocks(tmp_path)

    def fails(_user):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), locks.hold("alice", 1, fails):
        pass
    with locks.hold("alice", 0.01):
        pass
