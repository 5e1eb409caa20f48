"""Conformance suites for storage of your own: subclass one in your tests and run pytest.

from tomldiary.testing import BackendSuite

class TestMyBackend(BackendSuite):
    def make_backend(self, tmp_path):
        return MyBackend(...)

`StoreSuite` is the same for LangGraph stores, of any origin; it needs langgraph.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tomldiary.testing.backend", "tomldiary.testing.store")

from tomldiary.testing.backend import (  # noqa: E402 - rewriting has to come first
    AtomicBackendSuite,
    BackendSuite,
    SharedBackendSuite,
)
from tomldiary.testing.store import StoreSuite  # noqa: E402 - see above

__all__ = ["AtomicBackendSuite", "BackendSuite", "SharedBackendSuite", "StoreSuite"]
