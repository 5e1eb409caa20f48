"""Each test runs on every database server."""

from __future__ import annotations

import pytest

import shared_engines


@pytest.fixture(params=shared_engines.NAMES)
def engine(request):
    """A new space in each of the servers."""
    return shared_engines.engine(request.param)


@pytest.fixture
def opened(engine):
    """Opens backends on the space, and closes them after the test."""
    backends = []

    def open_one():
        backends.append(engine.backend())
        return backends[-1]

    yield open_one
    for backend in backends:
        backend.close()
