"""Episodes: appended, never changed, read back in order, month by month."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from tomldiary import Diary
from tomldiary.engine.engine import Source
from tomldiary.errors import InvalidValue, UnknownEntry


@pytest.fixture
def alice(tmp_path):
    return Diary(tmp_path, agent="rules", durability="process").user("alice")


def kinds(user):
    return user.diary.engine.backend.kinds(user.user_id)


def test_each_month_has_one_document_of_episodes(alice):
    first = alice.add_episode(
        "hi", "hello", session_id="s1", now=datetime(2026, 1, 31, 23, tzinfo=UTC)
    )
    alice.add_episode("bye", "so long", session_id="s1", now=datetime(2026, 2, 1, tzinfo=UTC))
    assert first == "2026-01-31T23:00:00.000000Z"
    assert kinds(alice) == ["episodes/2026-01", "episodes/2026-02"]
    assert [(e.input, e.output, e.session_id) for e in alice.episodes()] == [
        ("hi", "hello", "s1"),
        ("bye", "so long", "s1"),
    ]
    assert alice.episodes.get(first) == alice.episodes()[0]
    assert (alice.episodes.get("other"), alice.as_of(0).episodes.get(first)) == (None, None)
    assert alice.why(f"episodes/{first}").session == "s1"
    assert alice.history(f"episodes/{first}")[0].after["input"] == "hi"


def test_two_episodes_of_one_instant_have_two_ids(alice):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    keys = [alice.add_episode(str(number), "", now=now) for number in range(5)]
    assert len(set(keys)) == 5
    assert [episode.input for episode in alice.episodes()] == ["0", "1", "2", "3", "4"]


def test_episodes_of_the_last_instant_of_a_month_are_all_kept(alice):
    now = datetime.max.replace(year=2026, month=1, tzinfo=UTC)
    for number in range(4):
        alice.episodes.add(str(number), "", now=now)
    assert [episode.input for episode in alice.episodes()] == ["0", "1", "2", "3"]


def test_session_messages_are_the_last_ones_of_a_session_in_order(alice):
    for number in range(30):
        session = "even" if number % 2 == 0 else "odd"
        alice.add_episode(f"q{number}", f"a{number}", session_id=session)
    found = alice.session_messages("even", limit=3)
    assert found == [
        {"role": "assistant", "content": "a26"},
        {"role": "user", "content": "q28"},
        {"role": "assistant", "content": "a28"},
    ]
    assert len(alice.session_messages("even")) == 20
    assert len(alice.session_messages("even", limit=None)) == 30
    assert alice.session_messages("nobody") == alice.session_messages("even", limit=0) == []
    assert [e.input for e in alice.episodes(limit=2)] == ["q28", "q29"]
    for ask in (alice.episodes, alice.session_messages):
        with pytest.raises(InvalidValue, match="expected a whole number of at least 0"):
            ask("even", limit=-1)


def test_a_document_that_is_full_is_followed_by_another(alice, monkeypatch):
    start = datetime(2026, 1, 1, tzinfo=UTC)
    keys = [
        alice.add_episode(f"q{n}", "x" * 35_000, session_id="s", now=start + timedelta(minutes=n))
        for n in range(12)
    ]
    assert kinds(alice)[:3] == ["episodes/2026-01", "episodes/2026-01-002", "episodes/2026-01-003"]
    assert [episode.id for episode in alice.episodes()] == keys
    assert alice.why(f"episodes/{keys[0]}").session == "s"
    for key in (keys[0], keys[-1]):
        assert alice.forget_episode(key).id == key
        with pytest.raises(UnknownEntry):
            alice.forget_episode(key)
    assert [episode.id for episode in alice.episodes()] == keys[1:-1]


@pytest.mark.parametrize("text", ["x" * 100_001, None, 7])
def test_text_that_is_too_long_or_no_text_is_refused(alice, text):
    for arguments in ((text, ""), ("", text)):
        with pytest.raises(InvalidValue, match=r"episodes\.(input|output)"):
            alice.add_episode(*arguments)
    assert kinds(alice) == []


def test_concurrent_episodes_are_all_kept(alice):
    barrier = threading.Barrier(8)

    def add(number):
        barrier.wait()
        with alice.transaction():
            alice.add_episode(f"q{number}", "a")
            alice.add_episode(f"r{number}", "a")

    threads = [threading.Thread(target=add, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [episode.input for episode in alice.episodes()]
    assert sorted(found) == sorted(f"{letter}{n}" for letter in "qr" for n in range(8))
    pairs = [found[at : at + 2] for at in range(0, 16, 2)]
    assert all(one[1:] == two[1:] for one, two in pairs)  # no other writer stored between the two


def test_recall_finds_episodes_by_word_and_time(alice):
    old = alice.add_episode(
        "Where is the walnut?", "In the jar.", now=datetime(2020, 1, 1, tzinfo=UTC)
    )
    new = alice.add_episode("A walnut again?", "Yes.")
    alice.upsert_preference("allergies", "walnut")
    assert {hit.key for hit in alice.recall("walnuts")} == {old, new, "allergies/pref001"}
    assert [hit.key for hit in alice.recall("walnut", kinds=["episodes"], limit=1)] == [new]
    border = datetime(2021, 1, 1)  # noqa: DTZ001 - without a zone: UTC
    assert [hit.key for hit in alice.recall("walnut", time_range=(None, border))] == [old]
    found = alice.recall("walnut", time_range=(border, None))
    assert {hit.key for hit in found} == {new, "allergies/pref001"}
    assert alice.recall("walnut", kinds=[]) == []


def test_a_past_state_has_the_episodes_of_then(alice):
    alice.add_episode("one", "1")
    alice.add_episode("two", "2")
    past = alice.as_of(1)
    assert [episode.input for episode in past.episodes()] == ["one"]
    assert [hit.text for hit in past.recall("one two")] == ["one\n1"]
    assert alice.rollback().undone == [2]
    assert [episode.input for episode in alice.episodes()] == ["one"]


@pytest.mark.parametrize("size", [500, 45_000])
def test_episodes_are_ordered_by_the_time_they_happened(alice, size):
    start = datetime(2026, 1, 30, tzinfo=UTC)
    hours = [30, 2, 60, 1, 31, 0, 3, 61]
    for hour in hours:
        alice.add_episode(f"q{hour}", "a" * size, session_id="s", now=start + timedelta(hours=hour))
    wanted = [f"q{hour}" for hour in sorted(hours)]
    assert [each.input for each in alice.episodes()] == wanted
    assert [each.input for each in alice.episodes(limit=3)] == wanted[-3:]
    told = [each["content"] for each in alice.session_messages("s", limit=4)]
    assert told == ["q60", "a" * size, "q61", "a" * size]


def test_imported_episodes_are_ordered_among_existing_ones(alice):
    start = datetime(2026, 1, 1, tzinfo=UTC)
    other = Diary("memory:", agent="rules").user("alice")
    for number in range(6):
        target = alice if number % 2 else other
        target.add_episode(f"q{number}", "a", session_id="s", now=start + timedelta(days=number))
    alice.import_(other.export())
    assert [each.input for each in alice.episodes("s")] == [f"q{n}" for n in range(6)]


def test_a_hand_written_time_orders_an_episode(alice):
    start = datetime(2026, 1, 10, tzinfo=UTC)
    for number in range(3):
        alice.add_episode(f"q{number}", "a", now=start + timedelta(days=number))
    with alice.diary.engine.transaction("alice", Source("test")) as tx:
        edit = tx.edit("episodes/2026-01")
        edit.put(
            ("episodes", "by-hand"),
            {"input": "q0.5", "output": "a", "_created": "2026-01-11T01:00:00+02:00"},
        )
        edit.put(("episodes", "no-time"), {"input": "?", "output": "a"})
    assert [each.input for each in alice.episodes()] == ["?", "q0", "q0.5", "q1", "q2"]


def test_an_episode_without_text_and_tool_calls_is_refused(alice):
    for said in ("", " \n"):
        with pytest.raises(InvalidValue, match="episodes: an episode needs an input, an output or"):
            alice.episodes.add(said, said)
    assert len(alice.episodes) == 0
    alice.episodes.add("", "", steps=[("search", "{}", "nothing")])
    assert len(alice.episodes) == 1


def test_blank_messages_are_left_out_of_a_session(alice):
    turns = [("hi", ""), ("", "Are you there?"), (" \n", " "), ("yes", "fine"), ("more", "ok")]
    steps = [("search", "{}", "nothing")]
    for number, (said, answered) in enumerate(turns):
        alice.add_episode(
            said,
            answered,
            session_id="s",
            now=datetime(2026, 1, 1 + number, tzinfo=UTC),
            steps=steps,
        )
    contents = ["hi", "Are you there?", "yes", "fine", "more", "ok"]
    assert [each["content"] for each in alice.session_messages("s")] == contents
    for limit in range(7):
        found = alice.session_messages("s", limit)
        assert [each["content"] for each in found] == contents[6 - limit :]
    assert [each["role"] for each in alice.session_messages("s", 6)][:3] == [
        "user",
        "assistant",
        "user",
    ]
    assert len(alice.episodes("s")) == 5
