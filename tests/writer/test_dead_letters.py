"""Every turn that could not be applied is in the dead letters, whatever its id, its error or the letter before it."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from tomldiary import Constraint, Diary, MemoryWriter, Turn
from tomldiary.backends import LocalBackend
from tomldiary.doctor.doctor import check
from tomldiary.errors import ExtractionError
from tomldiary.storage.files import FileSystem
from tomldiary.storage.log import scan_log
from tomldiary.writer import dead_letters
from tomldiary.writer.dead_letters import DeadLetters

LONG = 120


def fail(message, *, deps):
    raise ValueError(deps.user_msg)


def park(writer, *turns):
    for turn in turns:
        receipt = writer.submit_nowait(turn)
        with pytest.raises(ExtractionError):
            receipt.wait(LONG)


@pytest.fixture
def letters(tmp_path):
    return DeadLetters(LocalBackend(tmp_path))


@pytest.fixture
def writer(tmp_path):
    with MemoryWriter(Diary(tmp_path, agent=fail)) as made:
        yield made


def test_turns_of_several_users_may_have_the_same_id(writer, letters):
    park(writer, *(Turn(user, "s", "tea", "ok", operation_id="1") for user in ("alice", "bob")))
    assert [letter.turn.user_id for letter in letters.list()] == ["alice", "bob"]


def test_the_doctor_names_the_dead_letters_of_the_checked_users(writer, tmp_path):
    park(writer, *(Turn(user, "s", "tea", "ok") for user in ("alice", "bob")))
    for users, named in ((["bob"], ["bob"]), (None, ["alice", "bob"])):
        found = check(Diary(tmp_path, agent="rules"), users)
        assert [each.place for each in found if "could not be applied" in each.message] == named


def test_a_reused_operation_id_hides_no_dead_letter(writer, letters):
    park(writer, *(Turn("alice", "s", text, "ok", operation_id="1") for text in ("tea", "juice")))
    assert [letter.turn.user_msg for letter in letters.list()] == ["tea", "juice"]


def test_all_segments_of_queued_dead_letters_are_synced(writer, tmp_path):
    park(writer, *(Turn("alice", "s", f"{number}{'x' * 40_000}", "ok") for number in range(5)))
    synced = {}

    class Watched(FileSystem):
        def sync_data(self, descriptor):
            found = self.fstat(descriptor)
            synced[found.st_ino] = found.st_size

    letters = DeadLetters(LocalBackend(tmp_path, files=Watched()))
    writer.close_sync()  # its journal is removed
    assert len(letters.requeue(letters.list())) == 5
    segments = [path.stat() for path in tmp_path.glob(".tomldiary/journal/*/*.toml")]
    assert len(segments) > 1
    assert all(synced.get(each.st_ino) == each.st_size for each in segments)


def test_one_turn_has_one_dead_letter(writer, letters):
    turn = Turn("alice", "s", "tea", "ok", operation_id="1")
    park(writer, turn, turn)
    assert [letter.turn for letter in letters.list()] == [turn]


def test_a_new_dead_letter_parses_none_of_the_others(writer, letters, monkeypatch):
    parsed = []
    monkeypatch.setattr(
        dead_letters, "scan_log", lambda data: parsed.append(data) or scan_log(data)
    )
    park(writer, *(Turn("alice", "s", f"tea {number}", "ok") for number in range(20)))
    assert not parsed
    assert len(letters.list()) == 20


def test_drop_returns_no_turn_that_was_requeued_meanwhile(writer, letters):
    park(writer, *(Turn("alice", "s", text, "ok") for text in ("tea", "juice")))
    tea, juice = chosen = letters.list()
    letters.requeue([tea])
    assert letters.drop(chosen) == [juice]
    assert letters.list() == []


def test_drop_keeps_another_turn_with_the_same_id(writer, letters):
    park(writer, *(Turn("alice", "s", text, "ok", operation_id="1") for text in ("tea", "juice")))
    tea, juice = letters.list()
    assert letters.drop([tea]) == [tea]
    assert letters.list() == [juice]


@pytest.mark.parametrize("cut", [1, 20])
def test_a_torn_dead_letter_hides_no_later_one(writer, letters, tmp_path, cut):
    path = tmp_path / ".tomldiary" / "dead-letters" / "alice.toml"
    park(writer, Turn("alice", "s", "tea", "ok"))
    path.write_bytes(path.read_bytes()[:-cut])
    park(writer, Turn("alice", "s", "juice", "ok"))
    assert [letter.turn.user_msg for letter in letters.list()][-1:] == ["juice"]


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_changed_first_line_hides_no_dead_letter(writer, letters, tmp_path, is_gone):
    path = tmp_path / ".tomldiary" / "dead-letters" / "alice.toml"
    park(writer, Turn("alice", "s", "tea", "ok"))
    text = path.read_text("utf-8")
    path.write_text(text.partition("\n")[2] if is_gone else f"\ufeff{text}", "utf-8")
    park(writer, Turn("alice", "s", "juice", "ok"))
    assert [letter.turn.user_msg for letter in letters.list()] == ["tea", "juice"]
    path.write_text(path.read_text("utf-8").partition("\n")[2], "utf-8")
    Diary(tmp_path).user("alice").forget(everything=True)
    assert not path.exists()


def test_an_error_with_a_lone_surrogate_is_stored(tmp_path, letters):
    def fail_oddly(message, *, deps):
        raise ValueError("no such file: \udcff\0")

    with MemoryWriter(Diary(tmp_path, agent=fail_oddly)) as writer:
        park(writer, Turn("alice", "s", "tea", "ok"))
    [letter] = letters.list()
    assert "no such file: \\udcff\\x00" in letter.error


class Home(BaseModel):
    who: str
    city: str


def test_a_late_turn_holds_from_when_it_was_submitted(tmp_path, letters):
    refused = {"Berlin"}

    def listen(message, *, deps):
        if deps.user_msg in refused:
            raise ValueError("no answer")
        deps.commit_fact("home", {"who": "user", "city": deps.user_msg})

    diary = Diary(tmp_path, agent=listen)
    diary.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))
    with MemoryWriter(diary) as writer:
        park(writer, Turn("alice", "s", "Berlin", "ok"))
        writer.submit_nowait(Turn("alice", "s", "Rome", "ok")).wait(LONG)
    refused.clear()
    letters.requeue(letters.list())
    with MemoryWriter(diary) as writer:
        assert writer.flush(LONG)
    assert diary.user("alice").conversations()["s"].turns == 2
    (home,) = diary.user("alice").facts.query("home")
    assert home.data.city == "Rome"
