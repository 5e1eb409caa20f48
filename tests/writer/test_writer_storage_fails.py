"""Whatever the disk or a person does to a journal, stored turns are kept, and new ones can be stored."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from file_systems import HookedFiles
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.backends import LocalBackend
from tomldiary.errors import BackendError
from tomldiary.writer import journal
from tomldiary.writer.attempts import RetryPolicy
from tomldiary.writer.journal import render_turn_record
from tomldiary.writer.journal_queue import StoringQueue, wake
from tomldiary.writer.receipts import Job

LONG = 120
OPEN_FILES = Path("/proc/self/fd")


class Gate:
    def __init__(self):
        self.began, self.open = threading.Semaphore(0), threading.Event()

    async def run(self, message, *, deps):
        self.began.release()
        while not self.open.is_set():  # noqa: ASYNC110 - the event is of another thread
            await asyncio.sleep(0.002)
        deps.upsert("likes", None, deps.user_msg, ())


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.open.set()


def texts(diary, user="alice"):
    found = diary.user(user).preferences().values()
    return [item.text for items in found for item in items.values()]


def journals(folder):
    return sorted(path for path in (folder / ".tomldiary" / "journal").iterdir() if path.is_dir())


def in_journals(folder, text):
    return any(
        f'user_msg = "{text}"'.encode() in path.read_bytes()
        for each in journals(folder)
        for path in each.glob("*.toml")
    )


def store(writer, text, user="alice"):
    receipt = writer.submit_nowait(Turn(user, "s", text, "ok"))
    receipt.wait_stored(LONG)
    return receipt


def fail_once(files, *failures):
    """Let operations fail once: each is given by its name, the end of its path, and the error."""
    left = list(failures)

    def hook(name, path, *_):
        for failure in left:
            if failure[0] == name and path.endswith(failure[1]):
                left.remove(failure)
                raise failure[2]

    files.hook = hook


def test_an_unexpected_error_refuses_the_turns_being_stored():
    class Broken(StoringQueue):
        def _work(self):
            raise ValueError("a fault")

    refused, is_refused = [], threading.Event()

    def refuse(jobs, error):
        refused.extend((job.operation, str(error)) for job in jobs)
        is_refused.set()

    state = threading.Condition()
    admission = SimpleNamespace(state=state, waiting=(), refuse=refuse)
    queue = Broken("broken", "memory", admission, poll=LONG)
    with state:
        queue.put(Job(Turn("alice", "s", "hi", "ok"), "one", is_new=True))
    assert is_refused.wait(LONG)
    queue.stop()
    assert refused == [("one", "a fault")]
    assert len(queue) == 0


def test_a_turn_waits_until_the_folder_of_its_user_can_be_opened_again(tmp_path, files):
    Diary(tmp_path, agent="rules").user("alice").upsert_preference("likes", "milk")
    diary = Diary(LocalBackend(tmp_path, files=files), agent="rules")
    retry = RetryPolicy(attempts=2, first_pause=0.01)
    with MemoryWriter(diary, retry=retry) as writer:

        def hook(name, path, *_):
            if name == "listdir" and path.endswith("/alice") and not writer.stats()["retries"]:
                raise PermissionError(errno.EACCES, "Permission denied", path)

        files.hook = hook
        with pytest.raises(BackendError, match=r"alice: cannot be opened .*Check the permissions"):
            diary.user("alice").upsert_preference("likes", "tea")
        store(writer, "I like jazz.").wait(LONG)
    assert texts(diary) == ["milk", "I like jazz."]
    assert writer.stats()["dead_letters"] == 0


@pytest.mark.parametrize("step", ["open", "sync_file"])
def test_a_segment_whose_sync_failed_gets_no_further_turn(tmp_path, files, gate, step):
    diary = Diary(LocalBackend(tmp_path, files=files), agent=gate)
    with MemoryWriter(diary, workers=1) as writer:
        store(writer, "first", user="bob")
        assert gate.began.acquire(timeout=LONG)
        kept = store(writer, "tea")
        is_second = {"open": "000002.toml", "sync_file": ""}
        fail_once(
            files,
            ("sync_data", "", OSError(errno.EIO, "Input/output error")),
            (step, is_second[step], OSError(errno.EMFILE, "Too many open files")),
        )
        with pytest.raises(BackendError, match="not stored"):
            store(writer, "refused")
        later = store(writer, "juice")
        assert len(journals(tmp_path)) == 2
        assert in_journals(tmp_path, "tea")
        assert in_journals(tmp_path, "juice")
        diary.user("alice").forget(
            session_id="another"
        )  # turns that are still in a journal are applied
        gate.open.set()
        kept.wait(LONG)
        later.wait(LONG)
    assert texts(diary) == ["tea", "juice"]


def test_a_segment_gets_no_turn_before_its_name_is_synced(tmp_path, files, gate):
    diary = Diary(LocalBackend(tmp_path, files=files), agent=gate)
    with MemoryWriter(diary) as writer:
        store(writer, "x" * 70_000)
        fail_once(files, ("sync_file", "", OSError(errno.EIO, "Input/output error")))
        with pytest.raises(BackendError):
            store(writer, "refused")
        store(writer, "juice")
        first, second = journals(tmp_path)
        assert [path.name for path in sorted(second.glob("*.toml"))] == ["000001.toml"]
        assert b"juice" not in b"".join(path.read_bytes() for path in first.glob("*.toml"))
        gate.open.set()


def test_turns_of_two_journals_form_no_group(tmp_path, files, gate):
    """A group is recorded in one journal, where the other's number belongs to another turn."""
    seen = []

    class Extractor:
        async def run(self, message, *, deps):
            seen.append(deps.user_msg)
            await gate.run(message, deps=deps)

    diary = Diary(LocalBackend(tmp_path, files=files), agent=Extractor())
    with MemoryWriter(diary, workers=1, coalesce=4) as writer:
        store(writer, "first", user="bob")
        assert gate.began.acquire(timeout=LONG)
        store(writer, "tea")
        fail_once(
            files,
            ("sync_data", "", OSError(errno.EIO, "Input/output error")),
            ("open", "000002.toml", OSError(errno.EMFILE, "Too many open files")),
        )
        with pytest.raises(BackendError):
            store(writer, "refused")
        store(writer, "juice")
        store(writer, "milk")
        gate.open.set()
        assert writer.flush(LONG)
    assert seen == ["first", "tea", "juice\n\nmilk"]


def test_no_turn_is_refused_because_an_earlier_record_could_not_be_removed(tmp_path, files, gate):
    gate.open.set()
    error, left = OSError(errno.EIO, "Input/output error"), ["ftruncate", "write"]

    def hook(name, _path, data=b"", *_):
        if left[-1:] == [name] and (name == "ftruncate" or bytes(data).startswith(b"[[done]]")):
            left.pop()
            raise error

    diary = Diary(LocalBackend(tmp_path, files=files), agent=gate)
    with MemoryWriter(diary) as writer:
        files.hook = hook
        store(writer, "tea").wait(LONG)
        assert left == []
        store(writer, "juice").wait(LONG)
    assert texts(diary) == ["tea", "juice"]


@pytest.mark.parametrize("removed", ["", ".tomldiary"])
def test_turns_after_the_folder_was_removed_are_kept(tmp_path, gate, removed):
    gate.open.set()
    folder = tmp_path / "memories"
    diary = Diary(folder, agent=gate)
    with MemoryWriter(diary) as writer:
        store(writer, "tea").wait(LONG)
        shutil.rmtree(folder / removed)
        store(writer, "juice").wait(LONG)
        store(writer, "milk").wait(LONG)
        assert len(journals(folder)) == 1
    assert texts(diary) == (["tea", "juice", "milk"] if removed else ["juice", "milk"])


@pytest.mark.parametrize("body", ["", 'user = "alice"\n', 'operation = "x"\ntime = "never"\n'])
def test_a_journal_with_invalid_records_stops_no_writer(tmp_path, gate, body, capsys, monkeypatch):
    monkeypatch.setattr(
        logging.getLogger("tomldiary"), "propagate", False
    )  # as without any logging
    gate.open.set()
    diary = Diary(tmp_path, agent=gate)
    odd = tmp_path / ".tomldiary" / "journal" / "20260101-000000-0"
    odd.mkdir(parents=True)
    (odd / "owner.lock").touch()
    (odd / "000001.toml").write_text(render_turn_record(1, 0, body))
    with MemoryWriter(diary, takeover_interval=0.02) as writer:
        store(writer, "tea").wait(LONG)
        time.sleep(0.05)
        store(writer, "juice").wait(LONG)  # after another search
    assert texts(diary) == ["tea", "juice"]
    assert capsys.readouterr().err.count("cannot be taken over") == 1
    assert render_turn_record(1, 0, body) == (odd / "000001.toml").read_text()


def test_a_journal_folder_without_its_owner_file_is_removed_if_it_is_empty(tmp_path, gate):
    gate.open.set()
    empty, used = (
        tmp_path / ".tomldiary" / "journal" / name for name in ("20260101-0", "20260101-1")
    )
    empty.mkdir(parents=True)
    used.mkdir()
    (used / "notes.txt").touch()
    with MemoryWriter(Diary(tmp_path, agent=gate)) as writer:
        store(writer, "tea").wait(LONG)
    assert (empty.exists(), used.exists()) == (False, True)


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="only Linux lists open files")
@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("open", "owner.lock"),
        ("open", "000001.toml"),
        ("replace", ""),
        ("sync_file", ""),
    ],
)
def test_a_journal_that_cannot_be_created_leaves_no_file(tmp_path, files, name, end):
    root = tmp_path / "journal"
    root.mkdir()

    def fail(operation, path, *_):
        if operation == name and path.endswith(end):
            raise OSError(errno.ENOSPC, "No space left on device")

    files.hook = fail
    for _ in range(3):
        with pytest.raises(BackendError, match="not stored"):
            journal.Journal.create(root, sync=True, files=files)
    assert list(root.iterdir()) == []
    names = [os.path.realpath(path) for path in OPEN_FILES.iterdir()]
    assert [found for found in names if str(tmp_path) in found] == []


def test_a_result_that_the_journal_cannot_store_is_an_error_of_the_storage(tmp_path, files):
    def remember(message, *, deps):
        files.hook = full
        deps.upsert("likes", None, deps.user_msg, ())

    def full(name, path, *_):
        if name == "write" and "/journal/" in path:
            raise OSError(errno.ENOSPC, "No space left on device", path)

    diary = Diary(LocalBackend(tmp_path, files=files), agent=remember)
    with MemoryWriter(diary, retry=RetryPolicy(attempts=1)) as writer:
        receipt = store(writer, "tea")
        with pytest.raises(BackendError, match="No space left on device"):
            receipt.wait(LONG)
        files.hook = None
    assert texts(diary) == []


def test_a_loop_that_is_closed_delays_no_submit_of_another():
    loops = [asyncio.new_event_loop() for _ in range(2)]
    waiters = [(loop, loop.create_future()) for loop in loops]
    loops[0].close()
    jobs = [
        Job(Turn("alice", "s", "tea", "ok"), "op", is_new=True, waiter=each) for each in waiters
    ]
    wake(jobs, None)
    loops[1].run_until_complete(asyncio.wait_for(waiters[1][1], LONG))
    loops[1].close()


def test_a_closed_writer_leaves_no_temporary_file_of_its_journal(tmp_path, gate):
    gate.open.set()
    with MemoryWriter(Diary(tmp_path, agent=gate)) as writer:
        store(writer, "tea").wait(LONG)
        (journals(tmp_path)[0] / ".000001.toml.1.tmp").write_text("of a rewrite that was killed")
    assert journals(tmp_path) == []


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="only Linux lists open files")
def test_a_search_leaves_no_file_of_a_living_writer_open(tmp_path):
    living = journal.Journal.create(tmp_path, sync=False)
    before = len(list(OPEN_FILES.iterdir()))
    assert [journal.Journal.adopt(living.folder, sync=False) for _ in range(3)] == [None] * 3
    assert len(list(OPEN_FILES.iterdir())) == before
    living.close()


def test_a_full_disk_is_named_where_an_operator_looks(tmp_path, files, caplog):
    diary = Diary(LocalBackend(tmp_path, files=files), agent="rules")

    def full(name, path, *_):
        if name == "write_new" or (name == "open" and "/history/" in path):
            raise OSError(errno.ENOSPC, "No space left on device", path)

    files.hook = full
    with MemoryWriter(diary, retry=RetryPolicy(attempts=1)) as writer:
        with pytest.raises(BackendError, match="No space left on device"):
            writer.submit_nowait(Turn("alice", "s", "I love figs.", "ok")).wait(LONG)
        assert writer.stats()["last_failure"] == "OSError (No space left on device)."
        assert "the last turn failed: OSError (No space left on device)." in writer.health().reasons
    assert "a turn could not be applied: OSError (No space left on device)" in caplog.text
    assert "alice" not in caplog.text  # an operator's log names no user


def test_a_sync_that_finds_no_file_fails_once(tmp_path):
    syncs = []

    def missing(name, path, *_):
        if name == "sync_data" and "/journal/" in path:
            syncs.append(path)
            if len(syncs) == 1:  # a second attempt would end the test, instead of repeating forever
                raise FileNotFoundError(errno.ENOENT, "gone", path)

    files = HookedFiles(missing)
    with MemoryWriter(Diary(LocalBackend(tmp_path, files=files), agent="rules")) as writer:
        receipt = writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
        with pytest.raises(BackendError, match="cannot be written"):
            receipt.wait_stored(LONG)
    assert len(syncs) == 1
