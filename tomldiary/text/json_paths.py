"""Returns the texts of a value at a path, in the path syntax of LangGraph stores.

`a.b` a field of a field, `a[0]` `a[-1]` an element, `a[*].b` each element, `*` everything one level down,
`{a,b.c}` several fields at once, `$` or an empty path the whole value as JSON. An invalid path, or one that does not
exist in the value, has no texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, cast

_INNER_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_TOKEN = re.compile(r"\[[^\[\]]*\]|\{[^{}]*\}|[^.\[{]+|\[.*|\{.*")


def searched_text(value: Mapping[str, Any], index: Any) -> str:
    """Return the searchable text of a value.

    Args:
        value: A table of any depth.
        index: The paths of the texts to search, or False for none; any other value means all texts.
    """
    if index is False:
        return ""
    if isinstance(index, list):
        paths = map(str, cast("list[Any]", index))
        return " ".join(text for path in paths for text in texts_at(value, path))
    return " ".join(texts_in(value, names=False))


def searched_names(value: Mapping[str, Any], index: Any) -> str:
    """Return the distinct names of fields as additional search terms; none if `index` is a list or False."""
    if index is False or isinstance(index, list):
        return ""
    names = (_INNER_CAPITAL.sub(" ", name) for name in texts_in(value, texts=False))
    return " ".join(dict.fromkeys(names))


def texts_at(value: Any, path: str) -> list[str]:
    """Return the texts of a value at a path, in the order of the value."""
    if path in {"", "$"}:
        return [_as_json(value)]
    return list(_walk(value, _TOKEN.findall(path)))


def texts_in(
    value: Any, *, texts: bool = True, names: bool = True, numbers: bool = False
) -> Iterator[str]:
    """Yield the texts at all depths of a value and the names of its fields, in the order of the value.

    With `numbers` also its numbers and times, as they are stored and as they are shown.
    """
    if isinstance(value, str):
        if texts:
            yield value
    elif isinstance(value, Mapping):
        for name, item in cast("Mapping[str, Any]", value).items():
            if names:
                yield name
            yield from texts_in(item, texts=texts, names=names, numbers=numbers)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from texts_in(item, texts=texts, names=names, numbers=numbers)
    elif numbers and not isinstance(value, bool):
        if isinstance(value, datetime):
            stored = value.isoformat()
            yield from (stored, stored.replace("+00:00", "Z"))
        yield str(value)


def inner_value(value: Any, name: str) -> Any:
    """Return the value of a field; the fields of a table are written with dots. None if it is missing.

    A field whose name has dots itself comes first.
    """
    found: Any = value
    for part in [name] if isinstance(value, Mapping) and name in value else name.split("."):
        found = cast("Mapping[str, Any]", found).get(part) if isinstance(found, Mapping) else None
    return found


def _walk(value: Any, tokens: list[str]) -> Iterator[str]:
    if not tokens:
        yield from _leaf(value)
        return
    first, rest = tokens[0], tokens[1:]
    if first == "*":
        for item in _children(value):
            yield from _walk(item, rest)
    elif first.startswith("["):
        for item in _elements(value, first[1:-1]):
            yield from _walk(item, rest)
    elif first.startswith("{"):
        for field in first[1:-1].split(","):
            found = inner_value(value, field.strip())
            if not isinstance(found, list | Mapping) or found:
                yield from _leaf(found)
    elif isinstance(value, Mapping) and first in value:
        yield from _walk(cast("Mapping[str, Any]", value)[first], rest)


def _children(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(cast("Mapping[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else []


def _elements(value: Any, number: str) -> list[Any]:
    if not isinstance(value, list):
        return []
    items = cast("list[Any]", value)
    if number == "*":
        return items
    try:
        at = int(number)
    except ValueError:
        return []
    return [items[at]] if -len(items) <= at < len(items) else []


def _leaf(value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str | bool | int | float):
        return [str(value)]
    return [_as_json(value)]


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
