"""A process that imports modules once, and is forked for each program that `programs` starts.

    program_server.py SOCKET MODULES...

It listens at the socket, and ends with the last connection.

A request has the arguments of Python, a folder and the environment, and comes with four descriptors: the program's
streams, and a pipe that gets its process id at first, and its exit code at the end.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import json
import os
import re
import runpy
import select
import socket
import sys
import types
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def requests(listening: socket.socket, connections: list[socket.socket]) -> Iterator[tuple]:
    """Yield requests with their descriptors until the last connection is closed."""
    while True:
        for each in select.select([listening, *connections], [], [])[0]:
            if each is listening:
                connections.append(listening.accept()[0])
                with contextlib.suppress(BrokenPipeError):  # the worker has ended meanwhile
                    connections[-1].send(b"!")
                continue
            request, descriptors, *_ = socket.recv_fds(each, 1 << 20, 4)
            if request:
                yield request, descriptors
                continue
            connections.remove(each)
            each.close()
            if not connections:
                sys.exit()


def next_program(listening: socket.socket) -> list:
    """Wait for requests; return each one in a child of its own, and never in this process."""
    connections: list[socket.socket] = []
    for request, descriptors in requests(listening, connections):
        if os.fork():
            for each in descriptors:
                os.close(each)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            continue
        for each in (listening, *connections):
            each.close()
        *streams, status = descriptors
        if child := os.fork():
            for each in streams:
                os.close(each)
            os.write(status, b"%d\n" % child)
            os.write(status, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            os._exit(0)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.close(status)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - they are the streams of the process
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - they are the streams of the process
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - they are the streams of the process
        return json.loads(request)
    raise AssertionError  # the process ends with the last connection


def main() -> None:
    number, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # a program that ends need not look at it
    (first, *arguments), folder, environment = next_program(socket.socket(fileno=int(number)))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0:1] = ["", *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    while first == "-W":
        option, first, *arguments = arguments
        action, message, category = (*option.split(":"), "", "Warning")[:3]
        warnings.filterwarnings(action, re.escape(message), getattr(builtins, category))
    if first == "-c":
        code, *rest = arguments
        sys.argv = ["-c", *rest]
        program = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(program))  # noqa: S102 - the program of a test
    elif first == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *arguments]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main()
