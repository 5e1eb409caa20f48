"""A type checker infers the context and deps of an agent with a diary, and finds each wrong use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai")
pytest.importorskip("pyright")

TYPED = Path(__file__).parents[1] / "typed"


def test_types_are_inferred_and_every_wrong_use_is_found():
    # Each wrong line carries an exception that would be reported if the line were right.
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *TYPED.glob("*.py")],
        cwd=TYPED.parents[1],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "0 errors, 0 warnings" in done.stdout, done.stdout
    assert (TYPED / "pydantic_ai_deps.py").read_text("utf-8").count("pyright: ignore") == 8


def test_mypy_tells_preferences_of_a_category_from_all_of_them(tmp_path):
    pytest.importorskip("mypy")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"),
            *("--cache-dir", tmp_path, TYPED / "preferences_by_category.py"),
        ],
        cwd=TYPED.parents[1],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "no issues found" in done.stdout, done.stdout
