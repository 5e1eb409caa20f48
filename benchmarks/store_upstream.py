"""Run LangGraph's own tests of its stores on a diary, with unmodified test files.

Downloads the source distributions from PyPI, replaces the stores that their tests open with `DiaryStore`, and
runs the tests. Prints the numbers of passed and failed tests by group. The exit code is 1 if fewer than 324 pass,
or if a test fails or is skipped that `docs/langgraph-store.md` does not list.

Requires: pip install -e '.[langgraph]' numpy pytest pytest-asyncio pytest-mock langgraph-checkpoint-sqlite
langgraph-checkpoint-postgres 'psycopg[binary]'. No PostgreSQL server is needed.
Run: python benchmarks/store_upstream.py [FOLDER]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parents[1]
LEAST = 324
BASE = "langgraph_checkpoint-4.3.2"
SQLITE = "langgraph_checkpoint_sqlite-3.1.2"
POSTGRES = "langgraph_checkpoint_postgres-3.2.0"
GROUPS = {
    "base": (BASE, "test_store.py"),
    "sqlite": (SQLITE, "test_store.py"),
    "sqlite_async": (SQLITE, "test_async_store.py"),
    "sqlite_ttl": (SQLITE, "test_ttl.py"),
    "postgres": (POSTGRES, "test_store.py"),
    "postgres_async": (POSTGRES, "test_async_store.py"),
}
PLUGIN = '''
import contextlib, tempfile
import langgraph.store.memory as memory
import langgraph.store.postgres as postgres
import langgraph.store.sqlite as sqlite
import langgraph.store.sqlite.aio as aio
import psycopg
import pytest
from tomldiary import Diary
from tomldiary_langgraph import DiaryStore

PLACES = {}


def place(conn):
    if conn == ":memory:":
        return Diary(tempfile.mkdtemp(), durability="process")
    return PLACES.setdefault(conn, Diary(tempfile.mkdtemp(), durability="process"))


class Opened(DiaryStore):
    def __init__(self, diary=None, *, index=None, ttl=None):
        super().__init__(diary or place(":memory:"), index=index, ttl=ttl)
        self.MIGRATIONS = []  # the fixtures rewrite those of the opened store


class Cursor:
    """Takes the fixtures' DROP TABLE; skips a test that reads or writes PostgreSQL's rows."""

    def execute(self, statement, *_):
        if not statement.startswith("DROP TABLE"):
            pytest.skip("SQL of PostgreSQL")
        return Nothing()

    def fetchone(self):
        pytest.skip("SQL of PostgreSQL")


def pytest_collection_modifyitems(config, items):
    """Leave out variants that differ in PostgreSQL only: pipelines, pools, halfvec, other distances."""
    kept, left = [], []
    for item in items:
        params = getattr(item, "callspec", None)
        texts = str(params.params if params else "")
        server = "_postgres" in item.config.rootpath.name
        other = ("'pipe'", "'pool'", "'halfvec'", "'l2'", "'inner_product'", "False)}")
        (left if server and any(word in texts for word in other) else kept).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


class Nothing:
    """What a connection to no server gives, to sync and async callers."""

    def __await__(self):
        return self
        yield

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    def execute(self, *_):
        return self


class Sync(Opened):
    @classmethod
    @contextlib.contextmanager
    def from_conn_string(cls, conn, *, index=None, ttl=None, pipeline=False, pool_config=None):
        with cls(place(conn), index=index, ttl=ttl) as store:
            yield store

    @contextlib.contextmanager
    def _cursor(self):
        yield Cursor()


class Async(Opened):
    @classmethod
    @contextlib.asynccontextmanager
    async def from_conn_string(cls, conn, *, index=None, ttl=None, pipeline=False, pool_config=None):
        async with cls(place(conn), index=index, ttl=ttl) as store:
            yield store

    @contextlib.asynccontextmanager
    async def _cursor(self):
        yield Cursor()


memory.InMemoryStore = Opened
sqlite.SqliteStore = Sync
aio.AsyncSqliteStore = sqlite.AsyncSqliteStore = Async
postgres.PostgresStore = Sync
postgres.AsyncPostgresStore = Async
psycopg.Connection.connect = psycopg.AsyncConnection.connect = lambda *_, **__: Nothing()
'''


def main(folder: Path) -> int:
    """Download, unpack and run the tests; return the exit code."""
    _download(folder)
    named = _named()
    count: Counter[str] = Counter()
    unnamed: list[str] = []
    stale: list[str] = []
    for group, (root, file) in GROUPS.items():
        results = _results(folder / root, file)
        here = Counter(outcome for _, outcome in results)
        short = {
            f"{group} {name.partition('[')[0]}" for name, outcome in results if outcome != "PASSED"
        }
        unnamed += sorted(short - named)
        stale += sorted({name for name in named if name.split()[0] == group} - short)
        count += here
        print(f"{group:15} {_figures(here)}", flush=True)
        for name, outcome in results:
            if outcome != "PASSED":
                print(f"    {outcome.lower()}: {name}")
    print(f"{'sum':15} {_figures(count)}; {LEAST} must pass")
    for name in unnamed:
        print(f"not named in docs/langgraph-store.md: {name}")
    for name in stale:
        print(f"named in docs/langgraph-store.md, and passes: {name}")
    return int(count["PASSED"] < LEAST or bool(unnamed) or bool(stale))


def _download(folder: Path) -> None:
    for root in (BASE, SQLITE, POSTGRES):
        name = root.replace("_", "-").rpartition("-")
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
             "-d", folder, f"{name[0]}=={name[2]}"],
            check=True,
        )  # fmt: skip
        with tarfile.open(folder / f"{root}.tar.gz") as packed:
            packed.extractall(folder, filter="data")
    (folder / "on_a_diary.py").write_text(PLUGIN)


def _results(root: Path, file: str) -> list[tuple[str, str]]:
    """Return the name and the outcome of each test of a file."""
    paths = (root.parent, HERE, HERE / "integrations")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pytest", "-v", "-p", "on_a_diary", "-o", "addopts=",
         "-o", "asyncio_mode=auto", "--rootdir", root, "--tb=no", "-rN", "-W", "ignore", f"tests/{file}"],
        cwd=root, check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "TMPDIR": str(root.parent)},
    )  # fmt: skip
    found = re.findall(
        rf"^tests/{file}::(.+?) (PASSED|FAILED|SKIPPED|ERROR)\b", done.stdout, re.MULTILINE
    )
    if done.returncode > 1:
        print(done.stdout[-2000:], done.stderr[-2000:])
    return found


def _named() -> set[str]:
    """Return `group test` for each test in the table of the documentation."""
    text = (HERE / "docs/langgraph-store.md").read_text()
    rows = re.findall(r"^\| ([a-z_, ]+) \| ((?:`test_\w+`[^|`]*)+)\|", text, re.MULTILINE)
    return {
        f"{group} {test}"
        for groups, tests in rows
        if set(groups.split(", ")) <= set(GROUPS)
        for group in groups.split(", ")
        for test in re.findall(r"`(test_\w+)`", tests)
    }


def _figures(count: Counter[str]) -> str:
    failed = count["FAILED"] + count["ERROR"]
    return f"{count['PASSED']} passed, {failed} failed, {count['SKIPPED']} skipped"


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(main(Path(sys.argv[1])))
    with TemporaryDirectory() as temporary:
        sys.exit(main(Path(temporary)))
