"""Preference tables are read as categories, and shown to people, programs and models."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations
from typing import Annotated, Any, Dict, List, Optional  # noqa: UP035 - users write them

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypeAliasType

from tomldiary.compat.default_table import DefaultPrefTable
from tomldiary.entries.models import ConversationItem, PreferenceItem
from tomldiary.entries.schema import (
    categories,
    categories_doc,
    get_conversations_schema,
    get_preferences_schema,
    item_type,
    show_conversations_schema,
    show_preferences_schema,
)
from tomldiary.errors import InvalidValue, SchemaError, UnknownCategory
from tomldiary.utils import extract_categories_from_schema


class Strong(PreferenceItem):
    strength: int = 1


class Table(BaseModel):
    """What a cook likes.

    likes    : What the user enjoys,
               food above all
    dislikes : What the user avoids
    """

    likes: Dict[str, PreferenceItem] = {}  # noqa: UP006 - as in the ancestor's README
    dislikes: dict[str, Strong] = Field(default_factory=dict, description="Never serve it")
    tools: Optional[Mapping[str, PreferenceItem]] = None  # noqa: UP045 - the old spelling
    diet: Annotated[dict[str, PreferenceItem], Field(description='Says "no meat"')] = {}
    plain: dict[str, PreferenceItem] | None = None
    revision: int = 3


ALL = ["likes", "dislikes", "tools", "diet", "plain"]


def run(source: str, name: str) -> type[BaseModel]:
    namespace: dict[str, Any] = {"__name__": "shown"}
    exec(compile(source, "shown.py", "exec", dont_inherit=True), namespace)  # noqa: S102 - that the source runs is the claim
    return namespace[name]


def test_only_mappings_to_preferences_are_categories():
    assert list(categories(Table)) == ALL
    assert extract_categories_from_schema(Table) == ALL


def test_aliases_and_annotations_of_a_mapping_are_categories():
    Wines = TypeAliasType("Wines", dict[str, Strong])  # noqa: N806 - a type

    class Cellar(BaseModel):
        wines: Wines = {}
        teas: Optional[Annotated[dict[str, PreferenceItem], "inner"]] = None  # noqa: UP045 - old

    Cellar.model_rebuild(_types_namespace={"Wines": Wines, **globals()})
    assert list(categories(Cellar)) == ["wines", "teas"]
    assert item_type(Cellar, "wines") is Strong


def test_descriptions_join_the_docstring_line_and_the_field():
    assert categories(Table) == {
        "likes": "What the user enjoys, food above all",
        "dislikes": "What the user avoids. Never serve it",
        "tools": "",
        "diet": 'Says "no meat"',
        "plain": "",
    }


def test_a_description_given_twice_is_shown_once():
    class Twice(BaseModel):
        """likes: What the user enjoys."""

        likes: dict[str, PreferenceItem] = Field(default={}, description="what the user enjoys")

    assert categories(Twice) == {"likes": "What the user enjoys."}
    assert categories_doc(Twice) == "likes: What the user enjoys."


def test_a_word_inside_another_word_is_not_the_same_description():
    class Sea(BaseModel):
        """likes: Seafood"""

        likes: dict[str, PreferenceItem] = Field(default={}, description="Food")

    assert categories(Sea) == {"likes": "Seafood. Food"}


@pytest.mark.parametrize(
    "doc",
    [
        "likes:close",
        "likes : close",
        "- likes: close",
        "`likes` : close",
        "Title\n\n    likes  :  close",
    ],
)
def test_docstrings_are_parsed_in_any_layout(doc):
    class Laid(BaseModel):
        likes: dict[str, PreferenceItem] = {}

    Laid.__doc__ = doc
    assert categories(Laid) == {"likes": "close"}


def test_a_deeper_line_that_names_another_category_starts_its_description():
    class Deep(BaseModel):
        likes: dict[str, PreferenceItem] = {}
        work: dict[str, PreferenceItem] = {}

    Deep.__doc__ = "likes : one\n  work : two\n    goes on\nlikes : again"
    assert categories(Deep) == {"likes": "one", "work": "two goes on"}


def test_a_subclass_keeps_the_descriptions_of_its_base():
    class Child(Table):
        """pets : Animals at home"""

        pets: dict[str, PreferenceItem] = {}

    assert categories(Child)["likes"] == "What the user enjoys, food above all"
    assert categories(Child)["pets"] == "Animals at home"
    assert "likes : What the user enjoys" in categories_doc(Child)


def test_the_model_gets_docstrings_and_field_descriptions():
    assert categories_doc(Table) == (
        "What a cook likes.\n\n"
        "likes    : What the user enjoys,\n"
        "           food above all\n"
        "dislikes : What the user avoids\n\n"
        "dislikes : Never serve it\n"
        "tools\n"
        'diet : Says "no meat"\n'
        "plain"
    )


def test_the_docstring_of_pydantic_is_never_shown():
    class Bare(BaseModel):
        likes: dict[str, PreferenceItem] = {}

    assert categories_doc(Bare) == "likes"


def test_entries_of_a_category_may_be_of_a_subclass():
    assert item_type(Table, "dislikes") is Strong
    assert item_type(Table, "tools") is PreferenceItem
    with pytest.raises(UnknownCategory) as caught:
        item_type(Table, "pets")
    assert caught.value.allowed == ALL


class NoDefault(BaseModel):
    likes: dict[str, PreferenceItem]


class Empty(BaseModel):
    age: int = 3


class WrongValue(BaseModel):
    likes: dict[str, str] = {}


class WrongKey(BaseModel):
    likes: dict[int, PreferenceItem] = {}


class BareDict(BaseModel):
    likes: Dict = {}  # noqa: UP006 - what is refused


class Aliased(BaseModel):
    likes: dict[str, PreferenceItem] = Field(default={}, alias="Likes")


class Undefined(BaseModel):
    likes: dict[str, Nowhere] = {}  # noqa: F821 - what is refused


@pytest.mark.parametrize(
    ("table", "where", "what", "remedy"),
    [
        (NoDefault, "NoDefault.likes: ", "[preferences.likes]", "= {}"),
        (Empty, "Empty: ", "no category", "likes: dict[str, PreferenceItem] = {}"),
        (WrongValue, "WrongValue.likes: ", "dict[str, str]", "dict[str, PreferenceItem]"),
        (WrongKey, "WrongKey.likes: ", "dict[int, ", "dict[str, PreferenceItem]"),
        (BareDict, "BareDict.likes: ", "Dict", "dict[str, PreferenceItem]"),
        (Aliased, "Aliased.likes: ", "'Likes'", "populate_by_name"),
        (Undefined, "Undefined: ", "'Nowhere'", "Define or import"),
        (dict, "dict: ", "is a class", "BaseModel"),
        (Table(), "an object of type Table: ", "is a class", "pass the class itself"),
        (None, "an object of type NoneType: ", "is a class", "BaseModel"),
    ],
)
@pytest.mark.parametrize("reader", [categories, categories_doc, show_preferences_schema])
def test_an_unusable_class_is_refused_with_place_and_remedy(reader, table, where, what, remedy):
    with pytest.raises(SchemaError) as caught:
        reader(table)
    message = str(caught.value)
    assert message.startswith(where)
    assert what in message
    assert remedy in message


def test_the_pretty_form_names_the_exact_types():
    assert show_preferences_schema(Table) == (
        "Table\n"
        "\n"
        "├── likes: dict[str, PreferenceItem]\n"
        "│   └─ What the user enjoys, food above all\n"
        "├── dislikes: dict[str, Strong]\n"
        "│   └─ What the user avoids. Never serve it\n"
        "├── tools: dict[str, PreferenceItem]\n"
        "├── diet: dict[str, PreferenceItem]\n"
        '│   └─ Says "no meat"\n'
        "└── plain: dict[str, PreferenceItem]"
    )


def test_the_pretty_form_shows_a_conversation():
    assert show_conversations_schema() == (
        "ConversationItem\n"
        "\n"
        "├── created: str\n"
        "│   └─ when the session began, ISO 8601 (`_created` in TOML, managed)\n"
        "├── updated: str\n"
        "│   └─ when it last changed, ISO 8601 (`_updated`, managed)\n"
        "├── turns: int\n"
        "│   └─ number of user and assistant pairs (`_turns`, managed)\n"
        "├── summary: str\n"
        "│   └─ what was talked about so far\n"
        "└── keywords: list[str]\n"
        "    └─ the main topics"
    )


def test_the_data_form_has_the_keys_of_the_ancestor():
    data = get_preferences_schema(Table)
    assert list(data) == [
        "schema_name",
        "categories",
        "json_schema",
        "category_types",
        "descriptions",
    ]
    assert data["schema_name"] == "Table"
    assert data["categories"] == ALL
    assert data["category_types"]["dislikes"] == "dict[str, Strong]"
    assert data["descriptions"] == categories(Table)
    assert data["json_schema"] == Table.model_json_schema()
    conversations = get_conversations_schema()
    assert list(conversations) == ["schema_name", "json_schema", "fields"]
    assert conversations["fields"] == ["created", "updated", "turns", "summary", "keywords"]


@pytest.mark.parametrize("shape", ["pretty", "json", "python"])
def test_get_with_a_format_is_show(shape):
    assert get_preferences_schema(Table, shape) == show_preferences_schema(Table, format=shape)
    assert get_conversations_schema(format=shape) == show_conversations_schema(format=shape)


def test_json_is_the_json_schema():
    assert json.loads(show_preferences_schema(Table, "json")) == Table.model_json_schema()
    shown = json.loads(show_conversations_schema("json"))
    assert shown == ConversationItem.model_json_schema()


@pytest.mark.parametrize(
    "show", [lambda f: show_preferences_schema(Table, f), show_conversations_schema]
)
def test_an_unknown_format_is_refused(show):
    with pytest.raises(
        InvalidValue, match=r"^format: unknown format 'yaml'. Use pretty, json or python"
    ):
        show("yaml")


def test_python_source_of_a_plain_table():
    class Plain(BaseModel):
        """likes : What the user enjoys"""

        likes: dict[str, PreferenceItem] = {}
        work: dict[str, PreferenceItem] = Field(default={}, description="Job and tools")

    assert show_preferences_schema(Plain, "python") == (
        "from pydantic import BaseModel, Field\n"
        "\n"
        "from tomldiary import PreferenceItem\n"
        "\n"
        "\n"
        "class Plain(BaseModel):\n"
        '    """likes : What the user enjoys"""\n'
        "\n"
        "    likes: dict[str, PreferenceItem] = {}\n"
        '    work: dict[str, PreferenceItem] = Field(default_factory=dict, description="Job and tools")'
    )


@pytest.mark.parametrize("table", [Table, DefaultPrefTable])
def test_python_source_runs_and_gives_the_same_categories(table):
    shown = run(show_preferences_schema(table, "python"), table.__name__)
    assert categories(shown) == categories(table)
    assert categories_doc(shown) == categories_doc(table)
    assert shown() == shown.model_validate({})


def test_python_source_replaces_an_entry_class_that_cannot_be_imported():
    class Local(PreferenceItem):
        pass

    class Uses(BaseModel):
        likes: dict[str, Local] = {}

    shown = run(show_preferences_schema(Uses, "python"), "Uses")
    assert item_type(shown, "likes").__name__ == "Local"


HOSTILE = [
    'ends with "',
    'has """ in it',
    "back\\slash \\n",
    "line\nbreak",
    "nul\x00",
    "'\"'\"'",
    "\\",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_python_source_survives_any_docstring_and_description(text):
    class Odd(BaseModel):
        likes: dict[str, PreferenceItem] = Field(default={}, description=text)

    Odd.__doc__ = f"Odd one.\n\nlikes : {text}"
    shown = run(show_preferences_schema(Odd, "python"), "Odd")
    assert inspect.cleandoc(shown.__doc__ or "") == inspect.cleandoc(Odd.__doc__)
    assert categories(shown) == categories(Odd)


def test_python_source_of_a_conversation_runs_and_reads_the_same_tables():
    source = show_conversations_schema("python")
    assert "from tomldiary.models import" in source  # an import path that TOMLDiary 0.9 documents
    shown = run(source, "ConversationItem")
    stored = {"_created": "a", "_updated": "b", "_turns": 2, "summary": "s", "keywords": ["k"]}
    assert shown.model_validate(stored).model_dump(by_alias=True) == stored
    assert list(shown.model_fields) == list(ConversationItem.model_fields)
    assert shown().model_dump()["keywords"] == []


def test_the_default_table_describes_every_category():
    described = categories(DefaultPrefTable)
    assert {"likes", "dislikes", "allergies", "routines", "biography", "goals"} <= set(described)
    assert all(described.values())


def test_importing_loads_no_heavy_module():
    source = (
        "import importlib, sys\n"
        "for module in ('schema', 'loaders', 'pretty_print', 'logging', 'utils'):\n"
        "    importlib.import_module(f'tomldiary.{module}')\n"
        "    print(module, {'asyncio', 'rapidfuzz', 'rich', 'tomlkit'} & {*sys.modules})"
    )
    found = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert [line.split(" ", 1)[1] for line in found.stdout.splitlines()] == ["set()"] * 5


def test_a_list_is_no_category():
    class Listed(BaseModel):
        likes: dict[str, PreferenceItem] = {}
        seen: List[PreferenceItem] = []  # noqa: UP006 - the old spelling

    assert list(categories(Listed)) == ["likes"]
