"""Imports and builds what a first write needs, once, in the process that others are forked from."""

from __future__ import annotations

import gc
import tempfile

from tomldiary.diary import Diary


def _use_a_memory() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for text in ("tea", "coffee"):
            alice = Diary(folder, agent="rules", durability="process").user("alice")
            alice.upsert_preference("likes", text)
            alice.recall(text)


_use_a_memory()
gc.freeze()
