"""Extraction models that cannot be reached, refuse, break off or say nothing, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from importlib.util import find_spec

import httpx
import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent, models
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import CombinedToolset, FunctionToolset

from openai_server import OpenAIServer, Step, broken, calls, closed_url, resets, says, slow, status
from tomldiary import Diary, MemoryDeps, MemoryWriter, RetryPolicy, Turn
from tomldiary.errors import ExtractionError, InvalidValue
from tomldiary.extraction.failures import cause_and_remedy
from tomldiary_pydantic_ai import extractor_agent

pytestmark = pytest.mark.skipif(find_spec("openai") is None, reason="needs the extra openai")
SECRET = "sk-very-secret-0123456789"  # noqa: S105 - not a real one
LIKES_TANGO = calls(("upsert_preference", {"category": "likes", "text": "loves tango"}))


@pytest.fixture(autouse=True)
def _requests_to_loopback(monkeypatch):
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", True)
    monkeypatch.setattr("tomldiary_pydantic_ai.models._PAUSES", RetryPolicy(first_pause=0.01))


def model_at(url):
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415 - slow to import
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415 - slow to import

    return OpenAIChatModel("any", provider=OpenAIProvider(base_url=url, api_key=SECRET))


def add_turn(diary):
    return diary.user("alice").add_turn("I love tango.", "Noted.", "s1")


def failure(diary):
    with pytest.raises(ExtractionError) as caught:
        add_turn(diary)
    return str(caught.value)


def likes(diary):
    return [item.text for item in diary.user("alice").preferences("likes").values()]


@pytest.mark.parametrize("kind", ["model", "agent", "bare agent"])
def test_an_empty_last_message_keeps_the_operations(tmp_path, kind):
    with OpenAIServer([LIKES_TANGO, says("")]) as server:
        model = model_at(server.url)
        agent = {
            "model": model,
            "agent": extractor_agent(Diary("memory:").pref_table_cls, model),
            "bare agent": Agent(model),
        }[kind]
        diary = Diary(tmp_path, agent=agent)
        add_turn(diary)
    assert likes(diary) == ["loves tango"]
    assert len(server.requests) == 2


def test_an_agent_without_extraction_tools_gets_them(tmp_path):
    with OpenAIServer([LIKES_TANGO, says("done")]) as server:
        diary = Diary(tmp_path, agent=Agent(model_at(server.url)))
        add_turn(diary)
    assert likes(diary) == ["loves tango"]
    offered = {tool["function"]["name"] for tool in server.requests[0]["tools"]}
    assert len(offered) == 6
    assert "You keep the diary" in str(server.requests[0]["messages"])


def test_an_agent_with_tools_for_the_draft_is_used_unchanged():
    agent = Agent("test", deps_type=MemoryDeps)

    @agent.tool
    def note(ctx, text: str) -> str:
        return text

    assert Diary("memory:", agent=agent).turns.extractor is agent


def test_a_host_without_an_address_is_named():
    cause = httpx.ConnectError("connection failed")
    cause.__cause__ = socket.gaierror(-2, "Name or service not known")
    assert "the host name is not known" in cause_and_remedy(cause)[0]


def test_an_agent_with_tools_that_are_known_later_is_used_unchanged():
    late = CombinedToolset([FunctionToolset()])
    agent = Agent("test", toolsets=[late])
    assert Diary("memory:", agent=agent).turns.extractor is agent


@pytest.mark.parametrize(
    ("steps", "says_so", "requests"),
    [
        ([status(401, message=f"Incorrect API key provided: {SECRET}")], "refused the key", 1),
        ([status(404, message="model 'any' not found")], "model 'any' not found", 1),
        ([status(500)], "failed: status 500", 4),
        ([status(429, retry_after=0)], "too many requests", 4),
        ([broken()], "broken JSON", 4),
        ([resets()], "connection to 127.0.0.1", 4),
        ([Step(body=b'{"detail": "Not Found"}')], "Check the base URL", 4),
    ],
)
def test_an_error_names_its_cause_after_a_bounded_number_of_requests(steps, says_so, requests):
    with OpenAIServer(steps) as server:
        told = failure(Diary("memory:", agent=model_at(server.url)))
    assert says_so in told
    assert "Nothing was changed" in told
    assert SECRET not in told
    assert "sub-exceptions" not in told
    assert len(server.requests) == requests


@pytest.mark.parametrize("key", ["AIza" + "Sy" * 17 + "A", "hf_" + "a1" * 16, "gsk_" + "b2" * 10])
def test_a_key_of_any_provider_is_masked(key):
    assert cause_and_remedy(RuntimeError(f"bad key {key} given"))[0].endswith(
        "bad key [secret] given"
    )


@pytest.mark.parametrize("count", [1, 2])
def test_a_closed_port_is_named_with_its_host(count):
    url = closed_url()
    chosen = [model_at(url) for _ in range(count)]
    diary = Diary("memory:", agent=chosen[0])
    if count == 2:
        diary.agent = extractor_agent(diary.pref_table_cls, chosen, fallback_retries=0)
    told = failure(diary)
    assert "connection refused" in told
    assert url.removeprefix("http://").removesuffix("/v1") in told
    assert "base URL" in told
    assert "\n" not in told


@pytest.mark.parametrize("step", [status(500), resets()])
def test_a_writer_bounds_all_requests_of_a_turn(tmp_path, step):
    retry = RetryPolicy(attempts=5, first_pause=0.01)
    with OpenAIServer([step]) as server:
        diary = Diary(tmp_path, agent=model_at(server.url))
        with MemoryWriter(diary, retry=retry) as writer:
            receipt = writer.submit_nowait(Turn("alice", "s1", "I love tango.", "Noted."))
            with pytest.raises(ExtractionError):
                receipt.wait(60)
    assert len(server.requests) == 5


EMPTY = {"id": "x", "object": "chat.completion", "created": 1, "model": "any", "choices": []}
OVERLOADED = {"error": {"message": "no provider", "code": 502}}
SURROGATE = calls(("upsert_preference", {"category": "likes", "text": "loves \ud83d"}))


NO_CHOICES = Step(body=json.dumps(EMPTY).encode())
ERROR = Step(body=json.dumps(OVERLOADED).encode())


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        pytest.param("pydantic-ai", NO_CHOICES, id="no choices"),
        pytest.param("pydantic-ai", ERROR, id="an error with status 200"),
        pytest.param("pydantic-ai", SURROGATE, id="a lone surrogate"),
        pytest.param("langchain", NO_CHOICES, id="no choices for LangChain"),
        pytest.param("langchain", ERROR, id="an error with status 200 for LangChain"),
    ],
)
def test_a_writer_repeats_a_turn_without_a_readable_answer(tmp_path, kind, step):
    with OpenAIServer([step, LIKES_TANGO, says("done")]) as server:
        model = model_at(server.url)
        if kind == "langchain":
            chat_models = pytest.importorskip("langchain_openai")
            model = chat_models.ChatOpenAI(model="any", base_url=server.url, api_key=SECRET)
        diary = Diary(tmp_path, agent=model)
        with MemoryWriter(diary, retry=RetryPolicy(first_pause=0.01)) as writer:
            writer.submit_nowait(Turn("alice", "s1", "I love tango.", "Noted.")).wait(60)
    assert likes(diary) == ["loves tango"]


def test_the_last_failure_is_no_private_name(tmp_path):
    with OpenAIServer([NO_CHOICES]) as server:
        diary = Diary(tmp_path, agent=model_at(server.url))
        with MemoryWriter(diary, retry=RetryPolicy(attempts=1)) as writer:
            receipt = writer.submit_nowait(Turn("alice", "s1", "I love tango.", "Noted."))
            with pytest.raises(ExtractionError):
                receipt.wait(60)
            assert writer.stats()["last_failure"] == "UnreadableResponse."


@pytest.mark.parametrize(("breaks", "requests"), [(1, 3), (2, 5)])
def test_a_writer_repeats_a_later_request_of_a_run_once(tmp_path, breaks, requests):
    note = calls(("upsert_preference", {"category": "likes", "id": "new", "text": "Loves tango"}))
    steps = [note, *[resets()] * breaks, *([note] if breaks > 1 else []), says("done")]
    with OpenAIServer(steps) as server:
        diary = Diary(tmp_path, agent=model_at(server.url))
        with MemoryWriter(diary, retry=RetryPolicy(first_pause=0.01)) as writer:
            writer.submit_nowait(Turn("alice", "s1", "I love tango.", "Noted.")).wait(60)
    assert len(server.requests) == requests
    assert len(diary.user("alice").preferences("likes")) == 1


def test_the_retry_delay_of_a_server_is_respected():
    with OpenAIServer([status(429, retry_after=0.6), says("done")]) as server:
        diary = Diary("memory:", agent=model_at(server.url))  # imports the client
        begin = time.monotonic()
        add_turn(diary)
    assert time.monotonic() - begin >= 0.6
    assert len(server.requests) == 2


def test_a_server_that_asks_for_an_hour_is_not_waited_for():
    with OpenAIServer([status(429, retry_after=3600)]) as server:
        begin = time.monotonic()
        told = failure(Diary("memory:", agent=model_at(server.url)))
    assert "too many requests" in told
    assert time.monotonic() - begin < 10
    assert len(server.requests) == 1


def update_memory(diary):
    asyncio.run(diary.update_memory("alice", "s1", "I love tango.", "Noted."))


@pytest.mark.parametrize("door", [add_turn, update_memory])
def test_a_model_that_does_not_answer_times_out(door):
    with OpenAIServer([slow(threading.Event())]) as server:
        diary = Diary("memory:", agent=model_at(server.url), extraction_timeout=0.2)
        with pytest.raises(ExtractionError, match=r"longer than 0\.2 s") as caught:
            door(diary)
    assert "extraction_timeout" in str(caught.value)


def test_an_extraction_timeout_of_zero_is_refused():
    with pytest.raises(InvalidValue, match="extraction_timeout"):
        Diary("memory:", extraction_timeout=0)


def test_the_error_for_an_odd_response_does_not_quote_it():
    def answer(_messages, _info):
        raise UnexpectedModelBehavior("the response is odd", "You love tango.")

    told = failure(Diary("memory:", agent=FunctionModel(answer)))
    assert "the response is odd" in told
    assert "tango" not in told


def test_the_error_for_an_endless_model_has_no_wrong_advice():
    with OpenAIServer([calls("list_categories")]) as server:
        told = failure(Diary("memory:", agent=model_at(server.url)))
    assert "20 requests" in told
    assert "Name another model" in told
    assert "limit" not in told
    assert len(server.requests) == 20
