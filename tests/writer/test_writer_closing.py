"""Closing from several threads, again, and in the middle of everything: each turn is answered for, once."""

from __future__ import annotations

import asyncio
import gc
import os
import threading

import pytest

from processes import newest_thread
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.errors import ExtractionError
from tomldiary.writer.shutdown import close_writers

LONG = 120


class Stubborn:
    """An extractor that does not let itself be cancelled, for some time."""

    def __init__(self):
        self.began, self.enough = threading.Semaphore(0), threading.Event()

    async def run(self, message, *, deps):
        self.began.release()
        while not self.enough.is_set():
            try:
                await asyncio.to_thread(self.enough.wait, LONG)
            except asyncio.CancelledError:
                continue


@pytest.fixture
def stubborn(short_grace):
    made = Stubborn()
    yield made
    made.enough.set()


def adds_up(stats):
    return stats["submitted"] == stats["completed"] + stats["failed"] + stats["pending"]


def test_the_counters_agree_while_a_close_waits_for_a_turn(tmp_path, stubborn):
    writer = MemoryWriter(Diary(tmp_path, agent=stubborn), workers=1)
    for user in ("a", "b", "c"):
        assert writer.submit_nowait(Turn(user, "s", "tea", "ok")).wait_stored(LONG)
    assert stubborn.began.acquire(timeout=LONG)
    closer = threading.Thread(target=writer.close_sync, args=(0.0,), daemon=True)
    closer.start()
    while closer.is_alive():
        assert adds_up(writer.stats())
    assert writer.stats()["pending"] == 3


def test_two_threads_that_close_at_once_return_the_same_result(tmp_path, stubborn):
    writer = MemoryWriter(Diary(tmp_path, agent=stubborn), workers=2)
    receipts = [writer.submit_nowait(Turn(user, "s", "tea", "ok")) for user in ("a", "b", "c")]
    for receipt in receipts:
        assert receipt.wait_stored(LONG)
    for _ in range(2):
        assert stubborn.began.acquire(timeout=LONG)
    found = []
    closers = [
        threading.Thread(target=lambda: found.append(writer.close_sync(0.0)), daemon=True)
        for _ in range(3)
    ]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(LONG)
    assert [stats["pending"] for stats in found] == [3, 3, 3]
    assert all(map(adds_up, found))
    for receipt in receipts:
        with pytest.raises(RuntimeError, match="kept in the journal"):
            receipt.wait(0)


def test_close_returns_while_another_thread_times_out(tmp_path, caplog):
    """The event loop is gone by the time that it would wait for the turn to end."""

    tasks = []

    class Deaf:
        began, cancelled = threading.Event(), threading.Event()

        async def run(self, message, *, deps):
            tasks.append(asyncio.current_task())
            self.began.set()
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.cancelled.set()

    def close_too():
        assert Deaf.cancelled.wait(LONG)
        found.append(writer.close_sync(0.5))

    found = []
    writer = MemoryWriter(Diary(tmp_path, agent=Deaf()))
    writer.submit_nowait(Turn("alice", "s", "tea", "ok"))
    assert Deaf.began.wait(LONG)
    second = threading.Thread(target=close_too, daemon=True)
    second.start()
    found.append(writer.close_sync(0.0))
    second.join(LONG)
    assert [stats["pending"] for stats in found] == [1, 1]
    tasks.clear()
    gc.collect()  # what never came to an end is thrown away, and nothing is done about it any more
    assert "nor moved to the dead letters" not in caplog.text


def test_a_signal_handler_can_close_during_close(tmp_path, stubborn):
    writer = MemoryWriter(Diary(tmp_path, agent=stubborn))
    assert writer.submit_nowait(Turn("alice", "s", "tea", "ok")).wait_stored(LONG)
    assert stubborn.began.acquire(timeout=LONG)
    queue, found = writer._journal_queue, []
    stop = queue.stop

    def close_too():
        queue.stop = stop
        found.append(writer.close_sync(0.0))
        stop()

    queue.stop = close_too
    closer = threading.Thread(target=lambda: found.append(writer.close_sync(0.0)), daemon=True)
    closer.start()
    closer.join(LONG)
    assert [stats["pending"] for stats in found] == [1, 1]


def test_close_ends_in_time_while_an_extractor_blocks_the_event_loop(tmp_path, short_grace):
    began, enough, ended = threading.Event(), threading.Event(), threading.Event()

    class Blocking:
        async def run(self, message, *, deps):
            began.set()
            enough.wait(LONG)
            ended.set()

    writer = MemoryWriter(Diary(tmp_path, agent=Blocking()))
    receipt = writer.submit_nowait(Turn("alice", "s", "tea", "ok"))
    thread = newest_thread()
    assert began.wait(LONG)
    assert writer.close_sync(0.0)["pending"] == 1
    assert not ended.is_set()
    with pytest.raises(RuntimeError, match="kept in the journal"):
        receipt.wait(0)
    enough.set()
    thread.join(LONG)


def test_an_interrupted_close_says_what_is_left_in_the_journal(tmp_path, stubborn, caplog):
    writer = MemoryWriter(Diary(tmp_path, agent=stubborn))
    receipt = writer.submit_nowait(Turn("alice", "s", "tea", "ok"))
    assert receipt.wait_stored(LONG)
    flush = writer.flush

    def interrupted(timeout):
        writer.flush = flush
        raise KeyboardInterrupt

    writer.flush = interrupted
    with pytest.raises(KeyboardInterrupt):
        writer.close_sync()
    with pytest.raises(RuntimeError, match="kept in the journal"):
        receipt.wait(0)
    assert "1 turn not applied; it is kept in" in caplog.text


def test_the_end_of_the_program_waits_for_a_close_in_a_thread(tmp_path, stubborn):
    """Thread pools refuse work from then on, so the other thread's turns would fail."""
    writer = MemoryWriter(Diary(tmp_path, agent=stubborn))
    receipt = writer.submit_nowait(Turn("alice", "s", "tea", "ok"))
    flush, is_closing, found = writer.flush, threading.Event(), []

    def flush_twice(timeout):
        (stubborn.enough if is_closing.is_set() else is_closing).set()
        return flush(timeout)

    def exit_program():
        close_writers()
        found.append(receipt.is_done)

    writer.flush = flush_twice
    closer = threading.Thread(target=writer.close_sync, daemon=True)
    closer.start()
    assert is_closing.wait(LONG)
    ending = threading.Thread(target=exit_program, daemon=True)
    ending.start()
    ending.join(LONG)
    assert found == [True]
    closer.join(LONG)


def test_closing_again_keeps_the_journal_of_a_running_turn_locked(tmp_path, stubborn):
    writer = MemoryWriter(Diary(tmp_path, agent=stubborn))
    assert writer.submit_nowait(Turn("alice", "s", "tea", "ok")).wait_stored(LONG)
    assert stubborn.began.acquire(timeout=LONG)
    thread = newest_thread()
    assert writer.close_sync(0.0) == writer.close_sync(0.0)
    with MemoryWriter(Diary(tmp_path, agent=lambda message, *, deps: None)) as another:
        assert another.flush(LONG)
        assert another.stats()["recovered"] == 0
    stubborn.enough.set()
    thread.join(LONG)


def test_a_turn_being_stored_during_close_gets_a_result(tmp_path, monkeypatch):
    began, may_go_on = threading.Event(), threading.Event()
    real = os.fdatasync

    def wait(descriptor):
        if is_armed:
            began.set()
            assert may_go_on.wait(LONG)
        real(descriptor)

    def close():
        assert began.wait(LONG)
        found.append(writer.close_sync(drain=False))

    async def submit():
        return await writer.submit("alice", "s", "tea", "ok")

    monkeypatch.setattr(os, "fdatasync", wait)
    found, is_armed = [], []
    agent = Stubborn()
    agent.enough.set()
    writer = MemoryWriter(Diary(tmp_path, agent=agent))
    writer.submit_nowait(Turn("bob", "s", "first", "ok")).wait(LONG)
    is_armed.append(True)
    closer = threading.Thread(target=close)
    closer.start()
    threading.Timer(0.1, may_go_on.set).start()
    receipt = asyncio.run(submit())
    closer.join(LONG)
    assert receipt.is_done
    assert adds_up(found[0])
    assert found[0]["completed"] + found[0]["pending"] == 2


def test_journals_of_the_same_second_are_applied_in_order(tmp_path):
    async def hang(message, *, deps):
        await asyncio.Event().wait()

    said = [str(number) for number in range(6)]
    for text in said:
        writer = MemoryWriter(Diary(tmp_path, agent=hang))
        assert writer.submit_nowait(Turn("alice", "s", text, "ok")).wait_stored(LONG)
        writer.close_sync(drain=False)
    seen = []
    with MemoryWriter(
        Diary(tmp_path, agent=lambda message, *, deps: seen.append(deps.user_msg))
    ) as writer:
        assert writer.flush(LONG)
    assert seen == said


WAITS = {
    "flush": lambda writer, receipt: writer.flush(),
    "aflush": lambda writer, receipt: writer.aflush(),
    "close_sync": lambda writer, receipt: writer.close_sync(),
    "close": lambda writer, receipt: writer.close(),
    "wait": lambda writer, receipt: receipt.wait(),
}


@pytest.mark.parametrize("method", WAITS)
def test_an_extractor_that_waits_for_its_own_writer_gets_an_error(tmp_path, method):
    class Waiting:
        async def run(self, message, *, deps):
            waited = WAITS[method](writer, receipt)
            if asyncio.iscoroutine(waited):
                await waited

    writer = MemoryWriter(Diary(tmp_path, agent=Waiting()))
    receipt = writer.submit_nowait(Turn("ann", "s", "tea", "ok"))
    with pytest.raises(ExtractionError, match=r"writer waits for it|event loop of a writer"):
        receipt.wait(LONG)
    assert writer.is_running
    assert writer.close_sync(LONG)["failed"] == 1


def test_an_extractor_may_wait_for_a_receipt_that_is_done(tmp_path):
    class Waiting:
        async def run(self, message, *, deps):
            waited.append(first.wait(LONG) if waited else None)

    waited = []
    with MemoryWriter(Diary(tmp_path, agent=Waiting())) as writer:
        first = writer.submit_nowait(Turn("ann", "s", "tea", "ok"))
        applied = first.wait(LONG)
        writer.submit_nowait(Turn("ann", "s", "milk", "ok")).wait(LONG)
    assert waited == [None, applied]


def test_a_plain_function_as_extractor_cannot_flush_its_own_writer(tmp_path):
    writer = MemoryWriter(Diary(tmp_path, agent=lambda message, *, deps: writer.flush(LONG)))
    receipt = writer.submit_nowait(Turn("ann", "s", "tea", "ok"))
    with pytest.raises(ExtractionError, match="writer waits for it"):
        receipt.wait(LONG)
    writer.close_sync()


def test_an_extractor_may_flush_the_writer_of_another_diary(tmp_path):
    other = MemoryWriter(Diary(tmp_path / "team", agent="rules"))
    flushed = []
    diary = Diary(
        tmp_path / "own", agent=lambda message, *, deps: flushed.append(other.flush(LONG))
    )
    with other, MemoryWriter(diary) as writer:
        writer.submit_nowait(Turn("ann", "s", "tea", "ok"))
    assert flushed == [True]


def test_a_writer_whose_close_fails_at_the_end_of_the_program_keeps_no_other_one_open():
    class Failing(MemoryWriter):
        def close_sync(self, *args, **options):
            super().close_sync(*args, **options)
            raise ValueError("a log handler failed")

    writers = [Failing(Diary("memory:", agent="rules")) for _ in range(3)]
    receipts = [each.submit_nowait(Turn("alice", "s", "I like tea.", "ok")) for each in writers]
    with pytest.raises(ValueError, match="log handler"):
        close_writers()
    assert all(receipt.is_done for receipt in receipts)
    assert not any(each.is_running for each in writers)
