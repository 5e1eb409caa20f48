"""Fixtures for the tests of the writer."""

from __future__ import annotations

import pytest


@pytest.fixture
def short_grace(monkeypatch):
    """A writer waits only briefly for turns that ignore their cancellation."""
    monkeypatch.setattr("tomldiary.writer.writer._GRACE", 0.1)  # seconds
