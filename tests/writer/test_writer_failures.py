"""When the model fails, hangs or is down: every turn lands or is parked, and nothing is silent."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.client import IncompleteRead
from types import SimpleNamespace

import httpx
import pytest
from pydantic import BaseModel, Field

from tomldiary import Diary, MemoryWriter, PreferenceItem, Turn
from tomldiary.backends import LocalBackend
from tomldiary.errors import BackendError, Conflict, ExtractionError, InvalidValue, LockTimeout
from tomldiary.writer.attempts import Breaker, RetryPolicy, is_transient
from tomldiary.writer.dead_letters import DeadLetters
from waiting import until

LONG = 120
QUICK = RetryPolicy(attempts=12, first_pause=0.001, longest_pause=0.005)


class Table(BaseModel):
    """likes : what the person enjoys"""

    likes: dict[str, PreferenceItem] = {}


class RateLimited(Exception):
    status_code = 429


def diary_at(folder, agent):
    return Diary(
        folder, Table, agent=agent, max_prefs_per_category=100_000, durability="process",
        similarity=101,
    )  # fmt: skip


def texts(diary, user):
    found = diary.user(user).preferences().values()
    return [item.text for items in found for item in items.values()]


def letters_of(folder):
    return DeadLetters(LocalBackend(folder)).list()


def test_failing_models_and_users_lose_no_turn_of_other_users(tmp_path, caplog):
    rng = random.Random(3)

    async def flaky(message, *, deps):
        if deps.user_msg.startswith("hopeless"):
            raise ValueError("this is no text for a model")
        chance = rng.random()
        if chance < 0.01:
            await asyncio.Event().wait()
        if chance < 0.31:
            raise RateLimited("slow down")
        deps.upsert("likes", None, deps.user_msg, ())

    diary = diary_at(tmp_path, flaky)
    with MemoryWriter(diary, workers=8, timeout=0.3, retry=QUICK, breaker=1000) as writer:
        for number in range(8):
            for user in range(10):
                writer.submit_nowait(Turn(f"user{user}", "s", f"turn {number}", "ok"))
            writer.submit_nowait(Turn("unlucky", "s", f"hopeless {number}", "ok"))
        assert writer.flush(LONG)
        stats = writer.stats()
    for user in range(10):
        assert texts(diary, f"user{user}") == [f"turn {number}" for number in range(8)]
    assert texts(diary, "unlucky") == []
    assert [letter.turn.user_msg for letter in letters_of(tmp_path)] == [
        f"hopeless {number}" for number in range(8)
    ]
    assert (stats["submitted"], stats["completed"], stats["failed"]) == (88, 80, 8)
    assert (stats["pending"], stats["dead_letters"]) == (0, 8)
    assert stats["retries"] == caplog.text.count("; retrying in")
    assert stats["retries"] > 20
    assert caplog.text.count("It is in the dead letters") == 8
    assert "no text for a model" not in caplog.text


def test_a_storage_failure_does_not_repeat_the_extraction(tmp_path, monkeypatch):
    calls = []

    def remember(message, *, deps):
        calls.append(deps.user_msg)
        deps.upsert("likes", None, deps.user_msg, ())

    diary = diary_at(tmp_path, remember)
    commit, failures = diary.engine.backend.commit, iter(range(3))

    def full(user, what):
        if next(failures, None) is not None:
            raise BackendError("the disk is full. Nothing was changed.")
        return commit(user, what)

    monkeypatch.setattr(diary.engine.backend, "commit", full)
    with MemoryWriter(diary, retry=QUICK) as writer:
        done = writer.submit_nowait(Turn("alice", "s", "tea", "ok")).wait(LONG)
        assert (done.applied, done.transaction, done.is_repeated) == (1, 1, False)
        assert writer.stats()["retries"] == 3
    assert calls == ["tea"]


def test_a_retry_does_not_read_a_turn_again_if_its_redacted_fact_is_unfit(tmp_path):
    class Contact(BaseModel):
        mail: str = Field(pattern="@")

    calls, failures = [], [LockTimeout("busy")]

    def extract(message, deps):
        calls.append(message)
        deps.commit_fact("contact", {"mail": "a@b.example"})

    def refuse(user, prepared):
        if failures:
            raise failures.pop()

    diary = Diary(tmp_path, agent=extract, redact=lambda text: text.replace("@", " at "))
    diary.register_schema("contact", Contact)
    diary.engine.before_commit.append(refuse)
    writer = MemoryWriter(diary, retry=QUICK)
    applied = writer.submit_nowait(Turn("alice", "s", "hi", "hello")).wait(LONG)
    writer.close_sync()
    assert (len(calls), len(failures), len(applied.skipped)) == (1, 0, 1)


def test_a_queued_operation_id_gives_the_same_receipt(tmp_path):
    gate = threading.Event()

    def remember(message, *, deps):
        gate.wait(LONG)
        deps.upsert("likes", None, deps.user_msg, ())

    async def use():
        async with MemoryWriter(diary_at(tmp_path, remember)) as writer:
            first = await writer.submit("alice", "s", "tea", "ok", operation_id="run-1")
            assert await writer.submit("alice", "s", "tea", "ok", operation_id="run-1") is first
            turn = Turn("alice", "s", "coffee", "ok", operation_id="run-1")
            with pytest.raises(Conflict, match="different content"):
                writer.submit_nowait(turn)
            gate.set()
            return writer.stats()["submitted"]

    assert asyncio.run(use()) == 1


@pytest.mark.parametrize("is_direct_first", [False, True])
def test_an_operation_id_has_one_effect_through_both_doors(tmp_path, is_direct_first):
    diary = diary_at(tmp_path, lambda message, *, deps: None)
    alice = diary.user("alice")
    said = ("I like tea.", "Noted.")
    with MemoryWriter(diary) as writer:
        doors = [
            lambda: writer.submit_nowait(Turn("alice", "s", *said, operation_id="run")).wait(LONG),
            lambda: alice.add_turn(*said, session_id="s", operation_id="run"),
        ]
        done = [door() for door in (reversed(doors) if is_direct_first else doors)]
    assert [each.is_repeated for each in done] == [False, True]
    assert alice.conversations()["s"].turns == 1


def test_the_breaker_stops_requests_to_a_failing_model(tmp_path, caplog):
    calls, down = [], threading.Event()
    down.set()

    async def remember(message, *, deps):
        calls.append(deps.user_msg)
        if down.is_set():
            raise ConnectionError("no route to host")
        deps.upsert("likes", None, deps.user_msg, ())

    diary = diary_at(tmp_path, remember)
    options = {"retry": RetryPolicy(3, 0.001, 0.001), "breaker": 3, "breaker_pause": 0.01}
    with MemoryWriter(diary, workers=1, **options) as writer:
        for user in range(2):
            writer.submit_nowait(Turn(f"user{user}", "s", "tea", "ok"))
        until(lambda: writer.stats()["breaker_is_open"] and len(calls) >= 8)
        assert "model does not answer" in writer.health().reasons[0]
        assert writer.health().status == "degraded"
        # While the model is down, no turn's attempts are used up.
        assert writer.stats()["dead_letters"] == 0
        assert len(calls) < 12
        down.clear()
        assert writer.flush(LONG)
        assert writer.stats()["completed"] == 2
        assert writer.health().status == "healthy"
    assert caplog.text.count("the model does not answer") == 1


def test_a_model_that_was_down_gets_one_attempt_at_a_time(tmp_path):
    at_once, running = [], []

    class Down:
        async def run(self, message, *, deps):
            running.append(message)
            at_once.append(len(running))
            await asyncio.sleep(0.005)
            running.pop()
            if len(at_once) < 20:
                raise RateLimited

    options = {"retry": RetryPolicy(100, 0.001, 0.001), "breaker": 1, "breaker_pause": 0.001}
    with MemoryWriter(diary_at(tmp_path, Down()), workers=4, **options) as writer:
        writer.submit_nowait(Turn("u0", "s", "tea", "ok"))
        until(lambda: writer.stats()["breaker_is_open"])
        for number in range(1, 8):
            writer.submit_nowait(Turn(f"u{number}", "s", "tea", "ok"))
        assert writer.flush(LONG)
    assert at_once[:20] == [1] * 20


def test_a_turn_of_another_user_bounds_the_attempts_at_a_failing_one(tmp_path):
    async def remember(message, *, deps):
        if deps.user_msg == "bad":
            raise ConnectionError("no route to host")

    options = {"retry": RetryPolicy(3, 0.001, 0.001), "breaker": 2, "breaker_pause": 0.01}
    with MemoryWriter(diary_at(tmp_path, remember), workers=1, **options) as writer:
        bad = writer.submit_nowait(Turn("alice", "s", "bad", "ok"))
        until(lambda: writer.stats()["retries"] >= 4)
        assert writer.stats()["dead_letters"] == 0
        writer.submit_nowait(Turn("bob", "s", "good", "ok")).wait(LONG)
        with pytest.raises(ExtractionError):
            bad.wait(LONG)
        assert writer.stats()["dead_letters"] == 1


def test_close_keeps_unfinished_turns_on_disk_and_reports_them(tmp_path, caplog):
    gate = threading.Event()

    async def remember(message, *, deps):
        while not gate.is_set():  # noqa: ASYNC110 - the event is of another thread
            await asyncio.sleep(0.002)
        deps.upsert("likes", None, deps.user_msg, ())

    diary = diary_at(tmp_path, remember)

    async def use():
        writer = MemoryWriter(diary, workers=2)
        receipts = [
            await writer.submit(f"user{number % 3}", "s", f"turn {number}", "ok")
            for number in range(10)
        ]
        stats = await writer.close(0.05)
        for receipt in receipts:
            with pytest.raises(RuntimeError, match="kept in the journal"):
                await receipt
        return stats

    stats = asyncio.run(use())
    assert (stats["submitted"], stats["pending"], stats["failed"]) == (10, 10, 0)
    assert "closed with 10 turns not applied; they are kept in" in caplog.text
    gate.set()
    with MemoryWriter(diary) as writer:
        assert writer.flush(LONG)
        assert writer.stats()["recovered"] == writer.stats()["completed"] == 10
    for user in range(3):
        assert texts(diary, f"user{user}") == [f"turn {n}" for n in range(user, 10, 3)]


def test_a_turn_that_cannot_be_stored_is_refused(tmp_path, monkeypatch):
    diary = Diary(tmp_path, Table, agent=lambda message, *, deps: None)
    writes = []

    def broken(descriptor):
        writes.append(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def use():
        async with MemoryWriter(diary) as writer:
            await (await writer.submit("alice", "s", "tea", "ok"))
            with monkeypatch.context() as patch:
                patch.setattr(os, "fdatasync", broken)
                with pytest.raises(BackendError, match="not stored"):
                    await writer.submit("bob", "s", "juice", "ok")
                receipt = writer.submit_nowait(Turn("bob", "s", "wine", "ok"))
                with pytest.raises(BackendError, match="not stored"):
                    receipt.wait_stored(LONG)
                with pytest.raises(BackendError, match="not stored"):
                    await receipt
            assert writer.stats()["failed"] == 2
            said = "the last turn failed: OSError (Input/output error)."
            assert said in writer.health().reasons
            await (await writer.submit("bob", "s", "milk", "ok"))
            assert said not in writer.health().reasons
            return writer.stats()

    stats = asyncio.run(use())
    assert len(writes) == 2  # a failed sync is not tried again
    assert (stats["submitted"], stats["completed"], stats["failed"]) == (4, 2, 2)
    with MemoryWriter(diary) as writer:
        assert writer.flush(LONG)
        assert writer.stats()["recovered"] == 0
    assert diary.user("bob").conversations()["s"].turns == 1


def test_a_turn_that_cannot_be_parked_waits_until_it_can(tmp_path, caplog):
    def fail(message, *, deps):
        if deps.user_msg == "one":
            raise ValueError(deps.user_msg)
        deps.upsert("likes", None, deps.user_msg)

    diary = diary_at(tmp_path, fail)
    obstacle = tmp_path / ".tomldiary" / "dead-letters"
    obstacle.parent.mkdir()
    obstacle.write_text("")
    retry = RetryPolicy(attempts=1, longest_pause=0.02)
    with MemoryWriter(diary, retry=retry) as writer:
        receipts = [writer.submit_nowait(Turn("alice", "s", text, "ok")) for text in ("one", "two")]
        until(lambda: "neither be applied nor moved to the dead letters" in caplog.text)
        assert writer.stats()["pending"] == 2
        assert "the last turn failed: NotADirectoryError" in "".join(writer.health().reasons)
        obstacle.unlink()
        with pytest.raises(ExtractionError):
            receipts[0].wait(LONG)
        receipts[1].wait(LONG)
        stats = writer.stats()
    assert (stats["completed"], stats["failed"], stats["dead_letters"]) == (1, 1, 1)
    assert texts(diary, "alice") == ["two"]
    assert [letter.turn.user_msg for letter in letters_of(tmp_path)] == ["one"]


def test_a_blocked_submit_fails_if_the_journal_fails(tmp_path, monkeypatch):
    def broken(_descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", broken)

    async def use():
        writer = MemoryWriter(Diary(tmp_path, Table, agent="rules"), qsize=1)
        async with asyncio.timeout(LONG):
            turns = [writer.submit("alice", "s", f"{number}", "ok") for number in range(5)]
            answers = await asyncio.gather(*turns, return_exceptions=True)
        await writer.close()
        return [type(answer) for answer in answers], writer.stats()

    answers, stats = asyncio.run(use())
    assert answers == [BackendError] * 5
    assert (stats["submitted"], stats["failed"], stats["pending"]) == (5, 5, 0)


def test_a_session_with_a_lone_surrogate_is_refused(tmp_path):
    with MemoryWriter(Diary(tmp_path, Table, agent="rules")) as writer:
        with pytest.raises(InvalidValue, match="surrogate"):
            writer.submit_nowait(Turn("alice", "half \ud800", "tea", "ok"))
        assert writer.stats()["submitted"] == 0


def test_the_extractor_sees_that_an_answer_was_cut_off(tmp_path):
    seen = []

    def look(message, *, deps):
        seen.append((deps.user_msg, deps.assistant_msg))

    with MemoryWriter(Diary(tmp_path, Table, agent=look)) as writer:
        for status in ("completed", "cancelled", "failed"):
            writer.submit_nowait(Turn("alice", "s", "tea", "Well", status=status)).wait(LONG)
        writer.submit_nowait(Turn("alice", "s", "tea", "", status="aborted")).wait(LONG)
    assert seen == [
        ("tea", "Well"),
        ("tea", "Well\n[not finished: run cancelled]"),
        ("tea", "Well\n[not finished: run failed]"),
        ("tea", "[not finished: run aborted]"),
    ]


def test_queued_turns_of_one_session_can_be_extracted_together(tmp_path):
    seen, gate = [], threading.Event()

    async def look(message, *, deps):
        seen.append(deps.user_msg)
        while not gate.is_set():  # noqa: ASYNC110 - the event is of another thread
            await asyncio.sleep(0.002)
        deps.upsert("likes", None, deps.user_msg.split()[0], ())

    diary = diary_at(tmp_path, look)
    with MemoryWriter(diary, workers=1, coalesce=3) as writer:
        receipts = [writer.submit_nowait(Turn("alice", "s", "zero", "ok"))]
        while not seen:
            time.sleep(0.001)
        words = {"one": "s", "two": "s", "three": "s", "four": "s", "five": "t"}
        receipts += [
            writer.submit_nowait(Turn("alice", session, word, "ok"))
            for word, session in words.items()
        ]
        receipts[-1].wait_stored(LONG)
        gate.set()
        done = [receipt.wait(LONG).transaction for receipt in receipts]
        stats = writer.stats()
    assert seen == ["zero", "one\n\ntwo\n\nthree", "four", "five"]
    assert done == [1, 2, 2, 2, 3, 4]
    assert (stats["submitted"], stats["completed"], stats["pending"]) == (6, 6, 0)
    assert diary.user("alice").conversations()["s"].turns == 5


class OwnUpdate(Diary):
    async def update_memory(self, *args, **kwargs):
        return await super().update_memory(*args, **kwargs)


@pytest.mark.parametrize("kind", [Diary, OwnUpdate])
def test_turns_that_no_model_reads_are_read_alone(tmp_path, kind):
    """The rules of one language stop at a request, and an overridden method takes one turn."""
    diary = kind(tmp_path, agent="rules")
    said = ["Translate this:\nMy cat is grey.", "I love chess.", "Ich mag gerne Tee."]
    with MemoryWriter(diary, workers=1, coalesce=4) as writer:
        with diary.engine.backend.lock("alice", LONG):
            receipts = [writer.submit_nowait(Turn("alice", "s", each, "ok")) for each in said]
            receipts[-1].wait_stored(LONG)
        done = [receipt.wait(LONG) for receipt in receipts]
    assert texts(diary, "alice") == said[1:]
    assert diary.user("alice").conversations()["s"].turns == 3
    assert [each.source for each in diary.user("alice").history() if each.key[:6] == "likes/"] == [
        "s#3",
        "s#2",
    ]
    assert all(each is not None for each in done) == (kind is Diary)


def _raise(deps):
    raise ValueError(deps.user_msg)


def _set_an_object(deps):
    deps.prefs["preferences"]["likes"]["pref001"]["note"] = object()


@pytest.mark.parametrize("fail", [_raise, _set_an_object])
def test_only_failing_turns_of_a_group_are_parked(tmp_path, fail):
    seen, gate = [], threading.Event()

    async def look(message, *, deps):
        seen.append(deps.user_msg)
        while not gate.is_set():  # noqa: ASYNC110 - the event is of another thread
            await asyncio.sleep(0.002)
        if "bad" in deps.user_msg:
            fail(deps)
        deps.upsert("likes", None, deps.user_msg, ())

    diary = diary_at(tmp_path, look)
    with MemoryWriter(diary, workers=1, coalesce=4) as writer:
        receipts = [writer.submit_nowait(Turn("alice", "s", "zero", "ok"))]
        while not seen:
            time.sleep(0.001)
        receipts += [
            writer.submit_nowait(Turn("alice", "s", word, "ok"))
            for word in ("one", "bad", "three", "four")
        ]
        receipts[-1].wait_stored(LONG)
        gate.set()
        assert writer.flush(LONG)
        stats = writer.stats()
    assert seen[1:] == ["one\n\nbad\n\nthree\n\nfour", "one", "bad", "three", "four"]
    assert texts(diary, "alice") == ["zero", "one", "three", "four"]
    assert [letter.turn.user_msg for letter in letters_of(tmp_path)] == ["bad"]
    assert (stats["completed"], stats["failed"], stats["dead_letters"]) == (4, 1, 1)
    assert (stats["submitted"], stats["pending"]) == (5, 0)


def test_a_slow_turn_of_a_group_is_parked_alone_and_says_why(tmp_path, caplog):
    gate = threading.Event()

    async def answer(message, *, deps):
        if "zero" in deps.user_msg:
            await asyncio.to_thread(gate.wait, LONG)
        if "slow" in deps.user_msg:
            await asyncio.sleep(LONG)
        deps.upsert("likes", None, deps.user_msg, ())

    diary = diary_at(tmp_path, answer)
    retry = RetryPolicy(attempts=2, first_pause=0.01)
    with MemoryWriter(diary, workers=1, coalesce=4, timeout=0.5, retry=retry) as writer:
        first = writer.submit_nowait(Turn("bob", "s", "zero", "ok"))
        words = ("one", "slow")
        receipts = [writer.submit_nowait(Turn("alice", "s", word, "ok")) for word in words]
        receipts[-1].wait_stored(LONG)
        gate.set()
        first.wait(LONG)
        with pytest.raises(ExtractionError, match=r"longer than 0\.5 s.*MemoryWriter\(timeout"):
            receipts[1].wait(LONG)
        assert writer.stats()["last_failure"] == "TimeoutError."
    assert texts(diary, "alice") == ["one"]
    letters = letters_of(tmp_path)
    assert [letter.turn.user_msg for letter in letters] == ["slow"]
    assert "longer than 0.5 s" in letters[0].error
    assert "CancelledError" not in caplog.text


def test_an_overridden_update_that_is_too_slow_is_logged_as_a_time_out(tmp_path, caplog):
    class Slow(Diary):
        async def update_memory(self, *_, **__):
            await asyncio.sleep(LONG)

    retry = RetryPolicy(attempts=1)
    with (
        MemoryWriter(Slow(tmp_path, agent="rules"), timeout=0.05, retry=retry) as writer,
        pytest.raises(TimeoutError),
    ):
        writer.submit_nowait(Turn("alice", "s", "one", "ok")).wait(LONG)
    assert "could not be applied: TimeoutError" in caplog.text


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError(), True), (ConnectionResetError(), True), (RateLimited(), True),
        (type("E", (Exception,), {"status_code": 503})(), True),
        (type("E", (Exception,), {"status_code": 524})(), True),
        (type("E", (Exception,), {"status_code": 400})(), False),
        (type("JSONDecodeError", (ValueError,), {"status_code": 200})(), True),
        (type("E", (Exception,), {"status_code": 401, "retry_after": 5})(), False),
        (type("APITimeoutError", (Exception,), {})(), True),
        (type("E", (Exception,), {"retry_after": 5})(), True),
        (type("E", (Exception,), {"retry_after": timedelta(seconds=5)})(), True),
        (type("E", (Exception,), {"retry_after": lambda _: 5, "status_code": 503})(), True),
        (type("E", (Exception,), {"retry_after": lambda _: 5})(), False),
        (type("E", (Exception,), {"retry_after": 10**400})(), False),
        (type("E", (Exception,), {"response": property(lambda _: 1 / 0)})(), False),
        (type("E", (Exception,), {"response": SimpleNamespace(headers=dict)})(), False),
        (ExceptionGroup("all", [ValueError(), RateLimited()]), True),
        (ValueError("timeout"), False), (BackendError("full"), True),
        (RuntimeError("<asyncio.locks.Event> is bound to a different event loop"), True),
        (RuntimeError("Task got Future attached to a different loop"), True),
        (RuntimeError("Event loop is closed"), True), (RuntimeError("some other error"), False),
        (IncompleteRead(b""), True), (Conflict("kept saving"), True), (Conflict("used", keys=["op"]), False),
    ],
)  # fmt: skip
def test_transient_errors_are_distinguished_from_permanent_ones(error, expected):
    wrapped = ExtractionError("the extractor failed")
    wrapped.__cause__ = error
    assert is_transient(error) is is_transient(wrapped) is expected


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"])
def test_a_turn_is_tried_again_after_the_server_closed_the_connection(tmp_path, sent):
    server = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    calls = []

    def drop():
        connection, _ = server.accept()
        connection.recv(65_536)
        connection.sendall(sent)
        connection.close()

    def remember(message, *, deps):
        calls.append(message)
        if len(calls) == 1:
            httpx.post(url, json={})
        deps.upsert("likes", None, deps.user_msg)

    serving = threading.Thread(target=drop)
    serving.start()
    with server, MemoryWriter(diary_at(tmp_path, remember), retry=QUICK) as writer:
        assert writer.submit_nowait(Turn("alice", "s", "tea", "ok")).wait(LONG).applied == 1
    serving.join()
    assert len(calls) == 2


def test_retry_delays_grow_with_jitter_and_respect_the_server():
    policy = RetryPolicy(first_pause=1.0, longest_pause=10.0)
    for attempts, most in ((1, 1.0), (2, 2.0), (3, 4.0), (9, 10.0)):
        pauses = {policy.pause(attempts, ValueError()) for _ in range(50)}
        assert most / 2 <= min(pauses) <= max(pauses) <= most
        assert len(pauses) > 1 or most == 10.0
    assert policy.pause(100_000, ValueError()) == 10.0  # a policy without an end
    asked = type("E", (Exception,), {"retry_after": "7"})()
    assert policy.pause(1, asked) == 7.0
    asked.retry_after = format_datetime(datetime.now(UTC) + timedelta(seconds=8), usegmt=True)
    assert 1.0 < policy.pause(1, asked) <= 8.0  # without it, a second at most


def test_the_breaker_opens_after_failures_and_admits_single_tries():
    now = [100.0]
    breaker = Breaker(3, 0.5, lambda: now[0])
    assert [breaker.fail() for _ in range(3)] == [False, False, True]
    assert breaker.is_open
    assert breaker.wait() == 0.5
    now[0] += 0.5
    assert breaker.wait() == 0
    breaker.begin()
    assert breaker.wait() > 0  # one at a time
    assert not breaker.fail()
    assert breaker.wait() == 1.0  # longer each time
    breaker.succeed()
    assert (breaker.is_open, breaker.wait()) == (False, 0.0)


def test_turns_get_a_result_although_a_log_handler_raises(tmp_path, monkeypatch):
    class Broken(logging.Handler):
        def emit(self, record):
            raise OSError("the log server is away")

    def fail(message, *, deps):
        raise ValueError

    with MemoryWriter(diary_at(tmp_path, fail)) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(logging.getLogger("tomldiary"), "handlers", [Broken()])
            receipts = [writer.submit_nowait(Turn("alice", "s", text, "")) for text in "abc"]
            for receipt in receipts:
                with pytest.raises(OSError, match="the log server"):
                    receipt.wait(LONG)
        assert writer.stats()["failed"] == len(letters_of(tmp_path)) == 3


def test_the_log_names_the_error_of_a_turn_and_not_its_text(tmp_path, caplog):
    def fail(message, *, deps):
        raise ValueError(deps.user_msg)

    with (
        caplog.at_level(logging.INFO, "tomldiary"),
        MemoryWriter(Diary(tmp_path, Table, agent=fail)) as writer,
    ):
        receipt = writer.submit_nowait(Turn("alice", "s", "her secret", "ok"))
        with pytest.raises(ExtractionError, match="her secret"):
            receipt.wait(LONG)
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text
