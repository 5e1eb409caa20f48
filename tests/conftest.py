"""What tests share: settings, no network, and folders to work in."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import itertools
import logging
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines import close_opened, engine, opened, with_one_of_each_file  # noqa: F401 - fixtures of all tests
from file_systems import HookedFiles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.storage.files import FileSystem

# Else each process that runs tests, or that a test starts, would compile the tests and the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# No test reaches another machine, and to load all its certificates takes each client of a model 30 ms.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.fspath(Path(__file__).parent)
# A shell starts jobs in the background without interrupts, and the processes of tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline for an example: a loaded machine would fail it.
settings.register_profile("repo", database=None, deadline=None, print_blob=True)
settings.load_profile("repo")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """One more than there are cores: many tests wait for a disk or for other processes."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist takes the number from there
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else 2


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exempt from garbage collection what lives as long as the run: all frameworks, and thousands of tests."""
    gc.disable()
    try:
        with _compiled_once():
            return (yield)
    finally:
        _any_property()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)  # by default, much time goes to garbage
        gc.enable()


_modules = {"frozen": 0}


def _freeze_imported() -> None:
    """Exempt also what tests imported, such as clients of models: each collection would go through 400,000 objects."""
    if len(sys.modules) > _modules["frozen"] + 200:
        gc.collect()
        gc.freeze()
        _modules["frozen"] = len(sys.modules)


@contextlib.contextmanager
def _compiled_once() -> Iterator[None]:
    """In a clean tree or environment, let one worker collect first: each would compile the same modules."""
    if "PYTEST_XDIST_WORKER" not in os.environ or _is_compiled():
        yield
        return
    with Path(__file__).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def _is_compiled() -> bool:
    """Whether the last folder of tests is compiled."""
    return (Path(__file__).parent / "writer/__pycache__").exists()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out tests of methods that a store lacks, and skip the tests that lack a server once for each file."""
    items[:] = with_one_of_each_file([item for item in items if _has_surface(item)])


def _has_surface(item: pytest.Item) -> bool:
    surface = item.callspec.params.get("surface") if hasattr(item, "callspec") else None
    return surface is None or surface in item.cls.surfaces


@given(st.none())
def _any_property(_nothing: None) -> None:
    """Let Hypothesis create its generator now: it warns, on 3.14 with CI set, when only frozen objects refer to one."""


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """End a forked child that comes out of a test: it would report as the process that runs the tests."""
    runner = os.getpid()
    try:
        return (yield)
    finally:
        if os.getpid() != runner:
            traceback.print_exc()
            os._exit(70)


_LOCAL = {"127.0.0.1", "::1", "localhost"}
_connect = socket.socket.connect


def _connect_here(self: socket.socket, address: object) -> None:
    """Fail any test that tries to reach another machine."""
    if isinstance(address, tuple) and address[0] not in _LOCAL:
        raise AssertionError(f"a test tried to reach {address[0]}")
    _connect(self, address)


@pytest.fixture(autouse=True)
def _surroundings() -> Iterator[None]:
    """Begin each test in the same surroundings; one fixture, because thousands of tests set it up."""
    _freeze_imported()
    socket.socket.connect = _connect_here
    # The first releases of pydantic-ai 2 raise the level while they read a docstring; two threads leave it raised.
    if logging.root.level != logging.WARNING:  # to set it empties a cache of every logger
        logging.root.setLevel(logging.WARNING)
    # A writer that is closed may finish its turns however slow the machine is; tests of the limit name one.
    writer = sys.modules.get("tomldiary.writer.writer")
    if writer is not None:
        writer.SHUTDOWN_TIMEOUT = 300
        # Each of thousands of writers starts these threads, which takes 10 ms; each worker has a thread in any case.
        sys.modules["tomldiary.writer.worker"].THREADS = 1
    # No test may ask a model of a provider.
    models = sys.modules.get("pydantic_ai.models")
    if models is not None:
        models.ALLOW_MODEL_REQUESTS = False
    yield
    # A connection that is only collected is a warning in a later test.
    close_opened()


@pytest.fixture
def _asked_for(request: pytest.FixtureRequest) -> None:
    """Leave a long run out unless it is asked for with `-m torture`."""
    if request.config.getoption("markexpr") != "torture":
        pytest.skip("long; run with -m torture")


_numbers = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new folder; that of pytest lists those of all earlier tests first, which is slow after thousands of them."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{name}-{next(_numbers)}"
    folder.mkdir(0o700)
    return folder


@contextlib.contextmanager
def _folder_in_memory() -> Iterator[Path]:
    shm = Path("/dev/shm")  # noqa: S108 - of the system; where it is missing the usual place will do
    folder = Path(tempfile.mkdtemp(dir=shm if shm.is_dir() else None, prefix="tomldiary-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder in memory where the system has one, for tests that need no real disk and make many writes."""
    with _folder_in_memory() as folder:
        yield folder


@pytest.fixture(scope="module")
def disk_of_module() -> Iterator[Path]:
    """Such a folder for all tests of a module."""
    with _folder_in_memory() as folder:
        yield folder


@pytest.fixture
def files() -> FileSystem:
    """The file system of a diary; a test may replace its operations."""
    return HookedFiles()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of alice's preferences, as a person finds it."""
    return tmp_path / "alice/preferences.toml"
