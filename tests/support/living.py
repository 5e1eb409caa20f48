"""Counts the objects of a class in this process, to show that a cache does not grow without a limit."""

from __future__ import annotations

import gc


def objects_of(kind: type) -> int:
    gc.collect()
    return sum(isinstance(each, kind) for each in gc.get_objects())
