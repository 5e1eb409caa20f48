"""A budget is shared out: no category, no old habit and no script keeps out what matters."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import Annotated

import pytest
from pydantic import BaseModel, ConfigDict, Field

from calls import noted_calls
from tomldiary import Diary, PreferenceItem
from tomldiary.entries.schema import show_preferences_schema, weights
from tomldiary.errors import SchemaError
from tomldiary.retrieval.injection import next_injection
from tomldiary.retrieval.ranking import ranked
from tomldiary.retrieval.render import count_tokens, exceeds
from tomldiary.store.operations import Put
from tomldiary.store.store import ItemStore

START = datetime(2026, 1, 1, tzinfo=UTC)
MANY = 160


class Table(BaseModel):
    likes: dict[str, PreferenceItem] = {}
    allergies: dict[str, PreferenceItem] = {}
    biography: dict[str, PreferenceItem] = {}


class Weighted(BaseModel):
    likes: dict[str, PreferenceItem] = {}
    allergies: dict[str, PreferenceItem] = Field(
        default_factory=dict, json_schema_extra={"weight": 4}
    )
    biography: Annotated[dict[str, PreferenceItem], Field(json_schema_extra={"weight": 0.5})] = {}


def told(user, category, text, *, day, times=1):
    for _ in range(times):
        user.upsert_preference(category, text, now=START + timedelta(days=day))


def of_many_likes(table=Table, category="likes"):
    diary = Diary("memory:", table, max_prefs_per_category=1000)
    alice = diary.user("alice")
    with alice.transaction():
        for number in range(MANY):
            told(alice, category, f"likes thing number {number} a lot", day=1, times=2)
    return diary, alice


def facts_of(text):
    return [line for line in text.splitlines() if line.startswith("- ")]


def test_many_likes_do_not_displace_an_allergy_or_a_move():
    _, alice = of_many_likes()
    told(alice, "allergies", "severe peanut allergy", day=0)
    told(alice, "biography", "moved to Oslo this week", day=9)
    text = alice.render(max_tokens=200)
    assert "more facts are stored" in text
    assert "- allergies: severe peanut allergy" in text
    assert "- biography: moved to Oslo this week" in text


def test_the_newest_entry_of_a_full_category_is_shown():
    _, alice = of_many_likes()
    told(alice, "likes", "loves Oslo since this week", day=9)
    assert "loves Oslo since this week" in alice.render(max_tokens=200)


def test_the_entry_confirmed_most_often_is_shown_beside_newer_ones():
    _, alice = of_many_likes()
    told(alice, "likes", "tea every morning", day=0, times=9)
    with alice.transaction():
        for number in range(MANY):
            told(alice, "likes", f"newer thing {number}", day=9)
    text = alice.render(max_tokens=200)
    assert "tea every morning" in text
    assert "newer thing" in text


@pytest.mark.parametrize("question", ["which thing does she like a lot?", "thing"])
def test_a_broad_question_displaces_no_other_category(question):
    _, alice = of_many_likes()
    told(alice, "allergies", "severe peanut allergy", day=0)
    text = alice.render(question, max_tokens=400)
    assert "severe peanut allergy" in text
    assert facts_of(text)[0].startswith("- likes: ")


def test_a_category_is_shown_as_often_as_its_weight_says():
    _, alice = of_many_likes(Weighted)
    with alice.transaction():
        for number in range(MANY):
            told(alice, "allergies", f"allergic to substance {number}", day=1)
            told(alice, "biography", f"year {number}", day=1)
    shown = facts_of(alice.render(max_tokens=1000))
    counts = {
        name: sum(line.startswith(f"- {name}: ") for line in shown)
        for name in Weighted.model_fields
    }
    assert counts["allergies"] == pytest.approx(4 * counts["likes"], abs=4)
    assert counts["likes"] == pytest.approx(2 * counts["biography"], abs=2)
    assert shown[0].startswith("- allergies: ")


class Note(BaseModel):
    model_config = ConfigDict(json_schema_extra={"weight": 3})
    text: str


class Visit(BaseModel):
    place: str


def test_types_of_facts_share_by_weight_beside_preferences():
    diary = Diary("memory:", Table, max_prefs_per_category=1000)
    diary.register_schema("note", Note)
    diary.register_schema("visit", Visit)
    alice = diary.user("alice")
    told(alice, "allergies", "severe peanut allergy", day=0)
    with alice.transaction():
        for number in range(MANY):
            alice.commit(Note(text=f"number {number}"))
            alice.commit(Visit(place=f"number {number}"))
    shown = facts_of(alice.render(max_tokens=300))
    assert "- allergies: severe peanut allergy" in shown
    notes = sum(line.startswith("- note: ") for line in shown)
    visits = sum(line.startswith("- visit: ") for line in shown)
    assert notes == pytest.approx(3 * visits, abs=3)


def test_a_namespace_in_several_documents_has_one_share():
    diary, alice = of_many_likes()
    puts = [
        Put(("alice", name), f"k{number}", {"text": f"{number} {'word ' * length}"})
        for number in range(MANY)
        for name, length in (("large", 200), ("small", 1))
    ]
    ItemStore(diary).run(puts)
    assert sum(name.startswith("items/large") for name in alice.documents()) > 1
    shown = alice.memory_lines().shown[:90]
    counts = [sum(line.startswith(f"{name}: ") for line in shown) for name in ("large", "small")]
    assert counts == [30, 30]
    assert [line.split()[1] for line in shown if line.startswith("large: ")][:2] == ["159", "158"]


def test_the_last_conversation_is_shown_beside_many_preferences():
    def sum_up(_message, *, deps):
        deps.summarise("planned a trip to Oslo", None)

    diary, alice = of_many_likes()
    diary.with_agent(sum_up).user("alice").add_turn("hello", "hm", "s1")
    assert "planned a trip to Oslo" in alice.render(max_tokens=200)


def test_pinned_entries_come_before_all_shares():
    _, alice = of_many_likes(Weighted)
    told(alice, "allergies", "severe peanut allergy", day=0)
    alice.upsert_preference("likes", "tea", now=START, fields={"pinned": True})
    assert facts_of(alice.render(max_tokens=200))[0] == "- likes: tea"


def test_one_new_fact_changes_one_line_of_the_memory():
    _, alice = of_many_likes()
    told(alice, "allergies", "severe peanut allergy", day=0)
    seen = []
    for day in range(2, 12):
        news = next_injection(seen, alice.memory_lines(), max_tokens=300)
        if news is not None:
            seen.append(news.text)
        told(alice, "biography", f"lives in town {day}", day=day)
    assert news.text.splitlines()[1:-1] == [f"+ biography: lives in town {day - 1}"]
    assert len(seen) == 10


def test_rendering_is_deterministic():
    _, alice = of_many_likes()
    assert len({alice.render(max_tokens=300) for _ in range(3)}) == 1
    assert alice.render(max_tokens=300) == Diary(alice.diary.backend, Table).user("alice").render(
        max_tokens=300
    )


@pytest.mark.parametrize("weight", [0, -1, "3", True, float("nan"), float("inf"), None])
def test_a_weight_that_is_no_positive_number_is_refused(weight):
    class Wrong(BaseModel):
        likes: dict[str, PreferenceItem] = Field(default={}, json_schema_extra={"weight": weight})

    class Fact(BaseModel):
        model_config = ConfigDict(json_schema_extra={"weight": weight})

    with pytest.raises(SchemaError, match=r"^Wrong\.likes: the weight is a positive number"):
        Diary("memory:", Wrong)
    with pytest.raises(SchemaError, match=r"^fact: the weight is a positive number"):
        Diary("memory:").register_schema("fact", Fact)


def test_the_python_source_of_a_table_has_its_weights():
    assert weights(Weighted) == {"likes": 1, "allergies": 4, "biography": 0.5}
    code = compile(show_preferences_schema(Weighted, "python"), "table", "exec", dont_inherit=True)
    names = {}
    exec(code, names)  # noqa: S102 - the text is ours
    assert weights(names["Weighted"]) == weights(Weighted)


TEXTS = {
    "Latin": ("an ordinary sentence about tea, naïve and short", 0.25),
    "Cyrillic": ("живётвОсло", 0.5),
    "Arabic": ("يعيشفيأوسلو", 0.5),
    "Chinese": ("彼女は東京に住んでいます", 1),
    "Korean": ("서울에서살고있어요", 1),
    "Thai": ("เธออยู่กรุงเทพ", 1),
    "emoji": ("😀😀😀😀", 1),
}


@pytest.mark.parametrize(("text", "each"), TEXTS.values(), ids=TEXTS)
def test_tokens_are_counted_by_script(text, each):
    assert count_tokens(text) == -(-len(text) * each // 1)


def test_the_budget_holds_for_text_without_spaces():
    alice = Diary("memory:", Table, max_prefs_per_category=1000).user("alice")
    with alice.transaction():
        for number in range(200):
            alice.upsert_preference("likes", f"彼女は東京に住んでいて紅茶が好きです{number}")
    text = alice.render(max_tokens=1500)
    assert 1000 < sum(ord(char) > 0x2E80 for char in text) <= 1500


def test_further_matches_alternate_with_what_is_important_otherwise():
    alice = Diary("memory:", max_prefs_per_category=1000).user("alice")
    with alice.transaction():
        for number in range(30):
            alice.upsert_preference("likes", f"walnut number {number}")
        for number in range(30):
            alice.upsert_preference("likes", f"chess opening {number}")
    lines = [line for line in alice.render("walnut", 4000).splitlines() if line.startswith("- ")]
    assert all("walnut" in line for line in lines[:10])
    assert ["walnut" in line for line in lines[10:30]] == [True, False] * 10
    assert len(set(lines)) == len(lines) == 60


@pytest.mark.parametrize("fields", ['text = ""', 'text = " "', 'contexts = ["tea"]'])
def test_an_entry_without_a_text_is_shown_to_no_model(tmp_path, fields):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "green tea")
    file = tmp_path / "alice" / "preferences.toml"
    file.write_text(f"{file.read_text()}\n[preferences.likes.mine]\n{fields}\n")
    assert "mine" in alice.preferences("likes")
    assert alice.render("tea in likes").splitlines()[1:-1] == ["- likes: green tea"]
    assert [hit.key for hit in alice.recall("tea in likes")] == ["likes/pref001"]


def test_a_memory_far_above_a_budget_is_not_copied_to_count_it():
    facts = ["é" * 100] * 10_000
    tracemalloc.start()
    try:
        assert exceeds(facts, 100)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_block_of_which_only_the_title_fits_is_not_shown():
    alice = Diary("memory:").user("alice")
    alice.blocks.set("persona", "Incomprehensibilities & more " * 40)
    for budget in range(20, 120):
        lines = alice.render(max_tokens=budget).splitlines()
        at = next((n for n, line in enumerate(lines) if line.startswith("- ")), None)
        assert at is None or lines[at + 1].startswith("  Inc")


def test_a_memory_that_fits_is_not_ordered_by_the_query(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    for text in ("plays chess", "drinks coffee", "sails"):
        alice.upsert_preference("likes", text)
    with noted_calls(ranked) as once:
        plain = alice.memory_lines().shown
    query = str(plain[-1])
    assert alice.memory_lines(query, query_above=1000).shown == plain
    with noted_calls(ranked) as calls:
        assert alice.memory_lines(query, query_above=1).shown != plain
    assert len(calls) == len(once)  # the order without the query is that of its rest
