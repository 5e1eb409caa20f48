"""The log is standard logging below `tomldiary`, silent until asked, and the host's handlers are the host's."""

from __future__ import annotations

import io
import logging
import stat
import subprocess
import sys

import pytest

from tomldiary import logging as log

ROOT = logging.getLogger("tomldiary")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """Each test reads the environment anew and leaves the logger as it was."""
    monkeypatch.delenv("TOMLDIARY_LOG_FILE", raising=False)
    monkeypatch.delenv("TOMLDIARY_LOG_LEVEL", raising=False)
    monkeypatch.setattr(log, "_environment_read", False)
    level, handlers = ROOT.level, list(ROOT.handlers)
    yield
    for handler in set(ROOT.handlers) - set(handlers):
        ROOT.removeHandler(handler)
        handler.close()
    ROOT.setLevel(level)


def file_handlers():
    return [handler for handler in ROOT.handlers if isinstance(handler, logging.FileHandler)]


IMPORT = """
import io, logging, sys
def state():
    loggers = {n: l for n, l in logging.root.manager.loggerDict.items() if not n.startswith("tomldiary")}
    return (list(logging.root.handlers), logging.root.level, logging.root.disabled, logging.lastResort,
            logging.getLogRecordFactory(), logging.getLoggerClass(), logging.root.manager.disable,
            {n: (getattr(l, "handlers", None), getattr(l, "level", None)) for n, l in loggers.items()})
host = io.StringIO()
logging.basicConfig(stream=host, level=logging.WARNING)
logging.getLogger("host").addHandler(logging.StreamHandler(host))
before = state()
import tomldiary.logging
assert state() == before, "importing changed the host's logging"
own = logging.getLogger("tomldiary")
assert [type(h) for h in own.handlers] == [logging.NullHandler], own.handlers
assert own.propagate and own.level == logging.NOTSET
assert not hasattr(sys.modules.get("loguru"), "logger")
tomldiary.logging.configure_stdlib_logging_intercept()
tomldiary.logging.get_logger("x").warning("seen by the host")
assert state() == before
assert host.getvalue() == "WARNING:tomldiary.x:seen by the host\\n", host.getvalue()
"""


def test_importing_leaves_root_and_every_other_logger_alone():
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_opens_no_file_even_if_one_is_named(tmp_path):
    file = tmp_path / "log"
    source = "import tomldiary.logging"
    env = {"TOMLDIARY_LOG_FILE": str(file), "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", source], env=env, check=True)
    assert not file.exists()


def test_without_a_host_handler_nothing_is_printed():
    source = "from tomldiary.logging import get_logger; get_logger('x').error('quiet')"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("tomldiary", "tomldiary"),
        ("tomldiary.writer", "tomldiary.writer"),
        ("writer", "tomldiary.writer"),
        ("tomldiary_langgraph.store", "tomldiary.tomldiary_langgraph.store"),
        ("__main__", "tomldiary.__main__"),
        ("", "tomldiary"),
    ],
)
def test_every_logger_is_below_tomldiary(name, full):
    found = log.get_logger(name)
    assert found.name == full
    assert type(found) is logging.Logger


def test_reloading_adds_no_second_null_handler():
    source = "import importlib, logging, tomldiary.logging as t; importlib.reload(t); print(len(t.logger.handlers))"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"


def test_the_first_logger_appends_to_the_file_of_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "diary.log"
    monkeypatch.setenv("TOMLDIARY_LOG_FILE", str(file))
    root_handlers = list(logging.root.handlers)
    found = log.get_logger("writer")
    log.get_logger("other")
    assert len(file_handlers()) == 1
    assert not file.exists()
    found.info("kept %s", "日本")
    found.debug("below the level")
    assert file.read_text(encoding="utf-8").endswith("INFO tomldiary.writer: kept 日本\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert logging.root.handlers == root_handlers


def test_the_level_of_the_environment_is_applied(tmp_path, monkeypatch):
    monkeypatch.setenv("TOMLDIARY_LOG_FILE", str(tmp_path / "log"))
    monkeypatch.setenv("TOMLDIARY_LOG_LEVEL", "debug")
    log.get_logger("x").debug("now seen")
    assert ROOT.level == logging.DEBUG
    assert "now seen" in (tmp_path / "log").read_text()


def test_a_level_the_host_has_set_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("TOMLDIARY_LOG_FILE", str(tmp_path / "log"))
    ROOT.setLevel(logging.ERROR)
    log.configure_from_environment()
    assert ROOT.level == logging.ERROR


def test_configuring_again_replaces_only_the_own_file(tmp_path, monkeypatch):
    host = logging.FileHandler(tmp_path / "host.log", delay=True)
    ROOT.addHandler(host)
    for name in ("one", "two"):
        monkeypatch.setenv("TOMLDIARY_LOG_FILE", str(tmp_path / name))
        log.configure_from_environment()
    log.get_logger("x").info("moved")
    assert not (tmp_path / "one").exists()
    assert "moved" in (tmp_path / "two").read_text()
    monkeypatch.delenv("TOMLDIARY_LOG_FILE")
    log.configure_from_environment()
    assert file_handlers() == [host]


def test_an_unknown_level_is_ignored_with_a_warning(monkeypatch):
    monkeypatch.setenv("TOMLDIARY_LOG_LEVEL", "loud")
    with pytest.warns(
        RuntimeWarning, match="'LOUD' is not a level and is ignored. Use one of: DEBUG, "
    ):
        log.configure_from_environment()
    assert ROOT.level == logging.NOTSET


@pytest.mark.parametrize("file", ["no/such/folder/log", "~no-such-account/log"])
def test_a_log_that_cannot_be_opened_never_raises_into_the_caller(
    tmp_path, monkeypatch, capsys, file
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOMLDIARY_LOG_FILE", file)
    log.get_logger("x").info("lost")
    assert "FileNotFoundError" in capsys.readouterr().err


def test_urgent_lines_go_to_stderr_if_a_host_disables_the_loggers(monkeypatch, capsys):
    own = log.get_logger("x")
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler()])
    log.tell(own, "logged by the host")
    monkeypatch.setattr(ROOT, "disabled", True)
    log.tell(own, "shown")
    assert "tomldiary: shown" in capsys.readouterr().err.splitlines()


def test_a_line_for_once_is_still_shown_after_a_host_logged_it(monkeypatch, capsys):
    for handlers in ([logging.NullHandler(), logging.StreamHandler()], [], []):
        monkeypatch.setattr(logging.root, "handlers", handlers)
        log.show("is full", is_once=True)
    assert capsys.readouterr().err == "tomldiary: is full\n"


def test_a_stderr_that_cannot_be_written_fails_no_caller(monkeypatch):
    class Unread(io.StringIO):
        def write(self, text, /):
            raise BrokenPipeError

    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(logging.root, "handlers", [])
    for stream in (Unread(), closed):
        monkeypatch.setattr(sys, "stderr", stream)
        log.show("lost")


def test_there_is_nothing_to_intercept():
    before = list(logging.root.handlers), list(ROOT.handlers), ROOT.level
    assert log.configure_stdlib_logging_intercept() is None
    assert (list(logging.root.handlers), list(ROOT.handlers), ROOT.level) == before
    assert "nothing to intercept" in (log.configure_stdlib_logging_intercept.__doc__ or "")
