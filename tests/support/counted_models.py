"""Models that count how often a fact is parsed."""

from __future__ import annotations

from pydantic import model_validator


def counted(model, parsed):
    """Return a subclass of a model that appends the fields of each parsed fact to a list."""

    class Counted(model):
        @model_validator(mode="before")
        @classmethod
        def count(cls, fields):
            parsed.append(fields)
            return fields

    return Counted
