"""The ways to name a model that docs/models.md shows reach an OpenAI-compatible server."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest
from test_readme import ROOT, blocks

from openai_server import OpenAIServer, calls, says
from tomldiary import Diary
from tomldiary.errors import ExtractorUnusable

pytestmark = pytest.mark.skipif(
    not (find_spec("openai") and find_spec("pydantic_ai")),
    reason='pip install "tomldiary-kit[openai,pydantic-ai]"',
)
PAGE = ROOT / "docs/models.md"
STEPS = [
    calls(("upsert_preference", {"category": "likes", "text": "green tea"})),
    says("done"),
]


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    from pydantic_ai import models  # noqa: PLC0415 - optional

    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", True)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OLLAMA_BASE_URL", "EXTRACTOR_MODEL"):
        monkeypatch.delenv(name, raising=False)
    with OpenAIServer(STEPS) as server:
        yield server


def remembers(diary, server):
    alice = diary.user("alice")
    alice.add_turn("I like green tea.", "Noted.", session_id="s")
    assert [item.text for item in alice.preferences("likes").values()] == ["green tea"]
    assert len(server.requests) == len(STEPS)
    assert all("messages" in request for request in server.requests)  # chat completions
    return server.requests[0]["model"]


def test_the_page_s_own_server_is_asked(server):
    code = next(block.text for block in blocks(PAGE) if "OpenAIProvider(" in block.text)
    names = {}
    exec(code.replace("http://localhost:11434/v1", server.url), names)  # noqa: S102 - what the page shows
    assert remembers(names["diary"], server) == "qwen3"


def test_a_compatible_server_can_be_named_by_the_environment(server, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.setenv("EXTRACTOR_MODEL", "openai-chat:qwen3")
    assert remembers(Diary("m"), server) == "qwen3"


def test_a_missing_key_is_named_with_what_to_do(server):
    with pytest.raises(
        ExtractorUnusable, match=r"^the model .* needs a key: set OPENAI_API_KEY"
    ) as error:
        Diary("m").user("alice").add_turn("I like green tea.", "Noted.", session_id="s")
    assert "pydantic" not in str(error.value).lower()


def test_ollama_can_be_named_by_the_environment(server, monkeypatch):
    monkeypatch.setenv("OLLAMA_BASE_URL", server.url)
    assert remembers(Diary("m", agent="ollama:qwen3"), server) == "qwen3"


def test_a_langchain_model_reaches_a_compatible_server(server):
    openai = pytest.importorskip("langchain_openai")
    model = openai.ChatOpenAI(model="qwen3", base_url=server.url, api_key="any")
    assert remembers(Diary("m", agent=model), server) == "qwen3"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("openai:gpt-5-mini", "OpenAIResponsesModel"), ("openai-chat:gpt-5-mini", "OpenAIChatModel")],
)
def test_openai_names_mean_the_interface_that_the_page_says(name, kind, monkeypatch):
    from pydantic_ai.models import infer_model  # noqa: PLC0415 - optional

    monkeypatch.setenv("OPENAI_API_KEY", "any")
    assert type(infer_model(name)).__name__ == kind


def test_every_provider_of_the_table_is_known_to_pydantic_ai():
    from pydantic_ai.models import known_model_names  # noqa: PLC0415 - optional

    known = {name.partition(":")[0] for name in known_model_names()}
    named = set(re.findall(r'`"([a-z-]+):', PAGE.read_text("utf-8")))
    assert named - {"ollama"} <= known | {"openai-chat"}
