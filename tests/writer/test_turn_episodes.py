"""Turns are kept word for word where the diary, or the turn, says so: once, in their order, with tool calls."""

from __future__ import annotations

import asyncio
import threading
import tomllib
from datetime import UTC, datetime, timedelta

import pytest

from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.agents.turn_messages import ToolCall, keep_out_of_steps, tool_steps
from tomldiary.entries.kinds.episodes import ToolStep
from tomldiary.errors import InvalidValue, NotSupported
from tomldiary.retrieval.render import framed_memory
from tomldiary.writer.journal import render_turn
from tomldiary.writer.journals import turn_of

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
STEPS = (ToolStep("search", '{"q": "trains to Oslo"}', "nine trains\nat “noon”"), ToolStep("book"))


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path / "m", agent="rules", episodes=True)


def said(alice):
    return [(one.input, one.output) for one in alice.episodes()]


def test_a_turn_is_kept_with_its_tool_calls(diary):
    alice = diary.user("alice")
    alice.add_turn("A train to Oslo?", "At noon.", "s1", now=START, steps=STEPS)
    (kept,) = alice.episodes()
    assert (kept.input, kept.output, kept.session_id) == ("A train to Oslo?", "At noon.", "s1")
    assert kept.steps == STEPS
    assert kept.id == "2026-01-01T12:00:00.000000Z"
    assert alice.recall("trains", kinds=["episodes"])[0].key == kept.id
    assert len(alice.history()) == 2  # one transaction: the conversation and the episode
    assert {change.seq for change in alice.history()} == {1}


def test_a_repeated_turn_is_kept_once(diary):
    alice = diary.user("alice")
    for _ in range(2):
        alice.add_turn("Hello.", "Hi.", "s1", operation_id="t1")
    assert said(alice) == [("Hello.", "Hi.")]


def test_the_turn_decides_against_the_diary(diary, tmp_path):
    alice = diary.user("alice")
    alice.add_turn("Hello.", "Hi.", "s1", episode=False)
    assert said(alice) == []
    quiet = Diary(tmp_path / "q", agent="rules").user("alice")
    quiet.add_turn("Hello.", "Hi.", "s1")
    quiet.add_turn("Keep this.", "", "s1", episode=True)
    assert said(quiet) == [("Keep this.", "")]
    assert quiet.episodes.messages("s1") == [{"role": "user", "content": "Keep this."}]


def test_a_blank_turn_is_no_episode_and_a_long_one_is_cut(diary):
    alice = diary.user("alice")
    alice.add_turn(" ", "", "s1")
    assert said(alice) == []
    alice.add_turn("x" * 200_000, "", "s1")
    assert alice.episodes()[0].input.endswith("x … (cut)")


@pytest.mark.parametrize("coalesce", [1, 4])
@pytest.mark.parametrize("place", ["m", None])
def test_a_writer_keeps_each_turn_in_the_order_of_its_time(tmp_path, place, coalesce):
    diary = Diary(tmp_path / place if place else "memory:", agent="rules", episodes=True)
    with MemoryWriter(diary, coalesce=coalesce) as writer:
        for number in (2, 0, 1):
            when = START + timedelta(minutes=number)
            turn = Turn("alice", "s1", f"q{number}", f"a{number}", when, steps=STEPS)
            writer.submit_nowait(turn)
        writer.submit_nowait(Turn("alice", "s1", "not kept", "", episode=False))
        assert writer.flush(30)
    alice = diary.user("alice")
    assert said(alice) == [("q0", "a0"), ("q1", "a1"), ("q2", "a2")]
    assert [one["content"] for one in alice.episodes.messages("s1", 3)] == ["a1", "q2", "a2"]
    assert {one.steps for one in alice.episodes()} == {STEPS}


@pytest.mark.parametrize("episode", [None, True, False])
def test_a_turn_with_steps_survives_the_journal(episode):
    turn = Turn("alice", "s1", "q\ud800", 'a"', START, steps=STEPS, episode=episode)
    data = tomllib.loads(render_turn(turn, "t1", "2026-01-01T00:00:00+00:00"))
    back = turn_of(data)
    assert (back.steps, back.episode, back.user_msg) == (STEPS, episode, "q\ufffd")


def test_forgetting_a_session_removes_its_episodes(diary, tmp_path):
    alice = diary.user("alice")
    alice.add_turn("The gate code is 4711.", "Noted.", "s1", steps=STEPS)
    alice.add_turn("Hello.", "Hi.", "s2")
    alice.forget(session_id="s1")
    assert said(alice) == [("Hello.", "Hi.")]
    files = [path.read_bytes() for path in (tmp_path / "m").rglob("*") if path.is_file()]
    assert not any(b"gate code" in text or b"nine trains" in text for text in files)


def test_an_own_id_names_one_episode(diary):
    alice = diary.user("alice")
    for _ in range(2):
        assert alice.episodes.add("q", "a", id="turn-7", now=START) == "turn-7"
    assert [one.id for one in alice.episodes()] == ["turn-7"]
    with pytest.raises(InvalidValue, match="episodes are never changed"):
        alice.episodes.add("q", "other", id="turn-7")
    assert alice.why("episodes/turn-7").text == "q\na"
    assert diary.user("bob").episodes.add("x", "y", id="turn-7") == "turn-7"
    assert said(alice) == [("q", "a")]


def test_a_storage_that_cannot_list_documents_refuses_at_once():
    class Six:
        async def load(self, user_id, kind): ...
        async def save(self, user_id, kind, text): ...
        async def exists(self, user_id, kind): ...
        async def delete(self, user_id, kind): ...
        async def delete_user(self, user_id): ...
        async def list_users(self): ...

    with pytest.raises(NotSupported):
        Diary(Six(), agent="rules", episodes=True)


def test_results_of_the_diarys_own_tools_are_left_out():
    keep_out_of_steps(["my_recall"])
    memory = framed_memory(["- likes: a secret"])
    calls = [
        (ToolCall("1", "recall", {}), "a secret"),
        (ToolCall("2", "search", {"q": "é"}), f"{memory}found"),  # a tool of the host that recalls
        (ToolCall("3", "my_recall", "{}"), None),
    ]
    steps = tool_steps(calls)
    assert steps == (ToolStep("search", '{"q": "é"}', "found"),)


@pytest.mark.parametrize("steps", [["search"], [()], [("a", "b", "c", "d")]])
def test_steps_of_another_shape_are_refused(diary, steps):
    alice = diary.user("alice")
    for call in (
        lambda: alice.add_turn("q", "a", "s1", steps=steps),
        lambda: alice.episodes.add("q", "a", steps=steps),
        lambda: Turn("alice", "s1", "q", "a", steps=steps),
    ):
        with pytest.raises(InvalidValue, match="expected the name of a tool"):
            call()
    assert said(alice) == []
    alice.add_turn("q", "a", "s1", steps=[("search",)])
    assert alice.episodes()[0].steps == (ToolStep("search"),)


def test_an_overridden_update_dates_its_episode_by_the_submit(tmp_path):
    gate = threading.Event()

    class Own(Diary):
        async def update_memory(self, *args, **options):
            await asyncio.to_thread(gate.wait, 60)
            await super().update_memory(*args, **options)

    diary = Own(tmp_path / "own", agent="rules", episodes=True)
    with MemoryWriter(diary) as writer:
        receipt = writer.submit_nowait(Turn("alice", "s1", "Hello.", "Hi."))
        receipt.wait_stored(60)
        stored = datetime.now(UTC)
        gate.set()
        receipt.wait(60)
    (kept,) = diary.user("alice").episodes()
    assert datetime.fromisoformat(kept.id) <= stored
