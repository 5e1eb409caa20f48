"""Characters that a person cannot see reach no model, in whatever place a text is stored."""

from __future__ import annotations

import asyncio
import re
import sys
import unicodedata

import pytest
from langchain_core.runnables import RunnableConfig

from tomldiary import Diary
from tomldiary.agents.verbs import MemoryVerbs
from tomldiary.compaction.draft import CompactionDeps
from tomldiary.compaction.tools import get_preference_block, list_preference_blocks
from tomldiary.errors import InvalidValue
from tomldiary.retrieval.injection import next_injection
from tomldiary.text.visible import as_stored, printable, visible
from tomldiary_langchain import DiaryRetriever
from tomldiary_pydantic_ai.memory_document import AgentMemory, format_memory_prompt
from tomldiary_pydantic_ai.memory_files import MemoryFiles

SECRET = "".join(chr(0xE0000 + ord(char)) for char in "obey")
SELECTED = "".join(chr(0xE0100 + ord(char) - 16) for char in "obey")
PAYLOADS = {
    "tags": SECRET,
    "tags with a language": "\U000e0001" + SECRET,
    "supplementary variation selectors": SELECTED,
    "variation selectors": "".join(map(chr, range(0xFE00, 0xFE10))),
    "Mongolian selectors": "\u180b\u180c\u180d\u180e\u180f",
    "zero width": "\u200b\u2060\ufeff",
    "joiners": "\u200c\u200d\u200c",
    "marks": "\u200e\u200f\u061c",
    "bidirectional controls": "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
    "invisible operators": "\u2061\u2062\u2063\u2064\u206a\u206f",
    "soft hyphen": "\u00ad\u034f",
    "fillers": "\u115f\u1160\u3164\uffa0",
    "Khmer vowels": "\u17b4\u17b5",
    "annotations": "\ufff9\ufffa\ufffb",
    "musical and shorthand": "\U0001d173\U0001d17a\U0001bca0\U0001bca3",
}
HIDDEN = "".join(PAYLOADS.values())
STORED = f"pea{HIDDEN}nut{HIDDEN} allergy"


def clean(text):
    assert "peanut allergy" in text
    return not set(HIDDEN) & set(re.sub("[⚠🗑]\ufe0f", "", text))  # ours


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_characters_without_a_glyph_are_hidden(payload):
    assert visible(f"pea{payload}nut{payload} allergy") == "peanut allergy"


@pytest.fixture
def diary():
    with Diary("memory:") as opened:
        yield opened


def test_injected_memory_contains_no_hidden_text(diary):
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    first = next_injection([], alice.memory_lines(), max_tokens=1500)
    alice.upsert_preference("dislikes", STORED, contexts=[STORED])
    alice.set_block("persona", STORED, pinned=True)
    assert clean(alice.render())
    changes = next_injection([first.text], alice.memory_lines(), max_tokens=1500)
    assert clean(changes.text)


def test_answers_of_tools_contain_no_hidden_text(diary):
    alice = diary.user("alice")
    alice.upsert_preference("dislikes", STORED, id="a")
    alice.set_block("persona", STORED)
    verbs = MemoryVerbs(alice, "s")
    assert clean(verbs.recall("allergy"))
    assert clean(verbs.read_block("persona"))
    assert not set(HIDDEN) & set(verbs.read_block(f"x{HIDDEN}"))
    assert clean(verbs.remember("severe peanut allergy", "dislikes"))
    assert clean(verbs.forget("dislikes/a"))


def test_a_block_is_corrected_as_it_was_shown(diary):
    alice = diary.user("alice")
    alice.set_block("persona", f"one{HIDDEN}\n{STORED}")
    answer = MemoryVerbs(alice, "s").replace_in_block("persona", "peanut allergy", "no allergy")
    assert answer.startswith("✅")
    assert alice.block("persona").text == f"one{HIDDEN}\nno allergy"


def test_notes_and_memory_files_contain_no_hidden_text(diary):
    notes = AgentMemory(diary.user("alice"), "main", "MEMORY.md")
    notes.write(STORED)
    assert clean(notes.read())
    assert clean(format_memory_prompt(notes.load()))
    assert notes.update("peanut", "milk").startswith("Memory updated")
    assert notes.read().startswith("milk")

    files = MemoryFiles(diary)
    done = files.write("alice/main/MEMORY.md", STORED, expected=None)
    read = files.read("alice/main/MEMORY.md")
    assert clean(read.content)
    assert read.version == done.version
    assert [
        clean(one.content) for one in files.search("alice/", "allergy", most=9, window=99999).found
    ] == []
    assert [
        clean(one.content)
        for one in files.search("alice/main/", "allergy", most=9, window=99999).found
    ] == [True]
    files.write("alice/main/MEMORY.md", "new", expected=read.version)


def test_retrieved_documents_contain_no_hidden_text(diary):
    diary.user("alice").upsert_preference("dislikes", STORED)
    config = RunnableConfig(configurable={"user_id": "alice"})
    (found,) = DiaryRetriever(diary=diary).invoke("allergy", config)
    assert clean(found.page_content)


class Context:
    def __init__(self, deps):
        self.deps = deps


def test_extraction_and_compaction_prompts_contain_no_hidden_text(diary):
    seen = []

    def extract(message, *, deps):
        seen.append(message)
        deps.summarise(STORED, None)

    alice = diary.with_agent(extract).user("alice")
    alice.upsert_preference("dislikes", STORED, id="a")
    alice.add_turn(STORED, STORED, "s1")
    alice.add_turn(STORED, STORED, "s1")
    assert len(seen) == 2
    assert all(clean(message) for message in seen)

    async def shown():
        entry = {"text": STORED, "_count": 1}
        deps = CompactionDeps(
            {"preferences": {"dislikes": {"a": entry}}},
            {"conversations": {}},
            include_preferences=True,
            include_conversations=True,
        )
        context = Context(deps)
        return [
            await list_preference_blocks(context),
            await get_preference_block(context, "dislikes/a"),
        ]

    assert all(clean(answer) for answer in asyncio.run(shown()))


KEPT = [
    "می‌خواهم",  # Persian, with a zero-width non-joiner
    "क्‍ष क्‌ष",  # Devanagari, with both joiners
    "ന്‍",  # Malayalam, ends with a joiner
    "👩‍👩‍👧 👩🏽‍💻 🏳️‍🌈 ❤️ ❤️‍🔥 1️⃣ ☕︎",
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f \U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",  # the flags of England and Scotland
    "彼女は東京に住んでいます\u3000。",
    "ภาษาไทย",
    "a\u00a0b",
    "é e\u0301",
    "\r\n\t",
]


@pytest.mark.parametrize("text", KEPT)
def test_joiners_of_scripts_and_emoji_are_kept(text):
    assert visible(text) == text
    assert visible(f"{text}{SECRET}") == text


@pytest.mark.parametrize(
    "text",
    ["a\u200cb", "\u200cمی", "می\u200c\u200cخ", "😀\u200d", "😀\ufe0f\ufe0f", "a\ufe0f", "1\ufe0f", "😀\u200da",
     "\U0001f3f4\U000e0075\U000e0073\U000e0063\U000e0061\U000e007f"],
)  # fmt: skip
def test_joiners_and_selectors_elsewhere_are_removed(text):
    assert len(visible(text)) < len(text)
    assert len(printable(text)) > len(text)


def test_every_format_character_without_a_glyph_is_hidden():
    drawn = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    drawn |= set(range(0x13430, 0x13460))
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) == "Cf":
            assert (visible(f"a{chr(code)}b") == "ab") == (code not in drawn), hex(code)


@pytest.mark.parametrize("text", ["\x00", " \x1b\x01 ", "\x7f\u200b"])
def test_a_text_of_control_characters_only_is_refused_as_blank(diary, text):
    with pytest.raises(InvalidValue, match="the text is blank"):
        diary.user("alice").upsert_preference("likes", text)


def test_a_quoted_text_that_occurs_twice_is_not_replaced():
    assert as_stored("tea", "t\u200bea") == "t\u200bea"
    assert as_stored("tea", "t\u200bea, te\u200ba") == "tea"
    assert as_stored("tea \u2764\ufe0f", "t\u200bea \u2764\ufe0f!") == "t\u200bea \u2764\ufe0f"
    assert as_stored("milk", "tea") == "milk"
