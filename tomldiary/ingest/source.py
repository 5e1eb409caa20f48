"""A chat log's bytes as a list of records, whether the file is JSON or JSON Lines."""

from __future__ import annotations

import codecs
import json
from typing import TYPE_CHECKING, NoReturn, cast

from tomldiary.errors import InvalidValue

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["load"]

_CHUNK = 1024 * 1024
_BLANK = " \t\r\n"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def load(path: Path, *, known: str, max_bytes: int) -> list[object]:
    """Return the records of a file, which is read once.

    A JSON array is its elements, a JSON object is one record, JSON Lines is one record a line. So a
    log keeps its positions when lines are appended or when it is reformatted.

    Args:
        path: The file.
        known: What the file should be, for errors: "JSON or JSON Lines".
        max_bytes: Larger files are refused.

    Raises:
        InvalidValue: Missing, unreadable, larger than `max_bytes`, empty, not text or not JSON; names
            path:line:column where that is known.
    """
    text = _decode(_read(path, max_bytes), path)
    if not text.strip(_BLANK):
        raise InvalidValue(f"the file is empty. Give {known}.", where=str(path))
    return _parse(text, path, known)


def _read(path: Path, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    try:
        with path.open("rb") as file:
            while size <= max_bytes and (chunk := file.read(_CHUNK)):
                size += len(chunk)
                chunks.append(chunk)
    except FileNotFoundError as error:
        raise InvalidValue("there is no such file. Check the path.", where=str(path)) from error
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


def _decode(raw: bytes, path: Path) -> str:
    encoding = "utf-16" if raw.startswith(_UTF16) else "utf-8-sig"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise InvalidValue(
            "this is not UTF-8 text. Save the file as UTF-8.", where=f"{path}:{line}:{column}"
        ) from error


def _parse(text: str, path: Path, known: str) -> list[object]:
    try:
        whole: object = json.loads(text)
    except json.JSONDecodeError as error:
        lines = [
            (number, line)
            for number, line in enumerate(text.split("\n"), start=1)
            if line.strip(_BLANK)
        ]
        if len(lines) > 1 and _holds_a_record(lines[0][1]):
            return [_parse_line(line, f"{path}:{number}", known) for number, line in lines]
        _refuse_json(error, f"{path}:{error.lineno}:{error.colno}", known)
    except (RecursionError, ValueError) as error:
        _refuse_json(error, str(path), known)
    return cast("list[object]", whole) if isinstance(whole, list) else [whole]


def _holds_a_record(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict | list)
    except (RecursionError, ValueError):
        return False


def _parse_line(line: str, where: str, known: str) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        _refuse_json(error, f"{where}:{error.colno}", known)
    except (RecursionError, ValueError) as error:
        _refuse_json(error, where, known)


def _refuse_json(error: Exception, where: str, known: str) -> NoReturn:
    if isinstance(error, RecursionError):
        reason = "the JSON is nested too deeply"
    elif isinstance(error, json.JSONDecodeError):
        reason = f"this is not JSON ({error.msg})"
    else:
        reason = "this JSON holds a number that is too long"
    raise InvalidValue(
        f"{reason}. Fix the file, or give {known}.",
        where=where,
    ) from error
