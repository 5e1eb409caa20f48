"""Models of real providers, each as host and as extractor at once, over connections that break.

Both frameworks are in one file, because the clients of providers take seconds to import.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from langchain.agents import create_agent
from pydantic_ai import Agent
from pydantic_ai.models import override_allow_model_requests
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel

from provider_server import provider_server, retry_soon
from tomldiary import DefaultPrefTable, Diary, MemoryWriter, RetryPolicy, extractor_agent
from tomldiary.runtime.async_bridge import close_private_loop, note_private_loop
from tomldiary_langchain import ChatModelExtractor, DiaryMiddleware
from tomldiary_pydantic_ai import DiaryCapability
from tomldiary_pydantic_ai.models import with_own_connections

if TYPE_CHECKING:
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel

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


# pydantic-ai


def _openai_model(url: str) -> OpenAIChatModel:
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415 - slow to import
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415 - slow to import

    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="x")
    return OpenAIChatModel("gpt-5-mini", provider=provider)


def _anthropic_model(url: str) -> AnthropicModel:
    from pydantic_ai.models.anthropic import AnthropicModel  # noqa: PLC0415 - slow to import
    from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: PLC0415 - slow to import

    provider = AnthropicProvider(base_url=url, api_key="x")
    return AnthropicModel("claude-haiku-4-5", provider=provider)


def _wrapped(url: str) -> FallbackModel:
    return FallbackModel(WrapperModel(_openai_model(url)), _anthropic_model(url))


@pytest.mark.parametrize("make", [_openai_model, _anthropic_model])
def test_a_copied_model_has_its_own_connections(make):
    model = make("http://127.0.0.1:9")

    async def run():
        note_private_loop()
        async with model:
            fallback = with_own_connections(FallbackModel(WrapperModel(model)))
            copied = fallback.models[0].wrapped
            assert (copied.client.api_key, copied.base_url) == ("x", model.base_url)
            await close_private_loop()
            assert copied.client.is_closed()
            assert not model.client.is_closed()

    with ThreadPoolExecutor(1) as thread:  # which counts as private from now on
        thread.submit(asyncio.run, run()).result()


@pytest.fixture
def breaking(monkeypatch):
    retry_soon(monkeypatch)
    with provider_server(reset_each=11, drop_each=5) as server, override_allow_model_requests(True):
        yield server


@pytest.mark.parametrize(
    ("make", "as_agent"),
    [(_openai_model, True), (_wrapped, False)],
    ids=["openai agent", "fallback"],
)
def test_host_and_extractor_share_a_model_object(tmp_path, breaking, make, as_agent):
    model = make(breaking.url)
    made = []
    for number in range(2):
        extractor = extractor_agent(DefaultPrefTable, model) if as_agent else model
        diary = Diary(tmp_path / str(number), agent=extractor, similarity=100)
        writer = MemoryWriter(diary, retry=RetryPolicy(first_pause=0.05))
        memory = DiaryCapability(diary, user_id="ann", session_id="s", writer=writer)
        made.append((Agent(model, capabilities=[memory]), writer))

    async def talk():
        failed = []
        async with model:  # closes the host's connections at the end
            for number in range(TURNS):
                runs = [agent.run(f"I like drink {number}.") for agent, _ in made]
                answers = await asyncio.gather(*runs, return_exceptions=True)
                failed += [answer for answer in answers if isinstance(answer, BaseException)]
            for _, writer in made:
                await writer.aflush(60)
        return failed

    assert asyncio.run(talk()) == []
    for _, writer in made:
        stats = writer.close_sync()
        assert (stats["completed"], stats["failed"]) == (TURNS, 0)
        assert len(writer.diary.user("ann").preferences("likes")) == TURNS
    assert breaking.counts["reset"]
