"""Change keys inside one block of text; everything else in the block stays byte for byte.

Simple lines (`key = value  # comment`) are edited as text, and all other forms with tomlkit. In both cases the result
is verified: the new block must parse to exactly the expected values.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from tomldiary.errors import InvalidTOML, InvalidValue
from tomldiary.toml.lexer import Block
from tomldiary.toml.parse import parse_toml
from tomldiary.toml.values import render_block, render_key, render_path, render_value, same_value

if TYPE_CHECKING:
    from collections.abc import Mapping

_QUOTES = re.compile("\"\"\"|'''")
_BARE = re.compile(r"(?<!\r)\n")
_VALUE = r"""(?:"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|\[(?:[^\[\]"'#\n]|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')*+\]|[^\s"'#,\[\]{}]++(?:[ ][0-9:.+Z-]++)?)"""


def split_tail(text: str) -> tuple[str, str]:
    """Split a block into its body and its tail.

    The tail has the blank lines at the end, and comments that a blank line separates from the table's last line.
    They belong to no entry, so they stay when the entry is deleted.
    """
    lines = text.split("\n")
    end = len(lines)
    while end > 0 and (not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#")):
        end -= 1
    # Comments directly below the last line belong to the table.
    while end < len(lines) and lines[end].strip():
        end += 1
    if end == len(lines) or _QUOTES.search("\n".join(lines[end:])):
        return text, ""  # a multi-line string may end in lines that look like comments
    body = "".join(f"{line}\n" for line in lines[:end])
    tail = "\n".join(lines[end:])
    return body, tail


def edit_block(
    block: Block, old: Mapping[str, Any], new: Mapping[str, Any], *, newline: str = "\n"
) -> Block:
    """Return `block` with the keys of its table changed from `old` to `new`.

    A table in the exact format of `render_block` is rendered again, which keeps equal lines equal and needs no
    verification. Any other table is edited in place, and the result is verified by parsing.

    Raises:
        InvalidValue: The block cannot be changed without other changes.
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
    edited = _edit_tree(text, path, old, new, newline)
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
    """Return the sizes of the text before and after the table if it has the exact format of `render_block`."""
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


def _written(keys: tuple[str, ...]) -> str:
    """Return a pattern for a key or dotted key at the beginning of a line, in all its spellings."""
    forms = ({render_key(key), f'"{key}"', f"'{key}'"} for key in keys)
    parts = [f"(?:{'|'.join(sorted(map(re.escape, each)))})" for each in forms]
    return r"^[ \t]*" + r"[ \t]*\.[ \t]*".join(parts)


def _line_of(keys: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(
        rf"{_written(keys)}[ \t]*=[ \t]*(?P<value>{_VALUE})[ \t]*(?:#[^\n]*)?\r?$", re.MULTILINE
    )


def _lines_below(keys: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"{_written(keys)}[ \t]*\.[^\n]*\n?", re.MULTILINE)


def _flat(
    table: Mapping[str, Any], text: str, keys: tuple[str, ...] = ()
) -> dict[tuple[str, ...], Any]:
    """Return the values of a table by key; values of inner tables that are written as dotted keys, by these keys."""
    found: dict[tuple[str, ...], Any] = {}
    for key, value in table.items():
        names = (*keys, key)
        if value and isinstance(value, dict) and _lines_below(names).search(text):
            found |= _flat(cast("dict[str, Any]", value), text, names)
        else:
            found[names] = value
    return found


def _edit_lines(
    text: str,
    path: tuple[str, ...],
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    newline: str,
) -> str | None:
    was, wanted = _flat(old, text), _flat(new, text)
    added: list[str] = []
    for keys, value in wanted.items():
        if keys in was and same_value(was[keys], value):
            continue
        rendered = render_value(value, where=".".join((*path, *keys)), lines=True)
        if newline != "\n":
            rendered = rendered.replace("\n", newline)
        if keys not in was:
            line = f"{render_path(keys)} = {rendered}{newline}"
            siblings = list(_lines_below(keys[:-1]).finditer(text)) if keys[1:] else []
            if siblings and siblings[-1][0].endswith("\n"):
                end = siblings[-1].end()
                text = f"{text[:end]}{line}{text[end:]}"
            else:
                added.append(line)
            continue
        match = _line_of(keys).search(text)
        if match is None:
            return None
        text = text[: match.start("value")] + rendered + text[match.end("value") :]
    for keys in was:
        if keys not in wanted:
            match = _line_of(keys).search(text)
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
    text: str,
    path: tuple[str, ...],
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    newline: str,
) -> str:
    import tomlkit  # noqa: PLC0415 - only hand-written forms need it, and it is slow to import
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    plain = text.removeprefix("\ufeff")
    try:
        document = tomlkit.parse(plain)
        table: Any = document
        for key in path:
            table = table[key]
        _change_tree(table, old, new)
        edited = tomlkit.dumps(cast("Any", document))
    except (TOMLKitError, KeyError, TypeError, AttributeError, IndexError):
        return ""
    if newline != "\n" and _BARE.search(text) is None:
        edited = _BARE.sub(newline, edited)  # tomlkit ends the lines that it adds with "\n"
    return text[: len(text) - len(plain)] + edited


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
        # Rendered by us and parsed by tomlkit, so that escapes are the same in every form of table.
        table[key] = tomlkit.parse(f"k = {render_value(value, where=key)}\n")["k"]
