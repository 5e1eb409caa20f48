"""A misspelled word of a question finds the entries with the nearest words."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tomldiary import Diary
from tomldiary.retrieval.lexical_index import LexicalIndex, question_of
from tomldiary.text.words import folded

OTHERS = ["Lives near the harbour", "Keeps two dogs", "Reads crime novels", "Wakes at 7:30"]


class Searched(NamedTuple):
    searched_text: str
    searched_names: str = ""
    day: None = None
    order: tuple[()] = ()
    turn: tuple[str, str] | None = None


def user(*texts):
    alice = Diary("memory:").user("alice")
    for text in (*OTHERS, *texts):
        alice.upsert_preference("likes", text)
    return alice


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("Is she alergic?", "Allergic to walnuts"),
        ("penuts", "Never eats peanuts"),
        ("coffe", "Drinks coffee at work"),  # its stem has four letters
        ("cofee", "Drinks coffee at work"),
        ("marathn", "Runs a marathon each spring"),
        ("dentits", "The dentist is Dr. Vogt"),
        ("Siobahn", "Siobhán is her manager"),
        ("shwarzeneger", "Met Schwarzenegger in Graz"),
        ("criterion", "The criteria are strict"),
        ("Krakenhaus", "Das Krankenhaus ist in der Nähe"),
        ("bibilothèque", "Elle habite à côté de la bibliothèque"),
        ("Kranckenhaus", "Das Krankenhaus ist in der Nähe"),
        ("Маскве", "Я живу в Москве"),
    ],
)
def test_a_misspelled_word_finds_the_nearest_one(query, text):
    hits = user(text).recall(query)
    assert [hit.text for hit in hits] == [text]
    assert len(hits[0].reasons) == 1
    assert hits[0].reasons[0] in folded(query)


def test_a_misspelled_word_scores_less_than_one_spelled_as_stored():
    alice = user("Allergic to walnuts")
    assert 0 < alice.recall("alergic")[0].score < alice.recall("allergic")[0].score


def test_a_stored_word_finds_no_other_spelling():
    alice = user("Told a story", "Owns a store")
    assert [hit.text for hit in alice.recall("store")] == ["Owns a store"]


def test_an_entry_with_both_words_is_found_before_one_with_the_misspelled_word():
    alice = user("A walnut cake", "A walnut tart", "Walnut and quince marmalade")
    assert alice.recall("marmelade walnut")[0].text == "Walnut and quince marmalade"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("cart", "A red car"),
        ("10046", "Order 10045"),
        ("table", "A cable"),
        ("marathon", "A mountain"),
        ("大阪", "大坂"),
    ],
)
def test_short_words_numbers_and_far_words_find_nothing_similar(query, text):
    assert user(text).recall(query) == []


def test_a_removed_word_is_not_the_nearest_one():
    index = LexicalIndex()
    near = Searched("a marathon")
    index.add(near)
    assert index.matches(question_of("marathn", [index])).scored.keys() == {near}
    index.remove(near)
    assert index.matches(question_of("marathn", [index])).scored == {}
    later = Searched("a marathan")
    index.add(later)
    assert index.matches(question_of("marathn", [index])).scored.keys() == {later}
    assert index.matches(question_of("harbour", [index])).scored == {}


class Counted(LexicalIndex):
    """Counts how often words are compared."""

    compared = 0

    def spelled(self, group):
        self.compared += 1
        return super().spelled(group)


def test_only_a_few_words_of_a_question_are_compared():
    index = Counted()
    index.add(Searched("marathon"))
    question_of("marathon", [index])
    assert index.compared == 0
    question_of(" ".join(f"marathon{chr(97 + n)}x" for n in range(26)), [index])
    assert 8 <= index.compared <= 8 * 4
