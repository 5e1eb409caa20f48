"""Loads preferences and conversations files into validated pydantic models.

Supports the current layout (`[preferences.likes.pref001]`, `[conversations.chat_1]`), the short layout
(`[likes.coffee]`), the top-level sessions of files before 0.3, and files without `[_meta]`.
"""

from __future__ import annotations

from datetime import date, time
from os import PathLike
from pathlib import Path
from types import GenericAlias
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, TypeAdapter

from tomldiary.entries.kinds.conversations import Conversations
from tomldiary.entries.models import ConversationItem, PreferenceItem
from tomldiary.entries.preferences import by_category
from tomldiary.entries.schema import categories, item_type
from tomldiary.errors import InvalidValue
from tomldiary.hand_edits.detect import check_version
from tomldiary.toml.document import Document
from tomldiary.toml.parse import decode_utf8

__all__ = ["ConversationLoader", "PreferenceLoader", "load_conversations", "load_preferences"]

TableT = TypeVar("TableT", bound=BaseModel)


class PreferenceLoader(Generic[TableT]):
    """Reads preferences into an instance of the preference table.

    Args:
        pref_table_cls: The preference table. Other categories in a file are ignored.

    Raises:
        SchemaError: The class is not a valid preference table.
    """

    def __init__(self, pref_table_cls: type[TableT]) -> None:
        self.pref_table_cls = pref_table_cls
        self.categories = list(categories(pref_table_cls))
        self.adapter = TypeAdapter(pref_table_cls)

    def load_from_toml_str(self, toml_str: str) -> TableT:
        """Return the validated table with all entries of a text.

        Raises:
            pydantic.ValidationError: An entry does not fit the table.
            InvalidTOML: The text is not valid TOML. The error has the line and the column.
            NewerVersion: The format of the text is newer than this library.
        """
        return self._load(toml_str, "")

    def load_from_file(self, path: Path | str) -> TableT:
        """Do the same for a UTF-8 file.

        Raises:
            OSError: The file is missing (FileNotFoundError) or cannot be read.
        """
        return self._load(_read(path), str(path))

    def validate_partial(
        self, category: str, data: dict[str, dict[str, Any]]
    ) -> dict[str, PreferenceItem]:
        """Return the validated entries of one category; `data` maps ids to the fields of an entry.

        Raises:
            UnknownCategory: The table has no such category.
            pydantic.ValidationError: An entry does not fit.
        """
        entries: Any = GenericAlias(dict, (str, item_type(self.pref_table_cls, category)))
        adapter: TypeAdapter[dict[str, PreferenceItem]] = TypeAdapter(entries)
        return adapter.validate_python(data)

    def _load(self, text: str, path: str) -> TableT:
        document = _document(text, path)
        nested = document.data.get("preferences", {})
        if not isinstance(nested, dict):
            return self.adapter.validate_python(nested)  # raises the documented ValidationError
        found = by_category(document.data)
        named = {*self.categories, *cast("dict[str, Any]", nested)}
        return self.adapter.validate_python(
            {name: _with_text_times(found[name]) for name in found if name in named}
        )


class ConversationLoader:
    """Reads conversation summaries, keyed by session id."""

    def __init__(self) -> None:
        self.adapter: TypeAdapter[dict[str, ConversationItem]] = TypeAdapter(
            dict[str, ConversationItem]
        )

    def load_from_toml_str(self, toml_str: str) -> dict[str, ConversationItem]:
        """Return all conversations of a text, validated, in the order of the file.

        Raises:
            pydantic.ValidationError: A conversation has a field of the wrong type.
            InvalidTOML: The text is not valid TOML. The error has the line and the column.
            NewerVersion: The format of the text is newer than this library.
        """
        return self._load(toml_str, "")

    def load_from_file(self, path: Path | str) -> dict[str, ConversationItem]:
        """Do the same for a UTF-8 file.

        Raises:
            OSError: The file is missing (FileNotFoundError) or cannot be read.
        """
        return self._load(_read(path), str(path))

    def _load(self, text: str, path: str) -> dict[str, ConversationItem]:
        document = _document(text, path)
        nested: Any = document.data.get("conversations")
        found: dict[str, Any] = dict(Conversations(document).entries())
        if nested is None:  # also files of the current version without the root table
            found = {key: table for key, table in document.data.items() if isinstance(table, dict)}
            found.pop("_meta", None)
        elif not isinstance(nested, dict):
            return self.adapter.validate_python(nested)  # raises the documented ValidationError
        else:
            found = {**nested, **found}
        return self.adapter.validate_python(_with_text_times(found))


def load_preferences(toml_str: str, pref_table_cls: type[TableT]) -> TableT:
    """Return `PreferenceLoader(pref_table_cls).load_from_toml_str(toml_str)`."""
    return PreferenceLoader(pref_table_cls).load_from_toml_str(toml_str)


def load_conversations(toml_str: str) -> dict[str, ConversationItem]:
    """Return `ConversationLoader().load_from_toml_str(toml_str)`."""
    return ConversationLoader().load_from_toml_str(toml_str)


def _read(path: Path | str) -> str:
    return decode_utf8(Path(path).read_bytes(), path=str(path))


def _document(text: object, path: str) -> Document:
    if not isinstance(text, str) or (text.endswith(".toml") and "\n" not in text):
        found = "a path" if isinstance(text, (str, PathLike)) else type(text).__name__
        raise InvalidValue(
            f"expected the text of a file, found {found}. To load a file, use"
            " PreferenceLoader(table).load_from_file(path), or ConversationLoader()."
        )
    document = Document.parse(text, path=path)
    check_version(document, path)
    return document


def _with_text_times(entries: object) -> object:
    """Return the entries with unquoted times as text."""
    if not isinstance(entries, dict):
        return entries
    fresh = {**cast("dict[str, Any]", entries)}
    for key, entry in fresh.items():
        if isinstance(entry, dict):
            known = cast("dict[str, Any]", entry)
            for name in {"_created", "_updated"} & known.keys():
                if isinstance(known[name], date | time):
                    known = {**known, name: known[name].isoformat()}
            fresh[key] = known
    return fresh
