"""Having the disk begin before somebody waits for it.

A sync first hands over what is to be written, and then waits for it. Whoever hands it over earlier has the disk
work while they do something else: look whether what they relied on still holds, or hand over the next file.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tomldiary.runtime.capabilities import offers

__all__ = ["start_writing"]

_WRITE = 2  # SYNC_FILE_RANGE_WRITE: begin, and wait for nothing


def start_writing(descriptor: int, begin: int, end: int) -> None:
    """Have the system begin to write a part of a file to the disk, where it can; a sync has to follow.

    See sync_file_range(2). It says nothing of what is on the disk afterwards, so its errors are left to the sync.
    """
    call = _sync_file_range()
    if call is not None:
        call(descriptor, begin, end - begin, _WRITE)


@lru_cache(maxsize=1)
def _sync_file_range() -> Any:
    """Return the system's call, or None."""
    if not offers("writeback"):
        return None
    import ctypes  # noqa: PLC0415 - only writers need it

    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call
