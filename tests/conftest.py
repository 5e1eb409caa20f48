"""What all tests share: a quiet Hypothesis, and no way out to the network."""

from __future__ import annotations

import socket
import sys

import pytest
from hypothesis import settings

settings.register_profile("repo", database=None, print_blob=True)
settings.load_profile("repo")

_LOCAL = {"127.0.0.1", "::1", "localhost"}


@pytest.fixture(autouse=True)
def _network_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail any test that tries to reach another machine."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        if isinstance(address, tuple) and address[0] not in _LOCAL:
            raise AssertionError(f"a test tried to reach {address[0]}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(autouse=True)
def _model_requests_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail any test that lets pydantic-ai ask a model of a provider."""
    models = sys.modules.get("pydantic_ai.models")
    if models is not None:
        monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", False)


@pytest.fixture
def _asked_for(request: pytest.FixtureRequest) -> None:
    """Leave a long run out unless it is asked for with `-m torture`."""
    if request.config.getoption("markexpr") != "torture":
        pytest.skip("long; run with -m torture")
