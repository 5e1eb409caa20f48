"""What is forgotten goes from journals and dead letters too, also from those in use."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

import programs
from file_systems import HookedFiles
from tomldiary import Diary, Forgotten, MemoryWriter, Turn
from tomldiary.backends import LocalBackend
from tomldiary.entries.kinds.episodes import ToolStep
from tomldiary.errors import BackendError, ExtractionError, LockTimeout
from tomldiary.storage.files import unfinished
from tomldiary.storage.locks import remove_locked
from tomldiary.storage.protocol import Rewrite
from tomldiary.writer import journal, journals
from tomldiary.writer.attempts import RetryPolicy
from tomldiary.writer.dead_letters import DeadLetters
from tomldiary.writer.journal import render_turn
from tomldiary.writer.receipts import Job
from tomldiary.writer.worker import Workers

LONG = 120


class Gate:
    """An extractor that waits until it is let through, and stores what the user said."""

    def __init__(self):
        self.began, self.open = threading.Semaphore(0), threading.Event()
        self.seen = []

    async def run(self, message, *, deps):
        self.seen.append(deps.user_msg)
        self.began.release()
        while not self.open.is_set():  # noqa: ASYNC110 - the event is of another thread
            await asyncio.sleep(0.002)
        if deps.user_msg.startswith("bad"):
            raise ValueError(deps.user_msg)
        deps.upsert("likes", None, deps.user_msg, ())


def hits(folder, *words):
    return [
        (path.relative_to(folder).as_posix(), word)
        for path in folder.rglob("*")
        if path.is_file()
        for word in words
        if word.encode() in path.read_bytes()
    ]


def texts(diary, user="alice"):
    found = diary.user(user).preferences().values()
    return [item.text for items in found for item in items.values()]


def submit(writer, *texts, user="alice", session="s"):
    receipts = [writer.submit_nowait(Turn(user, session, text, "ok")) for text in texts]
    for receipt in receipts:
        assert receipt.wait_stored(LONG)
    return receipts


def test_only_queued_turns_of_the_forgotten_session_are_dropped(tmp_path):
    gate = Gate()
    diary = Diary(tmp_path, agent=gate)
    with MemoryWriter(diary, workers=1) as writer:
        [first] = submit(writer, "first", user="bob")
        assert gate.began.acquire(timeout=LONG)
        [gone] = submit(writer, "secret jazz", session="gone")
        [kept] = submit(writer, "tea", session="kept")
        assert hits(tmp_path, "secret")
        diary.user("alice").forget(session_id="gone")
        assert hits(tmp_path, "secret") == []
        gate.open.set()
        first.wait(LONG)
        with pytest.raises(Forgotten):
            gone.wait(LONG)
        kept.wait(LONG)
        stats = writer.stats()
    assert texts(diary) == ["tea"]
    assert "secret jazz" not in diary.user("alice").render()
    assert (stats["completed"], stats["failed"], stats["dead_letters"]) == (2, 1, 0)
    assert hits(tmp_path, "secret") == []


def test_forgetting_removes_queued_operations_of_its_turns(tmp_path):
    """It had read the memory that was forgotten; the turn is read again."""
    diary = Diary(tmp_path, agent=lambda message, *, deps: deps.upsert("likes", None, "copied", ()))
    writer = MemoryWriter(diary)
    receipts = []
    with diary.engine.backend.lock("alice", LONG):  # nothing can be committed meanwhile
        receipts += submit(writer, "a turn")
        folder = next((tmp_path / ".tomldiary" / "journal").iterdir())
        while not hits(folder, "copied"):
            threading.Event().wait(0.01)
        diary.user("bob").forget(everything=True)
        assert hits(folder, "copied")
        diary.engine.backend.rewrite("alice", Rewrite({"session_id": "another"}, 1))
        assert hits(tmp_path, "copied") == []
        assert hits(folder, "a turn")
    receipts[0].wait(LONG)
    assert texts(diary) == ["copied"]
    writer.close_sync()


def test_a_turn_that_waits_in_memory_is_refused_after_an_erasure(tmp_path):
    gate, forgotten = Gate(), threading.Event()

    def late(_name, path, *_args):
        if "/epochs" in path and threading.current_thread() is not threading.main_thread():
            forgotten.wait(LONG)

    files = HookedFiles()
    diary = Diary(LocalBackend(tmp_path, durability="none", files=files), agent=gate)
    diary.user("alice").upsert_preference("likes", "tea")
    files.hook = late
    with MemoryWriter(diary) as writer:
        receipt = writer.submit_nowait(Turn("alice", "s", "secret", "ok"))
        diary.user("alice").forget(everything=True)
        forgotten.set()
        gate.open.set()
        with pytest.raises(Forgotten):
            receipt.wait(LONG)
    assert hits(tmp_path, "secret") == []


def test_a_turn_of_a_run_before_an_erasure_joins_no_group_in_memory():
    gate = Gate()
    diary = Diary("memory:", agent=gate)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    began = alice.epoch
    alice.forget(everything=True)
    with MemoryWriter(diary, workers=1, coalesce=4) as writer:
        writer.submit_nowait(Turn("alice", "s", "juice", "ok"))
        assert gate.began.acquire(timeout=LONG)
        writer.submit_nowait(Turn("alice", "s", "coffee", "ok"))
        late = writer.submit_nowait(Turn("alice", "s", "secret", "ok", epoch=began))
        gate.open.set()
        with pytest.raises(Forgotten):
            late.wait(LONG)
    assert texts(diary) == ["juice", "coffee"]


def test_async_submits_in_memory_keep_their_order_and_read_no_disk(tmp_path):
    readers, slow = [], iter([0.1])

    def note(_name, path, *_args):
        if "/epochs" in path:
            readers.append(threading.current_thread())
            time.sleep(next(slow, 0))

    gate, files = Gate(), HookedFiles(note)
    gate.open.set()
    diary = Diary(LocalBackend(tmp_path, durability="none", files=files), agent=gate)
    said = [f"tea {number}" for number in range(9)]

    async def main():
        async with MemoryWriter(diary) as writer:
            await asyncio.gather(*(writer.submit("alice", "s", each, "ok") for each in said))

    asyncio.run(main())
    assert gate.seen == said
    assert readers
    assert threading.current_thread() not in readers


@pytest.mark.parametrize("verb", ["forget", "delete_user"])
def test_queued_turns_do_not_recreate_a_deleted_user(tmp_path, verb):
    gate = Gate()
    diary = Diary(tmp_path, agent=gate)
    diary.user("alice").upsert_preference("likes", "tea")
    with MemoryWriter(diary, workers=1) as writer:
        receipts = submit(writer, "secret one", "secret two")
        assert gate.began.acquire(timeout=LONG)
        if verb == "forget":
            diary.user("alice").forget(everything=True)
        else:
            asyncio.run(diary.backend.delete_user("alice"))
        gate.open.set()
        for receipt in receipts:
            with pytest.raises(Forgotten):
                receipt.wait(LONG)
        assert gate.seen == ["secret one"]  # the other was not even shown to the model
        assert hits(tmp_path, "secret", "alice") == []
        [again] = submit(writer, "coffee")
        again.wait(LONG)
    assert texts(diary) == ["coffee"]


def test_forgetting_covers_the_journal_of_a_closed_writer(tmp_path):
    gate = Gate()
    diary = Diary(tmp_path, agent=gate)
    writer = MemoryWriter(diary)
    submit(writer, "secret")
    submit(writer, "juice", user="bob")
    stats = writer.close_sync(drain=False)
    assert stats["pending"] == 2
    diary.user("alice").forget(everything=True)
    assert hits(tmp_path, "secret") == []
    gate.open.set()
    with MemoryWriter(diary) as writer:
        assert writer.flush(LONG)
    assert (texts(diary), texts(diary, "bob")) == ([], ["juice"])


@pytest.mark.parametrize(
    ("selector", "left"),
    [
        ({"source": "s"}, {"tango", "salsa", "waltz"}),
        ({"source": "s#7"}, {"jazz", "tango", "salsa", "waltz"}),  # an operation id is no number
        ({"key": "likes/pref001"}, {"jazz", "tango", "salsa", "waltz"}),
        ({"matching": "Jazz"}, {"tango", "salsa", "waltz"}),
        ({"matching": "nut bread"}, {"jazz", "salsa", "waltz"}),
        ({"before": "2025-05-02T09:59:59+00:00"}, {"jazz", "tango", "salsa", "waltz"}),
        ({"before": "2025-05-02T10:00:01+00:00"}, {"jazz", "tango", "waltz"}),
        ({"before": datetime.max.replace(tzinfo=UTC)}, set()),
    ],
)
def test_each_selector_chooses_among_waiting_turns(tmp_path, selector, left):
    diary, noon = Diary(tmp_path, agent=Gate()), datetime(2025, 5, 3, 12, tzinfo=UTC)
    writer = MemoryWriter(diary)
    for turn in (
        Turn("alice", "s", "jazz", "ok", operation_id="7"),
        Turn("alice", "t", "tango", "ok", steps=[ToolStep("find", "", "walnut bread")]),
        Turn("alice", "t", "salsa", "ok", datetime(2025, 5, 2, 10)),  # noqa: DTZ001 - UTC
        Turn("alice", "t", "waltz", "ok", noon, earlier=[("walnut bread?", "Yes.")]),
    ):
        assert writer.submit_nowait(turn).wait_stored(LONG)
    writer.close_sync(drain=False)
    diary.user("alice").upsert_preference("likes", "tea")
    diary.user("alice").forget(**selector)
    assert {each for _, each in hits(tmp_path, "jazz", "tango", "salsa", "waltz")} == left
    assert bool(hits(tmp_path, "walnut")) == ("tango" in left)


@pytest.mark.parametrize("selector", [{"key": "likes/pref001"}, {"source": "s#1"}])
def test_a_turn_that_is_done_leaves_the_journal_of_a_running_writer(tmp_path, selector):
    gate = Gate()
    gate.open.set()
    diary = Diary(tmp_path, agent=gate)
    with MemoryWriter(diary) as writer:
        for text in ("secret", "coffee"):
            for receipt in submit(writer, text):
                receipt.wait(LONG)
        alice = diary.user("alice")
        assert "secret" in texts(diary)
        assert alice.traces("secret") != []
        alice.forget(**selector)
        assert (alice.traces("secret"), hits(tmp_path, "secret")) == ([], [])
        assert texts(diary) == ["coffee"]


@pytest.mark.parametrize(
    "selector", [{"key": "likes/pref001"}, {"source": "s#1"}, {"source": "s#2"}, {"source": "s"}]
)
def test_turns_that_were_read_together_leave_the_journal_together(tmp_path, selector):
    gate = Gate()
    diary = Diary(tmp_path, agent=gate)
    with MemoryWriter(diary, workers=1, coalesce=2) as writer:
        submit(writer, "the first", user="bob")
        assert gate.began.acquire(timeout=LONG)
        receipts = submit(writer, "secret one", "secret two")
        # Their operations are in a later file than they are.
        others = [submit(writer, f"{n}" * 9000, user=f"user {n}")[0] for n in range(8)]
        gate.open.set()
        for receipt in (*receipts, *others):
            receipt.wait(LONG)
        assert texts(diary) == ["secret one\n\nsecret two"]
        diary.user("alice").forget(**selector)
        assert hits(tmp_path, "secret") == []


@pytest.fixture
def together(tmp_path):
    """A user with a turn that was read alone, three that were read together, and a last one."""
    gate = Gate()
    diary = Diary(tmp_path, agent=gate, episodes=True)
    with MemoryWriter(diary, workers=1, coalesce=3) as writer:
        submit(writer, "tea")
        assert gate.began.acquire(timeout=LONG)
        submit(writer, "secret one", "two", "three", "juice")
        gate.open.set()
        assert writer.flush(LONG)
    assert gate.seen == ["tea", "secret one\n\ntwo\n\nthree", "juice"]
    return diary.user("alice")


def test_what_was_read_together_names_all_its_turns_and_an_episode_its_own(together):
    sources = [together.why(f"likes/pref00{number}").turn for number in (1, 2, 3)]
    assert sources == ["s#1", "s#2-4", "s#5"]
    assert [each.source for each in together.episodes()] == [f"s#{n}" for n in range(1, 6)]
    for source, said in {"s#2": "secret one", "s#3": "two", "s#2-4": "three"}.items():
        found = together.history(source=source)
        assert [each.key for each in found if each.key[:6] == "likes/"] == ["likes/pref002"]
        assert together.episodes.get(source).input == said
    assert together.episodes.get("s#2-1") is None


@pytest.mark.parametrize(
    ("selector", "episodes"),
    [
        ({"source": "s#2"}, [1, 3, 4, 5]),
        ({"source": "s#4"}, [1, 2, 3, 5]),
        ({"source": "s#2-4"}, [1, 5]),
        ({"key": "episodes/{}"}, [1, 3, 4, 5]),
    ],
)
def test_what_was_read_together_goes_with_each_of_its_turns(together, selector, episodes):
    second = together.episodes()[1].id
    selector = {name: value.format(second) for name, value in selector.items()}
    assert "likes/pref002" in together.forget(**selector, dry_run=True).keys
    together.forget(**selector)
    assert [item.text for item in together.preferences("likes").values()] == ["tea", "juice"]
    assert [each.source for each in together.episodes()] == [f"s#{n}" for n in episodes]
    assert bool(together.traces("secret")) == (2 in episodes)


@pytest.mark.parametrize("selector", [{"source": "s#1"}, {"source": "s#5"}, {"source": "t#2"}])
def test_another_turn_leaves_what_was_read_together(together, selector):
    together.forget(**selector)
    assert "secret one\n\ntwo\n\nthree" in [
        item.text for item in together.preferences("likes").values()
    ]


@pytest.mark.parametrize(
    ("selector", "left"),
    [({"session_id": "s"}, []), ({"session_id": "t"}, ["bad secret"]), ({"everything": True}, [])],
)
def test_forgetting_covers_dead_letters(tmp_path, selector, left):
    gate = Gate()
    gate.open.set()
    diary = Diary(tmp_path, agent=gate)
    with MemoryWriter(diary, retry=RetryPolicy(1)) as writer:
        for receipt in submit(writer, "bad secret"):
            with pytest.raises(Exception, match="bad secret"):
                receipt.wait(LONG)
    letters = DeadLetters(diary.engine.backend)
    assert [letter.turn.user_msg for letter in letters.list()] == ["bad secret"]
    diary.user("alice").forget(**selector)
    assert [letter.turn.user_msg for letter in letters.list()] == left
    assert bool(hits(tmp_path, "secret")) == bool(left)


@pytest.mark.parametrize("selector", [{"matching": "secret"}, {"session_id": "gone"}])
def test_the_error_of_a_dead_letter_quotes_nothing_forgotten(tmp_path, selector):
    def fail(message, *, deps):
        raise ValueError(f"the memory says: {message}")

    diary = Diary(tmp_path, agent=fail)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "secret gardens", session_id="gone")
    with MemoryWriter(diary, retry=RetryPolicy(1)) as writer:
        for receipt in submit(writer, "tea"):
            with pytest.raises(ExtractionError):
                receipt.wait(LONG)
    assert ".tomldiary/dead-letters/alice.toml" in alice.traces("secret")
    alice.forget(**selector)
    assert alice.traces("secret") == []
    [letter] = DeadLetters(diary.engine.backend).list()
    assert (letter.turn.user_msg, letter.error) == ("tea", "ExtractionError")


def test_a_forgotten_turn_that_fails_afterwards_is_not_in_the_dead_letters(tmp_path):
    gate = Gate()
    diary = Diary(tmp_path, agent=gate)
    with MemoryWriter(diary, retry=RetryPolicy(1)) as writer:
        [gone] = submit(writer, "bad secret", session="gone")
        assert gate.began.acquire(timeout=LONG)
        diary.user("alice").forget(session_id="gone")
        gate.open.set()
        with pytest.raises(Forgotten):
            gone.wait(LONG)
        assert (writer.stats()["failed"], writer.stats()["dead_letters"]) == (1, 0)
    assert hits(tmp_path, "secret") == []


def test_a_failing_turn_is_parked_though_another_text_was_forgotten(tmp_path):
    gate = Gate()
    diary = Diary(tmp_path, agent=gate)
    with MemoryWriter(diary, retry=RetryPolicy(1)) as writer:
        [kept] = submit(writer, "bad tea")
        assert gate.began.acquire(timeout=LONG)
        diary.user("alice").forget(session_id="another")
        gate.open.set()
        with pytest.raises(ExtractionError):
            kept.wait(LONG)
    [letter] = DeadLetters(diary.engine.backend).list()
    assert (letter.turn.user_msg, letter.epoch) == ("bad tea", 1)


@pytest.mark.parametrize("forgotten", ["s", "another"])
def test_a_turn_waits_until_it_is_known_whether_it_was_forgotten(tmp_path, forgotten):
    class Backend(LocalBackend):
        failures = 0

        def lock(self, user, timeout):
            if self.failures:
                self.failures -= 1
                raise BackendError("the disk is away")
            return super().lock(user, timeout)

    gate, backend = Gate(), Backend(tmp_path)
    diary = Diary(backend, agent=gate)
    with MemoryWriter(diary, retry=RetryPolicy(1, longest_pause=0.01)) as writer:
        [receipt] = submit(writer, "secret")
        assert gate.began.acquire(timeout=LONG)
        diary.user("alice").forget(session_id=forgotten)
        backend.failures = 3
        gate.open.set()
        if forgotten == "s":
            with pytest.raises(Forgotten):
                receipt.wait(LONG)
        else:
            assert receipt.wait(LONG).applied == 1
        assert (backend.failures, writer.stats()["dead_letters"]) == (0, 0)
    assert bool(hits(tmp_path, "secret")) is (forgotten != "s")


def test_a_turn_that_ends_during_forget_is_not_applied_again(tmp_path, files, monkeypatch):
    """By then, the user's fencing token is new, and the turn is still in the journal."""
    gate = Gate()
    diary = Diary(LocalBackend(tmp_path, files=files), agent=gate)
    looked = threading.Event()
    still_wanted = Workers._still_wanted

    def look(workers, jobs):
        looked.set()
        return still_wanted(workers, jobs)

    def forget_late(name, path, *_):
        if name == "open" and "/journal/" in path:
            files.hook = None
            gate.open.set()
            assert looked.wait(LONG)

    monkeypatch.setattr(Workers, "_still_wanted", look)
    with MemoryWriter(diary) as writer:
        [gone] = submit(writer, "secret", session="gone")
        assert gate.began.acquire(timeout=LONG)
        files.hook = forget_late
        diary.user("alice").forget(session_id="gone")
        with pytest.raises(Forgotten):
            gone.wait(LONG)
    assert (gate.seen, hits(tmp_path, "secret")) == (["secret"], [])


ALONE = """\
import asyncio, sys
from tomldiary.backends import LocalBackend
from tomldiary.entries.kinds.episodes import ToolStep

backend = LocalBackend(sys.argv[1])
assert not [name for name in sys.modules if name.startswith("tomldiary.writer")]
asyncio.run(getattr(backend, sys.argv[2])(*sys.argv[3:]))
"""


@pytest.mark.parametrize("stored_by", ["s", "another session"])
@pytest.mark.parametrize("call", [("load", "alice", "preferences"), ("delete_user", "alice")])
def test_a_backend_alone_redacts_queued_turns(tmp_path, files, call, stored_by):
    """The process that finishes a forget job may never have used a writer."""

    def refuse(name, path, *_):
        if name == "open" and "/journal/" in path:
            raise OSError(errno.EIO, "Input/output error", path)

    diary = Diary(LocalBackend(tmp_path, files=files), agent=Gate())
    diary.user("alice").upsert_preference("likes", "tea", session_id=stored_by)
    writer = MemoryWriter(diary)
    submit(writer, "secret")
    writer.close_sync(drain=False)
    if call[0] == "load":
        files.hook = refuse
        with pytest.raises(BackendError, match="is opened next"):
            diary.user("alice").forget(session_id="s")
    assert hits(tmp_path, "secret")
    programs.run("-c", ALONE, tmp_path, *call, imported=("tomldiary.diary",), check=True)
    assert hits(tmp_path, "secret") == []
    assert not list(tmp_path.glob("alice/.forgetting*"))


def test_forget_drops_only_its_turns_of_a_group(tmp_path):
    gate = Gate()
    diary = Diary(tmp_path, agent=gate)
    with MemoryWriter(diary, workers=1, coalesce=4) as writer:
        submit(writer, "first", user="bob")
        assert gate.began.acquire(timeout=LONG)
        [gone] = submit(writer, "secret")
        middle = datetime.now(UTC)
        kept = submit(writer, "tea", "juice", "milk")
        diary.engine.backend.rewrite("alice", Rewrite({"before": middle.isoformat()}, 1))
        gate.open.set()
        with pytest.raises(Forgotten):
            gone.wait(LONG)
        for receipt in kept:
            receipt.wait(LONG)
        stats = writer.stats()
    assert [text for text in texts(diary) for text in text.split("\n\n")] == [
        "tea",
        "juice",
        "milk",
    ]
    assert (stats["completed"], stats["failed"], stats["pending"]) == (4, 1, 0)
    assert hits(tmp_path, "secret") == []


def test_a_dead_letter_requeued_during_forget_is_forgotten(tmp_path, files):
    gate = Gate()
    gate.open.set()
    diary = Diary(LocalBackend(tmp_path, files=files), agent=gate)
    with MemoryWriter(diary, retry=RetryPolicy(1)) as writer:
        for receipt in submit(writer, "bad secret", session="gone"):
            with pytest.raises(ExtractionError):
                receipt.wait(LONG)
    letters = DeadLetters(diary.engine.backend)
    found, taken = letters.list(), []
    requeuer = threading.Thread(target=lambda: taken.extend(letters.requeue(found)))

    def requeue_meanwhile(name, path, *_):
        if name == "open" and "dead-letters" in path:
            files.hook = None
            requeuer.start()
            requeuer.join(0.3)  # it comes to its end if nothing holds it

    files.hook = requeue_meanwhile
    diary.user("alice").forget(session_id="gone")
    requeuer.join(LONG)
    assert [letter.turn.user_msg for letter in found] == ["bad secret"]
    assert taken == []
    assert hits(tmp_path, "secret") == []


def test_forget_removes_operations_of_its_turns_from_later_segments(tmp_path):
    gate, may_go = Gate(), threading.Event()

    class Extractor:
        async def run(self, message, *, deps):
            if deps.user_msg != "a turn":
                return await gate.run(message, deps=deps)
            while not may_go.is_set():  # noqa: ASYNC110 - the event is of another thread
                await asyncio.sleep(0.002)
            return deps.upsert("likes", None, "secret copy", ())

    diary = Diary(tmp_path, agent=Extractor())
    root = tmp_path / ".tomldiary" / "journal"
    with MemoryWriter(diary) as writer:
        [applied] = submit(writer, "a turn")
        receipts = [
            receipt  # one after the other, so that they are not stored together
            for text in ("tea", *(each * 9000 for each in "abcdefgh"), "juice")
            for receipt in submit(writer, text, user="bob")
        ]
        assert len(list(root.glob("*/*.toml"))) > 1
        may_go.set()
        applied.wait(LONG)
        [(place, _)] = hits(root, "secret copy")
        assert not place.endswith("000001.toml")
        diary.user("alice").forget(everything=True)
        assert hits(tmp_path, "secret copy") == []
        gate.open.set()
        for receipt in receipts:
            receipt.wait(LONG)


def test_turns_stored_since_the_token_of_an_erasure_stay(tmp_path, files):
    made = journal.Journal.create(tmp_path / "journal", sync=False)
    for epoch, said in enumerate(("jazz", "tango")):
        job = Job(Turn("alice", "s", said, "ok"), said, is_new=True)
        job.rendered = render_turn(job.turn, job.operation, "2026-11-20T00:00:00+00:00")
        made.append_turns([job], lambda _user, epoch=epoch: epoch)
    journals.forget_turns(tmp_path / "journal", "alice", {"everything": True}, 1, files)
    assert [each for _, each in hits(tmp_path, "jazz", "tango")] == ["tango"]
    made.drop()


@pytest.mark.parametrize(
    ("place", "is_done"),
    [("dead-letters/alice", False), ("journal/one/000001", False), ("journal/one/000001", True)],
)
def test_what_a_killed_write_left_beside_a_file_is_erased(tmp_path, files, place, is_done):
    path = tmp_path / ".tomldiary" / f"{place}.toml"
    path.parent.mkdir(parents=True)
    path.touch()
    unfinished(path).write_text("secret")
    if is_done:
        remove_locked(files, path)  # all its turns were applied
    Diary(tmp_path).user("alice").forget(everything=True)
    assert hits(tmp_path, "secret") == []


@pytest.mark.parametrize("is_set_aside", [False, True])
def test_damaged_records_of_any_journal_are_erased(tmp_path, files, is_set_aside):
    made = journal.Journal.create(tmp_path / "journal", sync=False)
    for said in ("secret", "tea"):
        job = Job(Turn("bob", "s", said, "ok"), said, is_new=True)
        job.rendered = render_turn(job.turn, job.operation, "2026-11-20T00:00:00+00:00")
        made.append_turns([job], lambda _user: 0)
    made.drop()
    [path] = made.folder.glob("*.toml")
    path.write_bytes(path.read_bytes().replace(b"bob", b"b0b", 1))
    if is_set_aside:
        journal.Journal.adopt(made.folder, sync=False)[0].drop()
        assert path.with_suffix(".damaged").exists()
    journals.forget_turns(tmp_path / "journal", "alice", {"everything": True}, 1, files)
    assert [each for _, each in hits(tmp_path, "secret", "tea")] == ["tea"]


@pytest.mark.parametrize("selector", [{"everything": True}, {"matching": "secret"}])
def test_nothing_is_forgotten_while_the_storage_of_a_turn_hangs(tmp_path, files, selector):
    gate, released = Gate(), threading.Event()
    diary = Diary(LocalBackend(tmp_path, files=files), agent=gate, lock_timeout=0.1)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "secret tea")

    def hang(_name, path, *_):
        if "journal" in str(path):
            released.wait(10)

    files.hook = hang
    with MemoryWriter(diary) as writer:
        receipt = writer.submit_nowait(Turn("alice", "s", "secret", "ok"))
        with pytest.raises(LockTimeout, match=r"not stored after 0\.1 s\. Nothing was forgotten"):
            alice.forget(**selector)
        assert texts(diary) == ["secret tea"]
        released.set()
        assert receipt.wait_stored(LONG)
        alice.forget(**selector)
        gate.open.set()
        with pytest.raises(Forgotten):
            receipt.wait(LONG)
    assert hits(tmp_path, "secret") == []


def test_an_erasure_waits_for_no_turn_of_another_memory(tmp_path, files):
    released = threading.Event()

    def hang(_name, path, *_):
        if "journal" in str(path):
            released.wait(10)

    files.hook = hang
    alice = Diary(tmp_path / "a", lock_timeout=0.1).user("alice")
    alice.upsert_preference("likes", "secret tea")
    with MemoryWriter(Diary(LocalBackend(tmp_path / "b", files=files), agent="rules")) as writer:
        writer.submit_nowait(Turn("alice", "s", "secret", "ok"))
        try:
            assert alice.forget(matching="secret").records == 1
        finally:
            released.set()


@pytest.mark.parametrize("durability", ["full", "none"])
def test_an_erasure_waits_for_the_turns_of_every_backend_of_its_folder(tmp_path, files, durability):
    released = threading.Event()
    (tmp_path / "other name").symlink_to(tmp_path / "memory")
    (tmp_path / "other disk").mkdir()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / ".tomldiary").symlink_to(tmp_path / "other disk")
    backend = LocalBackend(tmp_path / "other name", durability=durability)
    alice = Diary(backend, lock_timeout=0.1).user("alice")

    def hang(_name, path, *_):
        if "journal" in str(path):
            released.wait(10)

    files.hook = hang
    diary = Diary(LocalBackend(tmp_path / "memory", files=files), agent="rules")
    with MemoryWriter(diary) as writer:
        writer.submit_nowait(Turn("alice", "s", "I like tea.", "ok"))
        try:
            with pytest.raises(LockTimeout):
                alice.forget(everything=True)
        finally:
            released.set()


def test_an_erasure_waits_for_no_turn_that_is_submitted_after_its_begin(tmp_path, files):
    begun, waiting = (threading.Semaphore(0) for _ in range(2))
    gates = [threading.Event(), threading.Event()]
    left = iter(gates)

    def hang(name, path, *_):
        if name == "sync_data" and "journal" in str(path):
            begun.release()
            next(left).wait(LONG)

    def note(frame, event, _):
        waits = frame.f_code is threading.Condition.wait_for.__code__
        if event == "call" and waits and frame.f_back.f_code.co_name == "await_stored":
            waiting.release()

    diary = Diary(LocalBackend(tmp_path, files=files), agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    with MemoryWriter(diary) as writer, ThreadPoolExecutor(1) as pool:
        files.hook = hang
        threading.setprofile(note)
        try:
            for number in range(2):
                writer.submit_nowait(Turn("alice", "s", "Hello.", "ok"))
                if number == 0:
                    assert begun.acquire(timeout=LONG)
                    erasing = pool.submit(alice.forget, everything=True)
                    assert waiting.acquire(timeout=LONG)
            gates[0].set()
            assert begun.acquire(timeout=LONG)  # the second turn is being stored
            erasing.result(LONG)
        finally:
            threading.setprofile(None)
            files.hook = None
            for gate in gates:
                gate.set()


def test_a_file_removed_during_forget_is_not_recreated(tmp_path, files):
    made = journal.Journal.create(tmp_path / "journal", sync=False, segment_bytes=0)
    jobs = [Job(Turn(user, "s", "tea", "ok"), user, is_new=True) for user in ("alice", "bob")]
    for job in jobs:
        job.rendered = render_turn(job.turn, job.operation, "2026-11-20T00:00:00+00:00")
        made.append_turns([job], lambda _user: 0)
    assert sorted(path.name for path in made.folder.glob("*.toml")) == [
        "000001.toml",
        "000002.toml",
    ]
    finisher = threading.Thread(target=lambda: made.finish(jobs[:1]))

    def finish_meanwhile(name, path, *_):
        if name == "open" and path.endswith(".tmp"):
            finisher.start()
            finisher.join(0.3)  # it comes to its end if nothing holds it

    files.hook = finish_meanwhile
    journals.forget_turns(tmp_path / "journal", "alice", {"session_id": "s"}, 1, files)
    finisher.join(LONG)
    assert [path.name for path in made.folder.glob("*.toml")] == ["000002.toml"]
    made.drop()
