"""Splits a document into blocks: the head, then one block for each table header.

A block has the comment lines directly above its header, the header, and all lines up to the next block. The
joined texts of the blocks are the document byte for byte.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass

from tomldiary.toml.parse import TOKEN

KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
HEADER = re.compile(
    rf"[ \t]*(\[\[?)[ \t]*({KEY}(?:[ \t]*\.[ \t]*{KEY})*)[ \t]*(\]\]?)[ \t]*(?:#[^\n]*)?\r?"
)
_KEYS = re.compile(KEY)
# A line break in an array, and in an inline table (TOML 1.1), is after "[", "{" or ",", or before ",", "]" or "}".
_MAYBE_MULTILINE = re.compile(
    r"\"\"\"|'''|[\[{,][ \t]*(?:#[^\n]*)?\r?$|^[ \t]*[\]},]", re.MULTILINE
)


@dataclass(slots=True, eq=False)  # not frozen, because frozen instances are slower to create
class Block:
    """One block of a document; `path` is empty for the head. Blocks are never changed."""

    path: tuple[str, ...]
    text: str
    is_array: bool = False


def header_path(line: str) -> tuple[tuple[str, ...], bool] | None:
    """Return the path of a table header line and whether it is `[[…]]`; None if the line is no header."""
    match = HEADER.fullmatch(line)
    if match is None or len(match.group(1)) != len(match.group(3)):
        return None
    keys: list[str] = []
    for raw in _KEYS.findall(match.group(2)):
        if raw[0] == '"' and "\\" in raw:
            try:
                keys.append(tomllib.loads(f"k={raw}")["k"])
            except tomllib.TOMLDecodeError:
                return None
        else:
            keys.append(raw[1:-1] if raw[0] in "\"'" else raw)
    return tuple(keys), match.group(1) == "[["


def may_span_lines(text: str) -> bool:
    """Return whether a value in `text` may span lines; True may be wrong, False is not."""
    return _MAYBE_MULTILINE.search(text) is not None


def split_blocks(text: str) -> list[Block]:
    """Return the blocks of `text` in order; the first one is the head, which may be empty."""
    if text.startswith("\ufeff"):
        head, *rest = split_blocks(text[1:])
        return [Block((), f"\ufeff{head.text}"), *rest]
    starts, comments = _line_starts(text)
    blocks: list[Block] = []
    begin, path, is_array = 0, (), False
    for start in starts:
        end = text.find("\n", start)
        parsed = header_path(text[start : end if end >= 0 else len(text)])
        if parsed is None:
            continue
        cut = _above_comments(text, start, begin, comments)
        blocks.append(Block(path, text[begin:cut], is_array))
        begin, (path, is_array) = cut, parsed
    blocks.append(Block(path, text[begin:], is_array))
    return blocks


def _above_comments(text: str, start: int, floor: int, comments: set[int]) -> int:
    """Return `start` moved up over the comment lines directly above it."""
    while start > floor:
        above = text.rfind("\n", 0, start - 1) + 1
        if above < floor or above not in comments:
            break
        start = above
    return start


def _line_starts(text: str) -> tuple[list[int], set[int]]:
    """Return the positions of header lines and comment lines outside multi-line strings and arrays."""
    starts: list[int] = []
    comments: set[int] = set()
    depth = 0
    line_start = 0
    blank = True  # only white space so far on this line
    in_header = False
    for match in TOKEN.finditer(text):
        token = match.group()
        first = token[0]
        if first == "\n":
            line_start, blank, in_header = match.end(), True, False
        elif first == "#":
            if blank and depth == 0:
                comments.add(line_start)
        elif first == "[" and not in_header:
            if blank and depth == 0:
                starts.append(line_start)
                in_header = True
            else:
                depth += 1
            blank = False
        elif first == "]" and not in_header:
            depth = max(0, depth - 1)
            blank = False
        elif token.strip(" \t\r\ufeff"):
            blank = False
    return starts, comments
