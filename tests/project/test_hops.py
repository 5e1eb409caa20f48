"""The files of the package that one operation passes through stay within limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import programs

ROOT = Path(__file__).parents[2]
# The most files that each may pass through; lowered as paths get shorter, and raised only for a new ability.
LIMITS = {"put": 20, "turn": 35, "recall": 8}


@pytest.fixture(scope="module")
def files():
    done = programs.run(ROOT / "benchmarks/hops.py", "--files", cwd=ROOT, check=True)
    parts = re.findall(r"^(\w+) .*\n((?: .*\n)+)", done.stdout, re.MULTILINE)
    return {name: names.split() for name, names in parts}


@pytest.mark.parametrize("operation", LIMITS)
def test_an_operation_passes_through_few_files(files, operation):
    called = ", ".join(files[operation])
    assert 0 < len(files[operation]) <= LIMITS[operation], f"call fewer files; these are: {called}"
