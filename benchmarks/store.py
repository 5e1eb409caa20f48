"""Compare a diary as a LangGraph store with LangGraph's own stores: the same operations in the same run.

    python benchmarks/store.py [--rounds 5] [--items 10000] [--path DIR] [--durability full] [--only ROW] [--profile ROW]

Every round measures all stores in order for each row, so that a busy machine slows all of them. Each round begins with
another store, because a later store profits from warm processor caches. The median of the rounds is printed, with
ratios to SqliteStore; above 1, the diary is faster. SqliteStore and AsyncSqliteStore use a file with their defaults
(rollback journal, synchronous=FULL), the diary uses `--durability`, and InMemoryStore stores nothing durably. The other
stores search by cosine. By default, a diary also ranks by words, and each text here has many of ten words.

With FULL, a power cut can restore the journal of the last transaction, which is then rolled back although it was
acknowledged. With EXTRA, the removal of the journal is synced (sqlite.org/pragma.html). Therefore puts are also
compared with a SqliteStore with synchronous=EXTRA ("as safe"), which has the same guarantee as the diary.

Requires langgraph-checkpoint-sqlite. Vectors require numpy, and for SqliteStore a Python whose sqlite3 loads extensions.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import importlib.util
import itertools
import pstats
import random
import resource
import sqlite3
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph.store.base import GetOp, PutOp
from langgraph.store.memory import InMemoryStore

from tomldiary import Diary
from tomldiary_langgraph import DiaryStore

if TYPE_CHECKING:
    from collections.abc import Callable

HAS_SQLITE = importlib.util.find_spec("langgraph.store.sqlite") is not None
NAMESPACES = 50
BATCH = 500
DIMS = 384
WORDS = ["apple", "river", "stone", "cloud", "paper", "green", "light", "music", "winter", "bridge"]
NUMBERS = itertools.count()


def value(number: int) -> dict[str, Any]:
    words = random.Random(number).choices(WORDS, k=20)  # noqa: S311 - test data
    return {"text": " ".join(words), "n": number, "kind": "even" if number % 2 == 0 else "odd"}


def namespace(number: int) -> tuple[str, str]:
    return ("bench", f"ns{number % NAMESPACES:02}")


def embed(texts: list[str]) -> list[list[float]]:
    return [vector(text) for text in texts]


def vector(text: str) -> list[float]:
    source = random.Random(text)  # noqa: S311 - test data
    return [source.random() - 0.5 for _ in range(DIMS)]


INDEX = {"dims": DIMS, "embed": embed, "fields": ["text"]}


@dataclass
class Row:
    """One operation, with its number of repetitions in a round."""

    name: str
    does: Callable[[Any], object]
    times: int
    unit: int = 1
    """The number of operations in one call."""
    target: float | None = None
    """The minimum ratio to SqliteStore at the same durability; a target of the project."""
    puts: bool = False
    """Whether the operation waits for the disk, so that stores with equal durability are compared."""
    stores: dict[str, Any] = field(default_factory=dict)
    is_async: bool = False
    memory_target: float | None = None
    """The minimum ratio to InMemoryStore."""


def filled(store: Any, count: int, *, embedded: bool = False) -> Any:
    for start in range(0, count, BATCH):
        ops = [
            PutOp(namespace(n), f"key{n}", value(n), index=None if embedded else False)
            for n in range(start, min(start + BATCH, count))
        ]
        store.batch(ops)
    return store


def fresh() -> tuple[tuple[str, str], str, dict[str, Any]]:
    number = next(NUMBERS)
    return namespace(number), f"new{number}", value(number)


def put_batch(store: Any) -> None:
    store.batch([PutOp(("bench", "bulk"), *fresh()[1:], index=False) for _ in range(BATCH)])


def put_everywhere(store: Any) -> None:
    store.batch([PutOp(*fresh(), index=False) for _ in range(BATCH)])


def threads(store: Any) -> None:
    def work(_: int) -> None:
        for number in range(25):
            store.get(namespace(number), f"key{number}")
            store.search(namespace(number), filter={"kind": "even"})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


async def gathered_gets(store: Any) -> None:
    await asyncio.gather(*(store.aget(namespace(n), f"key{n}") for n in range(BATCH)))


async def gathered_puts(store: Any) -> None:
    await asyncio.gather(*(store.aput(*fresh(), index=False) for _ in range(BATCH)))


def rows(items: int) -> list[Row]:
    one = namespace(7)
    return [
        Row("put", lambda s: s.put(*fresh(), index=False), 25, target=1.5, puts=True),
        Row("put, batch of 500", put_batch, 1, BATCH, target=0.5, puts=True),
        Row("put, batch of 500 over 50 namespaces", put_everywhere, 1, BATCH, puts=True),
        Row("get", lambda s: s.get(namespace(7), "key7"), 200, target=2.5),
        Row("get, batch of 500", lambda s: s.batch([GetOp(namespace(n), f"key{n}") for n in range(BATCH)]), 2, BATCH),
        Row(f"filter, {items // NAMESPACES} of {items}", lambda s: s.search(one, filter={"n": {"$gt": items - 2000}}), 20, target=3.0),
        Row(f"filter, all {items}", lambda s: s.search(("bench",), filter={"n": {"$gt": items - 50}}), 3),
        Row("search without filter", lambda s: s.search(one), 50),
        Row("list_namespaces, first after writes", lambda s: s.list_namespaces(max_depth=2), 1),
        Row("list_namespaces, depth 2", lambda s: s.list_namespaces(max_depth=2), 20, target=10.0),
        Row("4 threads, 200 gets and searches", threads, 1, 200),
    ]  # fmt: skip


def by_vectors(store: Any) -> None:
    store.search(("bench",), query="green river")


def vector_rows(counts: dict[int, dict[str, Any]]) -> list[Row]:
    found: list[Row] = []
    for count, stores in counts.items():
        promised = count == 10_000
        others = {name: store for name, store in stores.items() if name not in {"diary", "cosine"}}
        found.append(
            Row(
                f"cosines, all {count}",
                by_vectors,
                2 if count > 1000 else 5,
                target=2.0 if promised else None,
                memory_target=20.0 if promised else None,
                stores={"diary": stores.pop("cosine"), **others},
            )
        )
        found.append(
            Row(
                f"words and vectors, all {count}",
                by_vectors,
                2 if count > 1000 else 5,
                stores=stores,
            )
        )
    return found


def measured(row: Row, store: Any, run: Callable[[Any], Any]) -> float:
    """Return the time of one operation in microseconds."""
    start = time.perf_counter()
    for _ in range(row.times):
        done = row.does(store)
        if row.is_async:
            run(done)
    return (time.perf_counter() - start) / row.times / row.unit * 1e6


def sqlite_store(
    path: Path, stack: ExitStack, index: Any = None, *, is_durable: bool = False
) -> Any:
    from langgraph.store.sqlite import SqliteStore  # noqa: PLC0415 - an option

    store = stack.enter_context(SqliteStore.from_conn_string(str(path), index=index))
    store.setup()
    if is_durable:
        store.conn.execute("PRAGMA synchronous=EXTRA")
    return store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--path")
    parser.add_argument("--durability", default="full")
    parser.add_argument("--profile", help="print a profile of one row")
    parser.add_argument("--only", default="", help="only rows whose names begin with this text")
    parser.add_argument("--no-vectors", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.path)))
        runner = stack.enter_context(asyncio.Runner())
        diary = Diary(place / "diary", durability=options.durability)
        stores: dict[str, Any] = {"diary": DiaryStore(diary), "memory": InMemoryStore()}
        if HAS_SQLITE:
            stores["sqlite"] = sqlite_store(place / "store.db", stack)
        durable: dict[str, Any] = {}
        if HAS_SQLITE and options.durability == "full":
            durable["safe"] = sqlite_store(place / "safe.db", stack, is_durable=True)
        for store in (*stores.values(), *durable.values()):
            filled(store, options.items)
        todo = rows(options.items)
        for row in todo:
            row.stores = {**stores, **durable} if row.puts else stores
        words = Row("words, all", lambda s: s.search(("bench",), query="green river"), 5)
        words.stores = {"diary": DiaryStore(diary)}
        lexical = DiaryStore(Diary(place / "words", durability="process"))
        words.stores = {"diary": filled(lexical, options.items, embedded=True)}
        words.name += f" {options.items}"
        todo.append(words)
        if not options.no_vectors:
            todo += vector_rows(
                {n: vector_stores(place, n, stack) for n in (100, 1000, options.items)}
            )
        todo += async_rows(stores, place, runner, stack)
        todo = [row for row in todo if row.name.startswith(options.only)]
        if options.profile:
            profile(next(row for row in todo if row.name.startswith(options.profile)), runner)
            return
        # No measured call collects garbage in the heap of all stores.
        gc.collect()
        gc.freeze()
        results = {row.name: {name: [] for name in row.stores} for row in todo}
        for number in range(options.rounds):
            for row in todo:
                names = list(row.stores)
                first = number % len(names)
                for name in names[first:] + names[:first]:
                    results[row.name][name].append(measured(row, row.stores[name], runner.run))
        report(todo, results)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"\n{options.items} items, durability {options.durability}, {options.rounds} rounds, peak {peak} MB with all stores"
        )


def vector_stores(place: Path, count: int, stack: ExitStack) -> dict[str, Any]:
    folder = Diary(place / f"vectors{count}", durability="process")
    made: dict[str, Any] = {
        "diary": DiaryStore(folder, index=INDEX),  # type: ignore[arg-type]
        "cosine": DiaryStore(folder, index={**INDEX, "ranking": "cosine"}),  # type: ignore[typeddict-unknown-key]
        "memory": InMemoryStore(index=INDEX),  # type: ignore[arg-type]
    }
    if HAS_SQLITE and hasattr(sqlite3.Connection, "enable_load_extension"):
        index = {**INDEX, "text_fields": INDEX["fields"]}
        made["sqlite"] = sqlite_store(place / f"vectors{count}.db", stack, index)
    for name, store in made.items():
        if name != "cosine":  # a second store on the same diary
            filled(store, count, embedded=True)
    return made


def async_rows(
    stores: dict[str, Any], place: Path, runner: asyncio.Runner, stack: ExitStack
) -> list[Row]:
    several = {"diary": stores["diary"], "memory": stores["memory"]}
    if HAS_SQLITE:
        from langgraph.store.sqlite.aio import AsyncSqliteStore  # noqa: PLC0415 - an option

        async def opened() -> Any:
            exits = AsyncExitStack()
            manager = AsyncSqliteStore.from_conn_string(str(place / "async.db"))
            store = await exits.enter_async_context(manager)
            await store.setup()
            for start in range(0, 1000, BATCH):
                await store.abatch(
                    [PutOp(namespace(n), f"key{n}", value(n)) for n in range(start, start + BATCH)]
                )
            stack.callback(lambda: runner.run(exits.aclose()))
            return store

        several["sqlite"] = runner.run(opened())
    made = [
        Row("async get, one by one", lambda s: s.aget(namespace(7), "key7"), 50),
        Row("async put, one by one", lambda s: s.aput(*fresh(), index=False), 10),
        Row("async get, gather of 500", gathered_gets, 1, BATCH),
        Row("async put, gather of 500", gathered_puts, 1, BATCH),
    ]
    for row in made:
        row.is_async, row.stores = True, several
    return made


def profile(row: Row, runner: asyncio.Runner) -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(5):
        measured(row, row.stores["diary"], runner.run)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("cumulative").print_stats(35)


def report(todo: list[Row], results: dict[str, dict[str, list[float]]]) -> None:
    peers = {"sqlite": "× sqlite", "safe": "× as safe", "memory": "× memory"}
    titles = ("diary", "memory", "sqlite", "as safe", *peers.values())
    print(f"{'µs for one operation':38}" + "".join(f"{title:>12}" for title in titles))
    for row in todo:
        shown = {name: statistics.median(found) for name, found in results[row.name].items()}
        line = f"{row.name:38}" + "".join(
            f"{shown[name]:12.1f}" if name in shown else f"{'—':>12}"
            for name in ("diary", "memory", "sqlite", "safe")
        )
        targets = {"safe" if "safe" in shown else "sqlite": row.target, "memory": row.memory_target}
        for other in peers:
            if other not in shown:
                line += f"{'—':>12}"
                continue
            pairs = zip(results[row.name][other], results[row.name]["diary"], strict=True)
            ratio = statistics.median(theirs / ours for theirs, ours in pairs)
            target = targets.get(other)
            mark = "" if target is None else (" ok" if ratio >= target else f" < {target:g}")
            line += f"{ratio:>12.2f}{mark}"
        print(line)


if __name__ == "__main__":
    main()
