"""Expiry times that reads refreshed do not outlive their items in memory."""

from __future__ import annotations

from dataclasses import dataclass

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


def test_refreshes_of_expired_items_leave_the_memory():
    deadlines, count = Deadlines(None), 0
    for minute in range(0, 400, 4):
        items = [Item(f"k{number}", minute * MINUTE) for number in range(count, count + 100)]
        count += 100
        deadlines.refresh([("items/a", item) for item in items], (minute * 2 + 1) * MINUTE // 2)
        assert all(deadlines.until("items/a", item.key, item.updated) for item in items)
    assert len(deadlines._known) <= 1200


def test_refreshes_of_items_that_live_stay():
    deadlines = Deadlines(None)
    items = [Item(f"k{number}", 0) for number in range(5000)]
    for item in items:
        deadlines.refresh([("items/a", item)], MINUTE // 2)
    assert {deadlines.until("items/a", item.key, 0) for item in items} == {3 * MINUTE // 2}
