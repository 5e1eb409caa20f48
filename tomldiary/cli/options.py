"""Options that several commands share, and how shells complete them; also `completion`, which prints the script for a shell.

Commands that remove or overwrite are dry runs unless `--yes` is given; `--dry-run` overrides `--yes`.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from tomldiary.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tomldiary.user.user import UserDiary

DEFAULT_PATH = "./memories"
_LIMIT = 500  # completions
_PLAIN = re.compile(r"[\w@%+:,./][\w@%+:,./-]*")
"""Text without special characters of a shell. Shells insert completions unquoted, so a shell would run `$(…)` in one."""
_PROGRAM, _VARIABLE = "tomldiary", "_TOMLDIARY_COMPLETE"


def complete_user(ctx: Any, incomplete: str) -> list[str]:
    """Return the users that begin with the typed text."""
    from tomldiary.cli.places import open_storage  # noqa: PLC0415 - only completion needs it here

    return _offered(lambda: open_storage(_path(ctx)).users(), incomplete)


def complete_category(ctx: Any, incomplete: str) -> list[str]:
    """Return the categories that begin with the typed text."""
    return _offered(lambda: _user(ctx).diary.allowed, incomplete)


def complete_document(ctx: Any, incomplete: str) -> list[str]:
    """Return the documents that begin with the typed text."""
    return _offered(lambda: _user(ctx).documents(), incomplete)


def complete_key(ctx: Any, incomplete: str) -> list[str]:
    """Return the keys of entries that begin with the typed text."""
    from tomldiary.views.memory import stored_entries  # noqa: PLC0415 - only completion needs it here

    return _offered(lambda: (entry.key for entry in stored_entries(_user(ctx))), incomplete)


def _offered(values: Callable[[], Iterable[str]], incomplete: str) -> list[str]:
    with suppress(Exception):  # a completion that fails returns nothing and prints nothing
        found = (each for each in values() if each.startswith(incomplete))
        return [*islice(filter(_PLAIN.fullmatch, found), _LIMIT)]
    return []


def _path(ctx: Any) -> str:
    named = (os.environ.get(name) for name in ("TOMLDIARY_URL", "TOMLDIARY_PATH"))
    return ctx.params.get("path") or next(filter(None, named), DEFAULT_PATH)


def _user(ctx: Any) -> UserDiary:
    from tomldiary.cli.memory import known_user  # noqa: PLC0415 - only completion needs it here

    name = ctx.params.get("user") or ctx.params.get("name") or os.environ.get("TOMLDIARY_USER")
    if not name and any(each.name == "name" for each in ctx.command.params):
        # Parsing stops at an option without its value, so the arguments are not parsed.
        name = next((word for word in ctx.args if not word.startswith("-")), None)
    return known_user(_path(ctx), name)


# Options


def lasting(path: str | None) -> str | None:
    """Return the place of a memory; a callback of options and arguments.

    Raises:
        InvalidValue: It is "memory:", which ends with the command.
    """
    if path == "memory:":
        raise InvalidValue('"memory:" is lost when this command ends; name a folder or a database.')
    return path


def check_absent(options: Mapping[str, object], why: str) -> None:
    """Raise InvalidValue, which says why, for the first of the options that is given."""
    for option, value in options.items():
        if value not in (None, False, []):
            raise InvalidValue(why, where=option)


MemoryPath = Annotated[
    str,
    Option(
        callback=lasting,
        metavar="FOLDER|URL",
        help="The folder of the memory, or the URL of its database.",
        envvar=["TOMLDIARY_URL", "TOMLDIARY_PATH"],
    ),
]


def user_option(text: str) -> Any:
    """Return the option `--user`, which the environment may set; `text` is its help."""
    return Option(
        "--user", metavar="NAME", help=text, envvar="TOMLDIARY_USER", autocompletion=complete_user
    )


RequiredUser = Annotated[
    str, Option(metavar="NAME", help="The user.", autocompletion=complete_user)
]
UserName = Annotated[str | None, user_option("The user; by default the only user.")]
Agent = Annotated[
    str, Option(metavar="NAME", help='The extractor: "rules" (offline) or a model name.')
]
WORDS = "words"
EMBEDDERS = (WORDS, "local")
"""The values of the option `--embedder`."""
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
PreferenceTable = Annotated[
    str | None, Option(metavar="FILE.py:Class", help="The preference table; the file is run.")
]
Yes = Annotated[
    bool, Option("--yes", help="Apply the changes; without it, the command is a dry run.")
]
DryRun = Annotated[bool, Option("--dry-run", help="Only show what would happen.")]


# The command


class Shell(StrEnum):
    """The shells with a completion script."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(
    shell: Annotated[Shell, Argument(help="The shell.")] = Shell.bash,
    *,
    install: Annotated[
        bool, Option("--install", help="Add the script to the shell's start-up file.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the completion script of a shell, or install it.

    For the current shell only, run: eval "$(tomldiary completion bash)"
    """
    import typer.completion  # noqa: PLC0415 - the other commands need no script

    from tomldiary.cli.output import print_json, print_text  # noqa: PLC0415 - the same

    script = typer.completion.get_completion_script(  # pyright: ignore[reportPrivateImportUsage] - as typer's own options do
        prog_name=_PROGRAM, complete_var=_VARIABLE, shell=shell.value
    )
    place = None
    if install:
        _, place = typer.completion.install(  # pyright: ignore[reportPrivateImportUsage] - the same
            shell=shell.value, prog_name=_PROGRAM, complete_var=_VARIABLE
        )
    if as_json:
        print_json({"shell": shell.value, "script": script, "installed": place and str(place)})
    elif place is not None:
        print_text(f"installed in {place}; open a new shell")
    else:
        print_text(script)
