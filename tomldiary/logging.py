"""The library's log: standard `logging` below the name `tomldiary`, silent by default.

If no logging is configured, or if it disables the loggers of this library, urgent messages, such as a missing API key,
are also written to stderr.

Importing the package only adds a NullHandler to the `tomldiary` logger. Applications configure this logger like any
other, or with two environment variables:

TOMLDIARY_LOG_LEVEL : the level of the `tomldiary` logger: DEBUG, INFO, WARNING, ERROR or CRITICAL
TOMLDIARY_LOG_FILE  : a file to which records are appended; a new file is readable only by its owner
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from io import TextIOWrapper

__all__ = [
    "configure_from_environment",
    "configure_stdlib_logging_intercept",
    "get_logger",
    "logger",
    "show",
    "show_once",
    "tell",
]

_ROOT = "tomldiary"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

logger = logging.getLogger(_ROOT)
"""The parent of all loggers of this library."""

if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
    logger.addHandler(logging.NullHandler())

_lock = threading.Lock()
_environment_read = False
_shown: set[str] = set()
"""The lines that are not shown again."""
_is_each_once = False
"""Whether no line is shown again."""


class _PrivateFileHandler(logging.FileHandler):
    """Appends to a file of mode 0600, which is opened at the first record. Never raises an error to the caller."""

    def __init__(self, path: str) -> None:
        super().__init__(path, encoding="utf-8", delay=True)

    def _open(self) -> TextIOWrapper:
        # `open` is used because `Path.open` has no `opener`, which sets the mode when the file is created.
        return open(self.baseFilename, "a", encoding="utf-8", opener=_open_private)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # an unwritable log must not fail the operation that logs
            self.handleError(record)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def get_logger(name: str) -> logging.Logger:
    """Return the logger `tomldiary.<name>`. The first call applies the environment variables.

    Args:
        name: Usually `__name__`. Other names get the prefix `tomldiary.`.
    """
    if not _environment_read:
        configure_from_environment()
    if name == _ROOT or name.startswith(f"{_ROOT}."):
        return logging.getLogger(name)
    return logging.getLogger(f"{_ROOT}.{name}" if name else _ROOT)


@contextmanager
def show_once() -> Generator[None]:
    """Write each line to stderr only once in this block, for commands that open a memory several times."""
    global _is_each_once  # noqa: PLW0603 - a setting of the process
    _is_each_once = True
    try:
        yield
    finally:
        _is_each_once = False
        _shown.clear()


def show(text: str, *, is_once: bool = False) -> None:
    """Write a line to stderr, unless a handler receives the records of the library. Never raises an error.

    Args:
        text: The line.
        is_once: Write it once in this process. It must contain no text of a user, because it is kept.
    """
    is_once = is_once or _is_each_once
    if is_once and text in _shown:
        return
    # `logging.config.dictConfig` disables the existing loggers by default.
    each: logging.Logger | None = None if logger.disabled else logger
    while each is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in each.handlers):
            return
        each = each.parent if each.propagate else None
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison] - None in programs without a console
        with suppress(OSError, ValueError):  # its reader is gone, its disk is full, or it is closed
            print(f"tomldiary: {text}", file=sys.stderr)  # noqa: T201 - this function exists to print
            if is_once:
                _shown.add(text)


def tell(log: logging.Logger, text: str, level: int = logging.WARNING) -> None:
    """Log an urgent message, which is also written to stderr if no logging is configured."""
    log.log(level, "%s", text)
    show(text)


def configure_from_environment() -> None:
    """Apply TOMLDIARY_LOG_LEVEL and TOMLDIARY_LOG_FILE to the `tomldiary` logger.

    A further call replaces the file handler of an earlier one and keeps the application's handlers. If only a file is
    set, the level is INFO, unless the application has set one. An unknown level is ignored with a RuntimeWarning.
    """
    global _environment_read  # noqa: PLW0603 - the environment is read once per process
    with _lock:
        _environment_read = True
        level = os.environ.get("TOMLDIARY_LOG_LEVEL", "").strip().upper()
        path = os.environ.get("TOMLDIARY_LOG_FILE", "").strip()
        _replace_file_handler(os.path.expanduser(path))  # noqa: PTH111 - Path fails where there is no home
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


def _replace_file_handler(path: str) -> None:
    for handler in list(logger.handlers):
        if isinstance(handler, _PrivateFileHandler):
            logger.removeHandler(handler)
            handler.close()
    if path:
        added = _PrivateFileHandler(path)
        added.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(added)


def configure_stdlib_logging_intercept() -> None:
    """Do nothing; kept for compatibility with TOMLDiary 0.9.

    TOMLDiary 0.9 forwarded standard logging to another library. This library has nothing to intercept, because it
    uses standard logging itself.
    """
