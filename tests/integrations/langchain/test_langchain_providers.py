"""Chat models of real providers, as host and as extractor at once, over connections that break."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from langchain.agents import create_agent

import programs
from provider_server import provider_server, retry_soon
from scripted_chat import DONE, Scripted, calling
from tomldiary import Diary, MemoryWriter, RetryPolicy
from tomldiary_langchain import ChatModelExtractor, DiaryMiddleware

if TYPE_CHECKING:
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI

TURNS = 4
_RETRIES = 5  # of the provider's client, for connections that the server reset


def _openai(url: str) -> ChatOpenAI:
    from langchain_openai import ChatOpenAI  # noqa: PLC0415 - slow to import

    return ChatOpenAI(model="gpt-5-mini", api_key="x", base_url=f"{url}/v1", max_retries=_RETRIES)


def _anthropic(url: str) -> ChatAnthropic:
    from langchain_anthropic import ChatAnthropic  # noqa: PLC0415 - slow to import

    return ChatAnthropic(model="claude-haiku-4-5", api_key="x", base_url=url, max_retries=_RETRIES)


@pytest.fixture
def server(monkeypatch):
    retry_soon(monkeypatch)
    with provider_server(reset_each=7, drop_each=3) as server:
        yield server


async def _close(model) -> None:
    """Close the connections that all models of one server share; their libraries leave them open."""
    is_openai = hasattr(model, "root_client")
    await (model.root_async_client if is_openai else model._async_client).close()
    (model.root_client if is_openai else model._client).close()


def _writer(diary: Diary) -> MemoryWriter:
    return MemoryWriter(diary, retry=RetryPolicy(first_pause=0.05))


def _question(what: str, number: int) -> dict:
    return {"messages": [("user", f"I like {what} {number}.")]}


def _kept(diary: Diary) -> list[str]:
    return sorted(item.text for _, _, item in _all(diary))


def _all(diary: Diary):
    for category, items in diary.user("ann").preferences().items():
        for key, item in items.items():
            yield category, key, item


def _expected(what: str) -> list[str]:
    return sorted(f"I like {what} {number}" for number in range(TURNS))


def _agents(tmp_path, chat_model, url: str, writers: int, *, same: bool):
    """Return agents, each with a diary and a writer of its own; one model for everything if `same`."""
    for number in range(writers):
        host = chat_model(url)
        extractor = ChatModelExtractor(host if same else chat_model(url))
        diary = Diary(tmp_path / str(number), agent=extractor, similarity=100)
        middleware = DiaryMiddleware(diary, user_id="ann", session_id="s", writer=_writer(diary))
        yield create_agent(host, middleware=[middleware]), middleware


@pytest.mark.parametrize("chat_model", [_openai, _anthropic])
def test_turns_of_async_runs_survive_broken_connections(tmp_path, chat_model, server):
    made = list(_agents(tmp_path, chat_model, server.url, 2, same=True))

    async def talk() -> list[object]:
        failed: list[object] = []
        for number in range(TURNS):
            runs = [agent.ainvoke(_question("drink", number)) for agent, _ in made]
            answers = await asyncio.gather(*runs, return_exceptions=True)
            failed += [answer for answer in answers if isinstance(answer, BaseException)]
        for _, middleware in made:
            await middleware.writer.aflush(60)
        await _close(chat_model(server.url))
        return failed

    failed = asyncio.run(talk())
    for _, middleware in made:
        stats = middleware.writer.close_sync()
        assert (stats["completed"], stats["failed"]) == (TURNS, 0)
        assert _kept(middleware.diary) == _expected("drink")
    assert failed == []
    assert server.counts["reset"]


def test_turns_of_sync_runs_survive_broken_connections(tmp_path, server):
    made = list(_agents(tmp_path, _openai, server.url, 2, same=True))
    for number in range(TURNS):
        for agent, _ in made:
            agent.invoke(_question("dish", number))
    for _, middleware in made:
        assert middleware.writer.flush(60)
        stats = middleware.writer.close_sync()
        assert (stats["completed"], stats["failed"]) == (TURNS, 0)
        assert _kept(middleware.diary) == _expected("dish")
    asyncio.run(_close(_openai(server.url)))
    assert server.counts["reset"]


def test_turns_of_concurrent_runs_are_kept(tmp_path, server):
    ((agent, middleware),) = _agents(tmp_path, _openai, server.url, 1, same=False)

    async def talk() -> list[object]:
        runs = (agent.ainvoke(_question("drink", number)) for number in range(TURNS))
        answers = await asyncio.gather(*runs, return_exceptions=True)
        await middleware.writer.aflush(60)
        await _close(_openai(server.url))
        return [answer for answer in answers if isinstance(answer, BaseException)]

    assert asyncio.run(talk()) == []
    stats = middleware.writer.close_sync()
    assert (stats["completed"], stats["failed"]) == (TURNS, 0)
    assert _kept(middleware.diary) == _expected("drink")


_HANGS = """
import sys, threading
from scripted_chat import Scripted
from tomldiary import Diary, MemoryWriter

asked = threading.Event()

class Hanging(Scripted):
    def _generate(self, *args, **kwargs):
        asked.set()
        threading.Event().wait()

writer = MemoryWriter(Diary({folder!r}, agent=Hanging(answers=[])))
writer.submit_nowait({turn})
asked.wait()
print(writer.close_sync(timeout=0)["pending"])
"""


def test_a_hanging_model_does_not_keep_the_process_alive(tmp_path):
    turn = "__import__('tomldiary').Turn('ann', 's', 'I like tea.', 'ok')"
    code = _HANGS.format(folder=str(tmp_path), turn=turn)
    done = programs.run("-c", code, imported=programs.FRAMEWORKS, check=True)
    assert done.stdout == "1\n"


def test_a_model_with_a_coroutine_alone_extracts(tmp_path):
    class OnlyAsync(Scripted):
        def _generate(self, *args, **kwargs):
            raise NotImplementedError

        async def _agenerate(self, *args, **kwargs):
            return super()._generate(*args, **kwargs)

    model = OnlyAsync(
        answers=[calling(("upsert_preference", {"category": "likes", "text": "tea"})), DONE]
    )
    diary = Diary(tmp_path, agent=model)
    diary.user("ann").add_turn("I like tea.", "ok", session_id="s")
    assert [item.text for item in diary.user("ann").preferences("likes").values()] == ["tea"]
