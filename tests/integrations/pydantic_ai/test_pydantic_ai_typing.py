"""A type checker infers the deps of an agent with a diary, and finds what is wrong with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai")
pytest.importorskip("pyright")

TYPED = Path(__file__).parents[2] / "typed" / "pydantic_ai_deps.py"


def test_deps_are_inferred_and_every_wrong_use_is_found():
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
    assert TYPED.read_text("utf-8").count("pyright: ignore") == 8
