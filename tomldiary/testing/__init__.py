"""Conformance suites for storage of your own: subclass one in your tests and run pytest.

from tomldiary.testing import BackendSuite

class TestMyBackend(BackendSuite):
    def make_backend(self, tmp_path):
        return MyBackend(...)
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tomldiary.testing.backend_suite")

from tomldiary.testing.backend_suite import BackendSuite  # noqa: E402 - rewriting has to come first

__all__ = ["BackendSuite"]
