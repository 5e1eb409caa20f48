"""Guarded parsing: hostile text is refused, and errors have path, line, column and remedy.

The time of `tomllib` grows with the square of the parts of a dotted key, and deep nesting raises a RecursionError.
Both, and the size of the document, are checked in linear time before parsing.
"""

from __future__ import annotations

import re
from typing import Any, cast

from tomldiary.errors import InvalidTOML, UnsafeDocument

MAX_BYTES = 16 * 1024 * 1024
"""The maximum size of a document, in bytes of UTF-8."""
MAX_DEPTH = 64
"""The maximum nesting depth of arrays and inline tables."""
MAX_KEY_PARTS = 64
"""The maximum number of parts of a dotted key."""

# An open string ends with its line or with the text, so that no character is scanned twice.
TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*+"{0,5}'
    r"|'''(?:[^']|'{1,2}(?!'))*+'{0,5}"
    r'|"(?:[^"\\\n]|\\.)*+"?|'
    r"'[^'\n]*+'?|#[^\n]*+|[^\"'#\[\]{}\n.]++|.|\n",
    re.DOTALL,
)
_POSITION = re.compile(r"(?<!\s)\s*+\(at (?:line (\d+), column (\d+)|end of document)\)$")
_LONG = re.compile(r"(?<!\w)0[xob][0-9A-Fa-f_]{3000}")
_BITS = 13_280  # of 4,000 digits; Python refuses more than 4,300
_BACKSLASH = "a backslash stands alone: write two, or put the text in single quotes"
_NOT_CLOSED = "a text is not closed, expected a quote"
_NO_KEY = "expected a key"
_WORDS = {
    "Expected '=' after a key in a key/value pair": 'expected "=" after a key',
    "Invalid statement": "expected a key, a table header or a comment",
    "Invalid value": "expected a value: text in quotes, a number, true, false, a list or a table",
    "Unclosed array": 'a list is not closed, expected "]"',
    "Cannot overwrite a value": "this key is set twice",
    "Unterminated string": _NOT_CLOSED,
    "Expected newline or end of document after a statement": "expected the end of the line",
    "Found invalid character '\\n'": _NOT_CLOSED,
    "Illegal character '\\n'": _NOT_CLOSED,
    'Expected "\'"': _NOT_CLOSED,
    "Expected \"'''\"": _NOT_CLOSED,
    "Unescaped '\\' in a string": _BACKSLASH,
    "Invalid hex value": _BACKSLASH,
    "Invalid initial character for a key part": _NO_KEY,
    "Unclosed inline table": 'a table is not closed on its line, expected "}"',
}
_CONFLICT = re.compile(r"(?:<{7}|\|{7}|={7}|>{7})(?: |\r?\Z)")
"""A line that git puts around the sides of a conflict."""
_TABLE = re.compile(
    r"Cannot (declare|mutate immutable namespace|redefine namespace) (\(.*\))(?: twice)?", re.DOTALL
)
"""The messages of `tomllib` for a table that is defined twice, with its path."""


def too_large(path: str = "") -> UnsafeDocument:
    """Return the error for a document of more than `MAX_BYTES` bytes."""
    return UnsafeDocument(
        f"the document is larger than {MAX_BYTES // 1024} KiB. Split it or remove what is not needed.",
        path=path,
    )


def check_text(text: str, *, path: str = "") -> None:
    """Check that `text` can be parsed in time linear in its length.

    Raises:
        UnsafeDocument: The text is larger than `MAX_BYTES`, nested deeper than `MAX_DEPTH`, or has a dotted key
            of more than `MAX_KEY_PARTS` parts.
    """
    # A character has at most four bytes, so most texts need not be encoded to check their size.
    if len(text) * 4 > MAX_BYTES and len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise too_large(path)
    openers = text.count("[") + text.count("{")
    if openers <= MAX_DEPTH and text.count(".") < MAX_KEY_PARTS:
        return
    depth = 0
    line = 1
    parts = 0
    for match in TOKEN.finditer(text):
        piece = match.group()
        if piece == ".":
            parts += 1
            if parts == MAX_KEY_PARTS:
                why = (
                    f"a dotted key has more than {MAX_KEY_PARTS} parts. Use a table header instead."
                )
                raise UnsafeDocument(why, path=path, line=line)
        elif piece[0] in "\"'#":
            line += piece.count("\n")
        elif piece in "[{":
            depth, parts = depth + 1, 0
            if depth > MAX_DEPTH:
                why = f"arrays or inline tables are nested deeper than {MAX_DEPTH}. Flatten them."
                raise UnsafeDocument(why, path=path, line=line)
        elif piece in "]}":
            depth, parts = max(0, depth - 1), 0
        elif piece == "\n":
            line, parts = line + 1, 0
        elif "=" in piece or "," in piece:
            parts = 0


def parse_toml(text: str, *, path: str = "") -> dict[str, Any]:
    """Return the values of TOML 1.0 text, in time linear in its length.

    Args:
        text: The document; a byte order mark at its beginning is ignored.
        path: The path of the file, for errors.

    Raises:
        UnsafeDocument: The text is too large, nested too deep, or has a dotted key that is too long.
        InvalidTOML: The text does not parse; the error has `line` and `column`, both counted from 1.
    """
    import tomllib  # noqa: PLC0415 - only reading needs it, and importing the package should not

    check_text(text, path=path)
    try:
        data = tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise _explained(error, text, path) from None
    except RecursionError:
        raise InvalidTOML("lists or tables are nested too deep. Flatten them.", path=path) from None
    except ValueError as error:  # an invalid number or date
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
    """Return whether a value has an integer that Python can parse but not print in decimal digits."""
    if isinstance(value, dict):
        return any(map(_has_long_integer, cast("dict[str, Any]", value).values()))
    if isinstance(value, list):
        return any(map(_has_long_integer, cast("list[Any]", value)))
    return type(value) is int and value.bit_length() > _BITS


def _explained(error: Exception, text: str, path: str) -> InvalidTOML:
    message = str(error)
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")  # as tomllib counts
    position = _POSITION.search(message)
    line = column = None
    if position is not None:
        message = message[: position.start()]
        if position.group(1):
            line, column = int(position.group(1)), int(position.group(2))
        else:
            end = _end_of_line(text, message)
            line = text.count("\n", 0, end) + 1
            column = end - (text.rfind("\n", 0, end) + 1) + 1
        if _CONFLICT.match(text.split("\n", line)[line - 1]):
            return InvalidTOML(
                "git left a conflict here. Keep the entries that are right, and the seq of HEAD. Remove the lines that"
                " begin with <<<<<<<, ======= and >>>>>>>.",
                path=path,
                line=line,
                column=column,
            )
    words = _WORDS.get(message, message[:1].lower() + message[1:])
    table = _TABLE.fullmatch(message)
    if table is not None:
        name = (
            table[2].strip("(),").replace("', '", ".").strip("'")
        )  # control characters stay escaped
        words = f"the table [{name}] is there twice"
        if table[1] != "declare":
            words = f"the table or list {name} was completed where it was first written"
    before, found = "", ""
    if line and column:
        whole = text.split("\n", line)[line - 1]
        before, found = whole[: column - 1].rstrip(), whole[column - 1 : column]
    if words == _NO_KEY and before[-1:] in {"{", ","} and found in {"", "#", "}"}:  # as in TOML 1.1
        words = 'a table in "{…}" is on one line, without a comma at its end'
    if found.isascii():
        remedy = "Correct the line."
    else:
        code = f"U+{ord(found):04X}"
        words += f", found {f'{found} ({code})' if found.isprintable() else code}"
        remedy = 'Type signs, digits and spaces as in English, and put keys with other letters in quotes: "…".'
    return InvalidTOML(f"{words}. {remedy}", path=path, line=line, column=column)


def _end_of_line(text: str, message: str) -> int:
    """Return the end of the line with the text that is not closed; the end of the document if it has none."""
    if message in {'Expected "\'"', "Expected \"'''\""}:
        start = text.rfind(message[10:-1])
    elif message == "Unterminated string":
        start = max(match.start() for match in TOKEN.finditer(text))
    else:
        return len(text)
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def decode_utf8(data: bytes, *, path: str = "") -> str:
    """Return the text of a file's bytes.

    Raises:
        InvalidTOML: The bytes are not UTF-8; the error has the line and column of the first invalid byte.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        is_utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        found = "UTF-16" if is_utf16 else f"the byte 0x{data[error.start]:02x}"
        raise InvalidTOML(
            f"{found} is not UTF-8. Save the file as UTF-8.",
            path=path,
            line=before.count(b"\n") + 1,
            column=len(before.rpartition(b"\n")[2].decode("utf-8-sig")) + 1,  # in characters
        ) from None
