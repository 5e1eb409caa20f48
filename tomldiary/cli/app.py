"""The program: its commands, and one sentence for whatever goes wrong."""

from __future__ import annotations

import io
import sys

import typer

from tomldiary.cli.demo import demo
from tomldiary.cli.diff import diff
from tomldiary.cli.doctor import doctor
from tomldiary.cli.forget import forget
from tomldiary.cli.history import history
from tomldiary.cli.ingest import ingest
from tomldiary.cli.output import one_line
from tomldiary.cli.portability import export_memory, import_memory
from tomldiary.cli.rollback import rollback
from tomldiary.cli.schema import schema_commands
from tomldiary.cli.search import search
from tomldiary.cli.show import show
from tomldiary.cli.torture import torture
from tomldiary.cli.why import why
from tomldiary.cli.writer import writer_commands
from tomldiary.errors import DiaryError

__all__ = ["app", "run"]

app = typer.Typer(
    name="tomldiary",
    help="An agent's memory as TOML files that people read, edit and diff.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(ingest)
app.command()(show)
app.command()(search)
app.command()(history)
app.command()(why)
app.command()(diff)
app.command()(rollback)
app.command("export")(export_memory)
app.command("import")(import_memory)
app.command()(forget)
app.command()(doctor)
app.command()(torture)
app.add_typer(schema_commands, name="schema")
app.add_typer(writer_commands, name="writer")

_EXIT_UNUSABLE = 2


def run() -> None:
    """Run the command in `sys.argv` and exit; an error people can act on is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets an escape for it, not an exception.
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except DiaryError as error:
        _fail(str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}")


def _fail(message: str) -> None:
    ending = "" if message.endswith((".", "!", "?")) else "."
    sys.stderr.write(f"{one_line(message)}{ending}\n")
    sys.exit(_EXIT_UNUSABLE)
