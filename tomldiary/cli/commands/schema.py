"""`schema`: the fields of preference tables and conversations, as text, JSON Schema or Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

from typer import Argument, Option, Typer

from tomldiary.cli.options import AsJson
from tomldiary.cli.output import print_text
from tomldiary.cli.tables import load_table
from tomldiary.compat.default_table import DefaultPrefTable
from tomldiary.entries.schema import show_conversations_schema, show_preferences_schema

if TYPE_CHECKING:
    from tomldiary.entries.schema import SchemaFormat

schema_commands = Typer(
    no_args_is_help=True, add_completion=False, help="Show the schema of stored entries."
)

_Format = Annotated[str, Option("--format", "-f", help="pretty, json or python.")]


@schema_commands.command()
def preferences(
    table: Annotated[
        str | None,
        Argument(
            metavar="[FILE.py:Class]",
            help="A table in a Python file, which is run; by default the built-in table.",
        ),
    ] = None,
    *,
    form: _Format = "pretty",
    as_json: AsJson = False,
) -> None:
    """Show the categories of a preference table."""
    found = DefaultPrefTable if table is None else load_table(table)
    print_text(show_preferences_schema(found, _form(form, as_json=as_json)))


@schema_commands.command()
def conversations(*, form: _Format = "pretty", as_json: AsJson = False) -> None:
    """Show the fields of a conversation."""
    print_text(show_conversations_schema(_form(form, as_json=as_json)))


def _form(form: str, *, as_json: bool) -> SchemaFormat:
    return cast("SchemaFormat", "json" if as_json else form)
