"""Another program removes the last records of history, or restores an older copy: nothing is answered wrongly."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime

import pytest

from hand_edits import texts
from tomldiary import Diary
from tomldiary.errors import DocumentError, InvalidValue
from tomldiary.history.record import Source
from tomldiary.history.verify import verify


def opened(root):
    return Diary(root, agent="rules").user("alice")


def numbers(alice):
    return list(dict.fromkeys(change.seq for change in alice.history()))[::-1]


@pytest.fixture(params=["in this process", "in another process"])
def is_open(request):
    return request.param == "in this process"


@pytest.fixture(
    params=[
        ("the same document", False, True),
        ("the same document", True, False),
        ("another document", False, False),
        ("another document", True, True),
        ("another folder", False, True),
        ("another folder", True, False),
    ],
    ids=lambda each: f"{each[0]}-{'forgotten-' * each[1]}{'open' if each[2] else 'opened anew'}",
)
def written(request, tmp_path):
    """A user whose history lacks transactions 3 to 5, and the time of transaction 4."""
    place, has_forgotten, is_open = request.param

    def write(number):
        if place == "another document":
            alice.blocks.set("notes", f"note {number}")
        elif place == "another folder":
            alice.episodes.add(f"episode {number}", "Noted.", session_id="s1")
        else:
            alice.upsert_preference("likes", f"tea {number}")

    alice = opened(tmp_path)
    for number in range(2):
        alice.upsert_preference("likes", f"jazz {number}")
    if has_forgotten:
        alice.forget(session_id="a session that never was")
        assert alice.epoch == 1
    (segment,) = (tmp_path / "alice/history").glob("*.toml")
    before = segment.read_bytes()
    for number in range(2):
        write(number)
    moment = datetime.now(UTC)
    write(2)
    assert numbers(alice) == [1, 2, 3, 4, 5]
    segment.write_bytes(before)
    return (alice if is_open else opened(tmp_path)), moment


def test_the_numbers_of_removed_records_are_not_used_again(written):
    alice, _ = written
    alice.upsert_preference("likes", "chess")
    assert min({*numbers(alice)} - {1, 2}) > 5
    damage = verify(alice.diary.engine.backend, "alice")
    assert damage.seq == 3
    assert "records are missing" in damage.message
    assert "chess" in texts(alice)


def test_an_erasure_behind_removed_records_has_a_new_number(written):
    alice, _ = written
    assert alice.forget(matching="jazz 1").entries == 1
    assert alice.last_transaction() > 5
    assert "records are missing" in verify(alice.diary.engine.backend, "alice").message
    assert alice.traces("jazz 1") == []


def test_states_behind_removed_records_are_complete(written):
    """The first write logs what the removed records had brought into other documents."""

    def state(user):
        episodes = [episode.input for episode in user.episodes()]
        return (
            texts(user),
            {name: str(block) for name, block in user.blocks.all().items()},
            episodes,
        )

    alice, _ = written
    known = {}
    for number in range(3):
        alice.upsert_preference("likes", f"chess {number}")
        known[alice.last_transaction()] = state(alice)
    alice.blocks.set("notes", "another note")
    alice.episodes.add("another episode", "Noted.", session_id="s1")
    assert {at: state(alice.as_of(at)) for at in known} == known
    alice.prune_history(keep=3)
    last = max(known)
    assert state(alice.as_of(last)) == known[last]
    assert verify(alice.diary.engine.backend, "alice") is None


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_state_behind_the_end_of_a_shortened_history_is_refused(written, is_followed):
    alice, moment = written
    if is_followed:
        alice.upsert_preference("likes", "chess")
    assert texts(alice.as_of(2)) == ["jazz 0", "jazz 1"]
    for at in (moment, *range(3, numbers(alice)[2] if is_followed else 6)):
        with pytest.raises((DocumentError, InvalidValue), match=r"the records? of transactions? "):
            alice.as_of(at)
    for asked in ({"steps": 4 if is_followed else 1}, {"to": 2}):
        with pytest.raises(DocumentError, match=r"the records? of transactions? "):
            alice.rollback(**asked)


def test_a_history_that_lacks_records_can_be_pruned(written):
    alice, _ = written
    alice.upsert_preference("likes", "chess")
    alice.blocks.set("notes", "the last one")
    alice.episodes.add("the last one", "Noted.", session_id="s1")
    before = texts(alice)
    alice.prune_history(keep=1)
    assert verify(alice.diary.engine.backend, "alice") is None
    assert texts(alice) == before


def test_a_restored_older_memory_is_that_older_memory(tmp_path, is_open):
    alice = opened(tmp_path)
    alice.upsert_preference("likes", "jazz")
    old = {path: path.read_bytes() for path in (tmp_path / "alice").rglob("*.toml")}
    alice.upsert_preference("likes", "tea")
    alice.blocks.set("notes", "a note")
    for path in (tmp_path / "alice").rglob("*.toml"):
        if path in old:
            path.write_bytes(old[path])
        else:
            path.unlink()
    alice = alice if is_open else opened(tmp_path)
    alice.upsert_preference("likes", "chess")
    assert texts(alice) == ["jazz", "chess"]
    assert numbers(alice) == [1, 2]
    assert verify(alice.diary.engine.backend, "alice") is None


def test_a_blank_line_before_the_first_record_is_no_damage(tmp_path):
    alice = opened(tmp_path)
    alice.upsert_preference("likes", "tea")
    (segment,) = (tmp_path / "alice/history").iterdir()
    segment.write_text(f"\n{segment.read_text()}")
    assert numbers(opened(tmp_path)) == [1]
    assert verify(alice.diary.engine.backend, "alice") is None


def test_a_transaction_continues_a_history_that_was_restored_meanwhile(tmp_path):
    """The end of history is read once at the start, so the commit compares it."""
    alice = opened(tmp_path)
    alice.upsert_preference("likes", "jazz")
    old = {path: path.read_bytes() for path in (tmp_path / "alice").rglob("*.toml")}
    alice.upsert_preference("likes", "tea")
    with alice.transaction() as tx:
        tx.blocks.set("notes", "a note")
        for path, content in old.items():
            path.write_bytes(content)
    assert texts(alice) == ["jazz"]
    assert alice.blocks["notes"].text == "a note"
    assert numbers(alice) == [1, 2]
    assert verify(alice.diary.engine.backend, "alice") is None


@pytest.mark.parametrize("is_repeatable", [False, True], ids=["a block", "a call"])
def test_a_transaction_logs_all_documents_if_history_was_removed_meanwhile(tmp_path, is_repeatable):
    """A record of the changes alone would lack the documents that no later record has."""
    alice = opened(tmp_path)
    alice.upsert_preference("likes", "jazz")
    alice.blocks.set("plan", "x")

    def change(tx):
        edit = tx.edit("blocks")
        edit.put(("blocks", "notes"), {"text": "a note"})
        shutil.rmtree(tmp_path / "alice/history", ignore_errors=True)

    if is_repeatable:
        alice.diary.engine.write("alice", change, Source("note"))
    else:
        with alice.diary.engine.transaction("alice", Source("note")) as tx:
            change(tx)
    made = alice.last_transaction()
    for past in (alice.as_of(made), opened(tmp_path).as_of(made)):
        assert texts(past) == ["jazz"]
        assert set(past.blocks) == {"notes", "plan"}
    alice.blocks.set("plan", "y")
    alice.rollback(2)
    assert texts(alice) == ["jazz"]
    assert set(alice.blocks) == {"plan"}
