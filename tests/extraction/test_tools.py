"""The tools a model works with: marks, ids, percentages, ways on, and operations on fresh state."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from pydantic import BaseModel

from tomldiary import Constraint, Diary, MemoryDeps, PreferenceItem, extractor_prompt_check
from tomldiary.errors import InvalidValue, LimitReached, UnknownCategory, UnknownEntry
from tomldiary.extraction import tools
from tomldiary.extraction.operations import (
    SetFields,
    SetSummary,
    UpsertPreference,
    from_dict,
    to_table,
)
from tomldiary.text.similarity import conflict, normalise, same_text


class Table(BaseModel):
    """likes : what the person enjoys"""

    likes: dict[str, PreferenceItem] = {}
    dislikes: dict[str, PreferenceItem] = {}


@dataclass
class Context:
    deps: MemoryDeps


@pytest.fixture
def ctx():
    convs = {
        "_meta": {},
        "conversations": {"s": {"_turns": 2, "summary": "old", "keywords": ["k"]}},
    }
    return Context(MemoryDeps({"preferences": {}}, convs, ["likes", "dislikes"], "Table", "s", 5))


def call(tool, ctx, *args, **kwargs):
    return asyncio.run(tool(ctx, *args, **kwargs))


def upsert(ctx, *args, **kwargs):
    return call(tools.upsert_preference, ctx, *args, **kwargs)


def test_a_new_preference_has_the_next_id_in_the_callers_dictionaries(ctx):
    assert (
        upsert(ctx, "likes", text="dark roast", contexts=["a", "b"])
        == "✅ Created likes/pref001: 'dark roast'."
    )
    stored = ctx.deps.prefs["preferences"]["likes"]["pref001"]
    assert (stored["text"], stored["contexts"], stored["_count"], stored["_created_by"]) == (
        "dark roast",
        ["a", "b"],
        1,
        "s",
    )


def test_the_ancestors_search_for_similar_texts_names_entries_with_their_category(ctx):
    find = vars(tools)["_find_similar_preferences"]
    upsert(ctx, "likes", text="green tea")
    upsert(ctx, "likes", id="new", text="green tea from Uji")
    assert {each[:2] for each in find(ctx, "likes", "green tea")} == {
        ("likes/pref001", "green tea"),
        ("likes/pref002", "green tea from Uji"),
    }
    assert find(ctx, "likes", "green tea!", 101) == []


def test_a_prompt_without_a_placeholder_is_reported(capsys):
    extractor_prompt_check("Now: {current_time}. Read the turn.")
    assert "lacks {categories_doc}, so" in capsys.readouterr().out
    extractor_prompt_check("{current_time} {categories_doc}")
    extractor_prompt_check(
        "{current_time} {categories_doc} " * 20
    )  # longer than a file's name may be
    extractor_prompt_check(None)
    assert capsys.readouterr().out == ""


def test_a_similar_text_is_answered_with_ids_scores_and_both_calls(ctx):
    upsert(ctx, "likes", text="black blazers for work")
    answer = upsert(ctx, "likes", text="black blazer for work")
    assert answer.startswith(
        "❌ Similar preferences found:\n  • likes/pref001: 'black blazers for work' (98% match)"
    )
    assert "upsert_preference('likes', id='pref001'" in answer
    assert "upsert_preference('likes', id='new'" in answer
    assert upsert(ctx, "likes", id="new", text="black blazer for work").startswith(
        "✅ Created likes/pref002"
    )


@pytest.mark.parametrize(
    ("stored", "said", "why"),
    [
        ("allergic to peanuts", "not allergic to peanuts", "opposite meaning"),
        ("likes spicy food", "does not like spicy food", "opposite meaning"),
        ("likes cats", "dislikes cats", "opposite meaning"),
        ("budget is 500 euros", "budget is 5000 euros", "different number"),
        ("has two children", "has three children", "different number"),
        ("prefers tea over coffee", "prefers coffee over tea", "different order"),
    ],
)
def test_an_opposite_or_another_number_is_a_conflict_and_never_merged(ctx, stored, said, why):
    upsert(ctx, "likes", text=stored)
    answer = upsert(ctx, "likes", text=said)
    assert answer.startswith("❌ Similar")
    assert f"⚠️ conflict: {why}, not a duplicate" in answer
    assert [entry["text"] for _, entry in ctx.deps.preferences.items("likes")] == [stored]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("LIKES Coffee.", "likes coffee"),
        ("ﬁne  tea", "Fine tea!"),
        ("it’s late", "it's late"),
        ("🍕", "🍕"),
    ],
)
def test_equal_text_is_merged_and_counted(ctx, one, two):
    upsert(ctx, "likes", text=one)
    assert "boosted it (count: 2)" in upsert(ctx, "likes", text=two, contexts=["new"])
    assert ctx.deps.preferences.count("likes") == 1
    assert ctx.deps.prefs["preferences"]["likes"]["pref001"]["contexts"] == ["new"]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("C", "C++"),
        ("C++", "C#"),
        ("🍕", "🍣"),
        ("日本語", "日本"),
        ("no pets", "pets"),
        ("1", "2"),
    ],
)
def test_different_things_are_not_the_same_text(one, two):
    assert not same_text(one, two)
    assert normalise(one) != ""


def test_texts_without_a_contradiction_are_no_conflict():
    assert conflict("likes tea", "loves green tea") == ""
    assert conflict("allergic to nuts", "allergic to nuts and eggs") == ""


def test_the_same_text_in_another_category_is_reported(ctx):
    upsert(ctx, "likes", text="long walks")
    answer = upsert(ctx, "dislikes", text="Long walks")
    assert "• likes/pref001: the same text in another category" in answer
    assert "upsert_preference('likes', id='pref001'" in answer
    assert "To move it: forget_preference('likes', id='pref001')" in answer
    assert upsert(ctx, "dislikes", id="new", text="Long walks").startswith(
        "✅ Created dislikes/pref001"
    )


def test_the_same_text_in_two_other_categories_is_reported_twice():
    categories = ["likes", "dislikes", "habits"]
    ctx = Context(MemoryDeps({"preferences": {}}, {"conversations": {}}, categories, "Table", "s"))
    for category in ("habits", "likes"):
        upsert(ctx, category, id="new", text="long walks")
    answer = upsert(ctx, "dislikes", text="Long walks.")
    for category in ("likes", "habits"):
        assert f"• {category}/pref001: the same text in another category" in answer
        assert f"To move it: forget_preference('{category}', id='pref001')" in answer


def test_boost_update_and_suppressed_count(ctx):
    upsert(ctx, "likes", text="tea", contexts=["c", "a"])
    assert upsert(ctx, "likes", id="pref001") == "✅ Boosted likes/pref001 (count: 2)."
    assert (
        upsert(ctx, "likes", id="pref001", contexts=["b", "a"])
        == "✅ Boosted likes/pref001 (count: 3)."
    )
    answer = upsert(ctx, "likes", id="pref001", text="green tea", suppress_count_increment=True)
    assert answer == "✅ Updated likes/pref001: 'green tea' (count: 3)."
    assert ctx.deps.prefs["preferences"]["likes"]["pref001"]["contexts"] == ["c", "a", "b"]


def test_the_limit_check_reports_space_warning_and_full(ctx):
    words = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot"]
    answers = [upsert(ctx, "likes", text=word) for word in words]
    assert "⚠️ Category 'likes' is nearly full (4/5)" in answers[3]
    assert answers[5].startswith("❌ Category 'likes' is at limit (5/5)")
    assert upsert(ctx, "likes", id="new", text="golf").startswith("❌ Category 'likes' is at limit")
    assert upsert(ctx, "likes", text="alpha").startswith("✅")  # a merge adds no entry
    listing = call(tools.list_preferences, ctx)
    assert "📊 ❌ Category 'likes' is at limit (5/5)" in listing
    assert "📊 ✅ Category 'dislikes' has space (0/5)" in listing
    assert "- likes/pref001: alpha (2×)" in listing


def test_no_new_preference_is_suggested_for_a_full_category(ctx):
    for number in range(5):
        upsert(ctx, "likes", id="new", text=f"item{number}")
    answer = upsert(ctx, "likes", text="item7")
    assert answer.startswith("❌ Similar preferences found:")
    assert answer.endswith(
        "❌ Category 'likes' is at limit (5/5). Update or forget a preference; no new one fits."
    )
    assert "id='new'" not in answer


@pytest.mark.parametrize(
    "odd",
    [
        "pref_walnuts",
        "",
        "🍕",
        'a"b',
        "a.b",
        "_meta",
        "pref9999999999999",
        "x" * 200,
        "preferences",
    ],
)
def test_an_unknown_id_creates_an_entry(ctx, odd):
    assert upsert(ctx, "likes", id=odd, text="walnut allergy").startswith("✅ Created likes/")
    assert upsert(ctx, "likes", text="zebra films").startswith("✅ Created likes/pref0")
    assert ctx.deps.preferences.count("likes") == 2


def test_an_id_is_never_used_twice(ctx):
    for word in ("alpha", "bravo", "charlie"):
        upsert(ctx, "likes", text=word)
    assert (
        call(tools.forget_preference, ctx, "likes", "pref003")
        == "🗑️ Deleted likes/pref003: 'charlie'."
    )
    assert upsert(ctx, "likes", text="delta").startswith("✅ Created likes/pref004")
    call(tools.forget_preference, ctx, "likes", "pref004")
    assert upsert(ctx, "likes", id="pref003", text="echo").startswith("✅ Created likes/pref005")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"category": "zzz", "text": "x"},
            "Category 'zzz' is not allowed. Use one of: likes, dislikes",
        ),
        ({"category": "likes", "id": "pref077"}, "likes/pref077 does not exist"),
        ({"category": "likes"}, "needs text"),
        ({"category": "likes", "text": "   "}, "blank"),
        ({"category": "likes", "text": "\u200b\u202e"}, "blank"),
        ({"category": "likes", "text": "x" * 10_001}, "10,000 are allowed"),
        ({"category": "likes", "text": "bad \ud800"}, "surrogate"),
        ({"category": "likes", "id": "x" * 300, "text": "a"}, "an id has"),
        ({"category": "likes", "id": "\udfff", "text": "a"}, "surrogate"),
    ],
)
def test_an_impossible_verb_call_is_answered_and_changes_nothing(ctx, arguments, says):
    answer = upsert(ctx, **arguments)
    assert answer.startswith("❌")
    assert says in answer
    assert ctx.deps.operations == []


def test_forgetting_and_summaries_report_unknown_entries(ctx):
    assert "does not exist" in call(tools.forget_preference, ctx, "likes", "pref001")
    assert "not allowed" in call(tools.forget_preference, ctx, "zz", "pref001")
    assert call(tools.list_conversation_summary, ctx, "nope").startswith(
        "❌ There is no session 'nope'"
    )


def test_summaries_are_shown_and_replaced(ctx):
    assert "Turns: 2\nSummary: old\nKeywords: k" in call(tools.list_conversation_summary, ctx, "s")
    assert call(tools.update_conversation_summary, ctx, "new", ["a", "b", "a"]).startswith("✅")
    stored = ctx.deps.convs["conversations"]["s"]
    assert (stored["summary"], stored["keywords"]) == ("new", ["a", "b"])
    call(tools.update_conversation_summary, ctx, "newer")
    assert stored["keywords"] == ["a", "b"]


def test_categories_are_listed(ctx):
    assert call(tools.list_categories, ctx) == "- **likes**\n- **dislikes**"
    assert call(tools.list_preferences, ctx, "hats").startswith("❌ Category 'hats' is not allowed")


def test_a_diary_without_types_of_facts_lists_none_and_stores_none(ctx):
    assert call(tools.list_facts, ctx) == "(none)"
    assert "no type of facts is registered" in call(tools.commit_fact, ctx, "diet", {"role": "x"})
    assert ctx.deps.operations == []


def test_scorer_and_threshold_can_be_chosen(tmp_path):
    diary = Diary(
        tmp_path,
        Table,
        agent="rules",
        similarity=10,
        scorer=lambda a, b: 50.0 if a[0] == b[0] else 0.0,
    )
    alice = diary.user("alice")
    alice.upsert_preference("likes", "apples")
    alice.upsert_preference("likes", "bananas")
    assert [m.text for m in alice.similar("likes", "avocado")] == ["apples"]


def test_a_scorer_may_return_a_number_of_any_class():
    alice = Diary("memory:", agent="rules", scorer=lambda one, other: Decimal(90)).user("alice")
    alice.upsert_preference("likes", "apples")
    assert [m.score for m in alice.similar("likes", "avocado")] == [90.0]


def test_a_scorer_that_returns_no_number_is_named():
    alice = Diary("memory:", agent="rules", scorer=lambda one, other: None).user("alice")
    alice.upsert_preference("likes", "apples")
    with pytest.raises(InvalidValue, match=r"scorer: it returned NoneType. Return a number"):
        alice.similar("likes", "avocado")


# Operations


def test_operations_survive_json():
    operations = [
        UpsertPreference(
            "likes", None, "tea", ("a", "b"), True, "pref001", (("_verified", False),)
        ),
        SetSummary("s", "text", None),
        SetFields("preferences", ("preferences", "likes", "x"), (("a", [1, [2]]),), ("b",)),
    ]
    assert [from_dict(json.loads(json.dumps(to_table(op)))) for op in operations] == operations
    with pytest.raises(InvalidValue, match="unknown operation"):
        from_dict({"op": "Eval"})


def turn(diary, work, session="s"):
    class Scripted:
        async def run(self, message, *, deps):
            await work(Context(deps))

    diary.agent = Scripted()
    asyncio.run(diary.update_memory("alice", session, "hello", "hi"))


def test_a_draft_is_applied_to_fresh_state_not_written_back(tmp_path):
    diary = Diary(tmp_path, Table, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")

    async def meanwhile(ctx):
        await tools.upsert_preference(ctx, "likes", text="coffee")
        await tools.upsert_preference(ctx, "likes", id="pref002", contexts=["work"])
        # During the model request, another writer takes the same id and changes another entry.
        Diary(tmp_path, Table, agent="rules").user("alice").upsert_preference("likes", "cocoa")
        Diary(tmp_path, Table, agent="rules").user("alice").upsert_preference("likes", id="pref001")

    turn(diary, meanwhile)
    items = alice.preferences("likes")
    assert {key: item.text for key, item in items.items()} == {
        "pref001": "tea",
        "pref002": "cocoa",
        "pref003": "coffee",
    }
    assert items["pref001"].count == 2
    assert (items["pref003"].contexts, items["pref003"].count) == (["work"], 1)


@pytest.mark.parametrize("absent", ["", "null", "None", " none "])
def test_an_id_that_says_none_replaces_no_entry(absent, tmp_path):
    diary = Diary(tmp_path, Table, agent="rules")

    async def store(ctx):
        for text in ("tea", "plays chess"):
            await tools.upsert_preference(ctx, "likes", id=absent, text=text)

    turn(diary, store)
    stored = diary.user("alice").preferences("likes")
    assert {key: item.text for key, item in stored.items()} == {
        "pref001": "tea",
        "pref002": "plays chess",
    }


def test_an_entry_forgotten_during_extraction_stays_removed(tmp_path):
    diary = Diary(tmp_path, Table, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")

    async def meanwhile(ctx):
        await tools.upsert_preference(ctx, "likes", id="pref001", text="green tea")
        Diary(tmp_path, Table, agent="rules").user("alice").forget_preference("likes", "pref001")

    turn(diary, meanwhile)
    assert alice.preferences("likes") == {}
    assert alice.conversations()["s"].turns == 1


def test_an_entry_changed_during_extraction_keeps_its_new_text(tmp_path):
    diary = Diary(tmp_path, Table, agent="rules")
    alice = diary.user("alice")
    for text in ("tea", "jazz", "chess", "milk"):
        alice.upsert_preference("likes", text, id="new")

    async def meanwhile(ctx):
        await tools.upsert_preference(ctx, "likes", id="pref001", text="green tea")
        await tools.upsert_preference(ctx, "likes", id="pref001", text="green tea at noon")
        await tools.upsert_preference(ctx, "likes", id="pref004", text="milk")
        await tools.upsert_preference(ctx, "likes", id="pref004", text="oat milk")
        await tools.forget_preference(ctx, "likes", "pref002")
        await tools.forget_preference(ctx, "likes", "pref003")
        document = tmp_path / "alice" / "preferences.toml"
        document.write_text(document.read_text().replace('"tea"', '"no tea, it hurts"'))
        other = Diary(tmp_path, Table, agent="rules").user("alice")
        other.upsert_preference("likes", "plays jazz", id="pref002")
        other.upsert_preference("likes", "no milk", id="pref004")

    turn(diary, meanwhile)
    assert {key: item.text for key, item in alice.preferences("likes").items()} == {
        "pref001": "no tea, it hurts",
        "pref002": "plays jazz",
        "pref004": "no milk",
        "pref005": "green tea at noon",
        "pref006": "oat milk",
    }


def test_an_entry_with_a_named_id_replaces_none_that_got_the_id_meanwhile(tmp_path):
    diary = Diary(tmp_path, Table, agent="rules")

    async def meanwhile(ctx):
        await tools.upsert_preference(ctx, "likes", id="pref001", text="tea")
        Diary(tmp_path, Table, agent="rules").user("alice").upsert_preference("likes", "cocoa")

    turn(diary, meanwhile)
    items = diary.user("alice").preferences("likes")
    assert {key: item.text for key, item in items.items()} == {"pref001": "cocoa", "pref002": "tea"}


def test_equal_text_stored_during_extraction_is_confirmed(tmp_path):
    diary = Diary(tmp_path, Table, agent="rules")

    async def meanwhile(ctx):
        await tools.upsert_preference(ctx, "likes", text="Tea")
        Diary(tmp_path, Table, agent="rules").user("alice").upsert_preference("likes", "tea")

    turn(diary, meanwhile)
    assert [(i.text, i.count) for i in diary.user("alice").preferences("likes").values()] == [
        ("tea", 2)
    ]


def test_an_extractor_may_change_the_dictionaries_directly(tmp_path):
    diary = Diary(tmp_path, Table, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    alice.upsert_preference("likes", "gone")

    async def direct(ctx):
        likes = ctx.deps.prefs["preferences"]["likes"]
        likes["pref001"]["_count"] += 4
        del likes["pref002"]
        likes["walnuts"] = {
            "text": "allergic to walnuts",
            "contexts": ["diet"],
            "extra": {"a": [1, None]},
        }
        await tools.upsert_preference(ctx, "likes", text="coffee")
        assert "pref003" in likes
        ctx.deps.convs["conversations"]["s"]["summary"] = "written directly"

    turn(diary, direct)
    items = alice.preferences("likes")
    assert {key: (item.text, item.count) for key, item in items.items()} == {
        "pref001": ("tea", 5),
        "walnuts": ("allergic to walnuts", 1),
        "pref003": ("coffee", 1),
    }
    assert alice.conversations()["s"].summary == "written directly"


def test_the_dictionaries_have_no_category_without_preferences(ctx):
    upsert(ctx, "likes", text="tea")
    assert [*ctx.deps.prefs["preferences"]] == ["likes"]
    call(tools.forget_preference, ctx, "likes", "pref001")
    assert ctx.deps.prefs["preferences"] == {}
    upsert(ctx, "likes", text="coffee")
    assert [*ctx.deps.prefs["preferences"]] == ["likes"]


def test_the_record_of_a_turn_lists_preferences_before_the_conversation():
    alice = Diary("memory:", agent="rules").user("alice")
    alice.add_turn("I love jazz.", "Noted.", session_id="s")
    assert [each.key for each in alice.history()] == ["likes/pref001", "conversations/s"]


def test_direct_changes_may_have_tuples_and_fields_without_a_value():
    def direct(_, deps):
        deps.prefs["preferences"]["likes"] = {
            "x": {"text": "tea", "contexts": ("morning", "evening")},
            "y": {"text": "juice", "contexts": None},
        }
        deps.convs["conversations"]["s"]["keywords"] = ("tea",)

    alice = Diary("memory:", Table, agent=direct).user("alice")
    assert alice.add_turn("Hi.", "Hello.", session_id="s").skipped == []
    stored = alice.preferences("likes")
    assert [each.contexts for each in stored.values()] == [["morning", "evening"], []]
    assert alice.conversations()["s"].keywords == ["tea"]


def test_an_extractor_may_replace_the_whole_dictionaries():
    def direct(_, deps):
        likes = {each: {"text": each} for each in ("tea", deps.user_msg)}
        deps.prefs = {"_meta": deps.prefs["_meta"], "preferences": {"likes": likes}}
        deps.convs = {"conversations": {"s": {"summary": "About drinks", "keywords": []}}}

    alice = Diary("memory:", Table, agent=direct).user("alice")
    for word in ("juice", "milk"):
        alice.add_turn(word, "Hello.", session_id="s")
    assert sorted(alice.preferences("likes")) == ["milk", "tea"]
    assert alice.conversations()["s"].summary == "About drinks"


def test_direct_changes_leave_what_other_writers_stored_meanwhile():
    def direct(_, deps):
        likes = deps.prefs["preferences"]["likes"]
        likes["pref001"]["text"] = "green tea"
        likes["pref002"]["_count"] = 9
        likes["pref003"]["contexts"] = ["evening"]
        likes["pref004"] = {"text": "milk", "contexts": ["morning"]}
        _ = deps.operations
        likes["pref004"]["text"] = "oat milk"
        alice.upsert_preference("likes", "coffee", id="pref001")
        alice.upsert_preference("likes", "water", id="pref002")
        alice.remove_preference("likes", "pref003")
        alice.upsert_preference("likes", "soup")

    alice = Diary("memory:", Table, agent=direct).user("alice")
    for text in ("tea", "juice", "rice"):
        alice.upsert_preference("likes", text)
    done = alice.add_turn("Hi.", "Hello.", session_id="s")
    stored = [(each.text, each.count) for each in alice.preferences("likes").values()]
    assert stored == [("coffee", 2), ("water", 2), ("soup", 1), ("green tea", 1), ("oat milk", 1)]
    assert (done.applied, len(done.skipped)) == (3, 2)


def test_later_changes_find_the_entry_whose_text_was_redacted():
    def direct(_, deps):
        likes = deps.prefs["preferences"]["likes"]
        for key in ("pref001", "pref002", "pref003"):
            likes[key]["text"] = "secret tea"
        deps.upsert("likes", "pref003", "secret tea at noon")
        likes["pref001"]["contexts"] = ["morning"]
        del likes["pref002"]

    diary = Diary("memory:", Table, agent=direct, redact=lambda text: text.replace("secret", "…"))
    alice = diary.user("alice")
    for text in ("tea", "juice", "rice"):
        alice.upsert_preference("likes", text)
    assert alice.add_turn("Hi.", "Hello.", session_id="s").skipped == []
    stored = [(each.text, each.contexts) for each in alice.preferences("likes").values()]
    assert stored == [("… tea", ["morning"]), ("… tea at noon", [])]


def test_a_direct_confirmation_of_an_entry_that_expires_meanwhile_stores_its_text():
    def direct(_, deps):
        deps.prefs["preferences"]["likes"]["pref001"]["_count"] = 2
        diary.constrain("preferences/likes", Constraint(ttl=timedelta(hours=1)))

    diary = Diary("memory:", Table, agent=direct)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea", now=datetime.now(UTC) - timedelta(hours=2))
    assert alice.add_turn("Hi.", "Hello.", session_id="s").skipped == []
    assert [each.text for each in alice.preferences("likes").values()] == ["tea"]


@pytest.mark.parametrize(
    ("category", "entry", "reason"),
    [
        ("zzz", {"text": "tea"}, "unknown category 'zzz'."),
        ("likes", {"text": 5}, "preferences.likes.x.text: expected text, found number."),
        ("likes", {"contexts": []}, "preferences.likes.x.text: expected text, found nothing."),
        ("likes", {"text": "tea", "_count": "2"}, "preferences.likes.x._count: expected a whole number"),
    ],
)  # fmt: skip
def test_a_direct_change_that_is_no_entry_is_skipped_with_a_reason(category, entry, reason):
    def direct(_, deps):
        deps.prefs["preferences"].setdefault(category, {})["x"] = entry
        deps.convs["conversations"]["s"]["summary"] = "about tea"

    alice = Diary("memory:", Table, agent=direct).user("alice")
    done = alice.add_turn("Hi.", "Hello.", session_id="s")
    assert (done.applied, len(done.skipped)) == (1, 1)
    assert done.skipped[0].startswith(reason)
    assert alice.document("preferences") == ""
    assert alice.conversations()["s"].summary == "about tea"


def test_code_gets_typed_errors_and_a_model_gets_sentences(tmp_path):
    alice = Diary(tmp_path, Table, agent="rules", max_prefs_per_category=1).user("alice")
    with pytest.raises(UnknownCategory, match="Use one of: likes, dislikes"):
        alice.upsert_preference("zzz", "x")
    with pytest.raises(UnknownEntry, match="likes/pref009 does not exist"):
        alice.upsert_preference("likes", id="pref009")
    with pytest.raises(UnknownEntry):
        alice.upsert_preference("likes", "x", id="pref009", create=False)
    with pytest.raises(InvalidValue, match="blank"):
        alice.upsert_preference("likes", " ")
    alice.upsert_preference("likes", "tea")
    with pytest.raises(LimitReached, match="1/1"):
        alice.upsert_preference("likes", "coffee")
    with pytest.raises(UnknownEntry):
        alice.remove_preference("likes", "pref009")
    assert [item.text for item in alice.preferences("likes").values()] == ["tea"]


def test_confirming_keeps_the_stored_wording(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "I love Tea")
    alice.add_turn("I love tea.", "ok", "s")
    assert [(i.text, i.count) for i in alice.preferences("likes").values()] == [("I love Tea", 2)]
