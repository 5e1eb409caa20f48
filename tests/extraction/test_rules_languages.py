"""The offline rules in six languages, and what they say of the others."""

from __future__ import annotations

import logging
from pathlib import Path
from unicodedata import normalize

import pytest

import programs
from tomldiary import Diary
from tomldiary.extraction.rules import LANGUAGES, find_statements, language_of

CATEGORIES = dict.fromkeys(("likes", "dislikes", "allergies", "routines", "biography"), "")
ROWS = [
    tuple(line.split(" | "))
    for line in (Path(__file__).parent / "statements.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]


def found(message):
    return [statement.text for statement in find_statements(message, CATEGORIES)]


@pytest.mark.parametrize("code", ["de", "es", "fr", "pt", "it"])
def test_statements_are_found_and_requests_are_left_out(code):
    said = [text for language, kind, text in ROWS if (language, kind) == (code, "statement")]
    other = [text for language, kind, text in ROWS if (language, kind) == (code, "other")]
    assert len(said) >= 20
    assert len(other) >= 10
    missed = [text for text in said if not found(text)]
    assert len(missed) <= 0.1 * len(said), missed
    assert [text for text in other if found(text)] == []


def test_what_is_kept_is_verbatim():
    for _, kind, said in ROWS:
        if kind == "statement":
            assert [text for text in found(said) if text not in said] == []


@pytest.mark.parametrize(
    ("sentence", "category"),
    [
        ("Ich bin allergisch gegen Nüsse.", "allergies"),
        ("No me gustan los gatos.", "dislikes"),
        ("J'adore le jazz.", "likes"),
        ("Acordo todos os dias às seis.", "routines"),
        ("Vivo a Roma.", "biography"),
        ("Ich mag Tee, aber keinen Kaffee.", "likes"),
        ("Ich mag nicht nur Tee, sondern auch Kaffee.", "likes"),
        ("Ich trinke Tee, aber keinen Kaffee.", "routines"),
        ("Mir gefällt Rom nicht.", "dislikes"),
        ("ich mag jazz nich", "dislikes"),
        ("Ich stehe nicht auf Pop.", "dislikes"),
        ("Ich habe Pop nie gemocht.", "dislikes"),
        ("Wir mögen Rom nicht.", "dislikes"),
        ("Wir lieben Rom nicht.", "dislikes"),
        ("Wir lieben nicht nur Rom.", "likes"),
        ("Wir mögen Rom.", "likes"),
        ("Nenn mich Jo.", "biography"),
        ("Ich heisse Anna.", "biography"),
        ("Tampoco me gusta el café.", "dislikes"),
        ("Nunca me han gustado los gatos.", "dislikes"),
        ("J'aime pas le café.", "dislikes"),
        ("J'aime pas mal le café.", "likes"),
        ("J'aime pas seulement le café.", "likes"),
        ("J'aime plus le thé que le café.", "likes"),
        ("Je mange pas de porc.", "dislikes"),
        ("Je n'ai jamais aimé le café.", "dislikes"),
        ("nao gosto de azeitonas", "dislikes"),
        ("Não gostamos de Roma.", "dislikes"),
        ("Nunca gostei de azeitonas.", "dislikes"),
        ("A me non piace il tè.", "dislikes"),
        ("Non mi è mai piaciuto il tè.", "dislikes"),
        ("Amo il tè.", "likes"),
    ],
)
def test_the_kind_of_a_statement_chooses_its_category(sentence, category):
    assert [each.category for each in find_statements(sentence, CATEGORIES)] == [category]


@pytest.mark.parametrize(
    "asked",
    [
        "Kannst du dir bitte merken, dass ich allergisch gegen Nüsse bin?",
        "¿Puedes recordar que soy alérgico a las nueces?",
        "Peux-tu te souvenir que je suis allergique aux noix ?",
        "Pode lembrar que eu sou alérgico a nozes?",
        "Puoi ricordare che sono allergico alle noci?",
    ],
)
def test_what_a_question_asks_to_remember_is_a_statement(asked):
    assert found(asked) == [asked]


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("Ich bin vegan, was kann ich kochen?", ["Ich bin vegan"]),
        ("Ich bin vegan, suchst du mir ein Rezept?", ["Ich bin vegan"]),
        ("Soy vegana. ¿Qué puedo cocinar?", ["Soy vegana."]),
        ("Peux-tu m'aider, je suis végane, que puis-je cuisiner ?", []),
        ("Übersetze:\nIch liebe Hunde.", []),
        ("Ich bin vegan. Übersetze:\nIch liebe Hunde.", ["Ich bin vegan."]),
        ("Hier ist der Text zum Übersetzen: Ich liebe Hunde. Ich bin vegan.", []),
        ("¿Puedes corregir la siguiente frase: Soy vegano.", []),
        ("S'il te plaît traduis en anglais : Je suis végane.", []),
        ("Aber wenn ich Tee mag, mag ich Kaffee.", []),
        ("„Ich liebe Hunde“, sagte er.", []),
        ("Vergiss das. Ich mag Tee.", ["Ich mag Tee."]),
        ("Ich mag Tee. Kannst du mir helfen? Ich plane eine Reise.", ["Ich mag Tee."]),
    ],
)
def test_questions_quotations_and_texts_to_work_on_are_left_out(message, kept):
    assert found(message) == kept


@pytest.mark.parametrize(
    "told",
    [
        "Mein Geburtstag ist am 5. Mai.",
        "Ich wohne im 3. Stock.",
        "Meine Tochter geht in die 2. Klasse und mag Tiere.",
        "Ich mag z.B. Tee.",
        "I live at No. 5 High Street.",
        "I live near a U.S. Army base.",
        "I am pescatarian, i.e. I eat fish.",
        "J'habite av. Foch à Paris.",
        "Vivo en la Av. Corrientes.",
        "I live in Washington, D.C. with my wife.",
        "I live in the U.K., not in Ireland.",
        "I like cats, dogs, etc., and hate birds.",
        "I like jazz (blues etc.), and funk.",
        "I like cats etc. and birds.",
        "My birthday is on Feb. 3rd, 1990.",
        "I live near Mt. Hood.",
        "I studied A.I. at a college.",
    ],
)
def test_an_ordinal_number_or_a_short_form_ends_no_sentence(told):
    assert found(told) == [told]


@pytest.mark.parametrize(
    ("told", "second"),
    [
        ("No. I'm vegan.", "I'm vegan."),
        ("I wake up at 6 a.m. I drink coffee.", "I drink coffee."),
        ("I take vitamin C. My wife is a nurse.", "My wife is a nurse."),
        ("I was born in D.C. I live in Rome.", "I live in Rome."),
        ("i like cats etc. i hate birds.", "i hate birds."),
        ("I like cats, dogs, etc. My wife likes birds.", "My wife likes birds."),
        ("I like cats, dogs, etc. Olives make me sick.", "Olives make me sick."),
        ("Ich bin geboren am 12. Ich mag Tee.", "Ich mag Tee."),
        ("Ich bin am 3. Mai geboren und wohne im 5. Meine Frau mag Tee.", "Meine Frau mag Tee."),
    ],
)
def test_a_common_word_with_a_capital_or_for_the_user_begins_a_sentence(told, second):
    assert second in found(told)


@pytest.mark.parametrize(
    "first", ["Ich bin 40.", "I am 40.", "Im 40.", "I really am 40.", "Je suis du 5."]
)
def test_a_number_at_the_end_of_a_sentence_ends_it(first):
    assert "I live in Rome." in found(f"{first} I live in Rome. I love jazz and I love tea.")


def test_accents_apart_from_their_letters_are_read_and_kept():
    for text in ("Soy alérgica a los cacahuetes.", "Ich mag überhaupt keine Äpfel."):
        assert found(normalize("NFD", text)) == [normalize("NFD", text)]


@pytest.mark.parametrize(
    "said",
    [
        "Ich bin gegen Nüsse allergisch. Speichere das bitte nicht.",
        "Ich liebe Tango. Bitte vergiss das wieder.",
        "Soy alérgico a las nueces. Por favor, no lo guardes.",
        "Me encanta el tango, bórralo.",
        "Je suis allergique aux noix. Oublie ça, s'il te plaît.",
        "J'adore le tango, ne le retiens pas.",
        "Sou alérgico a nozes. Esqueça isso.",
        "Sou alérgico a nozes. Não guarde isso, por favor.",
        "Sono allergico alle noci. Per favore, dimenticalo.",
        "Amo la musica jazz, non salvarlo.",
    ],
)
def test_what_the_user_asks_not_to_store_is_dropped(said):
    assert found(said) == []


@pytest.mark.parametrize(
    "said",
    [
        "Ich bin gegen Nüsse allergisch, vergiss das bitte nicht.",
        "Ich bin Legastheniker und schreibe es nicht auf.",
        "Soy alérgico a las nueces, no lo olvide.",
        "Je suis allergique aux noix, ne l'oublie pas.",
        "J'adore ma voiture mais je ne la garde pas.",
        "Sou alérgico a nozes, não se esqueça.",
        "Sono allergico alle noci, non dimenticarlo.",
    ],
)
def test_no_statement_is_taken_for_a_request_not_to_store_it(said):
    assert found(said) == [said]


@pytest.mark.parametrize(
    ("doubt", "kept"),
    [
        ("No sé si me gusta Roma.", "No sé si te lo dije, pero soy alérgico a las nueces."),
        ("No es verdad que odio el café.", "No odio a nadie, y me gusta el café."),
        ("Je ne sais pas si j'aime Rome.", "Je ne sais pas si tu le sais, mais j'aime Rome."),
        ("I don't know if I like Rome.", "I don't know if I like Rome, but I am allergic to nuts."),
        ("No sé si me gusta Roma.", "No sé si me gusta Roma, pero soy alérgico a las nueces."),
        ("Je ne sais pas si j'aime Rome.", "Je ne sais pas si j'aime Rome, mais j'ai un chien."),
        ("Não sei se gosto de Roma.", "Não sei se gosto de Roma, mas sou alérgico a nozes."),
        ("Non so se mi piace Roma.", "Non so se mi piace Roma, ma sono allergico alle noci."),
        ("Não sei se gosto de Roma.", "Não sei se te disse, mas sou alérgico a nozes."),
        ("Non so se mi piace Roma.", "Non so se lo sai, ma sono allergico alle noci."),
    ],
)
def test_a_statement_that_is_in_doubt_or_denied_is_left_out(doubt, kept):
    assert found(doubt) == []
    assert found(kept) == [kept]


@pytest.mark.parametrize(
    "said",
    [
        "Non mi danno fastidio i cani.",
        "Nunca gostei tanto de um livro.",
        "I never liked anything as much as sailing.",
        "I have never loved a city more.",
        "I love no-bake cookies.",
        "I love no one but my wife.",
    ],
)
def test_a_negation_of_a_dislike_or_a_comparison_is_no_dislike(said):
    assert "dislikes" not in [each.category for each in find_statements(said, CATEGORIES)]


@pytest.mark.parametrize("code", [code for code, each in LANGUAGES.items() if each.is_supported])
def test_every_table_has_all_its_parts(code):
    language = LANGUAGES[code]
    kinds = {"allergy", "dislike", "like", "biography", "work", "family"}
    assert kinds <= language.table["lasting"].keys()
    parts = ("asks", "opens", "forgets", "keeps", "supposes", "says", "hands_over", "first_person")
    assert all(language.table[part] for part in parts)
    assert language.search("lasting", language.plain_form("")) is None
    assert language.table.keys() <= LANGUAGES["en"].table.keys()


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("我喜欢猫", "Chinese"),
        ("私は猫が好きです", "Japanese"),
        ("私は猫を", "Japanese"),
        ("고양이를 좋아해요", "Korean"),
        ("Ik hou niet van koffie", "Dutch"),
        ("Nie lubię kawy i jestem weganinem", "Polish"),
        ("أحب القطط كثيرا", "Arabic or another language in its script"),
        ("მე თბილისში ვცხოვრობ", "Georgian"),
        ("Ես ապրում եմ Երևանում", "Armenian"),
        ("អ្នកណារស់នៅភ្នំពេញ", "Khmer, Lao, Burmese or Tibetan"),
        (normalize("NFD", "Jag är allergisk mot nötter och bor i Malmö"), "Swedish"),
        (normalize("NFD", "Mám alergii na ořechy a bydlím v Brně"), "Czech"),
    ],
)
def test_other_languages_are_recognised_and_keep_nothing(text, language):
    assert language_of(text) == ("", language)
    assert found(text) == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "🍕", "ok", "Pierre loves croissants in Paris", "I live in Oslo.", "int main()"),
        *("I love w2z6530z3.", "I hate k7w3w9", "I love j8cu3798n.", "Tom loves C++.", "C# for me"),
        *("I come from L'Aquila.", "I'm from Washington, D.C.", "I work in the studio upstairs."),
    ],
)
def test_english_and_what_cannot_be_told_stay_english(text):
    assert language_of(text) == ("en", "")


def test_an_unsupported_language_is_logged_once_and_counted(caplog):
    diary = Diary("memory:", agent="rules")
    alice = diary.user("alice")
    assert "unsupported_languages" not in diary.stats()  # the extractor has read nothing yet
    with caplog.at_level(logging.WARNING, "tomldiary"):
        for said in ("我喜欢猫", "我喜欢狗", "I like tea.", "Ik hou niet van koffie"):
            alice.add_turn(said, "ok", session_id="s")
    assert diary.stats()["unsupported_languages"] == {"Chinese": 2, "Dutch": 1}
    assert [record.getMessage().count("Chinese") for record in caplog.records] == [1, 0]
    assert "我" not in caplog.text
    assert [item.text for item in alice.preferences("likes").values()] == ["I like tea."]


def test_an_unsupported_language_is_named_on_stderr_without_logging():
    code = """
from tomldiary import Diary
alice = Diary("memory:", agent="rules").user("alice")
for said in ("我喜欢猫", "我喜欢狗"):
    alice.add_turn(said, "ok", session_id="s")
"""
    done = programs.run("-c", code, check=True)
    assert done.stderr.count("do not know this language: Chinese") == 1


def test_a_long_sentence_of_a_message_that_asks_nothing_is_kept():
    told = "Last weekend we repaired that old tractor of the village together."
    assert found(told) == [told]
    assert found("I fixed it.") == []
    assert found(f"{told} Can you find me a manual for it?") == []
    assert found("We repaired that old tractor which you had sold to the village.") == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Tenemos dos hijos.", "es"),
        ("Temos dois filhos.", "pt"),
        ("Abbiamo due figli.", "it"),
        ("Mi chiamo Lucia.", "it"),
        ("La sera leggo spesso gialli.", "it"),
        ("A me piace Roma.", "it"),
        ("Me mudé a Bogotá.", "es"),
        ("No me interesa C++.", "es"),
        ("Detesto azeitonas. Me chamo Eva.", "pt"),
        ("Trabalho como enfermeira à noite.", "pt"),
    ],
)
def test_a_phrase_about_oneself_tells_the_language_of_a_short_text(text, code):
    assert language_of(text) == (code, "")
    assert " ".join(found(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "Mein Freund sagte: „Ich bin allergisch gegen Nüsse“.",
        'Mi amigo dijo: "Soy alérgico a las nueces".',
        "Mon ami a dit : « Je suis allergique aux noix ».",
        'Il mio amico ha detto: "Sono allergico alle noci".',
        "Cliente: Moro em Lisboa.",
        "Por ejemplo: vivo en Madrid.",
    ],
)
def test_words_of_others_and_examples_are_left_out(text):
    assert found(text) == []
