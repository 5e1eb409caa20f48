"""A type checker keeps the context of an agent with a diary, and finds tools that do not exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyright")

TYPED = Path(__file__).parents[2] / "typed" / "langchain_context.py"


def test_the_context_is_kept_and_every_wrong_use_is_found():
    # Each wrong line carries an exception that would be reported if the line were right.
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(TYPED)],
        cwd=TYPED.parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "0 errors, 0 warnings" in done.stdout, done.stdout
