"""The table of costs in docs/scaling-costs.md: no call makes more requests, reads or writes than it says."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

from typer.testing import CliRunner

from requests_counted import counted
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.cli.app import app
from tomldiary.store.operations import List, Put, Search
from tomldiary.store.store import ItemStore
from tomldiary.writer.shared.claims import Heartbeats

PAGE = Path(__file__).parents[3] / "docs" / "scaling-costs.md"
UNITS = ("requests", "reads", "writes", "deletes")
LONG = 60


def search_of(writer):
    """What a writer does each second: it looks for turns of writers that ended."""
    return writer._journal_queue.claim_users


def write_then_change_others(user, times):
    """Change `preferences`, and then only another document."""
    user.upsert_preference("likes", "tea")
    for number in range(times):
        user.set_block("count", f"{number}")


def cost_beside_another_writer(diary, backend, cost):
    """Return the cost of a search while another writer serves two users."""
    gate, at_gate = threading.Event(), threading.Semaphore(0)

    def wait_at_gate(*_args, **_options):
        at_gate.release()
        gate.wait(LONG)

    with MemoryWriter(Diary(backend, agent=wait_at_gate)) as busy:
        for user in ("ann", "bob"):
            busy.submit_nowait(Turn(user, "s", "I love tea.", "Noted.")).wait_stored(LONG)
            assert at_gate.acquire(timeout=LONG)  # its worker makes no more requests for this turn
        with MemoryWriter(diary, lease=600) as writer:
            found = cost(search_of(writer))
        gate.set()
    return found


def documented(engine, title="What a call costs"):
    """Return the costs of an engine by what they are for: requests, and with Firestore the charged documents."""
    section = PAGE.read_text("utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    first = {"postgres": 1, "redis": 2, "firestore": 3}[engine]
    cells = {row[0]: row[first : first + (4 if engine == "firestore" else 1)] for row in rows[2:]}
    return {name: [int(cell) for cell in each] for name, each in cells.items()}


def test_no_call_costs_more_than_its_documentation_says(engine, opened, monkeypatch):
    counts = counted(engine.name, monkeypatch)
    diary, other = (Diary(opened(), agent="rules", similarity=101) for _ in range(2))
    alice, numbers = diary.user("alice"), itertools.count()

    def turn():
        return Turn("alice", "s", f"I love thing number {next(numbers)}.", "Noted.")

    def add_turn(user, operation=""):
        each = turn()
        user.add_turn(
            each.user_msg,
            each.assistant_msg,
            session_id=each.session_id,
            operation_id=operation,
        )

    def after_another_process():
        add_turn(other.user("alice"))
        counts.clear()
        alice.preferences()

    def from_web():
        time.sleep(
            0.3
        )  # both search once a second: else each turn would be as far from the searches as the last one
        web.submit_nowait(turn()).wait(LONG)

    def cost(work):
        """Return the least of several runs for each unit: searches of writers, once a second, may fall into one."""
        work()  # the first run of a kind may find nothing to continue
        found = []
        for _ in range(5):
            time.sleep(0.02)  # what other threads do at this moment ends
            counts.clear()
            work()
            found.append([counts[unit] for unit in UNITS])
        return [min(each) for each in zip(*found, strict=True)]

    for _ in range(2):
        add_turn(alice)
    other.user("alice").preferences()
    measured = {
        "`preferences`, `render`: nothing changed": cost(alice.preferences),
        "the same after another process wrote": cost(after_another_process),
        "the first `render` of a user in a process": cost(
            lambda: Diary(other.engine.backend).user("alice").render()
        ),
    }
    add_turn(alice)
    measured["`upsert_preference`, `DiaryStore.put`"] = cost(
        lambda: alice.upsert_preference("likes", turn().user_msg)
    )
    measured["`add_turn`"] = cost(lambda: add_turn(alice))
    measured["`add_turn` with an `operation_id`"] = cost(
        lambda: add_turn(alice, f"operation {next(numbers)}")
    )
    write_then_change_others(diary.user("bob"), 100)
    measured["the first `preferences`, which changed 100 transactions ago"] = cost(
        lambda: Diary(other.engine.backend).user("bob").preferences()
    )
    with MemoryWriter(diary, lease=600) as writer:
        writer.submit_nowait(turn()).wait(LONG)
        measured["a turn of a writer"] = cost(lambda: writer.submit_nowait(turn()).wait(LONG))
        web = MemoryWriter(Diary(opened()), workers=0)
        measured["a turn from a writer with `workers=0`"] = cost(from_web)
        web.close_sync()
        measured["a writer's search for turns, each second"] = cost(search_of(writer))
        heartbeats = Heartbeats(diary.engine.backend, lease=0.0)
        measured["a writer's heartbeat, every `lease / 5` seconds"] = cost(heartbeats.beat)
    waiting = cost_beside_another_writer(diary, opened(), cost)
    idle = measured["a writer's search for turns, each second"]
    measured["in it, for each user whom another writer serves"] = [
        -(-(one - two) // 2) for one, two in zip(waiting, idle, strict=True)
    ]
    limits = documented(engine.name)
    assert {*measured} == {*limits}
    for name, found in measured.items():
        assert all(a <= b for a, b in zip(found, limits[name], strict=False)), (name, found)


def test_no_call_over_all_users_costs_more_than_its_documentation_says(engine, monkeypatch):
    users = [f"user {number:02}" for number in range(30)]
    with Diary(engine.url, agent="rules") as diary:
        for user in users:
            ItemStore(diary).run([Put((user, "notes"), "k", {"text": "tea"})])
            diary.user(user).upsert_preference("likes", "milk")
    counts = counted(engine.name, monkeypatch)

    def cost(work):
        counts.clear()
        work()
        once = 24  # requests that do not depend on the number of users, such as the list of them
        return [max(0, -(-(counts[unit] - once) // len(users))) for unit in UNITS[:2]]

    def command(name):
        assert CliRunner().invoke(app, [name, "--path", engine.url]).exit_code == 0

    def listed(store):
        assert len(store.run([List(limit=100)])[0]) == 2 * len(users)

    def searched(store):
        assert len(store.run([Search((), limit=100)])[0]) == 2 * len(users)

    def new():
        return ItemStore(Diary(engine.backend()))

    store = new()
    first = [cost(lambda: searched(new())), cost(lambda: listed(store))]
    later = [cost(lambda: searched(store)), cost(lambda: listed(store))]
    measured = {
        "the first `list_namespaces` or `search` of a process": map(max, zip(*first, strict=True)),
        "a later one": map(max, zip(*later, strict=True)),
        "`sweep_ttl` of a new process, if no item is over": cost(lambda: new().sweep()),
        "`tomldiary users`": cost(lambda: command("users")),
        "`tomldiary doctor`": cost(lambda: command("doctor")),
    }
    limits = documented(engine.name, "Calls over all users")
    assert {*measured} == {*limits}
    for name, found in measured.items():
        figures = [*found]
        assert all(a <= b for a, b in zip(figures, limits[name], strict=False)), (name, figures)
