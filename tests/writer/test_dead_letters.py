"""Every turn that could not be applied is in the dead letters, whatever its id, its error or the letter before it."""

from __future__ import annotations

import pytest

from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.errors import ExtractionError
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
    return DeadLetters(tmp_path / ".tomldiary" / "journal")


@pytest.fixture
def writer(tmp_path):
    with MemoryWriter(Diary(tmp_path, agent=fail)) as made:
        yield made


def test_turns_of_several_users_may_have_the_same_id(writer, letters):
    park(writer, *(Turn(user, "s", "tea", "ok", operation_id="1") for user in ("alice", "bob")))
    assert [letter.turn.user_id for letter in letters.list()] == ["alice", "bob"]


def test_an_id_that_is_used_again_for_something_else_hides_no_turn(writer, letters):
    park(writer, *(Turn("alice", "s", text, "ok", operation_id="1") for text in ("tea", "juice")))
    assert [letter.turn.user_msg for letter in letters.list()] == ["tea", "juice"]


def test_the_same_turn_is_there_once(writer, letters):
    turn = Turn("alice", "s", "tea", "ok", operation_id="1")
    park(writer, turn, turn)
    assert [letter.turn for letter in letters.list()] == [turn]


@pytest.mark.parametrize("cut", [1, 20])
def test_a_turn_behind_a_torn_letter_is_there(writer, letters, tmp_path, cut):
    path = tmp_path / ".tomldiary" / "journal" / "dead-letters.toml"
    park(writer, Turn("alice", "s", "tea", "ok"))
    path.write_bytes(path.read_bytes()[:-cut])
    park(writer, Turn("alice", "s", "juice", "ok"))
    assert [letter.turn.user_msg for letter in letters.list()][-1:] == ["juice"]


def test_an_error_may_quote_what_no_file_can_hold(tmp_path, letters):
    def fail_oddly(message, *, deps):
        raise ValueError("no such file: \udcff\0")

    with MemoryWriter(Diary(tmp_path, agent=fail_oddly)) as writer:
        park(writer, Turn("alice", "s", "tea", "ok"))
    [letter] = letters.list()
    assert "no such file: \\udcff\0" in letter.error
