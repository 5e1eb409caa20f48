"""Stored text made safe to show: what a terminal would obey is written out instead."""

from __future__ import annotations

import re

__all__ = ["printable"]

# What a terminal acts on, or what hides or reorders text. Newline and tab are the only controls that text needs.
_OBEYED = re.compile(
    "["
    "\x00-\x08\x0b-\x1f"  # C0 with ESC and carriage return
    "\x7f-\x9f"  # DEL and C1
    "\u061c\u202a-\u202e\u2066-\u2069"  # bidirectional marks, overrides and isolates
    "\u200b-\u200f\u2060-\u2064\ufeff"  # zero width
    "\u2028\u2029"  # separators that some programs take for a line end
    "\ufff9-\ufffb\U000e0000-\U000e007f"  # annotations and tags, which no one can see
    "\ud800-\udfff"  # half characters, which cannot be encoded
    "]"
)


def printable(text: str) -> str:
    r"""The text without a character that a terminal obeys, hides or reorders.

    Each of them becomes a visible escape: ESC becomes `\x1b`, a right-to-left override `\u202e`.
    Newline, tab and every visible character stay as they are.
    """
    return _OBEYED.sub(lambda found: _escape(ord(found.group())), text)


def _escape(code: int) -> str:
    if code < 0x100:  # noqa: PLR2004 - the widths of Python's own escapes
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"  # noqa: PLR2004 - the same
