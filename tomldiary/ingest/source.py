"""Reads JSON and JSON Lines files, and gives typed access to their values; errors contain path:line:column."""

from __future__ import annotations

import codecs
import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, cast

from tomldiary.errors import InvalidValue, wrong_type
from tomldiary.storage.shared.database import without_secrets
from tomldiary.toml.values import moment

if TYPE_CHECKING:
    from collections.abc import Iterable

JsonObject: TypeAlias = "dict[str, object]"

MOST_BYTES = 512 * 1024 * 1024

_CHUNK = 1024 * 1024
_BLANK = " \t\r\n"
_ARCHIVES = (b"PK\x03\x04", b"\x1f\x8b")  # ZIP and gzip
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MILLISECONDS_FROM = 1e11
"""Larger numbers are milliseconds, because as seconds they would be after the year 5000."""


def load(path: Path, *, known: str, max_bytes: int) -> list[object]:
    """Return the records of a file.

    The records are the elements of a JSON array, a single JSON object, or the lines of JSON Lines. Therefore the
    positions of records stay the same when lines are appended or the file is reformatted.

    Args:
        path: The file.
        known: The expected content, for errors, such as "JSON or JSON Lines".
        max_bytes: The maximum size of the file in bytes.

    Raises:
        InvalidValue: The file is missing, unreadable, larger than `max_bytes`, empty, not text or not JSON. The error
            contains path:line:column if they are known.
    """
    text = read_text(path, max_bytes=max_bytes)
    if not text.strip(_BLANK):
        raise InvalidValue(f"the file is empty. Give {known}.", where=str(path))
    try:
        whole = parse(text, str(path), known)
    except InvalidValue:
        lines = [
            (number, line)
            for number, line in enumerate(text.split("\n"), start=1)
            if line.strip(_BLANK)
        ]
        if len(lines) > 1 and _holds_a_record(lines[0][1]):
            return [parse(line, str(path), known, line=number) for number, line in lines]
        raise
    return cast("list[object]", whole) if isinstance(whole, list) else [whole]


def as_path(given: object, where: str = "path") -> Path:
    """Return a caller's value as the path of a file.

    Raises:
        InvalidValue: It is no path, such as the content of the file.
    """
    if isinstance(given, str | os.PathLike):
        return Path(cast("str | os.PathLike[str]", given))
    raise wrong_type(given, "the path of a file", where, "Write the content to a file.")


def read_text(path: Path, *, max_bytes: int = MOST_BYTES) -> str:
    """Return the text of a file in UTF-8, or in UTF-16 with a byte order mark.

    Raises:
        InvalidValue: The file is missing, unreadable, larger than `max_bytes` or not text.
    """
    return decode(_read(path, max_bytes), str(path))


def _read(path: Path, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        # A socket cannot be opened by its name. Node.js gives its children one as standard input.
        is_input = str(path) == "/dev/stdin"
        with os.fdopen(os.dup(0), "rb") if is_input else path.open("rb") as file:
            if is_input:
                os.set_blocking(0, True)  # otherwise the input of a slow program ends early
            while size <= max_bytes:
                chunks.append(file.read(_CHUNK))
                size += len(chunks[-1])
                if len(chunks[-1]) < _CHUNK:
                    break  # on a terminal, another read would wait for a second Ctrl-D
    except FileNotFoundError:  # its own text has the password, if the path is an address
        raise InvalidValue(
            "there is no such file. Check the path.", where=without_secrets(str(path))
        ) from None
    except IsADirectoryError as error:
        raise InvalidValue("this is a folder. Name one file in it.", where=str(path)) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidValue(
            f"the file cannot be read ({reason}). Check the path and its permissions.",
            where=str(path),
        ) from error
    if size > max_bytes:
        raise InvalidValue(
            f"the file is larger than {max_bytes} bytes. Split it, or raise max_bytes.",
            where=str(path),
        )
    return b"".join(chunks)


def decode(raw: bytes, where: str) -> str:
    """Return the text of a file's bytes in UTF-8, or in UTF-16 with a byte order mark.

    Raises:
        InvalidValue: The bytes are an archive, or cannot be decoded.
    """
    if raw.startswith(_ARCHIVES):
        raise InvalidValue("this is an archive. Unpack it, and name the file in it.", where=where)
    encoding = "utf-16" if raw.startswith(_UTF16) else "utf-8-sig"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise InvalidValue(
            "this is not UTF-8 text. Save the file as UTF-8.", where=f"{where}:{line}:{column}"
        ) from error


def parse(text: str, where: str, known: str, *, line: int = 0) -> object:
    """Return the value of a JSON text, which is a whole file, or the line of a file with the number `line`.

    Raises:
        InvalidValue: The text is not JSON.
    """
    place = f"{where}:{line}" if line else where
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"this is not JSON ({error.msg})"
        place, cause = f"{where}:{line or error.lineno}:{error.colno}", error
    except RecursionError as error:
        reason, cause = "the JSON is nested too deeply", error
    except ValueError as error:
        reason, cause = "this JSON contains a number that is too long", error
    raise InvalidValue(f"{reason}. Fix the file, or give {known}.", where=place) from cause


def _holds_a_record(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict | list)
    except (RecursionError, ValueError):
        return False


# Values of an unknown structure


def as_object(value: object) -> JsonObject:
    """Return the value if it is a JSON object, otherwise an empty object."""
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """Return the value if it is a JSON array, otherwise an empty array."""
    return value if is_list(value) else []


def is_list(value: object) -> TypeGuard[list[object]]:
    """Return whether the value is a JSON array."""
    return isinstance(value, list)


def as_text(value: object) -> str:
    """Return the value if it is a string, otherwise an empty string."""
    return value if isinstance(value, str) else ""


def json_time(value: object) -> datetime | None:
    """Return a datetime, ISO 8601 text or Unix time (seconds or milliseconds) as a datetime in UTC; None if invalid.

    A time without a time zone is read as UTC.
    """
    if isinstance(value, str | datetime):
        return moment(value.strip() if isinstance(value, str) else value)
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            seconds = value / 1000 if value > _MILLISECONDS_FROM else value
            return datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None
    except (ValueError, OverflowError, OSError):
        return None
    return None


def first_moment(source: JsonObject, keys: Iterable[str]) -> datetime | None:
    """Return the first time among the values of some keys; None if there is none."""
    for key in keys:
        if (found := json_time(source.get(key))) is not None:
            return found
    return None
