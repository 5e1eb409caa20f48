"""`schema`: what a preference table and a conversation entry look like, for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from tomldiary.cli.output import print_text
from tomldiary.cli.tables import load_table
from tomldiary.compat.default_table import DefaultPrefTable
from tomldiary.entries.schema import show_conversations_schema, show_preferences_schema

if TYPE_CHECKING:
    from tomldiary.entries.schema import SchemaFormat

__all__ = ["schema_commands"]

schema_commands = typer.Typer(no_args_is_help=True, help="Show what is stored, as a schema.")

_Format = Annotated[str, typer.Option("--format", "-f", help="pretty, json or python.")]


@schema_commands.command()
def preferences(
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE.py:Class]", help="The file is run; without it, the built-in table."
        ),
    ] = None,
    *,
    form: _Format = "pretty",
) -> None:
    """Show a preference table: its categories, what they hold and what they are for."""
    found = DefaultPrefTable if table is None else load_table(table)
    print_text(show_preferences_schema(found, cast("SchemaFormat", form)))


@schema_commands.command()
def conversations(*, form: _Format = "pretty") -> None:
    """Show what is stored about a conversation."""
    print_text(show_conversations_schema(cast("SchemaFormat", form)))
