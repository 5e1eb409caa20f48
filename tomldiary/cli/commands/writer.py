"""`writer`: the dead letters of a background writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option, Typer

from tomldiary.cli.options import DEFAULT_PATH, AsJson, DryRun, MemoryPath, Yes, complete_user
from tomldiary.cli.output import Column, Row, print_error, print_json, print_rows, print_text
from tomldiary.cli.places import open_storage
from tomldiary.doctor.doctor import waiting_turns
from tomldiary.errors import InvalidValue
from tomldiary.runtime.views import counted, to_second
from tomldiary.storage.protocol import KeepsHidden
from tomldiary.text.visible import one_line
from tomldiary.writer.dead_letters import DeadLetter, DeadLetters

if TYPE_CHECKING:
    from tomldiary.storage.protocol import Backend

writer_commands = Typer(
    help="List, retry or drop turns that a writer could not apply.",
    no_args_is_help=True,
    add_completion=False,
)

_COLUMNS = (
    Column("id", "cyan"),
    Column("parked (UTC)", "dim"),
    Column("tries", is_number=True),
    Column("user"),
    Column("session"),
    Column("error and turn"),
)
_Ids = Annotated[list[str] | None, Argument(help="Ids, as `list` shows them.", metavar="ID…")]
_All = Annotated[bool, Option("--all", help="All turns.")]
_User = Annotated[
    str | None,
    Option(metavar="NAME", help="The user; required if turns of several users have the same id."),
]


@writer_commands.command("list")
def list_letters(
    *,
    path: MemoryPath = DEFAULT_PATH,
    user: Annotated[
        str | None,
        Option(metavar="NAME", help="Only turns of this user.", autocompletion=complete_user),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the turns that failed, oldest first, with their errors.

    Their number follows, and that of the turns that wait to be applied.
    """
    backend = open_storage(path)
    letters = _letters(backend)
    found = letters.chosen(None, user)
    for each, (_, altered) in letters.counts().items():
        if altered and user in (None, each):
            print_error(
                f"{counted(altered, 'dead letter')} of {one_line(each)} cannot be listed or retried, because the text"
                " was altered: it does not match its checksum. Undo the edit, and list again."
            )
    if as_json:
        print_json(found)
        return
    print_rows(_COLUMNS, list(map(_row, found)))
    print_text(f"{counted(len(found), 'turn')} in the dead letters.")
    queued = waiting_turns(backend)
    waiting = sum(len(queued[each]) for each in queued if user in (None, each))
    if waiting:
        print_text(f"{counted(waiting, 'turn waits', 'turns wait')} to be applied by a writer.")


@writer_commands.command()
def retry(
    ids: _Ids = None,
    *,
    path: MemoryPath = DEFAULT_PATH,
    user: _User = None,
    every: _All = False,
    as_json: AsJson = False,
) -> None:
    """Requeue turns. A running writer applies them within ten seconds; otherwise the next writer does."""
    letters = _letters(open_storage(path))
    again = letters.requeue(letters.chosen(_ids(ids, every=every), user))
    _print_letters("requeued", again, as_json=as_json)


@writer_commands.command()
def drop(
    ids: _Ids = None,
    *,
    path: MemoryPath = DEFAULT_PATH,
    user: _User = None,
    every: _All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove turns; a dry run unless --yes is given."""
    letters = _letters(open_storage(path))
    found = letters.chosen(_ids(ids, every=every), user)
    is_done = yes and not dry_run
    if is_done:
        found = letters.drop(found)  # without those that were requeued meanwhile
    needed = "use --yes instead of --dry-run" if dry_run else "add --yes"
    what = "dropped" if is_done or not found else f"not dropped; {needed}"
    _print_letters(what, found, as_json=as_json)


def _row(letter: DeadLetter) -> Row:
    turn, parked = letter.turn, to_second(letter.parked)
    text = f"{one_line(letter.error)}\nsaid: {one_line(turn.user_msg)}"
    return letter.id, parked, str(letter.attempts), turn.user_id, turn.session_id, text


def _letters(backend: Backend) -> DeadLetters:
    assert isinstance(backend, KeepsHidden)  # noqa: S101 - for the type checker
    return DeadLetters(backend)


def _ids(ids: list[str] | None, *, every: bool) -> list[str] | None:
    if bool(ids) == every:
        raise InvalidValue("name the turns by their ids, or use --all")
    return None if every else ids


def _print_letters(what: str, letters: list[DeadLetter], *, as_json: bool) -> None:
    if as_json:
        print_json(letters)
    else:
        print_text(f"{counted(len(letters), 'turn was', 'turns were')} {what}.")
    if not letters:
        raise Exit(1)
