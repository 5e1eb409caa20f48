"""What was said is found in every script, without an index."""

from __future__ import annotations

import pytest

from tomldiary import Diary
from tomldiary.entries.preferences import PreferenceRules, Preferences
from tomldiary.extraction.message import relevant_lines
from tomldiary.text.words import asked_words, indexed_words

OTHERS = [
    "likes green tea", "犬が好きで毎日散歩をする", "他喜欢打篮球", "그는 축구를 좋아해요", "เขาชอบเล่นฟุตบอล",
    "он любит футбол", "هو يحب كرة القدم", "वह फ़ुटबॉल खेलता है",
]  # fmt: skip
FOUND = {
    "Japanese word": ("彼女は東京に住んでいます", "東京"),
    "Japanese question": ("彼女は東京に住んでいます", "彼女はどこに住んでいますか"),
    "Japanese lone ideograph": ("毎朝茶を飲みます", "お茶"),
    "half-width kana": ("コーヒーは飲まない", "ｺｰﾋｰ"),
    "Chinese word": ("我对花生严重过敏", "花生"),
    "Chinese question": ("我对花生严重过敏", "她对什么过敏？"),
    "one ideograph": ("我养了一只猫", "猫"),
    "Korean with a particle": ("그녀는 서울에서 살고 있어요", "서울"),
    "Korean with another particle": ("서울은 아름답다", "서울에서"),
    "Thai word": ("เธออาศัยอยู่ในกรุงเทพมหานคร", "กรุงเทพ"),
    "short Thai word": ("เธอดื่มชาทุกเช้า", "ชา"),
    "Khmer word": ("គាត់រស់នៅភ្នំពេញ", "ភ្នំពេញ"),
    "Arabic with an article": ("تشرب القهوة كل صباح", "قهوة"),
    "Arabic with a conjunction": ("الشاي والقهوة", "قهوة"),
    "Arabic with marks": ("قَهْوَة", "القهوة"),
    "Persian joiner": ("او می‌خواهد برود", "میخواهد"),
    "Arabic digits": ("يسكن في الشقة ١٢", "12"),
    "question with Bengali digits": ("Room 42 of the hotel", "৪২"),
    "Hindi word": ("उसे हिन्दी पसंद है", "हिन्दी"),
    "Cyrillic": ("она живёт в Осло", "Осло"),
    "accents": ("un café crème", "cafe"),
    "full width": ("likes ＡＢＣ soup", "abc"),
    "hidden characters": ("pea\u200bnut allergy", "peanut"),
    "emoji": ("dinner was 🍕 again", "🍕"),
    "plural beside an emoji": ("love my parrot 🦜", "parrots"),
    "parts of a name": ("renamed getUserById in the service", "user by id"),
    "name in another style": ("renamed getUserById in the service", "get_user_by_id"),
    "name in capitals": ("HTTPServerError was thrown", "server error"),
    "code with a number": ("the build fails with TS2345", "ts 2345"),
    "number with a unit": ("ran 10km before work", "10 km"),
    "irregular verb": ("Yesterday we bought a sofa", "What did they buy?"),
    "irregular plural": ("the children slept", "child"),
    "British spelling": ("an organised neighbour", "organize neighbors"),
    "Spanish plural of a short word": ("Tengo dos gatos en casa", "gato"),
    "Spanish gender": ("Mi gata duerme en la cama", "gatos"),
    "German plural of a short word": ("Die Hunde bellen nicht", "Hund"),
    "Russian plural": ("у них две кошки", "кошка"),
    "Russian case": ("читает книги по вечерам", "книгу"),
    "Hindi plural": ("मेरी बहनें दिल्ली में पढ़ती हैं", "बहन"),
    "Hindi verb": ("मेरी बहन किताबें पढ़ती है", "पढ़ना"),
    "mixed": ("2024年に東京Towerへ行った", "tower"),
}


@pytest.mark.parametrize(("text", "query"), FOUND.values(), ids=FOUND)
def test_recall_finds_every_script_before_other_texts(text, query):
    alice = Diary("memory:").user("alice")
    for other in OTHERS:
        alice.upsert_preference("likes", other)
    alice.upsert_preference("biography", text)
    hits = alice.recall(query)
    assert hits[0].text == text
    assert len(hits) <= 3


@pytest.mark.parametrize("number", ["12", "١٢", "１２", "१२", "৪২"])
def test_digits_of_other_scripts_are_the_same_number(number):
    alice = Diary("memory:").user("alice")
    alice.upsert_preference("likes", f"Room {number} of the hotel")
    same, other = ("42", "12") if number == "৪২" else ("12", "42")
    [match] = alice.similar("likes", f"Room {same} of the hotel")
    assert (match.score, match.conflict) == (100, "")
    [match] = alice.similar("likes", f"Room {other} of the hotel")
    assert match.conflict == "different number"


@pytest.mark.parametrize("query", ["大阪", "เชียงใหม่", "القلم", "मराठी", "부산"])
def test_an_unrelated_word_is_not_found(query):
    alice = Diary("memory:").user("alice")
    for other in OTHERS:
        alice.upsert_preference("likes", other)
    assert alice.recall(query) == []


def test_hits_name_matching_words_as_they_are_written():
    alice = Diary("memory:").user("alice")
    alice.upsert_preference("biography", "彼女は東京に住んでいます")
    assert alice.recall("東京 tea")[0].reasons == ["東京"]


@pytest.mark.parametrize(
    ("text", "query", "other"),
    [
        ("She tries each door", "tried", "She takes the stairs"),
        ("We agreed on that", "agree", "We talk about that"),
        ("A reed in the wind", "reeds", "A rose in the wind"),
        ("Exercising at noon", "exercise", "Sleeping at noon"),
        ("A relational database", "relate", "A fast database"),
        ("Room 42 is mine", "42", "Room nine is mine"),
        ("Earns $85,000 a year", "85000", "Lives at number 85"),
        ("The rent is 1.250 €", "1250 €", "Lives at number 250"),
        ("Has 1,234,567 points", "1234567", "Has 123 points"),
        ("Weighs 1500 g", "1,500", "Weighs a ton"),
        ("The wifi is slow", "wi-fi", "The train is slow"),
        ("The wi-fi is slow", "wifi", "The train is slow"),
        ("Her email is new", "e\u2010mail", "Her post is new"),
        ("A roll-out on Monday", "rollout", "A walk on Monday"),
    ],
)
def test_recall_finds_english_words_by_their_other_forms(text, query, other):
    alice = Diary("memory:").user("alice")
    alice.upsert_preference("likes", other)
    alice.upsert_preference("likes", text)
    assert [hit.text for hit in alice.recall(query)] == [text]


def test_words_of_two_letters_have_no_stem():
    assert indexed_words("is as us") == ["is", "as", "us"]


@pytest.mark.parametrize("number", ["192.168.0.17", "12.06.2026", "1,2500", "2.11.0", "10,000,00"])
def test_numbers_without_separators_of_thousands_are_not_joined(number):
    assert [word for word in indexed_words(number) if len(word) > 4] == [number]


def test_a_hash_is_one_word():
    word = "deadbeef0a1b2c3d4e5f60718293a4b5c6d7e8f9"
    assert indexed_words(word) == [word]


@pytest.mark.parametrize("text", ["", "plain words", "naïve café", "日本", "a b 日"])
def test_a_text_has_the_words_of_a_question_that_quotes_it(text):
    indexed = set(indexed_words(text))
    assert all(indexed & set(word.forms) for word in asked_words(text))


def test_extractors_see_preferences_in_scripts_without_spaces():
    rules = PreferenceRules(("likes",), 100)
    diary = Diary("memory:")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "彼女は東京に住んでいます")
    for number in range(50):
        alice.upsert_preference("likes", f"thing number {number}")
    book = Preferences(diary.engine.document("alice", "preferences"), rules)
    lines, left_out = relevant_lines(book, "東京は楽しかった", 100)
    assert left_out
    assert any("東京" in line for line in lines)


@pytest.mark.parametrize("entries", [1, 2, 3, 100])
def test_recall_scores_lie_between_0_and_1(entries):
    alice = Diary("memory:", max_prefs_per_category=1000).user("alice")
    with alice.transaction():
        for number in range(entries - 1):
            alice.upsert_preference("likes", f"green tea with topic{number}")
        alice.upsert_preference("allergies", "severe peanut allergy")
    (best,) = alice.recall("peanut")
    assert 0.5 < best.score < 1
    (partly,) = alice.recall("peanut butter allergy in summer", kinds=["preferences"])
    assert 0.5 < partly.score < 1  # words that are stored nowhere count for nothing
    hits = alice.recall("green peanut", limit=1000)
    assert all(0 < hit.score < 1 for hit in hits)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
