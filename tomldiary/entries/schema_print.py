"""A schema as text: a tree for people, and Python source that runs."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any, get_origin

from tomldiary.entries.models import ConversationItem, PreferenceItem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

__all__ = ["conversation_source", "table_source", "tree"]


def tree(title: str, types: Mapping[str, str], descriptions: Mapping[str, str]) -> str:
    """The title, then each name with its type and, one line below, its description."""
    lines = [title, ""]
    for number, (name, kind) in enumerate(types.items(), start=1):
        last = number == len(types)
        lines.append(f"{'└──' if last else '├──'} {name}: {kind}")
        if descriptions.get(name):
            lines.append(f"{' ' if last else '│'}   └─ {descriptions[name]}")
    return "\n".join(lines)


def table_source(
    table: type[BaseModel], types: Mapping[str, type[PreferenceItem]], doc: str
) -> str:
    """A class with the same categories, docstring and descriptions; running it needs this library only.

    An entry class that cannot be imported, such as one from a script, is replaced by an empty subclass of its name.
    """
    own = {item.__name__: item for item in types.values() if item is not PreferenceItem}
    imports = ["from tomldiary.entries.models import PreferenceItem"]
    stand_ins: list[str] = []
    for name, item in sorted(own.items()):
        if _importable(item):
            imports.append(f"from {item.__module__} import {name}")
        else:
            stand_ins += [
                f"class {name}(PreferenceItem):",
                *_doc(f"From {item.__module__}."),
                "",
                "",
            ]
    fields = [
        f"    {name}: {_category_source(item, table.model_fields[name])}"
        for name, item in types.items()
    ]
    models = "BaseModel, Field" if any("= Field(" in field for field in fields) else "BaseModel"
    head = [f"class {re.sub(r'[^0-9A-Za-z_]', '_', table.__name__)}(BaseModel):"]
    head += [*_doc(doc), ""] if doc else []
    parts = [f"from pydantic import {models}", "", *imports, "", "", *stand_ins, *head, *fields]
    return "\n".join(parts)


def conversation_source(types: Mapping[str, str], doc: str) -> str:
    """The class of a conversation entry as it is, aliases and defaults included."""
    fields = [
        f"    {name}: {types[name]} = {_value_source(field)}"
        for name, field in ConversationItem.model_fields.items()
    ]
    return "\n".join(
        [
            "from pydantic import BaseModel, ConfigDict, Field",
            "",
            "from tomldiary.entries.models import timestamp",
            "",
            "",
            "class ConversationItem(BaseModel):",
            *_doc(doc),
            "",
            "    model_config = ConfigDict(populate_by_name=True)",
            "",
            *fields,
        ]
    )


def _category_source(item: type[PreferenceItem], field: FieldInfo) -> str:
    empty = field.default is None and field.default_factory is None
    kind = f"dict[str, {item.__name__}]{' | None' if empty else ''}"
    extra = field.json_schema_extra
    options = [f"description={_literal(field.description)}"] if field.description else []
    if isinstance(extra, dict) and "weight" in extra:
        options.append(f'json_schema_extra={{"weight": {extra["weight"]!r}}}')
    if not options:
        return f"{kind} = {'None' if empty else '{}'}"
    default = "default=None" if empty else "default_factory=dict"
    return f"{kind} = Field({', '.join([default, *options])})"


def _value_source(field: FieldInfo) -> str:
    factory: Any = field.default_factory
    if factory is not None:
        made = str(factory) if get_origin(factory) else factory.__name__
        default = f"default_factory={made}"
    else:
        default = f"default={_literal(field.default)}"
    if field.alias:
        return f"Field({default}, alias={_literal(field.alias)})"
    return f"Field({default})" if factory is not None else _literal(field.default)


def _importable(item: type[PreferenceItem]) -> bool:
    module = sys.modules.get(item.__module__)
    return item.__module__ != "__main__" and getattr(module, item.__name__, None) is item


def _literal(value: object) -> str:
    # A JSON string is also a Python string literal, with the double quotes that formatters prefer.
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _doc(text: str) -> list[str]:
    safe = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"').replace("\0", "\\0")
    if "\n" not in safe and not safe.endswith('"'):
        return [f'    """{safe}"""']
    lines = [f"    {line}" if line else "" for line in safe.split("\n")]
    return ['    """' + lines[0].lstrip(), *lines[1:], '    """']
