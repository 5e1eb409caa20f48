"""Forgetting leaves no byte of it, stops for nothing, and takes nothing else along."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import os
import random
import re
import shutil
import signal
import threading
import time
import tomllib
import tracemalloc
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import count
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import programs
from calls import noted_calls
from capabilities import needs_exchange
from file_systems import HookedFiles, killed_before
from hand_edits import age
from six_verbs import SixVerbs
from tomldiary import Conflict, Diary, MemoryWriter
from tomldiary.agents.verbs import MemoryVerbs
from tomldiary.backends import LocalBackend
from tomldiary.doctor.doctor import check
from tomldiary.errors import (
    BackendError,
    DiaryError,
    DocumentError,
    Forgotten,
    InvalidTOML,
    NestedTransaction,
    UnknownEntry,
)
from tomldiary.forgetting import forget as forget_module
from tomldiary.forgetting import redact_tables
from tomldiary.forgetting.forget import Parsed, plan
from tomldiary.forgetting.redact_tables import Versions
from tomldiary.forgetting.selection import Selection
from tomldiary.history.record import parse_record
from tomldiary.history.timeline import Timeline
from tomldiary.ingest import ingest
from tomldiary.storage.files import FileSystem
from tomldiary.storage.local.layout import JOB_NAME
from tomldiary.toml import document
from tomldiary.toml.lexer import split_blocks

RULES = """\
import sys, time
from tomldiary import Diary
alice = Diary(sys.argv[1], agent="rules", durability="process", max_prefs_per_category=10**6).user("alice")
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(params=["files", "memory"])
def diary(request, tmp_path):
    place = "memory:" if request.param == "memory" else tmp_path / "m"
    return Diary(place, agent="rules")


def hits(folder, *words):
    """Files below a folder that hold one of the words in their bytes or name, and the word."""
    return [
        (path.relative_to(folder).as_posix(), word)
        for path in sorted(Path(folder).rglob("*"))
        for word in words
        if word in path.name
        or (path.is_file() and not path.is_symlink() and word.encode() in path.read_bytes())
    ]


def every_text(diary, user="alice"):
    """Everything a backend holds of a user, as one text."""
    backend = diary.engine.backend
    stored = [backend.read(user, kind).text for kind in backend.kinds(user)]
    return "\n".join([*stored, *backend.records(user)])


def texts(user, category="likes"):
    return {key: item.text for key, item in user.preferences(category).items()}


def types(diary, user="alice"):
    return [parse_record(text).type for text in diary.engine.backend.records(user)][::-1]


def every_byte(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def replayed(diary, user="alice"):
    """Check that the versions that history brings back are those it says they are, and can be read."""
    alice, timeline = diary.user(user), Timeline(diary.engine.backend, user)
    newest = alice.last_transaction()
    for seq in {*range(1, newest, 1 + newest // 20), newest}:
        past = alice.as_of(seq)
        past.preferences()
        past.conversations()
    for kind in diary.engine.backend.kinds(user):
        assert timeline.text(kind) == diary.engine.backend.read(user, kind).text
    return alice


# What is selected


@pytest.mark.parametrize("selectors", [
    {},
    {"session_id": None},
    {"before": None, "source": None},
    {"everything": False},
    {"session_id": ""},
    {"source": ""},
    {"session_id": "s", "everything": True},
    {"session_id": "s", "source": "s#1"},
    {"session_id": 7},
    {"everything": 1},
    {"everything": "yes"},
])  # fmt: skip
def test_exactly_one_selector_is_required(selectors):
    diary = Diary("memory:")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea", session_id="s")
    before = every_text(diary)
    with pytest.raises(ValueError, match=r"forget: |session_id: expected text"):
        alice.forget(**selectors)
    assert every_text(diary) == before
    assert diary.engine.backend.epoch("alice") == 0


def test_forgetting_a_session_removes_entries_that_only_it_wrote(diary):
    alice = diary.user("alice")
    alice.add_turn("I love jazz.", "ok", "gone-1")
    alice.add_turn("I love chess.", "ok", "kept-1")
    receipt = alice.forget(session_id="gone-1")
    assert (receipt.entries, receipt.conversations, receipt.epoch) == (1, 1, 1)
    assert list(texts(alice).values()) == ["I love chess."]
    assert list(alice.conversations()) == ["kept-1"]
    assert not re.search("jazz|gone-1", every_text(diary))
    assert types(diary) == ["turn", "turn", "forget"]
    replayed(diary)


def test_an_entry_confirmed_by_others_stays_under_their_session(diary):
    alice = diary.user("alice")
    alice.add_turn("I love jazz.", "ok", "gone-1")
    alice.add_turn("I love jazz.", "ok", "kept-1")
    receipt = alice.forget(session_id="gone-1")
    assert (receipt.entries, receipt.conversations) == (0, 1)
    entry = alice.entry("preferences", "likes/pref001")
    assert (entry["text"], entry["_count"]) == ("I love jazz.", 2)
    assert (entry["_created_by"], entry["_updated_by"]) == ("kept-1", "kept-1")
    assert "_source" not in entry
    assert "gone-1" not in every_text(diary)
    assert [change.session for change in alice.history("likes/pref001")] == ["kept-1", ""]
    # Whose name it stands under now can take it along.
    alice.forget(session_id="kept-1")
    assert texts(alice) == {}
    assert not re.search("jazz|kept-1", every_text(diary))


def test_older_texts_of_the_session_are_erased_from_history(diary):
    alice = diary.user("alice")
    alice.upsert_preference("likes", "first words", session_id="gone-1", reason="gone-1 said so")
    alice.upsert_preference("likes", "second words", id="pref001", session_id="kept-1")
    alice.upsert_preference("goals", "rest", session_id="kept-1", reason="as in gone-1")
    alice.forget(session_id="gone-1")
    assert texts(alice) == {"pref001": "second words"}
    assert texts(alice.as_of(1)) == {}
    assert texts(alice.as_of(2)) == {"pref001": "second words"}
    assert not re.search("first words|gone-1", every_text(diary))


def test_an_entry_the_session_rewrote_returns_to_the_earlier_version(diary):
    alice = diary.user("alice")
    alice.upsert_preference("likes", "their words", session_id="kept-1")
    alice.upsert_preference("likes", "its words", id="pref001", session_id="gone-1")
    alice.upsert_preference("likes", "other", session_id="kept-1")
    receipt = alice.forget(session_id="gone-1")
    assert receipt.entries == 0
    assert texts(alice) == {"pref001": "their words", "pref002": "other"}
    assert texts(alice.as_of(2)) == {"pref001": "their words"}
    assert not re.search("its words|gone-1", every_text(diary))
    replayed(diary)


def test_a_session_does_not_match_a_longer_name(diary):
    alice = diary.user("alice")
    alice.add_turn("I love jazz.", "ok", "s1")
    alice.add_turn("I love chess.", "ok", "s11")
    alice.upsert_preference("likes", "soup", session_id="s11", reason="about s11")
    alice.forget(session_id="s1")
    assert list(texts(alice).values()) == ["I love chess.", "soup"]
    assert [h.reason for h in alice.history("likes/pref003")] == ["about s11"]
    assert list(alice.conversations()) == ["s11"]


@pytest.mark.parametrize("zone", [UTC, None])
def test_before_removes_entries_last_updated_earlier(diary, zone):
    alice = diary.user("alice")
    day = datetime(2024, 5, 1, tzinfo=UTC)
    alice.add_turn("I love jazz.", "ok", "old", now=day)
    alice.add_turn("I love chess.", "ok", "both", now=day)
    alice.add_turn("I love maps.", "ok", "both", now=day + timedelta(days=9))
    alice.add_turn("I love chess.", "ok", "new", now=day + timedelta(days=9))
    receipt = alice.forget(before=(day + timedelta(days=9)).replace(tzinfo=zone))
    assert (receipt.entries, receipt.conversations) == (1, 1)
    assert list(texts(alice).values()) == ["I love chess.", "I love maps."]
    assert set(alice.conversations()) == {"both", "new"}
    assert "jazz" not in every_text(diary)
    replayed(diary)


@pytest.mark.parametrize("before", ["2025", "2025-01", "2025-01-01"])
def test_before_a_year_or_a_month_means_its_start(diary, before):
    alice = diary.user("alice")
    for text, year in (("jazz", 2024), ("chess", 2025)):
        alice.upsert_preference("likes", text, now=datetime(year, 1, 1, tzinfo=UTC))
    assert alice.forget(before=before).entries == 1
    assert list(texts(alice).values()) == ["chess"]
    with pytest.raises(ValueError, match="before: expected a time such as"):
        alice.forget(before="20")


def test_a_source_removes_entries_of_its_turn_despite_confirmations(diary):
    alice = diary.user("alice")
    alice.add_turn("I love jazz.", "ok", "s1")
    alice.add_turn("I love chess.", "ok", "s1")
    alice.add_turn("I love jazz.", "ok", "s2")
    assert alice.forget(source="s1#1").entries == 1
    assert list(texts(alice).values()) == ["I love chess."]
    assert set(alice.conversations()) == {"s1", "s2"}
    assert "jazz" not in every_text(diary)
    alice.forget(source="s1")  # all its turns
    assert texts(alice) == {}
    assert "chess" not in every_text(diary)


async def model_extractor(message, deps):
    """Note what comes behind "note", as a model does with the tools; "direct" writes tables itself."""
    word = deps.user_msg.partition(" ")[2]
    if deps.user_msg.startswith("note"):
        deps.upsert("likes", None, word, ())
    elif deps.user_msg.startswith("change"):
        deps.upsert("likes", "pref001", word, ())
    elif deps.user_msg.startswith("direct"):
        deps.prefs["preferences"].setdefault("likes", {})["mine"] = {"text": word}


def test_a_source_removes_entries_of_any_extractor(diary):
    diary = diary.with_agent(model_extractor)
    alice = diary.user("alice")
    alice.add_turn("note jazz", "ok", "s1")
    alice.add_turn("nothing else", "ok", "s1")
    alice.add_turn("note chess", "ok", "s1")
    alice.add_turn("direct maps", "ok", "s1")
    alice.add_turn("note tea", "ok", "s2")
    turns = {
        item.text: alice.why(f"likes/{key}").turn
        for key, item in alice.preferences("likes").items()
    }
    assert turns == {"jazz": "s1#1", "chess": "s1#3", "maps": "s1#4", "tea": "s2#1"}
    assert alice.forget(source="s1#3").entries == 1
    assert "chess" not in every_text(diary)
    assert alice.forget(source="s1#4").entries == 1
    assert "maps" not in every_text(diary)
    assert alice.forget(source="s1").entries == 1
    assert list(texts(alice).values()) == ["tea"]


def test_a_replaced_text_belongs_to_the_turn_that_replaced_it(diary):
    diary = diary.with_agent(model_extractor)
    alice = diary.user("alice")
    alice.add_turn("note jazz", "ok", "s1")
    alice.add_turn("change swing", "ok", "s2")
    assert alice.why("likes/pref001").turn == "s2#1"
    alice.upsert_preference("likes", id="pref001")
    assert alice.why("likes/pref001").turn == "s2#1"
    alice.forget(source="s1#1")
    assert "jazz" not in every_text(diary)
    assert list(texts(alice).values()) == ["swing"]
    alice.forget(source="s2#1")
    assert texts(alice) == {}
    assert "swing" not in every_text(diary)


def test_a_text_that_a_tool_replaces_has_no_source(diary):
    diary = diary.with_agent(model_extractor)
    alice = diary.user("alice")
    alice.add_turn("note jazz", "ok", "s1")
    alice.upsert_preference("likes", "swing", id="pref001", session_id="s2")
    assert alice.why("likes/pref001").turn == ""
    alice.forget(source="s1")
    assert list(texts(alice).values()) == ["swing"]
    assert "jazz" not in every_text(diary)


def test_a_turn_erases_nothing_that_tools_stored_in_its_session(diary):
    """Runs of a session may overlap, and a tool may only add a label to what another session said."""
    alice = diary.user("alice")
    alice.upsert_preference("likes", "walnut", session_id="s0")
    tools = MemoryVerbs(alice, "s1")
    tools.remember("walnut", "likes", ["evening"])
    tools.remember("pecan", "likes")
    alice.add_turn("What time is it?", "Noon.", "s1")
    alice.prune_history(keep=1)
    alice.forget(source="s1#1")
    assert list(texts(alice).values()) == ["walnut", "pecan"]


@pytest.mark.parametrize("selector", ["source", "session_id"])
def test_a_session_whose_id_continues_another_one_keeps_its_turns(diary, selector):
    alice = diary.user("alice")
    alice.add_turn("I love jazz.", "ok", "room")
    alice.add_turn("I love chess.", "ok", "room#2")
    alice.forget(**{selector: "room"})
    assert list(texts(alice).values()) == ["I love chess."]
    assert alice.why("likes/pref002").turn == "room#2#1"
    alice.forget(source="room#2#1")
    assert "chess" not in every_text(diary)


def test_a_session_whose_id_begins_another_one_keeps_its_operation_ids(diary):
    alice = diary.user("alice")
    alice.add_turn("I love jazz.", "ok", "room", operation_id="first")
    alice.add_turn("I love chess.", "ok", "room#2")
    alice.forget(session_id="room#2")
    alice.add_turn("I love jazz.", "ok", "room", operation_id="first")  # a retry
    assert alice.conversations()["room"].turns == 1


def test_a_session_whose_id_is_a_part_of_another_one_keeps_that_ones_operation_ids(diary):
    alice = diary.user("alice")
    for session in ("room", "room-2"):
        alice.upsert_preference(
            "likes", "jazz", session_id=session, operation_id=f"{session}:7", reason=f"in {session}"
        )
    alice.upsert_preference(
        "likes", "chess", session_id="room-2", operation_id="a", reason="room-2, after room"
    )
    alice.forget(session_id="room")
    assert [alice.has_done(each) for each in ("room:7", "room-2:7", "a")] == [False, True, False]
    assert [each.reason for each in alice.history() if each.reason] == ["in room-2"]


def test_a_turn_is_numbered_as_it_is_counted_when_stored(diary):
    alice = diary.user("alice")

    async def meanwhile(message, deps):
        if deps.user_msg == "note jazz":
            await alice.aadd_turn("I love chess.", "ok", "s1")
        await model_extractor(message, deps)

    diary.with_agent(meanwhile).user("alice").add_turn("note jazz", "ok", "s1")
    turns = {
        item.text: alice.why(f"likes/{key}").turn
        for key, item in alice.preferences("likes").items()
    }
    assert turns == {"I love chess.": "s1#1", "jazz": "s1#2"}


@pytest.mark.parametrize("removed_by", ["limit", "verb", "same transaction"])
def test_turns_are_numbered_on_after_their_conversation_was_removed(tmp_path, removed_by):
    diary = Diary(tmp_path, agent="rules", episodes=True, max_conversations=1)
    alice = diary.user("alice")
    is_one = removed_by == "same transaction"
    with alice.transaction() if is_one else nullcontext():
        for said in ("I love jazz.", "I love chess."):
            alice.add_turn(said, "ok", "a thread")
        if removed_by == "limit":
            alice.add_turn("hello", "ok", "a thread#1")
        else:
            alice.remove_conversation("a thread")
        assert "a thread" not in alice.conversations()
        alice.add_turn("I love tea.", "ok", "a thread")
    alice.add_turn("hello", "ok", "new")
    turns = {
        item.text: alice.why(f"likes/{key}").turn
        for key, item in alice.preferences("likes").items()
    }
    assert turns == {
        "I love jazz.": "a thread#1",
        "I love chess.": "a thread#2",
        "I love tea.": "a thread#3",
    }
    assert [alice.episodes.get(turn).input for turn in turns.values()] == list(turns)
    assert alice.episodes.get("new#1").input == "hello"


def test_everything_removes_the_user(diary):
    for name in ("alice", "bob"):
        diary.user(name).add_turn("I love jazz.", "ok", "s1")
    receipt = diary.user("alice").forget(everything=True)
    assert (receipt.entries, receipt.conversations, receipt.files) == (1, 1, {})
    assert diary.users() == ["bob"]
    assert every_text(diary) == ""
    assert diary.user("alice").last_transaction() == 0
    assert diary.user("alice").forget(everything=True).epoch == 2  # it outlives the user
    diary.user("alice").add_turn("I love tea.", "ok", "s1")
    assert types(diary) == ["turn"]
    assert list(texts(diary.user("bob")).values()) == ["I love jazz."]


@pytest.mark.parametrize("user", ["alice", "A b/c", "é", "x" * 400])
def test_everything_leaves_neither_folder_nor_name_nor_byte(tmp_path, user):
    root = tmp_path / "m"
    diary = Diary(root, agent="rules")
    diary.user(user).add_turn("I love jazz.", "ok", "session-of-hers")
    folder = diary.engine.backend.folder(user)
    (folder / "left.toml~").write_text("jazz")
    (folder / "notes").mkdir()
    (folder / "notes/more.txt").write_text("jazz")
    diary.user(user).forget(everything=True)
    assert not folder.exists()
    assert diary.users() == []
    assert hits(root, "jazz", "session-of-hers", user, folder.name) == []


def test_forgetting_nothing_changes_only_the_fencing_token(diary):
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea", session_id="s")
    before = every_text(diary)
    receipt = alice.forget(session_id="nobody")
    assert (receipt.entries, receipt.conversations, receipt.records, receipt.epoch) == (0, 0, 0, 1)
    assert every_text(diary) == before
    assert diary.user("ghost").forget(everything=True).epoch == 1
    assert diary.users() == ["alice"]


def test_a_forgotten_id_is_not_reused(diary):
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea", session_id="kept")
    alice.upsert_preference("likes", "jazz", session_id="gone")
    alice.forget(session_id="gone")
    assert alice.upsert_preference("likes", "chess")[0] == "pref003"
    replayed(diary)


def test_the_receipt_holds_counts_and_fingerprints_and_no_content(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.add_turn("I love jazz.", "ok", "gone-1")
    alice.add_turn("I love chess.", "ok", "kept-1")
    large = tmp_path / "alice/large.bin"
    large.write_bytes(b"x")
    os.truncate(large, 1 << 25)
    tracemalloc.start()
    try:
        receipt = alice.forget(session_id="gone-1")
        assert tracemalloc.get_traced_memory()[1] < 1 << 24  # it is hashed in parts
    finally:
        tracemalloc.stop()
    assert {
        name: sha256((tmp_path / "alice" / name).read_bytes()).hexdigest() for name in receipt.files
    } == receipt.files
    assert {*receipt.files} == {
        path.relative_to(tmp_path / "alice").as_posix()
        for path in (tmp_path / "alice").rglob("*.*")
    }
    assert not re.search("jazz|gone-1", str(dataclasses.asdict(receipt)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        receipt.entries = 0


# Nothing is left


def test_a_conflict_in_history_does_not_quote_forgotten_text(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea", id="mine-alone", session_id="gone-1")
    file = tmp_path / "alice/preferences.toml"
    editor = file.read_text()
    alice.upsert_preference("likes", "green tea", id="mine-alone", session_id="gone-1")
    file.write_text(editor.replace('"tea"', '"black tea"'))
    alice.upsert_preference("goals", "rest", session_id="kept-1")
    assert any(h.is_conflict for h in alice.history("likes/mine-alone"))
    alice.forget(session_id="gone-1")
    assert hits(tmp_path, "mine-alone", " tea", "gone-1") == []
    replayed(diary)


def test_a_recent_hand_edit_is_selected_like_other_entries(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea", session_id="gone-1")
    alice.upsert_preference("likes", "jazz", session_id="kept-1")
    file = tmp_path / "alice/preferences.toml"
    text = file.read_text().replace('"tea"', '"green tea"').replace('"jazz"', '"cool jazz"  # yes')
    file.write_text(f'{text}\n[preferences.likes.mine]\ntext = "by hand"\n')
    alice.forget(session_id="gone-1")
    assert texts(alice) == {"pref002": "cool jazz", "mine": "by hand"}
    assert '"cool jazz"  # yes' in file.read_text()
    assert hits(tmp_path, "tea", "gone-1") == []
    assert types(diary) == ["upsert", "upsert", "hand", "forget"]
    replayed(diary)


HAND_MADE = """\
# at the top
[_meta]
version = "0.3"

[likes.tea]
text = "short form"
_created_by = "gone-1"

# about jazz
[preferences.likes.jazz]  # inline comment
text = "jazz"
_created_by = "kept-1"

[preferences.likes.jazz.more]
detail = "sub"

# loose, too

[preferences.likes.opera]
text = "opera"
_created_by = "gone-1"
[preferences.likes.opera.more]
detail = "below opera"
[[preferences.likes.opera.list]]
detail = "in a list of opera"

# nobody's: a blank line follows

[[preferences.likes.walks]]
detail = "a list"

[preferences.goals]
note = "no table"
rest = { text = "inline rest", _created_by = "gone-1" }
run = { text = "inline run", _created_by = "kept-1", _updated_by = "gone-1" }
sit = { text = "sit", _created_by = "gone-1", _updated_by = "kept-1" }
"""


def test_entries_in_any_notation_can_be_forgotten(tmp_path):
    (tmp_path / "alice").mkdir()
    file = tmp_path / "alice/preferences.toml"
    file.write_text(HAND_MADE)
    (tmp_path / "alice/conversations.toml").write_text(
        '[_meta]\nversion = "0.2"\n\n[gone-1]\nsummary = "old layout"\n\n[kept-1]\nsummary = "stays"\n'
    )
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    receipt = alice.forget(session_id="gone-1")
    assert hits(tmp_path, "gone-1", "short form", "opera", "inline rest", "old layout", "inline run") == []  # fmt: skip
    assert texts(alice) == {"jazz": "jazz"}
    # Only this session is known as a source of the first two.
    assert texts(alice, "goals") == {"sit": "sit"}
    assert list(alice.conversations()) == ["kept-1"]
    assert receipt.conversations == 1
    assert 'type = "forget"' in diary.engine.backend.last_record("alice")
    kept = file.read_text()
    for line in (
        "# at the top",
        "# about jazz",
        "# inline comment",
        "# loose",
        'detail = "sub"',
        "# nobody's",
        'detail = "a list"',
        'note = "no table"',
    ):
        assert line in kept
    tomllib.loads(kept)


def test_forgetting_an_update_of_an_inline_entry_keeps_other_text(tmp_path):
    (tmp_path / "alice").mkdir()
    file = tmp_path / "alice/preferences.toml"
    file.write_text('[preferences.goals]\nrun = { text = "run", _created_by = "kept-1" }\n')
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("goals", id="run", session_id="gone-1")
    assert "gone-1" in file.read_text()
    alice.forget(session_id="gone-1")
    assert hits(tmp_path, "gone-1") == []
    assert texts(alice, "goals") == {"run": "run"}
    replayed(diary)


def test_an_entry_in_dotted_keys_that_goes_on_below_a_header_is_forgotten(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    file = tmp_path / "alice/preferences.toml"
    alice.upsert_preference("likes", "tea", session_id="kept-1")
    head = file.read_text().partition("[preferences.")[0]
    dotted = 'pref001.text = "canary"\npref001._updated_by = "gone-1"\npref001.more.x = 1\n'
    below = "[preferences.likes.pref001.more.below]\ny = 1\n"
    file.write_text(f'{head}[preferences.likes]\n{dotted}pref002.text = "jazz"\n\n{below}')
    age(file)
    assert texts(alice) == {"pref001": "canary", "pref002": "jazz"}
    alice.forget(session_id="gone-1")
    assert hits(tmp_path, "canary", "gone-1") == []
    assert texts(alice) == {"pref001": "tea", "pref002": "jazz"}
    replayed(alice.diary)


def test_forgetting_works_without_the_oldest_segments(tmp_path):
    diary = Diary(LocalBackend(tmp_path, segment_bytes=1500), agent="rules")
    alice = diary.user("alice")
    for number in range(6):
        alice.upsert_preference("likes", f"thing {number}", session_id="kept-1")
        alice.upsert_preference("goals", f"secret {number}", session_id="gone-1")
    min((tmp_path / "alice/history").iterdir()).unlink()
    alice.forget(session_id="gone-1")
    assert hits(tmp_path, "secret", "gone-1") == []
    assert len(texts(alice)) == 6
    with pytest.raises(DocumentError, match="history begins at"):
        alice.as_of(0)
    assert list(texts(alice.as_of(11))) == [f"pref00{number}" for number in range(1, 7)]
    assert [h.after["text"] for h in alice.history("likes/pref006")] == ["thing 5"]


def test_inconsistent_or_damaged_history_is_removed(tmp_path):
    diary = Diary(LocalBackend(tmp_path, segment_bytes=1500), agent="rules")
    alice = diary.user("alice")
    for number in range(6):
        alice.upsert_preference("goals", f"secret {number}", session_id="gone-1")
        alice.upsert_preference("likes", f"thing {number}", session_id="kept-1")
    segments = sorted((tmp_path / "alice/history").iterdir())
    segments[1].unlink()  # a hole
    data = segments[2].read_bytes()
    segments[2].write_bytes(data[:200] + b"#" + data[201:])  # a bad record
    again = Diary(tmp_path, agent="rules").user("alice")
    again.forget(session_id="gone-1")
    assert hits(tmp_path, "secret", "gone-1") == []
    assert len(texts(again)) == 6
    again.upsert_preference("likes", "still writable")
    assert len(texts(Diary(tmp_path, agent="rules").user("alice"))) == 7


def test_a_file_that_cannot_be_read_is_not_half_forgotten(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.add_turn("I love jazz.", "ok", "gone-1")
    file = tmp_path / "alice/preferences.toml"
    whole = file.read_text()
    file.write_text(whole + "broken")
    before = every_byte(tmp_path)
    with pytest.raises(InvalidTOML, match=r"preferences\.toml:"):
        alice.forget(session_id="gone-1")
    assert every_byte(tmp_path) == before
    file.write_text(whole)
    alice.forget(session_id="gone-1")
    assert hits(tmp_path, "jazz", "gone-1") == []
    alice.add_turn("I love chess.", "ok", "gone-2")
    file.write_text("broken")
    alice.forget(everything=True)
    assert diary.users() == []


@pytest.mark.parametrize("seed", range(6))
def test_incremental_versions_equal_versions_split_anew(seed):
    choose = random.Random(seed)
    versions = Versions("preferences")
    blocks = ["# head\n\n", "[_meta]\nseq = 1\n\n"]
    for step in range(60):
        at = choose.randrange(1, len(blocks) + 1)
        dice = choose.random()
        if dice < 0.5:
            extra = choose.choice(["", "# above\n", "# loose\n\n", 'x = """\n[no.header]\n"""\n'])
            blocks.insert(at, f'[preferences.likes.p{step}]\ntext = "{step}"\n{extra}')
        elif dice < 0.7 and len(blocks) > 3:
            del blocks[choose.randrange(2, len(blocks))]
        elif dice < 0.8:
            blocks.insert(at, f"[[list{step}]]\ny = [\n  1,\n]\n")
        blocks[1] = f"[_meta]\nseq = {step}\n\n"
        text = "".join(blocks)
        found = [(block.path, block.text) for block in versions.cut(text).blocks]
        assert found == [(block.path, block.text) for block in split_blocks(text)]


def test_an_unclosed_text_includes_the_tables_below_it():
    versions = Versions("preferences")
    below = '[likes.b]\nx = 1\n\n[likes.c]\n# """\nz = 1\n'
    for above in ("x = 1\n\n", 'x = """\n'):
        text = f"[_meta]\nseq = 1\n\n[likes.a]\n{above}{below}"
        tomllib.loads(text)
        found = [block.path for block in versions.cut(text).blocks]
        assert found == [block.path for block in split_blocks(text)]


def test_a_version_is_split_as_fast_after_thousands_of_others():
    def text(numbers):
        return "".join(f'[likes.p{number}]\ntext = "{number}"\n\n' for number in numbers)

    def cost(versions):
        began = time.process_time()
        for number in range(250):
            versions.cut(text([1, number, 2, 3]))
        return time.process_time() - began

    many, few = Versions("preferences"), Versions("preferences")
    many.cut(text(range(6_000)))
    few.cut(text(range(500)))
    assert cost(many) < 3 * cost(few)


# Looking back


def test_queries_of_history_omit_forgotten_entries(diary):
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea", session_id="kept-1", actor="agent", reason="said so")
    moment = datetime.now(UTC)
    time.sleep(0.002)
    alice.upsert_preference("likes", "jazz", session_id="gone-1", actor="agent", reason="secret")
    alice.upsert_preference("goals", "rest", session_id="kept-1")
    alice.forget_preference("likes", "pref002", session_id="kept-1", reason="no jazz any more")
    alice.forget(session_id="gone-1")
    assert [texts(alice.as_of(seq)) for seq in range(5)] == [{}] + [{"pref001": "tea"}] * 4
    assert texts(alice.as_of(moment)) == {"pref001": "tea"}
    assert [(h.seq, h.key) for h in alice.history()] == [(3, "goals/pref001"), (1, "likes/pref001")]
    assert [h.reason for h in alice.history("likes/pref001")] == ["said so"]
    assert [d.key for d in alice.diff(0, 4)] == ["likes/pref001", "goals/pref001"]
    assert alice.diff(1, 2) == alice.diff(3, 4) == []
    assert "jazz" not in alice.diff_text(0, 5)
    assert alice.why("likes/pref001").session == "kept-1"
    with pytest.raises(UnknownEntry):
        alice.why("likes/pref002")
    # The envelopes are all there, and nothing else of the four that had to do with it.
    log = [parse_record(text) for text in diary.engine.backend.records("alice")][::-1]
    assert [record.seq for record in log] == [1, 2, 3, 4, 5]
    assert [record.type for record in log][1::2] == ["upsert", "remove_preference"]
    for record in (log[1], log[3]):
        assert record.time
        payload = (record.session, record.actor, record.reason, record.operation, record.content)
        assert payload == ("",) * 5


def test_only_transactions_after_forget_can_be_rolled_back(diary):
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea", session_id="kept-1")
    alice.upsert_preference("likes", "jazz", session_id="gone-1")
    alice.forget(session_id="gone-1")
    alice.upsert_preference("likes", "chess", session_id="kept-1")
    before = every_text(diary)
    for crossing in ({"steps": 2}, {"steps": 99}, {"to": 1}, {"session_id": "kept-1", "steps": 2}):
        for dry_run in (False, True):
            with pytest.raises(Conflict, match="data was forgotten in transaction 3"):
                alice.rollback(**crossing, dry_run=dry_run)
    assert every_text(diary) == before
    assert alice.rollback().undone == [4]
    assert texts(alice) == {"pref001": "tea"}
    alice.rollback(to=3)
    with pytest.raises(DiaryError, match="cannot be changed"):
        alice.as_of(1).forget(everything=True)


def test_a_forgotten_operation_id_is_no_longer_known(diary):
    alice = diary.user("alice")
    for _ in range(2):
        with alice.transaction(operation_id="op", session_id="gone-1"):
            alice.upsert_preference("likes", "jazz", session_id="gone-1")
    assert alice.entry("preferences", "likes/pref001")["_count"] == 1
    alice.forget(session_id="gone-1")
    with alice.transaction(operation_id="op", session_id="kept-1"):
        alice.upsert_preference("likes", "chess", session_id="kept-1")
    assert list(texts(alice).values()) == ["chess"]


def test_an_operation_id_forgotten_by_another_process_is_unknown(tmp_path):
    one, other = (Diary(tmp_path, agent="rules") for _ in range(2))
    for _ in range(2):
        with one.user("alice").transaction(operation_id="op", session_id="gone-1"):
            one.user("alice").upsert_preference("likes", "jazz", session_id="gone-1")
    other.user("alice").forget(session_id="gone-1")
    with one.user("alice").transaction(operation_id="op", session_id="kept-1"):
        one.user("alice").upsert_preference("likes", "chess", session_id="kept-1")
    assert list(texts(other.user("alice")).values()) == ["chess"]


def texts_in(root):
    """Return all texts that an object refers to, directly or through others."""
    seen, waiting, found = set(), [root], []
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, type | ModuleType | FunctionType):
            continue
        seen.add(id(each))
        if isinstance(each, str):
            found.append(each)
        waiting += gc.get_referents(each)
    return found


def test_caches_and_indexes_drop_forgotten_text(diary):
    alice = diary.user("alice")
    with alice.transaction(operation_id="op", session_id="gone-1"):
        alice.add_turn("I love jazz.", "ok", "gone-1")
    assert [hit.text for hit in alice.recall("jazz")] == ["I love jazz."]
    assert [text for text in texts_in(diary) if "jazz" in text]
    alice.forget(session_id="gone-1")
    assert not [text for text in texts_in(diary) if "jazz" in text]
    assert alice.recall("jazz") == []
    assert "jazz" not in alice.render()


def test_a_search_drops_text_that_was_removed_before_its_erasure(tmp_path):
    diary, other = Diary(tmp_path), Diary(tmp_path)  # like two processes
    alice = diary.user("alice")
    alice.blocks.set("music", "jazz")
    alice.blocks.set("drinks", "tea")
    assert alice.recall("jazz")
    alice.blocks.delete("music")
    assert alice.recall("jazz") == []
    assert [text for text in texts_in(diary) if "jazz" in text]
    other.user("alice").forget(matching="jazz")
    assert alice.recall("tea")
    assert not [text for text in texts_in(diary) if "jazz" in text]


# What a process remembers

REMEMBERING = """\
import gc, sys
from tomldiary import Diary

gc.unfreeze()  # what a prepared program began with
diary = Diary(sys.argv[1], agent="rules", durability="process")
alice = diary.user("alice")
words = "".join(reversed("rabiznaz"))
alice.upsert_preference("likes", f"{words} tea", id=f"{words}-1", session_id="s1")
alice.upsert_preference("likes", f"more {words} tea", session_id="s1")
alice.add_turn(f"I love {words}.", "ok", "s1")
reader = diary.with_agent(lambda message, *, deps: None).user("alice")
reader.add_turn(f"I love {words}.", "ok", "s1")
alice.recall(words), alice.render(words), alice.history(), alice.as_of(1).preferences()

def held():
    gc.collect()
    found = [text for thing in gc.get_objects() for text in gc.get_referents(thing) if type(text) is str]
    return sum(words in text for text in found if text is not words)

assert held() > 5
if sys.argv[2] == "here":
    alice.forget(**eval(sys.argv[3]))
else:
    print("ready", flush=True)
    sys.stdin.readline()
assert alice.preferences() == {} or not alice.preferences("likes")
alice.conversations(), alice.recall("tea")
print(held())
"""


@pytest.mark.parametrize("selector", [{"session_id": "s1"}, {"everything": True}])
@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_a_process_keeps_no_object_with_forgotten_text(tmp_path, place, selector):
    child = programs.start("-c", REMEMBERING, tmp_path, place, repr(selector))
    if place == "elsewhere":
        assert child.stdout.readline() == "ready\n"
        Diary(tmp_path, agent="rules").user("alice").forget(**selector)
    assert child.communicate("\n") == "0\n"


# Work that began before


class Slow:
    """An extractor that waits in the middle of its work."""

    def __init__(self):
        self.began, self.go_on = threading.Event(), threading.Event()

    async def run(self, message, deps):
        self.began.set()
        await asyncio.to_thread(self.go_on.wait, 30)
        deps.prefs["preferences"].setdefault("likes", {})["jazz"] = {"text": "I love jazz."}


@pytest.mark.parametrize("place", ["files", "memory", "other process"])
@pytest.mark.parametrize("selector", [{"session_id": "s1"}, {"everything": True}])
def test_a_turn_extracted_during_forget_is_refused(tmp_path, place, selector):
    slow = Slow()
    diary = Diary("memory:" if place == "memory" else tmp_path, agent=slow)
    diary.user("alice").upsert_preference("likes", "tea", session_id="s1")
    with MemoryWriter(diary) as writer:
        receipt = asyncio.run(writer.submit("alice", "s1", "I love jazz.", "ok"))
        assert slow.began.wait(30)
        if place == "other process":
            code = f"{RULES}alice.forget(**{selector!r})"
            assert programs.run("-c", code, tmp_path, check=True).stdout == "ready\n"
        else:
            diary.user("alice").forget(**selector)
        before = every_text(diary)
        slow.go_on.set()
        with pytest.raises(Forgotten, match="Nothing was written"):
            receipt.wait(30)
        assert every_text(diary) == before
        assert texts(diary.user("alice")) == {}
        if place != "memory":
            assert hits(tmp_path, "jazz", "s1") == []
        # A turn that begins now is welcome.
        asyncio.run(writer.submit("alice", "s2", "I love jazz.", "ok")).wait(30)
    assert list(texts(diary.user("alice")).values()) == ["I love jazz."]


@pytest.mark.parametrize("place", ["files", "memory"])
def test_deleting_a_user_refuses_the_turn_being_extracted(tmp_path, place):
    slow = Slow()
    diary = Diary("memory:" if place == "memory" else tmp_path, agent=slow)
    with diary.user("alice").transaction(operation_id="op"):
        diary.user("alice").upsert_preference("likes", "tea", session_id="s1")
    with MemoryWriter(diary) as writer:
        receipt = asyncio.run(writer.submit("alice", "s1", "I love jazz.", "ok"))
        assert slow.began.wait(30)
        asyncio.run(diary.engine.backend.delete_user("alice"))
        slow.go_on.set()
        with pytest.raises(Forgotten):
            receipt.wait(30)
    assert diary.users() == []
    assert every_text(diary) == ""
    with diary.user("alice").transaction(operation_id="op"):  # the id is not known any more
        diary.user("alice").upsert_preference("likes", "rest")
    assert texts(diary.user("alice")) == {"pref001": "rest"}


def test_a_compaction_running_during_forget_is_refused(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "jazz", session_id="s1")
    began, go_on = asyncio.Event(), asyncio.Event()

    class Compactor:
        async def run(self, message, deps):
            began.set()
            await go_on.wait()
            deps.prefs["preferences"]["likes"]["pref009"] = {"text": "jazz and all that"}

    diary.compactor = Compactor()

    async def both():
        task = asyncio.ensure_future(
            diary.compaction.compact("alice", "s2", ["preferences"], datetime.now(UTC), category="")
        )
        await began.wait()
        await alice.aforget(session_id="s1")
        go_on.set()
        await task

    with pytest.raises(Forgotten):
        asyncio.run(both())
    assert hits(tmp_path, "jazz") == []


def test_a_dry_run_counts_the_history_of_deleted_documents(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    (tmp_path / "alice/preferences.toml").unlink()
    planned = alice.forget(everything=True, dry_run=True)
    assert (planned.entries, planned.records) == (1, 1)


@pytest.mark.parametrize("dry_run", [True, False])
def test_everything_counts_the_history_of_a_broken_document(tmp_path, dry_run):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.add_turn("I love tea.", "ok", "s1")
    alice.upsert_preference("likes", 'a header in a text:\n[preferences.likes.none]\ntext = "x"')
    alice.remove_preference("likes", "pref001")
    (tmp_path / "alice/preferences.toml").write_text("[preferences.likes.pref003\n")
    receipt = alice.forget(everything=True, dry_run=dry_run)
    assert (receipt.entries, receipt.conversations, receipt.records) == (2, 1, 3)
    keys = ("conversations/s1", "likes/pref001", "likes/pref002")
    assert receipt.keys == (keys if dry_run else ())


@pytest.mark.parametrize("dry_run", [False, True])
def test_forgetting_inside_a_transaction_is_refused(diary, dry_run):
    alice = diary.user("alice")
    diary.engine.lock_timeout = 1.0
    with alice.transaction():
        alice.upsert_preference("likes", "tea", session_id="s")
        with (
            noted_calls(diary.engine.backend.records) as read,
            pytest.raises(NestedTransaction, match="after it has ended"),
        ):
            alice.forget(session_id="s", dry_run=dry_run)
    assert not read  # all of a long history takes seconds
    assert texts(alice) == {"pref001": "tea"}


def test_the_file_of_fencing_tokens_names_no_user(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    for _ in range(3):
        diary.user("alice@example.org").forget(everything=True)
    system = tmp_path / ".tomldiary"
    (epoch,) = (system / "epochs").iterdir()
    assert epoch.read_text() == "3 3\n"
    key = system / "epochs.key"
    assert (key.stat().st_size, key.stat().st_mode & 0o777) == (32, 0o600)
    assert epoch.name not in {
        sha256(name.encode()).hexdigest() for name in ("alice@example.org", "alice%40example.org")
    }
    assert Diary(tmp_path, agent="rules").engine.backend.epoch("alice@example.org") == 3
    assert not [path for path in system.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("content", ["", "1", "1 x"])
def test_a_damaged_fencing_token_refuses_earlier_work(tmp_path, content):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea", id="a")
    alice.forget(key="likes/a")
    began = alice.epoch
    (file,) = (tmp_path / ".tomldiary/epochs").iterdir()
    file.write_text(content)
    with pytest.raises(Forgotten):
        alice.add_turn("I love walnuts.", "ok", session_id="s", epoch=began)


@pytest.mark.parametrize("repeated", [False, True], ids=["as it was", "stated again"])
def test_text_that_was_rolled_back_does_not_become_current(tmp_path, repeated):
    alice = Diary(tmp_path, agent="rules").user("alice")
    wrong, right = "no allergies", "allergic to penicillin"
    alice.upsert_preference("allergies", right, id="a", session_id="tuesday")
    alice.upsert_preference("allergies", wrong, id="a", session_id="nightly")
    alice.rollback(session_id="nightly")
    if repeated:
        alice.upsert_preference("allergies", f"{right} G", id="a", session_id="tuesday")
    alice.forget(session_id="tuesday")
    assert alice.preferences("allergies") == {}
    assert [item.text for item in alice.as_of(2).preferences("allergies").values()] == [wrong]


def test_a_restored_text_of_another_session_is_current_again(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea", id="a", session_id="gone")
    alice.upsert_preference("likes", "coffee", id="a", session_id="kept")
    alice.rollback()
    alice.rollback()  # undoes the rollback
    alice.upsert_preference("likes", "cocoa", id="a", session_id="gone")
    alice.forget(session_id="gone")
    assert [item.text for item in alice.preferences("likes").values()] == ["coffee"]


def test_a_forgotten_text_that_was_restored_elsewhere_has_its_earlier_text(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea", id="a", session_id="kept")
    alice.upsert_preference("likes", "coffee", id="a", session_id="gone")
    alice.remove_preference("likes", "a", session_id="other")
    alice.upsert_preference("goals", "rest", session_id="kept")
    alice.rollback(session_id="other")  # a blank line follows it now
    alice.forget(session_id="gone")
    assert [item.text for item in alice.preferences("likes").values()] == ["tea"]


def test_an_erased_entry_that_history_had_otherwise_keeps_its_id(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea", session_id="gone")
    (tmp_path / "alice/preferences.toml").unlink()
    age(tmp_path / "alice")
    assert alice.upsert_preference("likes", "coffee", session_id="kept")[0] == "pref001"
    alice.rollback(2)  # tea is back under this id
    alice.forget(session_id="gone")
    assert alice.preferences("likes") == {}
    assert alice.upsert_preference("likes", "cocoa")[0] == "pref002"


# Killed, failing, and all at once


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with something to forget in each kind of file."""
    root = tmp_path_factory.mktemp("forgetting") / "m"
    diary = Diary(root, agent="rules", durability="process")
    alice = diary.user("alice")
    alice.add_turn("I love tea.", "ok", "kept-1")
    alice.add_turn("I love canaryjazz.", "ok", "gone-1")
    alice.upsert_preference("likes", "canarysong", id="pref001", session_id="gone-1")
    alice.upsert_preference("likes", "canarylast", session_id="gone-1", reason="canarywhy")
    alice.forget_preference("likes", "pref003")
    alice.rollback(1)
    log = root.parent / "log.json"
    log.write_text(
        '[{"id": "gone-1", "messages": [{"role": "user", "content": "I love canarylog."}]}]'
    )
    ingest(diary, log, "alice")
    diary.user("bob").upsert_preference("likes", "bobs own", session_id="kept-1")
    return root


@pytest.fixture
def root(store, tmp_path):
    """A copy of that store."""
    return shutil.copytree(store, tmp_path / "m")


WORDS = ("canary", "gone-1")


def check_after_a_crash(root, selector):
    """Open the store anew: all is forgotten and in order, or nothing was begun."""
    began = (root / "alice" / JOB_NAME).exists()
    diary = Diary(root, agent="rules", durability="process")
    assert list(texts(diary.user("bob")).values()) == ["bobs own"]
    found = diary.user("alice").preferences("likes")
    left = hits(root, *WORDS)
    if began:
        assert left == []
    assert not list((root / "alice").glob(".forgetting*"))
    assert not list((root / "alice").glob(".staged*"))
    if selector.get("everything"):
        if not left:
            assert diary.users() == ["bob"]
            assert not (root / "alice").exists()
            return True
        assert found
        return False
    alice = replayed(diary)
    if left:
        assert "forget" not in types(diary)
        return False
    assert texts(alice) == {"pref001": "I love tea."}
    assert list(alice.conversations()) == ["kept-1"]
    assert types(diary).count("forget") == 1
    assert diary.engine.backend.epoch("alice") == 1
    alice.upsert_preference("likes", "soup")
    return True


def dying(hook, root, selector):
    """Forget, but be killed by a hook of the file operations."""
    files = HookedFiles()
    backend = LocalBackend(root, durability="process", files=files)
    alice = Diary(backend, agent="rules").user("alice")
    alice.last_transaction()
    files.hook = hook
    alice.forget(**selector)


def status_of_dying(hook, root, selector):
    """Run `dying` in a child process; return its status."""
    child = os.fork()
    if child == 0:
        try:
            dying(hook, root, selector)
            os._exit(0)
        finally:
            os._exit(3)
    return os.waitpid(child, 0)[1]


def killed_after_exchange(number):
    """Return a hook that kills this process at the first operation after the n-th exchange of two files."""
    names = []

    def hook(name, _path, *_args):
        if names.count("exchange") == number:
            os.kill(os.getpid(), signal.SIGKILL)
        names.append(name)

    return hook


@pytest.mark.parametrize("number", [1, 2])
def test_next_open_takes_a_document_of_a_killed_job_for_no_hand_edit(root, number):
    selector, expected = SELECTORS[0], signal.SIGKILL if FileSystem().has_exchange else 0
    assert status_of_dying(killed_after_exchange(number), root, selector) == expected
    assert check_after_a_crash(root, selector)


SELECTORS = [{"session_id": "gone-1"}, {"everything": True}]


@pytest.mark.parametrize("selector", SELECTORS)
def test_next_open_finishes_a_job_killed_at_every_eighth_step(store, tmp_path, selector):
    kill_at_steps(store, tmp_path, selector, range(1, 400, 8))


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
@pytest.mark.parametrize("selector", SELECTORS)
def test_next_open_finishes_a_job_killed_at_any_step(store, tmp_path, selector):
    kill_at_steps(store, tmp_path, selector, range(1, 400))


def kill_at_steps(store, tmp_path, selector, steps):
    """Kill a child by SIGKILL right before its n-th file operation, for each n."""
    done = unfinished = 0
    for number in steps:
        root = tmp_path / f"kill-{number}"
        shutil.copytree(store, root)
        status = status_of_dying(killed_before(number), root, selector)
        unfinished += (root / "alice" / JOB_NAME).exists()
        done += check_after_a_crash(root, selector)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        shutil.rmtree(root)
    assert status == 0
    assert number > 15
    assert done > 5 // steps.step
    assert unfinished > 5 // steps.step


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
def test_job_killed_at_100_random_moments_is_finished(store, tmp_path):
    kill_at_moments(store, tmp_path, 100)


def forgetting_child(root):
    """Fork a child that forgets a session; return the end of a pipe that tells when it is done, and its id."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            alice = Diary(root, agent="rules", durability="process").user("alice")
            alice.last_transaction()
            os.write(writer, b"ready")
            alice.forget(session_id="gone-1")
            os.write(writer, b"done")
        finally:
            os._exit(3)
    os.close(writer)
    assert os.read(reader, 5) == b"ready"
    return reader, child


def kill_at_moments(store, tmp_path, kills):
    choose = random.Random(17)
    finished, longest = 0, 0.0
    for number in range(kills):
        root = tmp_path / f"kill-{number}"
        shutil.copytree(store, root)
        reader, child = forgetting_child(root)
        began = time.monotonic()
        if number:
            time.sleep(choose.random() * 1.2 * longest)
            os.kill(child, signal.SIGKILL)
        acknowledged = os.read(reader, 4) == b"done"
        os.close(reader)
        os.waitpid(child, 0)
        assert acknowledged or number
        # The first one is left alone, to see how long it takes on this machine.
        longest = longest or time.monotonic() - began
        is_finished = check_after_a_crash(root, {"session_id": "gone-1"})
        finished += is_finished and number > 0
        assert not acknowledged or not hits(root, *WORDS)
    assert finished


def test_without_the_job_file_a_kill_leaves_forgotten_text(root):
    leave_half_done(root)
    (root / "alice" / JOB_NAME).unlink()
    assert Diary(root, agent="rules").user("alice").preferences("likes")
    assert hits(root, *WORDS)


def test_the_first_read_of_history_finishes_a_forget_job(root):
    leave_half_done(root)
    records = "".join(LocalBackend(root).records("alice"))
    assert records
    assert [word for word in WORDS if word in records] == []


def test_listing_users_finishes_forget_jobs(root, files):
    files.hook = failing("rmdir", "/alice/")
    diary = Diary(LocalBackend(root, durability="process", files=files), agent="rules")
    with pytest.raises(BackendError):
        diary.user("alice").forget(everything=True)
    assert Diary(root, agent="rules").users() == ["bob"]
    assert hits(root, "alice", *WORDS) == []


def test_the_owner_of_a_folder_is_known_until_forget_ends(tmp_path, files):
    diary = Diary(LocalBackend(tmp_path, durability="process", files=files), agent="rules")
    for letter in "abcdefgh":
        user = letter * 300  # too long to be the name of a folder
        diary.user(user).add_turn("I love jazz.", "ok", "s1")
        files.hook = failing("rmdir", "")
        with pytest.raises(BackendError):
            diary.user(user).forget(everything=True)
        files.hook = None
    assert Diary(tmp_path, agent="rules").users() == []
    assert not [path for path in tmp_path.iterdir() if path.name != ".tomldiary"]


def test_a_document_saved_at_the_end_of_a_complete_erasure_is_erased_too(tmp_path, files):
    alice = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    alice.upsert_preference("likes", "canaries")
    file = tmp_path / "alice/preferences.toml"
    text = file.read_text()

    def save(name, path, *_):
        if name == "rmdir" and path.endswith("/alice"):
            files.hook = None
            file.write_text(text)

    files.hook = save
    with pytest.raises(BackendError, match="is removed when the user is opened next"):
        alice.forget(everything=True)
    assert file.exists()
    assert Diary(tmp_path, agent="rules").users() == []
    assert not (tmp_path / "alice").exists()
    assert alice.preferences("likes") == {}


def test_a_folder_that_disappears_while_an_erasure_ends_is_left_out(tmp_path, files):
    alice = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    alice.add_turn("I love jazz.", "ok", "s1")
    folders = [tmp_path / "alice" / name for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
        (folder / "notes").write_text("mine")

    def remove_others(name, path, *_):
        if name == "open_to_read" and path.endswith("/notes"):
            for folder in folders:
                if folder.name not in path:
                    shutil.rmtree(folder, ignore_errors=True)

    files.hook = remove_others
    alice.forget(session_id="s1")
    assert hits(tmp_path, "jazz") == []


def test_an_interrupt_at_the_end_of_a_complete_erasure_leaves_no_folder(tmp_path, files):
    alice = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    alice.upsert_preference("likes", "canaries")

    def interrupt(name, path, *_):
        if name == "rmdir" and path.endswith("/alice"):
            raise KeyboardInterrupt

    files.hook = interrupt
    with pytest.raises(KeyboardInterrupt):
        alice.forget(everything=True)
    assert list((tmp_path / "alice").iterdir()) == []
    assert Diary(tmp_path, agent="rules").user("alice").preferences("likes") == {}
    assert not (tmp_path / "alice").exists()


def test_an_erasure_without_that_of_a_hidden_document_is_unfinished(tmp_path, files):
    backend = LocalBackend(tmp_path, files=files)
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "canaries")
    backend.change_hidden("alice", ".hooks", lambda *_: "canaries")
    files.hook = failing("unlink", "/hooks/alice.toml")
    with pytest.raises(BackendError, match=r"alice\.toml: cannot be written \(Input/output error"):
        backend.change_hidden("alice", ".hooks", lambda *_: "")
    with pytest.raises(BackendError, match="is removed when the user is opened next"):
        alice.forget(everything=True)
    assert "canaries" in backend.hidden("alice", ".hooks")
    files.hook = None
    assert alice.preferences("likes") == {}
    assert hits(tmp_path, "alice", "canaries") == []


def test_the_next_read_finishes_a_job_that_could_not_be_taken_back(tmp_path, files):
    alice = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    alice.upsert_preference("likes", "canaries", session_id="gone-1")

    def fail(name, path, *_):
        if (name == "write" and "/epochs/" in path) or (name == "unlink" and JOB_NAME in path):
            raise OSError(errno.EIO, "Input/output error", path)

    files.hook = fail
    with pytest.raises(BackendError, match="is removed when the user is opened next"):
        alice.forget(session_id="gone-1")
    files.hook = None
    assert alice.preferences("likes") == {}
    assert hits(tmp_path, "canaries") == []


def test_a_disk_that_takes_no_write_any_more_says_that_nothing_was_forgotten(tmp_path, files):
    alice = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    alice.upsert_preference("likes", "canaries", session_id="gone-1")

    def fail(name, path, *_):
        if name == "unlink" or (name == "sync_file" and path.endswith("/.forgetting-job")):
            raise OSError(errno.EROFS, "Read-only file system", path)

    files.hook = fail
    with pytest.raises(BackendError, match="Nothing was forgotten"):
        alice.forget(session_id="gone-1")
    files.hook = None
    assert texts(alice) == {"pref001": "canaries"}
    assert not list((tmp_path / "alice").glob(".forgetting*"))


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("new", r"cannot be written \(Input/output error\)\. Some queued turns may remain\. Check"),
        ("stored", r"cannot be written \(Input/output error\)\. Nothing was forgotten"),
        ("unfinished", r"cannot be written \(Input/output error\)\. Some of the data to forget"),
    ],
)
def test_an_erasure_whose_token_cannot_be_written_says_what_remains(tmp_path, files, state, told):
    alice = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    if state != "new":
        alice.upsert_preference("likes", "canaries")
    if state == "unfinished":
        files.hook = failing("unlink", "/preferences.toml")
        with pytest.raises(BackendError, match="is removed when the user is opened next"):
            alice.forget(everything=True)
    files.hook = failing("write", "/epochs/")
    with pytest.raises(BackendError, match=told):
        alice.forget(everything=True)
    files.hook = None
    alice.forget(everything=True)
    assert hits(tmp_path, "canaries") == []


def test_each_erasure_syncs_the_name_of_the_key_before_its_token(tmp_path, files):
    diary = Diary(LocalBackend(tmp_path, files=files), agent="rules")
    for user in ("alice", "bob"):
        diary.user(user).upsert_preference("likes", "canaries")
    diary.user("alice").forget(everything=True)
    done = []
    files.hook = lambda name, path, *_: done.append((name, path))
    diary.user("bob").forget(everything=True)
    token = next(n for n, (name, path) in enumerate(done) if name == "write" and "/epochs/" in path)
    assert ("sync_file", str(tmp_path / ".tomldiary")) in done[:token]


@needs_exchange
def test_each_step_of_a_forget_job_is_on_the_disk_before_the_next_one(root, files):
    alice = Diary(LocalBackend(root, files=files), agent="rules").user("alice")
    alice.upsert_preference("goals", "stays")
    done = []
    files.hook = lambda name, path, *_: done.append((name, path))
    alice.forget(session_id="gone-1")
    folder = str(root / "alice")
    steps = [
        done.index(("replace", f"{folder}/.forgetting-job")),
        done.index(("replace", f"{folder}/.forgetting-0")),
        max(n for n, (name, path) in enumerate(done) if name == "exchange"),
        done.index(("unlink", f"{folder}/{JOB_NAME}")),
        len(done),
    ]
    staged = done.index(("open", f"{folder}/.forgetting-1"))
    assert ("sync_file", folder) in done[staged : steps[0]]
    for number in (0, 2, 3):
        begin, end = steps[number : number + 2]
        assert ("sync_file", folder) in done[begin:end], number


def test_a_job_that_is_taken_back_is_removed_before_its_files(root, files):
    alice = Diary(LocalBackend(root, files=files), agent="rules").user("alice")
    done, fail = [], failing("write", "/epochs/")

    def note(name, path, *arguments):
        done.append((name, path))
        fail(name, path, *arguments)

    files.hook = note
    with pytest.raises(BackendError, match="Nothing was forgotten"):
        alice.forget(session_id="gone-1")
    folder = str(root / "alice")
    removed = done.index(("unlink", f"{folder}/{JOB_NAME}"))
    swept = done.index(("unlink", f"{folder}/.forgetting-0"))
    assert ("sync_file", folder) in done[removed:swept]


def test_a_document_that_is_removed_during_a_forget_job_stays_removed(root, files):
    file = root / "alice/preferences.toml"

    def remove(name, path, *_):
        if name == "replace" and path.endswith("/.forgetting-0"):
            file.unlink()

    files.hook = remove
    Diary(LocalBackend(root, files=files), agent="rules").user("alice").forget(session_id="gone-1")
    assert not file.exists()
    assert hits(root, *WORDS) == []


def test_of_two_processes_that_create_the_key_both_use_the_first_one(tmp_path, files):
    def overtake(name, _path, *arguments):
        if name == "link":
            Path(arguments[0]).write_bytes(b"k" * 32)

    alice = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    alice.upsert_preference("likes", "canaries")
    files.hook = overtake
    assert alice.forget(everything=True).epoch == alice.epoch == 1
    assert (tmp_path / ".tomldiary/epochs.key").read_bytes() == b"k" * 32


def failing(operation, part):
    """Return a hook that lets an operation fail whose path has this part."""

    def hook(name, path, *_):
        if name == operation and part in path:
            raise OSError(errno.EIO, "Input/output error", path)

    return hook


def leave_half_done(root):
    """Begin to forget a session, and fail before the files are in their places; return the diary."""
    files = HookedFiles(failing("replace", "/.forgetting-0"))
    diary = Diary(LocalBackend(root, durability="process", files=files), agent="rules")
    with pytest.raises(BackendError, match="is opened next"):
        diary.user("alice").forget(session_id="gone-1")
    files.hook = None
    return diary


def test_forgetting_on_a_read_only_disk_says_that_nothing_is_forgotten(tmp_path):
    def read_only(name, path, flags=0, *_):
        if "/alice/" in path and (name == "unlink" or (name == "open" and flags & os.O_CREAT)):
            raise OSError(errno.EROFS, "Read-only file system", path)

    files = HookedFiles()
    alice = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    files.hook = read_only
    told = r"Nothing was forgotten\. Check free space and permissions\."
    with pytest.raises(BackendError, match=told):
        alice.forget(everything=True)
    files.hook = None
    assert texts(alice) == {"pref001": "tea"}


def test_a_read_after_a_failed_forget_finishes_the_job(root):
    diary = leave_half_done(root)
    assert texts(diary.user("alice")) == {"pref001": "I love tea."}
    assert hits(root, *WORDS) == []


def test_a_name_kept_by_a_power_cut_is_removed_with_the_job(root):
    leave_half_done(root)
    (root / "alice/.forgetting-9-merged").write_text("# was moved on")
    Diary(root, agent="rules").user("alice").preferences()
    assert list((root / "alice").glob(".forgetting*")) == []


def test_a_first_read_during_a_forget_of_another_process_restores_nothing(tmp_path, files):
    def read(name, path, *_):
        # The fencing token is written already.
        if name == "replace" and path.endswith(".forgetting-0"):
            files.hook = None
            assert texts(reader) == {"pref001": "canary", "pref002": "tea"}

    forgetting = Diary(LocalBackend(tmp_path, files=files), agent="rules").user("alice")
    forgetting.upsert_preference("likes", "canary")
    forgetting.upsert_preference("likes", "tea")
    forgetting.blocks.set("plan", "rest")  # the last record, which the redaction does not change
    reader = Diary(tmp_path, agent="rules").user("alice")
    files.hook = read
    forgetting.forget(matching="canary")
    assert texts(reader) == {"pref002": "tea"}
    reader.upsert_preference("likes", "milk")
    assert "hand" not in [entry.type for entry in reader.history(limit=100)]
    assert hits(tmp_path, "canary") == []


def test_history_is_not_read_before_the_job_is_finished(root):
    leave_half_done(root)
    assert hits(root, *WORDS)
    found = Diary(root, agent="rules").user("alice").history(limit=100)
    assert found
    assert not re.search("canary|gone-1", str([*map(dataclasses.asdict, found)]))


def test_a_hand_edit_before_the_job_is_finished_is_redacted_and_kept(root):
    leave_half_done(root)
    file = root / "alice/preferences.toml"
    file.write_text(file.read_text() + '\n# why\n[preferences.goals.mine]\ntext = "by hand"\n')
    diary = Diary(root, agent="rules")
    alice = diary.user("alice")
    assert texts(alice, "goals") == {"mine": "by hand"}
    assert texts(alice) == {"pref001": "I love tea."}
    assert hits(root, *WORDS) == []
    alice.upsert_preference("goals", "rest")
    assert "# why" in file.read_text()
    assert hits(root, *WORDS) == []


FORMS = [
    '[preferences.routines]\nmine = {{ text = "{}", contexts = [] }}\n',
    '[preferences.routines]\nmine.text = "{}"\n',
    '[preferences]\nroutines = {{ mine = {{ text = "{}" }} }}\n',
    '[preferences.routines.mine]\ntext = "{}"\n',
    '[preferences.routines]\nmine.text = "{}"\n[preferences.routines.mine.more]\nx = 1\n',
]


@pytest.mark.parametrize("old", FORMS)
@pytest.mark.parametrize("new", FORMS)
def test_an_entry_returns_to_its_last_text_however_it_is_written(tmp_path, old, new):
    alice, file = Diary(tmp_path, agent="rules").user("alice"), tmp_path / "alice/preferences.toml"
    file.parent.mkdir()
    file.write_text(old.format("tea"))
    before = old.format("tea")
    for text in ("tea and canary", "Canary birds", "canary too"):
        alice.upsert_preference("goals", f"rest {len(text)} hours")
        written = file.read_text()
        assert before in written
        file.write_text(written.replace(before, new.format(text)))
        age(file)
        before = new.format(text)
    assert texts(alice, "routines") == {"mine": "canary too"}
    alice.forget(matching="canary")
    assert texts(alice, "routines") == {"mine": "tea"}
    assert hits(tmp_path, "canary") == []
    alice.upsert_preference("goals", "rest")
    assert texts(alice, "routines") == {"mine": "tea"}


def test_an_inline_table_returns_to_its_last_text_beside_a_hand_edit(tmp_path):
    file = tmp_path / "alice/preferences.toml"
    file.parent.mkdir()
    files = HookedFiles()
    diary = Diary(LocalBackend(tmp_path, durability="process", files=files), agent="rules")
    for text in ("tea", "tea and canary"):
        file.write_text(FORMS[0].format(text))
        age(file)
        diary.user("alice").upsert_preference("likes", f"a day with {text[:3]}")
    files.hook = failing("replace", "/.forgetting-0")
    with pytest.raises(BackendError, match="is opened next"):
        diary.user("alice").forget(matching="canary")
    file.write_text(file.read_text() + '\n# why\n[preferences.goals.mine]\ntext = "by hand"\n')
    alice = Diary(tmp_path, agent="rules").user("alice")
    assert texts(alice, "goals") == {"mine": "by hand"}
    assert texts(alice, "routines") == {"mine": "tea"}
    assert hits(tmp_path, "canary") == []


@pytest.mark.parametrize(
    ("operation", "number"),
    [
        *(("open", number) for number in (1, 5, 9, 13)),
        *(("sync_file", number) for number in (1, 5, 9, 13)),
        *(("write", number) for number in (1, 3, 5)),
        *((operation, number) for operation in ("replace", "unlink") for number in (1, 2, 3)),
        *(pytest.param("exchange", number, marks=needs_exchange) for number in (1, 2)),
    ],
)
def test_a_failing_file_operation_in_forget_is_undone_or_finished_later(
    root, files, operation, number
):
    diary = Diary(LocalBackend(root, durability="process", files=files), agent="rules")
    diary.user("alice").last_transaction()
    calls = 0

    def failing(name, *_):
        nonlocal calls
        calls += name == operation
        if name == operation and calls == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    raised = None
    files.hook = failing
    try:
        diary.user("alice").forget(session_id="gone-1")
    except BackendError as error:
        raised = str(error)
    files.hook = None
    assert calls >= number
    if raised is None:
        assert hits(root, *WORDS) == []
    elif "is opened next" not in raised:
        assert "forget" not in types(Diary(root, agent="rules"))
        assert not list((root / "alice").glob(".forgetting*"))
        assert texts(Diary(root, agent="rules").user("alice"))["pref002"] == "I love canaryjazz."
    # The same diary, and the same call again.
    diary.user("alice").forget(session_id="gone-1")
    assert hits(root, *WORDS) == []
    replayed(diary)


def test_concurrent_forgets_and_writes_lose_nothing_else(tmp_path):
    root = tmp_path / "m"
    writer = f"""{RULES}
for number in range(30):
    alice.upsert_preference("likes", f"kept {{number}}", session_id="kept-1")
    alice.upsert_preference("goals", f"secret {{number}}", session_id=f"gone-{{number % 7}}")
    print(number, flush=True)
"""
    forgetter = f"""{RULES}
for number in range(14):
    alice.forget(session_id=f"gone-{{number % 7}}")
"""
    children = [programs.start("-c", code, root) for code in (writer, forgetter)]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("\n")
    for child in children:
        child.communicate()
        assert child.returncode == 0
    diary = Diary(root, agent="rules", durability="process")
    for number in range(7):
        diary.user("alice").forget(session_id=f"gone-{number}")
    assert hits(root, "gone-", "secret") == []
    alice = replayed(diary)
    assert sorted(texts(alice).values()) == sorted(f"kept {number}" for number in range(30))
    log = [parse_record(text).seq for text in diary.engine.backend.records("alice")][::-1]
    assert log == list(range(1, len(log) + 1))


def test_another_process_sees_the_erasure_and_continues_writing(tmp_path):
    one, other = (Diary(tmp_path, agent="rules") for _ in range(2))
    one.user("alice").upsert_preference("likes", "jazz", session_id="gone-1")
    one.user("alice").upsert_preference("likes", "tea", session_id="kept-1")
    assert len(texts(other.user("alice"))) == 2
    other.user("alice").upsert_preference("goals", "rest", session_id="kept-1")  # knows the end
    one.user("alice").forget(session_id="gone-1")
    assert list(texts(other.user("alice")).values()) == ["tea"]
    other.user("alice").upsert_preference("goals", "run", session_id="kept-1")
    assert hits(tmp_path, "jazz", "gone-1") == []
    assert types(one) == ["upsert", "upsert", "upsert", "forget", "upsert"]
    replayed(one)


# Links


@pytest.mark.parametrize("name", ["history", "history/link.toml", "preferences.toml"])
def test_a_link_in_the_folder_is_never_followed(root, tmp_path, name):
    outside = tmp_path / "outside"
    # A write completes the copy; to complete it through a link would be refused.
    Diary(root, agent="rules").user("alice").upsert_preference("goals", "rest")
    path = root / "alice" / name
    if path.exists():
        shutil.move(path, outside)
    else:
        outside.write_bytes(next((root / "alice/history").iterdir()).read_bytes())
    path.symlink_to(outside)
    before = every_byte(outside) if outside.is_dir() else outside.read_bytes()
    mine = every_byte(root / "alice")
    diary = Diary(root, agent="rules")
    with pytest.raises(BackendError, match="link"):
        diary.user("alice").forget(session_id="gone-1")
    assert every_byte(root / "alice") == mine
    if name == "history":  # text of the user stays there
        with pytest.raises(BackendError, match="history: is a link"):
            diary.user("alice").forget(everything=True)
        path.unlink()
    diary.user("alice").forget(everything=True)
    assert (every_byte(outside) if outside.is_dir() else outside.read_bytes()) == before
    assert not (root / "alice").exists()


def test_a_folder_that_is_a_link_is_not_forgotten(root, tmp_path):
    outside = tmp_path / "outside"
    shutil.move(root / "alice", outside)
    (root / "alice").symlink_to(outside)
    before = every_byte(outside)
    for selector in ({"session_id": "gone-1"}, {"everything": True}):
        with pytest.raises(BackendError, match="is a link"):
            Diary(root, agent="rules").user("alice").forget(**selector)
    assert every_byte(outside) == before


def test_a_job_in_a_folder_that_is_a_link_is_not_finished(root, tmp_path):
    outside = tmp_path / "outside"
    shutil.move(root / "alice", outside)
    (root / "alice").symlink_to(outside)
    (outside / JOB_NAME).write_text("selection = { everything = true }\nepoch = 1\n")
    before = every_byte(outside)
    with pytest.raises(BackendError, match="is a link"):
        Diary(root, agent="rules").user("alice").upsert_preference("likes", "tea")
    assert every_byte(outside) == before


def test_a_second_folder_of_a_user_is_named_and_stops_forgetting(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("Alice")
    alice.upsert_preference("likes", "jazz")
    (tmp_path / "Alice").mkdir()  # copied from another memory, where the plain id is the name
    (tmp_path / "Alice/preferences.toml").write_text("[preferences.likes.a]\ntext = 'walnuts'\n")
    [warned] = [each for each in check(diary) if "second folder" in each.message]
    assert warned.place == str(tmp_path / "Alice")
    for selector in ({"matching": "walnuts"}, {"everything": True}):
        with pytest.raises(BackendError, match="is a second folder of this user"):
            alice.forget(**selector)
    shutil.rmtree(tmp_path / "Alice")
    assert alice.forget(everything=True).entries == 1


@pytest.mark.parametrize("name", ["inner/main.py", "pyproject.toml", "inner/settings.toml"])
def test_a_folder_of_other_files_is_not_forgotten(tmp_path, name):
    path = tmp_path / "src" / name
    path.parent.mkdir(parents=True)
    path.write_text("[tool.ruff]\nline-length = 100\n")
    diary = Diary(tmp_path, agent="rules")
    with pytest.raises(BackendError, match=rf"has files, such as {name}, and no document"):
        diary.user("src").forget(everything=True)
    assert path.exists()
    assert diary.user("src").epoch == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("blocks", "[blocks.persona]\ntext = 'Be kind.'\n"),
        ("copy", "[_meta]\nversion = '0.3'\n[preferences.likes.a]\ntext = 'tea'\n"),
    ],
)
def test_a_folder_that_only_a_person_wrote_is_forgotten(tmp_path, name, text):
    (tmp_path / "alice").mkdir()
    (tmp_path / f"alice/{name}.toml").write_text(text)
    (tmp_path / "alice/notes.txt").touch()
    Diary(tmp_path, agent="rules").user("alice").forget(everything=True)
    assert not (tmp_path / "alice").exists()


# Storage of six methods


def test_a_backend_of_six_methods_forgets_in_its_documents():
    diary = Diary(SixVerbs(), agent="rules")
    alice = diary.user("alice")
    alice.add_turn("I love jazz.", "ok", "gone-1")
    alice.add_turn("I love chess.", "ok", "kept-1")
    alice.add_turn("I love opera.", "ok", "gone-1")
    receipt = alice.forget(session_id="gone-1")
    assert (receipt.entries, receipt.conversations, receipt.epoch) == (2, 1, 1)
    assert list(texts(alice).values()) == ["I love chess."]
    assert not re.search("jazz|opera|gone-1", every_text(diary))
    assert alice.last_transaction() == 4
    alice.add_turn("I love tea.", "ok", "kept-1")
    assert len(texts(alice)) == 2
    alice.forget(everything=True)
    assert diary.users() == []


@pytest.mark.parametrize(
    ("text", "says"),
    [("x [", 'expected "=" after a key'), ("", "was altered"), ("x = 1", "Remove it")],
)
def test_an_altered_job_of_forget_is_named_with_a_remedy(tmp_path, text, says):
    Diary(tmp_path, agent="rules").user("alice").upsert_preference("likes", "tea")
    job = tmp_path / "alice" / JOB_NAME
    job.write_text(text)
    with pytest.raises(DocumentError, match=says) as refused:
        Diary(tmp_path, agent="rules").user("alice").preferences()
    assert str(refused.value).startswith(f"{job}:")
    job.unlink()
    assert Diary(tmp_path, agent="rules").user("alice").preferences("likes")


def written(diary):
    diary.user("alice").upsert_preference("likes", "green tea", session_id="s2")


def saved_by_hand(diary):
    path = diary.backend.folder("alice") / "preferences.toml"
    path.write_text(path.read_text().replace("black coffee", "black coffee at ten"))
    age(path)


def pruned(diary):
    diary.user("alice").prune_history(keep=1)


def forgotten(diary):
    diary.user("alice").forget(session_id="s2")


def before_each_computation(monkeypatch, step):
    """Call a function with the number of each computation of an erasure, before it."""
    erase, numbers = forget_module.erase, count(1)
    monkeypatch.setattr(
        forget_module, "erase", lambda *given: (step(next(numbers)), erase(*given))[1]
    )


def test_an_erasure_that_is_computed_again_parses_unchanged_documents_once(tmp_path, monkeypatch):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "walnuts", session_id="s1")
    alice.blocks.set("notes", "unrelated")
    parsed = []

    def interfere(number):
        if number == 1:
            Diary(tmp_path).user("alice").upsert_preference("likes", "tea", session_id="s2")

    def counted(text, **where):
        parsed.append("unrelated" in text)
        return parse_toml(text, **where)

    parse_toml = redact_tables.parse_toml
    before_each_computation(monkeypatch, interfere)
    for module in (redact_tables, document):
        monkeypatch.setattr(module, "parse_toml", counted)
    assert alice.forget(key="likes/pref001").entries == 1
    assert sum(parsed) == 2  # the document and its entry
    assert alice.blocks["notes"].text == "unrelated"


def test_a_version_that_cannot_be_read_fails_each_time():
    versions = Versions("blocks")
    for _ in range(2):
        with pytest.raises(InvalidTOML):
            versions.cut('[blocks]\nnotes = {text = "walnuts", text = "tea"}\n')


@pytest.mark.parametrize("most", [100, 100_000])
def test_an_erasure_in_a_large_memory_keeps_no_parsed_versions(most):
    diary, parsed = Diary("memory:", agent="rules"), Parsed(most=most)
    diary.user("alice").upsert_preference("likes", "walnuts")
    made = plan(diary.engine, "alice", Selection(matching="walnuts"), 0, parsed)
    assert made.receipt.entries == 1
    assert (parsed.versions is None) == (most == 100)


@pytest.mark.parametrize("meanwhile", [None, written, saved_by_hand, pruned, forgotten])
@pytest.mark.parametrize("dry_run", [True, False])
def test_others_write_while_an_erasure_is_computed(tmp_path, monkeypatch, meanwhile, dry_run):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "walnuts", session_id="s1")
    alice.upsert_preference("likes", "walnuts and figs", id="pref001", session_id="s1")
    alice.upsert_preference("likes", "black coffee", session_id="s2")
    computed = []

    def interfere(number):
        computed.append(number)
        if meanwhile is not None and number == 1:
            meanwhile(Diary(tmp_path, agent="rules", lock_timeout=0))

    before_each_computation(monkeypatch, interfere)
    receipt = alice.forget(session_id="s1", dry_run=dry_run)
    assert receipt.entries == 1
    assert len(computed) == (1 if meanwhile is None else 3 if meanwhile is forgotten else 2)
    assert bool(alice.traces("walnuts")) == dry_run
    texts = {item.text for item in alice.preferences("likes").values()}
    expected = {
        written: {"black coffee", "green tea"},
        saved_by_hand: {"black coffee at ten"},
        forgotten: set(),
    }
    assert texts - {"walnuts and figs"} == expected.get(meanwhile, {"black coffee"})
    assert not [each for each in check(Diary(tmp_path)) if each.level == "problem"]
