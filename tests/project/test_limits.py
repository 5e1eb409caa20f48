"""The limits and defaults that the pages name are those of the code."""

from __future__ import annotations

import inspect
from pathlib import Path

from tomldiary import CompactionConfig, Diary, MemoryWriter, RetryPolicy, UserDiary
from tomldiary.compaction.draft import MAX_TEXT
from tomldiary.entries.fields import MAX_KEY
from tomldiary.entries.kinds.blocks import MAX_BLOCK
from tomldiary.entries.kinds.parts import LARGEST
from tomldiary.extraction.context import CONTEXT_TURNS, MAX_EXCHANGE
from tomldiary.extraction.draft import MOST_REMOVED
from tomldiary.extraction.message import MEMORY_CHARACTERS
from tomldiary.extraction.rules import MAX_CHARACTERS, MAX_SENTENCE, MAX_STATEMENTS
from tomldiary.hooks import hooks
from tomldiary.identifiers.user_ids import MAX_FOLDER
from tomldiary.storage import PostgresBackend, RedisBackend
from tomldiary.storage.environment import CHECKPOINT_INTERVAL, SEGMENT_BYTES
from tomldiary.toml.parse import MAX_BYTES
from tomldiary_langchain import ChatModelExtractor

DOCS = Path(__file__).parents[2] / "docs"
WORDS = {4: "four", 5: "five", 10: "ten"}


def default(function, option):
    return inspect.signature(function).parameters[option].default


# Each text is as short as the page allows, so that most other wording does not change it.
NAMED = [
    ("durability", f"After {CHECKPOINT_INTERVAL} transactions"),
    ("durability", f"`lock_timeout` ({default(Diary, 'lock_timeout'):g} seconds)"),
    ("editing", f"above {MAX_BYTES >> 20} MiB"),
    ("extraction", f"more than {MEMORY_CHARACTERS:,} characters"),
    ("extraction", f"{WORDS[CONTEXT_TURNS]} exchanges"),
    ("extraction", f"cut to {MAX_EXCHANGE:,} characters"),
    ("extraction", f"text of a preference | {MAX_TEXT:,} "),
    ("extraction", f"summary | {default(Diary, 'max_summary_chars'):,} "),
    ("extraction", f"remove in one turn | {MOST_REMOVED};"),
    ("extraction", f"no end after {default(Diary, 'extraction_timeout'):g} seconds"),
    ("extraction", f"{default(Diary, 'similarity'):g} of 100"),
    ("extraction", f"the first {MAX_CHARACTERS:,} characters"),
    ("extraction", f"at most {MAX_STATEMENTS} sentences, none longer than {MAX_SENTENCE} "),
    ("extraction", f"`cooldown_seconds` ({CompactionConfig().cooldown_seconds})"),
    ("files", f"1 to {MAX_KEY} characters"),
    ("files", f"the text, at most {MAX_BLOCK:,} characters"),
    ("files", f"longer than {MAX_FOLDER} characters"),
    ("files", f"larger than {LARGEST >> 10} KB"),
    ("files", f"a new segment after {SEGMENT_BYTES >> 20} MB"),
    ("files", f"{default(UserDiary.render, 'max_tokens'):,} by default"),
    ("hooks", f"`poll` seconds, {default(hooks.Hooks.add, 'poll'):g} by default"),
    ("hooks", f" s to {default(hooks.Hooks.add, 'longest_pause'):g} s"),
    ("langchain", f"After {default(ChatModelExtractor, 'max_rounds')} answers"),
    ("scaling", f"connections of a process, {default(PostgresBackend, 'connections')}"),
    ("scaling", f"does not answer, {default(RedisBackend, 'timeout'):g} |"),
    ("scaling", f"`lease` seconds ({default(MemoryWriter, 'lease'):g})"),
    ("trust", f"{default(Diary, 'draft_lifetime').total_seconds() / 3600:g} hours"),
    ("writer", f"`RetryPolicy(attempts={RetryPolicy().attempts})`"),
    ("writer", f"longest pause ({RetryPolicy().longest_pause:g} s)"),
    ("writer", f"After {WORDS[default(MemoryWriter, 'breaker')]} transient errors"),
    ("writer", f"`timeout` ({default(MemoryWriter, 'timeout'):g} s)"),
    (
        "writer",
        f"within {WORDS[default(MemoryWriter, 'takeover_interval')]} seconds (`takeover_interval`)",
    ),
]


def test_each_page_names_the_limits_of_the_code():
    pages = {path.stem: " ".join(path.read_text("utf-8").split()) for path in DOCS.glob("*.md")}
    assert [(page, text) for page, text in NAMED if text not in pages[page]] == []
