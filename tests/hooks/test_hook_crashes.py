"""Killed processes: after a restart an outside index has exactly what the memory has."""

from __future__ import annotations

import importlib.util
import random
import signal
import time
from pathlib import Path

import pytest

import programs
from hooked_writer import open_index
from tomldiary import Diary

WRITER = Path(__file__).parents[1] / "support/hooked_writer.py"
HAS_CHROMA = importlib.util.find_spec("chromadb") is not None

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="a system without SIGKILL")


def killed_runs(tmp_path, kind, runs, mode):
    """Kill a writer several times at random, and return the drift after each restart."""
    folder, path = tmp_path / "memories", str(tmp_path / "index")
    choose, drifts = random.Random(11), []
    for run in range(runs):
        process = programs.start(WRITER, folder, path, kind, run, mode)
        assert process.stdout.readline() == "ready\n"
        time.sleep(choose.uniform(0.05, 0.5))
        process.kill()
        process.communicate()
        with open_index(kind, path) as index, Diary(folder, agent="rules") as diary:
            diary.hooks.add(index, name="index", poll=0.2)
            assert diary.hooks.flush(60)
            drifts.append(diary.hooks.reconcile("index").drift)
            assert index.users() <= {*diary.users()}
    return drifts, diary


@pytest.mark.parametrize("mode", ["background", "strict"])
def test_an_index_has_no_drift_after_its_process_was_killed(tmp_path, mode):
    drifts, diary = killed_runs(tmp_path, "file", 3, mode)
    assert drifts == [0] * 3
    assert diary.users()


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
@pytest.mark.parametrize("mode", ["background", "strict"])
@pytest.mark.parametrize(
    "kind",
    [
        "file",
        pytest.param("chroma", marks=pytest.mark.skipif(not HAS_CHROMA, reason="no chromadb")),
    ],
)
def test_thirty_killed_processes_leave_no_drift(tmp_path, kind, mode):
    drifts, _ = killed_runs(tmp_path, kind, 30, mode)
    assert drifts == [0] * 30
