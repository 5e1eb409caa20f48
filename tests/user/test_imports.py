"""An import of the package is fast, and loads no framework."""

from __future__ import annotations

import subprocess
import sys


def test_importing_loads_no_framework_and_is_fast():
    measure = "import time; t = time.process_time(); {}; print(time.process_time() - t)"
    own = measure.format("import tomldiary")
    floor = measure.format("import pydantic; exec('class A(pydantic.BaseModel):\\n    x: int = 1')")

    def time_of(source):
        line = [sys.executable, "-c", source]
        return float(subprocess.run(line, capture_output=True, text=True, check=True).stdout)

    def is_fast(source, limit):
        return any(time_of(source) < limit * time_of(floor) for _ in range(3))

    assert is_fast(own, 1.5)
    assert is_fast(measure.format("from tomldiary import Diary"), 3)
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys; from tomldiary import *; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    heavy = {
        "pydantic_ai",
        "langchain_core",
        "langgraph",
        "google",
        "loguru",
        "rapidfuzz",
        "tomlkit",
        "typer",
    }
    assert not heavy & {name.partition(".")[0] for name in loaded}
