"""Time travel: history, why, diff, as of, and rollback that never erases."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from langgraph.store.base import PutOp
from pydantic import BaseModel

from hand_edits import age
from tomldiary import Conflict, Constraint, Diary
from tomldiary.backends import LocalBackend
from tomldiary.errors import (
    DiaryError,
    DocumentError,
    InvalidValue,
    NestedTransaction,
    UnknownEntry,
)
from tomldiary.history.timeline import Timeline
from tomldiary.past.as_of import PastDocuments, PastTexts, reread
from tomldiary.storage import MemoryBackend
from tomldiary.toml.lexer import split_blocks
from tomldiary_langgraph import DiaryStore


class Pet(BaseModel):
    name: str


class Plant(BaseModel):
    name: str


@pytest.fixture
def alice(tmp_path):
    return Diary(tmp_path, agent="rules", durability="process").user("alice")


def texts(user, category="likes"):
    return {key: item.text for key, item in user.preferences(category).items()}


def body(tmp_path):
    """The file without the bookkeeping in `_meta`: the transaction it grew from, the ids given out."""
    lines = (tmp_path / "alice/preferences.toml").read_text().splitlines()
    return [line for line in lines if not line.startswith(("seq = ", "next_ids = "))]


def test_a_hand_edit_may_begin_inside_an_item_of_a_list_of_tables(alice, tmp_path):
    file = tmp_path / "alice/preferences.toml"
    alice.upsert_preference("likes", "tea")
    shops = "[[preferences.likes.pref002.shops]]\nn = {}\n[preferences.likes.pref002.shops.at]\nx = {}\n"
    entry = (
        f'\n[preferences.likes.pref002]\ntext = "coffee"\n{shops.format(1, 1)}{shops.format(2, 2)}'
    )
    file.write_text(file.read_text() + entry)
    age(file)
    alice.upsert_preference("likes", "milk")
    file.write_text(file.read_text().replace("x = 1", "x = 8").replace("n = 2", "n = 9"))
    age(file)
    alice.upsert_preference("likes", "juice")
    assert [change.type for change in alice.history("likes/pref002")] == ["hand", "hand"]
    assert "n = 9" in file.read_text()
    assert alice.rollback(2).keys == ["likes/pref002", "likes/pref004"]
    assert "x = 8" not in file.read_text()
    assert entry.strip() in file.read_text()


def test_history_lists_the_changes_of_an_entry_and_their_actors(alice):
    alice.upsert_preference("likes", "tea", session_id="s1", actor="agent", reason="said so")
    alice.upsert_preference("likes", "coffee")
    alice.upsert_preference("likes", "green tea", id="pref001", session_id="s2")
    alice.forget_preference("likes", "pref001")
    found = alice.history("likes/pref001")
    assert [(h.before and h.before["text"], h.after and h.after["text"]) for h in found] == [
        ("green tea", None),
        ("tea", "green tea"),
        (None, "tea"),
    ]
    assert (found[-1].session, found[-1].actor, found[-1].reason) == ("s1", "agent", "said so")
    assert len(alice.history()) == 4
    assert [h.seq for h in alice.history(limit=2)] == [4, 3]


def test_the_history_of_an_entry_reads_only_records_that_may_name_it(alice):
    for number in range(30):
        alice.upsert_preference("likes", f"{number} cats", id=f"id{number}")
    found = Timeline(alice.diary.engine.backend, "alice").records("id7")
    assert [record.seq for record in found] == [8]
    assert [change.seq for change in alice.why("likes/id7").changes] == [8]
    assert [change.seq for change in alice.history("likes/id7")] == [8]


def test_records_that_an_interrupted_pruning_left_are_not_read(alice):
    alice.upsert_preference("likes", "jazz", id="gone")
    alice.forget_preference("likes", "gone")
    alice.upsert_preference("likes", "tea")
    backend = alice.diary.engine.backend
    before = [*backend.records("alice")]
    alice.prune_history(keep=1)
    left = SimpleNamespace(records=lambda _user: iter([*backend.records("alice"), *before]))
    assert "gone" in before[-1]
    assert [each.type for each in Timeline(left, "alice").records("gone")] == ["snapshot"]


def test_the_history_of_a_key_that_a_person_wrote_with_an_escape_is_found(alice, tmp_path):
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/preferences.toml"
    with file.open("a") as opened:
        opened.write('\n[preferences.likes."gr\\u0065en"]\ntext = "green tea"\n')
    alice.upsert_preference("likes", "coffee")
    assert [change.type for change in alice.history("likes/green")] == ["hand"]
    assert alice.why("likes/green").origin == "hand"


def test_why_names_the_turn_and_every_confirmation(alice):
    alice.add_turn("I love tea.", "ok", "s1")
    alice.add_turn("What time is it?", "Noon.", "s1")
    alice.add_turn("I love tea.", "ok", "s2")
    origin = alice.why("likes/pref001")
    assert (origin.text, origin.turn, origin.session) == ("I love tea.", "s1#1", "s1")
    assert (origin.confirmations, origin.is_verified) == (2, False)
    assert [change.session for change in origin.changes] == ["s1", "s2"]
    with pytest.raises(UnknownEntry):
        alice.why("likes/pref999")
    with pytest.raises(UnknownEntry, match="A key is category/id"):
        alice.why("nonsense")


def test_a_turn_leads_to_its_episode_and_to_the_entries_that_it_left(tmp_path):
    alice = Diary(tmp_path, agent="rules", durability="process", episodes=True).user("alice")
    for number in range(3):
        alice.add_turn(f"I love tea number {number}. I hate noise {number}.", "ok", "s1")
    alice.upsert_preference("likes", id="pref002", session_id="s2")
    turn = alice.why("likes/pref002").turn
    assert turn == "s1#2"
    [episode] = [each for each in alice.episodes() if each.source == turn]
    assert episode.input == "I love tea number 1. I hate noise 1."
    found = alice.history(source=turn)
    assert [(each.seq, each.key) for each in found] == [
        (4, "likes/pref002"),
        (2, "likes/pref002"),
        (2, "dislikes/pref002"),
        (2, f"episodes/{episode.id}"),
    ]
    assert {each.source for each in found} == {turn}
    assert alice.history(source=turn, limit=1) == found[:1]
    assert alice.history(source="s1#99") == alice.history(source="s1") == []
    alice.remove_preference("dislikes", "pref002")
    assert alice.history(source=turn)[0].after is None
    with pytest.raises(InvalidValue, match="source: expected text"):
        alice.history(source=2)


def test_an_episode_leads_to_what_was_found_in_it_later(alice):
    name = alice.episodes.add("I love tea.", "ok", session_id="s1")
    alice.consolidate()
    turn = alice.why("likes/pref001").turn
    assert (turn, alice.episodes()[0].source) == (f"episodes/{name}", "")
    assert [each.key for each in alice.history(source=turn)] == ["likes/pref001"]


def test_the_key_of_an_unread_category_is_named_by_the_error_and_works(alice, tmp_path):
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/preferences.toml"
    file.write_text(file.read_text() + '\n[preferences.hates.x]\ntext = "spiders"\n')
    os.utime(file, (1, 1))
    alice.upsert_preference("likes", "coffee")
    assert "hates/x" in [each.key for each in alice.history()]
    with pytest.raises(UnknownEntry, match=r"items/hates/x.* lacks is preferences/hates/x"):
        alice.forget(key="hates/x")
    assert alice.why("preferences/hates/x").text == "spiders"
    assert [each.seq for each in alice.history("preferences/hates/x")] == [2]
    assert alice.forget(key="preferences/hates/x").entries == 1
    assert alice.traces("spiders") == []


def test_diff_and_as_of_show_any_point_by_number_and_by_time(alice):
    alice.upsert_preference("likes", "tea")
    between = datetime.now(UTC)
    time.sleep(0.002)
    alice.upsert_preference("likes", "coffee")
    alice.add_turn("I love water.", "ok", "s")
    then = alice.as_of(1)
    assert texts(then) == texts(alice.as_of(between)) == {"pref001": "tea"}
    assert then.conversations() == {}
    assert [hit.text for hit in then.recall("tea coffee water")] == ["tea"]
    assert "coffee" not in then.render()
    assert (
        alice.as_of(0).preferences("likes")
        == alice.as_of(between - timedelta(days=1)).preferences("likes")
        == {}
    )
    assert [d.key for d in alice.diff(1, 2)] == ["likes/pref002"]
    assert [d.key for d in alice.diff(1)] == ["likes/pref002", "likes/pref003", "conversations/s"]
    assert [d.key for d in alice.diff()] == [d.key for d in alice.diff(2)] != []
    assert '+text = "coffee"' in alice.diff_text(1, 2)


def test_a_read_of_history_is_repeated_unless_the_same_error_follows():
    errors = ["removed", "removed, too"]

    @reread
    def read():
        if errors:
            raise DocumentError(errors.pop(0))
        return "found"

    assert read() == "found"
    errors = ["damaged", "damaged", "left"]
    with pytest.raises(DocumentError, match="damaged"):
        read()
    assert errors == ["left"]


def test_a_difference_shows_a_document_that_history_does_not_have_yet(alice, tmp_path):
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/blocks.toml"
    file.write_text('[blocks.persona]\ntext = "calm"\n')
    age(file)
    assert [each.key for each in alice.diff(1)] == ["blocks/persona"]


def test_a_past_state_lists_the_documents_of_that_time(alice):
    alice.upsert_preference("likes", "tea")
    alice.blocks.append("notes", "water the plants")
    assert alice.as_of(0).documents() == []
    assert alice.as_of(1).documents() == ["preferences"]
    alice.forget_preference("likes", "pref001")
    assert sorted(alice.as_of(2).documents()) == ["blocks", "preferences"]


@pytest.mark.parametrize("change", [
    lambda past: past.upsert_preference("likes", "x"),
    lambda past: past.forget_preference("likes", "pref001"),
    lambda past: past.rollback(),
])  # fmt: skip
def test_a_past_state_cannot_be_written(alice, change):
    alice.upsert_preference("likes", "tea")
    past = alice.as_of(1)
    with pytest.raises(DiaryError, match="cannot be changed"):
        change(past)
    assert texts(alice) == {"pref001": "tea"}


def test_undoing_a_rollback_restores_the_same_bytes(alice, tmp_path):
    states = [[]]
    steps = [
        lambda: alice.upsert_preference("likes", "tea", contexts=["a"]),
        lambda: alice.upsert_preference("goals", "rest"),
        lambda: alice.upsert_preference("likes", "coffee"),
        lambda: alice.upsert_preference("likes", "green tea", id="pref001"),
        lambda: alice.forget_preference("likes", "pref001"),
    ]
    for step in steps:
        step()
        states.append(body(tmp_path))
    for number in range(1, len(steps)):
        alice.rollback(to=len(steps) - number)
        assert body(tmp_path) == states[len(steps) - number]
        alice.rollback()
        assert body(tmp_path) == states[-1]
    assert len(alice.history("likes/pref001", limit=100)) > 3  # nothing was erased


@pytest.mark.parametrize("selected", [{"steps": 1}, {"to": 2}])
def test_rollback_undoes_a_hand_edit_that_is_not_logged_yet(alice, tmp_path, selected):
    alice.upsert_preference("likes", "jazz")
    alice.upsert_preference("likes", "tea")
    path = tmp_path / "alice/preferences.toml"
    path.write_text(path.read_text().replace("jazz", "bebop"))

    assert alice.rollback(**selected, dry_run=True).keys == ["likes/pref001"]
    assert texts(alice)["pref001"] == "bebop"
    assert alice.rollback(**selected).undone == [3]
    assert texts(alice) == {"pref001": "jazz", "pref002": "tea"}


def test_rollback_into_a_list_of_tables_is_a_named_error(alice, file):
    alice.upsert_preference("likes", "tea")
    alice.upsert_preference("likes", "green tea", id="pref001")
    header = "[preferences.likes.pref001]"
    edited = file.read_text().replace(header, f"[[preferences.likes]]\n{header}")
    file.write_text(edited)
    age(file)
    with pytest.raises(DocumentError, match=r"preferences\.likes: expected a table"):
        alice.rollback(force=True)
    assert file.read_text() == edited


def test_rollback_counts_no_hand_edit_of_comments(alice, file):
    alice.upsert_preference("likes", "green tea")
    alice.upsert_preference("goals", "run a marathon")
    file.write_text("# a note\n" + file.read_text())
    assert alice.rollback().keys == ["goals/pref001"]
    assert file.read_text().startswith("# a note\n")
    with pytest.raises(Conflict, match="only 3"):
        alice.rollback(5)


@pytest.mark.parametrize("flat", ["", 'color = "red"\n'])
def test_rollback_undoes_a_hand_edit_that_removed_a_header(alice, tmp_path, flat):
    alice.upsert_preference("likes", "tea")
    path = tmp_path / "alice/preferences.toml"
    header = f"[preferences.likes]\n{flat}\n"
    table = "[preferences.likes.pref001]\n"
    path.write_text(path.read_text().replace(table, header + table))
    alice.upsert_preference("goals", "rest")
    path.write_text(path.read_text().replace(header, "").replace('"tea"', '"mate"'))
    age(path)
    alice.rollback()
    assert alice.preferences("likes")["pref001"].text == "tea"
    assert flat in path.read_text()


def test_the_record_of_a_removal_has_only_the_removed_text(alice, tmp_path):
    for text in ("tea", "coffee", "water"):
        alice.upsert_preference("likes", text)
    alice.forget_preference("likes", "pref002")
    record = next(LocalBackend(tmp_path).records("alice"))
    assert [text in record for text in ("tea", "coffee", "water")] == [False, True, False]


def test_rollback_of_a_removal_restores_a_list_of_tables(alice, tmp_path):
    store, file = DiaryStore(tmp_path), tmp_path / "alice/items/m.toml"
    store.put(("alice", "m"), "k", {"x": 1})
    file.write_text(f"{file.read_text()}[[items.k.list]]\nn = 1\n")
    assert alice.items.delete("m/k")
    alice.rollback()
    assert store.get(("alice", "m"), "k").value == {"x": 1, "list": [{"n": 1}]}


class CountingReads(MemoryBackend):
    """Counts how often history is read."""

    reads = 0

    def records(self, user):
        self.reads += 1
        return super().records(user)


def test_rollback_reads_history_as_often_for_many_documents_as_for_one():
    reads = []
    for count in (1, 20):
        backend = CountingReads()
        store = DiaryStore(Diary(backend))
        names = [("alice", f"notes {number}") for number in range(count)]
        store.batch([PutOp(name, key, {"text": "tea"}) for name in names for key in "ab"])
        texts = store.diary.user("alice").export(entries=True)["entries"]
        store.batch([PutOp(name, "a", None) for name in names])
        backend.reads = 0
        store.diary.user("alice").rollback()
        reads.append(backend.reads)
        assert store.diary.user("alice").export(entries=True)["entries"] == texts
    assert reads[0] == reads[1]


def test_the_numbers_given_out_stay_in_one_line_after_a_rollback(alice, tmp_path):
    file = tmp_path / "alice/preferences.toml"
    file.parent.mkdir()
    file.write_text('[preferences.likes.tea]\ntext = "tea"  # green\n')
    alice.upsert_preference("likes", "jazz")
    alice.rollback()
    assert "\nnext_ids = { likes = 2 }\n" in file.read_text()
    assert 'text = "tea"  # green\n' in file.read_text()


def test_rollback_restores_comments_and_position(alice, tmp_path):
    for text in ("one", "two", "three"):
        alice.upsert_preference("likes", text)
    file = tmp_path / "alice/preferences.toml"
    file.write_text(
        file.read_text().replace(
            "[preferences.likes.pref002]", "# keep me\n[preferences.likes.pref002]"
        )
    )
    alice.upsert_preference("likes", "four")
    before = body(tmp_path)
    alice.forget_preference("likes", "pref002")
    assert "# keep me" not in file.read_text()
    alice.rollback()
    assert body(tmp_path) == before


def test_rollback_of_a_rollback_restores_the_blank_line_of_a_hand_edit(alice, file):
    alice.upsert_preference("likes", "tea")
    alice.upsert_preference("likes", "coffee")
    alice.forget_preference("likes", "pref002")
    text = file.read_text()
    file.write_text(text[: text.index("[preferences")])
    age(file)
    alice.rollback(3)
    assert alice.preferences("likes").keys() == {"pref001"}
    alice.rollback()
    assert file.read_text() == text[: text.index("[preferences")].replace("seq = 3", "seq = 6")


def test_an_undone_rollback_leaves_no_blank_line_in_a_document_without_entries(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.blocks.set("persona", "kind")
    file = tmp_path / "alice/preferences.toml"
    file.write_text('[preferences.goals.rest]\ntext = "rest"\n\n')
    age(file)
    alice.rollback()
    text = file.read_text()
    alice.rollback()
    alice.rollback()
    assert file.read_text() == text.replace("seq = 3", "seq = 5")


@pytest.mark.parametrize("steps", [2, 3])
def test_an_undone_rollback_restores_a_comment_beside_unchanged_entries(tmp_path, steps):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.add_turn("I love chess.", "ok", "s1")
    alice.upsert_preference("goals", "green tea")
    alice.rollback(2)
    alice.rollback()
    (tmp_path / "alice/preferences.toml").unlink()
    file = tmp_path / "alice/conversations.toml"
    file.write_text(f"{file.read_text()}\n# a note\n")
    age(file)
    alice.rollback(steps)
    assert "# a note" not in file.read_text()
    alice.rollback()
    assert file.read_text().endswith("\n\n# a note\n")


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_rollback_restores_an_entry_after_its_comment(alice, tmp_path, newline):
    alice.upsert_preference("likes", "one")
    file = tmp_path / "alice/preferences.toml"
    mine = '\n# a paragraph of its own\n\n# mine\n[preferences.likes.pref009]\ntext = "by hand"\n'
    file.write_text(file.read_text().rstrip() + "\n" + mine, newline=newline)
    alice.upsert_preference("goals", "rest")
    before = file.read_bytes()
    assert before.count(newline.encode()) == before.count(b"\n")
    alice.forget_preference("likes", "pref009")
    assert b"# a paragraph of its own" in file.read_bytes()
    alice.rollback()
    lines = [line for line in before.splitlines(True) if not line.startswith((b"seq", b"next_ids"))]
    found = [
        line for line in file.read_bytes().splitlines(True)
        if not line.startswith((b"seq", b"next_ids"))
    ]  # fmt: skip
    assert found == lines


def test_rollback_of_one_session_keeps_other_sessions(alice):
    alice.upsert_preference("likes", "tea", session_id="a")
    alice.upsert_preference("likes", "coffee", session_id="b")
    alice.upsert_preference("goals", "rest", session_id="a")
    done = alice.rollback(2, session_id="a")
    assert done.undone == [3, 1]
    assert texts(alice) == {"pref002": "coffee"}
    assert texts(alice, "goals") == {}


def test_an_entry_changed_since_is_a_conflict_that_names_it(alice):
    alice.upsert_preference("likes", "tea", session_id="a")
    alice.upsert_preference("likes", "green tea", id="pref001", session_id="b")
    with pytest.raises(Conflict, match="likes/pref001 changed since") as caught:
        alice.rollback(session_id="a")
    assert caught.value.keys == ["likes/pref001"]
    assert texts(alice) == {"pref001": "green tea"}
    plan = alice.rollback(session_id="a", dry_run=True)
    assert (plan.undone, plan.conflicts) == ([1], ["likes/pref001"])
    assert texts(alice) == {"pref001": "green tea"}
    alice.rollback(session_id="a", force=True)
    assert texts(alice) == {}
    alice.rollback()
    assert texts(alice) == {"pref001": "green tea"}


def test_undoing_a_session_keeps_what_another_wrote_in_between(tmp_path):
    alice = Diary(tmp_path).user("alice")
    for session, text in (("a", "first"), ("b", "second"), ("a", "third")):
        alice.blocks.set("plan", text, session_id=session)
    assert alice.rollback(2, session_id="a", dry_run=True).conflicts == ["blocks/plan"]
    with pytest.raises(Conflict, match="blocks/plan changed since") as caught:
        alice.rollback(2, session_id="a")
    assert caught.value.expected["blocks/plan"]["text"] == "first"
    assert alice.blocks["plan"].text == "third"
    assert alice.rollback(session_id="a", dry_run=True).conflicts == []
    alice.rollback(2, session_id="a", force=True)
    assert "plan" not in alice.blocks


def test_rollback_accepts_a_transaction_number_or_a_time(alice):
    alice.upsert_preference("likes", "tea")
    moment = datetime.now(UTC)
    time.sleep(0.002)
    for text in ("coffee", "water", "juice"):
        alice.upsert_preference("likes", text)
    alice.rollback(to=2)
    assert list(texts(alice).values()) == ["tea", "coffee"]
    alice.rollback(to=moment)
    assert list(texts(alice).values()) == ["tea"]
    with pytest.raises(Conflict, match=r"^there is no transaction to undo\.$"):
        alice.rollback(to=alice.last_transaction())
    with pytest.raises(Conflict, match="no transaction to undo of session 'unknown'"):
        alice.rollback(session_id="unknown")


@pytest.mark.parametrize("dry_run", [False, True])
def test_more_steps_than_transactions_undo_nothing(alice, dry_run):
    alice.upsert_preference("likes", "tea", session_id="s1")
    alice.upsert_preference("likes", "coffee")
    with pytest.raises(Conflict, match=r"99 transactions cannot be undone: there are only 2\."):
        alice.rollback(99, dry_run=dry_run)
    with pytest.raises(Conflict, match=r"2 transactions of session 's1' .* only 1\."):
        alice.rollback(2, session_id="s1", dry_run=dry_run)
    assert len(texts(alice)) == 2
    assert alice.rollback(to=0).undone == [2, 1]


@pytest.mark.parametrize("steps", [0, -1, True, 1.5, "2", None])
def test_invalid_steps_undo_nothing(alice, steps):
    alice.upsert_preference("likes", "tea")
    with pytest.raises(InvalidValue, match="steps: expected a whole number of at least 1"):
        alice.rollback(steps)
    assert texts(alice) == {"pref001": "tea"}


def test_a_point_of_history_is_a_number_a_time_a_day_or_iso_text(alice):
    alice.upsert_preference("likes", "tea", now=datetime(2026, 11, 1, tzinfo=UTC))
    first = datetime.fromisoformat(alice.history()[0].time)
    alice.upsert_preference("likes", "coffee")
    tomorrow = first + timedelta(days=1)
    for now in (2, tomorrow, tomorrow.date(), tomorrow.isoformat(), tomorrow.date().isoformat()):
        assert len(texts(alice.as_of(now))) == 2
        assert alice.diff(0, now) == alice.diff(0)
    for then in (0, first.date(), first.date().isoformat(), "2020-01-01", "2020-01-01T12:00"):
        assert texts(alice.as_of(then)) == {}
        assert alice.rollback(to=then, dry_run=True).undone == [2, 1]


@pytest.mark.parametrize("point", [None, 1.5, True, "", "yesterday", "3", b"1", [1], -1, 9])
def test_an_invalid_point_of_history_is_refused_in_a_sentence(alice, point):
    alice.upsert_preference("likes", "tea")
    with pytest.raises(InvalidValue, match=r"^at: (expected a transaction number, or a time|there is no transaction)"):  # fmt: skip
        alice.as_of(point)
    if point is not None:
        for name, look in (
            ("before", alice.diff),
            ("before", alice.diff_text),
            ("after", lambda after: alice.diff(0, after)),
            ("to", lambda to: alice.rollback(to=to)),
        ):
            with pytest.raises(InvalidValue, match=f"^{name}: "):
                look(point)
    if isinstance(point, str):
        for name in ("since", "until"):
            with pytest.raises(InvalidValue, match=f"^{name}: "):
                alice.history(**{name: point})


def test_a_rollback_takes_either_a_number_of_steps_or_a_point(alice):
    for text in ("tea", "jazz", "cats"):
        alice.upsert_preference("likes", text)
    with pytest.raises(InvalidValue, match=r"^steps: give steps or to, not both\."):
        alice.rollback(2, to=0)
    assert len(alice.history()) == 3
    assert alice.rollback(1, to=0).undone == [3, 2, 1]


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_rollback_inside_a_transaction_is_refused_without_waiting(alice, dry_run):
    alice.diary.engine.lock_timeout = 1.0
    alice.upsert_preference("likes", "tea")
    with alice.transaction(), pytest.raises(NestedTransaction, match="after it has ended"):
        alice.rollback(dry_run=dry_run)
    assert texts(alice) == {"pref001": "tea"}


def test_a_rolled_back_id_is_not_reused_for_another_entry(alice):
    alice.upsert_preference("likes", "tea")
    alice.upsert_preference("likes", "coffee")
    alice.rollback()
    key, _ = alice.upsert_preference("likes", "water")
    assert key == "pref003"


def test_a_point_before_the_kept_history_is_an_error(tmp_path):
    alice = Diary(LocalBackend(tmp_path, segment_bytes=1500), agent="rules").user("alice")
    for number in range(10):
        alice.upsert_preference("likes", f"thing {number}")
    oldest = min((tmp_path / "alice/history").iterdir())
    oldest.unlink()
    with pytest.raises(DocumentError, match="history begins at transaction 2;"):
        alice.as_of(0)
    assert [len(texts(alice.as_of(seq))) for seq in (1, 5, 9)] == [1, 5, 9]  # the way back is known
    alice.upsert_preference("likes", "still writable")


def test_an_entry_moved_by_hand_is_neither_added_nor_removed(alice, tmp_path):
    for text in ("one", "two", "three"):
        alice.upsert_preference("likes", text)
    file = tmp_path / "alice/preferences.toml"
    head, first, *others = split_blocks(file.read_text())[1:]
    file.write_text(
        "".join(block.text for block in (head, *others)) + "\n" + first.text.rstrip() + "\n"
    )
    os.utime(file, (1, 1))
    alice.upsert_preference("goals", "rest")
    moved = [h for h in alice.history(limit=99) if h.seq == 4]
    assert moved == []
    before = texts(alice)
    assert alice.rollback(to=3).keys == ["goals/pref001"]
    assert texts(alice) == before == {"pref002": "two", "pref003": "three", "pref001": "one"}


def test_a_writer_and_a_reader_show_the_same_order_after_a_removal(alice, tmp_path):
    other = Diary(tmp_path, agent="rules").user("alice")
    for user in (alice, other):
        for name, model in (("pet", Pet), ("plant", Plant)):
            user.diary.register_schema(name, model, Constraint(singleton_key="name"))
    alice.facts.commit("pet", {"name": "Rex"})
    alice.facts.commit("plant", {"name": "ivy"})
    alice.facts.delete("pet/Rex")
    alice.facts.commit("pet", {"name": "Tom"})
    assert alice.render() == other.render()
    assert "name = ivy\n- pet: name = Tom" in alice.render()


def test_a_rollback_shows_the_same_order_as_its_file(alice, tmp_path):
    for name in ("a", "b"):
        alice.blocks.set(name, "text")
        alice.upsert_preference("likes", f"taste {name}", id=name)
    with alice.transaction():
        alice.blocks.delete("a")
        alice.remove_preference("likes", "a")
    alice.rollback()
    other = Diary(tmp_path, agent="rules").user("alice")
    assert list(alice.blocks) == list(other.blocks) == ["a", "b"]
    assert list(alice.preferences("likes")) == list(other.preferences("likes")) == ["a", "b"]
    assert alice.render() == other.render()


def test_entries_whose_time_is_over_are_no_conflict_of_a_rollback(alice):
    alice.diary.constrain("blocks/agenda", Constraint(ttl=timedelta(days=1)))
    yesterday = datetime.now(UTC) - timedelta(days=2)
    alice.append_block("agenda", "a walk", now=yesterday)
    assert alice.rollback().undone == [1]
    alice.append_block("agenda", "a walk", now=yesterday)
    alice.upsert_preference("likes", "tea")  # removes the block, too
    assert alice.rollback().undone == [4]
    assert alice.rollback().undone == [5]
    assert texts(alice) == {"pref001": "tea"}
    alice.append_block("agenda", "a walk", now=yesterday, session_id="s1")
    alice.append_block("agenda", "a new walk")
    with pytest.raises(Conflict, match="agenda"):
        alice.rollback(session_id="s1")


def test_what_expired_since_is_no_conflict_of_the_rollback_of_a_session(alice):
    diary, now = alice.diary, datetime.now(UTC)
    diary.constrain("blocks/agenda", Constraint(ttl=timedelta(days=1)))
    store = DiaryStore(diary)
    with alice.transaction(session_id="s1"):
        alice.upsert_preference("likes", "tea")
        alice.blocks.set("agenda", "a walk")
        alice.blocks.set("plan", "a trip", ephemeral=True)
        store.put(("alice", "trips"), "porto", {"text": "a flat"}, ttl=60)
    diary.engine.now = lambda: now + timedelta(days=2)
    alice.blocks.set("persona", "kind", session_id="s2")
    alice.blocks.set("plan", "a rest", session_id="s2", ephemeral=True)  # drops the other draft
    store.delete(("alice", "trips"), "porto")  # as a sweep
    assert alice.rollback(session_id="s1", dry_run=True).conflicts == []
    alice.rollback(session_id="s1")
    assert not alice.preferences("likes")
    assert list(alice.blocks) == ["persona"]


def test_an_entry_that_was_removed_before_it_expired_is_a_conflict_of_a_rollback(alice):
    diary, now, place = alice.diary, datetime.now(UTC), ("alice", "trips")
    store = DiaryStore(diary)
    store.put(place, "porto", {"text": "a house"})
    with alice.transaction(session_id="s1"):
        store.put(place, "porto", {"text": "a flat"}, ttl=60)
    store.delete(place, "porto")
    diary.engine.now = lambda: now + timedelta(days=2)
    with pytest.raises(Conflict):
        alice.rollback(session_id="s1")
    assert store.get(place, "porto") is None


def test_a_dry_run_of_a_rollback_removes_no_expired_entries(alice):
    alice.diary.constrain("blocks/agenda", Constraint(ttl=timedelta(days=1)))
    alice.upsert_preference("likes", "tea")
    alice.append_block("agenda", "a walk", now=datetime.now(UTC) - timedelta(days=2))
    expected = alice.rollback(dry_run=True)
    assert alice.last_transaction() == 2
    assert alice.rollback().undone == expected.undone == [2]


def test_rollback_restores_the_order_of_adjacent_entries(alice, tmp_path):
    for text in ("one", "two", "three", "four", "five"):
        alice.upsert_preference("likes", text)
    before = body(tmp_path)
    with alice.transaction():
        for key in ("pref004", "pref002", "pref003"):
            alice.forget_preference("likes", key)
    alice.rollback()
    assert body(tmp_path) == before
    with alice.transaction(session_id="s2"):
        alice.forget_preference("likes", "pref003")
    file = tmp_path / "alice/preferences.toml"
    blocks = split_blocks(file.read_text())
    file.write_text("".join(block.text for block in blocks if block.path[-1:] != ("pref002",)))
    os.utime(file, (1, 1))
    alice.rollback(session_id="s2")
    names = [block.path[-1] for block in split_blocks(file.read_text())[2:]]
    assert names == ["pref001", "pref003", "pref004", "pref005"]


def test_an_id_is_not_reused_after_an_older_one_was_forgotten(alice):
    for text in ("tea", "coffee"):
        alice.upsert_preference("likes", text)
    alice.forget_preference("likes", "pref002")
    alice.forget_preference("likes", "pref001")
    assert alice.upsert_preference("likes", "water")[0] == "pref003"


class Home(BaseModel):
    who: str
    city: str


def test_why_and_history_accept_keys_of_items(alice):
    store = DiaryStore(alice.diary)
    long = "日本語の長い名前" * 4
    namespaces = [("alice", "a"), ("alice", "b"), ("alice", "b", "c"), ("alice",), ("alice", long)]
    for namespace in namespaces:
        store.put(namespace, "k", {"text": f"tea {namespace[-1]}"})
    store.put(("alice", "b"), "c/k %", {"text": "slashed", "n": 3})
    store.put(("alice", "a"), "k", {"text": "green tea"})
    keys = [each.key for each in alice.history()]
    assert keys[0] == "items/a/k"
    assert keys[1] == "items/b/c%2fk %25"
    assert len(set(keys)) == len(namespaces) + 1
    for key in keys:
        assert [each.key for each in alice.history(key)] == [key] * keys.count(key)
        assert alice.why(key).key == key
    assert alice.why("items/a/k").text == "green tea"
    assert alice.why("items/b/c%2fk %25").text == "text = slashed, n = 3"
    assert [each.after["text"] for each in alice.history("items/b/c/k")] == ["tea c"]
    assert {each.key for each in alice.diff(0)} == set(keys)
    assert alice.rollback(dry_run=True).keys == ["items/a/k"]
    store.delete(("alice", "a"), "k")
    assert [each.after for each in alice.why("items/a/k").changes][-1] is None
    with pytest.raises(UnknownEntry):
        alice.why("items/a/other")


def test_history_names_facts_as_commit_and_recall_do(alice):
    alice.diary.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))
    fact = alice.commit(Home(who="user", city="Rome"), source="s1#1")
    assert alice.recall("Rome")[0].key == fact
    for key in (fact, f"facts/{fact}", "facts/home/user", "home/user"):
        assert alice.why(key).turn == "s1#1"
        assert alice.why(key).key == f"facts/{fact}"
        assert alice.why(key).text == "who = user, city = Rome"
        assert len(alice.history(key)) == 1
    alice.facts.delete(fact)
    with pytest.raises(UnknownEntry, match=rf"holds now; the last change is of facts/{fact}\."):
        alice.why("home/user")


def test_history_is_narrowed_by_session_actor_time_and_page(alice):
    for number in range(6):
        alice.upsert_preference(
            "likes", f"thing {number}", session_id=f"s{number % 2}", actor=f"a{number % 3}"
        )
    times = [datetime.fromisoformat(each.time) for each in alice.history()][::-1]

    def seqs(**narrowed):
        return [each.seq for each in alice.history(**narrowed)]

    assert seqs(session_id="s1") == [6, 4, 2]
    assert seqs(actor="a0") == [4, 1]
    assert seqs(session_id="s1", actor="a0") == [4]
    assert seqs(limit=2, offset=3) == [3, 2]
    assert seqs(limit=None, offset=3) == [3, 2, 1]
    assert seqs(session_id="s1", limit=1, offset=1) == [4]
    assert seqs(since=4) == [6, 5]
    assert seqs(until=2) == [2, 1]
    assert seqs(since=2, until=4) == [4, 3]
    assert seqs(since=times[4]) == [6, 5]
    assert seqs(until=times[1]) == [2, 1]
    assert seqs(since=times[1].replace(tzinfo=None), until=times[2]) == [3, 2]
    assert seqs(since=times[4].isoformat(), until=times[4].date() + timedelta(days=1)) == [6, 5]
    assert seqs(limit=0) == []
    for wrong in ({"since": True}, {"until": "soon"}, {"limit": -1}, {"offset": -1}):
        with pytest.raises(InvalidValue):
            alice.history(**wrong)
    assert alice.history("likes/pref003", since=3) == []


def test_an_altered_record_is_named_with_its_number_and_the_remedy(alice, tmp_path):
    for text in ("tea", "coffee", "jazz"):
        alice.upsert_preference("likes", text)
    [segment] = (tmp_path / "alice/history").iterdir()
    segment.write_text(segment.read_text().replace("coffee", "toffee"))
    with pytest.raises(DocumentError, match=r'record 2 was altered.*"tomldiary doctor"'):
        alice.history()
    assert texts(alice) == {"pref001": "tea", "pref002": "coffee", "pref003": "jazz"}


@pytest.fixture
def gap(alice, tmp_path):
    """A history without the records 3 and 4 of six, and the times of all."""
    for text in ("tea", "coffee", "water", "rest", "walks", "music"):
        alice.upsert_preference("likes", text)
    times = [change.time for change in alice.history()][::-1]
    (segment,) = (tmp_path / "alice/history").glob("*.toml")
    first, *records = segment.read_text().split("[[tx]]\n")
    kept = [record for number, record in enumerate(records, 1) if number not in {3, 4}]
    segment.write_text("[[tx]]\n".join([first, *kept]))
    return times


@pytest.mark.parametrize("is_written", [False, True])
def test_a_state_whose_records_were_removed_is_an_error(alice, tmp_path, gap, is_written):
    if is_written:
        alice.upsert_preference("likes", "books")
    fresh = Diary(tmp_path, agent="rules").user("alice")
    for user in (alice, fresh):
        known = {at: len(texts(user.as_of(at))) for at in (1, 2, 4, 5, 6)}
        assert known == {1: 1, 2: 2, 4: 4, 5: 5, 6: 6}
        assert len(texts(user.as_of(gap[4]))) == 5
        for at in (3, gap[2], gap[3]):
            with pytest.raises(DocumentError, match=r"the records? of transactions? 3 "):
                user.as_of(at)


def test_one_removed_record_is_named_alone(alice, tmp_path):
    for text in ("tea", "coffee", "water", "rest"):
        alice.upsert_preference("likes", text)
    moment = alice.history("likes/pref003")[0].time
    (segment,) = (tmp_path / "alice/history").glob("*.toml")
    first, *records = segment.read_text().split("[[tx]]\n")
    segment.write_text("[[tx]]\n".join([first, *records[:2], *records[3:]]))
    with pytest.raises(DocumentError, match=r"^the record of transaction 3 is missing, so"):
        alice.as_of(moment)


def test_a_month_is_a_point_of_history_and_digits_are_no_year(alice):
    alice.upsert_preference("likes", "tea")
    assert texts(alice.as_of("9999-01")) == {"pref001": "tea"}
    assert len(alice.history(since="2020-01", until="9999-01")) == 1
    with pytest.raises(InvalidValue, match="at: expected a transaction number, or a time"):
        alice.as_of("2020")


def test_a_time_before_a_removed_beginning_is_an_error(alice, tmp_path, gap):
    """Without a snapshot it is not known what was there."""
    (segment,) = (tmp_path / "alice/history").glob("*.toml")
    first, *records = segment.read_text().split("[[tx]]\n")
    segment.write_text("[[tx]]\n".join([first, *records[2:]]))
    with pytest.raises(DocumentError, match="history begins at transaction 5;"):
        Diary(tmp_path, agent="rules").user("alice").as_of(gap[0])


@pytest.mark.parametrize("at", ["a time", "no transaction"])
def test_a_point_before_a_removed_beginning_is_not_restored(tmp_path, at):
    """The documents that are known behind it do not show that another one was there."""
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    moment = datetime.now(UTC)
    alice.blocks.set("persona", "kind")
    (segment,) = (tmp_path / "alice/history").glob("*.toml")
    head, _, *records = segment.read_text().split("[[tx]]\n")
    segment.write_text("[[tx]]\n".join([head, *records]))
    alice = Diary(tmp_path, agent="rules").user("alice")
    point = moment if at == "a time" else 0
    for verb in (alice.as_of, lambda to: alice.rollback(to=to)):
        with pytest.raises(DocumentError, match="history begins at transaction 2;"):
            verb(point)
    assert alice.blocks["persona"].text == "kind"


def test_a_state_that_neither_end_of_history_leads_to_is_an_error(alice, tmp_path):
    for text in ("tea", "coffee", "water", "rest", "walks", "music"):
        alice.upsert_preference("likes", text)
    (segment,) = (tmp_path / "alice/history").glob("*.toml")
    head, _, *records = segment.read_text().split("[[tx]]\n")
    segment.write_text("[[tx]]\n".join([head, *records]))
    (tmp_path / "alice/preferences.toml").unlink()
    with pytest.raises(DocumentError, match="history begins at transaction 2;"):
        Diary(tmp_path, agent="rules").user("alice").as_of(2)


def test_a_rollback_over_removed_records_changes_nothing(alice, gap):
    assert alice.rollback(2, dry_run=True).undone == [6, 5]
    for asked in ({"steps": 3}, {"to": 1}, {"to": 3}):
        with pytest.raises(DocumentError, match="transactions 3 to 4"):
            alice.rollback(**asked)
    assert len(texts(alice)) == 6


class WatchedTexts(PastTexts):
    """Calls `step` with the documents of each read of history, before it."""

    def texts(self, at, kinds, where="at"):
        self.step(kinds)
        return super().texts(at, kinds, where)


def watched_documents(user, step):
    """Store an item in each of 20 namespaces, and return their state before a later transaction changed all of them."""
    store = DiaryStore(user.diary)
    for text in ("tea", "coffee"):
        store.batch([PutOp(("alice", f"n{each:02}"), "k", {"text": text}) for each in range(20)])
    past = WatchedTexts(user.diary.engine, "alice")
    past.step = step
    return PastDocuments(past, 1, [f"items/n{each:02}" for each in range(20)], datetime.now(UTC))


def test_a_past_state_reads_many_documents_with_few_reads_of_history(alice):
    reads = []
    past = watched_documents(alice, reads.append)
    assert ["tea" in past.document(kind).text for kind in past.kinds] == [True] * 20
    assert len(reads) <= 6


def test_a_past_document_is_read_though_the_history_of_the_next_is_damaged(alice):
    def damaged(kinds):
        if "items/n05" in kinds:
            raise DocumentError("items/n05: its history is damaged")

    past = watched_documents(alice, damaged)
    assert all("tea" in past.document(f"items/n0{each}").text for each in range(5))
    with pytest.raises(DocumentError, match="n05: its history"):
        past.document("items/n05")
