"""The environment of a backend: the file system, the clock and the limits, which tests replace."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from tomldiary.storage.files import FileSystem

SEGMENT_BYTES = 4 * 1024 * 1024
"""The size of a history segment at which the next one begins."""
CHECKPOINT_INTERVAL = 256
"""The number of transactions of a user between two checkpoints."""
_LINUX = Path("/proc/sys/kernel/random/boot_id")
_MACOS = b"kern.bootsessionuuid"
_BYTES = 6


class Clock:
    """The current time, with which file times are compared, and the boot of the system."""

    def time_ns(self) -> int:
        """Return the time, in nanoseconds since 1970."""
        return time.time_ns()

    def time(self) -> float:
        """Return the time, in seconds since 1970."""
        return self.time_ns() / 1e9

    def month(self) -> str:
        """Return the month in UTC, such as "2026-11"."""
        return f"{datetime.fromtimestamp(self.time(), UTC):%Y-%m}"

    def boot_id(self) -> str:
        """Return an identifier of this boot of the system; "" on systems without one."""
        return _boot_id()


@lru_cache(maxsize=1)
def _boot_id() -> str:
    try:
        return _LINUX.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return _macos_session() if sys.platform == "darwin" else ""


def _macos_session() -> str:
    import ctypes  # noqa: PLC0415 - only needed on macOS

    call = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    found, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    if call is None or call(_MACOS, found, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return ""
    return found.value.decode("ascii", "replace")


@dataclass(frozen=True, slots=True)
class Environment:
    """The file system, the clock and the limits of one backend."""

    files: FileSystem = field(default_factory=FileSystem)
    clock: Clock = field(default_factory=Clock)
    segment_bytes: int = SEGMENT_BYTES
    checkpoint_interval: int = CHECKPOINT_INTERVAL

    def boot_of(self, folder: str | Path) -> str:
        """Return a fingerprint of this boot and the folder; "" on systems without a boot identifier.

        Raises:
            OSError: The folder does not exist.
        """
        boot = self.clock.boot_id()
        if not boot:
            return ""
        identity = f"{boot} {self.files.identity(folder)}"
        return blake2b(identity.encode(), digest_size=_BYTES).hexdigest()
