from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tomldiary.extraction.rules import (
    MAX_CHARACTERS,
    MAX_SENTENCE,
    MAX_STATEMENTS,
    Language,
    Statement,
    find_statements,
)

TASTES = {"likes": "", "dislikes": "", "allergies": "", "routines": "", "biography": ""}
CARE = {"dietary": "", "medical": "", "interests": "", "goals": "", "family": "", "work": ""}
BAND = {
    "instruments": "musical instruments the user plays",
    "gear": "amplifiers, pedals and other equipment the user owns",
    "notes": "",
}
DATA = Path(os.environ.get("TOMLDIARY_BENCH_DATA") or Path(__file__).parents[3] / "shared" / "data")


def texts(message: str) -> list[str]:
    return [statement.text for statement in find_statements(message, TASTES)]


@pytest.mark.parametrize(
    "sentence",
    [
        "I really can't stand   olives!",
        "I am allergic to peanuts.",
        "i usually go to bed at ten",
        "My wife is a nurse.",
        "I was born in 1990 in Oslo.",
        "We have two dogs 🐶🐶 at home.",
        "I have ten cats.",
        "We have seven children.",
        "I'm planning to retire in 2030.",
        "Due to my asthma, I avoid smoky rooms.",
        "My name is Dr. Smith and I work at St. Mary's.",
        "I can only afford 3.50 euros a day.",
        "Remember that I'm vegetarian.",
    ],
)
def test_a_statement_is_kept_verbatim(sentence):
    assert texts(sentence) == [sentence]
    assert texts(f"  \n{sentence}\n\n") == [sentence]


def test_sentences_are_judged_one_by_one_and_keep_their_order():
    assert texts("1. I love tea.\n2. I hate milk.") == ["I love tea.", "I hate milk."]
    message = "Nice weather. I love rowing. It is noon. My sister has a farm!\n- I never eat pork"
    assert texts(message) == ["I love rowing.", "My sister has a farm!", "I never eat pork"]


def test_a_sentence_wrapped_by_hand_stays_whole():
    assert texts("I am allergic to shellfish and\nto walnuts.") == [
        "I am allergic to shellfish and\nto walnuts."
    ]
    assert texts("i hate cilantro\ni live in berlin") == ["i hate cilantro", "i live in berlin"]


@pytest.mark.parametrize(
    "question",
    [
        "Do I like tea?",
        "What do I usually eat",
        "Should I avoid sugar?",
        "How can I tell whether I am allergic to cats?",
        "is it true that i live in the largest city of europe",
        "I love hiking, don't I?",
    ],
)
def test_questions_are_not_extracted(question):
    assert texts(question) == []


@pytest.mark.parametrize(
    "request_",
    [
        "Can you tell me about the things I like?",
        "I want you to answer in French.",
        "I need help with my diet.",
        "I'm looking for a hotel in Rome that allows dogs.",
        "I'll be visiting Rome soon. What are some sights you'd recommend?",
        "I'm planning a trip to Peru. Where should I stay?",
        "I would like to book a table for my wife and me.",
        "I was wondering how I could find my favourite song.",
        "Write a story in which I am a pirate.",
        "Never call me before noon.",
        "I like your answer.",
        "I love it!",
        "Act as a doctor. I am allergic to nuts.",
        "Translate this into German: I love dogs. I live in Rome.",
        "Repeat after me: I love dogs.",
        "Proofread the following text.\nI am a vegetarian since 2009.",
        "I tried running the script and got an error.",
        "If I were a vegetarian, I would eat tofu.",
    ],
)
def test_requests_and_their_background_are_not_extracted(request_):
    assert texts(request_) == []


@pytest.mark.parametrize(
    "request_",
    [
        "But let's say I'm vegetarian.",
        "Aber schreibe einen Brief an meinen Chef, dass ich krank bin.",
    ],
)
def test_a_request_may_begin_with_a_conjunction(request_):
    assert texts(request_) == []


def test_a_long_message_about_a_task_keeps_lasting_statements_only():
    lasting = (
        "I have a sister called Ann who lives in Rome and she works there as a nurse in the big"
        " hospital near the river and we talk each week about many things."
    )
    plan = "I am moving to Berlin next month."
    task = "I am writing an essay about Rome. Can you help me with it?"
    assert texts(f"{task} {plan} {lasting}") == [lasting]
    assert texts(f"Can you help me with it? {plan} {lasting}") == [plan, lasting]


def test_a_lasting_statement_beside_a_request_survives():
    assert texts("I'm vegan. Can you suggest a dinner?") == ["I'm vegan."]
    for mark in ", ", "; ", " - ", " \u2013 ":
        assert texts(f"I'm allergic to nuts{mark}what can I bring?") == ["I'm allergic to nuts"]


def test_a_request_to_forget_what_was_just_said_drops_it():
    assert texts("I love tea. Please forget that. I hate noise.") == ["I hate noise."]


@pytest.mark.parametrize(
    "asked",
    [
        ". Don't forget that.",
        ". Never forget it!",
        ". Nobody should forget that.",
        ". No one could ever forget it.",
        ". No one will forget that!",
    ],
)
def test_a_request_not_to_forget_drops_nothing(asked):
    assert texts(f"I love tea{asked}") == ["I love tea."]
    (kept,) = texts("I love my dog, please don't forget it.")
    assert kept == "I love my dog, please don't forget it."


@pytest.mark.parametrize(
    "said",
    [
        "I love tea. Please delete it.",
        "I love tea. Erase that, please.",
        "I love tea. Can you remove that from your memory?",
        "I love tea. And please don't store that!",
        "I love tea. Never write this down.",
        "I love tea, but don't save it.",
        "I love tea, please don't remember that.",
        "I love tea, but please don\u2019t keep this!",
        "I love tea, don't remember it, please.",
        "I love tea, please remove it.",
        "I love tea; please delete that again.",
        "I love tea, scrap that please.",
        "I love tea, never store this.",
        "I love tea; so never record it anywhere!",
        "Off the record: I love tea.",
    ],
)
def test_what_the_user_asks_not_to_store_is_dropped(said):
    assert texts(f"{said} I hate noise.") == ["I hate noise."]


def test_what_was_said_off_the_record_is_dropped():
    assert texts("I love tea. That was off the record. I hate noise.") == ["I hate noise."]


@pytest.mark.parametrize(
    "said",
    [
        "I am vegan. Don't forget it!",
        "I am vegan, please never forget that.",
        "I hate it when people never write it down.",
        "I prefer tools that do not record it.",
        "I was told to never save it.",
        "I work at Off the Record, a vinyl shop.",
    ],
)
def test_no_statement_is_taken_for_a_request_not_to_store_it(said):
    assert texts(said)[0] in said
    assert texts(f"I love tea. {said}")[0] == "I love tea."


def test_an_answer_that_is_taken_back_is_dropped():
    for back in "Please forget that.", "But don't store it.":
        assert find_statements(f"Yes, peanuts. {back}", TASTES, "Do you have allergies?") == []


def test_a_sentence_that_asks_not_to_store_itself_drops_no_other():
    assert texts("I hate noise. I love tea, don't store that.") == ["I hate noise."]
    kept = [
        "I love tea.",
        "I never write it down.",
        "I hate my old car, I had to remove it.",
        "I moved to Rome, please update it.",
        "I love spam, I can't delete it.",
        "I love the opera, I don't remember that.",
    ]
    assert texts(" ".join(kept)) == kept


def test_what_a_question_asks_to_remember_is_a_statement():
    asked = "Could you please remember that I'm allergic to shellfish?"
    assert texts(f"{asked} Can you remember my birthday?") == [asked]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("I started my own store, pretty cool, huh?", "Indeed!"),
        ("We love jazz, don't we?", "Peanuts."),
        ("What are your goals?", "Thanks, Mel!"),
    ],
)
def test_a_question_about_the_assistant_and_thanks_are_no_answer(question, answer):
    assert find_statements(answer, TASTES, question) == []
    asked = "May I ask whether you have allergies?"
    assert find_statements("Thanks, yes.", TASTES, asked) != []


@pytest.mark.parametrize(
    "question", ["Are you allergic to anything?", "Have you any allergies?", "Were you born here?"]
)
def test_an_answer_is_kept_with_a_question_in_any_of_its_forms(question):
    (found,) = find_statements("Yes, peanuts.", TASTES, question)
    assert found.text == f"{question} Yes, peanuts."


def test_a_statement_after_a_question_is_no_answer_to_it():
    (found,) = find_statements("I love jazz.", TASTES, "Do you have allergies?")
    assert found.text == "I love jazz."


def test_small_talk_does_not_turn_plans_into_background():
    for question in ("What about you?", "You know what I mean?"):
        assert texts(f"I'm going to Rome in May. {question}") == ["I'm going to Rome in May."]


@pytest.mark.parametrize(
    ("sentence", "category"),
    [
        ("I no longer eat meat.", "dislikes"),
        ("I am no longer allergic to nuts.", "allergies"),
        ("I'm no longer vegan.", "biography"),
        ("We no longer live in Oslo.", "biography"),
        ("I don't have any allergies.", "allergies"),
        ("I don't have a car.", "biography"),
        ("I don't have kids.", "biography"),
        ("I quit smoking.", "dislikes"),
        ("I have stopped eating meat.", "dislikes"),
    ],
)
def test_a_statement_that_something_has_ended_or_is_absent_is_kept(sentence, category):
    assert find_statements(sentence, TASTES) == [Statement(sentence, category)]


@pytest.mark.parametrize(
    ("sentence", "category"),
    [
        ("We don't like olives.", "dislikes"),
        ("We hate olives.", "dislikes"),
        ("I like no olives.", "dislikes"),
        ("I like neither olives nor capers.", "dislikes"),
        ("I like nothing better than olives.", "likes"),
        ("Neither my wife nor I like olives.", "dislikes"),
        ("I never liked olives.", "dislikes"),
        ("I have never been a fan of olives.", "dislikes"),
        ("I can't say that I like olives.", "dislikes"),
        ("Blue is not my favourite.", "dislikes"),
        ("I hate to admit it, but I love olives.", "likes"),
        ("I don't hate olives.", "likes"),
        ("I can't live without olives.", "likes"),
        ("I get a rash from wool.", "allergies"),
        ("I became a nurse.", "biography"),
        ("I relocated to Oslo.", "biography"),
        ("I got married last week.", "biography"),
        ("My nickname is Bo.", "biography"),
    ],
)
def test_the_side_of_a_statement_is_that_of_its_whole_phrase(sentence, category):
    assert find_statements(sentence, TASTES) == [Statement(sentence, category)]


@pytest.mark.parametrize(
    "greeting",
    [
        "I'm fine, thanks.",
        "I am so happy!",
        "I'm back",
        "Hi, it's me",
        "I'm tired of this.",
        "I'm a fan of yours!",
        "I use that.",
        "I don't hate it.",
        "We hate to disturb you.",
        "I stopped watching the video you sent.",
        "I became a bit tired.",
    ],
)
def test_greetings_and_moods_are_not_extracted(greeting):
    assert texts(greeting) == []


@pytest.mark.parametrize(
    "message",
    [
        'He told me "I am a vegetarian".',
        "\u201cI hate onions.\u201d",
        "The sign says \u2018I don\u2019t like dogs\u2019 in red.",
        "> I hate onions",
        "```\nI hate onions\n```",
        "~~~ python\nI hate onions",
        "`I hate onions`",
        "See https://example.org/?q=I+hate+onions or www.example.org/my-wife",
        "She wrote: I love cake.",
    ],
)
def test_quotes_code_and_addresses_are_ignored(message):
    assert texts(message) == []


@pytest.mark.parametrize(
    "sentence",
    [
        'I love the book "Dune" most.',
        'I am allergic to walnuts, and my doctor said "avoid all nuts".',
        'I work at "Acme", and my boss says "be on time".',
    ],
)
def test_a_sentence_that_contains_a_quotation_is_kept_with_it(sentence):
    assert texts(sentence) == [sentence]


@pytest.mark.parametrize(
    ("message", "category"),
    [
        ("My wife works at Acme and her boss says: I am allergic to nuts.", "work"),
        ("Je suis infirmier et mon chef a dit : je suis allergique aux chats.", "biography"),
    ],
)
def test_the_words_of_others_after_a_statement_choose_no_category(message, category):
    categories = {"allergies": "Allergies", "work": "The job", "biography": "About the user"}
    [found] = find_statements(message, categories)
    assert (found.text, found.category) == (message, category)


def test_a_quotation_within_a_supposition_is_no_statement():
    assert texts('In my favourite song the singer says "I live in Paris".') == []


def test_bullets_are_cut_off_and_emphasis_is_kept():
    assert texts("* I love *jazz*.\n*I hate milk") == ["I love *jazz*.", "I hate milk"]
    assert texts("**I am vegan**\n- *I love* tea") == ["**I am vegan**", "*I love* tea"]


@pytest.mark.parametrize("mark", ["'", "\u2019", "\u02bc"])
def test_typographic_apostrophes_count_as_apostrophes(mark):
    assert texts(f"I don{mark}t like olives.") == [f"I don{mark}t like olives."]
    assert texts(f"I{mark}m left-handed.") == [f"I{mark}m left-handed."]


def test_the_same_sentence_is_returned_once():
    assert texts("I love tea.\nI LOVE  tea.\nI love tea.") == ["I love tea."]


@pytest.mark.parametrize(
    ("table", "sentence", "category"),
    [
        (TASTES, "I love hiking.", "likes"),
        (TASTES, "I hate mushrooms.", "dislikes"),
        (TASTES, "I'd rather not eat meat.", "dislikes"),
        (TASTES, "I don't think I like sushi.", "dislikes"),
        (TASTES, "My daughter is allergic to eggs.", "allergies"),
        (TASTES, "I go running every morning.", "routines"),
        (TASTES, "I live in Oslo.", "biography"),
        (TASTES, "I'm hoping to become a pilot.", "biography"),
        (TASTES, "I can't eat pork.", "biography"),
        (TASTES, "My religion is Hinduism.", "biography"),
        ({"likes": "food", "dislikes": ""}, "I can't eat pork.", "dislikes"),
        (CARE, "I hate mushrooms and cheese.", "dietary"),
        (CARE, "I am allergic to penicillin.", "medical"),
        (CARE, "I love hiking.", "interests"),
        (CARE, "I want to run a marathon next year.", "goals"),
        (CARE, "My son plays football.", "family"),
        (CARE, "I'm a nurse in Leeds.", "work"),
        (BAND, "I play two instruments.", "instruments"),
        (BAND, "I own several amplifiers.", "gear"),
        (BAND, "I live in Oslo.", "notes"),
        ({"first": "", "second": ""}, "I live in Oslo.", "first"),
        ({"likes": "food and drink", "about": ""}, "I hate cheese.", "about"),
    ],
)
def test_the_category_comes_from_the_given_table(table, sentence, category):
    assert find_statements(sentence, table) == [Statement(sentence, category)]


def test_without_categories_nothing_is_returned():
    assert find_statements("I love tea.", {}) == []


def test_at_most_the_cap_of_statements_is_returned():
    message = " ".join(f"I like river number {number}." for number in range(MAX_STATEMENTS * 3))
    found = texts(message)
    assert len(found) == MAX_STATEMENTS
    assert found[0] == "I like river number 0."


def test_text_beyond_the_cap_is_ignored_with_the_sentence_it_cuts():
    padding = "x " * (MAX_CHARACTERS // 2 - 5)
    assert texts(f"I love tea.\n{padding}\nI hate olives.") == ["I love tea."]
    inside = f"{'x ' * 9_000}\nI hate olives."
    assert texts(inside) == ["I hate olives."]


def test_a_sentence_that_the_cap_cuts_after_a_word_is_not_kept():
    said = "I am allergic to nuts"
    before = "ok. " * ((MAX_CHARACTERS - len(said)) // 4)
    space = " " * (MAX_CHARACTERS - len(before) - len(said))
    assert texts(f"{before}{space}{said}") == [said]
    assert texts(f"{before}{space}{said}, but not to cashews.") == []


def test_a_sentence_longer_than_the_cap_is_not_a_statement():
    assert texts("I love tea " + "and cake " * (MAX_SENTENCE // 9)) == []


@pytest.mark.parametrize(
    "unit",
    ["I am a ", "i have ", "I love tea. ", ".)", '"', "\u201c", " 'a", "'a", "`", "? ", "\n", "```\n", "- ",
     "http://", ", can ", "\u0130", "\U0001f600"],
)  # fmt: skip
def test_a_hostile_megabyte_takes_no_longer_than_the_cap(unit, monkeypatch):
    looked_at: list[int] = []
    plain_form = Language.plain_form

    def counting(language: Language, sentence: str) -> str:
        looked_at.append(len(sentence))
        return plain_form(language, sentence)

    monkeypatch.setattr(Language, "plain_form", counting)
    find_statements(unit * (1_000_000 // len(unit)), TASTES)
    assert sum(looked_at) <= 2 * MAX_CHARACTERS  # a question cut in two is read twice
    assert max(looked_at, default=0) <= MAX_SENTENCE


@pytest.mark.parametrize(
    "message",
    ["", "   ", "J'adore le fromage.", "我喜欢猫。", "أحب القهوة", "İ I love İstanbul.", "\x00\ud800 I love tea."],
)  # fmt: skip
def test_other_languages_and_rare_characters_raise_no_error(message):
    assert all(text in message for text in texts(message))


@given(st.text(), st.dictionaries(st.text(), st.text(), max_size=4))
def test_any_text_and_any_table_give_verbatim_text_and_a_known_category(message, table):
    for statement in find_statements(message, table):
        assert statement.text in message
        assert statement.category in table


PIECES = [
    "I",
    "love",
    "hate",
    "'",
    "\u2019",
    '"',
    "`",
    ".",
    "?",
    "\n",
    " ",
    "my wife",
    "am",
    "```",
    ",",
    "what",
    "İ",
]


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_text_made_of_rule_phrases_stays_verbatim(message):
    for statement in find_statements(message, TASTES):
        assert statement.text in message
        assert statement.text == statement.text.strip()
        assert "?" not in statement.text[-1:]


@pytest.mark.skipif(
    not (DATA / "prefeval").is_dir(),
    reason="the PrefEval data is not here; name its folder in TOMLDIARY_BENCH_DATA",
)
def test_stated_preferences_are_found_and_questions_are_not():
    pairs = [
        pair
        for file in sorted((DATA / "prefeval").glob("*.json"))
        for pair in json.loads(file.read_text("utf-8"))
    ]
    found = sum(bool(texts(pair["preference"])) for pair in pairs)
    wrong = sum(bool(texts(pair["question"])) for pair in pairs)
    assert found / len(pairs) >= 0.92
    assert wrong / len(pairs) <= 0.10


@pytest.mark.parametrize(
    "message",
    [
        "It's not true that I hate dogs.",
        "I'm not saying I hate dogs.",
        "Nobody said I was vegan.",
        "The assistant wrote that I'm allergic to shellfish, which is wrong.",
        "In the novel, the hero says I live alone.",
        "I'm writing a story where I am allergic to nuts.",
        "As the old saying goes, I think therefore I am.",
        "Hypothetically, I have three kids.",
        "For example, I live in Berlin.",
        "I wish I had a dog.",
        "Oh sure, I just LOVE being stuck in traffic.",
        "I don't know if I like olives.",
        "I wonder whether I would like Rome and my new job.",
        "User: I am allergic to nuts",
        "2024-01-01 ERROR I am a failing worker",
        "[INFO] I live on port 8080",
    ],
)
def test_what_is_denied_supposed_or_said_by_others_is_left_out(message):
    assert texts(message) == []
    assert texts(f"{message}\nI am vegan.") == ["I am vegan."]


def test_of_a_pasted_conversation_only_the_lines_of_the_user_are_kept():
    said = "Ann: I hate milk\nMe: I love tea\nBen: I live in Oslo\nAnn: I have two cats"
    assert texts(said) == ["Me: I love tea"]


def test_a_list_of_facts_with_headings_is_no_conversation():
    assert texts("Job: I am a nurse\nDiet: I am vegan") == ["Job: I am a nurse", "Diet: I am vegan"]


@pytest.mark.parametrize(
    ("sentence", "category"),
    [
        ("I love pizza.", "y"),
        ("I am allergic to nuts.", "z"),
        ("I love hiking in the mountains.", "x"),
    ],
)
def test_the_description_of_a_category_decides_if_its_name_says_nothing(sentence, category):
    described = {
        "x": "outdoor sports such as hiking",
        "y": "food and drinks",
        "z": "health and allergies",
    }
    (found,) = find_statements(sentence, described)
    assert found.category == category
