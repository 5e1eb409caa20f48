"""One model object of a real provider as host and extractor of pydantic-ai, over connections that break."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from pydantic_ai import Agent
from pydantic_ai.models import override_allow_model_requests
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel

from provider_server import provider_server, retry_soon
from tomldiary import Diary, MemoryWriter, RetryPolicy, extractor_agent
from tomldiary.compat.default_table import DefaultPrefTable
from tomldiary_pydantic_ai import DiaryCapability

if TYPE_CHECKING:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel

TURNS = 4
WRITERS = 2


def _openai(url: str) -> OpenAIChatModel:
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415 - slow to import
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415 - slow to import

    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="x")
    return OpenAIChatModel("gpt-5-mini", provider=provider)


def _anthropic(url: str) -> AnthropicModel:
    from pydantic_ai.models.anthropic import AnthropicModel  # noqa: PLC0415 - slow to import
    from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: PLC0415 - slow to import

    provider = AnthropicProvider(base_url=url, api_key="x")
    return AnthropicModel("claude-haiku-4-5", provider=provider)


def _wrapped(url: str) -> FallbackModel:
    return FallbackModel(WrapperModel(_anthropic(url)), _openai(url))


@pytest.fixture
def server(monkeypatch):
    retry_soon(monkeypatch)
    with provider_server(reset_each=11, drop_each=5) as server, override_allow_model_requests(True):
        yield server


@pytest.mark.parametrize(
    ("make", "as_agent"),
    [(_openai, True), (_wrapped, False)],
    ids=["openai agent", "fallback"],
)
def test_host_and_extractor_share_a_model_object(tmp_path, server, make, as_agent):
    model = make(server.url)
    made = []
    for number in range(WRITERS):
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
    assert server.counts["reset"]
