"""The categories of preference tables, and their descriptions for people, programs and models.

A category is a field that maps ids to entries: `likes: dict[str, PreferenceItem] = {}`. Its description is in
`Field(description=...)`, in a docstring line `likes : What the user enjoys`, or in both.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterable, Mapping
from math import inf
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    cast,
    get_args,
    get_origin,
    overload,
)

from pydantic import AliasChoices, AliasPath, BaseModel
from pydantic.errors import PydanticUndefinedAnnotation

from tomldiary.entries.models import ConversationItem, PreferenceItem
from tomldiary.errors import InvalidValue, SchemaError, UnknownCategory, printed

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

__all__ = [
    "SchemaFormat",
    "categories",
    "categories_doc",
    "get_conversations_schema",
    "get_preferences_schema",
    "item_type",
    "item_types",
    "show_conversations_schema",
    "show_preferences_schema",
    "weight_of",
    "weights",
]

SchemaFormat = Literal["pretty", "json", "python"]

_CONVERSATION_IMPORTS = """\
from pydantic import BaseModel, ConfigDict, Field

from tomldiary.models import timestamp"""
_DOC_LINE = re.compile(r"(?P<indent>\s*)(?:[-*]\s+)?`*(?P<name>\w+)`*\s*:\s*(?P<text>\S.*)")


def categories(pref_table_cls: type[BaseModel]) -> dict[str, str]:
    """Return the names of the categories with their descriptions ("" if there is none), in the order of the class.

    Raises:
        SchemaError: The class is not a pydantic model, has no category, has a category without a default or hidden by
            an alias, or maps to a type other than PreferenceItem.
    """
    names = item_types(pref_table_cls)
    docs = [_doc_lines(doc, pref_table_cls.model_fields) for doc in _docstrings(pref_table_cls)]
    return {name: _description(pref_table_cls, name, docs) for name in names}


def item_type(pref_table_cls: type[BaseModel], category: str) -> type[PreferenceItem]:
    """Return the class of the entries of a category: PreferenceItem or a subclass.

    Raises:
        UnknownCategory: The table has no such category.
        SchemaError: As for `categories`.
    """
    found = item_types(pref_table_cls)
    if category not in found:
        raise UnknownCategory(category, list(found))
    return found[category]


def weights(pref_table_cls: type[BaseModel]) -> dict[str, float]:
    """Return the weight of each category, which decides its share of a budget; the default is 1.

    Set it with `Field(json_schema_extra={"weight": 3})`.

    Raises:
        SchemaError: A weight is not a positive number; otherwise as for `categories`.
    """
    name = pref_table_cls.__name__
    return {
        category: weight_of(
            pref_table_cls.model_fields[category].json_schema_extra, f"{name}.{category}"
        )
        for category in item_types(pref_table_cls)
    }


def weight_of(extra: object, where: str) -> float:
    """Return the weight in a `json_schema_extra`; the default is 1.

    Raises:
        SchemaError: The weight is not a positive number; the message begins with `where`.
    """
    weight: object = (
        cast("Mapping[str, object]", extra).get("weight", 1) if isinstance(extra, Mapping) else 1
    )
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < inf:
        raise SchemaError(
            f"{where}: the weight is a positive number, such as 3; found {printed(weight)}."
        )
    return float(weight)


def names_read(model: type[BaseModel]) -> set[Any]:
    """Return the names by which a model reads its fields: their own, and their aliases."""
    found: set[Any] = set(model.model_fields)
    for field in model.model_fields.values():
        alias = field.validation_alias  # pydantic copies `alias` to it
        names = alias.choices if isinstance(alias, AliasChoices) else [alias]
        found.update(each.path[0] if isinstance(each, AliasPath) else each for each in names)
    return found


def categories_doc(pref_table_cls: type[BaseModel]) -> str:
    """Return the description of the categories for a model: the docstring, then the descriptions of other fields.

    Every category is named, and no description is repeated.
    """
    described = categories(pref_table_cls)
    doc = next(iter(_docstrings(pref_table_cls)), "")
    described_in_doc = _doc_lines(doc, described)
    lines: list[str] = []
    for name, description in described.items():
        if name not in described_in_doc:
            lines.append(f"{name} : {description}" if description else name)
        elif not _contains_words(described_in_doc[name], _field_description(pref_table_cls, name)):
            lines.append(f"{name} : {_field_description(pref_table_cls, name)}")
    return "\n\n".join(part for part in (doc, "\n".join(lines)) if part)


@overload
def get_preferences_schema(
    pref_table_cls: type[BaseModel], format: None = None
) -> dict[str, Any]: ...
@overload
def get_preferences_schema(pref_table_cls: type[BaseModel], format: SchemaFormat) -> str: ...
def get_preferences_schema(
    pref_table_cls: type[BaseModel],
    format: SchemaFormat | None = None,  # noqa: A002 - the ancestor's name
) -> dict[str, Any] | str:
    """Return the schema of a preference table as data, or as text if a format is given.

    Returns:
        A dictionary with the keys `schema_name`, `categories` (names), `json_schema`, `category_types` and
        `descriptions` (both by name); with a format, the text of `show_preferences_schema`.
    """
    if format is not None:
        return show_preferences_schema(pref_table_cls, format)
    described = categories(pref_table_cls)
    types = item_types(pref_table_cls)
    return {
        "schema_name": pref_table_cls.__name__,
        "categories": list(described),
        "json_schema": pref_table_cls.model_json_schema(),
        "category_types": {name: f"dict[str, {types[name].__name__}]" for name in described},
        "descriptions": described,
    }


def show_preferences_schema(
    pref_table_cls: type[BaseModel],
    format: SchemaFormat = "pretty",  # noqa: A002 - the ancestor's name
) -> str:
    """Return the schema of a preference table as a tree (`pretty`), JSON Schema (`json`) or source code (`python`)."""
    items = item_types(pref_table_cls)
    types = {name: f"dict[str, {item.__name__}]" for name, item in items.items()}
    if format == "python":
        return _table_source(pref_table_cls, items, next(iter(_docstrings(pref_table_cls)), ""))
    return _shown(pref_table_cls, format, types, categories(pref_table_cls))


@overload
def get_conversations_schema(format: None = None) -> dict[str, Any]: ...
@overload
def get_conversations_schema(format: SchemaFormat) -> str: ...
def get_conversations_schema(
    format: SchemaFormat | None = None,  # noqa: A002 - the ancestor's name
) -> dict[str, Any] | str:
    """Return the schema of conversations as data (`schema_name`, `json_schema`, `fields`), or as text with a format."""
    if format is not None:
        return show_conversations_schema(format)
    return {
        "schema_name": ConversationItem.__name__,
        "json_schema": ConversationItem.model_json_schema(),
        "fields": list(ConversationItem.model_fields),
    }


def show_conversations_schema(
    format: SchemaFormat = "pretty",  # noqa: A002 - the ancestor's name
) -> str:
    """Return the schema of conversations as text, in the formats of `show_preferences_schema`."""
    fields = ConversationItem.model_fields
    types = {name: _type_name(field.annotation) for name, field in fields.items()}
    if format == "python":
        # The base `Viewed` exists only in this package.
        source = inspect.getsource(ConversationItem).replace("Viewed, BaseModel", "BaseModel")
        return f"{_CONVERSATION_IMPORTS}\n\n\n{source.rstrip()}"
    return _shown(ConversationItem, format, types, _doc_lines(_own_doc(ConversationItem), types))


def _shown(
    model: type[BaseModel], format_: str, types: Mapping[str, str], descriptions: Mapping[str, str]
) -> str:
    if format_ == "json":
        return json.dumps(model.model_json_schema(), indent=2, ensure_ascii=False)
    if format_ == "pretty":
        return _tree(model.__name__, types, descriptions)
    raise InvalidValue(f"unknown format {format_!r}. Use pretty, json or python.", where="format")


def item_types(pref_table_cls: type[BaseModel]) -> dict[str, type[PreferenceItem]]:
    """Return the class of the entries of each category: PreferenceItem or a subclass.

    Raises:
        SchemaError: As for `categories`.
    """
    table = _checked(pref_table_cls)
    found: dict[str, type[PreferenceItem]] = {}
    config = table.model_config
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    for name, field in table.model_fields.items():
        where = f"{table.__name__}.{name}"
        if field.is_required():
            raise SchemaError(
                f"{where}: has no default, but a file may lack [preferences.{name}]. Write: {name}: dict[str, PreferenceItem] = {{}}"
            )
        mapping = _mapping_arguments(field.annotation)
        if mapping is None:
            continue  # a field that is not a mapping is no category
        value = _bare(mapping[1]) if len(mapping) == 2 and _bare(mapping[0]) is str else None  # noqa: PLR2004 - key and value
        if not (isinstance(value, type) and issubclass(value, PreferenceItem)):
            raise SchemaError(
                f"{where}: [preferences.{name}] holds preferences, found {_type_name(field.annotation)}. Annotate it as dict[str, PreferenceItem] or with a subclass of PreferenceItem."
            )
        if field.validation_alias is not None and not by_name:
            raise SchemaError(
                f"{where}: is stored as [preferences.{name}], which the alias {field.validation_alias!r} would hide. Remove the alias or set populate_by_name=True."
            )
        found[name] = value
    if not found:
        raise SchemaError(
            f"{table.__name__}: has no category. Add a field such as: likes: dict[str, PreferenceItem] = {{}}"
        )
    return found


def _checked(pref_table_cls: object) -> type[BaseModel]:
    given: Any = pref_table_cls
    if (
        not (isinstance(pref_table_cls, type) and issubclass(pref_table_cls, BaseModel))
        or pref_table_cls is BaseModel
    ):
        # Only the type is named, because an instance could contain private text.
        kind = getattr(given, "__name__", f"an object of type {type(given).__name__}")
        raise SchemaError(
            f"{kind}: a preference table is a class. Derive it from pydantic.BaseModel and pass the class itself."
        )
    try:
        if not getattr(given, "__pydantic_fields_complete__", False):  # since pydantic 2.10
            given.model_rebuild()
    except PydanticUndefinedAnnotation as error:
        raise SchemaError(
            f"{pref_table_cls.__name__}: the name {error.name!r} in an annotation is not defined. Define or import it before the class is used."
        ) from error
    return pref_table_cls


def _bare(annotation: Any) -> Any:
    """Return an annotation without the Annotated, Optional and type aliases around it."""
    if hasattr(annotation, "__value__"):  # a `type` statement or TypeAliasType
        return _bare(annotation.__value__)
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        return _bare(members[0]) if len(members) == 1 else annotation
    return annotation


def _mapping_arguments(annotation: Any) -> tuple[Any, ...] | None:
    """Return the type arguments of a mapping, () if it has none; None if it is not a mapping."""
    bare = _bare(annotation)
    origin = get_origin(bare) or bare
    if isinstance(origin, type) and issubclass(cast("type[Any]", origin), Mapping):
        return get_args(bare)
    return None


def _type_name(annotation: Any) -> str:
    plain = isinstance(annotation, type) and not get_args(annotation)
    return cast("str", annotation.__name__) if plain else str(annotation).replace("typing.", "")


def _own_doc(cls: type[BaseModel]) -> str:
    return inspect.cleandoc(cls.__dict__.get("__doc__") or "")


def _docstrings(cls: type[BaseModel]) -> list[str]:
    """Return the docstrings of a class and its base classes in MRO order, without that of BaseModel."""
    below = [base for base in cls.__mro__ if issubclass(base, BaseModel) and base is not BaseModel]
    return [doc for base in below if (doc := _own_doc(base))]


def _doc_lines(doc: str, names: Iterable[str]) -> dict[str, str]:
    """Return the descriptions in lines `name : description`; lines indented deeper continue the one above."""
    wanted = set(names)
    found: dict[str, str] = {}
    name, depth = "", 0
    for line in doc.splitlines():
        match = _DOC_LINE.fullmatch(line)
        if match and match["name"] in wanted:
            name, depth = match["name"], len(match["indent"])
            wanted.remove(name)
            found[name] = match["text"].strip()
        elif name and line.strip() and len(line) - len(line.lstrip()) > depth:
            found[name] += f" {line.strip()}"
        else:
            name = ""
    return found


def _field_description(cls: type[BaseModel], name: str) -> str:
    return " ".join((cls.model_fields[name].description or "").split())


def _description(cls: type[BaseModel], name: str, docs: Iterable[Mapping[str, str]]) -> str:
    line = next((doc[name] for doc in docs if name in doc), "")
    field = _field_description(cls, name)
    if _contains_words(line, field) or _contains_words(field, line):
        return max(line, field, key=len)
    return f"{line}{' ' if line[-1] in '.!?;:' else '. '}{field}"


def _contains_words(text: str, part: str) -> bool:
    """Return whether `text` contains `part` as whole words, ignoring case; True if `part` is empty."""
    words = part.rstrip(".").casefold()
    within = rf"(?<!\w){re.escape(words)}(?!\w)"
    return not words or re.search(within, text.casefold()) is not None


# As text


def _tree(title: str, types: Mapping[str, str], descriptions: Mapping[str, str]) -> str:
    """Return a tree of the names with their types and, one line below, their descriptions."""
    lines = [title, ""]
    for number, (name, kind) in enumerate(types.items(), start=1):
        last = number == len(types)
        lines.append(f"{'└──' if last else '├──'} {name}: {kind}")
        if descriptions.get(name):
            lines.append(f"{' ' if last else '│'}   └─ {descriptions[name]}")
    return "\n".join(lines)


def _table_source(
    table: type[BaseModel], types: Mapping[str, type[PreferenceItem]], doc: str
) -> str:
    """Return source code of a class with the same categories, docstring and descriptions.

    The code needs only this library. An entry class that cannot be imported, such as one of a script, is replaced by
    an empty subclass with its name.
    """
    own = {item.__name__: item for item in types.values() if item is not PreferenceItem}
    imports = ["from tomldiary import PreferenceItem"]
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


def _category_source(item: type[PreferenceItem], field: FieldInfo) -> str:
    empty = field.default is None and field.default_factory is None
    kind = f"dict[str, {item.__name__}]{' | None' if empty else ''}"
    extra = field.json_schema_extra
    # A JSON string is also a Python string literal, with the double quotes that formatters prefer.
    said = json.dumps(field.description, ensure_ascii=False)
    options = [f"description={said}"] if field.description else []
    if isinstance(extra, dict) and "weight" in extra:
        options.append(f'json_schema_extra={{"weight": {extra["weight"]!r}}}')
    if not options:
        return f"{kind} = {'None' if empty else '{}'}"
    default = "default=None" if empty else "default_factory=dict"
    return f"{kind} = Field({', '.join([default, *options])})"


def _importable(item: type[PreferenceItem]) -> bool:
    module = sys.modules.get(item.__module__)
    return item.__module__ != "__main__" and getattr(module, item.__name__, None) is item


def _doc(text: str) -> list[str]:
    safe = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"').replace("\0", "\\0")
    if "\n" not in safe and not safe.endswith('"'):
        return [f'    """{safe}"""']
    lines = [f"    {line}" if line else "" for line in safe.split("\n")]
    return ['    """' + lines[0].lstrip(), *lines[1:], '    """']
