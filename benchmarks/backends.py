"""Compare shared backends with raw clients of their databases, and DiaryStore with LangGraph's PostgresStore.

    python tests/support/servers.py python benchmarks/backends.py [--rounds 60] [--count 10]

The raw client performs the same operations with the same texts in the same run. It reads a document of 8 KB, or it
replaces the document and appends a history record if the version is the expected one. The expected version is that of
the client's last commit, as in most writes, or one that is read first. Short rounds alternate, so that the load of the
machine affects both sides equally, and both sides reconnect 15 times. Each result is the median of the calls per
second. The backend is faster if a ratio is above 1. Requires the extras of the databases, and
langgraph-checkpoint-postgres for the second table.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tomldiary import Diary
from tomldiary.history.record import Record, render_record
from tomldiary.storage.open import open_backend
from tomldiary.storage.protocol import Commit
from tomldiary_langgraph import DiaryStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.storage.shared.backend import SharedBackend

TEXT = '[preferences.likes.pref001]\ntext = "' + "x" * 8000 + '"\n'
CLIENTS = 15
"""How often both sides reconnect: a connection is up to twice as slow if another core serves it, and it may stay there."""
Found = dict[str, tuple[list[float], list[float]]]
Pair = tuple["Callable[[], object]", "Callable[[], object]"]
Raw = tuple["Callable[[], int]", "Callable[[int], int]", "Callable[[], object]"]
"""Three operations: read the version; replace the document and return the next version; read the document."""


def record(seq: int) -> str:
    """Return a history record."""
    return render_record(Record(seq, "save", [], {}, {}))


class Ours:
    """Loads and commits one document of a backend."""

    def __init__(self, backend: SharedBackend) -> None:
        self.backend = backend
        self.seq = 0

    def commit(self) -> None:
        """Replace the document and append a record, as the library does."""
        with self.backend.attempt("alice", 10):
            self._commit()

    def read_and_commit(self) -> None:
        """Read the version, then replace the document and append a record."""
        with self.backend.lock("alice", 10):
            self._commit()

    def _commit(self) -> None:
        self.seq += 1
        version = self.backend.token("alice", "preferences")
        commit = Commit(
            {"preferences": TEXT.encode()}, {"preferences": version}, [record(self.seq)]
        )
        self.backend.commit("alice", commit)

    def load(self) -> None:
        """Read the document."""
        self.backend.read("alice", "preferences")


class Theirs:
    """Loads and commits one document with a raw client."""

    def __init__(self, raw: Raw) -> None:
        self._version, self._replace, self.load = raw
        self._known = self._version()

    def commit(self) -> None:
        """Replace the document and append a record, at the version of the last commit."""
        self._known = self._replace(self._known)

    def read_and_commit(self) -> None:
        """Read the version, then replace the document and append a record."""
        self._known = self._replace(self._version())


def raw_postgres(url: str, space: str) -> Raw:
    """Return the operations with psycopg's pool, each with as few statements as possible."""
    import psycopg_pool  # noqa: PLC0415 - imported only if its server runs

    pool = psycopg_pool.ConnectionPool(url, min_size=1, kwargs={"autocommit": True}, open=True)
    with pool.connection() as connection:
        connection.execute(f"CREATE TABLE d{space} (u text PRIMARY KEY, v bigint, c text)")
        connection.execute(
            f"CREATE TABLE h{space} (u text, seq bigint, r text, PRIMARY KEY (u, seq))"
        )
        connection.execute(f"INSERT INTO d{space} VALUES ('alice', 0, %s)", [TEXT])  # noqa: S608 - a constant name
    statement = (
        f"WITH d AS (UPDATE d{space} SET v = v + 1, c = %s WHERE u = %s AND v = %s RETURNING u, v)"  # noqa: S608 - see above
        f" INSERT INTO h{space} SELECT u, v, %s FROM d RETURNING seq"
    )

    def row(query: str, *values: object) -> Any:
        with pool.connection() as connection:
            return connection.execute(query, values).fetchone()

    return (
        lambda: row(f"SELECT v FROM d{space} WHERE u = %s", "alice")[0],  # noqa: S608 - see above
        lambda version: row(statement, TEXT, "alice", version, record(version + 1))[0],
        lambda: row(f"SELECT c, v FROM d{space} WHERE u = %s", "alice"),  # noqa: S608 - see above
    )


def raw_redis(url: str, space: str) -> Raw:
    """Return the operations with redis-py and a Lua script."""
    import redis  # noqa: PLC0415 - imported only if its server runs

    client = redis.Redis.from_url(url, decode_responses=True)
    script = client.register_script(
        "if (redis.call('HGET', KEYS[1], 'v') or '0') ~= ARGV[1] then return false end "
        "redis.call('ZADD', KEYS[2], ARGV[1] + 1, ARGV[3]) "
        "redis.call('HSET', KEYS[1], 'c', ARGV[2], 'v', ARGV[1] + 1) return ARGV[1] + 1"
    )

    def replace(version: int) -> int:
        values = [version, TEXT, record(version + 1)]
        return int(script(keys=[f"d{space}", f"h{space}"], args=values))

    return (
        lambda: int(client.hget(f"d{space}", "v") or 0),
        replace,
        lambda: client.hmget(f"d{space}", ["c", "v"]),
    )


def raw_firestore(_url: str, space: str) -> Raw:
    """Return the operations with google-cloud-firestore and a precondition."""
    from google.cloud import firestore  # noqa: PLC0415 - imported only if its server runs

    client = firestore.Client(project="bench")
    place = client.document(f"d{space}/alice")
    times = {0: place.set({"content": TEXT, "v": 0}).update_time}

    def version() -> int:
        found = place.get(["v"])
        times[found.get("v")] = found.update_time
        return found.get("v")

    def replace(before: int) -> int:
        now = before + 1
        batch = client.batch()
        option = client.write_option(last_update_time=times.pop(before))
        batch.update(place, {"content": TEXT, "v": now}, option)
        batch.create(place.collection("h").document(f"{now:09d}"), {"r": record(now)})
        times[now] = batch.commit()[0].update_time
        return now

    return version, replace, place.get


def rate(work: Callable[[], object], count: int) -> float:
    """Return the number of runs of `work` per second."""
    begin = time.perf_counter()
    for _ in range(count):
        work()
    return count / (time.perf_counter() - begin)


def measure(found: Found, pairs: dict[str, Pair], rounds: int, count: int) -> None:
    """Measure both sides of each pair alternately, and add their rates to the lists."""
    for each in range(rounds):
        for name, pair in pairs.items():
            rates = found.setdefault(name, ([], []))
            for side in (0, 1) if each % 2 else (1, 0):
                rates[side].append(rate(pair[side], count))


def report(found: Found) -> None:
    """Print the median rates of both sides of each pair."""
    for name, (ours, theirs) in found.items():
        one, two = statistics.median(ours), statistics.median(theirs)
        print(f"{name:28} {one:8.0f}/s  {two:8.0f}/s  ratio {one / two:.2f}")


def databases(rounds: int, count: int) -> None:
    """Compare the backends with the raw clients."""
    servers = {
        "postgres": (os.environ.get("TOMLDIARY_TEST_POSTGRES", ""), "schema", raw_postgres),
        "redis": (os.environ.get("TOMLDIARY_TEST_REDIS", ""), "prefix", raw_redis),
        "firestore": (os.environ.get("FIRESTORE_EMULATOR_HOST", ""), "", raw_firestore),
    }
    for name, (server, option, raw) in servers.items():
        if not server:
            print(f"{name}: no server; run this with tests/support/servers.py")
            continue
        found: Found = {}
        for _ in range(CLIENTS):
            space = f"b{uuid4().hex[:8]}"
            url = f"{server}?{option}={space}" if option else f"firestore://bench/{space}/users"
            ours: Any = Ours(open_backend(url, None))
            theirs = Theirs(raw(server, space))
            verbs = ("commit", "read_and_commit", "load")
            pairs: dict[str, Pair] = {
                f"{name} {verb}": (getattr(ours, verb), getattr(theirs, verb)) for verb in verbs
            }
            for _ in range(10):  # after this, the backend has checked that it is the only writer
                for ours_does, theirs_does in pairs.values():
                    ours_does()
                    theirs_does()
            measure(found, pairs, -(-rounds // CLIENTS), count)
            ours.backend.close()
        report(found)


def stores(rounds: int, count: int) -> None:
    """Compare DiaryStore on PostgreSQL with LangGraph's PostgresStore."""
    server = os.environ.get("TOMLDIARY_TEST_POSTGRES", "")
    if not server or importlib.util.find_spec("langgraph.store.postgres") is None:
        print("store: needs a PostgreSQL server and langgraph-checkpoint-postgres")
        return
    from langgraph.store.postgres import PostgresStore  # noqa: PLC0415 - imported only if its server runs

    space = f"b{uuid4().hex[:8]}"
    ours = DiaryStore(Diary(f"{server}?schema={space}"))
    with PostgresStore.from_conn_string(
        server, pool_config={"min_size": 1, "max_size": 8}
    ) as theirs:
        theirs.setup()
        namespace = (space, "notes")
        numbers = iter(range(10**9))

        def put(store: Any) -> Callable[[], None]:
            return lambda: store.put(
                namespace, f"k{next(numbers) % 500}", {"text": "a note about tea"}
            )

        for store in (ours, theirs):
            for number in range(500):
                store.put(namespace, f"k{number}", {"text": f"note {number} about tea"})
        pairs: dict[str, Pair] = {
            "store put": (put(ours), put(theirs)),
            "store get": (
                lambda: ours.get(namespace, "k7"),
                lambda: theirs.get(namespace, "k7"),
            ),
            "store search, filter": (
                lambda: ours.search(namespace, filter={"text": "a note about tea"}, limit=10),
                lambda: theirs.search(namespace, filter={"text": "a note about tea"}, limit=10),
            ),
            "store search, words/filter": (
                lambda: ours.search(namespace, query="tea", limit=10),
                lambda: theirs.search(namespace, filter={"text": "a note about tea"}, limit=10),
            ),
        }
        found: Found = {}
        measure(found, pairs, rounds, count)
        report(found)
    ours.diary.engine.backend.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--count", type=int, default=10)
    options = parser.parse_args()
    print(f"{'operation':28} {'ours':>10}  {'theirs':>10}")
    databases(options.rounds, options.count)
    stores(options.rounds, options.count)


if __name__ == "__main__":
    main()
