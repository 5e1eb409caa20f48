"""One write path: nothing lost between threads and processes, nothing half written, people's edits kept."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import signal
import threading
import tomllib
from io import FileIO
from pathlib import Path

import pytest

import programs
from capabilities import needs_exchange
from tomldiary import Constraint, Diary
from tomldiary.backends import LocalBackend
from tomldiary.engine.engine import Source
from tomldiary.errors import (
    BackendError,
    Conflict,
    HandEditConflict,
    InvalidTOML,
    LockTimeout,
    NewerVersion,
    RevisionConflict,
)
from tomldiary.history.record import parse_record
from tomldiary.history.timeline import Timeline, redo
from tomldiary.runtime import async_bridge as twins
from tomldiary.storage.files import FileSystem
from tomldiary.storage.local import log as records_module


def texts(folder, user="alice", category="likes"):
    diary = Diary(folder, agent="rules")
    return [item.text for item in diary.user(user).preferences(category).values()]


def records(folder):
    found = list(LocalBackend(folder).records("alice"))
    return [parse_record(text) for text in reversed(found)]


def test_threads_of_one_diary_lose_nothing(tmp_path):
    diary = Diary(tmp_path, agent="rules", durability="process", max_prefs_per_category=1000)
    gate = threading.Barrier(8)
    failed = []

    def work(name):
        gate.wait()
        try:
            for number in range(25):
                diary.user("alice").upsert_preference("likes", f"{name}-{number}")
        except BaseException as error:  # noqa: BLE001 - reported by the assertion below
            failed.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(set(texts(tmp_path))) == 200


def test_history_redone_gives_the_file_byte_for_byte(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    choose = random.Random(3)
    for number in range(60):
        known = [(c, k) for c, items in alice.preferences().items() for k in items]
        if known and choose.random() < 0.3:
            alice.forget_preference(*choose.choice(known))
        elif known and choose.random() < 0.5:
            category, key = choose.choice(known)
            alice.upsert_preference(category, f"changed {number}\nline two", id=key)
        else:
            category = choose.choice(["likes", "goals", "work"])
            alice.upsert_preference(category, f"thing {number}", contexts=["a", "b"])
    text = ""
    for record in records(tmp_path):
        text = redo(text, record, "preferences")
    assert text == (tmp_path / "alice/preferences.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("stop_before", ["append", "first rename", "second rename"])
def test_a_crash_at_any_step_leaves_the_old_or_the_new_state(tmp_path, files, stop_before):
    diary = Diary(LocalBackend(tmp_path, files=files), agent="rules")
    diary.user("alice").add_turn("I love tea.", "ok", session_id="s")
    before = {p: p.read_bytes() for p in tmp_path.glob("alice/*.toml")}

    class Crash(BaseException):
        pass

    left = 2 if stop_before == "second rename" else 1

    def crash(name, path, *_):
        nonlocal left
        is_append = name == "open" and "/history/" in path
        left -= is_append if stop_before == "append" else name in {"replace", "exchange"}
        if not left:
            raise Crash

    files.hook = crash
    with pytest.raises(Crash):
        diary.user("alice").add_turn("I love coffee.", "ok", session_id="s")
    after = Diary(tmp_path, agent="rules").user("alice")
    found = {item.text for item in after.preferences("likes").values()}
    turns = after.conversations()["s"].turns
    if stop_before == "append":
        assert {p: p.read_bytes() for p in tmp_path.glob("alice/*.toml")} == before
        assert (found, turns) == ({"I love tea."}, 1)
    else:
        assert (found, turns) == ({"I love tea.", "I love coffee."}, 2)
    assert not list(tmp_path.glob("alice/.staged*"))


def test_a_short_write_is_continued(tmp_path, files):
    files.hook = lambda name, _path, *args: args[0][:7] if name == "write" else None
    alice = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    alice.upsert_preference("likes", "x" * 500)
    assert texts(tmp_path) == ["x" * 500]


@needs_exchange
def test_full_durability_syncs_the_log_before_the_rename(tmp_path, files):
    diary = Diary(LocalBackend(tmp_path, files=files), agent="rules")
    diary.user("alice").upsert_preference("likes", "first")
    steps = []

    def spy(name, *_):
        if name in {"sync_file", "sync_data", "exchange"}:
            steps.append(name)

    files.hook = spy
    diary.user("alice").upsert_preference("likes", "second")
    assert steps == ["sync_data", "exchange"]
    steps.clear()
    backend = LocalBackend(tmp_path, durability="process", files=files)
    Diary(backend, agent="rules").user("alice").upsert_preference("likes", "third")
    assert steps == ["exchange"]


def test_a_torn_record_is_cut_and_the_next_one_follows_the_last_whole(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    for number in range(3):
        diary.user("alice").upsert_preference("likes", f"thing {number}")
    segment = next((tmp_path / "alice/history").iterdir())
    whole = segment.read_bytes().rstrip(b"\n") + b"\n"
    last = whole.rfind(b"[[tx]]\n")
    for cut in range(last, len(whole), 37):
        segment.write_bytes(whole[:cut])
        record, end = records_module.last_record(FileSystem(), segment)
        assert parse_record(record).seq == 2
        assert end == last
    flipped = bytearray(whole)
    flipped[-20] ^= 1
    segment.write_bytes(bytes(flipped))
    assert parse_record(records_module.last_record(FileSystem(), segment)[0]).seq == 2


def test_a_long_record_is_read_in_a_few_steps(tmp_path):
    """Each step searches all that was read: with steps of one size the time would grow with the square."""
    diary = Diary(tmp_path, agent="rules", durability="none")
    novel = {"text": "x" * 2_000_000}
    diary.engine.write(
        "alice", lambda tx: tx.edit("novel").put(("entries", "one"), novel), Source("test")
    )
    segment = next((tmp_path / "alice/history").iterdir())
    steps = []

    class File(FileIO):
        def read(self, size=-1, /):
            steps.append(size)
            return super().read(size)

    class Files(FileSystem):
        open_to_read = staticmethod(File)

    assert parse_record(records_module.last_record(Files(), segment)[0]).seq == 1
    assert 1 < len(steps) < 20
    steps.clear()
    assert len(list(records_module.read_records(Files(), segment.parent))) == 1
    assert 1 < len(steps) < 20


def test_text_that_resembles_a_record_is_no_record(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    text = 'x\n[[tx]]\ncheck = "00000000"\nseq = 99\n'
    diary.user("alice").upsert_preference("likes", text)
    Diary(tmp_path, agent="rules").user("alice").upsert_preference("likes", "next")
    assert [record.seq for record in records(tmp_path)] == [1, 2]


def test_history_is_toml_and_rolls_over_into_segments(tmp_path):
    diary, other = (
        Diary(LocalBackend(tmp_path, segment_bytes=3000), agent="rules") for _ in range(2)
    )
    for number in range(20):
        (diary, other)[number % 2].user("alice").upsert_preference("likes", f"thing {number}")
    segments = sorted((tmp_path / "alice/history").iterdir())
    assert len(segments) > 3
    found = [tx["seq"] for path in segments for tx in tomllib.loads(path.read_text())["tx"]]
    assert found == list(range(1, 21))


# People


def test_a_hand_edit_between_writes_is_kept_and_logged(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/preferences.toml"
    edited = file.read_text().replace('text = "tea"', 'text = "green tea"  # since May')
    file.write_text("# hello\n" + edited + '\n[preferences.likes.mine]\ntext = "by hand"\n')
    assert [item.text for item in alice.preferences("likes").values()] == ["green tea", "by hand"]
    alice.upsert_preference("likes", "coffee")
    text = file.read_text()
    assert text.startswith("# hello\n")
    assert '"green tea"  # since May\n' in text
    assert [r.actor for r in records(tmp_path)] == ["", "hand", ""]
    assert Timeline(LocalBackend(tmp_path), "alice").text("preferences") == text


def test_an_edit_saved_while_a_write_is_under_way_is_not_overwritten(tmp_path):
    file = tmp_path / "alice/preferences.toml"
    saves = []

    class Edited(LocalBackend):
        def commit(self, user, commit):
            if saves:
                file.write_text(file.read_text() + saves.pop())
            return super().commit(user, commit)

    alice = Diary(Edited(tmp_path), agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    saves.append("\n# a person's last words\n")
    alice.upsert_preference("likes", "coffee")
    assert "# a person's last words" in file.read_text()
    assert texts(tmp_path) == ["tea", "coffee"]


def test_continuous_hand_edits_cause_a_conflict_and_no_loss(tmp_path, files):
    diary = Diary(LocalBackend(tmp_path, files=files), agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/preferences.toml"

    def save(name, path, *_):
        if name == "stat" and path.endswith("/alice"):  # as a commit begins
            file.write_text(file.read_text() + "#\n")

    files.hook = save
    with pytest.raises(Conflict):
        alice.upsert_preference("likes", "coffee")
    assert texts(tmp_path) == ["tea"]


def test_a_change_of_equal_size_right_after_a_write_is_seen(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "aaa")
    file = tmp_path / "alice/preferences.toml"
    for old, new in [("aaa", "bbb"), ("bbb", "ccc"), ("ccc", "ddd")]:
        file.write_text(file.read_text().replace(f'"{old}"', f'"{new}"'))
        assert [item.text for item in alice.preferences("likes").values()] == [new]


def test_a_comment_on_every_second_line_survives_50_updates(tmp_path):
    folder = tmp_path / "alice"
    folder.mkdir()
    lines = ["[_meta]", 'version = "0.3"']
    for number in range(1, 101):
        lines += ["", f"# why {number}", f"[preferences.likes.pref{number:03d}]  # header {number}"]
        lines += [f'text = "thing {number}"', f"# between {number}", "_count = 1  # counter"]
    (folder / "preferences.toml").write_text("\n".join(lines) + "\n")
    before = [line for line in lines if "#" in line]
    diary = Diary(
        LocalBackend(tmp_path, durability="process"), agent="rules", max_prefs_per_category=200
    )
    alice = diary.user("alice")
    choose = random.Random(5)
    for step in range(50):
        key = f"pref{choose.randint(1, 100):03d}"
        alice.upsert_preference("likes", f"changed {step}" if step % 3 else None, id=key)
    after = (folder / "preferences.toml").read_text().splitlines()
    kept = [line for line in after if "#" in line]
    assert [line.partition("#")[2] for line in kept] == [line.partition("#")[2] for line in before]
    assert [line for line in kept if "counter" not in line] == [
        line for line in before if "counter" not in line
    ]


def test_a_turn_that_changes_no_preference_leaves_the_file_byte_for_byte(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.add_turn("I love tea.", "ok", session_id="s")
    file = tmp_path / "alice/preferences.toml"
    before, status = file.read_bytes(), file.stat()
    alice.add_turn("What time is it?", "Noon.", session_id="s")
    assert file.read_bytes() == before
    assert file.stat().st_mtime_ns == status.st_mtime_ns
    assert alice.conversations()["s"].turns == 2


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("[preferences.likes\n", InvalidTOML, r"preferences\.toml:1:\d+: "),
        ('[_meta]\nversion = "9.9"\n', NewerVersion, "'9.9'"),
        ('[_meta]\nversion = "0.3.1"\n', NewerVersion, r"'0\.3\.1'"),
        (f'[_meta]\nversion = "{"9" * 5000}"\n', NewerVersion, "format version '9+'"),
        ("x = " + "[" * 500, InvalidTOML, r"preferences\.toml"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_and_never_overwritten(tmp_path, text, error, says):
    (tmp_path / "alice").mkdir()
    file = tmp_path / "alice/preferences.toml"
    file.write_text(text)
    alice = Diary(tmp_path, agent="rules").user("alice")
    for attempt in (
        alice.preferences,
        lambda: alice.upsert_preference("likes", "x"),
        lambda: alice.add_turn("I love tea.", "ok", session_id="s"),
    ):
        with pytest.raises((error, InvalidTOML) if "[[" not in text else Exception, match=says):
            attempt()
    assert file.read_text() == text
    assert not (tmp_path / "alice/conversations.toml").exists()


def test_a_broken_file_of_one_user_affects_no_other(tmp_path):
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice/preferences.toml").write_text("broken")
    diary = Diary(tmp_path, agent="rules")
    diary.user("bob").upsert_preference("likes", "tea")
    assert len(diary.user("bob").preferences("likes")) == 1


def test_a_byte_that_is_not_utf8_is_named_with_its_place(tmp_path):
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice/preferences.toml").write_bytes(b'# ok\ntext = "caf\xe9"\n')
    with pytest.raises(InvalidTOML, match=r"preferences\.toml:2:12: the byte 0xe9"):
        Diary(tmp_path, agent="rules").user("alice").preferences()


# Files and folders


def test_files_and_folders_are_private_for_any_umask(tmp_path):
    old = os.umask(0)
    try:
        Diary(tmp_path / "m", agent="rules").user("alice").add_turn("I love tea.", "ok", "s")
    finally:
        os.umask(old)
    for path in [tmp_path / "m", *(tmp_path / "m").rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_links_are_neither_read_nor_written_through(tmp_path):
    outside = tmp_path / "outside.toml"
    outside.write_text('[preferences.likes.pref001]\ntext = "secret"\n')
    root = tmp_path / "m"
    (root / "alice").mkdir(parents=True)
    (root / "alice/preferences.toml").symlink_to(outside)
    alice = Diary(root, agent="rules").user("alice")
    with pytest.raises(BackendError, match="link"):
        alice.preferences()
    with pytest.raises(BackendError):
        alice.upsert_preference("likes", "x")
    assert "secret" in outside.read_text()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_gives_one_clear_error(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.user("alice").upsert_preference("likes", "tea")
    (tmp_path / "alice").chmod(0o500)
    with pytest.raises(BackendError, match="cannot be written"):
        diary.user("alice").upsert_preference("likes", "coffee")
    (tmp_path / "alice").chmod(0o700)
    assert texts(tmp_path) == ["tea"]


def test_a_file_where_the_folder_should_be_gives_one_clear_error(tmp_path):
    diary = Diary(tmp_path / "m", agent="rules")
    (tmp_path / "m").write_text("not a folder")
    with pytest.raises(BackendError, match=r"a parent folder is a file\. Move that file away"):
        diary.user("alice").upsert_preference("likes", "tea")


def test_a_file_in_place_of_a_user_s_folder_gives_one_clear_error(tmp_path):
    (tmp_path / "alice").write_text("not a folder")
    alice = Diary(tmp_path, agent="rules").user("alice")
    for call in (alice.preferences, lambda: alice.upsert_preference("likes", "tea")):
        with pytest.raises(BackendError, match=r"a parent folder is a file\. Move that file away"):
            call()


def test_a_lock_held_too_long_is_a_timeout(tmp_path):
    diary = Diary(tmp_path, agent="rules", lock_timeout=0.05)
    with (
        diary.engine.backend.lock("alice", 1),
        pytest.raises(LockTimeout, match="locked by another"),
    ):
        diary.user("alice").upsert_preference("likes", "tea")
    code = (
        "import sys; from tomldiary.backends import LocalBackend\n"
        f"with LocalBackend({str(tmp_path)!r}).lock('alice', 1):\n"
        "    print('held', flush=True); sys.stdin.readline()"
    )
    holder = programs.start("-c", code)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(LockTimeout):
        diary.user("alice").upsert_preference("likes", "tea")
    holder.kill()
    holder.communicate()
    diary.user("alice").upsert_preference("likes", "tea")  # the dead holder's lock is free at once


def test_a_process_with_long_transactions_lets_others_in_between(tmp_path):
    code = (
        "import sys, time; from tomldiary.backends import LocalBackend\n"
        "backend = LocalBackend(sys.argv[1])\n"
        "while True:\n"
        "    with backend.lock('alice', 60):\n"
        "        print('held', flush=True); time.sleep(0.15)  # as if an editor were saving\n"
    )
    holder = programs.start("-c", code, tmp_path)
    try:
        assert holder.stdout.readline() == "held\n"
        alice = Diary(tmp_path, agent="rules", lock_timeout=3).user("alice")
        for number in range(4):
            alice.upsert_preference("likes", f"thing {number}")
    finally:
        holder.kill()
        holder.communicate()


def test_a_forked_child_takes_locks_of_its_own(tmp_path):
    diary = Diary(tmp_path, agent="rules", durability="process")
    diary.user("alice").upsert_preference("likes", "before")
    with diary.engine.backend.lock("alice", 1):
        script = (
            "from tomldiary import Diary; from tomldiary.errors import LockTimeout\n"
            f"d = Diary({str(tmp_path)!r}, agent='rules', lock_timeout=0.05)\n"
            "try:\n    d.user('alice').upsert_preference('likes', 'x')\nexcept LockTimeout:\n    print('waited')"
        )
        done = programs.run("-c", script, check=True)
        assert done.stdout == "waited\n"
        child = os.fork()
        if child == 0:
            diary.engine.lock_timeout = 0.05
            code = 1
            with contextlib.suppress(LockTimeout):
                try:
                    diary.user("alice").upsert_preference("likes", "child")
                except LockTimeout:
                    code = 0
                    raise
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert texts(tmp_path) == ["before"]


def test_readers_take_no_lock(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.user("alice").upsert_preference("likes", "tea")
    with diary.engine.backend.lock("alice", 1):
        assert texts_of(diary) == ["tea"]


def texts_of(diary):
    return [item.text for item in diary.user("alice").preferences("likes").values()]


def test_contexts_can_be_any_iterable(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    given = (word for word in ("a", "b"))
    assert alice.upsert_preference("likes", "tea", contexts=given)[1].contexts == ["a", "b"]


def test_returned_values_are_copies(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    key, item = alice.upsert_preference("likes", "tea", contexts=["a"])
    item.text = "changed"
    item.contexts.append("b")
    fields = alice.entry("preferences", f"likes/{key}")
    fields["text"] = "changed"
    assert alice.preferences("likes")[key].text == "tea"
    assert alice.preferences("likes")[key].contexts == ["a"]


def test_a_transaction_without_effect_writes_nothing(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.engine.write("alice", lambda tx: tx.edit("preferences"), Source("none"))
    assert not (tmp_path / "alice").exists()


def test_reading_an_unknown_user_creates_nothing(tmp_path):
    diary = Diary(tmp_path / "m", agent="rules")
    assert diary.user("ghost").preferences("likes") == {}
    assert diary.user("ghost").recall("tea") == []
    assert diary.user("ghost").render() == ""
    assert not Path(tmp_path / "m").exists()
    assert diary.users() == []


def test_a_fork_during_a_locked_section_leaves_the_child_working(tmp_path):
    diary = Diary(tmp_path, agent="rules", durability="process")
    alice = diary.user("alice")
    alice.add_turn("I love tea.", "ok", "s")
    held, go_on = threading.Event(), threading.Event()

    def hold():
        indexes = (diary.engine.logged, diary.indexes)
        with contextlib.ExitStack() as stack:
            stack.enter_context(twins._loops_guard)
            for owner in (diary.engine, *indexes):
                stack.enter_context(owner._guard)
            held.set()
            go_on.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that hangs is killed, and counted as failed
        code = 1
        with contextlib.suppress(BaseException):
            alice.add_turn("I love coffee.", "ok", "s")
            code = 0 if alice.recall("coffee") else 2
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    go_on.set()
    thread.join()
    assert code == 0
    assert len(texts(tmp_path)) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_an_unreadable_folder_hides_only_its_user_without_permission(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    for user in ("alice", "bob"):
        diary.user(user).upsert_preference("likes", "tea")
    (tmp_path / "alice").chmod(0)
    try:
        assert Diary(tmp_path, agent="rules").users() == ["bob"]
    finally:
        (tmp_path / "alice").chmod(0o700)


@pytest.mark.parametrize("owner_text", ["torn = ", r'user_id = "\\x"'])
def test_an_unreadable_folder_hides_only_its_own_user(tmp_path, files, caplog, owner_text):
    diary = Diary(tmp_path, agent="rules")
    for user in ("alice", "bob", "x" * 300):
        diary.user(user).upsert_preference("likes", "tea")
    (owner,) = tmp_path.glob("~*/owner.toml")
    owner.write_text(owner_text)

    def refusing(_name, path, *_):
        if "/alice/" in f"{path}/":
            raise PermissionError(errno.EACCES, "Permission denied", path)

    files.hook = refusing
    assert Diary(LocalBackend(tmp_path, files=files), agent="rules").users() == ["bob"]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert any("alice" in message for message in told)
    assert any("owner.toml" in message for message in told)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only Linux lists open files")
def test_dropped_diaries_leave_no_file_open(tmp_path):
    def names():
        return [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]

    for number in range(5):
        alice = Diary(tmp_path / str(number), agent="rules", durability="process").user("alice")
        alice.upsert_preference("likes", "tea")
    assert sum(str(tmp_path) in name for name in names()) >= 1  # the one that is still there
    del alice
    gc.collect()
    assert [name for name in names() if str(tmp_path) in name] == []


@pytest.mark.parametrize("where", ["change", "check"])
def test_a_repeated_write_that_is_overtaken_keeps_its_lock(where):
    """Otherwise a slow write begins anew each time that another process is faster."""
    diary = Diary("memory:", agent="rules")
    engine = diary.engine
    backend, locks, calls = engine.backend, [], []
    commit, lock = backend.commit, backend.lock

    def overtaken(*_):
        calls.append(1)
        if len(calls) == 2:
            raise RevisionConflict.of("alice")

    def refuse_first(*arguments):
        if len(calls) == 1:
            raise HandEditConflict.changed("preferences.toml")
        return commit(*arguments)

    def change(transaction):
        transaction.edit("blocks").put(("blocks", "note"), {"text": "tea"})
        if where == "change":
            overtaken()

    def counted(*arguments):
        locks.append(1)
        return lock(*arguments)

    backend.commit, backend.lock = refuse_first, counted
    if where == "check":
        diary.constrain("blocks", Constraint(limit=9))
        engine.rules.apply = overtaken
    engine.write("alice", change, Source("set"))
    assert (len(calls), len(locks)) == (3, 1)
