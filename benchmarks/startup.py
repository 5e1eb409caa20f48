"""Measure the CPU time of `tomldiary show` and of its parts.

Usage: python benchmarks/startup.py [RUNS]

Prints the minimum of several runs in milliseconds of CPU time (user and system). Each run is a new process.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

from tomldiary import Diary

EMPTY = """
import typer, rich
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
@app.command()
def show(name: str = "", *, raw: bool = False) -> None: ...
app()
"""
LINES = {
    "python": ["-c", "pass"],
    "import typer, rich": ["-c", "import typer, rich"],
    "import pydantic": ["-c", "from pydantic import BaseModel"],
    "an empty command of typer": ["-c", EMPTY],
    "import tomldiary": ["-c", "from tomldiary import Diary"],
    "show": ["-m", "tomldiary", "show"],
    "show alice": ["-m", "tomldiary", "show", "alice"],
    "search": ["-m", "tomldiary", "search", "tea", "--user", "alice"],
}


def cpu_of(line: list[str], folder: str) -> float:
    """Return the CPU seconds of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *line],
        env={**os.environ, "TOMLDIARY_PATH": folder},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print one line for each program."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        Diary(folder, agent="rules").user("alice").upsert_preference("likes", "tea")
        for name, line in LINES.items():
            best = min(cpu_of(line, folder) for _ in range(runs))
            print(f"{name:<26} {best * 1000:6.0f} ms")


if __name__ == "__main__":
    main()
