"""The `tomldiary` program: the list of its commands, and errors printed as one line."""

from __future__ import annotations

import io
import logging
import os
import sys
from contextlib import contextmanager
from difflib import get_close_matches
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any

import rich  # noqa: F401  # pyright: ignore[reportUnusedImport] - commands need rich; __main__ reports if it is missing
import typer
from typer.core import TyperCommand, TyperGroup

from tomldiary import __version__
from tomldiary.cli.output import EXIT_PARTIAL, drop_output, print_error, print_text, sentence
from tomldiary.errors import DiaryError
from tomldiary.logging import show_once
from tomldiary.text.visible import one_line, printable

if TYPE_CHECKING:
    from collections.abc import Generator

# A command is imported when it is called, because imports dominate the start-up time.
_COMMANDS = {
    "demo": "commands.demo:demo",
    "ingest": "commands.portability:ingest",
    "consolidate": "commands.portability:consolidate",
    "review": "commands.entries:review",
    "users": "commands.users:users",
    "show": "commands.show:show",
    "add": "commands.edit:add",
    "edit": "commands.edit:edit",
    "search": "commands.entries:search",
    "history": "commands.history:history",
    "why": "commands.history:why",
    "diff": "commands.history:diff",
    "rollback": "commands.history:rollback",
    "export": "commands.portability:export_memory",
    "import": "commands.portability:import_memory",
    "copy": "commands.portability:copy_memory",
    "pull": "commands.edit:pull",
    "push": "commands.edit:push",
    "forget": "commands.forget:forget",
    "stats": "commands.users:stats",
    "eval": "commands.evaluation:evaluate_questions",
    "writer": "commands.writer:writer_commands",
    "doctor": "commands.doctor:doctor",
    "schema": "commands.schema:schema_commands",
    "completion": "options:completion",
}
_OTHER_WORDS = {
    **dict.fromkeys(("get", "list", "ls"), "show"),
    **dict.fromkeys(("query", "recall"), "search"),
    **dict.fromkeys(("delete", "remove", "rm"), "forget"),
    **dict.fromkeys(("set", "update"), "add"),
    "log": "history",
    "undo": "rollback",
}
"""The commands by words of other programs."""
_EXIT_UNUSABLE = 2
# Help and usage errors have frames only on a terminal.
_MARKUP = "rich" if sys.stdout.isatty() and sys.stderr.isatty() else None


_REPLACED = ("install_completion", "show_completion")


_UsageError: Any = typer.BadParameter.__base__


@contextmanager
def _printable() -> Generator[None]:
    """Escape what a terminal obeys in the message of a wrong call, such as in the name of an unknown option."""
    try:
        yield
    except _UsageError as error:
        error.message = printable(error.message)
        raise


class _Command(TyperCommand):
    """Says what an argument too many was probably meant to be."""

    allow_extra_args = True  # they are refused below

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; fail for an argument too many, as the base class does."""
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            hint = ". Name the user with --user; put a text of several words in quotes."
            ctx.fail(
                f"Got unexpected extra argument(s) ({one_line(' '.join(extra))}){hint if 'user' in ctx.params else '.'}"
            )
        return extra


class _Commands(TyperGroup):
    """Finds commands by name and imports them when they are called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the base class passes it
        """Return the names, in the order of the help."""
        return list(_COMMANDS)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options without those of typer, which the command `completion` replaces."""
        return [each for each in super().get_params(ctx) if each.name not in _REPLACED]

    @_printable()
    def make_context(self, *args: Any, **options: Any) -> Any:
        """Return the context of a call."""
        return super().make_context(*args, **options)

    @_printable()
    def invoke(self, ctx: Any) -> Any:
        """Run the called command."""
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; an option of the commands before the command is an error that says so."""
        option = args[0].partition("=")[0] if args else ""
        if option.strip("-").replace("-", "_") in _REPLACED:
            ctx.fail(f"No such option: {option}. Run: tomldiary completion --help.")
        if option in {"--path", "--user", "--json"}:
            ctx.fail(f"{option} belongs after the command, as in: tomldiary show {option}.")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the called command; for an unknown name, the error suggests one."""
        similar = "".join(get_close_matches(args[0], _COMMANDS, n=1))
        meant = _OTHER_WORDS.get(args[0], similar)
        if args[0] not in _COMMANDS and meant:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant!r}?")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the base class passes it
        """Import a command and return it; return None if no command has this name."""
        if cmd_name not in _COMMANDS:
            return None
        found: Any = resolve_name(f"tomldiary.cli.{_COMMANDS[cmd_name]}")
        if not isinstance(found, typer.Typer):
            program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            program.command(cmd_name, cls=_Command)(found)
            found = program
        command: Any = typer.main.get_command(found)
        command.name = cmd_name
        group: Any = command.commands.values() if isinstance(command, TyperGroup) else ()
        for each in (command, *group):
            each.rich_markup_mode = _MARKUP
        return command


app = typer.Typer(
    name="tomldiary",
    cls=_Commands,
    help="An agent's memory as TOML files that people read, edit and diff.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # for all commands
    pretty_exceptions_enable=False,
    rich_markup_mode=_MARKUP,
)


def _show_version(is_asked: bool) -> None:  # noqa: FBT001 - typer calls it with the value
    if is_asked:
        print_text(f"tomldiary {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """An agent's memory as TOML files that people read, edit and diff."""


def run() -> None:
    """Run the command in `sys.argv` and exit. A `DiaryError` is printed as one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal cannot show is printed as an escape.
            stream.reconfigure(errors="backslashreplace")
    # For a fast start: otherwise pydantic searches every installed distribution for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    # psycopg logs each failed attempt to connect; one error message is enough.
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    try:
        with show_once():
            try:
                app()
            finally:
                _finish_output()
    except DiaryError as error:
        _fail(" ".join([str(error), *getattr(error, "__notes__", ())]))
    except OSError as error:
        from tomldiary.storage.files import system_remedy  # noqa: PLC0415 - slow to import and rarely needed
        from tomldiary.storage.shared.database import without_secrets  # noqa: PLC0415 - the same

        place = f"{without_secrets(str(error.filename))}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}. {system_remedy(error)}".removesuffix(" "))


def _finish_output() -> None:
    """Write the buffered output; a command that has not failed exits with 1 if it cannot be written.

    At its own end the interpreter would report the error as ignored, and exit with 120.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        drop_output(error)
        failure = error.__context__
        if failure is None or (isinstance(failure, SystemExit) and not failure.code):
            sys.exit(EXIT_PARTIAL)


def _fail(message: str) -> None:
    print_error(sentence(message))
    sys.exit(_EXIT_UNUSABLE)
