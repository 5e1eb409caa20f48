"""Thirteen languages: questions in other words find the sentence that answers them, by words alone."""

from __future__ import annotations

import random
import tomllib
from itertools import product
from pathlib import Path

import pytest

from tomldiary.retrieval.lexical_index import LexicalIndex, question_of

LANGUAGES = tomllib.loads(Path(__file__).with_name("languages.toml").read_text("utf-8"))


class Text:
    """One sentence as an index sees it."""

    searched_names = ""
    turn = None

    def __init__(self, key, text):
        self.key = key
        self.order = (key,)
        self.searched_text = text


def asked(words):
    """The index of 200 sentences, and 50 questions with the sentence that answers each."""
    index, questions = LexicalIndex(), []
    pairs = list(product(words["names"], words["things"]))
    for (name, thing), (text, question) in product(
        pairs, zip(words["texts"], words["questions"], strict=True)
    ):
        entry = Text(f"{len(questions):03}", text.format(name=name, thing=thing))
        index.add(entry)
        questions.append((question.format(name=name, thing=thing), entry))
    return index, random.Random(4).sample(questions, 50)


def share_found(words, most):
    index, questions = asked(words)
    found = 0
    for question, entry in questions:
        scored = index.matches(question_of(question, [index])).scored
        found += entry in sorted(scored, key=lambda each: (-scored[each], each.order))[:most]
    return found / len(questions)


@pytest.mark.parametrize("language", LANGUAGES)
def test_questions_find_their_sentences_in_every_language(language):
    assert share_found(LANGUAGES[language], 10) >= 0.65
    assert share_found(LANGUAGES[language], 2) >= 0.65
