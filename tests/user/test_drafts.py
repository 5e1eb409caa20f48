"""Drafts: seen by their session only, promoted or discarded, both undoable, and gone after a time."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel

from tomldiary import Constraint, Diary
from tomldiary.errors import (
    DiaryError,
    EntryConflict,
    InvalidValue,
    LimitReached,
    NotSupported,
    OperationConflict,
    UnknownEntry,
)
from tomldiary.extraction.turns import untrusted

NOW = datetime(2026, 11, 20, tzinfo=UTC)


class Diet(BaseModel):
    role: str
    value: str


class Note(BaseModel):
    text: str


@pytest.fixture(params=["memory:", "folder"])
def alice(request, tmp_path):
    diary = Diary("memory:" if request.param == "memory:" else tmp_path, agent="rules")
    diary.register_schema("diet", Diet, constraint=Constraint(singleton_key="role"))
    return diary.user("alice")


def written(alice):
    """One draft of each kind, by one session."""
    options = {"session_id": "s1", "ephemeral": True}
    alice.upsert_preference("likes", "jazz canary", **options)
    alice.facts.commit(Diet(role="user", value="vegan"), **options)
    alice.blocks.append("notes", "first", **options)
    alice.blocks.append("notes", "second", **options)
    alice.episodes.add("question", "answer", **options)


def texts(diary):
    return (
        [item.text for item in diary.preferences("likes").values()],
        [fact.data.value for fact in diary.facts.query("diet")],
        [block.text for block in diary.blocks().values()],
        [each.input for each in diary.episodes()],
    )


EVERYTHING = (["jazz canary"], ["vegan"], ["first\nsecond"], ["question"])
NOTHING = ([], [], [], [])


def test_a_draft_is_seen_by_its_session_only(alice):
    written(alice)
    assert texts(alice) == texts(alice.draft("s2")) == NOTHING
    assert texts(alice.draft("s1")) == EVERYTHING
    assert "jazz" not in alice.render() + alice.draft("s2").render()
    assert "jazz canary" in alice.draft("s1").render()
    assert alice.recall("jazz canary") == []
    assert [hit.key for hit in alice.draft("s1").recall("jazz canary")] == ["likes/pref001"]
    assert len(alice.drafts("s1")) == len(alice.drafts()) == 4
    assert alice.drafts("s2") == []


def test_why_tells_of_entries_that_only_the_draft_has(alice):
    alice.upsert_preference("likes", "tea", actor="user")
    written(alice)
    draft = alice.draft("s1")
    draft.upsert_preference("likes", "green tea", id="pref001", actor="assistant")
    for key in (
        "likes/pref002",
        "facts/diet/user",
        "blocks/notes",
        *(h.full_key for h in draft.recall("question")),
    ):
        found = draft.why(key)
        assert (found.session, found.origin, found.changes) == ("s1", "", [])
        with pytest.raises(UnknownEntry):
            alice.why(key)
    assert (draft.why("likes/pref001").text, draft.why("likes/pref001").origin) == (
        "green tea",
        "assistant",
    )
    assert (alice.why("likes/pref001").text, alice.why("likes/pref001").origin) == ("tea", "user")
    draft.upsert_preference("likes", "black tea", id="pref001")
    assert (draft.why("likes/pref001").text, draft.why("likes/pref001").origin) == ("black tea", "")
    draft.upsert_preference("likes", "oolong", id="pref001", actor="tool:crm")
    alice.promote_session("s1")
    assert (alice.why("likes/pref001").text, alice.why("likes/pref001").origin) == (
        "oolong",
        "tool:crm",
    )


def test_a_promoted_draft_has_the_origin_of_its_write(alice):
    alice.upsert_preference("likes", "tea", session_id="s1", actor="planner", ephemeral=True)
    alice.promote_session("s1", actor="boss")
    assert alice.why("likes/pref001").origin == "planner"
    alice.upsert_preference("likes", "tea", session_id="s2", actor="tool:crm", ephemeral=True)
    alice.promote_session("s2", actor="boss")
    confirmed = alice.why("likes/pref001")
    assert (confirmed.origin, confirmed.confirmations) == ("planner", 2)


def test_a_confirmed_draft_keeps_the_origin_of_its_content(alice):
    draft = alice.draft("s1")
    draft.upsert_preference("likes", "tea", actor="assistant")
    draft.upsert_preference("likes", id="pref001", actor="tool:crm")
    draft.confirm("likes/pref001")
    (promoted,) = alice.promote_session("s1")
    assert (promoted.origin, alice.why("likes/pref001").origin) == ("assistant", "assistant")
    assert alice.preferences("likes")["pref001"].count == 2


def test_a_promoted_draft_belongs_to_the_session_that_its_write_named(alice):
    draft = alice.draft("s1")
    draft.upsert_preference("likes", "tea", session_id="s2")
    draft.episodes.add("tea?", "yes", session_id="s2", id="e1")
    draft.blocks.set("plan", "tea", session_id="s2")
    alice.promote_session("s1")
    kept = [alice.preferences("likes")["pref001"].created_by, alice.blocks["plan"].created_by]
    assert [*kept, alice.episodes.get("e1").session_id] == ["s2"] * 3
    alice.forget(session_id="s2")
    assert alice.traces("tea") == []


def test_a_conversation_removed_in_a_draft_is_removed_when_it_is_promoted(alice):
    alice.add_turn("I love tea.", "Noted.", session_id="s0")
    alice.draft("s1").remove_conversation("s0")
    assert ([*alice.conversations()], [*alice.draft("s1").conversations()]) == (["s0"], [])
    alice.promote_session("s1")
    assert not alice.conversations()


@pytest.mark.parametrize("verb", ["promote_session", "discard_session"])
def test_a_key_without_a_draft_is_named_and_decides_nothing(alice, verb):
    written(alice)
    for keys in (["likes/pref001", "diet/user"], "likes/pref0010"):
        with pytest.raises(UnknownEntry, match="Drafts of this session: likes/pref001, facts/diet"):
            getattr(alice, verb)("s1", keys=keys)
    assert len(alice.drafts()) == 4
    assert [each.key for each in getattr(alice, verb)("s1", keys="blocks/notes")] == [
        "blocks/notes"
    ]


def test_promoting_and_discarding_are_undone_by_rollback(alice):
    written(alice)
    alice.promote_session("s1")
    assert texts(alice) == EVERYTHING
    assert alice.drafts() == []
    alice.rollback()
    assert texts(alice) == NOTHING
    assert texts(alice.draft("s1")) == EVERYTHING
    alice.discard_session("s1")
    assert texts(alice.draft("s1")) == NOTHING
    alice.rollback()
    assert texts(alice.draft("s1")) == EVERYTHING


def test_what_a_rollback_took_back_can_be_promoted_again(alice):
    alice.blocks.set("notes", "stored")
    alice.blocks.append("notes", "draft", session_id="s1", ephemeral=True)
    alice.blocks.set("new", "draft", session_id="s1", ephemeral=True)
    for _ in range(2):
        alice.promote_session("s1")
        assert (alice.blocks["notes"].text, alice.blocks["new"].text) == ("stored\ndraft", "draft")
        alice.rollback()
    alice.blocks.set("new", "newer")
    alice.blocks.append("notes", "newer")
    with pytest.raises(EntryConflict) as conflict:
        alice.promote_session("s1")
    assert conflict.value.keys == ["blocks/new", "blocks/notes"]


def test_discarding_leaves_what_was_promoted(alice):
    written(alice)
    alice.promote_session("s1", keys=["blocks/notes"])
    assert [each.key for each in alice.discard_session("s1")][:2] == [
        "likes/pref001",
        "facts/diet/user",
    ]
    assert texts(alice) == ([], [], ["first\nsecond"], [])
    assert alice.promote_session("s1") == alice.discard_session("s1") == []


def test_a_draft_changes_and_removes_stored_entries(alice):
    alice.blocks.set("notes", "stored")
    alice.upsert_preference("likes", "tea")
    draft = alice.draft("s1")
    draft.blocks.append("notes", "drafted")
    draft.remove_preference("likes", "pref001")
    assert (draft.blocks["notes"].text, [*draft.preferences("likes")]) == ("stored\ndrafted", [])
    assert (alice.blocks["notes"].text, [*alice.preferences("likes")]) == ("stored", ["pref001"])
    alice.promote_session("s1")
    assert (alice.blocks["notes"].text, [*alice.preferences("likes")]) == ("stored\ndrafted", [])


@pytest.mark.parametrize("is_draft", [True, False])
def test_the_id_of_an_entry_whose_removal_waited_is_not_reused(tmp_path, is_draft):
    alice = Diary(tmp_path, agent="rules", quarantine={"web"}).user("alice")
    alice.upsert_preference("likes", "tea")
    if is_draft:
        alice.remove_preference("likes", "pref001", session_id="s1", ephemeral=True)
        alice.promote_session("s1")
    else:
        alice.remove_preference("likes", "pref001", actor="web")
        alice.review.accept(alice.review()[0].id)
    assert alice.upsert_preference("likes", "chess")[0] == "pref002"


def test_a_draft_does_not_get_the_id_of_an_entry_that_another_draft_removes(alice):
    alice.upsert_preference("likes", "tea")
    options = {"session_id": "s1", "ephemeral": True}
    alice.remove_preference("likes", "pref001", **options)
    assert alice.upsert_preference("likes", "chess", **options)[0] == "pref002"
    alice.promote_session("s1")
    assert [*alice.preferences("likes")] == ["pref002"]


def test_a_draft_that_is_taken_back_is_no_draft(alice):
    alice.blocks.set("notes", "stored", session_id="s1")
    draft = alice.draft("s1")
    draft.blocks.set("new", "text")
    draft.blocks.delete("new")
    assert alice.drafts() == []


def test_a_draft_that_is_taken_back_removes_no_entry_of_another_session(alice):
    draft = alice.draft("s1")
    draft.upsert_preference("likes", "window seats")
    alice.upsert_preference("likes", "tea", session_id="s2")
    draft.remove_preference("likes", "pref001")
    assert alice.drafts() == alice.promote_session("s1") == []
    assert [item.text for item in alice.preferences("likes").values()] == ["tea"]


def test_a_draft_that_is_written_again_is_based_on_the_entry_before_its_first_write(alice):
    with alice.transaction():
        alice.blocks.set("plan", "first")
        alice.blocks.set("plan", "draft", session_id="s7", ephemeral=True)
        alice.blocks.set("plan", "second")
    created = alice.drafts("s7")[0].created
    alice.blocks.set("plan", "next draft", session_id="s7", ephemeral=True)
    assert alice.drafts("s7")[0].created == created
    with pytest.raises(EntryConflict, match="blocks/plan changed since"):
        alice.promote_session("s7")


def test_promoting_over_a_newer_write_is_a_conflict(alice):
    alice.blocks.set("notes", "stored")
    alice.blocks.append("notes", "draft", session_id="s1", ephemeral=True)
    alice.blocks.append("notes", "newer")
    with pytest.raises(EntryConflict) as conflict:
        alice.promote_session("s1")
    assert conflict.value.keys == ["blocks/notes"]
    assert alice.blocks["notes"].text == "stored\nnewer"
    alice.promote_session("s1", force=True)
    assert alice.blocks["notes"].text == "stored\ndraft"


@pytest.mark.parametrize("is_draft", [True, False], ids=["draft", "quarantine"])
@pytest.mark.parametrize("is_edited_before", [True, False], ids=["before", "since"])
def test_only_a_hand_edit_since_the_change_was_written_is_a_conflict(
    tmp_path, is_draft, is_edited_before
):
    diary = Diary(tmp_path, agent="rules", quarantine={"web"})
    alice = diary.user("alice")
    alice.blocks.set("notes", "stored")
    path = tmp_path / "alice/blocks.toml"

    def edit():
        path.write_text(path.read_text().replace("stored", "by hand"))

    if is_edited_before:
        edit()
    options = {"ephemeral": True} if is_draft else {"actor": "web"}
    alice.blocks.append("notes", "waiting", session_id="s1", **options)

    def decide(**options):
        if is_draft:
            return alice.promote_session("s1", **options)
        return alice.review.accept(alice.review()[0].id, **options)

    if is_edited_before:
        alice.blocks.set("other", "this write logs every hand edit of the file")
        decide()
        assert alice.blocks["notes"].text == "by hand\nwaiting"
        return
    edit()
    with pytest.raises(EntryConflict, match="blocks/notes changed since"):
        decide()
    assert alice.blocks["notes"].text == "by hand"
    decide(force=True)
    assert alice.blocks["notes"].text == "stored\nwaiting"


@pytest.mark.parametrize("is_draft", [True, False], ids=["draft", "quarantine"])
@pytest.mark.parametrize("is_logged", [True, False])
def test_a_pending_change_is_based_on_the_entry_without_a_forbidden_edit(
    tmp_path, is_draft, is_logged
):
    diary = Diary(tmp_path, agent="rules", quarantine={"web"})
    diary.constrain("blocks", Constraint(append_only=True))
    alice = diary.user("alice")
    alice.blocks.set("notes", "stored")
    alice.blocks.set("other", "first")
    path = tmp_path / "alice/blocks.toml"
    path.write_text(path.read_text().replace("stored", "forbidden").replace("first", "first one"))
    if is_logged:
        diary.engine.log_hand_edits("alice")
    options = {"ephemeral": True} if is_draft else {"actor": "web"}
    for name in ("notes", "other"):
        alice.blocks.append(name, "waiting", session_id="s1", **options)
    if is_draft:
        assert alice.draft("s1").blocks["notes"].text == "stored\nwaiting"
        alice.promote_session("s1")
    else:
        alice.review.accept(*[each.id for each in alice.review()])
    assert [block.text for block in alice.blocks().values()] == [
        "stored\nwaiting",
        "first one\nwaiting",
    ]


def test_a_rule_refuses_a_draft_at_once_as_it_would_a_write(alice):
    alice.diary.constrain("blocks", Constraint(append_only=True))
    alice.diary.constrain("preferences/likes", Constraint(limit=1))
    alice.blocks.set("stored", "one")
    draft = alice.draft("s1")
    draft.blocks.set("new", "one")
    for name in ("stored", "new"):
        with pytest.raises(InvalidValue, match=f"blocks/{name}: an append_only entry"):
            draft.blocks.set(name, "two")
        draft.blocks.append(name, "two")
    draft.upsert_preference("likes", "tea")
    with pytest.raises(LimitReached):
        draft.upsert_preference("likes", "jazz")
    alice.promote_session("s1")
    assert [block.text for block in alice.blocks().values()] == ["one\ntwo", "one\ntwo"]


@pytest.mark.parametrize("has_history", [True, False])
def test_a_draft_of_a_hand_written_entry_without_history_is_promoted(tmp_path, has_history):
    alice = Diary(tmp_path, agent="rules").user("alice")
    if has_history:
        alice.blocks.set("notes", "stored")
    (tmp_path / "alice").mkdir(exist_ok=True)
    path = tmp_path / "alice/preferences.toml"
    path.write_text('[preferences.likes.drink]\ntext = "tea"\n', "utf-8")
    alice.upsert_preference("likes", "mate", id="drink", session_id="s1", ephemeral=True)
    alice.upsert_preference("likes", "this write logs the file")
    alice.promote_session("s1")
    assert alice.preferences("likes")["drink"].text == "mate"


def test_a_draft_imported_with_a_hand_edit_is_promoted(tmp_path):
    bob = Diary("memory:", agent="rules").user("bob")
    bob.upsert_preference("likes", "tea", id="drink")
    bob.upsert_preference("likes", "mate", id="drink", session_id="s1", ephemeral=True)
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "jazz", id="music")
    path = tmp_path / "alice/preferences.toml"
    path.write_text(path.read_text("utf-8").replace("jazz", "salsa"), "utf-8")
    alice.import_(bob.export())
    alice.promote_session("s1")
    likes = alice.preferences("likes")
    assert (likes["drink"].text, likes["music"].text) == ("mate", "salsa")


def test_drafts_damaged_by_hand_are_imported(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea", session_id="s1", ephemeral=True)
    path = tmp_path / "alice/drafts.toml"
    path.write_text(path.read_text("utf-8").replace("based_on", "x") + "[drafts.77]\n", "utf-8")
    export = alice.export()
    assert alice.import_(export) == []
    bob = Diary("memory:", agent="rules").user("bob")
    bob.import_(export)
    assert bob.drafts()[0].text == "tea"


def test_a_hand_edit_of_a_fact_since_its_draft_is_a_conflict(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.register_schema("diet", Diet, constraint=Constraint(singleton_key="role"))
    alice = diary.user("alice")
    alice.facts.commit(Diet(role="user", value="vegan"))
    alice.facts.update("diet/user", {"value": "omnivore"}, session_id="s1", ephemeral=True)
    path = tmp_path / "alice/facts.toml"
    path.write_text(path.read_text().replace("vegan", "vegetarian"))
    with pytest.raises(EntryConflict, match="facts/diet/user changed since"):
        alice.promote_session("s1")
    assert alice.facts.get("diet/user").data.value == "vegetarian"


def test_a_promoted_preference_gets_a_free_id_and_is_never_stored_twice(alice):
    alice.upsert_preference("likes", "jazz", session_id="s1", ephemeral=True)
    alice.upsert_preference("likes", "tea", session_id="s2", ephemeral=True)
    alice.upsert_preference("likes", "jazz")
    alice.promote_session("s1")
    alice.promote_session("s2")
    assert [item.text for item in alice.preferences("likes").values()] == ["jazz", "tea"]


def test_a_promoted_preference_never_gets_the_id_of_another_draft(alice):
    draft = alice.draft("s1")
    tea, jazz = (draft.upsert_preference("likes", text)[0] for text in ("tea", "jazz"))
    assert [each.key for each in alice.promote_session("s1", keys=[f"likes/{jazz}"])] == [
        f"likes/{jazz}"
    ]
    assert {key: item.text for key, item in draft.preferences("likes").items()} == {
        jazz: "jazz",
        tea: "tea",
    }
    alice.promote_session("s1")
    assert [item.text for item in alice.preferences("likes").values()] == ["jazz", "tea"]
    assert alice.preferences("likes")[jazz].text == "jazz"


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_draft_whose_id_was_taken_never_gets_that_of_another_draft(alice, is_removed):
    draft = alice.draft("s1")
    tea, jazz = (draft.upsert_preference("likes", text)[0] for text in ("tea", "jazz"))
    assert alice.upsert_preference("likes", "rain")[0] == tea
    if is_removed:
        alice.remove_preference("likes", tea)
    promoted = [each.key for each in alice.promote_session("s1")]
    texts = {key: item.text for key, item in alice.preferences("likes").items()}
    rest = {} if is_removed else {tea: "rain"}
    assert texts == {**rest, jazz: "jazz", "pref003": "tea"}
    assert promoted == ["likes/pref003", f"likes/{jazz}"]


def test_a_gap_in_the_ids_of_drafts_stays_when_they_are_promoted(alice):
    draft = alice.draft("s1")
    ids = [draft.upsert_preference("likes", text)[0] for text in ("tea", "jazz", "chess")]
    draft.remove_preference("likes", ids[0])
    alice.promote_session("s1")
    assert list(alice.preferences("likes")) == ids[1:]


def test_a_promoted_preference_keeps_the_id_that_its_writer_chose_and_its_count(alice):
    for _ in range(2):
        alice.upsert_preference("likes", "Ann", id="name", session_id="s1", ephemeral=True)
    alice.upsert_preference("likes", "Bob", id="name", session_id="s2", ephemeral=True)
    alice.promote_session("s1")
    assert [(key, item.text, item.count) for key, item in alice.preferences("likes").items()] == [
        ("name", "Ann", 2)
    ]
    with pytest.raises(EntryConflict, match="likes/name changed since"):
        alice.promote_session("s2")
    alice.promote_session("s2", force=True)
    assert {key: item.text for key, item in alice.preferences("likes").items()} == {"name": "Bob"}


@pytest.mark.parametrize("is_temporal", [False, True])
def test_an_equal_fact_without_a_key_is_promoted_once(alice, is_temporal):
    alice.diary.register_schema("note", Note, Constraint(temporal=is_temporal))
    ids = [alice.facts.commit(Note(text="x"), session_id=name, ephemeral=True) for name in "ab"]
    alice.promote_session("a")
    alice.promote_session("b")
    (fact,) = alice.facts.query("note")
    assert (fact.id, fact.created_by, fact.updated_by) == (ids[0], "a", "b")


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_promoted_episode_never_overwrites_another_one(alice, is_forced):
    alice.episodes.add("draft", "", now=NOW, session_id="s1", ephemeral=True)
    alice.episodes.add("draft", "", id="chosen", session_id="s2", ephemeral=True)
    alice.episodes.add("stored", "", now=NOW)
    alice.episodes.add("stored", "", id="chosen", now=NOW)
    alice.promote_session("s1", force=is_forced)
    with pytest.raises(InvalidValue, match="Choose another id"):
        alice.promote_session("s2", force=is_forced)
    found = [(each.input, each.session_id) for each in alice.episodes()]
    assert sorted(found) == [("draft", "s1"), ("stored", ""), ("stored", "")]


def test_a_transaction_of_drafts_is_all_or_nothing(alice):
    with alice.transaction(session_id="s1", ephemeral=True) as draft:
        draft.blocks.set("one", "1")
        draft.blocks.append("one", "2")
    with (
        pytest.raises(ZeroDivisionError),
        alice.transaction(session_id="s1", ephemeral=True) as draft,
    ):
        draft.blocks.set("two", str(1 / 0))
    assert [(each.key, each.text) for each in alice.drafts()] == [("blocks/one", "1\n2")]
    assert alice.last_transaction() == 1


def test_all_writes_in_a_transaction_of_drafts_become_drafts(alice):
    with alice.transaction(session_id="s1", ephemeral=True) as draft:
        alice.upsert_preference("likes", "jazz")
        with alice.transaction(session_id="s2", actor="user"):
            alice.facts.commit(Diet(role="user", value="vegan"))
        alice.episodes.add("question", "answer", session_id="s3")
        draft.blocks.set("plan", "x")
        alice.blocks.append("plan", "y")
        assert draft.blocks["plan"].text == "x\ny"
    assert texts(alice) == NOTHING
    assert len(alice.drafts("s1")) == 4
    alice.upsert_preference("likes", "chess")
    assert [item.text for item in alice.preferences("likes").values()] == ["chess"]
    alice.promote_session("s1")
    assert [item.text for item in alice.preferences("likes").values()] == ["chess", "jazz"]
    assert texts(alice)[1:] == (["vegan"], ["x\ny"], ["question"])
    assert alice.episodes()[0].session_id == "s3"


def test_drafts_end_after_their_time(alice):
    alice.diary.draft_lifetime = timedelta(seconds=-1)
    alice.blocks.set("old", "canary", session_id="s1", ephemeral=True)
    assert alice.drafts() == []
    assert not alice.draft("s1").blocks()
    assert alice.promote_session("s1") == []
    alice.diary.draft_lifetime = timedelta(hours=1)
    alice.blocks.set("new", "text", session_id="s2", ephemeral=True)
    assert "canary" not in alice.document("drafts")
    assert alice.profile()["drafts"] == 1
    alice.diary.engine.now = lambda: datetime.now(UTC) + timedelta(hours=2)
    assert alice.profile()["drafts"] == 0


def test_forgetting_a_session_erases_its_drafts(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "jazz canary", session_id="s1", ephemeral=True)
    alice.forget(session_id="s1")
    assert alice.drafts() == []
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"canary" not in stored


def test_forgetting_a_session_erases_drafts_of_the_entries_it_wrote(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    for key, session in (("tea", "s1"), ("chess", "s2")):
        alice.upsert_preference("likes", f"{key} at noon", id=key, session_id=session)
        alice.upsert_preference("likes", f"{key} at five", id=key, session_id="s3", ephemeral=True)
    alice.forget(session_id="s1")
    assert [each.key for each in alice.drafts("s3")] == ["likes/chess"]


def test_export_and_import_take_drafts_along(alice):
    written(alice)
    bob = alice.diary.user("bob")
    bob.import_(alice.export())
    assert texts(bob.draft("s1")) == EVERYTHING


def imported(alice, before):
    """A user with `before` transactions, who imported a draft and a quarantined change of one block."""
    alice.diary.is_untrusted = untrusted({"web"})
    for number in range(5):
        alice.upsert_preference("likes", f"thing {number}")
    alice.blocks.set("notes", "stored")
    alice.blocks.append("notes", "draft", session_id="s1", ephemeral=True)
    alice.blocks.append("notes", "planted", session_id="s2", actor="web")
    bob = alice.diary.user("bob")
    for number in range(before):
        bob.upsert_preference("dislikes", f"thing {number}")
    bob.import_(alice.export())
    return bob


@pytest.mark.parametrize("before", [0, 20], ids=["new user", "longer history"])
def test_an_imported_change_is_a_conflict_only_after_a_change_since(alice, before):
    bob = imported(alice, before)
    bob.promote_session("s1")
    assert bob.blocks["notes"].text == "stored\ndraft"
    with pytest.raises(EntryConflict, match="blocks/notes changed since"):
        bob.review.accept(bob.review()[0].id)


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_second_import_of_the_same_changes_changes_nothing(alice, is_replaced):
    bob = imported(alice, 0)
    assert bob.import_(alice.export(), replace=is_replaced) == []
    alice.blocks.append("notes", "more", session_id="s3", ephemeral=True)
    assert bob.import_(alice.export(), replace=is_replaced) == ["drafts"]
    assert [each.based_on for each in bob.drafts()] == [1, 2]


def test_a_draft_without_a_session_and_a_drafted_turn_are_refused(alice):
    with pytest.raises(InvalidValue, match="belongs to a session"):
        alice.blocks.set("notes", "x", ephemeral=True)
    with pytest.raises(InvalidValue, match="belongs to a session"):
        alice.draft("")
    for verb in (alice.promote_session, alice.discard_session):
        for session in ("", None):
            with pytest.raises(InvalidValue, match="belongs to a session"):
                verb(session)
    with pytest.raises(NotSupported, match="whole memory, not a draft"):
        alice.draft("s1").add_turn("I like tea.", "Fine.", session_id="s1")


def test_a_confirmation_and_a_consolidation_of_a_draft_leave_memory_alone(alice):
    alice.add_turn("I love tea.", "Fine.", session_id="s1")
    alice.episodes.add("I love jazz.", "Fine.", session_id="s1")
    draft = alice.draft("s1")
    draft.confirm("likes/pref001")
    with pytest.raises(NotSupported, match="whole memory, not a draft"):
        draft.consolidate()
    assert (alice.why("likes/pref001").is_verified, len(alice.preferences("likes"))) == (False, 1)
    assert [each.key for each in alice.promote_session("s1")] == ["likes/pref001"]
    assert alice.why("likes/pref001").is_verified is True


def test_a_draft_of_each_kind_is_read_with_the_text_of_its_entry(alice):
    written(alice)
    told = {each.key.partition("/")[0]: each.text for each in alice.drafts()}
    assert told == {
        "likes": "jazz canary",
        "facts": "role = user, value = vegan",
        "blocks": "first\nsecond",
        "episodes": "question\nanswer",
    }
    for each in alice.drafts():
        assert alice.why(f"drafts/{each.id}").text == each.text


def test_a_draft_is_promoted_and_not_confirmed(alice):
    written(alice)
    with pytest.raises(InvalidValue, match="drafts/1: it is a draft of a session"):
        alice.confirm("drafts/1")
    assert alice.last_transaction() == 5


def test_an_end_of_a_draft_that_is_no_time_is_a_problem(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.blocks.set("plan", "x", session_id="s1", ephemeral=True)
    path = tmp_path / "alice/drafts.toml"
    path.write_text(re.sub('_expires = ".*"', '_expires = "never"', path.read_text()))
    (problem,) = alice.problems()
    assert "drafts.1._expires: expected a time, found text" in str(problem)


def test_a_point_of_history_has_no_drafts(alice):
    alice.upsert_preference("likes", "tea")
    past = alice.as_of(alice.last_transaction())
    alice.upsert_preference("likes", "coffee")
    with pytest.raises(DiaryError, match="cannot be changed and has no history"):
        past.draft("s1").preferences()
    with pytest.raises(DiaryError, match="cannot be changed and has no history"):
        past.blocks.set("persona", "A gardener.", session_id="s1", ephemeral=True)
    assert alice.drafts() == []
    assert repr(alice.draft("s1")) == "UserDiary('alice', draft='s1')"


@pytest.mark.parametrize(
    "verb",
    [
        lambda draft: draft.rollback(),
        lambda draft: draft.forget(matching="tea"),
        lambda draft: draft.prune_history(keep=1),
    ],
)
def test_a_draft_changes_no_history_of_the_whole_memory(alice, verb):
    alice.upsert_preference("likes", "tea")
    alice.draft("s1").upsert_preference("likes", "jazz")
    before = alice.last_transaction()
    with pytest.raises(NotSupported, match="whole memory, not a draft"):
        verb(alice.draft("s1"))
    assert alice.last_transaction() == before


def test_drafts_have_coroutines(alice):
    async def run():
        await alice.blocks.aset("notes", "x", session_id="s1", ephemeral=True)
        async with alice.atransaction(session_id="s1", ephemeral=True) as draft:
            await draft.blocks.aappend("notes", "y")
        return [each.key for each in await alice.apromote_session("s1")]

    assert asyncio.run(run()) == ["blocks/notes"]
    assert alice.blocks["notes"].text == "x\ny"


@pytest.mark.parametrize(
    "options",
    [{"session_id": "s1", "ephemeral": True}, {"actor": "web"}],
    ids=["a draft", "for a review"],
)
def test_a_repeated_held_write_has_the_answer_of_the_first(options):
    diary = Diary("memory:", agent="rules", quarantine={"web"})
    diary.register_schema("note", Note)
    alice = diary.user("alice")
    alice.blocks.set("notes", "stored")
    verbs = [
        lambda: alice.upsert_preference("likes", "jazz", operation_id="op1", **options),
        lambda: alice.facts.commit(Note(text="first"), operation_id="op2", **options),
        lambda: alice.blocks.append("notes", "first", operation_id="op3", **options),
        lambda: alice.episodes.add("question", "answer", operation_id="op4", **options),
    ]
    answers = [verb() for verb in verbs]
    alice.upsert_preference("likes", "of the whole memory")
    assert [verb() for verb in verbs] == answers


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("in_block", [True, False])
def test_one_operation_id_is_not_for_a_draft_and_a_write(alice, is_first, in_block):
    def write(ephemeral):
        options = {"session_id": "s7", "operation_id": "op", "ephemeral": ephemeral}
        if not in_block:
            return alice.upsert_preference("likes", "tea", **options)
        with alice.transaction(**options) as tx:
            return tx.upsert_preference("likes", "tea")

    write(is_first)
    write(is_first)
    with pytest.raises(OperationConflict):
        write(not is_first)
    assert (len(alice.drafts("s7")), len(alice.preferences("likes"))) == (is_first, not is_first)


def test_a_repeated_draft_that_undid_another_one_has_the_answer_of_the_first(alice):
    options = {"id": "pref001", "count_up": False, "session_id": "s1", "now": NOW}
    first = alice.upsert_preference("likes", "jazz", **options)
    alice.upsert_preference("likes", "opera", **options, ephemeral=True)
    undone = {**options, "ephemeral": True, "operation_id": "op1"}
    answers = [alice.upsert_preference("likes", "jazz", **undone) for _ in range(2)]
    assert answers == [first, first]
    assert alice.drafts("s1") == []


@pytest.mark.parametrize("is_draft", [True, False], ids=["draft", "review"])
def test_a_decision_keeps_when_an_entry_was_first_said(is_draft):
    diary = Diary("memory:", agent="rules", quarantine={"web"})
    diary.register_schema("diet", Diet)
    alice = diary.user("alice")
    options = {"session_id": "s", "ephemeral": True} if is_draft else {"actor": "web"}
    said = datetime(2025, 1, 1, tzinfo=UTC)
    alice.upsert_preference("likes", "tea", now=said, **options)
    alice.facts.commit(Diet(role="user", value="vegan"), now=said, **options)
    decided = alice.promote_session("s") if is_draft else alice.review.accept("1", "2")
    assert len(decided) == 2
    for entry in (alice.preferences("likes")["pref001"], *alice.facts.query()):
        assert entry.created[:10] == "2025-01-01" < entry.updated[:10]


@pytest.mark.parametrize("is_draft", [True, False], ids=["draft", "review"])
def test_a_lifetime_begins_with_the_decision(is_draft):
    diary = Diary("memory:", agent="rules", quarantine={"web"})
    rule = Constraint(singleton_key="role", ttl=timedelta(hours=2))
    diary.register_schema("diet", Diet, constraint=rule)
    diary.constrain("blocks", Constraint(ttl=timedelta(hours=2)))
    alice = diary.user("alice")
    options = {"session_id": "s", "ephemeral": True} if is_draft else {"actor": "web"}
    before = datetime.now(UTC) - timedelta(hours=3)
    alice.facts.commit(Diet(role="user", value="vegan"), now=before, **options)
    alice.blocks.set("notes", "first", now=before, **options)
    if is_draft:
        assert list(alice.draft("s").blocks()) == ["notes"]
        assert [each.id for each in alice.draft("s").facts.query()] == ["diet/user"]
        alice.promote_session("s")
    else:
        alice.review.accept("1", "2")
    assert [each.id for each in alice.facts.query()] == ["diet/user"]
    assert list(alice.blocks()) == ["notes"]
