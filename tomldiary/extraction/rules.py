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

import pkgutil
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from tomldiary.errors import InvalidValue, LimitReached
from tomldiary.logging import get_logger, tell
from tomldiary.text.similarity import identity
from tomldiary.text.visible import composed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tomldiary.extraction.draft import MemoryDeps

_logger = get_logger(__name__)
MAX_STATEMENTS = 20  # of a turn
_LONGEST_ANSWER = 12  # words
_TELLING = 8
"""The minimum number of words of a statement."""
_SPEAKER = 3
"""The number of words before "said" that name who said it, such as "and my doctor"."""
_LONG_MESSAGE = 40
"""The minimum number of words of a message that has statements besides a request."""
_OF_THE_ASSISTANT = re.compile(" (?:i|we|me|my|our|mine)(?= )")
_OF_THE_USER = re.compile(" (?:(?:do|did|would|can|could|will) )?you ")

# The languages of phrases.toml

_FILE: dict[str, Any] = tomllib.loads((pkgutil.get_data(__name__, "phrases.toml") or b"").decode())
_WORD = re.compile(r"[^\W\d_]+|\d+")
_WHOLE_WORD = re.compile(r"(?<!\w)[^\W\d_]+(?![\w+#])")  # no part of "w2z6" or "C++"
_NEVER = re.compile(r"(?!)")
_AFTER = "(?:(?:OPENING) )?"
_PLAIN = "(?:PHRASES)(?: |(?<= ))"
_IN_TEXT = {
    "ordinals": r"(?i:\b(?:PHRASES) \d\d?\Z)",
    "takes_back": r"(?i:[,;]\s*(?:(?:but|so|and)\s)?(?:PHRASES)[\s.!]*\Z)",
    "splices": rf"(?i:(?:[,;]\s*|\s(?:--?|[\u2013\u2014])\s){_AFTER}(?=(?:PHRASES)\s))|\s*¿",
}
MAX_CHARACTERS = 20_000  # of a message; the rest is ignored
MAX_SENTENCE = 600  # characters; anything longer is a pasted text, not a statement
_LOOK = 20  # characters around a full stop
_INITIALS = re.compile(r"(?:\w\.)+[a-z]|(?!i)[a-z]")  # "d.c", "d"; "i" ends sentences
_QUOTE_MARKS = str.maketrans("\u2018\u2019\u02bc\u201c\u201d\u201e\u00ab\u00bb", "'" * 3 + '"' * 5)
_HIDDEN = re.compile(  # each branch stops at the next mark of its own kind, so no scan is repeated
    r"`[^`\n]*`|(?<!\w)\"[^\"\n]*\"|(?<![\w'])'(?:[^'\n]|(?<=\w)'(?=\w))*+'(?!\w)|(?:https?://|www\.)\S+"
)
_LEVEL = "(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL)"
_LOG_LINE = re.compile(
    rf"\s*\[?(?:\d{{4}}-\d\d-\d\d[ T](?:\d\d:|\W?{_LEVEL})|\d\d:\d\d:\d\d|{_LEVEL})\b"
)
_LABEL = re.compile(r"\s*(?:[-*]\s+)?([^\W\d_][\w.]*(?: \w+)?)\s?:\s")
_ROLES, _OWN_LABELS = (frozenset(_FILE[key].split()) for key in ("roles", "own_labels"))
_SHORT_FORMS, _LAST_FORMS, _LIST_ENDS = (
    frozenset(_FILE[key].split()) for key in ("short_forms", "last_forms", "list_ends")
)
_SOFT_WRAP = re.compile(r"(?<![.!?:;\n])\n(?=[a-z])(?!(?:i|i'm|im|i've|my|we|our)\b)")
_BOUNDARY = re.compile(  # no full stop before a comma, as in "etc.,"
    r"\n|(?<![.!?\u2026])(?!\.[\"')]?[,;])[.!?\u2026]++[^\w\s]{0,8}+(?=\s|\Z)|\Z"
)
_BULLETS = re.compile(
    r"(?:[-\u2022\u2013\s]|\*(?=\s|[^*]*\Z))*"
)  # an asterisk may also begin emphasis


class Language:
    """One language; `phrases.toml` describes the parts of its table."""

    def __init__(self, code: str, table: Mapping[str, Any]) -> None:
        self.code = code
        self.name: str = table["name"]
        self.table = {"splices": table.get("opens", ""), **table}
        self.is_supported = "lasting" in table
        self.words = frozenset(table["common"].split())
        self._fillers = frozenset(table.get("fillers", "").split())
        self._expansions = [
            (re.compile(f" (?:{words})(?= )"), f" {expanded}")
            for words, expanded in table.get("expansions", {}).items()
        ]

    def plain_form(self, sentence: str) -> str:
        """Return the form for matching phrases: one space around each word, accents composed."""
        plain = composed(sentence).lower()
        words = ("#" if word.isdigit() else word for word in _WORD.findall(plain))
        plain = " ".join(["", *(word for word in words if word not in self._fillers), ""])
        for words, expanded in self._expansions:
            plain = words.sub(expanded, plain)
        return plain

    def search(self, part: str, text: str) -> re.Match[str] | None:
        """Find a phrase of this part of the table: the leftmost, then in table order."""
        return _pattern(self.code, part).search(text)

    def match(self, part: str, plain: str) -> re.Match[str] | None:
        """Find a phrase at the beginning, also after a word of `opening`."""
        return _pattern(self.code, part, f" {_AFTER}{_PLAIN}").match(plain)

    def kind(self, part: str, plain: str) -> str:
        """Return the kind of statement of a phrase in `lasting` or `passing`; empty if there is none."""
        found = self.search("allergy", plain) or self.search(part, plain)
        return (found and found.lastgroup) or ""


LANGUAGES = {code: Language(code, table) for code, table in _FILE["languages"].items()}
ENGLISH = LANGUAGES["en"]


@cache
def _pattern(code: str, part: str, frame: str = f" {_PLAIN}") -> re.Pattern[str]:
    """Compile a part of a table, when a message first needs it."""
    table = LANGUAGES[code].table
    phrases = table["lasting"]["allergy"] if part == "allergy" else table.get(part, "")
    kinds: Mapping[str, str] = {part: phrases} if isinstance(phrases, str) else phrases
    source = "|".join(f"(?P<{kind}>{_either(text)})" for kind, text in kinds.items() if text)
    if not source:
        return _NEVER
    source = _IN_TEXT.get(part, frame).replace("PHRASES", source)
    source = source.replace("OPENING", table["opening"])
    while names := set(re.findall(r"(?<!\?P)<(\w+)>", source)):
        for name in names:
            words = f"(?:{_either(_FILE['words'][name])})"
            source = re.sub(rf"(?<!\?P)<{name}>", words.replace("\\", r"\\"), source)
    return re.compile(source.replace("~", r"(?:\S+ ){0,4}?"))


def _either(lines: str) -> str:
    return "|".join(line.strip() for line in lines.split("\n"))


# Sentences


def _split_sentences(message: str, language: Language) -> Iterator[tuple[str, str]]:
    """Yield each sentence as typed, and with code, quotations and addresses blanked out.

    Args:
        message: The text.
        language: The language of the text.
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


def _is_within_sentence(mask: str, start: int, end: int, language: Language) -> bool:
    """Return whether the full stop before `end` belongs to a short form, an initial or an ordinal number."""
    before = mask[max(start, end - _LOOK) : end - 1]
    last = "".join(before.lower().split()[-1:])
    if last in _SHORT_FORMS:
        return True
    is_initial = _INITIALS.fullmatch(last) is not None
    if not (last in _LAST_FORMS or is_initial or language.search("ordinals", before)):
        return False
    # A common word with a capital, or for the user, begins a sentence: "at 6 a.m. i run", but "at 6 a.m. Eastern Time".
    following = _WORD.search(mask[end : end + _LOOK])
    word = following.group() if following else ""
    if word.istitle() and last in _LIST_ENDS:
        return False
    begins = word.istitle() or language.search("first_person", f" {word} ")
    return not (begins and word.lower() in language.words)


# Requests

_TAG = 6  # spaces in the plain form of a tag question ("isn't it great?")


def _is_request(language: Language, plain: str, *, question: bool = False) -> bool:
    """Return whether a sentence is a question or an order; "remember that I ..." is neither.

    Args:
        language: The language of the sentence.
        plain: The plain form of the sentence.
        question: Whether it ends with a question mark.
    """
    if language.match("keeps", plain):
        return False
    if question or language.match("reminds", plain):
        return question
    return bool(language.search("asks", plain) or language.match("opens", plain))


def _asks_to_forget(language: Language, plain: str, mask: str) -> bool:
    """Return whether a sentence, or its end behind a comma, asks to forget or not to store something."""
    return bool(language.search("forgets", plain) or language.search("takes_back", mask))


def _is_taken_back(language: Language, plain: str) -> bool:
    """Return whether a sentence asks to forget, or not to store, what was said before it."""
    return bool(language.search("forgets", plain) and language.search("points_back", plain))


def _is_small_talk(language: Language, plain: str, *, question: bool) -> bool:
    """Return whether a question is about the assistant ("and you?"), and no request for help."""
    if language.search("asks", plain) or language.match("orders", plain):
        return False
    if language.search("you", plain) or language.match("nudges", plain):
        return True
    return question and plain.count(" ") <= _TAG and not language.search("first_person", plain)


def _hands_over(language: Language, plain: str, mask: str, *, request: bool) -> bool:
    """Return whether a sentence is followed by a text to work on or a role to play, which is not about the user."""
    if language.match("role_play", plain) or (request and language.search("points_below", plain)):
        return True
    is_announced = request or "points_below" not in language.table
    colon = mask.endswith(":") or (is_announced and ":" in mask)
    return colon and language.search("hands_over", plain) is not None


# Languages

_SURE = 2
"""The minimum number of common words to recognise a language that is not supported."""
_FEW = 12
"""The length in words up to which common words alone do not identify a language."""
_PHRASE_WORDS = 2
"""The number of common words that a first-person phrase counts as."""
_MOST = 200
"""The number of words that are read to identify the language."""
_SCRIPTS = [(name, re.compile(f"[{letters}]")) for name, letters in _FILE["scripts"].items()]


def language_of(text: str) -> tuple[str, str]:
    """Return the code of a supported language and "", or "" and the name of one that is not supported.

    A text that identifies no language, for example names and code, counts as English.
    """
    if not text.isascii():
        text = composed(text)
        letters = sum(map(str.isalpha, text))
        for name, script in _SCRIPTS:
            if 2 * len(script.findall(text)) > letters:
                return "", name
        if 2 * sum(len(script.findall(text)) for _, script in _SCRIPTS) > letters:
            return "", _SCRIPTS[0][0]
    words = _WHOLE_WORD.findall(text.lower())[:_MOST]
    best, most = ENGLISH, 0
    is_unclear = 0 < len(words) <= _FEW
    for language in LANGUAGES.values():
        count = sum(word in language.words for word in words)
        if is_unclear and language.is_supported:
            phrases = _pattern(language.code, "lasting").finditer(language.plain_form(text))
            count += _PHRASE_WORDS * len(list(phrases))
        if count > most and (language.is_supported or count >= _SURE):
            best, most = language, count
    return (best.code, "") if best.is_supported else ("", best.name)


# Statements


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
    questions = [text for text, mask in _split_sentences(said, ENGLISH) if "?" in mask[-4:]]
    answer, mask = next(_split_sentences(message, ENGLISH), ("", ""))
    plain = ENGLISH.plain_form(mask)
    if not questions or not answer or "?" in mask or len(plain.split()) > _LONGEST_ANSWER:
        return
    if ENGLISH.match("declines", plain) or _is_request(ENGLISH, plain):
        return
    if _asks_to_forget(ENGLISH, plain, mask) or ENGLISH.search("lasting", plain):
        return  # a separate statement
    sentences = (ENGLISH.plain_form(mask) for _, mask in _split_sentences(message, ENGLISH))
    if any(_is_taken_back(ENGLISH, each) for each in sentences):
        return
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

    Each sentence has its plain form, and whether this is complete or was cut before a question or a quotation.
    """
    sentences: list[tuple[str, str, bool]] = []
    asked = False
    for text, mask in _split_sentences(message, language):
        plain = language.plain_form(mask)
        if _asks_to_forget(language, plain, mask):
            if _is_taken_back(language, plain):
                sentences.clear()
            continue
        question = "?" in mask[-4:]
        request = _is_request(language, plain, question=question)
        if _hands_over(language, plain, mask, request=request):
            return sentences, True
        if request:
            asked = asked or not _is_small_talk(language, plain, question=question)
            splice = language.search("splices", mask)
            plain = language.plain_form(mask[: splice.start()]) if splice else ""
            if splice and not _is_request(language, plain):
                sentences.append((text[: splice.start()], plain, False))
        else:
            says = language.search("says", plain) if "__" in mask or ":" in mask else None
            if says is None:
                sentences.append((text, plain, True))
                continue
            # A statement before a quotation is the user's own: I am vegan, and my aunt says "why?".
            own = plain[: says.start()].split()[:-_SPEAKER]
            if not (language.search("denies", plain) or language.match("supposes", plain)):
                sentences.append((text, " ".join(["", *own, ""]), False))
    return sentences, asked


# The category of a statement: a guess, by counting shared words

_TOPICS = [
    (frozenset(names.split()), frozenset(words.split())) for names, words in _FILE["topics"].items()
]
_OPPOSITES = {kind: frozenset(words.split()) for kind, words in _FILE["opposites"].items()}
_EMPTY_WORDS = frozenset(_FILE["empty"].split())
_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def choose_category(kind: str, sentence: str, categories: Mapping[str, str]) -> str:
    """Return the category whose name and description have most words in common with the kind and the sentence."""
    said = _stems(sentence)
    homes = _FILE["homes"][kind].split()
    topics = [names for names, words in _TOPICS if words & said]
    best, best_score = "", 0
    for category, description in categories.items():
        name, about = _profile(category), _profile(description) - _EMPTY_WORDS
        if name & _OPPOSITES.get(kind, frozenset()):
            continue
        score = max((13 - rank for rank, home in enumerate(homes) if home in name), default=0)
        score += 6 * any(names & name for names in topics) + 5 * bool(name & said - _EMPTY_WORDS)
        score += 3 * any(home in about for home in homes[:3])
        score += 3 * any(names & about for names in topics) + 3 * min(2, len(about & said))
        if score > best_score:
            best, best_score = category, score
    if best:
        return best
    return next(
        (c for word in _FILE["general"].split() for c in categories if word in _profile(c)),
        next(iter(categories)),
    )


def _stems(text: str) -> frozenset[str]:
    words = (part.lower() for part in _NAME_PART.findall(text))
    return frozenset(
        f"{word[:-3]}y" if word.endswith("ies") else re.sub(r"(?<=[^s])s\Z", "", word)
        for word in words
    )


# Of schema texts only: nothing that a user said stays in memory.
_profile = lru_cache(maxsize=256)(_stems)


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
            tell(
                _logger,
                f"the rules do not know this language: {language}. Nothing is stored of such turns. Give Diary a model"
                " as `agent`; Diary.stats() counts them.",
            )

    def run(self, message: str, /, *, deps: MemoryDeps) -> None:  # noqa: ARG002 - the draft holds the turn
        """Add the turn's statements to the draft."""
        session = deps.conversations.find(deps.session_id) or {}
        origin = {"_verified": False, "_source": f"{deps.session_id}#{session.get('_turns', 0)}"}
        categories = {name: deps.descriptions.get(name, "") for name in deps.allowed_cats}
        code, unsupported = language_of(deps.user_msg[:MAX_CHARACTERS])
        if unsupported:
            self._note(unsupported)
            return
        question = deps.earlier[-1][1] if deps.earlier else ""
        for statement in find_statements(deps.user_msg, categories, question, code):
            if deps.tool_writes.was_removed(statement.text):
                continue
            try:
                deps.upsert(statement.category, None, statement.text, (), fields=origin)
            except (LimitReached, InvalidValue) as error:
                _logger.warning("a statement was not stored: %s", type(error).__name__)
                # The current state may have space for it; if not, the result of the turn has the reason.
                deps.add_beyond_limit(statement.category, statement.text, origin)
