"""A server that is stopped or crashes, and is started again: nothing acknowledged is missing, and work goes on."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import pytest

import engines
import servers
from tomldiary import BackendError, Diary, MemoryWriter, Turn
from tomldiary.storage.open import open_backend
from waiting import until

LONG = 60  # seconds; nothing waits that long unless it is broken

both = pytest.mark.parametrize("name", ["postgres", "redis"])


@pytest.fixture
def place(name):
    """A folder and a port for a server that is started twice."""
    engines.space(name)  # skips without servers
    with tempfile.TemporaryDirectory(prefix="tomldiary-") as folder:
        yield Path(folder), servers.free_port()


class Writing(threading.Thread):
    """Writes until it is stopped, and notes what was acknowledged and what failed."""

    def __init__(self, alice):
        super().__init__()
        self.alice, self.done, self.failed = alice, [], []
        self.stopped = threading.Event()

    def run(self):
        for number in range(100_000):
            if self.stopped.is_set():
                return
            try:
                self.alice.upsert_preference("likes", f"thing number {number}")
                self.done.append(number)
            except BackendError as error:
                self.failed.append(str(error))


@both
@pytest.mark.parametrize(("crashes", "timeout"), [(False, 20), (True, 20), (True, 0.2)])
def test_writes_go_on_after_a_restart_of_the_server(name, place, crashes, timeout):
    with servers.running_as(name, *place, crashes=crashes) as url:
        backend = open_backend(f"{url}?timeout={timeout}", None)
        diary = Diary(backend, agent="rules", max_prefs_per_category=100_000, similarity=101)
        writing = Writing(diary.user("alice"))
        writing.start()
        until(lambda: len(writing.done) > 9)
    if timeout < 1:
        until(lambda: len(writing.failed) > 1)  # calls fail in time while the server is away
    with servers.running_as(name, *place):
        before = len(writing.done)
        until(lambda: len(writing.done) > before + 9)
        writing.stopped.set()
        writing.join()
        texts = [item.text for item in diary.user("alice").preferences("likes").values()]
        assert {f"thing number {number}" for number in writing.done} <= {*texts}
        assert len(texts) == len({*texts}) <= len(writing.done) + len(writing.failed)
        backend.close()
    if timeout > 1:
        assert writing.failed == []
    for error in writing.failed:
        assert "cannot be reached" in error or "unknown whether the change is stored" in error


@both
def test_turns_in_the_queue_outlive_a_crash_of_the_server(name, place):
    with servers.running_as(name, *place, crashes=True) as url:
        backend = open_backend(f"{url}?timeout=20", None)
        diary = Diary(backend, agent="rules", similarity=101)
        writer = MemoryWriter(diary, workers=2, lease=4.0)
        receipts = {
            user: [
                writer.submit_nowait(Turn(user, "s", f"I love thing number {n}.", "Noted."))
                for n in range(15)
            ]
            for user in ("ann", "bob")
        }
        assert receipts["ann"][0].wait(LONG).applied == 1
    with servers.running_as(name, *place):
        for user, mine in receipts.items():
            assert [each.wait(LONG).transaction for each in mine] == list(range(1, 16))
            texts = [item.text for item in diary.user(user).preferences("likes").values()]
            assert texts == [f"I love thing number {number}." for number in range(15)]
            assert diary.user(user).conversations()["s"].turns == 15
        writer.close_sync()
        backend.close()
