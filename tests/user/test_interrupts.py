"""A blocking call that is interrupted, as by Ctrl-C or the stop button of a notebook, asks no model any further."""

from __future__ import annotations

import gc
import os
import sys
import threading
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

import programs
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.backends import LocalBackend
from tomldiary.storage.files import FileSystem

PROGRAM = """
import asyncio, os, signal, sys, threading
from tomldiary import Diary

ended = threading.Event()

async def extractor(message, *, deps):
    deps.upsert("likes", None, "tea", [])
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(60)
    finally:
        ended.set()

diary = Diary(sys.argv[1], agent=extractor)
alice = diary.user("alice")
try:
    CALL
except KeyboardInterrupt:
    print(ended.wait(20), alice.last_transaction(), len(alice.preferences("likes")))
alice.upsert_preference("likes", "coffee")
"""
CALLS = {
    "turn": 'alice.add_turn("I like tea.", "Noted.", session_id="s")',
    "transaction": """with alice.transaction():
        alice.upsert_preference("likes", "milk")
        alice.add_turn("I like tea.", "Noted.", session_id="s")""",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_interrupted_turn_is_not_extracted_any_further(tmp_path, call):
    done = run(PROGRAM.replace("CALL", call), str(tmp_path / "m"))
    assert (done.stdout, done.returncode) == ("True 0 0\n", 0), done.stderr


LIMIT = """
class TimeLimit(Exception): pass

def over(*_): raise TimeLimit

signal.signal(signal.SIGINT, over)
"""


def test_a_turn_is_not_extracted_any_further_after_the_time_limit_of_its_task(tmp_path):
    program = PROGRAM.replace("\ndiary =", f"{LIMIT}\ndiary =").replace("CALL", CALLS["turn"])
    program = program.replace("except KeyboardInterrupt", "except TimeLimit")
    done = run(program, str(tmp_path / "m"))
    assert (done.stdout, done.returncode) == ("True 0 0\n", 0), done.stderr


START = """
def interrupt(frame, event, _):
    if event == "return" and frame.f_code.co_name == "run_coroutine_threadsafe":
        sys.setprofile(None)
        raise KeyboardInterrupt

sys.setprofile(interrupt)
"""


OTHER_TURN = """
    async def nothing(message, *, deps): pass
    Diary("memory:", agent=nothing).user("bob").add_turn("Hello.", "Hello.", "s")
    """


def test_an_interrupt_while_a_turn_starts_stops_its_extraction(tmp_path):
    program = PROGRAM.replace("    os.kill(os.getpid(), signal.SIGINT)\n", "")
    program = program.replace("try:\n    CALL", f"{START}try:\n    {CALLS['turn']}")
    # The work may also be cancelled before the extractor is called; it has begun or not when a second turn is over.
    program = program.replace("deps.upsert(", "begun.append(True); deps.upsert(")
    program = program.replace(
        "print(ended.wait(20)", f"{OTHER_TURN}print(not begun or ended.wait(20)"
    )
    done = run(f"begun = []\n{program}", str(tmp_path / "m"))
    assert (done.stdout, done.returncode) == ("True 0 0\n", 0), done.stderr


@contextmanager
def interrupted():
    """Interrupt this thread as it releases the first lock of a condition."""

    def interrupt(frame, event, _):
        if (frame.f_code.co_name, frame.f_code.co_filename) == ("__exit__", threading.__file__):
            sys.settrace(None)
            raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        sys.settrace(before)


def ends_in_a_thread(call):
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def test_an_interrupted_call_leaves_no_lock_of_a_writer_or_hook_held(tmp_path):
    diary, seen = Diary(tmp_path, agent="rules"), []
    diary.hooks.add(seen.extend, name="seen")
    alice, writer = diary.user("alice"), MemoryWriter(diary)
    receipt = writer.submit_nowait(Turn("alice", "s", "I like tea.", "Noted."))
    receipt.wait()
    with interrupted():
        writer.submit_nowait(Turn("alice", "s", "I like milk.", "Noted."))
    assert ends_in_a_thread(writer.stats)
    with interrupted():
        receipt.wait()
    assert ends_in_a_thread(receipt.wait)
    with interrupted():
        alice.upsert_preference("likes", "coffee")
    assert ends_in_a_thread(diary.hooks.flush)
    writer.close_sync()
    diary.close()


def write(alice, text):
    alice.upsert_preference("likes", text, id="pref001")


def write_in_a_transaction(alice, text):
    with alice.transaction(session_id="s"):
        write(alice, text)


def interrupted_at_each_step(call, is_step):
    """Interrupt a call at its first step, then at its second one, and so on; yield the number of each step."""
    number, is_whole = 0, False
    while not is_whole:
        left = number = number + 1

        def interrupt(frame, event, _):
            nonlocal left
            if is_step(event, frame.f_code):
                left -= 1
                if left == 0:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        gc.disable()  # an interrupted finalizer of an earlier test would be reported here
        sys.setprofile(interrupt)
        try:
            call(f"interrupted at {number}")
            is_whole = left > 0
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
            gc.enable()
        yield number


@pytest.mark.parametrize("call", [write, write_in_a_transaction])
def test_a_write_that_is_interrupted_at_any_step_of_the_engine_does_not_affect_the_next(call):
    diary = Diary("memory:", agent="rules", lock_timeout=1)
    alice, files = diary.user("alice"), ("/engine.py", "/transaction.py", "/locks.py")
    alice.upsert_preference("likes", "tea")

    def is_step(event, code):
        # An error of a signal handler is raised where a function begins, and where a call in C has returned.
        return event in {"call", "c_return"} and code.co_filename.endswith(files)

    for number in interrupted_at_each_step(partial(call, alice), is_step):
        alice.upsert_preference("likes", f"written after {number}", id="pref001")
        read = []
        assert ends_in_a_thread(lambda found=read: found.append(alice.preferences("likes")))
        assert read[0]["pref001"].text == f"written after {number}"
    assert number > 20


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system lists no open files")
def test_a_write_that_is_interrupted_leaves_no_lease_on_a_document(tmp_path):
    """Another program that opens a document with a lease for writing waits for up to 45 seconds."""
    alice = Diary(tmp_path, agent="rules", durability="process").user("alice")
    alice.upsert_preference("likes", "tea")
    folder = str(tmp_path / "alice")

    def is_step(event, code):
        is_here = code.co_filename.endswith(("/contextlib.py", "/publish.py", "/files.py"))
        return event == "call" and is_here and code.co_name != "__del__"

    for number in interrupted_at_each_step(partial(write, alice), is_step):
        files = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
        assert not [file for file in files if file.startswith(folder)], number
    assert number > 20


class InterruptedFiles(FileSystem):
    """Interrupts the next call of the system with the name `due`; a file that was created stays open."""

    due = ""

    def interrupt(self, call):
        if self.due == call:
            self.due = ""
            raise KeyboardInterrupt

    def open(self, path, flags, mode=0o777):
        descriptor = os.open(path, flags, mode)
        if flags & os.O_EXCL:
            self.interrupt("create")
        return descriptor

    def exchange(self, one, two):
        self.interrupt("exchange")
        return FileSystem.exchange(one, two)


def test_a_file_that_an_interrupted_recovery_left_open_is_not_taken_for_a_hand_edit(tmp_path):
    files = InterruptedFiles()

    def opened():
        return Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")

    alice = opened()
    alice.upsert_preference("likes", "tea")
    for due in ("exchange", "create"):  # of a write, and of the recovery after it
        files.due = due
        with pytest.raises(KeyboardInterrupt):
            write(alice, "milk")
        alice = opened()
    write(alice, "juice")
    assert "juice" in (tmp_path / "alice" / "preferences.toml").read_text()
    assert alice.preferences("likes")["pref001"].text == "juice"


EXITING = """
import asyncio, sys
from tomldiary import Diary, MemoryWriter, Turn

calls = []

async def leave():
    exec(sys.argv[2])

async def extractor(message, *, deps):
    calls.append(message)
    if len(calls) < 3:
        await asyncio.create_task(leave())
    deps.upsert("likes", None, "tea", [])

diary = Diary(sys.argv[1], agent=extractor)
alice = diary.user("alice")
try:
    alice.add_turn("I like tea.", "Noted.", "s")
except SystemExit as error:
    print(error)
with MemoryWriter(diary) as writer:
    turns = [writer.submit_nowait(Turn("alice", "s", "I like tea.", "Noted.")) for _ in "ab"]
print(*[type(turn.result).__name__ for turn in turns])
alice.add_turn("I like tea.", "Noted.", "s")
print(alice.preferences("likes")["pref001"].count)
"""


@pytest.mark.parametrize(
    ("step", "printed"),
    [
        ('sys.exit("no key")', "no key\nSystemExit Applied\n2\n"),
        ("asyncio.get_running_loop().stop()", "Applied Applied\n4\n"),
    ],
)
def test_an_extractor_that_ends_its_loop_ends_its_own_turn_only(tmp_path, step, printed):
    done = run(EXITING, str(tmp_path / "m"), step)
    assert done.stdout == printed, done.stderr


def run(program, *arguments):
    return programs.run("-c", program, *arguments)


SAVING = """
import asyncio, os, signal, sys, threading
from six_verbs import SixVerbs
from tomldiary import Diary

ended = threading.Event()

class Slow(SixVerbs):
    async def save(self, user_id, kind, content):
        self.loop, self.goes_on = asyncio.get_running_loop(), asyncio.Event()
        caller = threading.main_thread().ident
        while sys._current_frames()[caller].f_code.co_name != "wait":
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await self.goes_on.wait()
            await super().save(user_id, kind, content)
        finally:
            ended.set()

backend = Slow()
try:
    Diary(backend, agent="rules").user("alice").upsert_preference("likes", "tea")
except KeyboardInterrupt:
    backend.loop.call_soon_threadsafe(backend.goes_on.set)
    print(ended.wait(20), *backend.texts)
"""


def test_an_interrupted_save_of_a_third_partys_backend_is_not_cut_off():
    done = run(SAVING)
    assert (done.stdout, done.returncode) == ("True ('alice', 'preferences')\n", 0), done.stderr
