"""The import path of TOMLDiary 0.9. New code uses `tomldiary.entries.schema.categories`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.entries.schema import categories

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["extract_categories_from_schema"]


def extract_categories_from_schema(pref_table_cls: type[BaseModel]) -> list[str]:
    """Return the names of the categories, in the order of the class.

    Raises:
        SchemaError: The class is not a valid preference table.
    """
    return list(categories(pref_table_cls))
