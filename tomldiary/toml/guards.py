"""Refuse, before any parser sees it, text that a parser could choke on.

`tomllib` needs time that grows with the square of a dotted key's parts, and leaves with a RecursionError
on deep nesting; a document is checked for both, and for its size, by scans of linear time.
"""

from __future__ import annotations

import re

from tomldiary.errors import UnsafeDocument

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_KEY_PARTS", "check_length", "check_size", "check_text"]

MAX_BYTES = 16 * 1024 * 1024
"""Largest document that is read or written, in bytes of UTF-8."""
MAX_DEPTH = 64
"""Deepest nesting of arrays and inline tables."""
MAX_KEY_PARTS = 64
"""Longest dotted key, in parts."""

_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
# Only a token's first character may start a match, so a long run of letters is scanned once.
_DOTTED = re.compile(rf"(?<![A-Za-z0-9_.'\"\\-])(?:{_PART}[ \t]*+\.[ \t]*+){{{MAX_KEY_PARTS}}}")
_OPENERS = re.compile(r"[\[{]")
_SKELETON = re.compile(
    r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*+"{3,5}'
    r"|'''(?:[^']|'{1,2}(?!'))*+'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*+"|'
    r"'[^'\n]*+'|#[^\n]*+|[^\"'#\[\]{}\n.]++|.|\n",
    re.DOTALL,
)


def check_size(text: str, *, path: str = "") -> None:
    """Let `text` pass only if it has at most `MAX_BYTES` bytes in UTF-8.

    Raises:
        UnsafeDocument: It is larger.
    """
    # A character is at most four bytes, so most texts need no encoding to be measured.
    if len(text) * 4 > MAX_BYTES:
        check_length(len(text.encode("utf-8", "surrogatepass")), path=path)


def check_length(length: int, *, path: str = "") -> None:
    """Let a document pass only if it has at most `MAX_BYTES` bytes.

    Raises:
        UnsafeDocument: It is larger.
    """
    if length > MAX_BYTES:
        raise UnsafeDocument(
            f"the document is larger than {MAX_BYTES // 1024} KiB. Split it or remove what is not needed.",
            path=path,
        )


def check_text(text: str, *, path: str = "") -> None:
    """Let `text` pass only if parsing it takes time linear in its length.

    Raises:
        UnsafeDocument: Larger than `MAX_BYTES`, nested deeper than `MAX_DEPTH`, or with a dotted key
            of more than `MAX_KEY_PARTS` parts.
    """
    check_size(text, path=path)
    openers = text.count("[") + text.count("{")
    if openers <= MAX_DEPTH and text.count(".") < MAX_KEY_PARTS:
        return
    suspicious = _DOTTED.search(text) is not None
    if not suspicious:
        # Depth can only pile up where openings outrun closings; headers and short arrays do not.
        depth = 0
        for line in text.split("\n"):
            if "[" in line or "{" in line or "]" in line or "}" in line:
                depth = max(
                    0, depth + line.count("[") + line.count("{") - line.count("]") - line.count("}")
                )
                if depth > MAX_DEPTH or len(_OPENERS.findall(line)) > MAX_DEPTH:
                    suspicious = True
                    break
    if suspicious:
        _check_exactly(text, path)


def _check_exactly(text: str, path: str) -> None:
    """Measure nesting and dotted keys outside strings and comments, with the line they are on."""
    depth = 0
    line = 1
    parts = 0
    for match in _SKELETON.finditer(text):
        piece = match.group()
        if piece in "[{":
            depth += 1
            parts = 0
        elif piece in "]}":
            depth = max(0, depth - 1)
            parts = 0
        elif piece == ".":
            parts += 1
        elif piece == "\n":
            line += 1
            parts = 0
        elif "=" in piece or "," in piece:
            parts = 0
        else:
            line += piece.count("\n")
        if depth > MAX_DEPTH:
            raise UnsafeDocument(
                f"arrays or inline tables are nested deeper than {MAX_DEPTH}. Flatten them.",
                path=path,
                line=line,
            )
        if parts >= MAX_KEY_PARTS:
            raise UnsafeDocument(
                f"a dotted key has more than {MAX_KEY_PARTS} parts. Use a table header instead.",
                path=path,
                line=line,
            )
