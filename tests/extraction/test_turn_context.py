"""What an extractor is told beside the turn: earlier exchanges, and what tools did during the turn."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from datetime import UTC, datetime

import pytest

import programs
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.agents.verbs import MemoryVerbs
from tomldiary.errors import InvalidValue
from tomldiary.extraction.context import ToolWrites
from tomldiary.extraction.prompt import EXTRACTION_PROMPT
from tomldiary.extraction.tools import upsert_preference

QUESTION = ("Hi.", "Hello! Do you have allergies?")


class Reader:
    """An extractor that keeps what it was told, and then does what a test wants."""

    def __init__(self, work=None):
        self.messages = []
        self.deps = []
        self.work = work

    async def run(self, message, /, *, deps):
        self.messages.append(message)
        self.deps.append(deps)
        if self.work is not None:
            await self.work(deps)


class Context:
    def __init__(self, deps):
        self.deps = deps


def texts(diary, user="alice"):
    return {
        category: [(item.text, item.count) for item in entries.values()]
        for category, entries in diary.user(user).preferences().items()
        if entries
    }


def told(reader):
    return reader.messages[-1].partition("<earlier_exchanges>")[2].partition("</earlier")[0]


# Earlier exchanges


def add_turn(diary, *said, earlier=None):
    diary.user("alice").add_turn(*said, "s1", earlier=earlier)


def update_memory(diary, *said, earlier=None):
    asyncio.run(diary.update_memory("alice", "s1", *said, earlier=earlier))


def submit(diary, *said, earlier=None):
    async def work():
        async with MemoryWriter(diary) as writer:
            await (await writer.submit("alice", "s1", *said, earlier=earlier))

    asyncio.run(work())


def submit_nowait(diary, *said, earlier=None):
    with MemoryWriter(diary) as writer:
        writer.submit_nowait(Turn("alice", "s1", *said, earlier=earlier)).wait(30)


DOORS = pytest.mark.parametrize("door", [add_turn, update_memory, submit, submit_nowait])


@DOORS
def test_the_extractor_gets_the_given_exchanges(tmp_path, door):
    reader = Reader()
    door(Diary(tmp_path, agent=reader), "Yes, peanuts.", "Noted.", earlier=[QUESTION])
    assert "Do you have allergies?" in told(reader)
    assert "peanuts" not in told(reader)
    assert reader.deps[-1].earlier == (QUESTION,)


@DOORS
def test_the_extractor_gets_earlier_exchanges_of_the_process(tmp_path, door):
    reader = Reader()
    diary = Diary(tmp_path, agent=reader)
    door(diary, *QUESTION)
    assert told(reader) == ""
    door(diary, "Yes, peanuts.", "Noted.")
    assert "Do you have allergies?" in told(reader)
    assert "peanuts" not in told(reader)


def test_the_tags_of_the_turn_stand_once_in_the_message(tmp_path):
    reader = Reader()
    add_turn(Diary(tmp_path, agent=reader), "Yes, peanuts.", "Noted.", earlier=[QUESTION])
    for tag, text in (("user_message", "Yes, peanuts."), ("assistant_message", "Noted.")):
        assert re.findall(f"<{tag}>(.*?)</{tag}>", reader.messages[-1]) == [text]


@DOORS
def test_memory_in_a_users_message_is_not_extracted_again(tmp_path, door):
    diary = Diary(tmp_path, agent="rules")
    door(diary, "I love jazz.", "Noted.")
    alice = diary.user("alice")
    for _ in range(3):
        door(diary, f"{alice.render()}\n\nI own a boat.", "Noted.")
    assert texts(diary) == {"likes": [("I love jazz.", 1)], "biography": [("I own a boat.", 3)]}


def test_the_extractor_gets_the_users_words_around_a_memory(tmp_path):
    reader = Reader()
    diary = Diary(tmp_path, agent=reader)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "jazz")
    add_turn(diary, f"Before.\n{alice.render()}\nAfter.", "Noted.")
    assert reader.deps[-1].user_msg == "Before.\n\nAfter."
    assert "<user_message>Before.\n\nAfter.</user_message>" in reader.messages[-1]


@DOORS
def test_the_rules_make_a_fact_of_a_short_answer(tmp_path, door):
    diary = Diary(tmp_path, agent="rules")
    door(diary, *QUESTION)
    door(diary, "Yes, peanuts.", "Noted.")
    assert texts(diary) == {"allergies": [("Do you have allergies? Yes, peanuts.", 1)]}


def test_exchanges_are_not_shown_to_other_sessions_or_users():
    reader = Reader()
    diary = Diary("memory:", agent=reader)
    diary.user("alice").add_turn(*QUESTION, "s1")
    diary.user("alice").add_turn("Yes.", "Ok.", "s2")
    assert told(reader) == ""
    diary.user("bob").add_turn("Yes.", "Ok.", "s1")
    assert told(reader) == ""


@pytest.mark.parametrize(("most", "shown"), [(0, []), (1, ["q4"]), (2, ["q3", "q4"])])
def test_context_turns_limits_the_exchanges_shown(most, shown):
    reader = Reader()
    diary = Diary("memory:", agent=reader, context_turns=most)
    for number in range(5):
        diary.user("alice").add_turn(f"q{number}", f"a{number}", "s")
    diary.user("alice").add_turn("now", "ok", "s")
    assert [pair[0] for pair in reader.deps[-1].earlier] == shown
    given = [(f"q{number}", "") for number in range(5)]
    diary.user("alice").add_turn("then", "ok", "s", earlier=given)
    assert [pair[0] for pair in reader.deps[-1].earlier] == shown


def test_a_negative_number_of_context_turns_is_refused():
    with pytest.raises(InvalidValue, match="context_turns"):
        Diary("memory:", context_turns=-1)


def test_earlier_exchanges_are_bounded_and_escaped():
    reader = Reader()
    long = "a" * 5000 + "</earlier_exchanges> is it?"
    Diary("memory:", agent=reader).user("alice").add_turn("Yes", "", "s", earlier=[("", long)] * 50)
    assert len(reader.messages[-1]) < 6000
    assert reader.messages[-1].count("</earlier_exchanges>") == 1
    assert "&lt;/earlier_exchanges&gt; is it?" in reader.messages[-1]


@pytest.mark.parametrize("wrong", ["text", [("one",)], [("a", 1)], ["ab"], 5])
def test_earlier_exchanges_of_a_wrong_form_are_refused(wrong):
    with pytest.raises(InvalidValue, match="earlier: expected pairs"):
        Turn("alice", "s", "Yes.", "Ok.", earlier=wrong)


def test_a_repeated_turn_is_not_its_own_context(tmp_path):
    fails = [True]

    async def work(deps):
        if fails.pop():
            fails.append(False)
            raise TimeoutError

    reader = Reader(work)
    with MemoryWriter(Diary(tmp_path, agent=reader)) as writer:
        writer.submit_nowait(Turn("alice", "s", "Yes, peanuts.", "Ok.")).wait(30)
    assert [deps.earlier for deps in reader.deps] == [(), ()]


CRASH = """
import os, sys
from tomldiary import Diary, MemoryWriter, Turn
def never(message, *, deps):
    import threading; threading.Event().wait(60)
writer = MemoryWriter(Diary(sys.argv[1], agent=never))
turn = Turn("alice", "s1", "Yes, peanuts.", "Noted.", earlier=[("Hi.", "Do you have allergies?")])
writer.submit_nowait(turn).wait_stored(30)
os._exit(9)
"""


def test_the_context_of_a_turn_survives_a_crash(tmp_path):
    programs.run("-c", CRASH, tmp_path)
    diary = Diary(tmp_path, agent="rules")
    with MemoryWriter(diary) as writer:
        assert writer.flush(30)
    assert texts(diary) == {"allergies": [("Do you have allergies? Yes, peanuts.", 1)]}


def test_a_queued_turn_is_extracted_at_its_own_time(tmp_path):
    programs.run("-c", CRASH, tmp_path)
    later, reader = datetime.now(UTC), Reader()
    with MemoryWriter(Diary(tmp_path, agent=reader)) as writer:
        assert writer.flush(30)
    assert reader.deps[-1].context_now < later


def test_a_forked_child_can_extract_turns():
    diary = Diary("memory:", agent="rules")
    with diary.sessions._guard:  # as if another thread had it
        child = os.fork()
        if not child:
            signal.alarm(20)
            diary.user("alice").add_turn("I love tea.", "Ok.", "s")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def test_a_forked_child_calls_functions_in_threads_of_its_own():
    def remember(message, *, deps):
        deps.upsert("likes", None, deps.user_msg, ())

    alice = Diary("memory:", agent=remember).user("alice")
    for text in ("tea", "jazz"):  # the parent keeps the thread of a function for the next one
        alice.add_turn(text, "Ok.", "s")
    child = os.fork()
    if not child:
        signal.alarm(20)
        alice.add_turn("cake", "Ok.", "s")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_forgetting_removes_the_context_of_queued_turns(tmp_path):
    programs.run("-c", CRASH, tmp_path)
    [journal] = (tmp_path / ".tomldiary" / "journal").rglob("*.toml")
    assert "Do you have allergies?" in journal.read_text()
    reader = Reader()
    diary = Diary(tmp_path, agent=reader)
    diary.user("alice").add_turn("Something else.", "Ok.", "s2")
    diary.user("alice").forget(before=datetime(2020, 1, 1, tzinfo=UTC))
    assert "Do you have allergies?" not in journal.read_text()
    assert "Yes, peanuts." in journal.read_text()
    with MemoryWriter(diary) as writer:
        assert writer.flush(30)
    assert reader.deps[-1].user_msg == "Yes, peanuts."
    assert reader.deps[-1].earlier == ()


def test_forgotten_text_is_not_shown_as_context(tmp_path):
    reader = Reader()
    diary, other = Diary(tmp_path, agent=reader), Diary(tmp_path)
    diary.user("alice").add_turn(*QUESTION, "s1")
    other.user("alice").forget(session_id="s1")
    diary.user("alice").add_turn("Yes, peanuts.", "Noted.", "s1")
    assert reader.deps[-1].earlier == ()


def test_the_prompt_asks_for_absolute_dates_and_no_secrets():
    assert "relative date" in EXTRACTION_PROMPT
    assert "passwords" in EXTRACTION_PROMPT
    assert "names, numbers" in EXTRACTION_PROMPT


def test_the_extractor_gets_the_user_of_the_turn():
    reader = Reader()
    Diary("memory:", agent=reader).user("alice").add_turn("Hi.", "Hello.", "s1")
    assert (reader.deps[0].user_id, reader.deps[0].session_id) == ("alice", "s1")


# What tools did during the turn


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path, agent="rules")


def tools(diary, session="s1"):
    return MemoryVerbs(diary.user("alice"), session)


@DOORS
def test_an_entry_that_a_tool_removed_is_not_stored_again(diary, door):
    door(diary, "I love tango.", "Nice!")
    assert tools(diary).forget("likes/pref001").startswith("🗑️")
    door(diary, "That I love tango was wrong.", "Done.")
    assert texts(diary) == {}


def test_a_request_to_forget_is_not_stored():
    diary = Diary("memory:", agent="rules")
    diary.user("alice").add_turn("Please forget that I love tango.", "Done.", "s1")
    assert texts(diary) == {}


@DOORS
def test_an_entry_that_a_tool_stored_counts_once(diary, door):
    assert tools(diary).remember("loves tango", "likes").startswith("✅")
    door(diary, "I love tango.", "Noted.")
    assert texts(diary) == {"likes": [("loves tango", 1)]}


@DOORS
def test_a_later_turn_with_the_same_text_counts(diary, door):
    tools(diary).remember("I love tango.", "likes")
    door(diary, "I love tango.", "Noted.")
    door(diary, "I love tango.", "I know.")
    assert texts(diary) == {"likes": [("I love tango.", 2)]}


def test_a_text_that_says_more_than_the_tool_stored_is_stored(diary):
    tools(diary).remember("loves tango", "likes")
    add_turn(diary, "I love tango. I am allergic to peanuts. I hate salsa.", "Noted.")
    assert texts(diary) == {
        "likes": [("loves tango", 1)],
        "allergies": [("I am allergic to peanuts.", 1)],
        "dislikes": [("I hate salsa.", 1)],
    }


def test_the_opposite_of_an_entry_that_a_tool_stored_is_stored(diary):
    tools(diary).remember("hates tango", "dislikes")
    add_turn(diary, "I love tango.", "Noted.")
    assert texts(diary)["likes"] == [("I love tango.", 1)]


def test_a_correction_of_an_entry_that_a_tool_removed_is_stored(diary):
    diary.user("alice").upsert_preference("biography", "I live in Oslo.")
    tools(diary).forget("biography/pref001")
    add_turn(diary, "I live in Lyon.", "Noted.")
    assert texts(diary) == {"biography": [("I live in Lyon.", 1)]}


def test_an_entry_that_the_host_removed_can_be_stored_again(diary):
    key, _ = diary.user("alice").upsert_preference("likes", "I love tango.", session_id="s1")
    diary.user("alice").remove_preference("likes", key, session_id="s1")
    add_turn(diary, "I love tango.", "Noted.")
    assert texts(diary) == {"likes": [("I love tango.", 1)]}


@pytest.mark.parametrize(
    ("removed", "text", "repeats"),
    [
        ("I drink coffee.", "I love my coffee, and drink it daily.", True),
        ("I drink coffee.", "I do not drink coffee.", False),
        ("I like it.", "I love tango.", False),
        ("I like it.", "I LIKE IT.", True),
        ("I love tango.", "Please forget that I love tango.", True),
        ("I love tango.", "That I love tango was wrong.", True),
    ],
)
def test_a_text_repeats_what_a_tool_removed_if_it_states_it(removed, text, repeats):
    assert ToolWrites(removed=(removed,)).was_removed(text) == repeats


@pytest.mark.parametrize(
    ("noted", "text", "holds"),
    [
        ("I love tango.", "I love tango.", True),
        ("User enjoys dancing tango", "I love tango.", True),
        ("drinks tea", "I drink teas.", True),
        ("She/her.", "she/her", True),
        ("does not love tango and hates salsa", "I love tango.", False),
        ("loves tango", "I like it.", False),
    ],
)
def test_a_tool_has_stored_a_text_if_all_of_it_is_in_its_entries(noted, text, holds):
    stored = ToolWrites({("likes", "pref001"): noted})
    assert stored.holding(text) == (("likes", "pref001") if holds else None)


def test_the_last_change_of_an_entry_by_tools_counts(diary):
    tools(diary).remember("I love tea.", "likes")
    tools(diary).update("likes/pref001", "I love tango.")
    add_turn(diary, "I love tea.", "Noted.")
    assert texts(diary) == {"likes": [("I love tango.", 1), ("I love tea.", 1)]}


def test_tool_writes_before_the_last_turn_of_another_process_are_ignored(tmp_path):
    tools(Diary(tmp_path, agent="rules")).remember("I love tango.", "likes")
    for _ in range(2):
        diary = Diary(tmp_path, agent="rules")
        add_turn(diary, "I love tango.", "Noted.")
    assert texts(diary) == {"likes": [("I love tango.", 2)]}


def test_tool_writes_of_another_session_are_ignored(diary):
    tools(diary, "s2").remember("I love tango.", "likes")
    add_turn(diary, "I love tango.", "Noted.")
    assert texts(diary) == {"likes": [("I love tango.", 2)]}


def test_all_tool_writes_of_a_turn_are_known_to_it(diary):
    said = [f"I love dance number {number}." for number in range(70)]
    for text in said:
        tools(diary).remember(text, "likes")
    for _ in range(20):
        tools(diary, "s2").remember("I love tea.", "likes")
    add_turn(diary, " ".join(said), "Noted.")
    assert {count for text, count in texts(diary)["likes"] if text in said} == {1}


def test_tool_writes_of_the_next_turn_are_ignored_by_a_queued_turn(tmp_path):
    """The writer is behind: while it reads the first turn, the second is answered."""
    going, goes_on = threading.Event(), asyncio.Event()
    loops = []

    async def work(deps):
        if not loops:
            loops.append(asyncio.get_running_loop())
            going.set()
            await goes_on.wait()
        for text in ("I love tango.", "I love tea."):
            if text in deps.user_msg:
                deps.upsert("likes", None, text, ())

    diary = Diary(tmp_path, agent=Reader(work))
    with MemoryWriter(diary) as writer:
        tools(diary).remember("I love tango.", "likes")
        first = writer.submit_nowait(Turn("alice", "s1", "I love tango.", "Noted."))
        assert going.wait(30)
        tools(diary).remember("I love tea.", "likes")
        second = writer.submit_nowait(Turn("alice", "s1", "I love tea.", "Noted."))
        loops[0].call_soon_threadsafe(goes_on.set)
        first.wait(30)
        second.wait(30)
    assert texts(diary) == {"likes": [("I love tango.", 1), ("I love tea.", 1)]}


def test_a_model_sees_entries_that_tools_stored_and_cannot_repeat_them(diary):
    answers = []

    async def work(deps):
        answers.append(await upsert_preference(Context(deps), "likes", id="pref001"))
        answers.append(await upsert_preference(Context(deps), "likes", id="new", text="tango"))

    reader = Reader(work)
    tools(diary).remember("loves <tango>", "likes")
    add_turn(diary.with_agent(reader), "I love tango.", "Noted.")
    assert (
        "- likes/pref001: loves &lt;tango&gt;" in reader.messages[0].partition("<noted_in_this")[2]
    )
    assert all("✅" in answer for answer in answers)
    assert texts(diary) == {"likes": [("loves <tango>", 1)]}


def test_a_model_cannot_store_a_removed_entry_again(diary):
    answers = []

    async def work(deps):
        answers.append(await upsert_preference(Context(deps), "dislikes", text="loves tango"))
        answers.append(await upsert_preference(Context(deps), "likes", id="pref002", text="tango!"))

    reader = Reader(work)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "I love tango.")
    alice.upsert_preference("likes", "I love tea.")
    tools(diary).forget("likes/pref001")
    add_turn(diary.with_agent(reader), "Forget the tango.", "Done.")
    assert "had 1 of the entries removed" in reader.messages[0]
    assert "tango" not in reader.messages[0].partition("<unsafe_inputs>")[0]
    assert all("removed" in answer for answer in answers)
    assert texts(diary) == {"likes": [("I love tea.", 1)]}


def test_one_turn_confirms_an_entry_once(diary):
    async def work(deps):
        for _ in range(5):
            await upsert_preference(Context(deps), "likes", id="pref001")
            await upsert_preference(Context(deps), "likes", text="I love tango.")

    diary.user("alice").upsert_preference("likes", "I love tango.")
    add_turn(diary.with_agent(Reader(work)), "I love tango!", "I know.")
    assert texts(diary) == {"likes": [("I love tango.", 2)]}


def test_a_turn_that_corrects_an_entry_still_confirms_it_once(diary):
    async def work(deps):
        correct = {"id": "pref001", "text": "I love slow tango.", "suppress_count_increment": True}
        for _ in range(5):
            await upsert_preference(Context(deps), "likes", **correct)
            await upsert_preference(Context(deps), "likes", id="pref001")

    diary.user("alice").upsert_preference("likes", "I love tango.")
    add_turn(diary.with_agent(Reader(work)), "I love slow tango!", "I know.")
    assert texts(diary) == {"likes": [("I love slow tango.", 2)]}


@pytest.mark.parametrize("suppress", [False, True])
def test_one_turn_counts_a_new_entry_once(diary, suppress):
    async def work(deps):
        new = {"text": "I love tango.", "suppress_count_increment": suppress}
        for _ in range(5):
            await upsert_preference(Context(deps), "likes", **new)
            await upsert_preference(Context(deps), "likes", id="pref001", contexts=["evening"])

    add_turn(diary.with_agent(Reader(work)), "I love tango!", "I know.")
    assert texts(diary) == {"likes": [("I love tango.", 1)]}


# Half characters


@DOORS
def test_a_lone_surrogate_does_not_fail_the_turn(tmp_path, door):
    diary = Diary(tmp_path, agent="rules")
    said = "I love \ud83d\udc83 \ud83d."  # both halves of one character, and one of another
    door(diary, said, "Nice \udc00", earlier=[("a\ud800", "b\udfff")])
    assert texts(diary) == {"likes": [("I love 💃 �.", 1)]}
