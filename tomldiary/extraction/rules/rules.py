"""Find what users say about themselves, offline, by phrase tables alone.

This understands nothing. It looks for English first-person phrases such as "I am allergic to" or
"my favourite", and keeps the whole sentence exactly as the user typed it. It therefore

* misses everything in other languages, without an "I" or a "my", or phrased in a way that the
  tables do not list;
* never rewrites or combines sentences, and does not resolve "it", "she" or "there"; the one cut it
  makes is in front of a question ("I am vegan, what can I cook?");
* does not notice irony, later corrections or another person's words pasted without quotation marks;
* picks the category by counting shared words, which is a guess.

What it returns should be stored as unverified. It is what works without a network or a key, and
not a substitute for a model.

The work is linear in the text considered. The few patterns that see a whole message never scan a
stretch of it twice; phrases are only looked for in sentences of bounded length, and look at most a
few words ahead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from tomldiary.extraction.rules.phrases import (
    ALLERGY,
    FIRST_PERSON,
    LASTING,
    PASSING,
    SO,
    compile_phrases,
)
from tomldiary.extraction.rules.requests import (
    asks_to_forget,
    hands_over,
    is_request,
    is_small_talk,
    points_back,
)
from tomldiary.extraction.rules.sentences import (
    MAX_CHARACTERS,
    MAX_SENTENCE,
    plain_form,
    split_sentences,
)
from tomldiary.extraction.rules.topics import choose_category

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["MAX_CHARACTERS", "MAX_SENTENCE", "MAX_STATEMENTS", "Statement", "find_statements"]

MAX_STATEMENTS = 20  # of a turn
_LONGEST_ANSWER = 12  # words
_DECLINES = compile_phrases(
    r"""(?:no|nope|nah|none|not|never|nothing|neither|no idea|i do not know|i would rather not|pass|skip)
    i (?:do|am|have|did|would|can) not
    (?:thanks|thank you|hi|hello|hey|bye|good (?:morning|evening|night)|ok|okay|great|sure thing) $""",
    start=SO,
)
_OF_THE_USER = re.compile(" (?:(?:do|did|would|can|could|will) )?you ")
_HYPOTHETICAL = compile_phrases(
    "if|suppose|supposing|imagine|pretend|assume|assuming|what if|say|unless|whether", start=SO
)
_AT_HAND = compile_phrases(  # makes a passing remark part of the work in front of the assistant
    """errors?|code|bugs?|scripts?|function|files?|command|api|install(?:ed|ing)?|regex|query|compile|prompt
    output|dataframes?|docs|documentation|server|database|following|essay|assignment|homework|report|paper
    question|problem|spreadsheet|pdf|email|as if|if i (?:were|was|had)"""
)
_SPEAKS = compile_phrases("said|says|say|told|wrote|writes|asked|replied|goes|shouted|called")

_SPLICE = re.compile(
    r",\s(?:so\s|and\s|but\s)?(?=(?:can|could|would|will|what|which|how|where|do|does|is|are|should|any)\s)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One sentence of the user, verbatim, and the category it seems to belong to."""

    text: str
    category: str


def find_statements(
    user_msg: str, categories: Mapping[str, str], question: str = ""
) -> list[Statement]:
    """Return the user's own lasting first-person sentences, verbatim, in the order they were said.

    Of "I am vegan, what can I cook?" the part before the question is a sentence of its own.

    Args:
        user_msg: What the user typed. Only the first `MAX_CHARACTERS` characters are considered.
        categories: Category names and their descriptions, which may be empty. Without any there
            is nowhere to put a statement, so nothing is returned.
        question: What the assistant said before. If it ends with a question about the user, and the message
            begins with a short answer, the two are one statement: "Do you have allergies? Yes, peanuts."

    Returns:
        At most `MAX_STATEMENTS` statements, no sentence twice. Questions, requests, quotations,
        code and text handed over for translation or the like are left out.
    """
    found: dict[str, Statement] = {}
    if not categories:
        return []
    for sentence, kind in chain(_answers(user_msg, question), _lasting_sentences(user_msg)):
        if len(found) == MAX_STATEMENTS:
            break
        key = " ".join(sentence.casefold().split())
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
        return  # a statement of its own
    # As if the user had said it: "do you have allergies" is matched as "i have allergies".
    asked = _OF_THE_USER.sub(" i ", plain_form(questions[-1])).replace(" your ", " my ")
    asked = asked.replace(" are i ", " i am ").replace(" were i ", " i was ")
    asked = asked.replace(" have i ", " i have ").replace(" i any ", " i ")
    match = ALLERGY.search(asked) or LASTING.search(asked)
    if match is not None and match.lastgroup is not None:
        yield f"{questions[-1]} {answer}", match.lastgroup


def _lasting_sentences(message: str) -> Iterator[tuple[str, str]]:
    """Yield each sentence worth keeping with the name of its kind."""
    sentences, asked = _own_sentences(message)
    for text, plain, alone in sentences:
        if not FIRST_PERSON.search(plain) or _HYPOTHETICAL.match(plain):
            continue
        match = ALLERGY.search(plain) or LASTING.search(plain)
        if match is None and alone and not asked and not _AT_HAND.search(plain):
            match = PASSING.search(plain)
        if match is not None and match.lastgroup is not None:
            yield text, match.lastgroup


def _own_sentences(message: str) -> tuple[list[tuple[str, str, bool]], bool]:
    """The sentences that are no request, and whether the message asks for anything.

    Each comes with its plain form and whether it stands alone or was cut off a question.
    """
    sentences: list[tuple[str, str, bool]] = []
    asked = False
    for text, mask in split_sentences(message):
        plain = plain_form(mask)
        if asks_to_forget(plain):
            if points_back(plain):
                sentences.clear()
            continue
        request = "?" in mask[-4:] or is_request(plain)
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
