"""Identifies the language of a message, splits it into sentences, makes their plain form, and detects requests.

Code, quotations and addresses are blanked out, since they are not the user's own words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tomldiary.extraction.rules.phrases import (
    FIRST_PERSON,
    LANGUAGES,
    LAST_FORMS,
    LASTING,
    SHORT_FORMS,
    SO,
    WORD,
    Language,
    compile_phrases,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGLISH = "en"
MAX_CHARACTERS = 20_000  # of a message; the rest is ignored
MAX_SENTENCE = 600  # characters; anything longer is a pasted text, not a statement
_INTENSIFIERS = """really absolutely truly strongly totally deeply particularly especially actually honestly
    personally generally definitely simply just also still kinda very quite so pretty greatly intensely
    extremely currently now completely genuinely firmly thoroughly utterly fully both big huge strong deep
    intense severe serious real mild slight major lifelong certain profound great acute chronic extreme total
    much please even already recently finally"""
_FILLERS = frozenset(_INTENSIFIERS.split())
_CONTRACTIONS = {
    "an": "a",
    "im": "i am",
    "ive": "i have",
    "dont": "do not",
    "doesnt": "does not",
    "cant": "can not",
    "can't": "can not",
    "cannot": "can not",
    "won't": "will not",
    "gonna": "going to",
    "wanna": "want to",
}
_ENDINGS = {
    "n't": "not",
    "'m": "am",
    "'ve": "have",
    "'ll": "will",
    "'d": "would",
    "'re": "are",
    "'s": "is",
}
_LOOK = 20  # characters around a full stop
_INITIALS = "abcdefghjklmnopqrstuvwxyz"  # without "i", which ends sentences
_QUOTE_MARKS = str.maketrans("\u2018\u2019\u02bc\u201c\u201d\u201e\u00ab\u00bb", "'" * 3 + '"' * 5)
_HIDDEN = re.compile(  # each branch stops at the next mark of its own kind, so no scan is repeated
    r"`[^`\n]*`|(?<!\w)\"[^\"\n]*\"|(?<![\w'])'(?:[^'\n]|(?<=\w)'(?=\w))*+'(?!\w)|(?:https?://|www\.)\S+"
)
_LEVEL = "(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL)"
_LOG_LINE = re.compile(
    rf"\s*\[?(?:\d{{4}}-\d\d-\d\d[ T](?:\d\d:|\W?{_LEVEL})|\d\d:\d\d:\d\d|{_LEVEL})\b"
)
_LABEL = re.compile(r"\s*(?:[-*]\s+)?([^\W\d_][\w.]*(?: \w+)?)\s?:\s")
_ROLES = frozenset(
    """user customer client human assistant ai bot chatgpt agent student teacher patient doctor interviewer
    candidate speaker mom mum mother dad father wife husband friend boss kunde kundin nutzer assistent cliente
    usuario usuário utente asistente assistente""".split()  # noqa: SIM905 - one word a line would be a page
)
_OWN_LABELS = frozenset(["me", "i", "ich", "yo", "moi", "eu", "io"])
_SOFT_WRAP = re.compile(r"(?<![.!?:;\n])\n(?=[a-z])(?!(?:i|i'm|im|i've|my|we|our)\b)")
_BOUNDARY = re.compile(r"\n|(?<![.!?\u2026])[.!?\u2026]++[^\w\s]{0,8}+(?=\s|\Z)|\Z")
_BULLETS = re.compile(
    r"(?:[-\u2022\u2013\s]|\*(?=\s|[^*]*\Z))*"
)  # an asterisk may also begin emphasis
_PLAIN_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|\d+")


def split_sentences(message: str, language: Language | None = None) -> Iterator[tuple[str, str]]:
    """Yield each sentence as typed, and with code, quotations and addresses blanked out.

    Args:
        message: The text.
        language: The language of the text; None is English.
    """
    cut, message = len(message) > MAX_CHARACTERS, message[:MAX_CHARACTERS]
    mask = _mask(message)
    start = 0
    for boundary in _BOUNDARY.finditer(mask):
        end = boundary.end()
        if boundary.group() == "." and _is_within_sentence(mask, start, end, language):
            continue
        if cut and not boundary.group():
            return  # a truncated sentence is not verbatim
        text = _BULLETS.sub("", message[start:end], count=1)
        if 0 < len(text) <= MAX_SENTENCE:
            yield text.rstrip(), mask[end - len(text) : end].rstrip()
        start = end


def _mask(message: str) -> str:
    """Blank out text that is not the user's own; all offsets stay the same."""
    lines: list[str] = []
    fence = ""
    plain = message.translate(_QUOTE_MARKS).split("\n")
    speakers = _speakers(plain)
    for line in plain:
        mark = line.lstrip()[:3]
        hidden = bool(fence) or mark in {"```", "~~~"} or mark.startswith(">")
        hidden = hidden or _LOG_LINE.match(line) is not None or _label(line) in speakers
        if mark in {"```", "~~~"} and fence in {"", mark}:
            fence = "" if fence else mark
        lines.append("\n" * len(line) if hidden else line)
    text = _HIDDEN.sub(lambda hit: "_" * len(hit.group()), "\n".join(lines))
    return _SOFT_WRAP.sub(" ", text)


def _speakers(lines: list[str]) -> frozenset[str]:
    """Return the labels of lines in a pasted conversation: roles, and names of which one is repeated."""
    labels = [label for label in map(_label, lines) if label]
    is_dialogue = len(labels) > len(set(labels)) > 1
    others = set(labels) if is_dialogue else {each for each in labels if each in _ROLES}
    return frozenset(others - _OWN_LABELS)


def _label(line: str) -> str:
    """Return the text before the first colon of a line, in lower case; empty if there is none."""
    found = _LABEL.match(line)
    return found.group(1).lower() if found is not None else ""


def _is_within_sentence(mask: str, start: int, end: int, language: Language | None) -> bool:
    """Return whether the full stop before `end` belongs to a short form, an initial or an ordinal number."""
    before = mask[max(start, end - _LOOK) : end - 1]
    last = "".join(before.lower().split()[-1:])
    if last in SHORT_FORMS:
        return True
    ordinal = language.patterns.ordinal if language else None
    is_initial = len(last) == 1 and last in _INITIALS
    if not (last in LAST_FORMS or is_initial or (ordinal and ordinal.search(before))):
        return False
    # A common word with a capital begins a sentence: "at 6 a.m. I run", but "at 6 a.m. Eastern Time".
    following = WORD.search(mask[end : end + _LOOK])
    word = following.group() if following else ""
    common = language.words if language else _ENGLISH_WORDS
    return not (word.istitle() and word.lower() in common)


def plain_form(sentence: str) -> str:
    """Return the form for matching phrases: one space around each word; see `phrases`."""
    words: list[str] = [""]
    for match in _PLAIN_WORD.finditer(sentence.lower()):
        token = match.group()
        word = "#" if token.isdigit() else _CONTRACTIONS.get(token, token)
        if "'" in word:
            ending = next((ending for ending in _ENDINGS if word.endswith(ending)), "")
            word = f"{word.removesuffix(ending)} {_ENDINGS[ending]}" if ending else word
        if word not in _FILLERS:
            words.append(word)
    plain = " ".join([*words, ""])
    return plain.replace(" do not have a ", " have no ").replace(" do not have any ", " have no ")


# Requests

_TOLD = "(?:that|what|about|it|this|these|those|everything|all|any|anything|i|my|we|our|me|the|how|where|when)"
_KEEP = "(?:remember|store|save|keep|note|record|memori[sz]e|retain)"
_FORGETS = compile_phrases(
    f"""(?:forget|unlearn|erase|delete|scrap|disregard|never mind) (?:about )?{_TOLD}
    (?:remove|drop|wipe|clear) {_TOLD} ~(?:memory|diary|notes|profile|records?)
    (?:do not|never) (?:you )?{_KEEP} (?!to )
    stop (?:remembering|storing|saving|keeping|noting|recording)""",
    start=(
        f"{SO}(?:(?:please|kindly|now|sorry|no|wait|can|could|would|will|should|may|you|go|ahead"
        "|let us|to|and|i (?:want|need|ask|would like)) ){0,6}"
    ),
)
_FORGETS_TOO = compile_phrases(
    f"""(?:please|can you|could you|would you|will you|you can|you may|you should|and) forget {_TOLD}
    (?<! i )forget (?:about )?(?:that|it|this) $
    not (?:want|like) (?:you|this|that|it) (?:to be )?to {_KEEP}
    (?:you should|should|must|can) not (?:be )?(?:{_KEEP}|remembered|stored|saved|kept|noted|recorded)
    rather you (?:did |would |do )?not {_KEEP}"""
)
_POINTS_BACK = compile_phrases(
    r"""forget (?:about )?(?:all (?:of )?)?(?:that|it|this)(?: please| again| now)? $
    (?:forget|disregard|never mind|erase|delete|do not remember) ~i (?:have )?(?:said|told|wrote|mentioned)"""
)
_TAG = 6  # spaces in the plain form of a tag question ("isn't it great?")
_CHAT = compile_phrases("you|yours?|yourself")
_REMINDER = compile_phrases(
    "(?:remember|note|keep in mind|bear in mind|do not forget|fyi) (?:that )?(?=(?:i|my|we|our) )",
    start=SO,
)
_ASKS_TO_KEEP = compile_phrases(  # "Could you remember that I am vegan?"
    f"(?:can|could|will|would) you (?:{_KEEP}|keep in mind|bear in mind) that (?=(?:i|my|we|our) )",
    start=SO,
)
_OPENS_QUESTION = compile_phrases(
    """(?:what|how|why|where|when|which|who|whose)(?! (?:i|my|we|our|a) )
    (?:can|could|would|will|should|shall|do|does|did|is|are|was|were|am|have|has|may|might) <asked>
    any (?:ideas?|tips|advice|suggestions?|recommendations?)""".replace(
        "<asked>",
        "(?:i|you|we|it|there|this|that|these|those|the|my|he|she|they|any|anyone|someone)",
    ),
    start=SO,
)
_ASKS = compile_phrases(
    r"""you (?:would |might |could |can )?(?:recommend|suggest|advise)
    (?:any|some|your|few|for|need|have|want|appreciate) (?:\w+ )?(?:ideas?|tips|advice|suggestions?)
    (?:any|some|your|few|for|need|have|want|appreciate) (?:\w+ )?recommendations?
    help (?:me|with)|(?:tell|give|show|send|teach|guide|walk|remind) me|(?:can|could|would|will) you
    i (?:am|was) (?:looking (?:for|to)|wondering|curious|searching|asking|in (?:need|the market))
    i would like (?:you|a|some|to know)|i would love (?:a|some|it)
    i (?:want|need|would need|expect|ask|prefer|would prefer) (?:you|your)
    i (?:want|need|would like|would love) (?:a|some|help|the|more|new|it|this|that|#)
    i (?:want|need|would like|would love) to (?:know|see|get|have|find|make|create|write|use|buy|hear)
    i (?:want|need|would like|would love) to (?:understand|ask|build|order|book|reserve|schedule)
    your (?:answers?|responses?|repl(?:y|ies)|code|output|explanations?)|as a (?:ai|language model)"""
)
_ORDERS = compile_phrases(
    """translate|rewrite|reword|rephrase|paraphrase|proofread|correct|edit|fix|improve|shorten|summari[sz]e
    classify|analy[sz]e|extract|continue|complete|review|reply|respond|answer|write|convert|explain|identify
    list|make|create|generate|describe|draft|compose|provide|compare|find|help|plan|design|add|remove|change
    act|always|give|tell|show|calculate|solve|implement|build|recommend|suggest|advise""",
    start=SO,
)
_NUDGES = compile_phrases(  # also addressed to the assistant, but no task
    r"""use|never|do not|stop|let (?:us|is|me)|check|look|say|speak|talk|think|consider|run|try|keep|remember
    note|call (?!me )\w+|wait|go|come|take|have a""",
    start=SO,
)
_ROLE_PLAY = compile_phrases(  # the text that follows is not the user's own
    """act as|you are (?:a|the|now)|pretend|role ?play|imagine|i want you to act|ignore all|assume the role
    from now on|answer as|behave as|play the role""",
    start="(?:(?:can|could|would|will) you )?",
)
_HANDLES_TEXT = compile_phrases(
    """translate|rewrite|reword|rephrase|paraphrase|proofread|correct|edit|fix|improve|shorten|summari[sz]e
    classify|analy[sz]e|extract|continue|complete|review|reply|respond|answer|write|convert|grade|explain
    identify|following|below|text|sentence|paragraph|email|message|said|says|wrote|lyrics|quote|story|poem"""
)
_POINTS_BELOW = compile_phrases(
    "following|below|this (?:text|sentence|paragraph|email|message|story|letter)"
)


def is_request(plain: str, *, question: bool = False) -> bool:
    """Return whether a sentence is a question or an order; "remember that I ..." is neither.

    Args:
        plain: The plain form of the sentence.
        question: Whether it ends with a question mark.
    """
    if _ASKS_TO_KEEP.match(plain):
        return False
    if question or _REMINDER.match(plain):
        return question
    searched = _ASKS.search(plain)
    return bool(searched or any(p.match(plain) for p in (_OPENS_QUESTION, _ORDERS, _NUDGES)))


def asks_to_forget(plain: str) -> bool:
    """Return whether a sentence asks to forget something, or not to remember it."""
    return bool(_FORGETS.match(plain) or _FORGETS_TOO.search(plain))


def points_back(plain: str) -> bool:
    """Return whether a request to forget refers to an earlier sentence."""
    return bool(_POINTS_BACK.search(plain))


def is_small_talk(plain: str) -> bool:
    """Return whether a question is about the assistant ("and you?"), and no request for help."""
    if _ASKS.search(plain) or _ORDERS.match(plain):
        return False
    if _CHAT.search(plain) or _NUDGES.match(plain):
        return True
    return plain.count(" ") <= _TAG and not FIRST_PERSON.search(plain)


def hands_over(plain: str, mask: str, *, request: bool) -> bool:
    """Return whether a sentence is followed by a text to work on or a role to play, which is not about the user."""
    if _ROLE_PLAY.match(plain) or (request and _POINTS_BELOW.search(plain)):
        return True
    colon = mask.endswith(":") or (request and ":" in mask)
    return colon and bool(_HANDLES_TEXT.search(plain))


# Languages

_SURE = 2
"""The minimum number of common words to recognise a language that is not supported."""
_FEW = 12
"""The length in words up to which common words alone do not identify a language."""
_PHRASE_WORDS = 2
"""The number of common words that a first-person phrase counts as."""
_MOST = 200
"""The number of words that are read to identify the language."""
_SCRIPTS = (
    ("Japanese", re.compile("[\u3041-\u30ff]")),
    ("Chinese", re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")),
    ("Korean", re.compile("[\u1100-\u11ff\uac00-\ud7a3]")),
    ("Russian or another language in Cyrillic script", re.compile("[\u0400-\u04ff]")),
    ("Greek", re.compile("[\u0370-\u03ff]")),
    ("Arabic or another language in its script", re.compile("[\u0600-\u06ff]")),
    ("Hebrew", re.compile("[\u0590-\u05ff]")),
    ("Thai", re.compile("[\u0e00-\u0e7f]")),
    ("Hindi or another Indic language", re.compile("[\u0900-\u0dff]")),
)
_ENGLISH_WORDS = frozenset(
    """the and i is am are my to of it that you for with not have this but on we our be at can what how your
    would like if from they she he been just or a me do in was as an so will she don live love like hate
    am has had by his her when there than who which more no its were them many much never always every""".split()  # noqa: SIM905 - a table
)


def language_of(text: str) -> tuple[str, str]:
    """Return the code of a supported language and "", or "" and the name of one that is not supported.

    A text that identifies no language, for example names and code, counts as English.
    """
    if not text.isascii():
        letters = sum(map(str.isalpha, text))
        for name, script in _SCRIPTS:
            if 2 * len(script.findall(text)) > letters:
                return "", name
        if 2 * sum(len(script.findall(text)) for _, script in _SCRIPTS) > letters:
            return "", _SCRIPTS[0][0]
    words = WORD.findall(text.lower())[:_MOST]
    best, most = ENGLISH, sum(word in _ENGLISH_WORDS for word in words)
    is_unclear = len(words) <= _FEW and most < _SURE
    if is_unclear:
        most += _PHRASE_WORDS * (LASTING.search(plain_form(text)) is not None)
    for code, language in LANGUAGES.items():
        count = sum(word in language.words for word in words)
        if is_unclear and language.lasting:
            count += _PHRASE_WORDS * (
                language.patterns.lasting.search(language.plain_form(text)) is not None
            )
        if count > most and (language.lasting or count >= _SURE):
            best, most = code, count
    if best == ENGLISH or LANGUAGES[best].lasting:
        return best, ""
    return "", LANGUAGES[best].name
