"""No test can break the process that runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import programs
from capabilities import needs_fork

FORKS = """
import os

import pytest


@pytest.mark.parametrize("how", ["returns", "fails", "exits"])
def test_forks(how):
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 70
    elif how == "fails":
        raise ValueError("in the child")
    elif how == "exits":
        raise SystemExit(0)
"""


@needs_fork
def test_a_forked_child_never_reports_as_its_runner(tmp_path):
    tests = Path(__file__).parents[1]
    shutil.copy(tests / "conftest.py", tmp_path)
    (tmp_path / "test_forks.py").write_text(FORKS)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {tests / 'support'}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n1", "-p", "no:cacheprovider", "-W", "ignore", "test_forks.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@needs_fork
def test_a_program_has_its_own_surroundings_and_ends_as_python_does(tmp_path):
    code = """
import atexit, os, sys, threading
atexit.register(print, "at exit")
threading.Timer(0.05, print, ["a thread"]).start()
print(os.getcwd(), os.environ["WHO"], *sys.argv[1:])
sys.exit(3)
"""
    done = programs.run("-c", code, "x", cwd=tmp_path, env={"WHO": "alice"})
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == f"{tmp_path} alice x\na thread\nat exit\n"
    left = "import os\nfile = open(os.devnull)\nfile.me = [file]"
    assert "unclosed file" in programs.run("-W", "always::ResourceWarning", "-c", left).stderr


DAEMON = """
import threading
def works():
    while True:
        len("tea")
threading.Thread(target=works, daemon=True).start()
"""


@needs_fork
def test_a_daemon_thread_of_a_program_sees_no_cleared_module():
    for _ in range(3):
        assert programs.run("-c", DAEMON, check=True).stderr == ""


KILLS_ANOTHER = """
import os, signal, sys
found = os.waitpid
def waitpid(*arguments):
    os.waitpid = found
    child, code = found(*arguments)
    for other in vars(sys.modules["__main__"])["running"].keys() - {child}:
        os.kill(other, signal.SIGTERM)
        os.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT)
    return child, code
os.waitpid = waitpid
"""


@needs_fork
def test_a_program_may_end_while_the_end_of_another_is_reported(tmp_path, monkeypatch):
    (tmp_path / "kills_another.py").write_text(KILLS_ANOTHER)
    monkeypatch.syspath_prepend(tmp_path)
    wait = ("-c", "print('ready', flush=True); input()")
    started = [programs.start(*wait, imported=("kills_another",)) for _ in range(2)]
    assert [each.stdout.readline() for each in started] == ["ready\n"] * 2
    started[0].kill()
    for each in started:
        each.communicate()
    assert [each.returncode for each in started] == [-9, -15]


@needs_fork
def test_a_program_is_really_killed():
    program = programs.start("-c", "print('ready', flush=True); input()")
    assert program.stdout.readline() == "ready\n"
    program.kill()
    assert program.communicate() == ""
    assert program.returncode == -9
    with pytest.raises(ProcessLookupError):
        os.kill(program.pid, 0)


@needs_fork
def test_a_program_that_never_ends_is_killed():
    program = programs.start("-c", "import time\nwhile True: time.sleep(1)")
    assert program.communicate(timeout=0.5) == ""
    assert program.returncode == -9
