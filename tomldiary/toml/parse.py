"""Text to plain values, with the guards before and one clear sentence after."""

from __future__ import annotations

import re
from typing import Any, cast

from tomldiary.errors import InvalidTOML
from tomldiary.toml.guards import check_text

__all__ = ["decode_utf8", "parse_toml"]

_POSITION = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")
_LONG = re.compile(r"0[xob][0-9A-Fa-f_]{3000}")
_BITS = 13_280  # of 4,000 digits; at 4,300 Python refuses
_WORDS = {
    "Expected '=' after a key in a key/value pair": 'expected "=" after a key',
    "Invalid statement": "expected a key, a table header or a comment",
    "Invalid value": "expected a value: text in quotes, a number, true, false, a list or a table",
    "Unclosed array": 'a list is not closed, expected "]"',
    "Cannot overwrite a value": "this key is set twice",
    "Unterminated string": "a text is not closed, expected a quote",
    "Expected newline or end of document after a statement": "expected the end of the line",
}


def parse_toml(text: str, *, path: str = "") -> dict[str, Any]:
    """Parse TOML 1.0 text into plain values, in time linear in its length.

    Args:
        text: The document; a byte order mark at its head is ignored.
        path: Shown in errors.

    Raises:
        UnsafeDocument: Too large, nested too deep, or with too long a dotted key.
        InvalidTOML: Does not parse; has `line` and `column`, both from 1.
    """
    import tomllib  # noqa: PLC0415 - only reading needs it, and importing the package should not

    check_text(text, path=path)
    try:
        data = tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise _explained(error, text, path) from None
    except RecursionError:
        raise InvalidTOML("lists or tables are nested too deep. Flatten them.", path=path) from None
    except ValueError as error:  # a number or date that is no number or date
        raise InvalidTOML(f"a value cannot be read ({error}). Correct it.", path=path) from None
    long = _LONG.search(text)
    if long is not None and _has_long_integer(data):
        raise InvalidTOML(
            "an integer has more than 4,000 digits. Put it in quotes.",
            path=path,
            line=text.count("\n", 0, long.start()) + 1,
            column=long.start() - text.rfind("\n", 0, long.start()),
        )
    return data


def _has_long_integer(value: Any) -> bool:
    """Return whether there is an integer that Python reads but cannot write in decimal digits."""
    if isinstance(value, dict):
        return any(map(_has_long_integer, cast("dict[str, Any]", value).values()))
    if isinstance(value, list):
        return any(map(_has_long_integer, cast("list[Any]", value)))
    return type(value) is int and value.bit_length() > _BITS


def _explained(error: Exception, text: str, path: str) -> InvalidTOML:
    message = str(error)
    position = _POSITION.search(message)
    line = column = None
    if position is not None:
        message = message[: position.start()]
        if position.group(1):
            line, column = int(position.group(1)), int(position.group(2))
        else:
            line = text.count("\n") + 1
            column = len(text) - (text.rfind("\n") + 1) + 1
    words = _WORDS.get(message, message[:1].lower() + message[1:])
    return InvalidTOML(f"{words}. Correct the line.", path=path, line=line, column=column)


def _encoding(data: bytes) -> str:
    """Return the name of the encoding that a byte order mark tells; "" if there is none."""
    return "UTF-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else ""


def decode_utf8(data: bytes, *, path: str = "") -> str:
    """Decode a file's bytes.

    Raises:
        InvalidTOML: Not UTF-8; has the line and column of the first wrong byte.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        raise InvalidTOML(
            f"{_encoding(data) or f'the byte 0x{data[error.start]:02x}'} is not UTF-8. Save the file as UTF-8.",
            path=path,
            line=before.count(b"\n") + 1,
            column=error.start - (before.rfind(b"\n") + 1) + 1,
        ) from None
