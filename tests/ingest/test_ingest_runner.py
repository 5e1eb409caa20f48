"""Ingest of chat logs: each turn is applied exactly once, also after an interruption."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import pytest
from pydantic import BaseModel

from tomldiary import Diary, PreferenceItem
from tomldiary.errors import BackendError, ExtractionError, Forgotten
from tomldiary.ingest import ingest, read_turns
from tomldiary.ingest.runner import operation_id

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("TOMLDIARY_BENCH_DATA") or ROOT / "../shared/data")
THINGS = ["tea", "jazz", "chess", "hiking", "rain", "cats", "opera", "soup", "maps", "snow"]


def chat(turns, *, sessions=3, extra=""):
    """Write-ready log: some statements come again and again, so that counts matter."""
    conversations = []
    for number in range(sessions):
        messages = []
        for turn in range(turns // sessions):
            thing = THINGS[(turn * 7 + number) % len(THINGS)]
            said = (
                f"I love {thing}{extra}." if turn % 3 else f"I really like {thing} {turn}{extra}."
            )
            messages += [
                {"role": "user", "content": said, "timestamp": f"2024-05-0{number + 1}T08:00:00Z"},
                {"role": "assistant", "content": f"Fine, {turn}."},
            ]
        conversations.append({"id": f"chat-{number}", "messages": messages})
    return conversations


def write(folder, conversations, name="log.json"):
    path = folder / name
    path.write_text(json.dumps(conversations), encoding="utf-8")
    return path


def documents(diary, user="ann"):
    """What is in memory, without the transaction numbers."""
    return {
        kind: [
            line
            for line in diary.user(user).document(kind).splitlines()
            if not line.startswith("seq =")
        ]
        for kind in ("preferences", "conversations")
    }


def turns_counted(diary, user="ann"):
    return {key: entry.turns for key, entry in diary.user(user).conversations().items()}


def every_byte(folder):
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path / "memories", agent="rules", durability="process")


def test_the_report_counts_turns_entries_and_bytes(tmp_path, diary):
    log = write(tmp_path, chat(30))
    seen = []
    report = ingest(diary, log, "ann", progress=lambda done, total: seen.append((done, total)))
    assert (report.turns, report.applied, report.skipped, report.notes) == (30, 30, 0, [])
    assert seen == [(number, 30) for number in range(1, 31)]
    assert report.entries == sum(map(len, diary.user("ann").preferences().values())) > 0
    assert report.bytes == sum(
        path.stat().st_size for path in (tmp_path / "memories/ann").glob("[!.]*.toml")
    )
    assert turns_counted(diary) == {"chat-0": 10, "chat-1": 10, "chat-2": 10}


def test_entries_have_the_dates_of_the_log(tmp_path, diary):
    ingest(diary, write(tmp_path, chat(6)), "ann")
    dates = {
        item.created
        for items in diary.user("ann").preferences().values()
        for item in items.values()
    }
    assert dates <= {
        datetime(2024, 5, day, 8, tzinfo=UTC).isoformat(timespec="microseconds")
        for day in (1, 2, 3)
    }


def test_reading_a_log_again_changes_no_byte(tmp_path, diary):
    log = write(tmp_path, chat(30))
    ingest(diary, log, "ann")
    before = every_byte(tmp_path / "memories/ann")
    seen = []
    again = ingest(diary, log, "ann", progress=lambda done, total: seen.append((done, total)))
    assert (again.applied, again.skipped) == (0, 30)
    assert seen == [(30, 30)]
    assert every_byte(tmp_path / "memories/ann") == before


def test_a_renamed_or_reformatted_log_is_recognised(tmp_path, diary):
    conversations = chat(12)
    ingest(diary, write(tmp_path, conversations), "ann")
    other = tmp_path / "other.json"
    other.write_text(json.dumps(conversations, indent=4), encoding="utf-8")
    assert ingest(diary, other, "ann").applied == 0


def test_only_appended_turns_are_applied(tmp_path, diary):
    conversations = chat(12)
    ingest(diary, write(tmp_path, conversations), "ann")
    conversations[1]["messages"] += [{"role": "user", "content": "I love geese."}]
    report = ingest(diary, write(tmp_path, conversations), "ann")
    assert (report.applied, report.skipped) == (1, 12)
    assert turns_counted(diary)["chat-1"] == 5


def test_each_user_gets_every_turn_of_the_same_log(tmp_path, diary):
    log = write(tmp_path, chat(6))
    assert ingest(diary, log, "ann").applied == 6
    assert ingest(diary, log, "Ben / \x1b" + "é" * 200).applied == 6
    assert diary.users() == sorted(["ann", "Ben / \x1b" + "é" * 200])


def test_forgetting_a_session_removes_its_operation_ids(tmp_path, diary):
    log = write(tmp_path, chat(12))
    ingest(diary, log, "ann")
    ids = {turn.position: operation_id(turn) for turn in read_turns(log).turns}
    forgotten = {id_ for position, id_ in ids.items() if "/chat-1/" in position}
    assert len(forgotten) == 4
    diary.user("ann").forget(session_id="chat-1")
    stored = b"".join(data for data, _ in every_byte(tmp_path / "memories").values()).decode(
        "ascii", "replace"
    )
    assert {id_ for id_ in ids.values() if id_ in stored} == {*ids.values()} - forgotten
    again = ingest(diary, log, "ann")
    assert (again.applied, again.skipped) == (4, 8)


def test_forgetting_a_turn_removes_its_operation_id(tmp_path):
    """Also if the turn left nothing but its count: the id is a digest of the text."""
    diary = Diary(tmp_path / "memories", agent=FailsAt(0), durability="process")
    log = write(tmp_path, chat(9))
    ingest(diary, log, "ann")
    diary.user("ann").forget(source="chat-1#2")
    stored = b"".join(data for data, _ in every_byte(tmp_path / "memories").values()).decode(
        "ascii", "replace"
    )
    left = [operation_id(turn) in stored for turn in read_turns(log).turns]
    assert left[:3] == left[6:] == [True] * 3
    assert not left[4]


def test_an_operation_id_is_no_digest_of_a_redacted_text(tmp_path):
    diary = Diary(tmp_path / "memories", agent="rules", redact=True)
    found = []
    for name in ("ann", "ben"):
        messages = [{"role": "user", "content": f"My mail is {name}@example.org."}]
        log = write(tmp_path, [{"id": "one", "messages": messages}])
        assert [ingest(diary, log, name).applied for _ in range(2)] == [1, 0]
        found.append(diary.engine.done_operations(name))
    assert [*found[0]] == [*found[1]] != []


def test_a_turn_of_before_the_diary_redacted_is_not_applied_again(tmp_path):
    messages = [{"role": "user", "content": "My mail is ann@example.org."}]
    log = write(tmp_path, [{"id": "one", "messages": messages}])
    for redact, applied in ((False, 1), (True, 0)):
        diary = Diary(tmp_path / "memories", agent="rules", redact=redact)
        assert ingest(diary, log, "ann").applied == applied


def test_retention_drops_operation_ids_with_their_transactions(tmp_path, diary):
    log = write(tmp_path, chat(6))
    ingest(diary, log, "ann")
    diary.user("ann").prune_history(keep=2)
    assert ingest(diary, log, "ann").skipped == 2


def test_a_log_can_be_applied_again_after_its_user_was_removed(tmp_path, diary):
    log = write(tmp_path, chat(6))
    ingest(diary, log, "ann")
    shutil.rmtree(tmp_path / "memories/ann")
    assert ingest(diary, log, "ann").applied == 6


def remove_the_folder(diary):
    shutil.rmtree(diary.engine.backend.base_path / "ann")


def forget_everything(diary):
    diary.user("ann").forget(everything=True)


@pytest.mark.parametrize("forget", [remove_the_folder, forget_everything])
def test_forgetting_the_user_during_an_ingest_stops_it(tmp_path, diary, forget):
    def forgetting(done, total):
        if done == 3:
            forget(diary)

    with pytest.raises(Forgotten, match="forgotten during the ingest"):
        ingest(diary, write(tmp_path, chat(12)), "ann", progress=forgetting)
    assert not (tmp_path / "memories/ann").exists()


def test_forgetting_during_an_extraction_prevents_its_commit(tmp_path):
    class Forgets:
        def run(self, message, /, *, deps):
            if "chess" in deps.user_msg:
                forget_everything(diary)

    diary = Diary(tmp_path / "memories", agent=Forgets(), durability="process")
    with pytest.raises(Forgotten):
        ingest(diary, write(tmp_path, chat(9)), "ann")
    assert not (tmp_path / "memories/ann").exists()


def test_a_memory_backend_recognises_turns_as_long_as_it_lives(tmp_path):
    diary = Diary("memory:", agent="rules")
    log = write(tmp_path, chat(12))
    assert ingest(diary, log, "ann").applied == 12
    assert ingest(diary, log, "ann").applied == 0
    diary.user("ann").forget(everything=True)
    assert ingest(diary, log, "ann").applied == 12
    assert ingest(Diary("memory:", agent="rules"), log, "ann").applied == 12


def test_ingest_refuses_a_backend_without_history(tmp_path):
    class Verbs:
        async def load(self, user_id, kind): ...
        async def save(self, user_id, kind, content): ...
        async def exists(self, user_id, kind): ...
        async def delete(self, user_id, kind): ...
        async def delete_user(self, user_id): ...
        async def list_users(self): ...

    with pytest.raises(BackendError, match="has no history"):
        ingest(Diary(Verbs(), agent="rules"), write(tmp_path, chat(6)), "ann")


# Interruptions


class FailsAt:
    """Counts its calls like any extractor, and breaks once."""

    def __init__(self, number):
        self.number, self.calls = number, 0

    def run(self, message, /, *, deps):
        self.calls += 1
        if self.calls == self.number:
            raise ValueError("no answer")


def test_a_rerun_starts_with_the_turn_that_failed(tmp_path):
    extractor = FailsAt(5)
    diary = Diary(tmp_path / "memories", agent=extractor, durability="process")
    log = write(tmp_path, chat(12))
    with pytest.raises(ExtractionError, match="no answer") as failed:
        ingest(diary, log, "ann")
    assert failed.value.__notes__ == [
        "Turns of the log that are stored: 4 of 12. Ingest it again to continue."
    ]
    assert sum(turns_counted(diary).values()) == 4
    report = ingest(diary, log, "ann")
    assert (report.applied, report.skipped) == (8, 4)
    assert sum(turns_counted(diary).values()) == 12


def test_a_turn_that_another_ingest_committed_is_not_applied_again(tmp_path):
    """The other ingest runs while the extractor reads the turn, so only the commit can notice it."""
    log = write(tmp_path, chat(9))

    class Slow:
        is_first = True

        def run(self, message, /, *, deps):
            if self.is_first:
                self.is_first = False
                ingest(other, log, "ann")
            deps.upsert("likes", None, deps.user_msg, [])

    diary = Diary(tmp_path / "memories", agent=Slow(), durability="process")
    other = diary.with_agent("rules")
    report = ingest(diary, log, "ann")
    assert (report.applied, report.skipped) == (0, 9)
    assert turns_counted(diary) == {"chat-0": 3, "chat-1": 3, "chat-2": 3}


def test_other_writes_of_the_user_are_not_counted_as_turns_of_the_log(tmp_path):
    diary = Diary(tmp_path / "memories", agent=FailsAt(4), durability="process")
    log = write(tmp_path, chat(9, sessions=1))

    def live(done, total):
        diary.user("ann").upsert_preference("likes", f"live {done}")

    with pytest.raises(ExtractionError):
        ingest(diary, log, "ann", progress=live)
    report = ingest(diary, log, "ann", progress=live)
    assert (report.applied, report.skipped) == (6, 3)
    assert turns_counted(diary) == {"chat-0": 9}


def forked(folder, log, turns=0, delay=0.0):
    """Fork a child that ingests a log, and kills itself `delay` seconds after some turns. Return its process id."""
    child = os.fork()
    if child == 0:
        code, begun = 3, count(1)
        killer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL))
        try:
            diary = Diary(folder, agent="rules", durability="process")
            ingest(diary, log, "ann", progress=lambda *_: next(begun) == turns and killer.start())
            code = 0
        finally:
            os._exit(code)
    return child


def ended(child):
    """Wait for a child and return its exit code, or its signal as a negative number."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_report_names_changes_that_the_table_refuses(tmp_path):
    class Rated(PreferenceItem):
        rank: int

    class Table(BaseModel):
        likes: dict[str, Rated] = {}

    diary = Diary(tmp_path / "memories", Table, agent="rules", durability="process")
    log = [{"role": "user", "content": "I love jazz."}, {"role": "assistant", "content": "Noted."}]
    [note] = ingest(diary, write(tmp_path, log * 2), "ann").notes
    assert note.startswith("2 changes were left out; the last one: likes.pref001.rank:")


def test_every_turn_is_applied_exactly_once_after_kills(tmp_path):
    log = write(tmp_path, chat(30))
    whole = Diary(tmp_path / "whole", agent="rules", durability="process")
    ingest(whole, log, "ann")
    expected = documents(whole)
    assert turns_counted(whole) == {"chat-0": 10, "chat-1": 10, "chat-2": 10}

    chance = random.Random(7)
    kills = 0
    for _ in range(40):
        code = ended(forked(tmp_path / "cut", log, chance.randint(1, 3), chance.random() * 0.01))
        assert code in (0, -signal.SIGKILL)
        if code == 0:
            break
        kills += 1
    else:
        pytest.fail("the ingest never came to its end")
    assert kills >= 4
    assert documents(Diary(tmp_path / "cut", agent="rules")) == expected


def test_concurrent_processes_apply_no_turn_twice(tmp_path):
    log = write(tmp_path, chat(30))
    children = [forked(tmp_path / "both", log) for _ in range(3)]
    assert [ended(child) for child in children] == [0, 0, 0]
    assert turns_counted(Diary(tmp_path / "both")) == {"chat-0": 10, "chat-1": 10, "chat-2": 10}


# Real conversations


def test_a_locomo_conversation_is_applied_completely(tmp_path, diary):
    file = DATA / "locomo" / "locomo-dev.json"
    if not file.is_file():
        pytest.skip("LoCoMo is not there")
    sample = json.loads(file.read_text("utf-8"))[:1]
    log = write(tmp_path, sample)
    report = ingest(diary, log, "caroline")
    assert report.turns == report.applied == len(read_turns(log).turns) > 150
    assert report.entries > 20
    assert sum(turns_counted(diary, "caroline").values()) == report.turns
    assert ingest(diary, log, "caroline").applied == 0
