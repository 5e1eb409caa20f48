"""Waits for what other threads and processes do, as long as a busy machine needs."""

from __future__ import annotations

import time

LONG = 120  # seconds; nothing waits that long unless it is broken


def until(claim, seconds=LONG):
    """Wait until a claim holds."""
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.002)
