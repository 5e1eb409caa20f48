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
from tomldiary.extraction.rules.sentences import (
    ENGLISH,
    FILE,
    LANGUAGES,
    MAX_CHARACTERS,
    Language,
    hands_over,
    is_request,
    is_small_talk,
    language_of,
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
_TELLING = 8
"""The minimum number of words of a statement."""
_LONG_MESSAGE = 40
"""The minimum number of words of a message that has statements besides a request."""
_OF_THE_ASSISTANT = re.compile(" (?:i|we|me|my|our|mine)(?= )")
_OF_THE_USER = re.compile(" (?:(?:do|did|would|can|could|will) )?you ")


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
    language = LANGUAGES[code]
    answers = _answers(user_msg, question) if language is ENGLISH else ()
    for sentence, kind in chain(answers, _lasting_sentences(language, user_msg)):
        if len(found) == MAX_STATEMENTS:
            break
        key = identity(sentence)
        if key not in found:
            found[key] = Statement(sentence, choose_category(kind, sentence, categories))
    return list(found.values())


def _answers(message: str, said: str) -> Iterator[tuple[str, str]]:
    """Yield the last question of the assistant with the user's short answer to it, and its kind."""
    questions = [text for text, mask in split_sentences(said, ENGLISH) if "?" in mask[-4:]]
    answer, mask = next(split_sentences(message, ENGLISH), ("", ""))
    plain = ENGLISH.plain_form(mask)
    if not questions or not answer or "?" in mask or len(plain.split()) > _LONGEST_ANSWER:
        return
    if ENGLISH.match("declines", plain) or is_request(ENGLISH, plain):
        return
    if ENGLISH.search("forgets", plain) or ENGLISH.search("lasting", plain):
        return  # a separate statement
    # In the first person: "do you have allergies" is matched as "i have allergies".
    about = _OF_THE_ASSISTANT.sub(" _", ENGLISH.plain_form(questions[-1]))
    asked = _OF_THE_USER.sub(" i ", about).replace(" your ", " my ")
    asked = asked.replace(" are i ", " i am ").replace(" were i ", " i was ")
    asked = asked.replace(" have i ", " i have ").replace(" i any ", " i ")
    if kind := ENGLISH.kind("lasting", asked):
        yield f"{questions[-1]} {answer}", kind


def _lasting_sentences(language: Language, message: str) -> Iterator[tuple[str, str]]:
    """Yield each sentence of lasting interest with the name of its kind."""
    sentences, asked = _own_sentences(language, message)
    knows_tasks = "tasks" in language.table
    is_told = knows_tasks and len(message.split()) >= _LONG_MESSAGE
    is_told = is_told and not any(language.search("tasks", plain) for _, plain, _ in sentences)
    for text, plain, alone in sentences:
        if not language.search("first_person", plain) or language.match("supposes", plain):
            continue
        if language.search("denies", plain):
            continue
        kind = language.kind("lasting", plain)
        if not kind and alone and not language.search("tasks", plain):
            if not asked or is_told:
                kind = language.kind("passing", plain)
            # Long enough for a statement, and not about the assistant.
            is_long = knows_tasks and not asked and plain.count(" ") > _TELLING
            if not kind and is_long and not language.search("you", plain):
                kind = "biography"
        if kind:
            yield text, kind


def _own_sentences(language: Language, message: str) -> tuple[list[tuple[str, str, bool]], bool]:
    """Return the sentences that are no request, and whether the message contains a request.

    Each sentence has its plain form, and whether it is complete or was cut from a question.
    """
    sentences: list[tuple[str, str, bool]] = []
    asked = False
    for text, mask in split_sentences(message, language):
        plain = language.plain_form(mask)
        if language.search("forgets", plain):
            if language.search("points_back", plain):
                sentences.clear()
            continue
        question = "?" in mask[-4:]
        request = is_request(language, plain, question=question)
        if hands_over(language, plain, mask, request=request):
            return sentences, True
        if request:
            asked = asked or not is_small_talk(language, plain, question=question)
            splice = language.search("splices", mask)
            plain = language.plain_form(mask[: splice.start()]) if splice else ""
            if splice and not is_request(language, plain):
                sentences.append((text[: splice.start()], plain, False))
        elif not (("__" in mask or ":" in mask) and language.search("says", plain)):
            sentences.append((text, plain, True))
    return sentences, asked


# The category of a statement: a guess, by counting shared words

_TOPICS = [
    (frozenset(names.split()), frozenset(words.split())) for names, words in FILE["topics"].items()
]
_OPPOSITES = {kind: frozenset(words.split()) for kind, words in FILE["opposites"].items()}
_EMPTY_WORDS = frozenset(FILE["empty"].split())
_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def choose_category(kind: str, sentence: str, categories: Mapping[str, str]) -> str:
    """Return the category whose name and description have most words in common with the kind and the sentence."""
    said = _stems(sentence)
    homes = FILE["homes"][kind].split()
    topics = [names for names, words in _TOPICS if words & said]
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
        (c for word in FILE["general"].split() for c in categories if word in _profile(c)),
        next(iter(categories)),
    )


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
