"""Texts of full length that repeat one mark or digit; each once took seconds or minutes."""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
from unicodedata import combining, normalize

import pytest

from tomldiary import Diary
from tomldiary.agents.verbs import MemoryVerbs
from tomldiary.entries.constraints import normal_form
from tomldiary.errors import InvalidTOML
from tomldiary.extraction.failures import cause_and_remedy
from tomldiary.retrieval.render import without_memory
from tomldiary.store.operations import Put, Search
from tomldiary.store.store import ItemStore
from tomldiary.text.contradiction import marks_of
from tomldiary.text.redaction import Redactor
from tomldiary.text.similarity import identity, normalise
from tomldiary.text.visible import compatible
from tomldiary.text.words import asked_words, porter
from tomldiary.toml.parse import parse_toml
from tomldiary.toml.values import render_text
from tomldiary_langgraph import DiaryStore

LONGEST = 10_000  # characters of a preference
RUNS = ["…", ".", "!", "a, ", ",", "-", "=", "1", "1,.", "1a ", "一", "ﷺ"]


def took(action, *arguments, **options):
    began = time.process_time()
    action(*arguments, **options)
    return time.process_time() - began


@pytest.mark.parametrize("run", RUNS)
def test_a_preference_that_repeats_a_mark_is_stored_quickly(run):
    alice = Diary("memory:", agent="rules").user("alice")
    alice.upsert_preference("likes", f"ş {run}")
    text = f"ş {run * LONGEST}"[: LONGEST - 1]
    assert took(alice.upsert_preference, "likes", f"{text}X") < 0.5
    assert took(alice.upsert_preference, "likes", f"{text}Y") < 0.5


@pytest.mark.parametrize("run", ["1", "1,.", "12:", "$1"])
def test_an_item_that_repeats_digits_is_found_quickly(run):
    store = DiaryStore("memory:")
    text = f"{run * 10 * LONGEST}"[: 10 * LONGEST]
    store.put(("alice",), "k", {"text": text})
    assert took(store.search, ("alice",), query=text) < 2


def test_a_text_beyond_the_limit_is_compared_quickly():
    alice = Diary("memory:").user("alice")
    run = ">#" * LONGEST
    alice.upsert_preference("likes", run[: LONGEST - 1])
    assert took(alice.similar, "likes", 8 * run) < 1


def test_a_model_that_gives_a_text_beyond_the_limit_gets_an_answer_quickly():
    alice = Diary("memory:").user("alice")
    run = "a/ " * LONGEST
    alice.upsert_preference("likes", run[: LONGEST - 1])
    verbs = MemoryVerbs(alice, "s")
    assert took(verbs.remember, 30 * run, "likes") < 0.3
    assert "10,000" in verbs.remember(run, "likes")


def test_a_long_quotation_that_a_model_replaces_is_searched_quickly():
    alice = Diary("memory:").user("alice")
    alice.blocks.set("notes", "a" * 4 * LONGEST)
    verbs = MemoryVerbs(alice, "s")
    assert took(verbs.replace_in_block, "notes", "a" * 2 * LONGEST + "b", "x") < 0.5


def test_a_question_with_a_word_of_many_hyphens_is_read_quickly():
    assert took(asked_words, "a-" * LONGEST) < 0.3


def test_a_long_question_is_searched_quickly_in_many_small_namespaces():
    store = ItemStore(Diary("memory:"))
    store.run([Put(("alice", f"n{n}"), "k", {"text": f"tea{n} milk"}) for n in range(500)])
    question = " ".join(f"milk{n}" for n in range(1500))
    store.run([Search(("alice",), query="tea1")])
    assert took(store.run, [Search(("alice",), query=f"{question} tea7")]) < 0.3


def test_a_block_that_repeats_a_vowel_sign_is_found_quickly():
    alice = Diary("memory:").user("alice")
    alice.blocks.set("notes", f"walnuts {'ा' * 5 * LONGEST}क")
    assert took(alice.recall, "walnuts") < 1


def test_a_memory_of_many_blocks_that_do_not_fit_is_rendered_quickly():
    alice = Diary("memory:").user("alice")
    with alice.transaction() as tx:
        for number in range(1000):
            tx.blocks.set(f"notes {number}", "walnuts and tea\n" * 60)
    assert took(alice.render) < 2


def test_the_history_of_a_batch_in_many_namespaces_is_read_quickly():
    store = ItemStore(Diary("memory:"))
    store.run([Put(("alice", f"n{n}"), "k", {"text": "tea"}) for n in range(3000)])
    assert took(store.diary.user("alice").history) < 1


@pytest.mark.parametrize("start", ["", "é "])
def test_a_text_with_quotes_is_escaped_nearly_as_fast_as_one_without(start):
    """A pattern for the frequent escapes takes ten times as long as replacements."""
    quoted, plain = (
        start + line * (10 * LONGEST) for line in ('He said "no".\n', "He said -no-. ")
    )
    times = [(took(render_text, quoted), took(render_text, plain)) for _ in range(7)]
    fastest, fastest_plain = map(min, zip(*times, strict=True))
    assert fastest < 5 * fastest_plain


@pytest.mark.parametrize("run", ["a.", "sk-a-", "1+"])
def test_the_error_of_a_provider_is_explained_quickly(run):
    assert took(cause_and_remedy, ValueError(run * 10 * LONGEST)) < 0.5


@pytest.mark.parametrize("lines", ["", "x "])
def test_a_memory_is_searched_quickly_in_a_text_with_unclosed_frames(lines):
    text = f'{lines}<user_memory note="">\n' * LONGEST
    assert took(without_memory, text) < 0.5


@pytest.mark.parametrize(
    "run",
    ["password for a", "password", "password: |", "pin=1234;", "_password", "é_", "eyJ-", "-eyJabcdefghijk.", "'a@1."],
)  # fmt: skip
@pytest.mark.parametrize("fill", ["", " ", "\n"])
def test_a_long_message_is_redacted_quickly(run, fill):
    assert took(Redactor(), run + (fill or run) * 2 * LONGEST) < 3


def test_a_memory_with_backslashes_is_searched_quickly_for_traces(tmp_path):
    alice = Diary(tmp_path).user("alice")
    alice.upsert_preference("likes", "\\" * LONGEST)
    assert took(alice.traces, "walnuts") < 1


def test_a_text_with_hidden_characters_is_forgotten_quickly():
    alice = Diary("memory:").user("alice")
    text = "a\u200b" * 40
    alice.upsert_preference("likes", f"{text}X")
    assert took(alice.forget, matching=f"{text}Y", dry_run=True) < 1


def test_a_long_text_with_hidden_characters_is_forgotten_quickly():
    text = "a\u200b" * 2 * LONGEST
    alice = Diary("memory:").user("alice")
    alice.blocks.set("notes", f"{text * 2} b")
    for wanted in (f"{text}c", f"{text} b b"):
        assert took(alice.forget, matching=wanted, dry_run=True) < 2
    assert alice.forget(matching=f"{text} b").entries == 1


@pytest.mark.parametrize("run", ["\u0301\u0316", "\uff9e\u0301", "\u0301\u0316\u200b"])
def test_a_text_with_many_marks_on_a_letter_is_forgotten_quickly(run):
    store = DiaryStore("memory:")
    store.put(("alice",), "k", {"text": f"walnuts {run * 10 * LONGEST} e\u0301"})
    alice = store.diary.user("alice")
    assert took(alice.traces, "walnuts") < 2
    assert took(alice.forget, matching="\u00e9") < 2
    assert alice.traces("walnuts") == []


def test_a_text_with_many_marks_on_a_letter_is_forgotten_in_each_of_its_forms():
    text = "walnuts e" + "\u0301\u0316" * 20
    for wanted in (normalize("NFC", text), normalize("NFD", text), "walnuts \u00e9"):
        alice = Diary("memory:").user("alice")
        alice.upsert_preference("likes", text)
        assert alice.traces(wanted) != []
        assert alice.forget(matching=wanted).entries == 1


def test_many_marks_in_a_row_have_the_compatible_form_of_unicode():
    chars = [chr(each) for each in range(sys.maxunicode + 1)]
    marks = [each for each in chars if combining(normalize("NFKD", each)[0])]
    # Between them: letters, which may have marks already, syllables in parts, signs and hidden characters.
    others = [*"eﬁｶ가\u1100\u1161\u11a8…🎉 ﷺ\u1f82\u0f77\u034f\u200b\u200d"]
    chosen = random.Random(1)
    for _ in range(2000):
        few = chosen.sample(marks, 4)
        counts = chosen.choices([0, 1, 29, 30, 31, 60, 61], k=3)
        runs = [chosen.choices(chosen.choice([few, marks]), k=count) for count in counts]
        text = "".join(chosen.choice(others) + "".join(run) for run in runs)
        assert compatible(text) == normalize("NFKC", text)


def test_a_text_with_many_marks_on_a_letter_is_recalled_quickly():
    store = DiaryStore("memory:")
    store.put(("alice",), "k", {"text": "tea e" + "\u0301\u0316" * 4 * LONGEST})
    assert took(store.diary.user("alice").recall, "tea") < 1


def test_a_text_with_many_marks_on_a_letter_is_compared_quickly():
    alice = Diary("memory:").user("alice")
    alice.upsert_preference("likes", "tea")
    text = "e" + "\u0301\u0316" * 4 * LONGEST
    assert took(alice.similar, "likes", text) < 1
    assert took(normal_form, text) < 1


@pytest.mark.parametrize("form", [normalise, identity])
def test_a_long_run_of_signs_ends_a_text_like_a_short_one(form):
    assert form(f"tea{'…' * 70}") == form("tea…")
    assert form(f"{'🎉' * 70}x") == "🎉" * 70 + "x"


def test_a_broken_document_with_a_key_of_spaces_is_explained_quickly():
    header = f'["{" " * 10 * LONGEST}"]\n'
    assert took(_broken, header * 2) < 1


def _broken(text):
    with pytest.raises(InvalidTOML, match="twice"):
        parse_toml(text)


def test_digits_that_look_like_long_numbers_are_read_quickly():
    text = ("0b" * 1490 + "z") * 300
    assert took(parse_toml, f'a = "{text}"\n') < 0.3


def stem_of_one_word(text):
    return porter("".join(chr(ord("a") + ord(char) % 26) for char in text))


@pytest.mark.parametrize("form", [normalise, identity, marks_of, stem_of_one_word])
def test_a_long_text_is_not_kept_in_memory_after_its_comparison(form):
    """The messages of a server would fill its memory in the course of weeks."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(50):
            form(f"Message {number}: {'Some words. ' * 1000}")
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert held < 20 * 12_000  # Python itself keeps some freed tuples
