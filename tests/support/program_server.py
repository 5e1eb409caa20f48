"""A process that imports modules once, and is forked for each program that `programs` starts.

    program_server.py SOCKET MODULES...

A request has the arguments of Python, a folder, the environment, and whether Python tears down the modules. It comes
with four descriptors: the program's streams, and a pipe that gets its process id at first, and its exit code at the end.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import json
import os
import re
import runpy
import select
import signal
import socket
import sys
import threading
import types
import warnings

running: dict[int, int] = {}
"""The status pipes of running programs by their process ids."""


def report() -> None:
    """Write the exit codes of programs that have ended to their status pipes."""
    while running:
        child, code = os.waitpid(-1, os.WNOHANG)
        if not child:
            break
        status = running.pop(child)
        with contextlib.suppress(BrokenPipeError):
            os.write(status, b"%d\n" % os.waitstatus_to_exitcode(code))
        os.close(status)


def next_program(control: socket.socket) -> list:
    """Wait for requests; return each one in a child of its own, and never in this process."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a program that ends writes to the pipe
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            os.read(woken, 1 << 16)
            report()
        if control not in ready:
            continue
        request, descriptors, *_ = socket.recv_fds(control, 1 << 20, 4)
        if not request:
            os._exit(0)
        *streams, status = descriptors
        child = os.fork()
        if child:
            for each in streams:
                os.close(each)
            running[child] = status
            with contextlib.suppress(BrokenPipeError):
                os.write(status, b"%d\n" % child)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        for each in (woken, wake, *running.values()):
            os.close(each)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.close(status)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - they are the streams of the process
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - they are the streams of the process
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - they are the streams of the process
        return json.loads(request)


_codes: list[int] = []
"""The exit code of this program, once it has ended without an error."""


def leave() -> None:
    """End a program after its other exit functions: Python's teardown of all modules takes 50 to 150 ms of CPU."""
    # Python stops daemon threads before it clears a module.
    if not _codes or threading.active_count() > 1:
        return
    program = vars(sys.modules["__main__"])
    if program is not globals():
        while program:
            program.popitem()  # the last name first: what it refers to is still there
    gc.collect()  # what the program left open is a warning
    with contextlib.suppress(Exception):  # Python reports it, and changes the exit code
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_codes[0])


def main() -> None:
    number, *modules = sys.argv[1:]
    atexit.register(leave)
    gc.disable()  # what is imported stays
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # a program that ends need not look at it
    gc.enable()
    (first, *arguments), folder, environment, teardown = next_program(
        socket.socket(fileno=int(number))
    )
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if teardown:
        atexit.unregister(leave)
    sys.path[0:1] = ["", *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    while first == "-W":
        option, first, *arguments = arguments
        action, message, category = (*option.split(":"), "", "Warning")[:3]
        warnings.filterwarnings(action, re.escape(message), getattr(builtins, category))
    try:
        run(first, arguments)
    except SystemExit as ending:
        if ending.code is None or isinstance(ending.code, int):
            _codes.append((ending.code or 0) & 0xFF)
        raise
    _codes.append(0)


def run(first: str, arguments: list[str]) -> None:
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
