"""Runs `tomldiary`, in this process or in one of its own."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import programs
from tomldiary.__main__ import main

ROOT = Path(__file__).parents[2]


def not_done(options):
    """Return the last line of a command that changed nothing, given these options."""
    what = "Use --yes instead of --dry-run" if "--dry-run" in options else "Add --yes"
    return f"Nothing was changed. {what} to apply the changes."


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def call(*arguments, cwd=None, check=None, encoding="utf-8", **environment):
    """Run a command in this process; return its exit code and what it printed."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding, write_through=True) for _ in range(2)]
    code = 0
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "80", **environment}),
        mock.patch.object(sys, "argv", ["tomldiary", *map(str, arguments)]),
        mock.patch.object(sys.modules["__main__"], "__package__", ""),  # as the installed program
        contextlib.chdir(cwd or ROOT),
        contextlib.redirect_stdout(streams[0]),
        contextlib.redirect_stderr(streams[1]),
    ):
        try:
            main()
        except SystemExit as error:
            code = error.code or 0
    done = Done(code, *(stream.buffer.getvalue().decode() for stream in streams))
    if check is not None:
        assert done.returncode == check, done.stderr
    return done


def program(*arguments, **environment):
    """Run a command in a process of its own."""
    env = {**os.environ, **environment}
    return programs.run("-m", "tomldiary", *arguments, cwd=ROOT, env=env, check=True)


def program_after(code, *arguments, **environment):
    """Run a command in a process that has run some code; return its exit code, and its output and errors in one text."""
    lines = ("import os, sys", code, "from tomldiary.__main__ import main", "main()")
    env = {**os.environ, **environment}
    reading, writing = os.pipe()
    streams = (0, writing, writing)
    started = programs.start("-c", "\n".join(lines), *arguments, streams=streams, env=env)
    os.close(writing)
    with os.fdopen(reading) as file:
        told = file.read()
    return started.wait(), told
