"""Programs in processes of their own that need not import: one process has imported all, and is forked for each.

A program has its own process id, streams, environment and folder. It can be killed. Its threads and its exit functions
end in the usual way, and what it left open is a warning, unless a module that it imported refers to it. Python tears
down the modules only after an error, beside daemon threads, and with `teardown=True`, which tests of the end of a
program need. Tests of what happens as Python starts, or of options of Python, have to start it themselves.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import program_server

CORE = ("tomldiary.diary", "tomldiary.writer.writer", "warmed")
FRAMEWORKS = (
    *("langchain.agents", "langgraph.graph", "pydantic_ai"),
    *("tomldiary_langchain", "tomldiary_langgraph", "tomldiary_pydantic_ai"),
    "pydantic_ai.models.function",
    *CORE,
)


class Program:
    """A program that was started, with the part of `subprocess.Popen` that tests need."""

    def __init__(self, status, stdin=None, stdout=None):
        self.pid = int(status.readline())
        self.stdin, self.stdout = stdin, stdout
        self.returncode = None
        self._status = status

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout=120):
        """Return the exit code once the program has ended; it is negative after a signal."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a program", timeout)
            with self._status:
                self.returncode = int(self._status.readline())
        return self.returncode

    def communicate(self, text="", timeout=300):
        """Write a text, end the input, and return the rest of the output once the program has ended.

        A program that runs longer is killed, which its exit code shows.
        """
        watch = threading.Timer(timeout, self.kill)
        watch.start()
        try:
            with contextlib.suppress(BrokenPipeError), self.stdin:
                self.stdin.write(text)
            with self.stdout:
                said = self.stdout.read()
            self.wait()
        finally:
            watch.cancel()
        return said


def start(*arguments, imported=CORE, cwd=None, env=None, streams=None, teardown=False):
    """Start a program with these arguments of Python; unless it gets descriptors, its input and output are pipes."""
    if streams is not None:
        return Program(_request(arguments, streams, imported, cwd, env, teardown))
    (its_stdin, stdin), (stdout, its_stdout) = os.pipe(), os.pipe()
    status = _request(arguments, (its_stdin, its_stdout, 2), imported, cwd, env, teardown)
    os.close(its_stdin)
    os.close(its_stdout)
    return Program(status, os.fdopen(stdin, "w", buffering=1), os.fdopen(stdout))


def run(*arguments, check=False, timeout=120, stdin=os.devnull, **options):
    """Run a program with these arguments of Python; return what `subprocess.run` would, in text.

    It reads its input from the file `stdin`. The other options are those of `start`.
    """
    with (
        Path(stdin).open() as given,
        tempfile.TemporaryFile("w+", encoding="utf-8") as stdout,
        tempfile.TemporaryFile("w+", encoding="utf-8") as stderr,
    ):
        streams = [each.fileno() for each in (given, stdout, stderr)]
        program = start(*arguments, streams=streams, **options)
        program.wait(timeout)
        for each in (stdout, stderr):
            each.seek(0)
        said = stdout.read(), stderr.read()
    done = subprocess.CompletedProcess(arguments, program.returncode, *said)
    if check:
        done.check_returncode()
    return done


def _request(arguments, streams, imported, cwd, env, teardown):
    """Have a program started; return the pipe that tells its process id and its exit code."""
    environment = dict(os.environ if env is None else env)
    request = json.dumps([[*map(str, arguments)], str(cwd or Path.cwd()), environment, teardown])
    reading, writing = os.pipe()
    socket.send_fds(_connection(imported), [request.encode()], [*streams, writing])
    os.close(writing)
    return os.fdopen(reading)


@functools.cache
def _connection(imported):
    """Start a process that imports these modules; return the connection to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, program_server.__file__, str(theirs.fileno()), *imported],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours
