"""An editor that stands still half way through a save loses nothing, and nothing is taken for deleted."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from capabilities import needs_exchange, needs_leases
from hand_edits import age, texts
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.engine.engine import Source
from tomldiary.errors import BackendError, Conflict
from tomldiary.forgetting import forget
from tomldiary.history.record import parse_record
from tomldiary.history.timeline import EMPTY
from tomldiary.history.verify import verify
from tomldiary.storage.environment import Environment
from tomldiary.storage.local.publish import is_being_saved, staged_path

fcntl = pytest.importorskip("fcntl")
pytestmark = [needs_exchange, needs_leases]

EDITOR = """
import json, os, sys
path, flags = sys.argv[1], int(sys.argv[2])
if flags < 0:  # as vim does: the old file becomes the backup, and a new one is written
    os.rename(path, path + "~")
    print("ready", flush=True)
    assert json.loads(sys.stdin.readline()) == ""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
file = os.open(path, flags, 0o600)
print("ready", flush=True)
for line in sys.stdin:
    os.write(file, json.loads(line).encode())
    print("ready", flush=True)
os.close(file)
"""
IN_PLACE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
OVER_A_BACKUP = -1


class Editor:
    """A process that has begun to save a file, and goes on when it is told to."""

    def __init__(self, file, flags=IN_PLACE):
        self._process = subprocess.Popen(
            [sys.executable, "-c", EDITOR, str(file), str(flags)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._is_ready()

    def _is_ready(self):
        assert self._process.stdout.readline() == "ready\n"

    def write(self, text):
        self._process.stdin.write(f"{json.dumps(text)}\n")
        self._process.stdin.flush()
        self._is_ready()

    def close(self):
        self._process.communicate()
        assert self._process.returncode == 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@pytest.fixture
def alice(tmp_path, files):
    backend = LocalBackend(tmp_path, durability="process", files=files)
    alice = Diary(backend, agent="rules").user("alice")
    for text in ("tea", "coffee", "water"):
        alice.upsert_preference("likes", text)
    return alice


def results(alice):
    records = map(parse_record, alice.diary.engine.backend.records("alice"))
    return [record.results["preferences"] for record in records]


def edited(file):
    """Return what a person makes of a file: an entry changed, and one added at the end."""
    text = file.read_text().replace('"coffee"', '"decaf"  # mine')
    return f'{text}\n[preferences.likes.mine]\ntext = "juice"\n_count = 2\n'


def refuse(reason):
    """Return a `fcntl` of a file system that grants no leases."""

    def refused(_descriptor, command, _argument):
        if command == fcntl.F_SETLEASE:
            raise OSError(reason, os.strerror(reason))

    return refused


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.3)  # long enough for one who does not wait
    return thread


CUTS = {
    "nothing": lambda _: 0,
    "half an entry": lambda text: text.index("pref002]") + 3,
    "an entry": lambda text: text.index("[preferences.likes.pref002]"),
    "all old entries": lambda text: text.index("[preferences.likes.mine]"),
    "all but a line": lambda text: text.index("_count = 2"),
}


@pytest.mark.parametrize("cut", CUTS)
def test_an_editor_that_stalls_during_a_save_loses_nothing(alice, file, cut):
    whole = edited(file)
    at = CUTS[cut](whole)
    with Editor(file) as editor:
        if at:
            editor.write(whole[:at])
        age(file)  # it stands there for longer than a save takes
        assert texts(alice) == ["tea", "coffee", "water"]
        agent = in_thread(lambda: alice.upsert_preference("goals", "rest"))
        editor.write(whole[at:])
        editor.close()
        agent.join()
    age(file)
    assert texts(alice) == ["tea", "decaf", "water", "juice"]
    assert texts(alice, "goals") == ["rest"]
    alice.upsert_preference("goals", "run")
    assert '"decaf"  # mine\n' in file.read_text()
    assert texts(alice, "goals") == ["rest", "run"]
    assert alice.preferences("likes")["mine"].count == 2
    assert not any(entry.is_conflict for entry in alice.history(limit=99))
    assert verify(alice.diary.engine.backend, "alice") is None


def test_an_editor_with_an_open_file_loses_nothing(alice, file):
    whole = edited(file)
    with Editor(file, os.O_WRONLY) as editor:
        age(file, 3600)  # however long nothing was changed
        alice.upsert_preference("goals", "rest")
        assert texts(alice, "goals") == ["rest"]
        editor.write(whole)
        editor.close()
    age(file)
    assert texts(alice) == ["tea", "decaf", "water", "juice"]
    assert texts(alice, "goals") == ["rest"]
    alice.upsert_preference("goals", "run")
    assert '"decaf"  # mine\n' in file.read_text()
    assert "rest" in file.read_text()


def test_an_idle_open_file_blocks_no_write(alice, file):
    before = file.read_text()
    with Editor(file, os.O_WRONLY):
        for number in range(3):
            alice.upsert_preference("goals", f"goal {number}")
            assert len(texts(alice, "goals")) == number + 1
        assert file.read_text() == before
    alice.upsert_preference("goals", "last")
    assert len(re.findall(r'^text = "(?:goal|last)', file.read_text(), re.MULTILINE)) == 4


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_WRONLY | os.O_TRUNC])
def test_an_editor_can_finish_a_save_in_a_displaced_file(alice, file, tmp_path, flags):
    whole = edited(file)
    displaced = Path(staged_path(file.parent, "preferences", file.read_bytes(), 3))
    displaced.write_bytes(file.read_bytes())
    with Editor(displaced, flags) as editor:
        again = Diary(tmp_path, agent="rules", durability="process").user("alice")
        assert texts(again) == ["tea", "coffee", "water"]
        editor.write(whole)
        editor.close()
    age(file)
    assert texts(again) == ["tea", "decaf", "water", "juice"]
    assert not list(file.parent.glob(".staged*"))


def test_an_editor_that_opened_a_file_before_its_removal_loses_nothing(alice, file, files):
    first = file.read_text().replace('"tea"', '"green tea"  # first')
    real, editors = files.exchange, []

    def between(temp, target):
        if not editors:
            file.with_name("beside").write_text(first)
            file.with_name("beside").replace(file)
            real(temp, target)
            seen.append(edited(file))  # without the first save
            editors.append(Editor(file, os.O_WRONLY))
            return True
        return real(temp, target)

    seen = []
    files.exchange = between
    alice.upsert_preference("goals", "rest")
    with editors[0] as editor:
        editor.write(seen[0])
        editor.close()
    age(file)
    alice.upsert_preference("goals", "run")
    age(file)
    alice.upsert_preference("goals", "end")
    assert texts(alice) == ["green tea", "decaf", "water", "juice"]
    assert texts(alice, "goals") == ["rest", "run", "end"]
    assert verify(alice.diary.engine.backend, "alice") is None


@pytest.mark.parametrize("is_logged", [True, False])
def test_a_write_that_times_out_names_the_unfinished_save(tmp_path, is_logged):
    (tmp_path / "alice").mkdir()
    file = tmp_path / "alice/preferences.toml"
    alice = Diary(tmp_path, agent="rules", durability="process").user("alice")
    if is_logged:
        alice.upsert_preference("likes", "tea")
    engine = alice.diary.engine
    engine.save_timeout = 0.0

    def change(tx):
        tx.edit("preferences").put(("preferences", "likes", "new"), {"text": "new"})

    with Editor(file) as editor:
        editor.write('[preferences.likes.mine]\ntext = "half"\n')
        age(file)
        with pytest.raises(Conflict, match="still being written by another program"):
            engine.write("alice", change, Source("test"))
        with pytest.raises(Conflict, match="still being written by another program"):
            alice.forget(session_id="s")
        editor.close()
    engine.write("alice", change, Source("test"))
    assert texts(alice) == ["half", "new"]


def test_an_erasure_waits_for_an_unfinished_save_once(alice, file, monkeypatch):
    timeouts, wait = [], forget.wait_for_save

    def watched(place, deadline, timeout):
        timeouts.append(timeout)
        wait(place, deadline, timeout)

    monkeypatch.setattr(forget, "wait_for_save", watched)
    alice.diary.engine.save_timeout = 0.1
    whole = edited(file)
    with Editor(file, os.O_WRONLY) as editor:
        editor.write(whole)
        age(file)
        with pytest.raises(Conflict, match="still being written by another program"):
            alice.forget(matching="tea")
    assert timeouts[0] == 0
    assert set(timeouts[1:]) == {0.1}


def with_two_likes(folder, files):
    """Return a user who likes walnuts and tea, her document, and the text of an edit of the tea."""
    alice = Diary(LocalBackend(folder, files=files), agent="rules").user("alice")
    for text in ("walnuts", "tea"):
        alice.upsert_preference("likes", text)
    file = folder / "alice/preferences.toml"
    return alice, file, file.read_text().replace('"tea"', '"green tea"')


@pytest.mark.parametrize("flags", [os.O_WRONLY, IN_PLACE])
def test_a_save_that_begins_during_an_erasure_is_kept(tmp_path, files, flags):
    alice, file, whole = with_two_likes(tmp_path, files)
    editors = []

    def begin(name, path, *_):
        if name == "replace" and path.endswith("/.forgetting-0") and not editors:
            editors.append(Editor(file, flags))
            timer = threading.Timer(0.2, lambda: (editors[0].write(whole), editors[0].close()))
            editors.append(timer)
            timer.start()

    files.hook = begin
    alice.forget(matching="walnut")
    files.hook = None
    editors[1].join()
    age(file)
    assert texts(alice) == ["green tea"]
    assert alice.traces("walnut") == []


def test_an_erasure_is_refused_while_a_program_has_a_document_open(alice, file):
    alice.diary.engine.save_timeout = 0.1
    whole = edited(file)
    with Editor(file, os.O_WRONLY) as editor:
        age(file, 100)
        with pytest.raises(Conflict, match="still being written by another program"):
            alice.forget(matching="water")
        assert not list(file.parent.glob(".forgetting*"))
        editor.write(whole)
        editor.close()
    age(file)
    assert texts(alice) == ["tea", "decaf", "water", "juice"]


def refused_leases(files, then=lambda: None):
    """Return a list that gets each refused lease; call `then` after each."""
    refused, take_lease = [], files.take_lease

    def take(descriptor):
        refusal = take_lease(descriptor)
        if refusal == errno.EAGAIN:
            refused.append(files.paths[descriptor])
            then()
        return refusal

    files.take_lease = take
    return refused


def test_an_erasure_waits_for_a_save_and_erases_its_text_too(alice, file, files):
    whole = f'{edited(file)}\n[preferences.goals.mine]\ntext = "drink water"\n'
    saved = []

    def save():
        if list(file.parent.glob(".forgetting*")) and not saved:
            saved.append(editor.write(whole))
            editor.close()
            age(file)

    refused_leases(files, save)
    with Editor(file, os.O_WRONLY) as editor:
        age(file, 100)
        alice.forget(matching="water")
    assert saved
    assert texts(alice) == ["tea", "decaf", "juice"]
    assert alice.traces("water") == []


def test_an_erasure_that_a_save_stops_is_finished_after_it(tmp_path, files):
    alice = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    alice.diary.engine.save_timeout = 0.1
    for text in ("walnuts", "tea"):
        alice.upsert_preference("likes", text)
    file = tmp_path / "alice/preferences.toml"
    whole = file.read_text().replace('"tea"', '"green tea"')
    editors = []

    def begin(name, path, *_):
        if name == "replace" and path.endswith("/.forgetting-0"):
            files.hook = None
            editors.append(Editor(file))

    files.hook = begin
    with pytest.raises(BackendError, match=r"still being written.* is opened next"):
        alice.forget(matching="walnut")
    other = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    with editors[0] as editor:
        for each in (alice, other):
            refused = refused_leases(files)
            assert "tea" in texts(each)
            assert refused
            assert len(refused) < 10  # readers do not wait
        editor.write(whole)
        editor.close()
    age(file)
    assert texts(alice) == ["green tea"]
    assert alice.traces("walnut") == []


@pytest.mark.parametrize("is_in_place", [True, False])
def test_a_save_during_an_erasure_that_is_killed_is_kept(tmp_path, files, is_in_place):
    alice, file, whole = with_two_likes(tmp_path, files)
    descriptors = []

    def kill(name, path, *_):
        if name != "exchange" or not path.endswith("-copy"):
            return
        if descriptors:
            raise KeyboardInterrupt
        if not is_in_place:
            file.with_name("new").write_text(whole)
            file.with_name("new").replace(file)
        # A program that begins to save in place meanwhile has the old file.
        descriptors.append(os.open(file, os.O_RDONLY))

    files.hook = kill
    files.keeps_lease = lambda _descriptor: False
    with pytest.raises(KeyboardInterrupt):
        alice.forget(matching="walnut")
    files.hook = None
    if is_in_place:
        Path(f"/proc/self/fd/{descriptors[0]}").write_text(whole)
    os.close(descriptors[0])
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.last_transaction()
    age(file)
    assert texts(alice) == ["green tea"]
    assert alice.traces("walnut") == []


def test_an_erasure_that_is_killed_while_it_redacts_a_save_is_finished(tmp_path, files):
    alice, file, whole = with_two_likes(tmp_path, files)

    def kill(name, path, *_):
        if name == "replace" and path.endswith("/.forgetting-0"):
            file.write_text(whole)
        elif name == "replace" and path.endswith("-merged"):
            raise KeyboardInterrupt

    files.hook = kill
    with pytest.raises(KeyboardInterrupt):
        alice.forget(matching="walnut")
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.last_transaction()
    age(file)
    assert texts(alice) == ["green tea"]
    assert alice.traces("walnut") == []


def test_an_erasure_ends_if_a_document_is_replaced_again_and_again(tmp_path, files):
    alice = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    alice.upsert_preference("likes", "walnuts")
    alice.diary.engine.save_timeout = 0.1
    exchange, refused = files.exchange, []

    def gone(one, two):
        if one.endswith("-copy") and len(refused) < 100:
            refused.append(one)
            raise FileNotFoundError(errno.ENOENT, "gone", two)
        return exchange(one, two)

    files.exchange = gone
    with pytest.raises(BackendError, match="is opened next"):
        alice.forget(matching="walnut")
    files.exchange = exchange
    assert texts(alice) == []
    assert alice.traces("walnut") == []


@pytest.mark.parametrize("has_leases", [True, False])
def test_a_transaction_waits_for_a_stalled_save(alice, file, monkeypatch, has_leases):
    if not has_leases:  # then the file's age alone can tell
        monkeypatch.setattr(fcntl, "fcntl", refuse(errno.EINVAL))
    whole = edited(file)
    with Editor(file, os.O_WRONLY) as editor:
        timer = threading.Timer(0.2, lambda: (editor.write(whole), editor.close()))
        with alice.transaction() as tx:
            tx.upsert_preference("goals", "rest")
            os.truncate(file, 0)
            if has_leases:
                age(file)
            timer.start()
        timer.join()
    age(file)
    assert texts(alice) == ["tea", "decaf", "water", "juice"]
    assert texts(alice, "goals") == ["rest"]


def test_a_file_that_stays_open_counts_as_saved_after_a_minute(alice, file):
    cut = edited(file)
    with Editor(file) as editor:
        editor.write(cut[: cut.index("[preferences.likes.pref003]")])
        age(file, 50)
        assert texts(alice) == ["tea", "coffee", "water"]
        age(file, 20)
        assert texts(alice) == ["tea", "decaf"]
        alice.upsert_preference("goals", "rest")
    assert texts(alice) == ["tea", "decaf"]


def test_an_editor_that_moves_the_old_file_away_loses_nothing(alice, file):
    whole = edited(file)
    with Editor(file, OVER_A_BACKUP) as editor:
        agent = in_thread(lambda: alice.upsert_preference("goals", "rest"))
        editor.write("")  # the new file is there, and empty
        editor.write(whole)
        editor.close()
        agent.join()
    age(file)
    assert texts(alice) == ["tea", "decaf", "water", "juice"]
    assert texts(alice, "goals") == ["rest"]
    assert EMPTY not in results(alice)  # nothing was taken for deleted, not even for a moment


def test_a_save_over_a_removed_file_is_kept_whole(alice, file):
    whole = edited(file)
    alice.upsert_preference("goals", "run")
    file.unlink()
    age(file.parent)
    alice.upsert_preference(
        "goals", "rest", id="new"
    )  # a reader must take it for removed by a person
    assert texts(alice) == []
    file.write_text(whole)
    age(file)
    assert texts(alice) == ["tea", "decaf", "water", "juice"]
    assert texts(alice, "goals") == ["rest"]
    alice.upsert_preference("likes", "milk")
    assert texts(alice) == ["tea", "decaf", "water", "juice", "milk"]
    assert verify(alice.diary.engine.backend, "alice") is None


def test_write_fails_if_a_removed_file_may_come_back(alice, file):
    alice.diary.engine.save_timeout = 0.0
    file.unlink()

    def change(tx):
        tx.edit("preferences").put(("preferences", "likes", "new"), {"text": "new"})

    with pytest.raises(Conflict, match="still being written by another program"):
        alice.diary.engine.write("alice", change, Source("test"))
    assert len(results(alice)) == 3


def test_a_part_that_stays_open_delays_no_write_to_another_part(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.engine.part_size, diary.engine.save_timeout = 300, 0.0
    alice = diary.user("alice")
    for number in range(3):
        alice.upsert_preference("likes", f"thing {number} {'x' * 150}")
    file = tmp_path / "alice/preferences.toml"
    file.write_text(f"{file.read_text()}\n# a note\n")
    age(file)
    with Editor(file, os.O_WRONLY):
        assert alice.upsert_preference("likes", "tea")[0] == "pref004"
        with pytest.raises(Conflict):
            alice.upsert_preference("likes", "coffee", id="pref001")
    assert alice.upsert_preference("likes", "coffee", id="pref001")


# What the system is asked


def test_only_a_file_open_for_writing_is_being_saved(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    assert not is_being_saved(Environment(), str(file))
    with file.open() as _:
        assert not is_being_saved(Environment(), str(file))
    with Editor(file, os.O_WRONLY):
        assert is_being_saved(Environment(), str(file))
        age(file, 61)
        assert not is_being_saved(Environment(), str(file))
        age(file, -3600)
        assert not is_being_saved(Environment(), str(file))  # a date in the future says nothing
    age(file, 3600)
    assert not is_being_saved(Environment(), str(file))


def test_a_system_that_refuses_every_lease_is_not_trusted(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("x")

    monkeypatch.setattr(fcntl, "fcntl", refuse(errno.EAGAIN))
    assert not is_being_saved(Environment(), str(file))


def test_the_lease_check_survives_a_concurrent_open(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("x")
    real = fcntl.fcntl
    opened = []

    def late(descriptor, command, argument):
        if argument == fcntl.F_UNLCK:
            opened.append(threading.Thread(target=file.write_text, args=["y"]))
            opened[0].start()
            opened[0].join(0.2)
            assert opened[0].is_alive()  # it waits until the lease is given back
        return real(descriptor, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", late)
    assert not is_being_saved(Environment(), str(file))
    opened[0].join()
    assert file.read_text() == "y"
