"""Processes that tests let loose at once or have killed, and what is left of one that is gone."""

from __future__ import annotations

import os
import threading

import programs

# Warnings are errors, but for those of pyproject.toml.
_IGNORED = [
    "ignore:'asyncio.iscoroutinefunction' is deprecated:DeprecationWarning",
    "ignore:Package google:FutureWarning",
    "ignore:grpcio < 1.83.0:FutureWarning",
]
STRICT = ["-W", "error", *(option for each in _IGNORED for option in ("-W", each))]


def as_user(number, work):
    """Return the text that `work` returns in a forked process of another user; a user other than root stays the same."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(number)
                os.setuid(number)
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        told = file.read()
    os.waitpid(child, 0)
    return told


def run_at_once(code, *arguments, imported=programs.CORE):
    """Run code with each of these lists of arguments, from the moment on at which all of them are ready.

    The code prints "ready" then, and waits for a line.
    """
    started = [programs.start("-c", code, *each, imported=imported) for each in arguments]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("go\n")
    for process in started:
        process.communicate()
        assert process.returncode == 0


def newest_thread():
    """Return the thread of the writer that was started last."""
    return [each for each in threading.enumerate() if each.name == "tomldiary-writer"][-1]


def close(diary):
    """Let go of a diary's locks, like the end of its process."""
    diary.engine.backend._locks.renew()
