"""The files of the package that one operation passes through stay within limits."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The most files that each may pass through; lowered as paths get shorter, and raised only for a new ability:
# items in recall, stems of every language, recall's ranking for what an extractor is shown, and a look for what was forgotten,
# constraints of every kind in a put, what a run began with in a turn, and user ids that are refused when they are given.
LIMITS = {"put": 20, "turn": 39, "recall": 11}


@pytest.fixture(scope="module")
def files():
    command = [sys.executable, str(ROOT / "benchmarks/hops.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return {
        name: int(number)
        for name, number in re.findall(r"^(\w+) +(\d+) files", done.stdout, re.MULTILINE)
    }


@pytest.mark.parametrize("operation", LIMITS)
def test_an_operation_passes_through_few_files(files, operation):
    assert 0 < files[operation] <= LIMITS[operation]
