"""Files change hands between this package and TOMLDiary 0.9, and older layouts are read as they are."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import json
import os
import shutil
import subprocess
import threading
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from tomldiary import Diary, PreferenceItem, load_conversations, load_preferences
from tomldiary.entries.models import FORMAT_VERSION
from tomldiary.errors import NewerVersion, RollbackConflict
from tomldiary.extraction import tools

GOLDEN = Path(__file__).parents[1] / "golden"
PEER = os.environ.get("TOMLDIARY_PEER_PYTHON")
KINDS = ("preferences", "conversations")


class GuestTable(BaseModel):
    """What a restaurant remembers of a guest."""

    tastes: dict[str, PreferenceItem] = {}
    allergies: dict[str, PreferenceItem] = {}
    occasions: dict[str, PreferenceItem] = {}


class Regular(BaseModel):
    """What a café remembers of a regular."""

    likes: dict[str, PreferenceItem] = {}
    allergies: dict[str, PreferenceItem] = {}


class Scripted:
    """Calls one tool of the ancestor's tool box."""

    def __init__(self, tool="list_categories", **arguments):
        self.tool, self.arguments = tool, arguments

    async def run(self, message, *, deps):
        self.deps = deps
        self.answer = await getattr(tools, self.tool)(self, **self.arguments)


def guest_of(tmp_path, layout, table=GuestTable, agent=None, name="guest"):
    shutil.copytree(GOLDEN / layout, tmp_path / name, ignore=shutil.ignore_patterns("*.py"))
    return Diary(tmp_path, table, agent=agent or Scripted()).user(name)


def changes(before, after):
    """Return the lines that went and came, each with the header of the table it stands in."""
    place = "top"
    found = []
    for line in difflib.ndiff(before.splitlines(), after.splitlines()):
        if line[2:].startswith("["):
            place = line[2:].partition("#")[0].strip("[] ")
        if line[0] in "+-":
            found.append((place, line[0], line[2:]))
    return found


# Files of 0.9


def test_files_of_0_9_are_read_typed_and_shown(tmp_path):
    guest = guest_of(tmp_path, "tomldiary-0.9")
    kept = {kind: guest.document(kind) for kind in KINDS}

    stored = guest.preferences()
    assert [len(stored[name]) for name in GuestTable.model_fields] == [3, 1, 1]
    wine = stored["tastes"]["pref002"]
    assert (wine.text, wine.contexts) == ('the house red, "not too cold"', ["dinner"])
    assert (wine.count, wine.created_by, wine.updated_by) == (2, "booking-1", "booking-2")
    assert stored["occasions"]["pref001"].text == "Zoë's birthday, 14 March\nwith candles"
    assert {key: item.turns for key, item in guest.conversations().items()} == {
        "booking-2": 1,
        "booking-1": 2,
    }

    shown = asyncio.run(guest.diary.pretty_preferences("guest"))
    assert "hazelnuts and almonds (2x)" in shown
    assert "contexts: dinner, starter" in shown
    assert "Changed the time to 19:30." in asyncio.run(guest.diary.pretty_conversations("guest"))
    assert guest.recall("nuts at the table")[0].key == "booking-1"

    assert load_preferences(kept["preferences"], GuestTable).tastes == stored["tastes"]
    assert load_conversations(kept["conversations"]) == guest.conversations()
    assert {
        kind: (GOLDEN / "tomldiary-0.9" / f"{kind}.toml").read_text("utf-8") for kind in KINDS
    } == kept


def test_an_update_of_a_0_9_file_changes_only_its_entry_and_meta(tmp_path):
    guest = guest_of(tmp_path, "tomldiary-0.9")
    before = guest.document("preferences")
    guest.upsert_preference(
        "allergies", "hazelnuts, almonds, pecans", id="pref001", session_id="s9"
    )

    changed = changes(before, guest.document("preferences"))
    assert {place for place, _, _ in changed} == {"_meta", "preferences.allergies.pref001"}
    assert [line.partition(" =")[0] for place, _, line in changed if place == "_meta"] == ["seq"]
    touched = [line for place, mark, line in changed if mark == "+" and place != "_meta"]
    assert [line.partition(" =")[0] for line in touched] == [
        "_updated", "_count", "_updated_by", "text",
    ]  # fmt: skip


def test_a_turn_on_files_of_0_9_adds_its_entry_and_counts(tmp_path):
    agent = Scripted("upsert_preference", category="tastes", text="rye bread", contexts=["lunch"])
    guest = guest_of(tmp_path, "tomldiary-0.9", agent=agent)
    before = {kind: guest.document(kind) for kind in KINDS}
    guest.add_turn("I like rye bread with lunch.", "Noted.", "booking-2")

    assert agent.answer.startswith("✅ Created tastes/pref004")
    stored = changes(before["preferences"], guest.document("preferences"))
    assert {place for place, _, _ in stored} == {"_meta", "preferences.tastes.pref004"}
    assert {mark for _, mark, _ in stored} == {"+"}
    counted = changes(before["conversations"], guest.document("conversations"))
    assert {place for place, _, _ in counted} == {
        "_meta", "_meta.compaction", "conversations.booking-2",
    }  # fmt: skip
    assert ("conversations.booking-2", "+", "_turns = 2") in counted
    assert ("_meta.compaction", "+", "total_turns = 4") in counted


def test_a_turn_without_changes_leaves_0_9_preferences_byte_for_byte(tmp_path):
    guest = guest_of(tmp_path, "tomldiary-0.9")
    before = (tmp_path / "guest" / "preferences.toml").read_bytes()
    guest.add_turn("Is the terrace open?", "From May on.", "booking-2")
    assert (tmp_path / "guest" / "preferences.toml").read_bytes() == before


def test_a_rollback_does_not_undo_what_0_9_had_stored(tmp_path):
    guest = guest_of(tmp_path, "tomldiary-0.9")
    before = guest.document("conversations")
    with pytest.raises(RollbackConflict, match="no transaction to undo"):
        guest.rollback()
    guest.upsert_preference("tastes", "rye bread")
    assert guest.rollback().keys == ["tastes/pref004"]
    assert guest.document("conversations") == before


def test_the_first_write_needs_no_other_document_to_be_readable(tmp_path):
    guest = guest_of(tmp_path, "tomldiary-0.9")
    (tmp_path / "guest/blocks.toml").symlink_to("nowhere")
    (tmp_path / "guest/facts.toml").write_text("broken =")
    guest.upsert_preference("tastes", "rye bread")
    assert [change.seq for change in guest.history("tastes/pref004")] == [2]


@pytest.mark.parametrize("name", ["Zoë Müller", "~zoe"])
def test_ids_and_plain_folder_names_of_0_9_stay_in_use(tmp_path, name):
    guest = guest_of(tmp_path, "tomldiary-0.9", name=name)
    assert guest.diary.users() == [name]
    assert guest.upsert_preference("tastes", "rye bread")[0] == "pref004"
    assert "rye bread" in (tmp_path / name / "preferences.toml").read_text("utf-8")
    guest.forget(everything=True)
    assert not (tmp_path / name).exists()


# Older layouts


def test_sessions_of_0_2_are_read_in_their_place(tmp_path):
    guest = guest_of(tmp_path, "tomldiary-0.2")
    before = guest.document("conversations")
    assert {key: item.turns for key, item in guest.conversations().items()} == {
        "booking 2 [late]": 1,
        "booking-1": 4,
    }
    assert "after the theatre" in asyncio.run(guest.diary.pretty_conversations("guest"))
    assert guest.document("conversations") == before


def test_the_first_write_migrates_0_2_sessions_and_keeps_comments(tmp_path):
    guest = guest_of(tmp_path, "tomldiary-0.2")
    before = guest.document("conversations")
    guest.add_turn("The usual table, please.", "Booked.", "booking-3")
    after = guest.document("conversations")

    old = before.splitlines()
    expected = {
        'version = "0.2"': f'version = "{FORMAT_VERSION}"',
        "[booking-1]  # table by the window": "[conversations.booking-1]  # table by the window",
        '["booking 2 [late]"]': '[conversations."booking 2 [late]"]',
    }
    kept = [expected.get(line, line) for line in old]
    left = iter(after.splitlines())
    assert all(line in left for line in kept), after  # all there, and in this order
    added = {place for place, mark, line in changes("\n".join(kept), after) if line}
    assert added == {"_meta", "_meta.compaction", "conversations.booking-3"}
    assert guest.conversations()["booking-1"].turns == 4


def test_the_migration_of_0_2_sessions_in_any_form_keeps_all_other_text(tmp_path):
    file = tmp_path / "guest/conversations.toml"
    file.parent.mkdir()
    text = """\
# by hand
one = { summary = "1" }  # inline
'two'.summary = "2"  # dotted

  [ "the third" ]  # odd
note = '''
one = 'not a key'
[two]
'''

# about a table within
[ "the third".seats ]  # two
at = "window"
[[four.orders]]  # no. 1
dish = "soup"
[[four.orders]]
"""
    file.write_text(text)
    guest = Diary(tmp_path, GuestTable, agent=Scripted(), durability="process").user("guest")
    guest.add_turn("The usual table, please.", "Booked.", "five")
    expected = (
        text.replace("one = {", "conversations.one = {")
        .replace("'two'", "conversations.two")
        .replace('[ "the', '[ conversations."the')
        .replace("[[four", "[[conversations.four")
    )
    left = iter(file.read_text().splitlines())
    assert all(line in left for line in expected.splitlines())
    assert {*guest.conversations()} == {"one", "two", "the third", "four", "five"}


def test_0_2_sessions_beside_an_empty_inline_table_keep_their_comments(
    tmp_path,
):
    file = tmp_path / "guest/conversations.toml"
    file.parent.mkdir()
    file.write_text('conversations = {}\n[two] # late\nsummary = "2" # o\'clock\n')
    guest = Diary(tmp_path, GuestTable, agent=Scripted(), durability="process").user("guest")
    guest.add_turn("The usual table, please.", "Booked.", "three")
    assert '[conversations.two] # late\nsummary = "2" # o\'clock\n' in file.read_text()


def test_a_migration_of_sessions_that_is_undone_keeps_their_comments(tmp_path):
    file = tmp_path / "guest/conversations.toml"
    file.parent.mkdir()
    text = """\
one = { summary = "1" }  # inline
# dotted
four.summary = "4"  # late
[two] # late
summary = "2" # o'clock
"""
    file.write_text(text)
    guest = Diary(tmp_path, GuestTable, agent=Scripted(), durability="process").user("guest")
    guest.add_turn("The usual table, please.", "Booked.", "three")
    guest.rollback()
    for line in text.splitlines():
        assert line.removeprefix("[") in file.read_text()
    assert "[_meta.compaction]" in file.read_text()


def test_0_2_sessions_beside_an_inline_table_of_sessions_are_migrated(tmp_path):
    file = tmp_path / "guest/conversations.toml"
    file.parent.mkdir()
    file.write_text('conversations = { new = { summary = "n" } }\n[old]\nsummary = "o"\n')
    guest = Diary(tmp_path, GuestTable, agent=Scripted(), durability="process").user("guest")
    guest.add_turn("The usual table, please.", "Booked.", "third")
    found = tomllib.loads(file.read_text())["conversations"]
    assert {key: found[key]["summary"] for key in found} == {"new": "n", "old": "o", "third": ""}


@pytest.mark.parametrize("key", ["coffee", "window_table"])
def test_entries_in_the_short_form_are_read_and_changed_in_place(tmp_path, key):
    guest = guest_of(tmp_path, "short-form", Regular)
    before = guest.document("preferences")
    assert guest.preferences("likes")["coffee"].count == 3
    assert guest.preferences("likes")["window_table"].count == 1
    assert "a table by the window" in asyncio.run(guest.diary.pretty_preferences("guest"))
    assert load_preferences(before, Regular).allergies["walnuts"].contexts == ["diet", "health"]

    guest.upsert_preference("likes", id=key, contexts=["brunch"])
    changed = changes(before, guest.document("preferences"))
    assert {place for place, _, _ in changed} == {"_meta", f"likes.{key}"}
    assert "# never decaf" in guest.document("preferences")
    assert guest.preferences("likes")[key].contexts[-1] == "brunch"


def test_a_new_entry_beside_short_ones_and_a_forgotten_short_one(tmp_path):
    guest = guest_of(tmp_path, "short-form", Regular)
    before = guest.document("preferences")
    key, _ = guest.upsert_preference("likes", "oat milk")
    guest.forget_preference("likes", "window_table")

    assert sorted(guest.preferences("likes")) == ["coffee", key]
    lines = guest.document("preferences").splitlines()
    gone = [line for line in before.splitlines() if line and line not in lines]
    assert gone == ["[likes.window_table]", 'text = "a table by the window"']


@pytest.mark.parametrize("layout", ["short-form", "tomldiary-0.9", "tomldiary-0.2"])
def test_files_without_a_meta_table_are_read_and_written(tmp_path, layout):
    table = Regular if layout == "short-form" else GuestTable
    guest = guest_of(tmp_path, layout, table)
    with_meta = (guest.preferences(), guest.conversations())
    for path in (tmp_path / "guest").glob("*.toml"):
        text = path.read_text("utf-8")
        start = text.index("[", text.rindex("[_meta") + 1)
        path.write_text(text[start:], "utf-8")

    bare = Diary(tmp_path, table, agent=Scripted()).user("guest")
    assert (bare.preferences(), bare.conversations()) == with_meta
    bare.upsert_preference("allergies", "celery")
    bare.add_turn("Still no celery, please.", "Of course.", "booking-9")
    after = (bare.preferences(), bare.conversations())
    assert len(after[0]["allergies"]) == len(with_meta[0]["allergies"]) + 1
    assert set(after[1]) == {*with_meta[1], "booking-9"}
    for kind in KINDS:
        meta = tomllib.loads(bare.document(kind))["_meta"]
        assert (meta["version"], meta["schema_name"]) == (FORMAT_VERSION, table.__name__)


# Newer files


@pytest.mark.parametrize("version", ["0.4", "0.10", "1.0", "9.9", "0.3.1", "next"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_newer_file_is_refused_by_name_and_not_changed(tmp_path, kind, version):
    guest = guest_of(tmp_path, "tomldiary-0.9")
    path = tmp_path / "guest" / f"{kind}.toml"
    path.write_text(path.read_text("utf-8").replace('"0.3"', f'"{version}"'), "utf-8")
    before = {each: each.read_bytes() for each in path.parent.glob("*.toml")}
    diary = Diary(tmp_path, GuestTable, agent=Scripted())
    guest = diary.user("guest")

    calls = {
        "preferences": [
            guest.preferences,
            lambda: guest.upsert_preference("tastes", "rye bread"),
            lambda: guest.forget_preference("tastes", "pref001"),
            lambda: asyncio.run(diary.preferences("guest")),
            lambda: asyncio.run(diary.pretty_preferences("guest")),
        ],
        "conversations": [
            guest.conversations,
            lambda: asyncio.run(diary.ensure_session("guest", "booking-9")),
            lambda: asyncio.run(diary.last_conversations("guest")),
        ],
    }[kind]
    for call in [*calls, lambda: guest.add_turn("Hello.", "Good evening.", "booking-1")]:
        with pytest.raises(NewerVersion, match=version) as refused:
            call()
        assert refused.value.path == str(path)
    assert {each: each.read_bytes() for each in path.parent.glob("*.toml")} == before


# Our files, in the hands of 0.9

with_peer = pytest.mark.skipif(
    not PEER, reason="TOMLDIARY_PEER_PYTHON does not name a Python with TOMLDiary 0.9 installed"
)


@pytest.fixture(scope="module")
def peer():
    """One process with 0.9 for all tests, as it takes most of a second to start; it opens each folder anew."""
    keep = ("PATH", "HOME", "TMPDIR", "LANG")
    with subprocess.Popen(
        [PEER, GOLDEN / "tomldiary-0.9" / "peer.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        env={
            **{name: os.environ[name] for name in keep if name in os.environ},
            "OPENAI_API_KEY": "none",
            "PYTHONUTF8": "1",
        },
    ) as process:

        def ask(*arguments):
            process.stdin.write(json.dumps([*map(str, arguments)]) + "\n")
            process.stdin.flush()
            watch = threading.Timer(120, process.kill)
            watch.start()
            line = process.stdout.readline()
            watch.cancel()
            assert line, "0.9 ended, or did not answer for two minutes"
            is_done, answer = json.loads(line)
            assert is_done, answer
            return answer

        yield ask
        process.stdin.close()


def written_by_us(tmp_path):
    guest = Diary(tmp_path, GuestTable, agent=Scripted()).user("guest")
    guest.upsert_preference("tastes", "tortellini", contexts=["dinner"], session_id="visit-1")
    guest.upsert_preference("tastes", 'a "dry" white\nfrom the Jura – 日本酒 too')
    guest.upsert_preference("tastes", "something to forget")
    guest.forget_preference("tastes", "pref003")
    guest.upsert_preference("occasions", "first visit", id="opening night")
    agent = Scripted("update_conversation_summary", summary="Came by.", keywords=["hello"])
    guest.diary.agent = agent
    guest.add_turn("Good evening!", "Welcome.", "visit-1")
    return guest


@with_peer
def test_0_9_reads_and_updates_current_files_which_stay_readable(tmp_path, peer):
    guest = written_by_us(tmp_path)
    before, sessions = guest.preferences(), guest.conversations()
    meta = tomllib.loads(guest.document("preferences"))["_meta"]
    done = peer("update", tmp_path, "guest")

    assert '- tastes/pref002: a "dry" white\nfrom the Jura – 日本酒 too (1×)' in done["answers"][1]
    assert not [answer for answer in done["answers"] if "❌" in answer and "limit" not in answer]
    assert "first visit" in done["shown"][0]
    assert "Came by." in done["shown"][1]

    after = guest.preferences()
    changed = after["tastes"].pop("pref001")
    assert (changed.text, changed.count) == ("ravioli with sage", 2)
    assert sorted(changed.contexts) == ["dinner", "supper"]
    assert (changed.created, changed.created_by) == (
        before["tastes"].pop("pref001").created,
        "visit-1",
    )
    assert after.pop("allergies")["pref001"].text == "celery"
    before.pop("allergies")
    assert after == before
    assert guest.conversations()["visit-1"] == sessions["visit-1"]
    assert guest.conversations()["visit-2"].summary == "Asked about the wine list."
    kept = tomllib.loads(guest.document("preferences"))["_meta"]
    assert {key: kept[key] for key in meta} == meta


@with_peer
def test_0_9_and_this_version_write_one_file_alternately(tmp_path, peer):
    guest = written_by_us(tmp_path)
    for round_ in range(1, 4):
        peer("update", tmp_path, "guest")
        guest.add_turn("Good evening!", "Welcome back.", "visit-1")
        guest.upsert_preference("occasions", f"evening {round_}")
    assert guest.preferences("tastes")["pref001"].count == 4
    # What we forgot keeps its id to itself, also after another program rewrote the file.
    assert guest.upsert_preference("tastes", "rye bread")[0] == "pref004"
    assert list(guest.preferences("occasions")) == [
        "opening night",
        "pref001",
        "pref002",
        "pref003",
    ]
    turns = {key: item.turns for key, item in guest.conversations().items()}
    assert turns == {"visit-1": 4, "visit-2": 3}


@with_peer
def test_every_entry_has_the_text_and_count_that_0_9_requires(tmp_path, peer):
    assert set(peer("needs", tmp_path)) == {"text", "_count"}
    guest = written_by_us(tmp_path)
    stored = tomllib.loads(guest.document("preferences"))["preferences"]
    entries = [entry for category in stored.values() for entry in category.values()]
    assert all({"text", "_count"} <= entry.keys() for entry in entries)


@with_peer
def test_the_golden_files_are_what_0_9_writes(tmp_path, peer):
    peer("make", tmp_path)
    for kind in KINDS:
        golden = (GOLDEN / "tomldiary-0.9" / f"{kind}.toml").read_text("utf-8")
        made = (tmp_path / "guest" / f"{kind}.toml").read_text("utf-8")
        assert {line.partition(" =")[0] for _, _, line in changes(golden, made)} <= {"updated_at"}


def test_the_coroutines_of_0_9_are_there_with_their_arguments():
    said = ["user_id", "session_id"]
    turn = [*said, "user_msg", "assistant_msg"]
    shown = ["user_id", "skip_metadata", "fields", "show_count", "show_timestamps"]
    coroutines = {
        "preferences": ["user_id", "skip_metadata"],
        "last_conversations": ["user_id", "limit", "skip_metadata"],
        "ensure_session": [*said, "context_now"],
        "build_deps": [*said, "context_now"],
        "update_memory": [*turn, "context_now"],
        "pretty_preferences": shown,
        "pretty_conversations": ["user_id", "limit", "skip_metadata", "fields", "show_turns"],
    }
    for name, arguments in coroutines.items():
        method = getattr(Diary, name)
        assert inspect.iscoroutinefunction(method)
        assert list(inspect.signature(method).parameters)[1 : len(arguments) + 1] == arguments


def test_a_user_without_preferences_is_told_by_the_sentence_of_0_9(tmp_path):
    diary = Diary(tmp_path, GuestTable)
    assert asyncio.run(diary.pretty_preferences("bob")) == "No preferences found for user."
    assert asyncio.run(diary.pretty_conversations("bob")) == "No conversations found."


def test_deps_of_0_9_show_the_memory_and_store_nothing(tmp_path):
    diary = Diary(tmp_path, GuestTable)
    diary.user("alice").upsert_preference("tastes", "no nuts")
    deps = asyncio.run(diary.build_deps("alice", "s1"))
    assert "no nuts" in deps.pretty_prefs()
    deps.upsert("tastes", None, "no fish")
    assert len(diary.user("alice").preferences("tastes")) == 1
