"""Change keys inside one block of text; everything else in the block stays byte for byte.

Simple lines (`key = value  # comment`) are edited as text; whatever is not simple goes through
tomlkit. Either way the result is proved: the new block parses to exactly the wanted values.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from tomldiary.errors import InvalidTOML, InvalidValue
from tomldiary.runtime.forgettable_cache import cleared_on_forget
from tomldiary.toml.lexer import Block
from tomldiary.toml.parse import parse_toml
from tomldiary.toml.values import render_block, render_key, render_path, render_value, same_value

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["edit_block", "split_tail"]

_QUOTES = re.compile("\"\"\"|'''")
_VALUE = r"""(?:"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|\[(?:[^\[\]"'#\n]|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')*+\]|[^\s"'#,\[\]{}]++(?:[ ][0-9:.+Z-]++)?)"""


def split_tail(text: str) -> tuple[str, str]:
    """Split a block into what belongs to it and what merely stands behind it.

    The tail is the blank lines at the end, and comments that a blank line separates from the
    table's last line: they belong to no entry and survive its deletion.
    """
    lines = text.split("\n")
    end = len(lines)
    while end > 0 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    # Comments directly below the last line still belong to the table.
    while end < len(lines) and lines[end].strip():
        end += 1
    if end == len(lines) or _QUOTES.search("\n".join(lines[end:])):
        return text, ""  # a text that spans lines may end in what only looks like a comment
    body = "".join(f"{line}\n" for line in lines[:end])
    tail = "\n".join(lines[end:])
    return body, tail


def edit_block(
    block: Block, old: Mapping[str, Any], new: Mapping[str, Any], *, newline: str = "\n"
) -> Block:
    """Return `block` with the keys of its table changed from `old` to `new`.

    A table that stands exactly as `render_block` writes it is rendered anew: lines that stay equal come out
    equal, and a rendered table needs no proof. Any other is edited in place and proved by parsing.

    Raises:
        InvalidValue: The block cannot be changed without changing something else.
    """
    path, text = block.path, block.text
    ours = block.ours or _find_ours(text, path, old, newline)
    if ours is not None:
        lead, tail = ours
        rendered = render_block(path, new, newline=newline)
        return Block(path, f"{text[:lead]}{rendered}{text[len(text) - tail :]}", ours=ours)
    edited = _edit_lines(text, path, old, new, newline)
    if edited is not None and _proved(edited, path, new):
        return Block(path, edited)
    edited = _edit_tree(text, path, old, new)
    if _proved(edited, path, new):
        return Block(path, edited)
    raise InvalidValue(
        "this table is written in a way that cannot be changed safely. Write it as one"
        f" [{render_path(path)}] table with a line for each key.",
        where=render_path(path),
    )


def _find_ours(
    text: str, path: tuple[str, ...], data: Mapping[str, Any], newline: str
) -> tuple[int, int] | None:
    """Return what stands before and behind the table, if it stands exactly as `render_block` writes it."""
    body, tail = split_tail(text)
    rendered = render_block(path, data, newline=newline)
    lead = len(body) - len(rendered)
    if not path or not body.endswith(rendered) or (lead > 0 and body[lead - 1] != "\n"):
        return None
    return lead, len(tail)


def _proved(text: str, path: tuple[str, ...], want: Mapping[str, Any]) -> bool:
    try:
        found: Any = parse_toml(text)
    except InvalidTOML:
        return False
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] - any TOML value
    return isinstance(found, dict) and same_value(found, want)


@cleared_on_forget
@lru_cache(maxsize=256)
def _line_of(key: str) -> re.Pattern[str]:
    forms = {re.escape(render_key(key)), re.escape(f'"{key}"'), re.escape(f"'{key}'")}
    return re.compile(
        rf"^(?P<head>[ \t]*(?:{'|'.join(sorted(forms))})[ \t]*=[ \t]*)(?P<value>{_VALUE})"
        r"(?P<tail>[ \t]*(?:#[^\n]*)?\r?)$",
        re.MULTILINE,
    )


def _edit_lines(
    text: str,
    path: tuple[str, ...],
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    newline: str,
) -> str | None:
    where = ".".join(path)
    added: list[str] = []
    for key, value in new.items():
        if key in old and same_value(old[key], value):
            continue
        rendered = render_value(value, where=f"{where}.{key}", lines=True)
        if newline != "\n":
            rendered = rendered.replace("\n", newline)
        if key not in old:
            added.append(f"{render_key(key)} = {rendered}{newline}")
            continue
        match = _line_of(key).search(text)
        if match is None:
            return None
        text = text[: match.start("value")] + rendered + text[match.end("value") :]
    for key in old:
        if key not in new:
            match = _line_of(key).search(text)
            if match is None:
                return None
            text = text[: match.start()] + text[match.end() :].removeprefix("\n")
    if added:
        body, tail = split_tail(text)
        if body and not body.endswith("\n"):
            body += newline
        text = body + "".join(added) + tail
    return text


def _edit_tree(
    text: str, path: tuple[str, ...], old: Mapping[str, Any], new: Mapping[str, Any]
) -> str:
    import tomlkit  # noqa: PLC0415 - only hand-written forms need it, and it is slow to import
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    try:
        document = tomlkit.parse(text)
        table: Any = document
        for key in path:
            table = table[key]
        _change_tree(table, old, new)
        return tomlkit.dumps(cast("Any", document))
    except (TOMLKitError, KeyError, TypeError, AttributeError, IndexError):
        return ""


def _change_tree(table: Any, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    import tomlkit  # noqa: PLC0415 - see _edit_tree

    for key in old:
        if key not in new:
            del table[key]
    for key, value in new.items():
        before = old.get(key)
        if key in old and same_value(before, value):
            continue
        if isinstance(before, dict) and isinstance(value, dict):
            _change_tree(table[key], cast("dict[str, Any]", before), cast("dict[str, Any]", value))
            continue
        # Rendered by us and read back, so that escapes are ours in every form of table.
        table[key] = tomlkit.parse(f"k = {render_value(value, where=key)}\n")["k"]
