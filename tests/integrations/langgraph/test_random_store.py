"""Random batches have equal results in diaries, in LangGraph's store in memory and in SQLite."""

from __future__ import annotations

import asyncio
import random
from itertools import count
from operator import ge, gt, le, lt

import pytest
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from tomldiary_langgraph import DiaryStore

LABELS = [
    "ann",
    "bob",
    "work",
    "Work",
    "wörk",
    "a b",
    "CON",
    "~2",
    "%",
    "_",
    "w*",
    "50%_",
    "é",
    "e\u0301",
    "\U0001f642",
]
KEYS = ["k", "K", "a.b", "", " ", "items", "_meta", "\n", '"', "ключ", "x" * 300]
TEXTS = [
    "tea",
    "Tea",
    "",
    "tea\n\ttime",
    '"""',
    "\\",
    "名前",
    "2026-05-01",
    "\u2028",
    "long " * 9000,
]
NUMBERS = [-(2**53), -1, -0.5, 0, 1, 1.5, 2, 2**53]
OTHERS = [
    None,
    True,
    [],
    {},
    [None, {"_x": None}],
    {"": {"a.b": None}},
    {"$eq": 1},
    [[1], [{}]],
    2**63 - 1,
    1e300,
]
MISSING = object()
OPERATORS = ["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]


class Reference(InMemoryStore):
    """LangGraph's store, which lists no namespaces that are empty (langgraph #8734)."""

    def batch(self, ops):
        full = InMemoryStore()
        for item in self.search((), limit=9999) if len(ops) > 1 or is_list(ops[0]) else ():
            full.put(item.namespace, item.key, item.value)
        lists = iter(full.batch([op for op in ops if is_list(op)]))
        found = super().batch(ops)
        return [next(lists) if is_list(op) else one for op, one in zip(ops, found, strict=True)]


def is_list(op):
    return isinstance(op, ListNamespacesOp)


class Batches:
    """Draws operations on few namespaces and keys, so that they meet."""

    def __init__(self, seed):
        self.choose, self.marks = random.Random(seed), count()
        self.labels = self.choose.sample(LABELS, 4)
        self.keys = self.choose.sample(KEYS, 4)

    def namespace(self, least=1):
        return tuple(self.choose.choices(self.labels, k=self.choose.randint(least, 3)))

    def value(self):
        """Return a value with the fields of which `condition` asks, so that all stores know the answer."""
        choose = self.choose
        odd = {choose.choice([*KEYS, "$and", "_null"]): choose.choice(OTHERS) for _ in range(2)}
        u = {"x": choose.choice(NUMBERS), "y": {"z": choose.choice(TEXTS)}}
        common = {"n": choose.choice(NUMBERS), "t": choose.choice(TEXTS), "u": u}
        return {**odd, **common, "mark": next(self.marks)}

    def condition(self):
        choose = self.choose
        conditions = [
            {"t": choose.choice(TEXTS)},
            {"n": choose.choice(NUMBERS)},
            {"n": {choose.choice(OPERATORS): choose.choice(NUMBERS)}},
            {"n": {"$gt": choose.choice(NUMBERS), "$lte": choose.choice(NUMBERS)}},
            {"t": {choose.choice(["$eq", "$ne"]): choose.choice(TEXTS)}},
            {"u": {"x": choose.choice(NUMBERS)}},
        ]
        return {name: each for one in choose.sample(conditions, 2) for name, each in one.items()}

    def read(self):
        choose = self.choose
        paths = [choose.choices(["*", *self.labels], k=choose.randint(1, 2)) for _ in range(2)]
        conditions = [
            MatchCondition(choose.choice(["prefix", "suffix"]), tuple(path))
            for path in paths[: choose.randint(0, 2)]
        ]
        refresh, condition = choose.choice([True, False]), choose.choice([None, self.condition()])
        prefix = self.namespace(0)[:2]
        return choose.choice(
            [
                GetOp(self.namespace(), choose.choice(self.keys), refresh),
                SearchOp(prefix, condition, 999, refresh_ttl=refresh),
                ListNamespacesOp(
                    conditions or None,
                    choose.choice([None, 1, 2]),
                    choose.choice([1, 3, 99]),
                    choose.choice([0, 0, 2]),
                ),
            ]
        )

    def write(self):
        value = None if self.choose.random() < 0.3 else self.value()
        index = self.choose.choice([None, None, False, ["t"], ["u.y.z", "mark"]])
        minutes = self.choose.choice([None, 0.001, 1000])
        return PutOp(self.namespace(), self.choose.choice(self.keys), value, index, ttl=minutes)

    def batch(self):
        kinds = self.choose.choice([[self.read], [self.write], [self.read, self.write]])
        return [self.choose.choice(kinds)() for _ in range(self.choose.choice([1, 1, 4, 9]))]

    def any_condition(self, depth=2):
        """Return a filter with operators and fields that LangGraph's stores do not have."""
        choose = self.choose
        field = choose.choice(["n", "t", "u.x", "u.y.z", "missing", "mark", "k", "items"])
        some = [choose.choice([*NUMBERS, *TEXTS[:5], None, True]) for _ in range(3)]
        compared = {choose.choice(OPERATORS): choose.choice([*NUMBERS, *TEXTS[:5]])}
        conditions = [
            lambda: {field: some[0]},
            lambda: {field: compared},
            lambda: {field: {choose.choice(["$in", "$nin"]): some}},
            lambda: {field: {"$exists": choose.choice([True, False])}},
            lambda: {field: {"$not": compared}},
            lambda: {choose.choice(["$and", "$or"]): [self.any_condition(depth - 1) for _ in "12"]},
            lambda: {"$not": self.any_condition(depth - 1)},
        ]
        return choose.choice(conditions[: None if depth else 5])()


def plain(answer):
    """Return an answer without times, and without the order of items, which the stores have for themselves."""
    if not isinstance(answer, list):
        return answer and (answer.namespace, answer.key, answer.value)
    if answer and not isinstance(answer[0], tuple):
        return sorted(((one.namespace, one.key, one.value) for one in answer), key=repr)
    return answer


def sqlite_knows(op):
    """SqliteStore lists namespaces in another order, and has no filters of nested tables."""
    return not (
        isinstance(op, ListNamespacesOp) or (isinstance(op, SearchOp) and "u" in (op.filter or {}))
    )


def answers(store, batch, *, is_async=False):
    found = asyncio.run(store.abatch(batch)) if is_async else store.batch(batch)
    for op, one in zip(batch, found, strict=True):
        if isinstance(op, SearchOp) and isinstance(store, DiaryStore):
            # "newest first, then key, then namespace; pages join"
            order = [(-item.updated_at.timestamp(), item.key, item.namespace) for item in one]
            assert order == sorted(order)
    return [plain(one) for one in found]


def play(seed, folder, steps):
    """Run batches in all stores; compare the answers, and then what a new reader finds."""
    batches = Batches(seed)
    choose, reference = batches.choose, Reference()
    diaries = {
        "memory": DiaryStore("memory:"),
        "folder": DiaryStore(folder / "m"),
        "shared": DiaryStore(folder / "shared", user_label=None),
    }
    with SqliteStore.from_conn_string(":memory:") as sqlite:
        sqlite.setup()
        for number in range(steps):
            batch = batches.batch()
            expected = [*zip(batch, answers(reference, batch), strict=True)]
            for name, store in {"sqlite": sqlite, **diaries}.items():
                pairs = [one for one in expected if name != "sqlite" or sqlite_knows(one[0])]
                is_async = name != "sqlite" and choose.random() < 0.5
                found = answers(store, [op for op, _ in pairs], is_async=is_async)
                for (op, wanted), one in zip(pairs, found, strict=True):
                    assert one == wanted, f"seed {seed}, batch {number}, {name}: {op}"
            if choose.random() < 0.3:
                reads = [batches.read() for _ in range(4)]
                other = DiaryStore(folder / "m")
                expected = answers(reference, reads)
                for op, one, wanted in zip(reads, answers(other, reads), expected, strict=True):
                    assert one == wanted, f"seed {seed}, after batch {number}: {op}"
                check_pages(other, batches, seed)
                diaries["folder"] = choose.choice([other, diaries["folder"]])


def check_pages(store, batches, seed):
    """Compare pages and filters of every operator with the list of all items."""
    prefix, condition = batches.namespace(0), batches.any_condition()
    every = store.search(prefix, limit=999)
    wanted = [one for one in every if holds(condition, one.value)]
    assert store.search(prefix, filter=condition, limit=999) == wanted, f"seed {seed}: {condition}"
    # "A query omits no item"
    asked = store.search(prefix, filter=condition, query="long tea", limit=999)
    assert by_place(asked) == by_place(wanted), f"seed {seed}: {condition}"
    limit, offset = batches.choose.randint(1, 4), batches.choose.randint(0, 3)
    page = store.search(prefix, filter=condition, limit=limit, offset=offset)
    assert page == wanted[offset : offset + limit], f"seed {seed}: {condition}"


def by_place(items):
    return sorted((one.namespace, one.key) for one in items)


def holds(condition, value):
    """Say whether a value matches a filter, as docs/langgraph-store.md describes it."""
    for key, asked in condition.items():
        if key in ("$and", "$or"):
            met = (all if key == "$and" else any)(holds(one, value) for one in asked)
        elif key == "$not":
            met = not holds(asked, value)
        else:
            field = value
            for name in key.split("."):
                field = field.get(name, MISSING) if isinstance(field, dict) else MISSING
            is_operators = isinstance(asked, dict) and next(iter(asked)).startswith("$")
            each = asked.items() if is_operators else [("$eq", asked)]
            met = all(compares(operator, field, operand) for operator, operand in each)
        if not met:
            return False
    return True


def compares(operator, field, operand):
    if operator == "$exists":
        return (field is not MISSING) == operand
    if operator == "$not":
        return not all(
            compares(*each) for each in [(name, field, one) for name, one in operand.items()]
        )
    if field is MISSING:
        return False
    if operator in ("$in", "$nin"):
        return any(equal(field, one) for one in operand) == (operator == "$in")
    if operator in ("$eq", "$ne"):
        return equal(field, operand) == (operator == "$eq")
    kinds = [str if isinstance(one, str) else type(one) is not bool for one in (field, operand)]
    if kinds[0] != kinds[1] or not isinstance(field, str | int | float):
        return False
    return {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}[operator](field, operand)


def equal(one, other):
    """`True` and 1 differ."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def test_random_batches_do_the_same_in_all_stores(disk):
    for seed in range(2):
        play(seed, disk / str(seed), 16)


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
@pytest.mark.parametrize("start", range(0, 400, 50))
def test_400_programs_of_random_batches_do_the_same_in_all_stores(disk, start):
    for seed in range(start, start + 50):
        play(seed, disk / str(seed), 40)
