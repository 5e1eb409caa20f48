"""Tests of several clients of one storage: in this process, in other processes, and in one that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any

import pytest

from tomldiary.entries.constraints import Constraint
from tomldiary.errors import Conflict, Forgotten, OperationConflict
from tomldiary.history.verify import verify
from tomldiary.storage.open import open_backend
from tomldiary.testing.backend.fixtures import BackendFixtures
from tomldiary.testing.backend.transactions import Diet

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tomldiary.user.user import UserDiary

    Pair = tuple[UserDiary, UserDiary]

_CLIENT = """
import sys
{opening}
from tomldiary import Diary
alice = Diary(backend, agent="rules", max_prefs_per_category=100_000, similarity=101).user("alice")
name, count = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(count)):
    alice.upsert_preference("likes", f"{{name}} {{number}}", operation_id=f"{{name}}-{{number}}")
    print(number, flush=True)
"""
_KILLED = """
import os, signal, sys
from tomldiary import Diary
from tomldiary.storage.open import open_backend

def write(name, last):
    scope = {}
    exec(sys.argv[1], scope)
    backend = open_backend(scope["backend"], None)
    commit, count = backend.commit, 0

    def note(*_):
        nonlocal count
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def noted(*arguments):
        sys.setprofile(note)
        try:
            return commit(*arguments)
        finally:
            sys.setprofile(None)

    backend.commit = noted
    alice = Diary(backend, agent="rules", similarity=101).user("alice")
    with alice.transaction() as transaction:
        transaction.upsert_preference("likes", name)
        transaction.blocks.append("log", name)
    return count

total, kills = 0, int(sys.argv[2])
for number in range(kills + 1):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a lock that a killed process keeps for good ends here
        total = write(f"drink{number}\\n", total * number // kills)
        os.write(writing, str(total).encode())
        os._exit(0)
    os.close(writing)
    total = int(os.read(reading, 20) or total)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, flush=True)
    if code not in (0, -signal.SIGKILL):
        break
"""
_TIME_LIMIT = 300.0  # seconds; only a broken backend takes longer


class Clients(BackendFixtures):
    """No client loses an update of another one, and each reads the writes of the others at once."""

    updates: int = 40
    """The number of updates of each process."""
    kills: int = 8
    """The number of processes that are killed within a commit."""

    def open_again(self, backend: Any) -> Any:
        """Return another backend on the same storage, as another process would open it."""
        raise NotImplementedError

    def opening_code(self, backend: Any) -> str:
        """Return Python code that opens the storage in another process and assigns it to `backend`."""
        raise NotImplementedError

    @pytest.fixture
    def again(self, backend: Any, closing: Callable[[Any], Any]) -> Callable[[], Any]:
        """Opens further backends on the same storage."""
        return lambda: closing(self.open_again(backend))

    @pytest.fixture
    def pair(self, backend: Any, again: Callable[[], Any]) -> Pair:
        """One user in two clients of the storage."""
        return self.diary(backend).user("alice"), self.diary(again()).user("alice")

    @contextmanager
    def _clients(self, backend: Any, *names: str) -> Generator[list[subprocess.Popen[str]]]:
        """Start a process for each name; all begin to write at the same time. Wait for them at the end."""
        code = _CLIENT.format(opening=self.opening_code(backend))
        with ExitStack() as stack:
            started = [
                stack.enter_context(
                    subprocess.Popen(  # noqa: S603 - runs the code above
                        [sys.executable, "-c", code, name, str(self.updates)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
                for name in names
            ]
            for each in started:
                assert _output(each).readline() == "ready\n"
            for each in started:
                assert each.stdin is not None
                each.stdin.write("go\n")
                each.stdin.flush()
            yield started

    def test_a_reopened_storage_has_everything(
        self, backend: Any, again: Callable[[], Any]
    ) -> None:
        alice = self.diary(backend).user("alice")
        alice.upsert_preference("likes", "tea", operation_id="op-1")
        alice.forget(session_id="none of these")
        alice.blocks.set("persona", "A gardener.")
        texts = {kind: alice.document(kind) for kind in alice.documents()}
        listed = [(entry.seq, entry.type) for entry in alice.history()]
        diary = self.diary(again())
        found = diary.user("alice")
        assert diary.users() == ["alice"]
        assert {kind: found.document(kind) for kind in found.documents()} == texts
        assert [(entry.seq, entry.type) for entry in found.history()] == listed
        epochs = [each.engine.backend.epoch("alice") for each in (diary, alice.diary)]
        assert epochs[0] == epochs[1]
        found.upsert_preference("likes", "tea", operation_id="op-1")
        with pytest.raises(OperationConflict):
            found.upsert_preference("likes", "coffee", operation_id="op-1")
        assert found.last_transaction() == alice.last_transaction()

    def test_each_client_reads_what_another_one_has_just_written(self, pair: Pair) -> None:
        one, two = pair
        for number in range(4):
            key, _ = one.upsert_preference("likes", f"drink zebra{number}")
            assert two.preferences("likes")[key].text == f"drink zebra{number}"
            assert two.recall(f"zebra{number}", limit=1)[0].text == f"drink zebra{number}"
            one, two = two, one
        one.forget(everything=True)
        assert two.preferences("likes") == {}

    def test_clients_append_to_one_text_without_a_loss(self, pair: Pair) -> None:
        one, two = pair
        one.blocks.set("log", "")
        barrier = threading.Barrier(2)

        def append(user: UserDiary, name: str) -> None:
            barrier.wait()
            for number in range(10):
                user.blocks.append("log", f"{name}{number}\n")

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(append, (one, two), "ab"))
        expected = [f"{name}{number}" for name in "ab" for number in range(10)]
        assert sorted(_lines(one), key=lambda line: line[0]) == expected

    def test_a_block_of_one_client_overwrites_no_write_of_another(self, pair: Pair) -> None:
        one, two = pair
        one.blocks.set("log", "0")
        has_read, failed = threading.Event(), list[Exception]()

        def write() -> None:
            has_read.wait(_TIME_LIMIT)
            two.blocks.append("log", "b")

        thread = threading.Thread(target=write)
        thread.start()
        try:
            with one.transaction() as transaction:
                before = transaction.blocks.get("log")
                has_read.set()
                thread.join(0.3)  # the thread has finished, or waits for this block
                transaction.blocks.set("log", f"{before and before.text}\na")
        except Conflict as error:
            failed.append(error)
        thread.join()
        assert _lines(two) == (["0", "b"] if failed else ["0", "a", "b"])
        with one.transaction() as transaction:
            transaction.blocks.append("log", "c")
        assert _lines(two)[-1] == "c"

    def test_a_constraint_holds_for_all_clients(self, pair: Pair) -> None:
        for each in pair:
            each.diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
        for user, name in zip(pair * 2, ("vegan", "none", "kosher", "halal"), strict=True):
            user.facts.commit(Diet(role="main", name=name))
        assert [each.data.name for each in pair[0].facts.query("diet")] == ["halal"]

    def test_what_one_client_forgets_no_other_one_brings_back(
        self, backend: Any, pair: Pair
    ) -> None:
        one, two = pair
        one.upsert_preference("likes", "the zebra on the roof", session_id="gone")
        one.upsert_preference("likes", "tea", session_id="kept")
        expected = ["tea", "coffee", "milk"]
        thread = threading.Thread(target=lambda: one.forget(session_id="gone"))
        try:
            with two.transaction() as transaction:
                transaction.upsert_preference("likes", "coffee")
                thread.start()
                thread.join(0.3)  # the thread has finished, or waits for this block
        except (Conflict, Forgotten):
            expected.remove("coffee")
        thread.join()
        two.upsert_preference("likes", "milk")
        assert "zebra" not in self.stored_text(backend)
        assert self.likes(one) == expected

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
    def test_a_process_killed_within_a_commit_leaves_no_part_of_it(self, backend: Any) -> None:
        program = [sys.executable, "-c", _KILLED, self.opening_code(backend), str(self.kills)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=_TIME_LIMIT)  # noqa: S603, PLW1510 - runs the code above
        codes = done.stdout.split()
        assert (codes[0], len(codes)) == ("0", self.kills + 1), done.stderr
        alice = self.diary(self.open_again(backend)).user("alice")
        assert "drink0" in _lines(alice)
        assert _lines(alice) == [each.strip() for each in self.likes(alice)]
        # A document that differs from history would be taken for a hand edit.
        assert {entry.type for entry in alice.history(limit=1000)} == {"transaction"}
        assert verify(open_backend(backend, None), "alice") is None

    def test_processes_lose_no_update_even_if_one_is_killed(
        self, backend: Any, again: Callable[[], Any]
    ) -> None:
        with self._clients(backend, "a", "b") as (killed, other):
            acknowledged = [_output(killed).readline() for _ in range(self.updates * 3 // 4)]
            killed.kill()
            acknowledged += _output(killed).read().splitlines()
            _output(other).read()  # until it has made all its updates
            assert other.wait(_TIME_LIMIT) == 0
        found = again()
        alice = self.diary(found).user("alice")
        kept = [text for text in self.likes(alice) if text.startswith("a ")]
        assert kept == [f"a {number}" for number in range(len(kept))]
        assert len(acknowledged) <= len(kept) <= len(acknowledged) + 1
        for number in range(self.updates):  # what is stored is not applied again
            alice.upsert_preference("likes", f"a {number}", operation_id=f"a-{number}")
        names = sorted(f"{name} {number}" for name in "ab" for number in range(self.updates))
        assert sorted(self.likes(alice)) == names
        sequences = [entry.seq for entry in alice.history(limit=10_000)]
        assert sequences == list(range(2 * self.updates, 0, -1))
        assert verify(open_backend(found, None), "alice") is None


def _lines(user: UserDiary) -> list[str]:
    """Return the lines of the block that clients append to."""
    block = user.blocks.get("log")
    return block.text.split() if block is not None else []


def _output(client: subprocess.Popen[str]) -> IO[str]:
    assert client.stdout is not None
    return client.stdout
