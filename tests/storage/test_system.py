"""What the system offers is looked up: without POSIX functions, on macOS, and where capabilities are off."""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

import tomldiary
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.storage.files import FileSystem, offers

BARE = """
import os, sys
import asyncio, concurrent.futures, importlib, logging, multiprocessing, pkgutil, signal, sqlite3, subprocess, tempfile
import sysconfig, zoneinfo
import filelock, pydantic, rapidfuzz, tomlkit
sysconfig.get_config_vars()  # reads a file that is named by the platform
try:
    import typer
except ImportError:
    typer = None
for name in '''O_CLOEXEC O_NOFOLLOW O_NONBLOCK O_DIRECTORY fchmod pread pwrite preadv pwritev writev geteuid getuid getegid
        getgid fdatasync register_at_fork fork statvfs fstatvfs fchown chown mkfifo killpg uname'''.split():
    if hasattr(os, name):
        delattr(os, name)
for name in "SIGKILL SIGURG SIGUSR1 SIGHUP".split():
    if hasattr(signal, name):
        delattr(signal, name)
for name in "fcntl resource pwd grp termios".split():
    sys.modules[name] = None
sys.platform = "elsewhere"
"""
EVERYTHING = """
import tomldiary
for found in pkgutil.walk_packages(tomldiary.__path__, "tomldiary."):
    is_cli = found.name.startswith("tomldiary.cli.")
    if not (found.name.endswith("__main__") or found.name.startswith("tomldiary.testing.") or is_cli and typer is None):
        importlib.import_module(found.name)
"""
USED = """
from tomldiary import Diary, MemoryWriter, Turn
for place in sys.argv[1:]:
    diary = Diary(place, agent="rules")
    alice = diary.user("alice")
    alice.add_turn("I love green tea.", "Noted.", session_id="s")
    with MemoryWriter(diary) as writer:
        writer.submit_nowait(Turn("alice", "s", "I love coffee.", "Noted."))
    assert [hit.text for hit in alice.recall("coffee")] == ["I love coffee."]
    again = diary if place == "memory:" else Diary(place)
    print(sorted(item.text for item in again.user("alice").preferences("likes").values()))
"""


def without_posix(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", BARE + code, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_memory_a_folder_and_all_modules_work_without_posix_functions(tmp_path):
    told = without_posix(USED + EVERYTHING, str(tmp_path), "memory:")
    assert told == "['I love coffee.', 'I love green tea.']\n" * 2


def test_the_cause_of_a_failed_import_is_named():
    code = """
import sys, types
import tomldiary
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "tomldiary.diary":
            raise AttributeError("module 'os' has no attribute 'O_NEW'")
sys.meta_path.insert(0, Broken())
try:
    from tomldiary import Diary
except ImportError as error:
    print(error)
    print(type(error.__cause__).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    message, cause = done.stdout.splitlines()
    assert "tomldiary.diary cannot be loaded: module 'os' has no attribute 'O_NEW'" in message
    assert cause == "AttributeError"


def test_a_name_that_is_not_there_is_still_an_attribute_error():
    assert not hasattr(tomldiary, "nothing")


def test_without_modes_a_file_is_not_made_private(monkeypatch):
    monkeypatch.delattr(os, "fchmod")
    FileSystem.set_mode(-1, 0o600)


# Capabilities


@pytest.fixture
def fresh(monkeypatch):
    """Import the file operations anew, as nothing of the real system may be remembered."""
    monkeypatch.delitem(sys.modules, "tomldiary.storage.files")
    return importlib.import_module("tomldiary.storage.files").FileSystem


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32", "freebsd14"])
def test_capabilities_are_offered_where_they_exist(platform, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.delenv("TOMLDIARY_WITHOUT", raising=False)
    assert offers("exchange") == (platform in {"linux", "darwin"})
    assert offers("leases") == (platform == "linux")


def test_capabilities_can_be_switched_off_one_by_one(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("TOMLDIARY_WITHOUT", "exchange")
    assert not offers("exchange")
    assert offers("leases")
    assert not FileSystem().has_exchange
    assert FileSystem().has_leases


# macOS, with a library of the same calls in place of its own


class Exchange:
    """Exchanges files as `renamex_np` does, by three renames; `code` is the error it has instead."""

    def __init__(self):
        self.calls, self.code, self.before = [], 0, lambda _target: None

    def __call__(self, one, two, flags):
        self.calls.append((one, two, flags))
        self.before(two)
        if self.code:
            ctypes.set_errno(self.code)
            return -1
        first, second, aside = Path(os.fsdecode(one)), Path(os.fsdecode(two)), self.path / "aside"
        first.rename(aside)
        second.rename(first)
        aside.rename(second)
        return 0


SYNCED = {
    "a new file": (lambda files, top: files.write_new(f"{top}/a", b"x", sync=True), ["a"]),
    "a replaced file": (
        lambda files, top: files.write_over(top / "a", b"x", sync=True),
        [".a.tmp", "."],
    ),
    "a removed file": (lambda files, top: files.write_over(top / "a", None, sync=True), ["."]),
    "new folders": (lambda files, top: files.make_folder(top / "a/b", sync=True), [".", "a"]),
    "names": (lambda files, top: files.sync_folder(top), ["."]),
}


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS syncs with F_FULLFSYNC")
@pytest.mark.parametrize("name", SYNCED)
def test_what_is_synced_is_on_the_disk_with_its_name(tmp_path, files, monkeypatch, name):
    work, wanted = SYNCED[name]
    synced, real = [], []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: real.append(sync(descriptor)))

    def note(operation, path, *_):
        if operation == "sync_file":
            synced.append(os.path.relpath(path, tmp_path))

    files.hook = note
    work(files, tmp_path)
    assert synced == wanted
    assert len(real) == len(wanted)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS syncs with F_FULLFSYNC")
def test_data_is_synced_with_the_call_of_the_system(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(os, "fdatasync", called.append, raising=False)
    with (tmp_path / "a").open("wb") as file:
        FileSystem.sync_data(file.fileno())
        assert called == [file.fileno()]


@pytest.fixture
def mac(monkeypatch, fresh, tmp_path):
    call = Exchange()
    call.path = tmp_path
    call.exchange = fresh.exchange
    library = types.SimpleNamespace(renamex_np=call)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name, use_errno: library)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delenv("TOMLDIARY_WITHOUT", raising=False)
    return call


def test_macos_exchanges_files_with_renamex_np(tmp_path, mac):
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    (tmp_path / "one").write_text("1")
    (tmp_path / "two").write_text("2")
    assert mac.exchange(one, two)
    assert mac.calls == [(os.fsencode(one), os.fsencode(two), 2)]
    assert mac.argtypes == [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint]
    assert ((tmp_path / "one").read_text(), (tmp_path / "two").read_text()) == ("2", "1")


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EINVAL])
def test_a_mac_file_system_that_cannot_exchange_is_no_error(tmp_path, mac, code):
    mac.code = code
    assert not mac.exchange(str(tmp_path / "one"), str(tmp_path / "two"))


def test_a_failed_exchange_on_macos_says_why(tmp_path, mac):
    mac.code = errno.EIO
    with pytest.raises(OSError, match="two") as caught:
        mac.exchange(str(tmp_path / "one"), str(tmp_path / "two"))
    assert caught.value.errno == errno.EIO


def test_a_save_displaced_on_macos_is_kept(tmp_path, mac):
    files = FileSystem()
    files.exchange = mac.exchange
    assert not files.has_leases
    alice = Diary(LocalBackend(tmp_path, durability="process", files=files)).user("alice")
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/preferences.toml"
    saves = []

    def save(target):
        if not saves and target.endswith(b"preferences.toml"):
            saves.append(file.write_text(file.read_text().replace('"tea"', '"green tea"')))

    mac.before = save
    alice.upsert_preference("likes", "coffee")
    assert saves
    assert [item.text for item in alice.preferences("likes").values()] == ["green tea", "coffee"]


def fake_fcntl(monkeypatch, outcome):
    asked = []

    def fcntl(descriptor, command):
        asked.append(command)
        if outcome:
            raise OSError(outcome, os.strerror(outcome))

    monkeypatch.setitem(sys.modules, "fcntl", types.SimpleNamespace(F_FULLFSYNC=51, fcntl=fcntl))
    monkeypatch.setattr(sys, "platform", "darwin")
    return asked


@pytest.mark.parametrize("sync", [FileSystem.sync_file, FileSystem.sync_data])
@pytest.mark.parametrize("outcome", [0, errno.ENOTSUP])
def test_macos_syncs_past_the_cache_of_the_disk(monkeypatch, sync, outcome):
    asked = fake_fcntl(monkeypatch, outcome)
    plain = []
    monkeypatch.setattr(os, "fsync", plain.append)
    monkeypatch.setattr(os, "fdatasync", plain.append, raising=False)
    sync(7)
    assert asked == [51]
    assert plain == ([7] if outcome else [])


def test_a_disk_that_fails_on_macos_is_not_asked_again(monkeypatch):
    fake_fcntl(monkeypatch, errno.EIO)
    plain = []
    monkeypatch.setattr(os, "fsync", plain.append)
    with pytest.raises(OSError, match="Input/output"):
        FileSystem.sync_file(7)
    assert plain == []


# Another distribution that owns the package


@pytest.fixture
def shared(tmp_path):
    """A folder of installed packages that has TOMLDiary 0.9 as well; returns how to run Python there."""
    site = tmp_path / "site"
    site.mkdir()
    package = Path(tomldiary.__file__).parent
    # With what is compiled, but for the files that another process writes at this moment.
    shutil.copytree(package, site / "tomldiary", ignore=shutil.ignore_patterns("*.pyc.*"))
    (site / "tomldiary_kit-0.1.0.dist-info").mkdir()

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": str(site)},
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip

    run.site = site
    return run


def test_python_without_docstrings_is_noticed_at_import(shared):
    told = shared("-OO", "-c", "import tomldiary").stderr
    assert "RuntimeWarning: `python -OO` (PYTHONOPTIMIZE=2) removes the docstrings" in told


def test_another_owner_of_the_package_is_noticed_at_import(shared):
    assert shared("-c", "import tomldiary").stderr == ""
    (shared.site / "tomldiary-0.9.0.dist-info").mkdir()
    told = shared("-c", "import tomldiary").stderr
    assert "RuntimeWarning: tomldiary 0.9.0 is installed beside tomldiary-kit" in told
    assert "python -m pip uninstall tomldiary" in told


def test_doctor_names_another_owner_of_the_package(shared, tmp_path):
    Diary(tmp_path / "m").user("alice").upsert_preference("likes", "tea")
    (shared.site / "tomldiary-0.9.0.dist-info").mkdir()
    code = "from tomldiary.doctor.doctor import check; found = check('m')[0]; print(found.level, found.place, found.message, found.remedy)"
    shown = shared("-W", "ignore", "-c", code).stdout
    named = "problem the package tomldiary tomldiary 0.9.0 and tomldiary-kit are both installed"
    assert shown.startswith(named)
    assert "python -m pip uninstall tomldiary" in shown
