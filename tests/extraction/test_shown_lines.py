"""The lines of a large memory that an extractor is shown: chosen as recall ranks, with an embedder also by meaning."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.entries.preferences import PreferenceRules, Preferences
from tomldiary.extraction.message import relevant_lines
from tomldiary.toml.document import Document
from tomldiary.toml.edit import Edit
from tomldiary_langgraph import extract_node

pytest.importorskip("numpy", reason='pip install "tomldiary-kit[embeddings]"')

DOG, TEA = "the dog sleeps in the hall", "black tea with milk"
PUPPY = "Our puppy is asleep."
MEANINGS = {"dog": 0, "puppy": 0, "tea": 1, "asleep": 2}


def vectors(texts):
    def vector(text):
        found = [0.01] * 4
        for word in text.lower().split():
            if word in MEANINGS:
                found[MEANINGS[word]] += 1.0
        return found

    return [vector(text) for text in texts]


async def awaited(texts):
    await asyncio.sleep(0)
    return vectors(texts)


def failing(texts):
    raise OSError("the model is away")


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, texts):
        self.calls += 1
        return vectors(texts)


class Reader:
    """An extractor that keeps its messages."""

    def __init__(self):
        self.messages = []

    async def run(self, message, *, deps):
        self.messages.append(message)


def remembered(embedder, size=200, **options):
    """A memory in which the two preferences with a meaning are the oldest."""
    reader = Reader()
    options = {"agent": reader, "max_prefs_per_category": 2000, **options}
    diary = Diary("memory:", embedder=embedder, **options)
    alice = diary.user("alice")
    with alice.transaction():
        for text in (DOG, TEA, *(f"thing number {each} of a long list" for each in range(size))):
            alice.upsert_preference("likes", text)
    return alice, reader


def sync(diary):
    diary.user("alice").add_turn(PUPPY, "Good.", "s")


def coroutine(diary):
    asyncio.run(diary.update_memory("alice", "s", PUPPY, "Good."))


def writer(diary):
    with MemoryWriter(diary) as writing:
        writing.submit_nowait(Turn("alice", "s", PUPPY, "Good."))


def node(diary):
    extract = extract_node(diary, user_id="alice")
    exchange = [("user", PUPPY), ("assistant", "Good.")]
    extract.invoke({"messages": exchange}, {"configurable": {"thread_id": "s"}})


def episode(diary):
    alice = diary.user("alice")
    alice.episodes.add(PUPPY, "Good.", session_id="s")
    alice.consolidate()


@pytest.mark.parametrize(
    ("process", "embedder"),
    [(sync, vectors), (sync, awaited), (coroutine, awaited), (writer, vectors), (node, vectors), (episode, vectors)],
)  # fmt: skip
def test_an_extractor_sees_the_entry_that_only_vectors_find(process, embedder):
    alice, reader = remembered(embedder)
    process(alice.diary)
    (message,) = reader.messages
    assert DOG in message
    assert "more are stored" in message
    assert message.index("sleeps") < message.index("thing number")  # in the order of the file


def test_a_model_as_extractor_sees_the_entry_that_only_vectors_find():
    seen = []

    def answer(messages, info):
        seen.append(messages[-1].parts[-1].content)
        return ModelResponse([TextPart("done")])

    alice, _ = remembered(vectors, agent=FunctionModel(answer))
    alice.add_turn(PUPPY, "Good.", "s")
    assert DOG in seen[0]


@pytest.mark.parametrize("embedder", [None, failing], ids=["none", "failing"])
def test_without_its_embedder_an_extractor_sees_what_words_find(embedder):
    alice, reader = remembered(embedder)
    alice.add_turn(PUPPY, "Good.", "s")
    alice.add_turn("Milk?", "Yes.", "s")
    assert DOG not in reader.messages[0]
    assert TEA in reader.messages[1]


def test_an_embedder_works_beside_the_event_loop_in_the_context_of_the_turn():
    tenant = contextvars.ContextVar("tenant")
    seen = []

    async def turn():
        loop = asyncio.get_running_loop()

        def embed(texts):
            ticked = threading.Event()
            loop.call_soon_threadsafe(ticked.set)
            seen.append((tenant.get(), ticked.wait(30)))
            return vectors(texts)

        alice, reader = remembered(embed)
        tenant.set("acme")
        await alice.aadd_turn(PUPPY, "Good.", "s")
        return reader.messages[0]

    assert DOG in asyncio.run(turn())
    assert set(seen) == {("acme", True)}


def test_other_writers_of_a_user_write_while_an_embedder_works():
    written = []

    def embed(texts):
        if PUPPY in texts[0]:
            thread = threading.Thread(target=lambda: written.append(alice.set_block("n", "new")))
            thread.start()
            thread.join(30)
        return vectors(texts)

    alice, reader = remembered(embed)
    alice.add_turn(PUPPY, "Good.", "s")
    assert len(written) == 1
    assert DOG in reader.messages[0]


def test_no_embedder_is_asked_in_an_open_transaction():
    embedder = Counting()
    alice, reader = remembered(embedder)
    with alice.transaction():
        alice.add_turn("Milk?", "Yes.", "s")
    assert embedder.calls == 0
    assert TEA in reader.messages[0]


@pytest.mark.parametrize("options", [{"size": 5}, {"agent": "rules"}], ids=["small", "rules"])
def test_no_embedder_is_asked_for_a_memory_that_is_shown_whole_or_not(options):
    embedder = Counting()
    alice, _ = remembered(embedder, **options)
    alice.add_turn(PUPPY, "Good.", "s")
    assert embedder.calls == 0


def test_ranked_keys_that_a_draft_lacks_are_left_out():
    alice, _ = remembered(None, 20)
    rules = PreferenceRules(("likes", "dislikes"), 100)
    book = Preferences(alice.diary.engine.document("alice", "preferences"), rules)
    keys = ["likes/gone", "other/pref001", "dislikes/pref001", "likes/pref002", "likes/pref001"]
    lines, left_out = relevant_lines(book, "", 110, lambda _: keys)
    assert [TEA in line or DOG in line for line in lines] == [True, True]
    assert left_out == 20
    (best,), _ = relevant_lines(book, "", 60, lambda _: keys)
    assert TEA in best


def test_a_line_that_matches_and_is_the_newest_is_counted_once():
    texts = {"a": "tea", "b": "chess", "c": "sails"}
    tables = [f'[preferences.likes.{key}]\ntext = "{text}"\n' for key, text in texts.items()]
    book = Preferences(Document.parse("".join(tables)), PreferenceRules(("likes",), 100))
    lines = [f"- likes/{key}: {text} (1×)" for key, text in texts.items()]
    assert relevant_lines(book, "sails", sum(map(len, lines[1:])) + 2) == (lines[1:], 1)


class Overtaken(Preferences):
    """A memory whose indexes another thread asks for a later version as soon as they are free."""

    later: Preferences

    def following(self, category, kind, question):
        found = super().following(category, kind, question)
        self.later.following(category, kind, lambda _: None)
        return found


@pytest.mark.parametrize("budget", [8_000, 100], ids=["all lines", "some lines"])
def test_the_lines_are_of_one_version_of_the_memory(budget):
    rules = PreferenceRules(categories=["likes"])
    memory = Document.parse(
        "".join(f'[preferences.likes.pref00{n}]\ntext = "tea {n}"\n' for n in range(1, 8))
    )
    edit = Edit(memory)
    for path in [("preferences", "likes", f"pref00{number}") for number in range(1, 8)]:
        edit.put(path, {**(edit.table(path) or {}), "_count": 5})
    now = Overtaken(memory, rules)
    now.later = Preferences(edit.done(), rules)
    lines, _ = relevant_lines(now, "tea", budget)
    assert [line for line in lines if "(1×)" not in line] == []
    assert lines
