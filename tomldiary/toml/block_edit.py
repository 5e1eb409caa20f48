"""Change keys inside one block of text that was written by hand; everything else in it stays byte for byte.

The block is edited with tomlkit and verified: the new one must parse to exactly the expected values. A block in the
format of `render_block` needs neither, see `rendered_again`.
"""

from __future__ import annotations

import re
from functools import reduce
from operator import getitem
from typing import TYPE_CHECKING, Any, cast

from tomldiary.errors import InvalidTOML, InvalidValue
from tomldiary.toml.document import find_table, split_tail
from tomldiary.toml.lexer import Block
from tomldiary.toml.parse import parse_toml
from tomldiary.toml.values import render_path, render_value, same_value

if TYPE_CHECKING:
    from collections.abc import Mapping

_BARE = re.compile(r"(?<!\r)\n")


def edit_block(
    block: Block, old: Mapping[str, Any], new: Mapping[str, Any], *, newline: str = "\n"
) -> Block:
    """Return `block` with the keys of its table changed from `old` to `new`.

    Raises:
        InvalidValue: The block cannot be changed without other changes.
    """
    import tomlkit  # noqa: PLC0415 - only hand-written forms need it, and it is slow to import
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    path, text = block.path, block.text
    plain = text.removeprefix("\ufeff")
    body, tail = split_tail(plain)  # a new key belongs before the tail
    end = newline if body and not body.endswith("\n") else ""
    try:
        document = tomlkit.parse(body + end)
        _change_tree(document, path, old, new)
        edited = tomlkit.dumps(cast("Any", document))
        if newline != "\n" and _BARE.search(text) is None:
            edited = _BARE.sub(newline, edited)  # tomlkit ends the lines that it adds with "\n"
        # The last line of a file stays without a line break.
        edited = text[: len(text) - len(plain)] + edited.removesuffix(end) + tail
        found = find_table(parse_toml(edited), path)
    except (TOMLKitError, InvalidTOML, KeyError, TypeError, AttributeError, IndexError):
        edited, found = "", None
    if found is None or not same_value(found, new):
        raise InvalidValue(
            "this table is written in a way that cannot be changed safely. Write it as one"
            f" [{render_path(path)}] table with a line for each key.",
            where=render_path(path),
        )
    return Block(path, edited)


def _change_tree(
    document: Any, path: tuple[str, ...], old: Mapping[str, Any], new: Mapping[str, Any]
) -> None:
    import tomlkit  # noqa: PLC0415 - see `edit_block`

    def table() -> Any:
        # Looked up for each change, because tomlkit's view of dotted keys is wrong after a removal.
        return reduce(getitem, path, document)

    for key in old:
        if key not in new:
            del table()[key]
    for key, value in new.items():
        before = old.get(key)
        if key in old and same_value(before, value):
            continue
        # A dotted key disappears with its last inner key, so an empty table is written as a value.
        if value and isinstance(before, dict) and isinstance(value, dict):
            inner = cast("dict[str, Any]", before), cast("dict[str, Any]", value)
            _change_tree(document, (*path, key), *inner)
            continue
        # Rendered by us and parsed by tomlkit, so that escapes are the same in every form of table.
        rendered = render_value(value, where=key, lines=True)
        table()[key] = tomlkit.parse(f"k = {rendered}\n")["k"]
