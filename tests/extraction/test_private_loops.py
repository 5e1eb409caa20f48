"""What the host shares with the diary is not awaited in an event loop of the diary."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel

from tomldiary import Diary
from tomldiary.errors import BackendError, ExtractionError
from tomldiary.extraction.turns import run_extractor
from tomldiary_langgraph import DiaryStore


class Shared(Embeddings):
    """Embeddings whose async client belongs to the loop that used it first."""

    def __init__(self):
        self.loops = set()

    def embed_documents(self, texts):
        return [[1.0, 0.0] for _ in texts]

    def embed_query(self, text):
        return [1.0, 0.0]

    async def aembed_documents(self, texts):
        self.loops.add(asyncio.get_running_loop())
        return self.embed_documents(texts)

    async def aembed_query(self, text):
        self.loops.add(asyncio.get_running_loop())
        return [1.0, 0.0]


def index_of(embed):
    return {"dims": 2, "embed": embed, "fields": ["$"]}


def test_embeddings_are_awaited_only_in_the_loop_of_the_host(tmp_path):
    embed = Shared()
    store = DiaryStore(tmp_path, index=index_of(embed))

    async def extract(message, *, deps):
        await store.aput(("ann", "notes"), "inner", {"text": deps.user_msg})

    diary = Diary(tmp_path, agent=extract)

    async def host():
        await store.aput(("ann", "notes"), "outer", {"text": "tea"})
        await asyncio.to_thread(diary.user("ann").add_turn, "I like tea.", "ok", "s")
        return {item.key for item in await store.asearch(("ann", "notes"), query="tea")}

    assert asyncio.run(host()) == {"inner", "outer"}
    assert len(embed.loops) == 1


def test_an_async_function_also_embeds_in_a_private_loop(tmp_path):
    async def embed(texts):
        return [[1.0, 0.0] for _ in texts]

    store = DiaryStore(tmp_path, index=index_of(embed))

    async def extract(message, *, deps):
        await store.aput(("ann", "notes"), "inner", {"text": deps.user_msg})

    Diary(tmp_path, agent=extract).user("ann").add_turn("I like tea.", "ok", "s")
    assert store.get(("ann", "notes"), "inner").value == {"text": "I like tea."}


class Connected:
    """A third-party backend whose connection belongs to the host's loop."""

    def __init__(self):
        self.answer = asyncio.get_running_loop().create_future()

    async def load(self, user_id, kind):
        return await self.answer

    async def save(self, user_id, kind, content): ...
    async def exists(self, user_id, kind): ...
    async def delete(self, user_id, kind): ...
    async def delete_user(self, user_id): ...

    async def list_users(self):
        return []


def test_a_backend_with_connections_of_the_host_names_the_remedy():
    async def host():
        diary = Diary(Connected(), agent="rules")
        with pytest.raises(BackendError, match="Open connections inside them"):
            await asyncio.to_thread(diary.user("ann").preferences)

    asyncio.run(host())


@pytest.mark.parametrize("agent", ["function", "chat model"])
def test_a_stop_iteration_in_a_thread_fails_the_turn_at_once(agent):
    answers = iter([])

    def extract(message, *, deps):
        next(answers)

    model = extract if agent == "function" else GenericFakeChatModel(messages=answers)
    diary = Diary("memory:", agent=model, extraction_timeout=5)
    with pytest.raises(ExtractionError, match="raised StopIteration"):
        diary.user("ann").add_turn("I like tea.", "ok", "s")


def test_a_cancellation_by_the_extractor_itself_fails_the_turn():
    async def extract(message, *, deps):
        own = asyncio.create_task(asyncio.sleep(60))
        own.cancel()
        await own

    ann = Diary("memory:", agent=extract).user("ann")

    async def host():
        async with asyncio.TaskGroup() as tasks:  # ignores tasks that were cancelled
            tasks.create_task(ann.aadd_turn("I like tea.", "ok", "s"))

    with pytest.raises(ExtractionError, match="CancelledError"):
        ann.add_turn("I like tea.", "ok", "s")
    with pytest.raises(ExceptionGroup) as failed:
        asyncio.run(host())
    assert isinstance(failed.value.exceptions[0], ExtractionError)


def test_a_cancelled_turn_is_cancelled():
    async def extract(message, *, deps):
        await asyncio.sleep(60)

    async def host():
        async with asyncio.timeout(0.2):
            await Diary("memory:", agent=extract).user("ann").aadd_turn("I like tea.", "ok", "s")

    with pytest.raises(TimeoutError) as ended:
        asyncio.run(host())
    assert not isinstance(ended.value, ExtractionError)


def test_a_turn_that_took_too_long_can_be_cancelled():
    async def host():
        is_late = asyncio.Event()

        async def extract(message, *, deps):
            try:
                await asyncio.sleep(60)
            finally:  # it closes its connection
                is_late.set()
                await asyncio.sleep(60)

        ann = Diary("memory:", agent=extract, extraction_timeout=0.1).user("ann")
        turn = asyncio.create_task(ann.aadd_turn("I like tea.", "ok", "s"))
        await is_late.wait()
        turn.cancel()
        await asyncio.wait([turn])
        assert turn.cancelled()

    asyncio.run(host())


CHANGES = {
    "upsert": lambda deps: deps.upsert("likes", None, "tea"),
    "forget": lambda deps: deps.forget("likes", "pref001"),
    "commit_fact": lambda deps: deps.commit_fact("drink", {"name": "tea"}),
    "remove_fact": lambda deps: deps.remove_fact("drink/x"),
    "summarise": lambda deps: deps.summarise("Tea.", None),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("fails", [False, True])
def test_a_change_after_the_end_of_an_extraction_is_refused(change, fails):
    kept = []

    def extract(message, *, deps):
        kept.append(deps)
        if fails:
            raise ValueError

    with suppress(ExtractionError):
        Diary("memory:", agent=extract).user("ann").add_turn("I like tea.", "ok", "s")
    with pytest.raises(ExtractionError, match="has ended"):
        CHANGES[change](kept[0])


def test_an_async_extractor_needs_no_thread():
    class Extractor:
        async def run(self, message, *, deps):
            pass

    async def host():
        loop, done = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, done.wait)
        try:
            await asyncio.wait_for(run_extractor(Extractor(), "tea", None), 10)
        finally:
            done.set()
            await busy

    asyncio.run(host())
