"""Conformance suites for your own storage: subclass a suite in your tests and run pytest.

from tomldiary.testing import BackendSuite

class TestMyBackend(BackendSuite):
    def make_backend(self, tmp_path):
        return MyBackend(...)

`StoreSuite` tests any LangGraph store in the same way. It requires langgraph.
"""

from __future__ import annotations

from tomldiary.errors import MissingExtra

try:
    import pytest
except ModuleNotFoundError as error:
    raise MissingExtra("tomldiary.testing", package="pytest") from error

pytest.register_assert_rewrite("tomldiary.testing.backend", "tomldiary.testing.store")

from tomldiary.testing.backend import (  # noqa: E402 - rewriting must be registered first
    AtomicBackendSuite,
    BackendSuite,
    SharedBackendSuite,
)
from tomldiary.testing.store import StoreSuite  # noqa: E402 - see above

__all__ = ["AtomicBackendSuite", "BackendSuite", "SharedBackendSuite", "StoreSuite"]
