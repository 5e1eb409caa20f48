"""An import of the package is fast, and loads no framework."""

from __future__ import annotations

import subprocess
import sys

FLOOR = """
import time
began = time.process_time()
import pydantic
class A(pydantic.BaseModel):
    x: int = 1
print(time.process_time() - began)
"""
OURS = """
import sys, time
began = time.process_time()
import tomldiary
print(time.process_time() - began)
from tomldiary import Diary
print(time.process_time() - began)
from tomldiary import *
print(*sys.modules)
"""


def test_importing_loads_no_framework_and_is_fast():
    def printed(source):
        line = [sys.executable, "-c", source]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()

    for _ in range(3):
        floor = float(printed(FLOOR)[0])
        package, diary, *loaded = printed(OURS)
        is_fast = float(package) < 1.5 * floor and float(diary) < 3 * floor
        if is_fast:
            break
    assert is_fast
    heavy = {
        "pydantic_ai",
        "langchain_core",
        "langgraph",
        "google",
        "grpc",
        "loguru",
        "opentelemetry",
        "psycopg",
        "redis",
        "rapidfuzz",
        "tomlkit",
        "typer",
    }
    assert not heavy & {name.partition(".")[0] for name in loaded}
    assert "importlib.metadata" not in loaded  # pydantic imports it with the first validator
