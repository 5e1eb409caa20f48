"""Finds statements of users about themselves, offline, with phrase tables.

This understands nothing. It looks for first-person phrases such as "I am allergic to" or "my favourite",
in English, German, Spanish, French, Portuguese and Italian, and keeps the whole sentence exactly as the
user typed it. In a message that asks for nothing it keeps longer first-person sentences too. It therefore

* misses everything in other languages (which it says), without an "I" or a "my", or phrased in a way that
  the tables do not list;
* never rewrites or combines sentences, and does not resolve "it", "she" or "there"; the one cut it
  makes is in front of a question ("I am vegan, what can I cook?");
* does not notice irony, later corrections or another person's words pasted without quotation marks;
* picks the category by counting shared words, which is a guess.

Its results should be stored as unverified. It works without a network or a key, and does not replace a model.

The time is linear in the length of the text. The few patterns for a whole message scan no part of it twice. Phrases
are searched only in sentences of bounded length, with a lookahead of a few words.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from tomldiary.errors import InvalidValue, LimitReached
from tomldiary.extraction.rules.phrases import (
    ALLERGY,
    FIRST_PERSON,
    HOMES,
    LANGUAGES,
    LASTING,
    PASSING,
    SO,
    Language,
    compile_phrases,
)
from tomldiary.extraction.rules.sentences import (
    ENGLISH,
    MAX_CHARACTERS,
    asks_to_forget,
    hands_over,
    is_request,
    is_small_talk,
    language_of,
    plain_form,
    points_back,
    split_sentences,
)
from tomldiary.logging import get_logger
from tomldiary.text.similarity import identity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tomldiary.extraction.draft import MemoryDeps

_logger = get_logger(__name__)
MAX_STATEMENTS = 20  # of a turn
_LONGEST_ANSWER = 12  # words
_DECLINES = compile_phrases(
    r"""(?:no|nope|nah|none|not|never|nothing|neither|no idea|i do not know|i would rather not|pass|skip)
    i (?:do|am|have|did|would|can) not
    (?:thanks|thank you|hi|hello|hey|bye|good (?:morning|evening|night))(?: (?!yes|yeah|yep)\w+)? $
    (?:ok|okay|great|sure thing) $""",
    start=SO,
)
_TELLING = 8
"""The minimum number of words of a statement."""
_LONG_MESSAGE = 40
"""The minimum number of words of a message that has statements besides a request."""
_YOU = compile_phrases("you|yours?|yourself")
_OF_THE_ASSISTANT = re.compile(" (?:i|we|me|my|our|mine)(?= )")
_OF_THE_USER = re.compile(" (?:(?:do|did|would|can|could|will) )?you ")
_HYPOTHETICAL = compile_phrases(
    """if|suppose|supposing|imagine|pretend|assume|assuming|what if|say|unless|whether|hypothetically
    theoretically|in theory|for example|for instance|i wish (?:i|we)|as the ~(?:saying|song|proverb)
    in (?:the|a|this|that|my) (?:\\w+ )?(?:novel|story|book|film|movie|song|poem|play|game|dream|show|episode)
    (?:oh sure|oh great|oh yeah|yeah right|yeah sure|oh joy)""",
    start=SO,
)
_DENIED = compile_phrases(  # or said by another one than the user
    """(?:novel|story|book|film|movie|song|poem|play|game|dream) (?:where|in which|about how) i
    it is not true|(?:am|was) not saying|never said|(?:nobody|no one) (?:said|says|thinks)
    (?:which|that|it) (?:is|was) (?:wrong|false|not true|incorrect|a lie|a mistake)
    (?:hero|character|protagonist|narrator|singer|author|lyrics|song|book|poem|ai|assistant|bot|you) ~(?:said|says|told|wrote|claims?|claimed) ~i"""
)
_AT_HAND = compile_phrases(  # makes a passing remark part of the assistant's task
    """errors?|code|bugs?|scripts?|function|files?|command|api|install(?:ed|ing)?|regex|query|compile|prompt
    output|dataframes?|docs|documentation|server|database|following|essay|assignment|homework|report|paper
    question|problem|spreadsheet|pdf|email|as if|if i (?:were|was|had)"""
)
_SPEAKS = compile_phrases("said|says|say|told|wrote|writes|asked|replied|goes|shouted|called")
_SPEAKS_ELSEWHERE = compile_phrases(  # in the other languages
    "sagte|sagt|meinte|meint|schrieb|schreibt|fragte|dijo|dice|escribió|preguntó|dit|écrit|demandé|disse|diz|escreveu|detto|scritto|chiesto"
)
_EXAMPLE = compile_phrases("zum beispiel|por ejemplo|par exemple|por exemplo|per esempio", start="")
_SPLICE = re.compile(
    r"(?:[,;]\s|\s(?:--?|[\u2013\u2014])\s)(?:so\s|and\s|but\s)?(?=(?:can|could|would|will|what|which|how|where|do|does|is|are|should|any)\s)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One sentence of the user, verbatim, with its probable category."""

    text: str
    category: str


def find_statements(
    user_msg: str, categories: Mapping[str, str], question: str = "", code: str = ""
) -> list[Statement]:
    """Return the user's first-person sentences of lasting interest, verbatim, in order.

    In "I am vegan, what can I cook?", the part before the question is a separate sentence.

    Args:
        user_msg: The user's text. Only the first `MAX_CHARACTERS` characters are read.
        categories: Category names and their descriptions, which may be empty. Without categories, nothing is
            returned.
        question: The assistant's text before. If it ends with a question about the user, and the message begins with
            a short answer, the two are one statement: "Do you have allergies? Yes, peanuts."
        code: The language code of `language_of`, if it is known.

    Returns:
        At most `MAX_STATEMENTS` statements, no sentence twice. Questions, requests, quotations,
        code and texts to work on, for example to translate, are left out.
    """
    found: dict[str, Statement] = {}
    code = code or language_of(user_msg[:MAX_CHARACTERS])[0]
    if not categories or not code:
        return []
    sentences = (
        chain(_answers(user_msg, question), _lasting_sentences(user_msg))
        if code == ENGLISH
        else _sentences_in(LANGUAGES[code], user_msg)
    )
    for sentence, kind in sentences:
        if len(found) == MAX_STATEMENTS:
            break
        key = identity(sentence)
        if key not in found:
            found[key] = Statement(sentence, choose_category(kind, sentence, categories))
    return list(found.values())


def _answers(message: str, said: str) -> Iterator[tuple[str, str]]:
    """Yield the last question of the assistant with the user's short answer to it, and its kind."""
    questions = [text for text, mask in split_sentences(said) if "?" in mask[-4:]]
    answer, mask = next(split_sentences(message), ("", ""))
    plain = plain_form(mask)
    if not questions or not answer or "?" in mask or len(plain.split()) > _LONGEST_ANSWER:
        return
    if _DECLINES.match(plain) or is_request(plain) or asks_to_forget(plain):
        return
    if LASTING.search(plain):
        return  # a separate statement
    # In the first person: "do you have allergies" is matched as "i have allergies".
    about = _OF_THE_ASSISTANT.sub(" _", plain_form(questions[-1]))
    asked = _OF_THE_USER.sub(" i ", about).replace(" your ", " my ")
    asked = asked.replace(" are i ", " i am ").replace(" were i ", " i was ")
    asked = asked.replace(" have i ", " i have ").replace(" i any ", " i ")
    match = ALLERGY.search(asked) or LASTING.search(asked)
    if match is not None and match.lastgroup is not None:
        yield f"{questions[-1]} {answer}", match.lastgroup


def _lasting_sentences(message: str) -> Iterator[tuple[str, str]]:
    """Yield each sentence of lasting interest with the name of its kind."""
    sentences, asked = _own_sentences(message)
    is_told = len(message.split()) >= _LONG_MESSAGE
    is_personal = not any(_AT_HAND.search(plain) for _, plain, _ in sentences)
    for text, plain, alone in sentences:
        if not FIRST_PERSON.search(plain) or _HYPOTHETICAL.match(plain) or _DENIED.search(plain):
            continue
        match = ALLERGY.search(plain) or LASTING.search(plain)
        if match is None and alone and not _AT_HAND.search(plain):
            if not asked or (is_told and is_personal):
                match = PASSING.search(plain)
            # Long enough for a statement, and not about the assistant.
            is_long = not asked and plain.count(" ") > _TELLING
            if match is None and is_long and not _YOU.search(plain):
                yield text, "biography"
                continue
        if match is not None and match.lastgroup is not None:
            yield text, match.lastgroup


def _sentences_in(language: Language, message: str) -> Iterator[tuple[str, str]]:
    """Yield each sentence of lasting interest in a message of another language, with the name of its kind."""
    said = language.patterns
    kept: list[tuple[str, str, bool]] = []
    asked = False
    for text, mask in split_sentences(message, language):
        plain = language.plain_form(mask)
        if said.forgets.search(plain):
            continue
        is_request = not said.keeps.match(plain) and (
            "?" in mask[-4:] or bool(said.asks.search(plain) or said.opens.match(plain))
        )
        if ":" in mask and said.hands_over.search(plain):
            return  # a text to work on follows
        if is_request:
            asked = True
            splice = said.splice.search(mask)
            text = text[: splice.start()] if splice else ""  # noqa: PLW2901 - the part before the question
            plain = language.plain_form(text)
            if not text or said.asks.search(plain) or said.opens.match(plain):
                continue
        if _EXAMPLE.match(plain) or (
            ("__" in mask or ":" in mask) and _SPEAKS_ELSEWHERE.search(plain)
        ):
            continue
        if said.first_person.search(plain) and not said.supposes.match(plain):
            kept.append((text, plain, not is_request))
    for text, plain, alone in kept:
        match = said.allergy.search(plain) or said.lasting.search(plain)
        if match is None and alone and not asked:
            match = said.passing.search(plain)
        if match is not None and match.lastgroup is not None:
            yield text, match.lastgroup


def _own_sentences(message: str) -> tuple[list[tuple[str, str, bool]], bool]:
    """Return the sentences that are no request, and whether the message contains a request.

    Each sentence has its plain form, and whether it is complete or was cut from a question.
    """
    sentences: list[tuple[str, str, bool]] = []
    asked = False
    for text, mask in split_sentences(message):
        plain = plain_form(mask)
        if asks_to_forget(plain):
            if points_back(plain):
                sentences.clear()
            continue
        request = is_request(plain, question="?" in mask[-4:])
        if hands_over(plain, mask, request=request):
            return sentences, True
        if request:
            asked = asked or not is_small_talk(plain)
            splice = _SPLICE.search(mask)
            plain = plain_form(mask[: splice.start()]) if splice else ""
            if splice and not is_request(plain):
                sentences.append((text[: splice.start()], plain, False))
        elif not (("__" in mask or ":" in mask) and _SPEAKS.search(plain)):
            sentences.append((text, plain, True))
    return sentences, asked


# The category of a statement: a guess, by counting shared words

# Words for the topic of a sentence: those before the colon occur in the names of
# categories, those after it in sentences. All are compared without a plural "s".
_TOPICS = """
dietary diet food nutrition eating cuisine meal cooking drink: vegan vegetarian pescatarian kosher halal
    gluten dairy lactose food eat eating drink meat fish seafood nut peanut cheese spicy coffee tea wine meal
    breakfast lunch dinner restaurant dish recipe cook sugar bread vegetable fruit chocolate carb pizza diet
medical health condition medication wellness allergy: allergic allergy asthma diabetes diabetic medication
    migraine doctor diagnosed surgery injury pain pregnant celiac epilepsy insulin intolerant disability
family relationship people relation: wife husband spouse partner mother mom mum father dad brother sister
    son daughter kid child parent girlfriend boyfriend friend cousin aunt uncle married engaged divorced
work job career profession occupation employment: work job office boss manager company client colleague
    career nurse teacher engineer developer lawyer designer freelance business team promoted accountant
travel trip destination transport vehicle: travel trip flight fly hotel airport vacation hostel cruise
    train abroad car drive airline
interest hobby entertainment leisure activity media: movie film book novel read music song game guitar piano
    painting photography hiking chess concert museum play series tv dance garden camping knitting pottery
fitness sport exercise training wellness: gym run running jog yoga workout exercise marathon swim cycling
    bike football tennis hike
finance money budget shopping: budget money save saving debt invest cheap price salary
pet animal: dog cat puppy kitten pet horse rabbit parrot hamster
education learning study skill school: study learn learning course school university college degree exam
technology tech tool software device setup: python laptop linux windows mac editor computer phone software
style fashion clothing beauty appearance: wear clothes shoes dress makeup skin hair fabric
home location residence place: live house apartment flat city moved hometown born
"""
_GENERAL = """general biography bio about profile personal background identity fact info information other
    misc miscellaneous note anything everything else memory preference user"""
_UNPLEASANT = "dislike hate aversion avoid allergy peeve"
_PLEASANT = "like love favorite favourite loved liked"
_OPPOSITES = {
    "like": frozenset(_UNPLEASANT.split()),
    "dislike": frozenset(_PLEASANT.split()),
    "allergy": frozenset(_PLEASANT.split()),
}
_EMPTY = """the and for with that this thing user person people they their them what which from about has
    have are who does other any all like want use not general item my i me a an of in on to is or"""
_EMPTY_WORDS = frozenset(_EMPTY.split())
_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def choose_category(kind: str, sentence: str, categories: Mapping[str, str]) -> str:
    """Return the category whose name and description have most words in common with the kind and the sentence."""
    said = _stems(sentence)
    homes = HOMES[kind]
    topics = [names for names, words in _topics() if words & said]
    best, best_score = "", 0
    for category, description in categories.items():
        name, about = _profile(category), _profile(description) - _EMPTY_WORDS
        if name & _OPPOSITES.get(kind, frozenset()):
            continue
        score = max((12 - rank for rank, home in enumerate(homes) if home in name), default=0)
        score += 6 * any(names & name for names in topics) + 5 * bool(name & said - _EMPTY_WORDS)
        score += 3 * any(home in about for home in homes[:3])
        score += 3 * any(names & about for names in topics) + 3 * min(2, len(about & said))
        if score > best_score:
            best, best_score = category, score
    if best:
        return best
    return next(
        (c for word in _GENERAL.split() for c in categories if word in _profile(c)),
        next(iter(categories)),
    )


@lru_cache(maxsize=1)
def _topics() -> list[tuple[frozenset[str], frozenset[str]]]:
    rows = (row.split(":") for row in re.split(r"\n(?! )", _TOPICS.strip()))
    return [(frozenset(names.split()), frozenset(words.split())) for names, words in rows]


@lru_cache(maxsize=256)
def _profile(text: str) -> frozenset[str]:
    return _stems(text)  # kept for schema texts only: nothing a user said stays in memory


def _stems(text: str) -> frozenset[str]:
    words = (part.lower() for part in _NAME_PART.findall(text))
    return frozenset(
        f"{word[:-3]}y" if word.endswith("ies") else re.sub(r"(?<=[^s])s\Z", "", word)
        for word in words
    )


class RulesExtractor:
    """Stores the user's own first-person sentences, word for word, marked as not verified.

    It understands nothing, and does not replace a model. It does not rewrite, merge or correct sentences, resolve "it"
    or "there", or write summaries. It supports six languages, and chooses a category by the words of a sentence. In
    English, a short answer is stored together with the assistant's question. A statement that the user asks to forget is not
    stored; it is not removed either, since the entry cannot be identified. Each entry has its source:
    `_verified = false`, `_source = "session#turn"`.
    """

    def __init__(self) -> None:
        self._unsupported: Counter[str] = Counter()

    def __repr__(self) -> str:
        return "RulesExtractor()"

    def stats(self) -> dict[str, Any]:
        """Return the number of turns by language that is not supported: `{"Japanese": 3}`."""
        return {"unsupported_languages": dict(self._unsupported)}

    def _note(self, language: str) -> None:
        self._unsupported[language] += 1
        if self._unsupported[language] == 1:
            _logger.warning(
                "the rules do not know this language: %s. Nothing is stored of such turns. Give Diary a model as"
                " `agent`; Diary.stats() counts them.",
                language,
            )

    def run(self, message: str, /, *, deps: MemoryDeps) -> int:  # noqa: ARG002 - the draft holds the turn
        """Add the turn's statements to the draft, and return the number of new or confirmed ones."""
        session = deps.conversations.find(deps.session_id) or {}
        origin = {"_verified": False, "_source": f"{deps.session_id}#{session.get('_turns', 0)}"}
        categories = {name: deps.descriptions.get(name, "") for name in deps.allowed_cats}
        code, unsupported = language_of(deps.user_msg[:MAX_CHARACTERS])
        if unsupported:
            self._note(unsupported)
            return 0
        stored = 0
        question = deps.earlier[-1][1] if deps.earlier else ""
        for statement in find_statements(deps.user_msg, categories, question, code):
            if deps.tool_writes.was_removed(statement.text):
                continue
            try:
                deps.upsert(statement.category, None, statement.text, (), fields=origin)
            except (LimitReached, InvalidValue) as error:
                _logger.warning("a statement was not stored: %s", type(error).__name__)
                # The current state may have space for it; if not, the result of the turn has the reason.
                deps.leave(statement.category, statement.text, origin)
                continue
            stored += 1
        return stored
