"""Marks for tests of what only some systems promise; `TOMLDIARY_WITHOUT` switches such a capability off."""

from __future__ import annotations

import os

import pytest

from tomldiary.storage.files import offers

needs_exchange = pytest.mark.skipif(
    not offers("exchange"), reason="files are exchanged on Linux and macOS"
)
needs_leases = pytest.mark.skipif(not offers("leases"), reason="open files are leased on Linux")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
