"""Cleaning up: when it is due, that it never costs a turn, and what a compactor may and may not do."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
import tomllib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import BaseModel

import programs
from tomldiary import CompactionConfig, Diary, MemoryWriter, PreferenceItem, RetryPolicy, Turn
from tomldiary.compaction import tools
from tomldiary.compaction.draft import CompactionDeps, CompactionStats
from tomldiary.errors import Conflict, InvalidValue, MissingExtra, UnknownEntry

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
BOTH = ("preferences", "conversations")


class Table(BaseModel):
    """likes : what the person enjoys"""

    likes: dict[str, PreferenceItem] = {}


class Context:
    def __init__(self, deps):
        self.deps = deps


def run(work):
    return asyncio.run(work)


def remember(message, *, deps):
    if not deps.user_msg.startswith("nothing"):
        deps.upsert("likes", None, deps.user_msg, ())


class Recording:
    """A compactor that notes when it was called, and does what it was given to do."""

    def __init__(self, work=None):
        self.calls = []
        self._work = work

    async def run(self, message, *, deps):
        self.calls.append((deps.include_preferences, deps.include_conversations))
        if self._work is not None:
            done = self._work(deps)
            if inspect.isawaitable(done):
                await done


def diary_at(folder, compactor, *, agent=remember, **config):
    config = {"cooldown_seconds": 0, **config}
    return Diary(
        folder, Table, agent=agent, compactor=compactor, durability="process",
        compaction_config=CompactionConfig(enabled=True, **config),
    )  # fmt: skip


def turn(diary, text="tea", *, session="s", now=None, user="alice"):
    return diary.user(user).add_turn(text, "ok", session, now=now)


def texts(diary, user="alice"):
    return [item.text for item in diary.user(user).preferences("likes").values()]


def progress(folder, kind):
    found = tomllib.loads((folder / "alice" / f"{kind}.toml").read_text())
    return found["_meta"]["compaction"]


# When it is due


def is_due(config, *, store="preferences", chars=0, largest=0, turns=0, last=None, now=NOON):
    return config.should_run(
        store=store, stats=CompactionStats(chars, largest), last_run=last,
        turns_since_compaction=turns, now=now,
    )  # fmt: skip


@pytest.mark.parametrize("store", BOTH)
@pytest.mark.parametrize(
    ("trigger", "below", "reached"),
    [
        ({"total_char_threshold": 100}, {"chars": 99}, {"chars": 100}),
        ({"segment_char_threshold": 50}, {"largest": 49}, {"largest": 50}),
        ({"user_turn_interval": 25}, {"turns": 24}, {"turns": 25}),
        (
            {"schedule_at": NOON},
            {"now": NOON - timedelta(microseconds=1)},
            {"now": NOON},
        ),
    ],
    ids=lambda value: next(iter(value)),
)
def test_each_trigger_is_enough_from_its_value_on(store, trigger, below, reached):
    config = CompactionConfig(enabled=True, **trigger)
    assert not is_due(config, store=store, **below)
    assert is_due(config, store=store, **reached)
    config.enabled = False
    assert not is_due(config, store=store, **reached)


@pytest.mark.parametrize("off", [None, 0, -1])
@pytest.mark.parametrize(
    "trigger", ["total_char_threshold", "segment_char_threshold", "user_turn_interval"]
)
def test_none_zero_and_less_switch_a_trigger_off(trigger, off):
    config = CompactionConfig(enabled=True, **{trigger: off})
    assert not is_due(config, chars=10**9, largest=10**9, turns=10**9)
    assert not is_due(config)


def test_one_trigger_that_is_off_leaves_the_others_on():
    config = CompactionConfig(enabled=True, total_char_threshold=0, user_turn_interval=3)
    assert is_due(config, turns=3)
    assert not is_due(config, chars=10**9, turns=None)


def test_by_default_nothing_is_ever_due():
    assert not is_due(CompactionConfig(), chars=10**9, largest=10**9, turns=10**9)
    assert not is_due(CompactionConfig(enabled=True), chars=10**9, largest=10**9, turns=10**9)


@pytest.mark.parametrize("store", BOTH)
def test_each_kind_can_be_left_out(store):
    config = CompactionConfig(enabled=True, total_char_threshold=1)
    assert is_due(config, store=store, chars=1)
    setattr(config, f"compact_{store}", False)
    assert not is_due(config, store=store, chars=1)
    (other,) = set(BOTH) - {store}
    assert is_due(config, store=other, chars=1)


@pytest.mark.parametrize(
    "trigger",
    [
        {"total_char_threshold": 1},
        {"segment_char_threshold": 1},
        {"user_turn_interval": 1},
        {"schedule_at": NOON - timedelta(seconds=1)},
    ],
    ids=lambda value: next(iter(value)),
)
def test_the_cooldown_holds_for_every_trigger(trigger):
    config = CompactionConfig(enabled=True, cooldown_seconds=600, **trigger)
    much = {"chars": 9, "largest": 9, "turns": 9}
    long_ago = NOON - timedelta(seconds=600)
    assert is_due(config, **much, last=long_ago)
    assert is_due(config, **much, last=None)
    assert not is_due(config, **much, last=long_ago + timedelta(microseconds=1))
    assert not is_due(config, **much, last=NOON)
    naive = long_ago.replace(tzinfo=None)  # times without a zone are in UTC
    assert is_due(config, **much, last=naive, now=NOON.replace(tzinfo=None))


def test_the_schedule_is_once_a_day():
    config = CompactionConfig(enabled=True, schedule_at=NOON, cooldown_seconds=0)
    runs, last = [], None
    for hour in range(72):
        now = NOON - timedelta(hours=12) + timedelta(hours=hour, minutes=5)
        if is_due(config, now=now, last=last):
            runs.append(now)
            last = now
    assert [moment.isoformat(timespec="minutes") for moment in runs] == [
        "2026-03-10T12:05+00:00",
        "2026-03-11T12:05+00:00",
        "2026-03-12T12:05+00:00",
    ]


def test_the_schedule_begins_on_its_date_and_understands_time_zones():
    tokyo = timezone(timedelta(hours=9))
    config = CompactionConfig(enabled=True, schedule_at=NOON.astimezone(tokyo))
    assert not is_due(config, now=NOON - timedelta(hours=23))
    assert is_due(config, now=NOON.astimezone(tokyo))
    earlier_run = NOON - timedelta(hours=1)  # by another trigger: the scheduled one is still due
    assert is_due(config, now=NOON, last=earlier_run)
    assert not is_due(config, now=NOON + timedelta(hours=5), last=NOON)


def test_turns_without_a_time_zone_are_compacted_each_time(tmp_path):
    runs = []

    def compact(message, *, deps):
        runs.append(deps.now)

    diary = diary_at(tmp_path, compact, user_turn_interval=1)
    naive = NOON.replace(tzinfo=None)
    for text in ("tea", "coffee"):
        turn(diary, text, now=naive)
    assert len(runs) == 2
    assert Turn("alice", "s", "tea", "ok", naive).context_now == NOON


def test_sizes_are_characters_of_the_main_text():
    entries = [{"text": "añb", "contexts": ["long context"]}, {"text": "x" * 10}, {}]
    assert CompactionStats.of(entries, "text") == CompactionStats(13, 10)
    assert CompactionStats.of([], "text") == CompactionStats(0, 0)


# Around a turn


def test_compaction_runs_after_the_commit_of_the_turn(tmp_path):
    seen = []

    def look(deps):
        other = Diary(tmp_path, Table, agent="rules")
        conversation = other.user("alice").conversations()["s"]
        seen.append((texts(other), conversation.turns))

    diary = diary_at(tmp_path, Recording(look), total_char_threshold=1)
    turn(diary, "tea")
    assert seen == [(["tea"], 1)]


def test_compaction_does_not_run_below_its_thresholds(tmp_path):
    compactor = Recording()
    diary = diary_at(tmp_path, compactor, total_char_threshold=10)
    turn(diary, "123456789")
    assert compactor.calls == []
    turn(diary, "0")
    assert compactor.calls == [(True, False)]


def test_a_diary_without_a_configuration_never_compacts(tmp_path):
    compactor = Recording()
    diary = Diary(tmp_path, Table, agent=remember, compactor=compactor)
    turn(diary, "x" * 1000)
    diary.compaction_config = CompactionConfig(total_char_threshold=1)
    turn(diary, "y" * 1000)
    assert compactor.calls == []


def test_changes_of_the_compactor_are_stored_under_its_name(tmp_path):
    async def tidy(deps):
        ctx = Context(deps)
        listed = await tools.list_preference_blocks(ctx)
        assert (
            listed
            == "- likes/pref001 (3 characters): tea\n- likes/pref002 (9 characters): green tea"
        )
        assert await tools.rewrite_preference_block(
            ctx, "likes/pref001", text=" tea, mostly green ", contexts=["home", "home"]
        ) == "✅ Rewrote likes/pref001."  # fmt: skip
        assert "Deleted" in await tools.delete_preference_block(ctx, "likes/pref002")
        assert await tools.list_conversation_blocks(ctx) == "- s (0 characters): "
        await tools.rewrite_conversation_block(ctx, "s", summary="About tea.", keywords=["tea"])

    diary = diary_at(tmp_path, Recording(tidy), user_turn_interval=2)
    turn(diary, "tea", now=NOON)
    turn(diary, "green tea", now=NOON + timedelta(minutes=1))
    (item,) = diary.user("alice").preferences("likes").values()
    assert (item.text, item.contexts, item.count) == ("tea, mostly green", ["home"], 1)
    assert (item.created_by, item.updated_by) == ("s", "compactor")
    assert diary.user("alice").profile()["sessions"] == 1
    assert item.updated == "2026-03-10T12:01:00.000000+00:00"
    conversation = diary.user("alice").conversations()["s"]
    assert (conversation.summary, conversation.keywords) == ("About tea.", ["tea"])
    assert conversation.turns == 2
    for kind in BOTH:
        assert progress(tmp_path, kind)["last_run"] == "2026-03-10T12:01:00.000000+00:00"
    assert progress(tmp_path, "conversations")["turns_since_compaction"] == 0
    assert progress(tmp_path, "conversations")["total_turns"] == 2


def failing(deps):
    deps.delete_preference_block("likes/pref001")
    raise ValueError("the model is down")


def test_a_failed_compaction_changes_nothing_and_keeps_the_turn(tmp_path, caplog):
    compactor = Recording(failing)
    diary = diary_at(tmp_path, compactor, total_char_threshold=1)
    assert turn(diary, "tea").applied == 1
    assert texts(diary) == ["tea"]
    assert diary.user("alice").conversations()["s"].turns == 1
    assert len(compactor.calls) == 1
    assert "the turn is stored" in caplog.text


def test_a_failed_compaction_is_on_stderr_without_logging():
    code = """if True:
        from tomldiary import CompactionConfig, CompactionDeps, Diary, MemoryWriter, Turn

        def compact(message: str, *, deps: CompactionDeps) -> None:
            raise ValueError("no")

        config = CompactionConfig(enabled=True, user_turn_interval=1)
        diary = Diary("memory:", agent="rules", compactor=compact, compaction_config=config)
        diary.user("alice").add_turn("I love tea.", "ok", "s")
        with MemoryWriter(diary) as writer:
            writer.submit_nowait(Turn("bob", "s", "I love tea.", "ok"))
    """
    lines = programs.run("-c", code, check=True).stderr.splitlines()
    assert lines[0].startswith("tomldiary: compaction failed: ValueError")
    assert lines[1].startswith("tomldiary: a part of a compaction failed 2 times")


def test_a_failed_compaction_quotes_the_memory_at_debug_level_only(tmp_path, caplog):
    def quoting(deps):
        raise ValueError(str(deps.preference_blocks()))

    diary = diary_at(tmp_path, Recording(quoting), total_char_threshold=1)
    for level in (logging.INFO, logging.DEBUG):
        with caplog.at_level(level, "tomldiary"):
            turn(diary, "oolong", user=str(level))
        assert "compaction failed: ValueError" in caplog.text
        assert ("oolong" in caplog.text) is (level == logging.DEBUG)


def test_a_failed_compaction_is_retried_after_the_cooldown(tmp_path):
    compactor = Recording(failing)
    diary = diary_at(tmp_path, compactor, total_char_threshold=1, cooldown_seconds=600)
    for minute in range(10):
        turn(diary, f"tea {minute}", now=NOON + timedelta(minutes=minute))
    assert len(compactor.calls) == 1
    turn(diary, "bob's", user="bob", now=NOON)  # another user's cooldown is another one
    assert len(compactor.calls) == 2
    turn(diary, "tea 10", now=NOON + timedelta(minutes=10))
    assert len(compactor.calls) == 3
    assert len(texts(diary)) == 11


def test_the_attempts_of_a_limited_number_of_users_are_remembered(tmp_path, monkeypatch):
    """A process may serve any number of users; a forgotten attempt is made again before its cooldown is over."""
    monkeypatch.setattr("tomldiary.compaction.runner._REMEMBERED", 2)
    compactor = Recording(failing)
    diary = diary_at(
        tmp_path, compactor, total_char_threshold=1, cooldown_seconds=600,
        compact_conversations=False,
    )  # fmt: skip
    for user in ("alice", "bob", "bob", "carol", "alice"):
        turn(diary, "tea", user=user, now=NOON)
    assert len(compactor.calls) == 4


def test_compaction_runs_whenever_it_is_due_after_the_cooldown(tmp_path):
    compactor = Recording()
    diary = diary_at(
        tmp_path, compactor, total_char_threshold=1, cooldown_seconds=180,
        compact_conversations=False,
    )  # fmt: skip
    for minute in range(10):
        turn(diary, "tea", now=NOON + timedelta(minutes=minute))
    assert len(compactor.calls) == 4  # at minutes 0, 3, 6, 9


@pytest.mark.parametrize(
    ("left_out", "expected"),
    [
        ({"compact_conversations": False}, (True, False)),
        ({"compact_preferences": False}, (False, True)),
        ({}, (True, True)),
    ],
    ids=["preferences", "conversations", "both"],
)
def test_the_turn_interval_covers_both_kinds(tmp_path, left_out, expected):
    compactor = Recording()
    diary = diary_at(tmp_path, compactor, user_turn_interval=3, **left_out)
    counted = []
    for number in range(1, 10):
        turn(diary, f"nothing {number}", session=f"s{number % 2}")
        counted.append(len(compactor.calls))
    assert counted == [0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert set(compactor.calls) == {expected}


def test_counters_and_cooldown_survive_a_restart(tmp_path):
    compactor = Recording()
    counted = []
    for number in range(1, 8):
        diary = diary_at(tmp_path, compactor, user_turn_interval=3, cooldown_seconds=600)
        turn(diary, f"thing {number}", now=NOON + timedelta(minutes=2 * number))
        counted.append(len(compactor.calls))
    assert counted == [0, 0, 1, 1, 1, 1, 1]
    # Seven turns, the last run at the third, at 12:06: due by turns at the sixth, by time at 12:16.
    diary = diary_at(tmp_path, compactor, user_turn_interval=3, cooldown_seconds=600)
    turn(diary, "thing 8", now=NOON + timedelta(minutes=16))
    assert len(compactor.calls) == 2


def test_the_live_session_may_be_rewritten_but_not_deleted(tmp_path):
    answers = []

    async def purge(deps):
        ctx = Context(deps)
        answers.extend(
            [
                await tools.delete_conversation_block(ctx, "old"),
                await tools.delete_conversation_block(ctx, "live"),
                await tools.rewrite_conversation_block(ctx, "live", summary="Kept."),
            ]
        )
        with pytest.raises(InvalidValue, match="still active"):
            deps.delete_conversation_block("live")

    compactor = Recording(purge)
    diary = diary_at(tmp_path, compactor, user_turn_interval=3)
    for session in ("old", "live", "live"):
        turn(diary, session=session)
    assert answers == [
        "🗑️ Deleted old.",
        "❌ live: this conversation is still active. Rewrite it instead.",
        "✅ Rewrote live.",
    ]
    conversations = diary.user("alice").conversations()
    assert list(conversations) == ["live"]
    assert (conversations["live"].turns, conversations["live"].summary) == (2, "Kept.")


BOOST = """
import sys
from tomldiary import Diary
from pydantic import BaseModel
from tomldiary import PreferenceItem
class Table(BaseModel):
    likes: dict[str, PreferenceItem] = {}
alice = Diary(sys.argv[1], Table, agent="rules").user("alice")
alice.upsert_preference("likes", id="pref001")
alice.upsert_preference("likes", "stored meanwhile")
alice.add_turn("hello", "hi", "s")
"""


def test_counts_of_another_process_during_compaction_are_kept(tmp_path):
    def slow(deps):
        deps.rewrite_preference_block("likes/pref001", text="tea, mostly green")
        deps.rewrite_conversation_block("s", summary="About tea.")
        programs.run("-c", BOOST, tmp_path, check=True)

    diary = diary_at(tmp_path, Recording(slow), total_char_threshold=1)
    diary.compaction_config.compact_preferences = True
    diary.compaction_config.user_turn_interval = 1
    turn(diary, "tea")
    items = diary.user("alice").preferences("likes")
    assert [(item.text, item.count) for item in items.values()] == [
        ("tea, mostly green", 2),
        ("stored meanwhile", 1),
    ]
    conversation = diary.user("alice").conversations()["s"]
    assert (conversation.summary, conversation.turns) == ("About tea.", 2)
    assert progress(tmp_path, "conversations")["total_turns"] == 2


# The tools


def deps_with(**options):
    prefs = {
        "_meta": {"version": "0.3"},
        "preferences": {
            "likes": {
                "pref001": {"text": "tea", "contexts": ["home"], "_count": 2},
                "odd": {"_count": 1, "text": 5},
            }
        },
    }
    convs = {"conversations": {"old": {"summary": "About tea.", "_turns": 3}, "live": {}}}
    options = {"include_preferences": True, "include_conversations": True, **options}
    return CompactionDeps(prefs, convs, live_session="live", **options)


def call(name, deps, *args, **kwargs):
    answer = run(getattr(tools, name)(Context(deps), *args, **kwargs))
    assert isinstance(answer, str)
    return answer


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("get_preference_block", ("likes/pref009",)),
        ("get_preference_block", ("likes",)),
        ("get_preference_block", ("",)),
        ("get_preference_block", ("none/pref001",)),
        ("get_preference_block", ("likes/pref001/more",)),
        ("delete_preference_block", ("likes/pref009",)),
        ("get_conversation_block", ("never",)),
        ("delete_conversation_block", ("never",)),
        ("delete_conversation_block", ("live",)),
    ],
)
def test_tools_answer_errors_and_never_raise(name, arguments):
    deps = deps_with()
    before = (repr(deps.prefs), repr(deps.convs))
    answer = call(name, deps, *arguments)
    assert answer.startswith("❌")
    assert (repr(deps.prefs), repr(deps.convs)) == before


@pytest.mark.parametrize(
    ("name", "target", "change"),
    [
        ("rewrite_preference_block", "likes/pref009", {"text": "x"}),
        ("rewrite_preference_block", "likes/pref001", {"text": " \n"}),
        ("rewrite_preference_block", "likes/pref001", {"text": 5}),
        ("rewrite_preference_block", "likes/pref001", {"text": "tea", "contexts": 5}),
        ("rewrite_preference_block", "likes/pref001", {"text": "tea", "contexts": [5]}),
        ("rewrite_preference_block", "likes/pref001", {"text": "half \ud800 pair"}),
        ("rewrite_preference_block", "likes/pref001", {"text": "x" * 1_000_000}),
        ("rewrite_preference_block", "likes/pref001", {"text": "x", "contexts": ["\udfff"]}),
        ("rewrite_conversation_block", "never", {"summary": "x"}),
        ("rewrite_conversation_block", "old", {"summary": "half \ud800 pair"}),
        ("rewrite_conversation_block", "old", {"summary": "x", "keywords": ["\ud800"]}),
    ],
)
def test_text_that_cannot_be_stored_is_refused_at_once(name, target, change):
    deps = deps_with()
    before = (repr(deps.prefs), repr(deps.convs))
    assert call(name, deps, target, **change).startswith("❌")
    assert (repr(deps.prefs), repr(deps.convs)) == before


def test_tools_list_and_show_blocks():
    deps = deps_with()
    assert call("list_preference_blocks", deps) == (
        "- likes/pref001 (3 characters): tea\n- likes/odd (1 characters): 5"
    )
    assert call("get_preference_block", deps, "likes/pref001") == (
        "text: tea\ncontexts: ['home']\ncount: 2"
    )
    assert call("get_conversation_block", deps, "old") == "summary: About tea.\nturns: 3"
    assert call("list_conversation_blocks", deps) == (
        "- old (10 characters): About tea.\n- live (0 characters): "
    )
    deps.prefs["preferences"]["likes"]["pref001"]["_said_by"] = ["s1", "s2"]
    assert "s1" not in call("get_preference_block", deps, "likes/pref001")
    shown = deps.get_preference_block("likes/pref001")
    shown["contexts"].append("changed")
    assert deps.prefs["preferences"]["likes"]["pref001"]["contexts"] == ["home"]
    empty = CompactionDeps({}, {}, include_preferences=True, include_conversations=True)
    assert call("list_preference_blocks", empty) == "(no preferences)"
    assert call("list_conversation_blocks", empty) == "(no conversations)"
    with pytest.raises(UnknownEntry, match="list_preference_blocks"):
        empty.get_preference_block("likes/pref001")


def test_stored_text_cannot_imitate_another_block():
    deps = deps_with()
    deps.prefs["preferences"]["likes"]["pref001"]["text"] = "tea\n- likes/odd (1 characters): x"
    deps.convs["conversations"]["old"]["summary"] = "tea\r\n- live (1 characters): x"
    assert len(call("list_preference_blocks", deps).splitlines()) == 2
    assert len(call("list_conversation_blocks", deps).splitlines()) == 2


@pytest.mark.parametrize("kind", ["preference", "conversation"])
def test_an_excluded_kind_is_not_changed(kind):
    deps = deps_with(**{f"include_{kind}s": False})
    before = (repr(deps.prefs), repr(deps.convs))
    target = "likes/pref001" if kind == "preference" else "old"
    rewrite = {"text": "x"} if kind == "preference" else {"summary": "x"}
    answers = [
        call(f"list_{kind}_blocks", deps),
        call(f"get_{kind}_block", deps, target),
        call(f"rewrite_{kind}_block", deps, target, **rewrite),
        call(f"delete_{kind}_block", deps, target),
    ]
    assert (
        answers
        == [f"❌ {kind.capitalize()}s are excluded from this compaction. Change none of them."] * 4
    )
    assert (repr(deps.prefs), repr(deps.convs)) == before


# The compactor that is used when none is given


def test_the_default_compactor_is_loaded_only_when_it_is_due(tmp_path):
    script = """if True:
        import logging, sys
        from tomldiary import CompactionConfig, Diary
        logging.basicConfig(filename=sys.argv[2])
        config = CompactionConfig(enabled=True, user_turn_interval=2)
        diary = Diary(sys.argv[1], agent="rules", compaction_config=config)
        alice = diary.user("alice")
        alice.add_turn("I love tea.", "ok", "s")
        assert diary.compactor is None
        loaded = {name.partition(".")[0] for name in sys.modules}
        assert not loaded & {"pydantic_ai", "tomldiary_pydantic_ai"}, loaded
        sys.modules["pydantic_ai"] = None  # as if it were not installed
        alice.add_turn("I love coffee.", "ok", "s")
        assert diary.compactor is None
        print(alice.conversations()["s"].turns, len(alice.recall("tea coffee")))
    """
    log = tmp_path / "log"
    done = programs.run("-c", script, tmp_path / "memories", log)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 2\n", "")
    assert 'python -m pip install "tomldiary-kit[pydantic-ai]"' in log.read_text()


@pytest.fixture
def by_default(monkeypatch):
    """Replace the function that loads the default compactor."""
    return functools.partial(monkeypatch.setattr, "tomldiary.compaction.runner.compactor_agent")


def test_the_default_compactor_is_loaded_once(tmp_path, by_default):
    loaded = []

    def load():
        loaded.append(Recording())
        return loaded[-1]

    by_default(load)
    diary = diary_at(tmp_path, None, total_char_threshold=1)
    turn(diary)
    turn(diary)
    assert len(loaded) == 1
    assert len(loaded[0].calls) == 2


def test_a_missing_adapter_is_logged_and_keeps_the_turn(tmp_path, by_default, caplog):
    def load():
        raise MissingExtra("compactor_agent", "pydantic-ai")

    by_default(load)
    diary = diary_at(tmp_path, None, total_char_threshold=1)
    with caplog.at_level(logging.ERROR, "tomldiary"):
        turn(diary, "tea")
    assert texts(diary) == ["tea"]
    assert "pip install" in caplog.text


def test_entries_forgotten_during_compaction_stay_forgotten(tmp_path):
    def slow(deps):
        deps.rewrite_preference_block("likes/pref001", text="tea, mostly green")
        deps.rewrite_preference_block("likes/pref002", text="coffee, mostly black")
        deps.rewrite_conversation_block("old", summary="About tea.")
        Diary(tmp_path, Table, agent="rules").user("alice").forget_preference("likes", "pref001")

    diary = diary_at(tmp_path, Recording(slow), user_turn_interval=2)
    turn(diary, "tea", session="old")
    turn(diary, "coffee", session="s")
    assert texts(diary) == ["coffee, mostly black"]
    assert "mostly green" not in diary.user("alice").document("preferences")


def test_entries_rewritten_during_compaction_stay_as_rewritten(tmp_path):
    def slow(deps):
        deps.rewrite_preference_block("likes/pref001", text="lives in Bergen")
        deps.delete_preference_block("likes/pref002")
        other = Diary(tmp_path, Table, agent="rules").user("alice")
        other.upsert_preference("likes", "has moved to Oslo", id="pref001")
        other.upsert_preference("likes", "Rex is ill", id="pref002")

    diary = diary_at(tmp_path, Recording(slow), user_turn_interval=2)
    turn(diary, "lives in the city of Bergen")
    turn(diary, "has a dog")
    assert texts(diary) == ["has moved to Oslo", "Rex is ill"]


@pytest.mark.parametrize("changed", ["pref001", "pref002"])
@pytest.mark.parametrize("is_removed", [True, False], ids=["removed", "corrected"])
def test_a_join_is_left_out_if_one_of_its_texts_changed_meanwhile(tmp_path, changed, is_removed):
    def join(deps):
        deps.rewrite_preference_block("likes/pref001", text="tea; jazz")
        deps.delete_preference_block("likes/pref002")
        other = Diary(tmp_path, Table, agent="rules").user("alice")
        if is_removed:
            other.remove_preference("likes", changed)
        else:
            other.upsert_preference("likes", "opera", id=changed)

    diary = diary_at(tmp_path, Recording(join), user_turn_interval=3)
    expected = {"pref001": "tea", "pref002": "jazz", "pref003": "chess"}
    for text in expected.values():
        turn(diary, text)
    if is_removed:
        del expected[changed]
    else:
        expected[changed] = "opera"
    items = diary.user("alice").preferences("likes")
    assert {key: item.text for key, item in items.items()} == expected


def test_a_text_that_is_confirmed_during_a_join_is_there_once(tmp_path):
    def join(deps):
        deps.rewrite_preference_block("likes/pref001", text="tea; jazz")
        deps.delete_preference_block("likes/pref002")
        Diary(tmp_path, Table, agent="rules").user("alice").upsert_preference("likes", "jazz")

    diary = diary_at(tmp_path, Recording(join), user_turn_interval=2)
    for text in ("tea", "jazz"):
        turn(diary, text)
    items = diary.user("alice").preferences("likes")
    assert {item.text: item.count for item in items.values()} == {"tea": 1, "jazz": 2}


@pytest.mark.parametrize("left_out", BOTH)
def test_changes_of_a_kind_that_is_not_compacted_are_reported(tmp_path, caplog, left_out):
    def rewrite(deps):
        deps.rewrite_preference_block("likes/pref001", text="hot tea")
        deps.rewrite_conversation_block("s", summary="About tea.")

    option = {f"compact_{left_out}": False}
    turn(diary_at(tmp_path, Recording(rewrite), user_turn_interval=1, **option))
    said = f"the compactor's changes of {left_out} are not stored: compact_{left_out} is False"
    assert [each.getMessage() for each in caplog.records] == [said]


@pytest.mark.parametrize("left_out", BOTH)
def test_the_rules_hold_for_a_compactor_that_changes_the_tables_directly(tmp_path, left_out):
    def purge(deps):
        deps.prefs["preferences"].clear()
        deps.convs["conversations"].clear()

    diary = diary_at(
        tmp_path, Recording(purge), user_turn_interval=2, **{f"compact_{left_out}": False}
    )
    turn(diary, "tea", session="old")
    turn(diary, "coffee", session="live")
    kept = {"preferences": [], "conversations": ["live"]}
    kept[left_out] = {"preferences": ["tea", "coffee"], "conversations": ["live", "old"]}[left_out]
    assert texts(diary) == kept["preferences"]
    assert list(diary.user("alice").conversations()) == kept["conversations"]


def test_an_entry_in_the_short_form_is_rewritten_in_place(tmp_path):
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice/preferences.toml").write_text('[likes.tea]\ntext = "tea"\n')

    def tidy(deps):
        deps.rewrite_preference_block("likes/tea", text="tea, mostly green")

    diary = diary_at(tmp_path, Recording(tidy), user_turn_interval=1)
    turn(diary, "nothing")
    assert texts(diary) == ["tea, mostly green"]
    assert "[preferences" not in diary.user("alice").document("preferences")


def test_loading_the_default_compactor_does_not_hold_the_event_loop(tmp_path, by_default):
    loading, go_on = threading.Event(), threading.Event()

    def load():
        loading.set()
        assert go_on.wait(30)  # set by the event loop, if that is free
        return Recording()

    by_default(load)
    diary = diary_at(tmp_path, None, total_char_threshold=1)

    async def use():
        work = asyncio.create_task(diary.update_memory("alice", "s", "tea", "ok"))
        await asyncio.to_thread(loading.wait, 30)
        go_on.set()
        await work

    run(use())
    assert diary.compactor is not None
    assert len(diary.compactor.calls) == 1


def test_an_extractor_cannot_restore_entries_forgotten_meanwhile(tmp_path):
    def edit(message, *, deps):
        deps.prefs["preferences"]["likes"]["pref001"]["text"] = "tea, mostly green"
        diary.user("alice").remove_preference("likes", "pref001")

    diary = Diary(tmp_path, Table, agent=edit)
    diary.user("alice").upsert_preference("likes", "tea")
    turn(diary, "hello")
    assert texts(diary) == []


def test_a_compaction_by_an_untrusted_compactor_waits_for_review():
    def rewrite(deps):
        for block, *_ in deps.preference_blocks():
            deps.rewrite_preference_block(block, text="I love tea")

    diary = Diary(
        "memory:",
        agent="rules",
        quarantine={"compactor"},
        compaction_config=CompactionConfig(enabled=True, total_char_threshold=1),
        compactor=Recording(rewrite),
    )
    alice = diary.user("alice")
    alice.add_turn("I love tea.", "Noted.", "s")
    assert alice.preferences("likes")["pref001"].text == "I love tea."
    (change,) = alice.review()
    assert (change.origin, change.text) == ("compactor", "I love tea")
    alice.review.accept(change.id)
    assert alice.preferences("likes")["pref001"].text == "I love tea"
    assert alice.why("likes/pref001").origin == "compactor"


def test_a_document_whose_compaction_waits_for_review_is_not_compacted_again():
    def extract(message, *, deps):
        if deps.user_msg == "Bye.":
            deps.summarise("They said bye.", [])

    def rewrite(deps):
        for block, *_ in deps.conversation_blocks():
            deps.rewrite_conversation_block(block, summary=f"hello {len(compactor.calls)}")

    compactor = Recording(rewrite)
    config = CompactionConfig(enabled=True, user_turn_interval=1, cooldown_seconds=0)
    alice = Diary(
        "memory:",
        agent=extract,
        quarantine={"compactor"},
        compaction_config=config,
        compactor=compactor,
    ).user("alice")
    for session in ("s", "s", "other"):
        alice.add_turn("Hello.", "Hi.", session)
    (change,) = alice.review()
    alice.review.accept(change.id)  # a further turn of the session is no change of its summary
    found = alice.conversations()["s"]
    assert (found.turns, found.summary) == (2, "hello 1")
    alice.add_turn("Hello.", "Hi.", "s")
    assert [each.key for each in alice.review()] == ["conversations/s", "conversations/other"]
    alice.add_turn("Bye.", "Bye.", "s")
    with pytest.raises(Conflict) as raised:
        alice.review.accept(*[each.id for each in alice.review()])
    assert raised.value.keys == ["conversations/s"]


def _shortened(folder):
    """A diary whose compactor removes the first "really" of each text after each turn."""

    def shorten(message, *, deps):
        for block, fields in deps.preference_blocks():
            deps.rewrite_preference_block(block, text=fields["text"].replace("really ", "", 1))

    config = CompactionConfig(enabled=True, user_turn_interval=1, cooldown_seconds=0)
    return Diary(folder, agent="rules", compactor=shorten, compaction_config=config)


def _with_likes(diary, *texts):
    """Return alice, who said each text in a session: s1, s2 and so on."""
    alice = diary.user("alice")
    for number, text in enumerate(texts, 1):
        alice.upsert_preference("likes", text, session_id=f"s{number}")
    return alice


def test_forgetting_a_session_erases_its_texts_that_a_compaction_rewrote(tmp_path):
    alice = _shortened(tmp_path).user("alice")
    alice.add_turn("I really love jazz.", "ok", "s1")
    alice.add_turn("I really love chess.", "ok", "s2")
    alice.forget(session_id="s1")
    assert [each.text for each in alice.preferences("likes").values()] == ["I love chess."]
    assert alice.traces("jazz") == alice.traces("s1") == []


def test_a_rewritten_text_that_another_session_said_stays_until_both_are_forgotten(tmp_path):
    alice = _shortened(tmp_path).user("alice")
    alice.add_turn("I really really love jazz.", "ok", "s1")
    alice.upsert_preference("likes", "I really love jazz.", session_id="s2")
    alice.add_turn("Hello.", "ok", "s3")
    assert alice.preferences("likes")["pref001"].text == "I love jazz."
    alice.forget(session_id="s1")
    assert alice.preferences("likes")["pref001"].text == "I love jazz."
    assert alice.traces("s1") == []
    alice.forget(session_id="s2")
    assert alice.traces("jazz") == []


@pytest.mark.parametrize("is_extracted", [True, False])
def test_a_new_text_of_a_rewritten_entry_is_of_its_session_alone(tmp_path, is_extracted):
    alice = _shortened(tmp_path).user("alice")
    alice.add_turn("I really love jazz.", "ok", "s1")

    def extract(message, *, deps):
        deps.prefs["preferences"]["likes"]["pref001"]["text"] = "opera"

    if is_extracted:
        Diary(tmp_path, agent=extract).user("alice").add_turn("Opera!", "ok", "s2")
    else:
        alice.upsert_preference("likes", "opera", id="pref001", session_id="s2")
    alice.forget(session_id="s1")
    assert alice.preferences("likes")["pref001"].text == "opera"
    alice.forget(session_id="s2")
    assert alice.traces("opera") == []


@pytest.mark.parametrize("is_direct", [False, True])
def test_a_text_that_is_compacted_twice_stays_with_its_session(tmp_path, is_direct):
    def shorten(message, *, deps):
        for block, fields in deps.preference_blocks():
            text = fields["text"].replace("really ", "", 1)
            if is_direct:
                fields["text"] = text
            else:
                deps.rewrite_preference_block(block, text=text)

    diary = _shortened(tmp_path)
    diary.compactor = shorten
    alice = diary.user("alice")
    alice.add_turn("I really really love jazz.", "ok", "s1")
    alice.add_turn("Hello.", "ok", "s2")
    alice.forget(session_id="s2")
    assert alice.preferences("likes")["pref001"].text == "I love jazz."
    alice.forget(session_id="s1")
    assert alice.traces("jazz") == alice.traces("s1") == []


def test_a_confirmed_compacted_text_stays_until_both_sessions_are_forgotten(tmp_path):
    alice = _shortened(tmp_path).user("alice")
    alice.add_turn("I really love jazz.", "ok", "s1")
    alice.upsert_preference("likes", "I love jazz.", session_id="s2")
    alice.forget(session_id="s2")
    assert alice.preferences("likes")["pref001"].text == "I love jazz."
    alice.forget(session_id="s1")
    assert alice.traces("jazz") == []


@pytest.mark.parametrize("forgotten", ["s1", "s2", "s3"])
def test_an_entry_that_a_compaction_made_of_two_is_of_both_sessions(tmp_path, forgotten):
    alice = _shortened(tmp_path).user("alice")
    alice.upsert_preference("likes", "I love jazz.", session_id="s1")
    alice.upsert_preference("likes", "I really love jazz.", contexts=["bar"], session_id="s2")
    alice.add_turn("Hello.", "ok", "s3")
    (made,) = alice.preferences("likes").values()
    assert (made.text, made.contexts) == ("I love jazz.", ["bar"])
    alice.forget(session_id=forgotten)
    left = [(each.text, each.contexts) for each in alice.preferences("likes").values()]
    both, first = ("I love jazz.", ["bar"]), ("I love jazz.", [])
    assert left == {"s1": [], "s2": [first], "s3": [both]}[forgotten]
    assert alice.traces(forgotten) == []


@pytest.mark.parametrize("is_rewritten", [False, True])
def test_a_text_that_tomldiary_0_9_compacted_is_of_its_first_session(tmp_path, is_rewritten):
    alice = _with_likes(Diary(tmp_path, agent=remember), "I really, really love jazz.", "chess")
    file = tmp_path / "alice/preferences.toml"
    text = file.read_text("utf-8").replace("really, ", "")
    file.write_text(text.replace('_updated_by = "s1"', '_updated_by = "compactor"'), "utf-8")
    if is_rewritten:
        alice = _shortened(tmp_path).user("alice")
        alice.add_turn("Hello.", "ok", "s3")
    alice.forget(session_id="s1")
    assert alice.traces("jazz") == alice.traces("s1") == []
    assert [each.text for each in alice.preferences("likes").values()] == ["chess"]


def test_a_compacted_text_that_replaced_one_of_a_session_is_of_none(tmp_path):
    alice = _shortened(tmp_path).user("alice")
    alice.upsert_preference("likes", "jazz", session_id="s1")
    alice.upsert_preference("likes", "really opera", id="pref001")
    alice.add_turn("Hello.", "ok", "s2")
    alice.forget(session_id="s1")
    assert [each.text for each in alice.preferences("likes").values()] == ["opera"]


def test_a_text_that_tomldiary_0_9_wrote_over_a_compacted_one_is_its_own(tmp_path):
    alice = _shortened(tmp_path).user("alice")
    alice.add_turn("I really love jazz.", "ok", "s1")
    file = tmp_path / "alice/preferences.toml"
    text = file.read_text("utf-8")
    assert '_said_by = ["s1"]' in text  # it keeps fields that it does not know
    text = text.replace("I love jazz.", "opera").replace('"compactor"', '"s2"')
    file.write_text(text, "utf-8")
    alice.forget(session_id="s1")
    assert alice.preferences("likes")["pref001"].text == "opera"
    alice.forget(session_id="s2")
    assert alice.traces("opera") == []


@pytest.mark.parametrize("forgotten", ["s1", "s2", "s3", "s4"])
@pytest.mark.parametrize("home", ["likes", "goals"])
def test_an_entry_that_a_compactor_adds_is_of_the_sessions_it_joins(tmp_path, home, forgotten):
    def join(message, *, deps):
        table = deps.prefs["preferences"]["likes"]
        if len(table) == 3:
            said = "; ".join(table.pop(key)["text"] for key in ("pref001", "pref002"))
            deps.prefs["preferences"].setdefault(home, {})["joined"] = {
                "text": said,
                "contexts": [],
                "_updated_by": "s4",
            }

    diary = _shortened(tmp_path)
    diary.compactor = join
    alice = _with_likes(diary, "jazz", "chess", "opera")
    alice.add_turn("Hello.", "ok", "s4")
    assert 'compactor"' in alice.document("preferences")
    alice.forget(session_id=forgotten)
    left = [each.text for table in alice.preferences().values() for each in table.values()]
    expected = {"s1": ["opera"], "s2": ["opera"], "s3": ["jazz; chess"]}
    assert sorted(left) == expected.get(forgotten, ["jazz; chess", "opera"])
    assert alice.traces(forgotten) == []


@pytest.mark.parametrize("forgotten", ["s1", "s2"])
@pytest.mark.parametrize("home", ["likes", "goals"])
def test_an_entry_that_a_compactor_only_adds_is_of_all_it_may_hold(tmp_path, home, forgotten):
    def add(message, *, deps):
        texts = [each["text"] for each in deps.prefs["preferences"]["likes"].values()]
        table = deps.prefs["preferences"].setdefault(home, {})
        table["summary"] = {"text": "; ".join(texts)}

    diary = _shortened(tmp_path)
    diary.compactor = add
    alice = _with_likes(diary, "jazz")
    alice.add_turn("I love chess.", "ok", "s2")
    assert "jazz; I love chess." in alice.render()
    alice.forget(session_id=forgotten)
    left = [each.text for table in alice.preferences().values() for each in table.values()]
    assert left == [{"s1": "I love chess.", "s2": "jazz"}[forgotten]]
    assert alice.traces(forgotten) == []


def test_an_entry_that_a_compactor_adds_to_no_other_is_of_the_live_session(tmp_path):
    def add(message, *, deps):
        deps.prefs["preferences"]["goals"] = {"plan": {"text": "a trip to Porto"}}

    diary = _shortened(tmp_path)
    diary.compactor = add
    alice = diary.user("alice")
    alice.add_turn("Hello.", "ok", "s1")
    assert "Porto" in alice.render()
    alice.forget(session_id="s1")
    assert alice.traces("Porto") == []


def test_a_compacted_text_that_a_person_wrote_is_of_no_session(tmp_path):
    alice = _shortened(tmp_path).user("alice")
    alice.add_turn("Hello.", "ok", "s1")
    file = tmp_path / "alice/preferences.toml"
    file.write_text('[preferences.likes.mine]\ntext = "really jazz"\n', "utf-8")
    alice.add_turn("Hello again.", "ok", "s1")
    assert alice.preferences("likes")["mine"].text == "jazz"
    alice.forget(session_id="s1")
    assert alice.preferences("likes")["mine"].text == "jazz"


@pytest.mark.parametrize("forgotten", ["s1", "s2", "s3"])
@pytest.mark.parametrize("is_direct", [False, True])
def test_a_removed_text_stays_with_its_session_in_a_rewritten_one(tmp_path, is_direct, forgotten):
    def join(message, *, deps):
        table = deps.prefs["preferences"]["likes"]
        if "pref002" not in table:
            return
        text = f"{table['pref001']['text']}; {table['pref002']['text']}"
        if is_direct:
            table["pref001"]["text"] = text
            del table["pref002"]
        else:
            deps.rewrite_preference_block("likes/pref001", text=text)
            deps.delete_preference_block("likes/pref002")

    diary = _shortened(tmp_path)
    diary.compactor = join
    alice = _with_likes(diary, "jazz", "chess")
    alice.add_turn("Hello.", "ok", "s3")
    assert alice.preferences("likes")["pref001"].text == "jazz; chess"
    alice.forget(session_id=forgotten)
    left = [each.text for each in alice.preferences("likes").values()]
    assert left == {"s1": [], "s2": ["jazz"], "s3": ["jazz; chess"]}[forgotten]
    words = {"s1": "jazz", "s2": "chess", "s3": "Hello"}
    assert alice.traces(words[forgotten]) == alice.traces(forgotten) == []


def test_an_accepted_entry_of_a_compactor_is_of_all_sessions_it_joins(tmp_path):
    def add(message, *, deps):
        table = deps.prefs["preferences"].get("likes", {})
        if len(table) == 2:
            table["summary"] = {"text": "; ".join(each["text"] for each in table.values())}

    diary = Diary(
        tmp_path, agent="rules", compactor=add, quarantine={"compactor"},
        compaction_config=CompactionConfig(enabled=True, user_turn_interval=1, cooldown_seconds=0),
    )  # fmt: skip
    alice = _with_likes(diary, "jazz", "chess")
    alice.add_turn("Hello.", "ok", "s3")
    alice.review.accept(*[each.id for each in alice.review()])
    assert alice.preferences("likes")["summary"].text == "jazz; chess"
    alice.forget(session_id="s1")
    assert [each.text for each in alice.preferences("likes").values()] == ["chess"]
    assert alice.traces("jazz") == []


def test_removed_texts_stay_if_another_entry_took_the_id_of_the_joined_one(tmp_path):
    def join(message, *, deps):
        table = deps.prefs["preferences"]["likes"]
        if len(table) == 2:
            text = "; ".join(table.pop(key)["text"] for key in list(table))
            table["pref003"] = {"text": text}
            other = Diary(tmp_path, agent="rules").user("alice")
            other.upsert_preference("likes", "opera", session_id="s4")

    diary = _shortened(tmp_path)
    diary.compactor = join
    alice = _with_likes(diary, "jazz", "chess")
    alice.add_turn("Hello.", "ok", "s3")
    assert [each.text for each in alice.preferences("likes").values()] == ["jazz", "chess", "opera"]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("count", ["jazz", "really opera"]),
        ("shortened", ["jazz", "opera"]),
        ("joined", ["jazz", "opera"]),
        ("reworded", ["jazz", "really opera"]),
        ("with function words", ["jazz", "all of the opera"]),
    ],
)
def test_a_compacted_text_is_of_a_removed_ones_session_if_it_may_hold_it(
    tmp_path, changed, expected
):
    """If it may, it returns to its text before."""

    def compact(message, *, deps):
        table = deps.prefs["preferences"]["likes"]
        if "pref003" not in table:
            return
        table.pop("pref003")
        if changed == "count":
            table["pref002"]["_count"] = 5
        elif changed == "reworded":
            table["pref002"]["text"] = "music and board games"
        elif changed == "with function words":
            table["pref002"]["text"] = "all of the opera"
        else:
            table["pref002"]["text"] = "opera"
        if changed == "joined":
            table["pref001"]["text"] = "jazz and chess"

    diary = _shortened(tmp_path)
    diary.compactor = compact
    alice = _with_likes(diary, "jazz", "really opera", "chess")
    alice.add_turn("Hello.", "ok", "s4")
    alice.forget(session_id="s3")
    assert [each.text for each in alice.preferences("likes").values()] == expected
    assert alice.traces("chess") == alice.traces("s3") == []


@pytest.mark.parametrize(
    ("first", "second", "joined", "left"),
    [
        ("我喜欢爵士乐", "我喜欢国际象棋和狗", "我喜欢爵士乐和国际象棋", "我喜欢狗"),
        ("我喜欢爵士乐", "我喜欢Chess和狗", "爵士乐, chess", "我喜欢狗"),
        ("jazz", "🎸 and dogs", "jazz 🎸", "dogs"),
        ("ジャズが好きです", "将棋と犬が好きです", "ジャズと将棋が好きです", "犬が好きです"),
        ("jazz", "I collect stamps and dogs", "jazz, a stamp", "dogs"),
        ("джаз", "играю в шахматы и люблю собак", "джаз с шахматами", "люблю собак"),
        ("jazz in all of the bars", "Ich spiele Schach", "jazz in all of the bars, Schach", "Ich"),
    ],
    ids=[
        "Chinese",
        "Latin among Chinese",
        "emoji",
        "Japanese",
        "English",
        "Russian",
        "German among English",
    ],
)
def test_a_word_that_moves_between_texts_is_found_in_another_form(
    tmp_path, first, second, joined, left
):
    def move(message, *, deps):
        if deps.get_preference_block("likes/pref001")["text"] == first:
            deps.rewrite_preference_block("likes/pref001", text=joined)
            deps.rewrite_preference_block("likes/pref002", text=left)

    diary = _shortened(tmp_path)
    diary.compactor = move
    alice = _with_likes(diary, first, second)
    alice.add_turn("Hello.", "ok", "s3")
    assert [each.text for each in alice.preferences("likes").values()] == [joined, left]
    alice.forget(session_id="s2")
    assert [each.text for each in alice.preferences("likes").values()] == [first]


def test_many_removed_entries_do_not_make_a_compacted_memory_larger(tmp_path):
    def compact(message, *, deps):
        table = deps.prefs["preferences"]["likes"]
        if len(table) == 80:
            for number, key in enumerate(list(table)):
                if number % 2:
                    del table[key]
                else:
                    table[key]["text"] = table[key]["text"].replace("really ", "")

    diary = _shortened(tmp_path)
    diary.compactor = compact
    alice = diary.user("alice")
    with alice.transaction():
        for number in range(80):
            text = f"really {chr(97 + number % 26) * 9} {chr(97 + number // 26) * 9}"
            alice.upsert_preference("likes", text, session_id=f"session-{number}")
    before = len(alice.document("preferences"))
    alice.add_turn("Hello.", "ok", "s1")
    assert len(alice.preferences("likes")) == 40
    assert len(alice.document("preferences")) < before


def test_forgetting_finds_a_text_that_a_compaction_moved_elsewhere(tmp_path):
    def move(message, *, deps):
        table = deps.prefs["preferences"]
        if "pref003" in table["likes"]:
            # The ids move up, and one text moves to another category.
            table["likes"]["pref001"]["text"] = "jazz; chess"
            table["likes"]["pref002"]["text"] = table["likes"].pop("pref003")["text"]
            table["goals"]["pref001"]["text"] += "; " + table["dislikes"].pop("pref001")["text"]

    diary = _shortened(tmp_path)
    diary.compactor = move
    alice = _with_likes(diary, "jazz", "chess", "opera")
    alice.upsert_preference("goals", "a marathon", session_id="s4")
    alice.upsert_preference("dislikes", "walnuts", session_id="s5")
    alice.add_turn("Hello.", "ok", "s6")
    assert "jazz; chess" in alice.render()
    assert "a marathon; walnuts" in alice.render()
    alice.forget(session_id="s2")
    alice.forget(session_id="s5")
    assert alice.traces("chess") == alice.traces("walnuts") == []
    assert alice.preferences("goals")["pref001"].text == "a marathon"


@pytest.mark.parametrize("second", ["s1", "s2"])
def test_a_joined_text_stays_of_both_when_one_that_repeated_it_goes(tmp_path, second):
    def join(message, *, deps):
        table = deps.prefs["preferences"]["likes"]
        if "pref002" in table:
            table["pref001"]["text"] += "; " + table.pop("pref002")["text"]

    diary = _shortened(tmp_path)
    diary.compactor = join
    alice = _with_likes(diary, "jazz", "chess")
    alice.add_turn("Hello.", "ok", "s3")
    alice.upsert_preference("likes", "jazz; chess", session_id="s4")
    alice.forget(session_id="s4")
    assert [each.text for each in alice.preferences("likes").values()] == ["jazz; chess"]
    alice.forget(session_id=second)
    assert alice.traces({"s1": "jazz", "s2": "chess"}[second]) == alice.traces(second) == []


@pytest.mark.parametrize("is_part", [False, True])
def test_a_compactor_may_move_a_text_to_another_category(tmp_path, is_part):
    def move(message, *, deps):
        tables = deps.prefs["preferences"]
        if "pref001" in tables["likes"]:
            tables.setdefault("goals", {})["moved"] = tables["likes"].pop("pref001")

    diary = _shortened(tmp_path)
    diary.compactor = move
    alice = _with_likes(diary, "jazz", "chess")
    if is_part:
        diary.compaction_config = None
        run(diary.compaction.compact("alice", "s3", ["preferences"], NOON, category="likes"))
    else:
        alice.add_turn("Hello.", "ok", "s3")
    assert [key for key, _ in _entries(alice)] == ["likes/pref002", "goals/moved"]
    alice.forget(session_id="s1")
    assert alice.traces("jazz") == []


@pytest.mark.parametrize("is_part", [False, True])
def test_a_moved_text_stays_if_an_entry_there_has_its_id(tmp_path, is_part):
    def move(message, *, deps):
        text = deps.prefs["preferences"]["likes"].pop("pref001")["text"]
        deps.prefs["preferences"].setdefault("goals", {})["pref001"] = {"text": text}
        if not is_part:  # otherwise the compactor is not shown the entry
            other = Diary(tmp_path, agent="rules").user("alice")
            other.upsert_preference("goals", "a marathon", session_id="s4")

    diary = _shortened(tmp_path)
    diary.compactor = move
    alice = _with_likes(diary, "jazz")
    if is_part:
        alice.upsert_preference("goals", "a marathon", session_id="s4")
        run(diary.compaction.compact("alice", "s3", ["preferences"], NOON, category="likes"))
    else:
        alice.add_turn("Hello.", "ok", "s3")
    assert [text for _, text in _entries(alice)] == ["jazz", "a marathon"]


@pytest.mark.parametrize("entry", [("hobbies", "jazz"), ("likes", 5)])
@pytest.mark.parametrize("is_part", [False, True])
def test_removed_texts_stay_if_a_rule_refuses_the_joined_one(tmp_path, entry, is_part, caplog):
    def join(message, *, deps):
        category, text = entry
        deps.prefs["preferences"]["likes"].pop("pref001")
        deps.prefs["preferences"].setdefault(category, {})["joined"] = {"text": text}

    diary = _shortened(tmp_path)
    diary.compactor = join
    alice = _with_likes(diary, "jazz")
    if is_part:
        with MemoryWriter(diary, retry=RetryPolicy(2, 0.001, 0.001)) as writer:
            writer.submit_nowait(Turn("alice", "s3", "Hello.", "ok"))
            writer.flush(20)
    else:
        alice.add_turn("Hello.", "ok", "s3")
    assert _entries(alice) == [("likes/pref001", "jazz")]
    assert "Conflict: a rule refused a change beside a deletion" in caplog.text


def test_a_refused_change_beside_no_deletion_leaves_the_others(tmp_path):
    def shorten(message, *, deps):
        deps.prefs["preferences"]["likes"]["pref001"]["text"] = "jazz"
        deps.prefs["preferences"]["hobbies"] = {"new": {"text": "jazz"}}

    diary = _shortened(tmp_path)
    diary.compactor = shorten
    alice = _with_likes(diary, "really jazz")
    alice.add_turn("Hello.", "ok", "s3")
    assert _entries(alice) == [("likes/pref001", "jazz")]


@pytest.mark.parametrize(("forgotten", "said"), [("s1", "jazz"), ("s2", "tea")])
@pytest.mark.parametrize("order", ["12", "21"])
def test_texts_that_a_compactor_made_equal_stay_of_the_sessions_of_both(
    tmp_path, order, forgotten, said
):
    def equal(message, *, deps):
        for number in order:
            deps.prefs["preferences"]["likes"][f"pref00{number}"]["text"] = "jazz and tea"

    diary = _shortened(tmp_path)
    diary.compactor = equal
    alice = _with_likes(diary, "smooth jazz", "green tea")
    alice.add_turn("Hello.", "ok", "s3")
    assert [text for _, text in _entries(alice)] == ["jazz and tea"]
    diary.compactor = None
    diary.compaction_config = None
    alice.forget(session_id=forgotten)
    assert alice.traces(said) == []


def test_forgetting_finds_a_text_in_an_entry_that_repeats_it_after_a_compaction(tmp_path):
    def join(message, *, deps):
        deps.rewrite_preference_block("likes/pref001", text="jazz; chess")

    diary = _shortened(tmp_path)
    diary.compactor = join
    alice = _with_likes(diary, "jazz", "chess")
    alice.add_turn("Hello.", "ok", "s3")
    assert [text for _, text in _entries(alice)] == ["jazz; chess", "chess"]
    alice.forget(session_id="s2")
    assert [text for _, text in _entries(alice)] == ["jazz"]


def test_a_compacted_text_is_not_of_a_session_whose_words_it_had_before(tmp_path):
    diary = _shortened(tmp_path)
    alice = _with_likes(diary, "really tea with milk", "tea")
    alice.add_turn("Hello.", "ok", "s3")
    alice.forget(session_id="s2")
    assert _entries(alice) == [("likes/pref001", "tea with milk")]


@pytest.mark.parametrize("kept", ["jazz", "jazz on Sundays"])
def test_forgetting_finds_a_kept_word_in_an_entry_that_a_compactor_added(tmp_path, kept):
    def add(message, *, deps):
        tables = deps.prefs["preferences"]
        if "pref002" in tables["likes"]:
            tables["likes"].pop("pref002")
            tables.setdefault("goals", {})["all"] = {"text": "jazz"}

    diary = _shortened(tmp_path)
    diary.compactor = add
    alice = _with_likes(diary, kept, "chess", "opera")
    alice.add_turn("Hello.", "ok", "s4")
    alice.forget(session_id="s3")
    assert _entries(alice) == [("likes/pref001", kept), ("goals/all", "jazz")]
    alice.forget(session_id="s1")
    assert alice.traces("jazz") == []


def _entries(alice):
    tables = alice.preferences()
    return [(f"{name}/{key}", each.text) for name in tables for key, each in tables[name].items()]
