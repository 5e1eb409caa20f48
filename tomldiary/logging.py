"""The library's log: standard `logging` below the name `tomldiary`, silent by default.

What a person has to know at once, such as a missing key, goes to stderr as well where no logging is configured.

Importing adds a NullHandler to the `tomldiary` logger and changes nothing else. A host application configures that
logger like any other. Two environment variables do it without code:

TOMLDIARY_LOG_LEVEL : DEBUG, INFO, WARNING, ERROR or CRITICAL; sets the level of the `tomldiary` logger
TOMLDIARY_LOG_FILE  : a file the records are appended to; it is created readable by its owner only
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import TextIOWrapper

__all__ = [
    "configure_from_environment",
    "configure_stdlib_logging_intercept",
    "get_logger",
    "logger",
    "show",
    "tell",
]

_ROOT = "tomldiary"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

logger = logging.getLogger(_ROOT)
"""The logger that all others of this library are below."""

if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
    logger.addHandler(logging.NullHandler())

_lock = threading.Lock()
_environment_read = False


class _PrivateFileHandler(logging.FileHandler):
    """Appends to a file of mode 0600, opened at the first record; never raises into the caller."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", delay=True)

    def _open(self) -> TextIOWrapper:
        # Path.open takes no opener, and only an opener creates the file with its mode from the start.
        return open(self.baseFilename, "a", encoding="utf-8", opener=_open_private)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # a log that cannot be opened must not fail the write it reports on
            self.handleError(record)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def get_logger(name: str) -> logging.Logger:
    """The logger `tomldiary.<name>`; the first call applies the environment variables.

    Args:
        name: Usually `__name__`. A name that is not below `tomldiary` is put there.
    """
    if not _environment_read:
        configure_from_environment()
    if name == _ROOT or name.startswith(f"{_ROOT}."):
        return logging.getLogger(name)
    return logging.getLogger(f"{_ROOT}.{name}" if name else _ROOT)


def show(text: str) -> None:
    """Write a line to stderr, unless a handler of the host or of the environment gets the library's records."""
    each: logging.Logger | None = logger
    while each is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in each.handlers):
            return
        each = each.parent if each.propagate else None
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison] - None in programs without a console
        print(f"tomldiary: {text}", file=sys.stderr)  # noqa: T201 - its purpose


def tell(log: logging.Logger, text: str, level: int = logging.WARNING) -> None:
    """Log a text that a person has to know at once: it is shown on stderr where no logging is configured."""
    log.log(level, "%s", text)
    show(text)


def configure_from_environment() -> None:
    """Apply TOMLDIARY_LOG_LEVEL and TOMLDIARY_LOG_FILE to the `tomldiary` logger, and to no other.

    May be called again after the variables changed: the file handler of an earlier call is replaced, handlers of the
    host stay. With a file and no level, the level is INFO unless the host has set one. An unknown level is ignored with
    a RuntimeWarning.
    """
    global _environment_read  # noqa: PLW0603 - read once a process, like the variables themselves
    with _lock:
        _environment_read = True
        level = os.environ.get("TOMLDIARY_LOG_LEVEL", "").strip().upper()
        path = os.environ.get("TOMLDIARY_LOG_FILE", "").strip()
        _replace_file_handler(Path(path).expanduser() if path else None)
        if level in _LEVELS:
            logger.setLevel(level)
        elif path and logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    if level and level not in _LEVELS:
        warnings.warn(
            f"TOMLDIARY_LOG_LEVEL={level!r} is not a level and is ignored. Use one of: {', '.join(_LEVELS)}.",
            RuntimeWarning,
            stacklevel=2,
        )


def _replace_file_handler(path: Path | None) -> None:
    for handler in list(logger.handlers):
        if isinstance(handler, _PrivateFileHandler):
            logger.removeHandler(handler)
            handler.close()
    if path is not None:
        added = _PrivateFileHandler(path)
        added.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(added)


def configure_stdlib_logging_intercept() -> None:
    """Do nothing, and touch no sink of the host.

    TOMLDiary 0.9 logged through another library and forwarded standard logging to it. Here everything is standard
    logging already, so there is nothing to intercept; the name stays for programs that call it.
    """
