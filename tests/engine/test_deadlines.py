"""Expiry times that reads refreshed do not outlive their items in memory, nor take memory for each user."""

from __future__ import annotations

import time
import tracemalloc
from contextlib import contextmanager
from dataclasses import dataclass

from tomldiary import Diary
from tomldiary.engine.deadlines import Deadlines

MINUTE = 60_000_000  # microseconds


@dataclass
class Item:
    key: str
    updated: int
    ttl: float = 1.0

    @property
    def expires(self):
        return self.updated + MINUTE


@contextmanager
def at_most(size):
    """Check that a block keeps no more than `size` bytes of memory."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[0] < size
    finally:
        tracemalloc.stop()


def test_refreshes_of_expired_items_leave_the_memory():
    deadlines, count = Deadlines(None), 0
    with at_most(600_000):  # all 10,000 would take 2 MB
        for minute in range(0, 400, 4):
            items = [Item(f"k{number}", minute * MINUTE) for number in range(count, count + 100)]
            count += 100
            deadlines.refresh([("items/a", item) for item in items], (minute * 2 + 1) * MINUTE // 2)
            assert all(deadlines.until("items/a", item.key, item.updated) for item in items)


def test_refreshes_of_items_that_live_stay():
    deadlines = Deadlines(None)
    items = [Item(f"k{number}", 0) for number in range(5000)]
    for item in items:
        deadlines.refresh([("items/a", item)], MINUTE // 2)
    assert {deadlines.until("items/a", item.key, 0) for item in items} == {3 * MINUTE // 2}


def test_users_without_refreshes_leave_the_memory():
    engine, now = Diary("memory:").engine, time.time_ns() // 1000
    item, expired = Item("k", now), Item("k", now - 10 * MINUTE)
    with at_most(4_000_000):  # all would take more than 5 MB
        for number in range(9_000):
            kept = engine.deadlines(f"user {number}")
            if number == 5:
                kept.refresh([("items/a", item)], now + MINUTE // 2)
            elif number % 100 == 0:
                kept.refresh([("items/a", expired)], now - 10 * MINUTE + MINUTE // 2)
    assert engine.deadlines("user 5").until("items/a", "k", now) == now + 3 * MINUTE // 2
