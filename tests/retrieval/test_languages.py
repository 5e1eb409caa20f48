"""Thirteen languages: a question in other forms and words finds the sentence that answers it, by words alone.

Each line of `languages/*.txt` is a subject: the sentence that answers, the question, and four sentences beside it.
The sentences were written for this test. The 200 of one language are searched together.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest

from tomldiary.retrieval.lexical_index import LexicalIndex, question_of
from tomldiary.text.words import is_english

LANGUAGES = sorted(Path(__file__).with_name("languages").glob("*.txt"))


class Text:
    """One sentence as an index sees it."""

    searched_names = ""
    day = None
    turn = None

    def __init__(self, text):
        self.key = self.searched_text = text
        self.order = (text,)


def ranks(path):
    """The place of the answer among what each question finds, from 0; None if it is not found."""
    index, asked = LexicalIndex(), []
    for line in path.read_text("utf-8").splitlines():
        answer, question, *others = line.split(" | ")
        texts = [Text(each) for each in (answer, *others)]
        for each in texts:
            index.add(each)
        asked.append((question, texts[0]))
    assert (index.size, len(asked)) == (200, 40)
    found = []
    for question, answer in asked:
        scored = index.matches(question_of(question, [index])).scored
        order = sorted(scored, key=lambda each: (-scored[each], each.order))
        found.append(order.index(answer) if answer in scored else None)
    return found


def test_there_are_thirteen_languages():
    assert [path.stem for path in LANGUAGES] == [
        "ar",
        "de",
        "en",
        "es",
        "fr",
        "hi",
        "it",
        "ja",
        "pt",
        "ru",
        "th",
        "tr",
        "zh",
    ]


@pytest.mark.parametrize("path", LANGUAGES, ids=lambda path: path.stem)
def test_questions_find_their_sentences_in_every_language(path):
    found = ranks(path)

    assert sum(rank is not None and rank < 10 for rank in found) >= 0.65 * 40
    assert sum(rank is not None and rank < 5 for rank in found) >= 0.8 * 40


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Wo liegt der Schlüssel?", "Der Haustürschlüssel hängt neben der Garderobe"),
        ("Welche Versicherungen gibt es?", "Die Krankenversicherung läuft bis Mai"),
        ("Wann war ich beim Arzt?", "Der Zahnarzt hat am Montag gebohrt"),
        ("Steht etwas im Schrank?", "Im Wohnzimmerschrank steht der Wein"),
        ("Muenchen", "Ein Umzug nach München ist geplant"),
        ("Aerztin", "Die Ärztin heißt Vogt"),
        ("Müller", "Frau Mueller ist meine Nachbarin"),
        ("Schluessel", "Der Haustürschlüssel hängt neben der Garderobe"),
        ("Waar is de sleutel?", "De huissleutel ligt onder de mat"),
    ],
)
def test_parts_of_compounds_and_umlauts_as_two_letters_are_found(question, answer):
    index = LexicalIndex()
    index.add(Text(answer))
    path = Path(__file__).with_name("languages") / "de.txt"
    for line in path.read_text("utf-8").splitlines():
        answered, _, *others = line.split(" | ")
        for each in (answered, *others):
            index.add(Text(each))

    scored = index.matches(question_of(question, [index])).scored

    assert answer in [each.key for each in sorted(scored, key=scored.get, reverse=True)[:3]]


def test_german_without_umlauts_is_not_taken_for_english():
    path = Path(__file__).with_name("languages") / "de.txt"
    plain = (
        path.read_text("utf-8")
        .lower()
        .translate(str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"}))
    )
    texts = [re.findall(r"[a-z]+", text) for text in re.split(r" \| |\n", plain.strip())]
    assert len(texts) == 240
    assert sum(map(is_english, texts)) <= 0.05 * len(texts)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("חתול", "יש לי שני דברים: החתול והכלב"),
        ("לבוטנים", "הם מוכרים בוטנים בשוק"),
        ("והכלב", "יש לי כלב קטן"),
        ("שלום", "שָׁלוֹם לכולם"),
        ("γάτα", "Έχω δύο γάτες"),
        ("αλλεργίες", "Έχω αλλεργία στα φιστίκια"),
        ("Brno", unicodedata.normalize("NFD", "Bydlím v Brně")),
        ("da nang", "Tôi sống ở Đà Nẵng"),
        ("thorshofn", "Ég bý í Þórshöfn"),
    ],
)
def test_prefixes_points_endings_and_letters_of_further_languages_are_folded(question, answer):
    index = LexicalIndex()
    for each in (
        answer,
        "אני גר בתל אביב",
        "Μένω στην Αθήνα",
        "Asun Helsingissä",
        "I live in Leeds",
    ):
        index.add(Text(each))

    scored = index.matches(question_of(question, [index])).scored

    assert [each.key for each in scored] == [answer]


def test_a_long_text_without_spaces_is_not_cut_within_a_word():
    index = LexicalIndex()
    text = Text(f"{'天' * 390}，{'地' * 8}花生过敏，{'人' * 300}")
    index.add(text)

    assert text in index.matches(question_of("花生", [index])).scored
