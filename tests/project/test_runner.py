"""No test can break the process that runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

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
        [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n2", "-p", "no:cacheprovider", "-W", "ignore", "test_forks.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
