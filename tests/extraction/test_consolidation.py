"""Episodes become preferences and facts: each once, whatever fails, unless they are forgotten first."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from hand_edits import age
from tomldiary import Constraint, Diary, MemoryWriter
from tomldiary.cli.app import app
from tomldiary.errors import DiaryError, ExtractorUnusable, InvalidValue
from tomldiary.extraction.tools import commit_fact
from waiting import until

REFUSED = "an extractor or a compactor cannot flush or close its own writer"
START = datetime(2026, 1, 1, tzinfo=UTC)


class Home(BaseModel):
    who: str
    city: str


class Cities:
    """Stores the city that a message names; fails where told to."""

    def __init__(self, poisoned=()):
        self.poisoned = set(poisoned)
        self.read = []
        self.earlier = []
        self.pause = None

    async def run(self, message, *, deps):
        city = deps.user_msg.rpartition(" ")[2]
        self.read.append(city)
        self.earlier.append(len(deps.earlier))
        if self.pause is not None:
            await self.pause(city)
        if city in self.poisoned:
            raise ValueError("no JSON")
        deps.upsert("likes", None, f"likes {city}", ())
        context = type("Context", (), {"deps": deps})()
        assert (await commit_fact(context, "home", {"who": "user", "city": city})).startswith("✅")


@pytest.fixture
def cities():
    return Cities()


@pytest.fixture
def diary(cities, tmp_path):
    diary = Diary(tmp_path / "m", agent=cities)
    diary.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))
    return diary


@pytest.fixture
def alice(diary):
    alice = diary.user("alice")
    for number, city in enumerate(["Paris", "Tokyo", "Oslo"]):
        when = START + timedelta(days=number)
        alice.episodes.add(f"I live in {city}", "Noted.", session_id=f"s{number % 2}", now=when)
    return alice


def homes(alice, **how):
    return [fact.data.city for fact in alice.facts.query("home", **how)]


def test_episodes_are_read_once_in_the_order_of_their_time(alice, cities):
    alice.episodes.add("I lived in Rome", "", now=START - timedelta(days=1))
    done = alice.consolidate()
    assert (done.read, done.failed, cities.read) == (4, [], ["Rome", "Paris", "Tokyo", "Oslo"])
    assert homes(alice) == ["Oslo"]
    assert homes(alice, include_ended=True) == ["Rome", "Paris", "Tokyo", "Oslo"]
    assert homes(alice, valid_at=START + timedelta(hours=1)) == ["Paris"]
    assert alice.consolidate().read == 0
    alice.episodes.add("I live in Bern", "", now=START + timedelta(days=9))
    assert alice.consolidate().read == 1
    assert cities.read[4:] == ["Bern"]


def test_what_is_derived_knows_its_source_and_session(alice):
    alice.consolidate()
    first = alice.episodes()[0]
    (paris, *_) = alice.facts.query("home", include_ended=True)
    assert (paris.source, paris.created_by) == (f"episodes/{first.id}", "s0")
    assert alice.why("likes/pref001").turn == f"episodes/{first.id}"
    assert alice.history(limit=1)[0].type == "consolidate"


def test_a_bad_episode_keeps_out_no_other_and_is_tried_again(alice, cities):
    cities.poisoned = {"Paris"}
    done = alice.consolidate()
    assert (done.read, len(done.failed)) == (2, 1)
    assert sorted(homes(alice, include_ended=True)) == ["Oslo", "Tokyo"]
    assert alice.consolidate().failed == done.failed
    assert 'error = "ValueError"' in alice.document("consolidation/2026-01")
    assert "attempts = 2" in alice.document("consolidation/2026-01")
    cities.poisoned = set()
    assert alice.consolidate().read == 1
    assert cities.read == ["Paris", "Tokyo", "Oslo", "Paris", "Paris"]
    assert homes(alice) == ["Oslo"]


class Panic(BaseException):
    """What a library written in Rust raises when it fails."""


@pytest.mark.parametrize("error", [asyncio.CancelledError, Panic, InvalidValue("no city")])
def test_an_error_of_any_type_keeps_out_no_other_episode(alice, cities, error):
    async def fail(city):
        if city == "Paris":
            raise error

    cities.pause = fail
    done = alice.consolidate()
    assert (done.read, len(done.failed)) == (2, 1)


def test_an_episode_that_a_strict_hook_refuses_keeps_out_no_other(alice, diary):
    def refuse(changes):
        if any("likes Paris" in change.text for change in changes):
            raise ValueError

    diary.hooks.add(refuse, name="policy", strict=True)
    done = alice.consolidate()
    diary.hooks.close()
    assert (done.read, len(done.failed)) == (2, 1)
    assert homes(alice) == ["Oslo"]


def test_failed_episodes_are_tried_behind_new_ones(alice, cities):
    cities.poisoned = {"Paris"}
    alice.consolidate()
    alice.episodes.add("I live in Bern", "", now=START + timedelta(days=9))
    alice.consolidate(limit=1)
    assert cities.read[3:] == ["Bern"]


def test_an_extractor_that_cannot_run_marks_nothing(alice, diary):
    class Unusable:
        async def run(self, message, *, deps):
            raise ExtractorUnusable("no key")

    with pytest.raises(ExtractorUnusable):
        alice.consolidate(extractor=Unusable())
    assert "consolidation/2026-01" not in alice.documents()
    assert alice.consolidate().read == 3


def test_an_episode_without_a_session_removes_ten_preferences_at_most(tmp_path):
    def clear(message, *, deps):
        for number in range(1, 13):
            with suppress(DiaryError):
                deps.forget("likes", f"pref{number:03}")
        deps.upsert("dislikes", None, "tea")
        deps.upsert("dislikes", None, "tea")

    alice = Diary(tmp_path, agent=clear).user("alice")
    for number in range(12):
        alice.upsert_preference("likes", f"song {number}", id="new")
    alice.episodes.add("Clear my diary.", "Done.")
    assert alice.consolidate().skipped == []
    assert len(alice.preferences("likes")) == 2
    assert [item.count for item in alice.preferences("dislikes").values()] == [1]


def test_equal_texts_of_a_redacted_episode_are_stored_once(tmp_path):
    def tell(message, *, deps):
        deps.upsert("likes", None, "tea", ["anna@example.org", "bob@example.org"])

    alice = Diary(tmp_path, agent=tell, redact=True).user("alice")
    alice.episodes.add("I like tea.", "Noted.", session_id="s1")
    alice.consolidate()
    assert alice.preferences("likes")["pref001"].contexts == ["[redacted: email]"]


@pytest.mark.parametrize("session", ["s1", "s2"])
def test_an_episode_changes_no_summary(tmp_path, session):
    def extract(message, *, deps):
        deps.upsert("likes", None, deps.user_msg, ())
        deps.summarise(f"About {deps.user_msg}.", [deps.user_msg])

    alice = Diary(tmp_path, agent=extract).user("alice")
    alice.add_turn("tea", "Noted.", session_id="s1")
    alice.episodes.add("jazz", "Noted.", session_id=session, now=START)
    done = alice.consolidate()
    assert (done.applied, done.skipped) == (1, [])
    assert {name: each.summary for name, each in alice.conversations().items()} == {
        "s1": "About tea."
    }


def test_two_calls_at_once_store_nothing_twice(alice, cities):
    async def both():
        cities.pause = lambda _: asyncio.sleep(0.01)
        return await asyncio.gather(alice.aconsolidate(), alice.aconsolidate())

    one, two = asyncio.run(both())
    assert one.read + two.read == 3
    assert sorted(cities.read) == ["Oslo", "Paris", "Tokyo"]
    assert len(homes(alice, include_ended=True)) == 3
    assert [item.count for item in alice.preferences("likes").values()] == [1, 1, 1]


@pytest.mark.parametrize("fails", [False, True])
def test_an_episode_that_another_process_reads_meanwhile_is_stored_once(
    alice, cities, tmp_path, fails
):
    elsewhere = Cities()
    other = Diary(tmp_path / "m", agent=elsewhere)
    other.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))

    async def read(city):
        cities.pause = None
        await other.user("alice").aconsolidate(limit=2)
        if fails:
            raise ValueError(city)

    cities.pause = read
    done = alice.consolidate()
    assert (elsewhere.read, cities.read) == (["Paris", "Tokyo"], ["Paris", "Oslo"])
    assert (done.read, len(done.failed)) == (1, fails)
    assert [item.count for item in alice.preferences("likes").values()] == [1, 1, 1]
    assert "error" not in alice.document("consolidation/2026-01")


def test_an_episode_that_is_removed_during_a_consolidation_is_not_read(alice, cities, tmp_path):
    file = tmp_path / "m/alice/episodes/2026-01.toml"

    async def remove(city):
        cities.pause = None
        tables = file.read_text().split("\n[")
        file.write_text("\n[".join(each for each in tables if "Tokyo" not in each))
        age(file)

    cities.pause = remove
    assert alice.consolidate().read == 2
    assert cities.read == ["Paris", "Oslo"]


@pytest.mark.parametrize("everything", [True, False])
def test_forgetting_wins_over_a_running_consolidation(alice, cities, tmp_path, everything):
    async def forget(city):
        cities.pause = None
        if everything:
            await alice.aforget(everything=True)
        else:
            await alice.aforget(session_id="s0")

    cities.pause = forget
    alice.consolidate()
    kept = [] if everything else ["Tokyo"]
    assert homes(alice, include_ended=True) == kept
    files = [path.read_bytes() for path in (tmp_path / "m").rglob("*") if path.is_file()]
    assert not any(b"Paris" in text or b"Oslo" in text for text in files)


def test_forgetting_an_episode_forgets_what_was_derived(alice, tmp_path):
    alice.consolidate()
    source = f"episodes/{alice.episodes()[0].id}"
    alice.forget(source=source)
    assert homes(alice, include_ended=True) == ["Tokyo", "Oslo"]
    alice.forget(session_id="s0")
    assert homes(alice, include_ended=True) == ["Tokyo"]
    alice.forget(before=START + timedelta(days=1, hours=1))
    assert homes(alice, include_ended=True) == []
    files = [path.read_bytes() for path in (tmp_path / "m").rglob("*") if path.is_file()]
    assert not any(name in text for text in files for name in (b"Paris", b"Tokyo", b"Oslo"))


def test_forgetting_an_episode_by_key_forgets_what_was_derived(alice, cities):
    alice.consolidate()
    alice.episodes.add("I live in Rome", "", id="own-canary", now=START - timedelta(days=2))
    alice.consolidate()
    key = f"episodes/{alice.episodes()[1].id}"
    alice.upsert_preference("likes", "likes Paris", session_id="s7")  # confirmed, as with source=
    assert alice.forget(key=key, dry_run=True).entries > 1
    alice.forget(key=key)
    assert homes(alice, include_ended=True) == ["Tokyo", "Oslo", "Rome"]
    assert alice.traces("Paris") == []
    alice.forget(key="episodes/own-canary")
    assert homes(alice, include_ended=True) == ["Tokyo", "Oslo"]
    assert alice.traces("own-canary") == alice.traces("Rome") == []
    before = len(cities.read)
    assert (alice.consolidate().read, len(cities.read)) == (0, before)


def test_forgetting_an_episode_by_key_forgets_what_waits_for_review(cities, tmp_path):
    alice = Diary(tmp_path / "m", agent=cities, quarantine={"model"}).user("alice")
    alice.diary.register_schema("home", Home, Constraint(singleton_key="who"))
    key = f"episodes/{alice.episodes.add('I live in Paris', '')}"
    alice.consolidate()
    assert len(alice.review()) == 2
    alice.forget(key=key)
    assert (alice.review(), alice.traces("Paris")) == ([], [])


def test_turns_that_were_extracted_are_left_out(cities, tmp_path):
    diary = Diary(tmp_path, agent=cities, episodes=True)
    diary.register_schema("home", Home, Constraint(singleton_key="who"))
    alice = diary.user("alice")
    alice.add_turn("I live in Paris", "Noted.", "s1")
    assert alice.consolidate().read == 0
    assert alice.consolidate(include_read=True).read == 1
    assert len(homes(alice)) == 1


def test_what_was_found_in_the_episode_of_a_turn_names_the_turn(cities, tmp_path):
    diary = Diary(tmp_path, agent=lambda message, *, deps: None, episodes=True)
    diary.register_schema("home", Home, Constraint(singleton_key="who"))
    alice = diary.user("alice")
    alice.add_turn("I live in Paris", "Noted.", "s1")
    alice.consolidate(extractor=cities, include_read=True)
    found = {each.key for each in alice.history(source="s1#1")}
    assert found >= {"facts/home/user", "likes/pref001"}
    assert alice.facts["home/user"].source == alice.why("likes/pref001").turn == "s1#1"
    assert alice.episodes.get("s1#1").input == "I live in Paris"
    alice.forget(source="s1#1")
    assert alice.traces("Paris") == []
    assert all("done = true" not in alice.document(each) for each in alice.documents())


def test_the_earlier_exchanges_of_the_session_are_told(alice, cities):
    alice.consolidate()
    assert cities.earlier == [0, 0, 1]


def test_a_consolidation_can_be_undone_and_done_again(alice, cities):
    alice.consolidate(limit=1)
    alice.rollback()
    assert homes(alice, include_ended=True) == []
    assert alice.consolidate().read == 3
    assert cities.read == ["Paris", "Paris", "Tokyo", "Oslo"]


def test_a_new_process_goes_on_where_the_last_one_stopped(alice, diary, cities, tmp_path):
    alice.consolidate(limit=2)
    again = Diary(tmp_path / "m", agent=cities)
    again.fact_schemas = diary.fact_schemas
    assert again.user("alice").consolidate().read == 1
    assert homes(again.user("alice")) == ["Oslo"]


def test_a_writer_consolidates_in_the_background(alice, diary):
    with MemoryWriter(diary) as writer:
        future = writer.consolidate("alice")
        assert writer.flush(30)
        assert future.result(0).read == 3
    assert homes(alice) == ["Oslo"]
    with pytest.raises(RuntimeError, match="closed"):
        writer.consolidate("alice")


def test_an_extractor_that_flushes_in_a_consolidation_gets_an_error(alice, diary, cities):
    errors = []

    async def flush(city):
        try:
            writer.flush(5)
        except RuntimeError as error:
            errors.append(str(error))

    cities.pause = flush
    with MemoryWriter(diary) as writer:
        assert writer.consolidate("alice").result(30).read == 3
    assert [error.partition(",")[0] for error in errors] == [REFUSED] * 3


def test_a_writer_that_another_thread_closes_still_consolidates(alice, diary):
    writer = MemoryWriter(diary)
    closing = threading.Thread(target=writer.close_sync)
    jobs = writer._consolidations
    start = jobs.start

    def overtaken(user, loop):
        closing.start()
        closing.join(0.1)  # it waits for this call
        return start(user, loop)

    jobs.start = overtaken
    assert writer.consolidate("alice").result(30).read == 3
    closing.join()
    assert homes(alice) == ["Oslo"]


def test_closing_a_writer_ends_a_consolidation_and_keeps_what_was_read(alice, diary, cities):
    begun = threading.Event()

    async def pause(city):
        if city == "Tokyo":
            begun.set()
            await asyncio.sleep(60)

    cities.pause = pause
    writer = MemoryWriter(diary)
    future = writer.consolidate("alice")
    assert begun.wait(30)
    writer.close_sync(drain=False)
    assert future.cancelled()
    assert homes(alice) == ["Paris"]
    cities.pause = None
    assert alice.consolidate().read == 2


def test_a_writer_reads_first_what_an_ended_process_left(alice, diary, cities):
    with MemoryWriter(diary, consolidate_every=100) as writer:
        assert writer.flush(30)
        assert cities.read == ["Paris", "Tokyo", "Oslo"]
    assert homes(alice) == ["Oslo"]
    assert diary.engine.after_change == []


def test_a_writer_consolidates_after_so_many_transactions(alice, diary, cities):
    with MemoryWriter(diary, consolidate_every=8) as writer:
        assert writer.flush(30)  # its three transactions count too
        for number in range(4):
            alice.episodes.add(
                f"I live in city{number}", "", now=START + timedelta(days=9 + number)
            )
        assert writer.flush(30)
        assert len(cities.read) == 3
        alice.episodes.add("I live in Bern", "", now=START + timedelta(days=20))
        assert writer.flush(30)
        assert (len(cities.read), homes(alice)) == (8, ["Bern"])


def test_a_writer_consolidates_when_a_user_is_idle(diary, cities):
    begun = threading.Event()

    async def pause(city):
        begun.set()

    cities.pause = pause
    with MemoryWriter(diary, consolidate_after=0.05) as writer:
        alice = diary.user("alice")
        alice.episodes.add("I live in Bern", "", now=START)
        assert begun.wait(30)
        assert writer.flush(30)
        assert homes(alice) == ["Bern"]


def test_a_writer_that_is_collected_watches_no_more(diary):
    writer = MemoryWriter(diary, consolidate_after=60.0)
    assert len(diary.engine.after_change) == 1
    del writer
    until(lambda: gc.collect() >= 0 and diary.engine.after_change == [], 30)  # its threads hold it


def test_a_writer_works_if_a_backend_raises_an_error_of_its_driver(alice, diary, monkeypatch):
    backend, is_lost = diary.engine.backend, threading.Event()

    def users():
        raise ConnectionResetError

    def commit(*args, commit=backend.commit):
        tokens = commit(*args)
        is_lost.set()
        return tokens

    def last_record(user, last_record=backend.last_record):
        if is_lost.is_set():
            raise ConnectionResetError
        return last_record(user)

    for function in (users, commit, last_record):
        monkeypatch.setattr(backend, function.__name__, function)
    with MemoryWriter(diary, consolidate_every=100) as writer:
        assert writer.flush(30)
        alice.blocks.set("note", "stored")
        is_lost.clear()
        assert alice.blocks["note"].text == "stored"


def test_a_writer_gives_up_on_a_bad_episode_and_reads_the_others(alice, diary, cities):
    cities.poisoned = {"Paris"}
    with MemoryWriter(diary, consolidate_every=1) as writer:
        for number in range(12):
            alice.blocks.set("note", str(number))
            assert writer.flush(30)
    assert homes(alice) == ["Oslo"]
    assert cities.read.count("Paris") == 5
    cities.poisoned = set()
    assert alice.consolidate().read == 1


def test_a_writer_serves_other_users_after_an_exit_of_the_extractor(alice, diary, cities):
    async def leave(city):
        if city == "Paris":
            raise SystemExit

    cities.pause = leave
    diary.user("bob").episodes.add("I live in Rome", "Noted.", session_id="s")
    with MemoryWriter(diary, consolidate_every=100) as writer:
        assert writer.flush(30)
    assert cities.read == ["Paris", "Rome"]


def test_a_writer_asks_a_model_that_is_down_once_and_waits(alice, diary, cities):
    async def down(city):
        raise ConnectionError(city)

    cities.pause = down
    with MemoryWriter(diary, consolidate_every=100) as writer:
        assert writer.flush(30)
    assert cities.read == ["Paris"]
    cities.pause = None
    with MemoryWriter(diary, consolidate_every=100) as writer:
        assert writer.flush(30)
    assert sorted(cities.read[1:]) == ["Oslo", "Paris", "Tokyo"]


@pytest.mark.parametrize("wrong", [{"consolidate_every": 0}, {"consolidate_after": -1}])
def test_a_writer_refuses_a_schedule_that_never_comes(diary, wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected"):
        MemoryWriter(diary, **wrong)


def test_forgetting_wins_over_a_consolidation_of_the_writer(alice, diary, cities, tmp_path):
    async def forget(city):
        cities.pause = None
        await alice.aforget(everything=True)

    cities.pause = forget
    with MemoryWriter(diary, consolidate_every=100) as writer:
        assert writer.flush(30)
    assert alice.traces("Paris") == alice.documents() == []


def test_a_point_of_history_is_not_consolidated(alice):
    with pytest.raises(DiaryError, match="cannot be changed"):
        alice.as_of(1).consolidate()


def test_what_the_model_read_of_forgotten_memory_is_not_stored(alice):
    alice.upsert_preference("likes", "the secret walnut", session_id="gone")

    class Repeating:
        async def run(self, message, *, deps):
            known = [entry["text"] for _, entry in deps.preferences.items("likes")]
            if known:
                await alice.aforget(session_id="gone")
            deps.upsert("goals", None, f"repeat {known}", ())

    assert alice.consolidate(extractor=Repeating(), limit=1).read == 1
    assert [item.text for item in alice.preferences("goals").values()] == ["repeat []"]


def forgetting(alice, text, read):
    """Return an extractor that forgets a text while it reads the first episode, and notes what it was shown."""

    async def extractor(message, *, deps):
        if not read:
            await alice.aforget(matching=text)
        read.append((deps.user_msg, [said for said, _ in deps.earlier]))

    return extractor


def test_no_exchange_forgotten_meanwhile_is_shown_with_a_later_episode(alice):
    read = []
    alice.consolidate(extractor=forgetting(alice, "Paris", read))
    assert read[1:] == [("I live in Tokyo", []), ("I live in Oslo", [])]


def test_an_episode_is_read_as_an_erasure_left_it_meanwhile(alice, tmp_path):
    file = tmp_path / "m/alice/episodes/2026-01.toml"
    file.write_text(file.read_text().replace("in Oslo", "in a walnut"))
    os.utime(file, (1, 1))
    read = []
    alice.consolidate(extractor=forgetting(alice, "walnut", read))
    assert [said for said, _ in read[-2:]] == ["I live in Tokyo", "I live in Oslo"]


def test_an_episode_is_read_without_a_hand_edit_that_a_rule_forbids(alice, tmp_path):
    alice.diary.constrain("episodes", Constraint(immutable=True))
    file = tmp_path / "m/alice/episodes/2026-01.toml"
    file.write_text(file.read_text().replace("I live in", "I fled"))
    os.utime(file, (1, 1))
    read = []
    alice.consolidate(extractor=forgetting(alice, "walnut", read))
    assert read[-1] == ("I live in Oslo", ["I live in Paris"])


def test_the_command_line_consolidates(tmp_path):
    alice = Diary(tmp_path).user("alice")
    alice.episodes.add("I love chess.", "Fine.")
    words = ["consolidate", "--user", "alice", "--path", str(tmp_path)]
    found = CliRunner().invoke(app, [*words, "--json"])
    assert json.loads(found.stdout) == {"read": 1, "applied": 1, "skipped": [], "failed": []}
    assert CliRunner().invoke(app, words).stdout == "read     0\napplied  0\n"
    assert len(alice.preferences("likes")) == 1
