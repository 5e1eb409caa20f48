"""A diary that is closed leaves no connection, and can be used again; one of a backend object leaves the object alone."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import engines
from tomldiary import Diary
from tomldiary.storage.shared.database import DatabaseLost
from tomldiary_langgraph import DiaryStore
from waiting import until

TABLES = [each for each in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if each.exists()]
pytestmark = pytest.mark.skipif(not TABLES, reason="counts connections as Linux lists them")
watched = pytest.mark.parametrize("name", ["postgres", "redis"])


def connections(engine):
    """Return how many connections of this process to a server are established."""
    server = engine.server if "//" in engine.server else f"tcp://{engine.server}"
    end, mine = f":{urlsplit(server).port:04X}", set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            mine.add(str(descriptor.readlink()))
    rows = [line.split() for table in TABLES for line in table.read_text().splitlines()[1:]]
    return sum(
        row[2].endswith(end) and row[3] == "01" and f"socket:[{row[9]}]" in mine for row in rows
    )


@pytest.fixture(autouse=True)
def _dropped_connections_are_closed():
    """Close what earlier tests have dropped, which is counted until it is collected."""
    gc.collect()


def liked(diary):
    return [item.text for item in diary.user("alice").preferences("likes").values()]


def closed(diary, way):
    if way == "close":
        diary.close()
    elif way == "with":
        with diary:
            pass
    else:

        async def leave():
            async with diary:
                pass

        asyncio.run(leave())


@pytest.mark.parametrize("way", ["close", "with", "async with"])
def test_closing_a_diary_closes_the_connections_it_opened(engine, way):
    before = connections(engine)
    diary = Diary(engine.url, agent="rules")
    for text in ("tea", "jazz"):
        diary.user("alice").upsert_preference("likes", text)
        assert connections(engine) > before
        closed(diary, way)
        until(lambda: connections(engine) == before)
    assert liked(diary) == ["tea", "jazz"]
    diary.close()


def test_closing_a_diary_leaves_a_given_backend_open(engine):
    before = connections(engine)
    with closing(engine.backend()) as backend:
        with Diary(backend, agent="rules") as diary:
            diary.user("alice").upsert_preference("likes", "tea")
        assert connections(engine) > before
    until(lambda: connections(engine) == before)


def test_a_store_closes_a_diary_that_it_opened_and_no_other(engine):
    before = connections(engine)
    with DiaryStore(engine.url) as store:
        store.put(("alice", "notes"), "one", {"text": "tea"})
        assert connections(engine) > before
    until(lambda: connections(engine) == before)
    with Diary(engine.url) as diary:
        with DiaryStore(diary) as store:
            assert store.get(("alice", "notes"), "one").value == {"text": "tea"}
        assert connections(engine) > before
    until(lambda: connections(engine) == before)


def test_calls_during_a_close_lose_nothing(engine):
    diary = Diary(engine.url, agent="rules", similarity=101)
    texts = [f"thing number {number}" for number in range(30)]
    turn = threading.Semaphore(0)

    def close():
        for _ in texts:
            assert turn.acquire(timeout=60)
            diary.close()

    thread = threading.Thread(target=close)
    thread.start()
    for text in texts:
        turn.release()
        diary.user("alice").upsert_preference("likes", text)
    thread.join()
    assert liked(diary) == texts
    diary.close()


def test_a_read_does_not_wait_in_a_pool_that_another_thread_closes():
    database = engines.space("postgres").backend().transactions.database
    interval, ended = sys.getswitchinterval(), threading.Event()

    def close():
        while not ended.is_set():
            database.close()

    thread = threading.Thread(target=close)
    sys.setswitchinterval(1e-6)  # so that the threads meet between two steps of the pool
    try:
        thread.start()
        for _ in range(20):
            begun = time.monotonic()
            with suppress(DatabaseLost):
                assert database.records("alice", 1, 1) == []
            assert time.monotonic() - begun < 5  # seconds; the timeout is 10
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        thread.join()
        database.close()


class _Task:
    """Runs in a thread of a pool, and drops the last reference to the pool there."""

    def __init__(self, pool):
        self.pool, self.gate = pool, threading.Event()

    def run(self):
        assert self.gate.wait(60)
        del self.pool


def test_a_dropped_database_closes_its_pool_in_no_thread_of_the_pool(monkeypatch):
    failures = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda failed: failures.append(repr(failed.exc_value))
    )
    engine = engines.space("postgres")
    before = connections(engine)
    database = engine.backend().database
    assert database.head("alice").revision == 0
    pool = database._pool
    task = _Task(pool)
    pool.run_task(task)
    del database, pool
    task.gate.set()
    until(lambda: connections(engine) == before)
    until(lambda: not hasattr(task, "pool"))
    assert failures == []


def test_a_collected_pool_stops_its_threads_unless_the_interpreter_ends():
    program = """
import gc, os
import psycopg_pool
from tomldiary.storage.shared.postgres.connection import Pool
psycopg_pool.ConnectionPool.__del__ = lambda pool, write=os.write: write(1, pool.name.encode())
Pool(min_size=0, max_size=1, open=False, name="dropped")
gc.collect()
kept = Pool(min_size=0, max_size=1, open=False, name="kept")
kept.itself = kept
del kept  # the interpreter collects it when it ends
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"dropped", b"")


@watched
def test_a_closed_diary_watches_again_when_it_is_used_again(name):
    engine = engines.space(name)
    before = connections(engine)
    diary = Diary(f"{engine.url}&watch=2", agent="rules")
    heads = diary.engine.backend.transactions.heads
    for text in ("tea", "jazz"):
        diary.user("alice").upsert_preference("likes", text)
        until(lambda: liked(diary) and heads.valid(heads.of("alice")) is not None)
        diary.close()
        until(lambda: connections(engine) == before)
        assert heads.valid(heads.of("alice")) is None
