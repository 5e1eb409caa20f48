"""File systems and clocks for tests: they refuse, interrupt, delay, count or leave out operations of storage."""

from __future__ import annotations

import os
import signal
import time

from tomldiary.storage.environment import Clock
from tomldiary.storage.files import FileSystem

READS = (
    "open", "read", "lseek", "stat", "lstat", "fstat", "scandir", "listdir", "open_to_read",
)  # fmt: skip
WRITES = (
    "write", "sync_file", "sync_data", "replace", "exchange", "link", "unlink", "mkdir", "rmdir",
    "ftruncate", "truncate", "set_mode", "chmod",
)  # fmt: skip
SKIPPED = object()
"""What a hook returns for an operation that is not to be made."""


class HookedFiles(FileSystem):
    """Calls a hook before each operation, with its name, the path of the file, and the further arguments.

    The hook may raise an error. It may return SKIPPED or, in place of the bytes to write, fewer bytes.
    """

    def __init__(self, hook=None):
        self.hook = hook
        self.paths = {}  # by descriptor

    def close(self, descriptor):
        self.paths.pop(descriptor, None)
        os.close(descriptor)

    def dup(self, descriptor):
        copy = os.dup(descriptor)
        self.paths[copy] = self.paths[descriptor]
        return copy

    def remove_tree(self, path):
        """Make the operations that `shutil.rmtree` makes."""
        for entry in list(self.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                self.remove_tree(entry.path)
            else:
                self.unlink(entry.path)
        self.rmdir(path)


def _hooked(name):
    real = getattr(FileSystem, name)

    def call(self, target, *args, **kwargs):
        is_open = isinstance(target, int)
        path = self.paths.get(target, "") if is_open else os.fspath(target)
        said = self.hook(name, path, *args) if self.hook is not None else None
        if said is SKIPPED:
            return None
        if said is not None:
            args = (said,)
        done = real(target, *args, **kwargs)
        if name == "open":
            self.paths[done] = path
        return done

    return call


for _name in (*READS, *WRITES):
    setattr(HookedFiles, _name, _hooked(_name))


class SetClock(Clock):
    """A clock that is set ahead, and a boot with a name."""

    def __init__(self, boot="this boot", *, ahead=0.0):
        self.boot = boot
        self.ahead = ahead  # seconds

    def time_ns(self):
        return time.time_ns() + int(self.ahead * 1e9)

    def boot_id(self):
        return self.boot


def killed_before(number, operations=("open", *WRITES)):
    """Return a hook that kills this process right before the n-th of these operations."""
    left = number

    def hook(name, _path, *_args):
        nonlocal left
        left -= name in operations
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook
