"""The promises of a writer, on each storage: order, one effect, retries, receipts, dead letters, erasure, kills."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import engines
import programs
from processes import STRICT
from tomldiary import Conflict, Diary, Forgotten, MemoryWriter, RetryPolicy, Turn
from tomldiary.cli.app import app
from tomldiary.doctor.doctor import check
from tomldiary.errors import ExtractionError
from waiting import until

LONG = 120  # seconds; nothing waits that long unless it is broken
SCRIPT = Path(__file__).parents[1] / "support" / "writing_process.py"


@pytest.fixture(params=engines.ALL)
def engine(request, disk):
    return engines.space(request.param, disk)


# Several processes may open these, and they keep turns that were not applied.
shared = pytest.mark.parametrize("engine", engines.SHARED, indirect=True)


class RateLimited(Exception):
    status_code = 429


def diary_on(backend, agent="rules"):
    return Diary(backend, agent=agent, max_prefs_per_category=1000, similarity=101)


def turn(text, user="alice", session="s", operation_id=""):
    return Turn(user, session, text, "Noted.", operation_id=operation_id)


def remember(message, *, deps):
    deps.upsert("likes", None, deps.user_msg, ())


def texts(backend, user="alice"):
    return [item.text for item in diary_on(backend).user(user).preferences("likes").values()]


@pytest.mark.parametrize("workers", [1, 16])
def test_turns_of_each_user_are_applied_once_and_in_order(opened, workers):
    async def slow(message, *, deps):
        await asyncio.sleep(random.uniform(0.001, 0.005))
        remember(message, deps=deps)

    backend = opened()
    with MemoryWriter(diary_on(backend, slow), workers=workers) as writer:
        receipts = {
            user: [writer.submit_nowait(turn(f"turn {n}", user)) for n in range(10)]
            for user in ("ann", "bob", "cem")
        }
        for mine in receipts.values():
            done = [receipt.wait(LONG) for receipt in mine]
            assert [(each.applied, each.is_repeated) for each in done] == [(1, False)] * 10
            assert [each.transaction for each in done] == list(range(1, 11))
        stats = writer.stats()
    assert (stats["completed"], stats["failed"], stats["pending"]) == (30, 0, 0)
    for user in receipts:
        assert texts(opened(), user) == [f"turn {n}" for n in range(10)]
        assert diary_on(opened()).user(user).conversations()["s"].turns == 10


def test_an_operation_id_has_one_effect_whichever_writer_gets_it(opened):
    calls = []

    def noted(message, *, deps):
        calls.append(deps.user_msg)
        remember(message, deps=deps)

    with MemoryWriter(diary_on(opened(), noted)) as one:
        with MemoryWriter(diary_on(opened(), noted)) as two:
            for number, writer in enumerate((one, two, one)):
                done = writer.submit_nowait(turn("tea", operation_id="op")).wait(LONG)
                assert (done.transaction, done.is_repeated) == (1, number > 0)
        with pytest.raises(Conflict, match="different content"):
            one.submit_nowait(turn("milk", operation_id="op")).wait(LONG)
    with MemoryWriter(diary_on(opened(), noted)) as writer:  # after a restart
        assert writer.submit_nowait(turn("tea", operation_id="op")).wait(LONG).is_repeated
        for text in ("thanks", "thanks"):  # without an id, a second one counts
            writer.submit_nowait(turn(text)).wait(LONG)
    assert calls == ["tea", "thanks", "thanks"]
    assert diary_on(opened()).user("alice").conversations()["s"].turns == 3


def test_a_retry_keeps_its_users_order_and_delays_no_other_user(opened):
    failing, calls = threading.Event(), []
    failing.set()

    def limited(message, *, deps):
        calls.append(deps.user_msg)
        if deps.user_msg == "first" and failing.is_set():
            raise RateLimited
        remember(message, deps=deps)

    policy = RetryPolicy(attempts=1000, first_pause=0.01, longest_pause=0.01)
    backend = opened()
    with MemoryWriter(diary_on(backend, limited), workers=1, retry=policy, breaker=1000) as writer:
        writer.submit_nowait(turn("first"))
        second = writer.submit_nowait(turn("second"))
        writer.submit_nowait(turn("tea", "bob")).wait(LONG)
        assert not second.is_done
        failing.clear()
        second.wait(LONG)
        assert writer.stats()["retries"] > 0
    assert texts(opened()) == ["first", "second"]
    assert calls.count("second") == 1


def test_a_turn_that_fails_for_good_delays_no_later_one(opened):
    def broken(message, *, deps):
        if deps.user_msg == "bad":
            raise ValueError("no")
        remember(message, deps=deps)

    with MemoryWriter(diary_on(opened(), broken), retry=RetryPolicy(attempts=1)) as writer:
        bad, good = (writer.submit_nowait(turn(text)) for text in ("bad", "good"))
        with pytest.raises(ExtractionError):
            bad.wait(LONG)
        assert good.wait(LONG).transaction == 1
        stats = writer.stats()
    assert (stats["submitted"], stats["completed"], stats["failed"]) == (2, 1, 1)
    assert texts(opened()) == ["good"]


@shared
def test_a_dead_letter_is_kept_until_it_is_requeued_and_applied_once(engine, opened):
    def broken(message, *, deps):
        raise ValueError("no")

    def command(*arguments):
        done = CliRunner().invoke(app, ["writer", *arguments, "--json", "--path", engine.url])
        assert done.exit_code == 0, done.output
        return [(each["id"], each["turn"]["user_id"]) for each in json.loads(done.stdout)]

    with MemoryWriter(diary_on(opened(), broken), retry=RetryPolicy(attempts=1)) as writer:
        receipt = writer.submit_nowait(turn("tea", operation_id="op"))
        with pytest.raises(ExtractionError):
            receipt.wait(LONG)
        assert writer.stats()["dead_letters"] == 1
    assert command("list") == [("op", "alice")]
    assert texts(opened()) == []
    assert command("retry", "op") == [("op", "alice")]
    assert command("list") == []
    with MemoryWriter(diary_on(opened(), remember)) as writer:
        until(lambda: writer.stats()["completed"])
        assert writer.submit_nowait(turn("tea", operation_id="op")).wait(LONG).is_repeated
    assert texts(opened()) == ["tea"]


def test_an_erasure_takes_its_queued_turns_with_it(engine, opened):
    gate, began = threading.Event(), threading.Event()

    def slow(message, *, deps):
        began.set()
        gate.wait(LONG)
        remember(message, deps=deps)

    with MemoryWriter(diary_on(opened(), slow), workers=1) as writer:
        first = writer.submit_nowait(turn("water", "bob"))
        assert began.wait(LONG)
        gone, kept = (
            writer.submit_nowait(turn(f"the zebra of {session}", session=session))
            for session in ("gone", "kept")
        )
        assert gone.wait_stored(LONG) == kept.wait_stored(LONG) == (engine.name != "memory")
        assert ("zebra of gone" in engine.texts()) == (engine.name != "memory")
        diary_on(opened()).user("alice").forget(session_id="gone")
        assert "zebra of gone" not in engine.texts()
        gate.set()
        with pytest.raises(Forgotten):
            gone.wait(LONG)
        assert first.wait(LONG).applied == 1
        if engine.name == "memory":  # its queue cannot tell which turns were meant
            with pytest.raises(Forgotten):
                kept.wait(LONG)
        else:
            assert kept.wait(LONG).applied == 1
        stats = writer.stats()
        assert (stats["failed"] > 0, stats["recent_error_rate"]) == (True, 0.0)
    assert texts(opened()) == ["the zebra of kept"] * (engine.name != "memory")
    diary_on(opened()).user("alice").forget(everything=True)
    assert "zebra" not in engine.texts()


@shared
def test_turns_of_a_closed_writer_come_before_those_of_the_next(opened):
    gate = threading.Event()

    def hang(message, *, deps):
        gate.wait(LONG)
        raise TimeoutError("to be tried again later")

    closed = MemoryWriter(diary_on(opened(), hang), lease=2.0)
    for number in range(5):
        receipt = closed.submit_nowait(turn(f"before {number}"))
    assert receipt.wait_stored(LONG)
    gate.set()
    closed.close_sync(0, drain=False)
    with MemoryWriter(diary_on(opened(), remember), lease=2.0) as writer:
        for number in range(5):
            writer.submit_nowait(turn(f"now {number}"))
        until(lambda: writer.stats()["completed"] == 10)
        assert writer.stats()["recovered"] == 5
    assert texts(opened()) == [f"{when} {n}" for when in ("before", "now") for n in range(5)]


# Processes


def process(engine, name, users, turns):
    return programs.start(*STRICT, SCRIPT, engine.url, name, *users, turns)


def wait_until_done(running):
    for each in running:
        assert each.stdout.readline() == "submitted\n"
        assert each.stdout.readline() == "done\n"
    for each in running:
        each.communicate()
        assert each.returncode == 0


@shared
def test_turns_of_one_user_from_two_processes_are_applied_once(engine, opened):
    wait_until_done([process(engine, name, (0, 1), 20) for name in "ab"])
    found = texts(opened(), "u0")
    for name in "ab":
        mine = [text for text in found if text.startswith(f"I love thing {name}")]
        assert mine == [f"I love thing {name} {number} of 0." for number in range(20)]
    assert diary_on(opened()).user("u0").conversations()["s"].turns == len(found) == 40


def run_kills(engine, opened, users, turns, kills):
    shares = {"a": (0, users // 2), "b": (users // 2, users)}
    chance = random.Random(7)
    running = {name: process(engine, name, share, turns) for name, share in shares.items()}
    for _ in range(kills):
        for name, share in shares.items():
            time.sleep(chance.uniform(0.8, 2.5))
            running[name].kill()
            running[name].communicate()
            running[name] = process(engine, name, share, turns)
    wait_until_done(running.values())
    diary = diary_on(opened())
    for name, share in shares.items():
        for user in range(*share):
            memory = diary.user(f"u{user}")
            found = [item.text for item in memory.preferences("likes").values()]
            assert found == [f"I love thing {name} {number} of {user}." for number in range(turns)]
            assert memory.conversations()["s"].turns == turns
            assert len({entry.seq for entry in memory.history(limit=1000)}) == turns
    assert "[[turn]]" not in engine.texts()  # no queue holds a turn


@shared
def test_killed_writers_apply_each_turn_once_and_in_order(engine, opened):
    run_kills(engine, opened, users=12, turns=5, kills=1)


@shared
@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
def test_two_hundred_users_survive_two_kills_of_each_writer(engine, opened):
    run_kills(engine, opened, users=200, turns=10, kills=2)


def test_submits_that_wait_for_room_are_woken(opened):
    async def submit_all():
        async with MemoryWriter(diary_on(opened(), remember), qsize=1) as writer:
            await asyncio.gather(*[writer.submit_turn(turn(f"turn {n}")) for n in range(12)])

    asyncio.run(asyncio.wait_for(submit_all(), LONG))
    assert texts(opened()) == [f"turn {n}" for n in range(12)]


def gated():
    """Return an extractor that waits for a gate, the event of its first call, and the gate."""
    began, gate = threading.Event(), threading.Event()

    def slow(message, *, deps):
        began.set()
        gate.wait(LONG)
        remember(message, deps=deps)

    return slow, began, gate


async def fill(writer, began):
    """Occupy the only worker and the only place of the queue; return the receipt of the turn in work."""
    first = await writer.submit_turn(turn("water", "bob"))
    await asyncio.to_thread(began.wait, LONG)
    await writer.submit_turn(turn("tea", "bob"))
    return first


@pytest.mark.parametrize("selection", [{"everything": True}, {"session_id": "s"}])
def test_a_submit_that_waits_for_room_during_an_erasure_is_refused(engine, opened, selection):
    slow, began, gate = gated()

    async def submit_all():
        async with MemoryWriter(diary_on(opened(), slow), workers=1, qsize=1) as writer:
            first = await fill(writer, began)
            before = asyncio.create_task(writer.submit_turn(turn("walnuts")))
            later = writer.submit_later(turn("chess"))
            waiting = writer._admission.waiting
            await asyncio.to_thread(
                until, lambda: waiting and {waiting[-1].epoch, waiting[-1].wait_epoch} != {None}
            )
            await diary_on(opened()).user("alice").aforget(**selection)
            after = asyncio.create_task(writer.submit_turn(turn("jazz")))
            await asyncio.sleep(0)
            gate.set()
            assert (await first).applied == 1
            for refused in (before, asyncio.to_thread(later.wait)):
                with pytest.raises(Forgotten):
                    await (await refused)
            assert (await (await after)).applied == 1

    asyncio.run(asyncio.wait_for(submit_all(), LONG))
    assert texts(opened(), "bob") == ["water", "tea"]
    assert texts(opened()) == ["jazz"]
    assert "walnuts" not in engine.texts()


def test_submits_of_one_id_that_wait_for_space_are_one_turn(opened):
    began, gate = threading.Semaphore(0), threading.Event()

    def slow(message, *, deps):
        began.release()
        gate.wait(LONG)
        remember(message, deps=deps)

    with MemoryWriter(diary_on(opened(), slow), workers=2, qsize=2) as writer:
        for text in ("water", "tea"):  # in work, and then waiting
            for user in ("bob", "cem"):
                assert writer.submit_nowait(turn(text, user)).wait_stored(LONG) is not None
            if text == "water":
                assert all(began.acquire(timeout=LONG) for _ in range(2))
        first = writer.submit_later(turn("jazz", operation_id="op"))
        assert writer.submit_nowait(turn("jazz", operation_id="op")) is first
        with pytest.raises(Conflict):
            writer.submit_later(turn("chess", operation_id="op"))
        gate.set()
        assert first.wait(LONG).applied == 1
        assert writer.flush(LONG)
        stats = writer.stats()
    assert (stats["submitted"], stats["completed"], stats["repeated"]) == (5, 5, 0)


def test_a_waiting_turn_of_two_submits_survives_the_cancellation_of_one(opened):
    slow, began, gate = gated()

    async def submit_all():
        async with MemoryWriter(diary_on(opened(), slow), workers=1, qsize=1) as writer:
            await fill(writer, began)
            again = [
                asyncio.create_task(writer.submit_turn(turn("jazz", operation_id="op")))
                for _ in range(2)
            ]
            await asyncio.sleep(0.3)
            again[0].cancel()
            await asyncio.sleep(0)
            gate.set()
            assert (await (await again[1])).applied == 1

    asyncio.run(asyncio.wait_for(submit_all(), LONG))
    assert texts(opened()) == ["jazz"]


def test_a_close_refuses_each_submit_of_a_turn_that_waits_for_space(opened):
    slow, began, gate = gated()

    async def submit_all():
        writer = MemoryWriter(diary_on(opened(), slow), workers=1, qsize=1)
        await fill(writer, began)
        again = [
            asyncio.create_task(writer.submit_turn(turn("jazz", operation_id="op")))
            for _ in range(2)
        ]
        await asyncio.sleep(0.3)
        closing = asyncio.create_task(writer.close())
        for each in again:
            with pytest.raises(RuntimeError, match="is closed"):
                await each
        gate.set()
        stats = await closing
        assert (stats["submitted"], stats["completed"], stats["pending"]) == (2, 2, 0)

    asyncio.run(asyncio.wait_for(submit_all(), LONG))


@shared
def test_doctor_names_users_whose_turns_wait_for_long(opened, monkeypatch):
    began, gate = threading.Event(), threading.Event()

    def slow(message, *, deps):
        began.set()
        gate.wait(LONG)

    def found(users=None):
        return [each for each in check(opened(), users) if "to be applied" in each.message]

    with MemoryWriter(diary_on(opened(), slow)) as writer:
        for text in ("tea", "coffee"):
            writer.submit_nowait(turn(text)).wait_stored(LONG)
        began.wait(LONG)
        assert found() == []
        monkeypatch.setattr("tomldiary.doctor.doctor._LONGEST_WAIT", -60)
        (warning,) = found()
        gate.set()
    assert (warning.level, warning.place) == ("warning", "alice")
    assert warning.message.startswith("2 turns wait to be applied. The oldest was submitted at 20")
    assert found() == []
