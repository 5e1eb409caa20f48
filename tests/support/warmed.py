"""Imported by the process that workers are forked from: what each would build at its first write is built."""

from __future__ import annotations

import torture  # noqa: F401 - what the workers run
from tomldiary.diary import Diary

Diary("memory:", agent="rules").user("alice").upsert_preference("likes", "nothing")
