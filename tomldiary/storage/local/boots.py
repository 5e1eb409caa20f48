"""Which boot of the system wrote a record, so that a power cut is told without trusting any clock.

A running system shows every process what was written to a file, whether it is on the disk or not. Only what was
written under another boot, or on a disk that was moved, restored or copied here, can lack what was not synced.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tomldiary.history.record import Record

__all__ = ["boot_of", "may_lack_writes"]

_LINUX = Path("/proc/sys/kernel/random/boot_id")
_MACOS = b"kern.bootsessionuuid"
_BYTES = 6


def boot_of(folder: str | Path) -> str:
    """Return a fingerprint of this boot and of the folder's identity; "" where the system does not tell its boot.

    The identity is the device and the inode: a copy, or a disk mounted again elsewhere, has another one.

    Raises:
        OSError: There is no such folder.
    """
    boot = _boot_id()
    if not boot:
        return ""
    found = os.stat(folder)  # noqa: PTH116 - once for each user and process
    identity = f"{boot} {found.st_dev} {found.st_ino}"
    return blake2b(identity.encode(), digest_size=_BYTES).hexdigest()


def may_lack_writes(folder: Path, record: Record) -> bool:
    """Return whether documents may lack what was written up to a record, as another boot wrote it.

    Args:
        folder: The user's.
        record: The last one of history.
    """
    return not record.boot or record.boot != boot_of(folder)


@lru_cache(maxsize=1)
def _boot_id() -> str:
    try:
        return _LINUX.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return _macos_session() if sys.platform == "darwin" else ""


def _macos_session() -> str:
    import ctypes  # noqa: PLC0415 - only needed there

    call = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    found, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    if call is None or call(_MACOS, found, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return ""
    return found.value.decode("ascii", "replace")
