"""The store for pydantic-ai-harness, under the real one: it pins the framework, so it has an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai")

from tomldiary.errors import MissingExtra
from tomldiary_pydantic_ai import TomlMemoryStore

ROOT = Path(__file__).parents[3]
HARNESS = os.environ.get("TOMLDIARY_HARNESS_PYTHON")


@pytest.mark.skipif(HARNESS is None, reason="$TOMLDIARY_HARNESS_PYTHON names no interpreter")
def test_the_store_passes_the_tests_of_the_harness():
    done = subprocess.run(
        [
            str(HARNESS),
            "-m",
            "pytest",
            "-o",
            "addopts=",
            str(ROOT / "tests/support" / "harness_memory.py"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'integrations'}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    assert "skipped" not in done.stdout


def test_a_missing_harness_names_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "pydantic_ai_harness", None)
    monkeypatch.setitem(sys.modules, "pydantic_ai_harness.memory", None)
    with pytest.raises(MissingExtra, match="python -m pip install pydantic-ai-harness"):
        TomlMemoryStore(tmp_path)
