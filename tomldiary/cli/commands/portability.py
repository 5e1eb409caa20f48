"""`ingest`, `consolidate`, `export`, `import` and `copy`: chat logs, episodes, one user's memory, copies of all users."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from tomldiary.cli.memory import (
    MOST_EXTRACTED,
    known_user,
    stored_preferences,
    user_to_change,
    users_with_turns,
    without_limits,
)
from tomldiary.cli.options import (
    DEFAULT_PATH,
    Agent,
    AsJson,
    DryRun,
    MemoryPath,
    PreferenceTable,
    RequiredUser,
    UserName,
    Yes,
    check_absent,
    complete_category,
    complete_user,
    lasting,
)
from tomldiary.cli.output import print_error, print_json, print_not_done, print_text, progress_bar
from tomldiary.cli.places import folder_at, open_storage, shown, writable, write_new
from tomldiary.diary import Diary
from tomldiary.entries.kinds import PREFERENCES
from tomldiary.errors import DiaryError, EntryConflict, InvalidValue
from tomldiary.ingest import KNOWN_FORMATS
from tomldiary.ingest import ingest as run_ingest
from tomldiary.ingest.source import parse, read_text
from tomldiary.runtime.views import counted
from tomldiary.storage.copy import Copied, copy_users
from tomldiary.storage.open import open_backend
from tomldiary.storage.shared.urls import is_shared_url
from tomldiary.text.visible import one_line
from tomldiary.toml.values import check_unicode

if TYPE_CHECKING:
    from tomldiary.importers import Import
    from tomldiary.past.queries import Difference
    from tomldiary.user.user import UserDiary

_SHOWN = 20  # keys
_FORMATS = ", ".join(("auto", *KNOWN_FORMATS))


def _place(file: str) -> str:
    """Return the path of a file, or of standard input for a hyphen."""
    return "/dev/stdin" if file == "-" else file


def ingest(
    file: Annotated[
        str, Argument(help="A chat log in JSON or JSON Lines, or - for standard input.")
    ],
    *,
    user: RequiredUser,
    path: MemoryPath = DEFAULT_PATH,
    log_format: Annotated[str, Option("--format", help=f"One of: {_FORMATS}.")] = "auto",
    agent: Agent = "rules",
    speaker: Annotated[
        str | None, Option(help="The speaker to remember, in a log of two people.")
    ] = None,
    table: PreferenceTable = None,
    as_json: AsJson = False,
) -> None:
    """Apply a chat log to a memory. After an interruption, run it again: applied turns are skipped."""
    alice = user_to_change(path, user, table, agent=agent, is_extracted=True)
    with progress_bar("turns") as progress:
        report = run_ingest(
            alice.diary, _place(file), user, format=log_format, speaker=speaker, progress=progress
        )
    if as_json:
        print_json(report)
        return
    print_text(f"turns          {report.turns}")
    print_text(f"applied        {report.applied}")
    print_text(f"already there  {report.skipped}")
    print_text(f"seconds        {report.seconds:.2f}")
    print_text(f"entries        {report.entries}")
    print_text(f"size           {report.bytes / 1024:.1f} KB")
    for note in report.notes:
        print_text(f"note           {note}")


def consolidate(
    *,
    user: UserName = None,
    path: MemoryPath = DEFAULT_PATH,
    agent: Agent = "rules",
    limit: Annotated[int | None, Option(help="The maximum number of episodes.", min=1)] = None,
    table: PreferenceTable = None,
    as_json: AsJson = False,
) -> None:
    """Extract memory from the episodes that have not been read."""
    user = known_user(path, user).user_id
    alice = user_to_change(path, user, table, agent=agent, is_extracted=True)
    done = alice.consolidate(limit=limit)
    if as_json:
        print_json(done)
    else:
        print_text(f"read     {done.read}")
        print_text(f"applied  {done.applied}")
        for note in done.skipped:
            print_text(f"skipped  {one_line(note)}")
        for name in done.failed:
            print_text(f"failed   {one_line(name)}")
    if done.failed:
        raise Exit(1)


def export_memory(
    *,
    user: UserName = None,
    path: MemoryPath = DEFAULT_PATH,
    output: Annotated[
        Path | None, Option(help="A new file, mode 0600; by default the export is printed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print everything about a user as JSON, or write it to a file."""
    exported = known_user(path, user).export()
    if output is None or str(output) == "-":
        print_json(exported)
        return
    try:
        write_new(output, f"{json.dumps(exported, indent=2)}\n")
    except FileExistsError:
        raise InvalidValue("the file exists; name a new one", where=str(output)) from None
    documents = list(exported["documents"])
    if as_json:
        print_json({"file": str(output), "documents": documents})
    else:
        print_text(f"wrote {counted(len(documents), 'document')} to {one_line(output)}")


def import_memory(
    file: Annotated[
        str,
        Argument(
            help="The export, or with --from a file, folder or URL; - for standard input.",
            metavar="FILE_OR_URL",
        ),
    ],
    *,
    user: Annotated[
        str, Option(metavar="NAME", help="The user to import into.", autocompletion=complete_user)
    ],
    path: MemoryPath = DEFAULT_PATH,
    source: Annotated[
        str | None,
        Option(
            "--from",
            metavar="SOURCE",
            help="Import another program's memory; requires --yes: mem0, letta, mcp-memory, claude-md, memory-md,"
            " langgraph-store, langmem, memstate, loomflow, tomldiary-firestore or chatgpt.",
        ),
    ] = None,
    their_user: Annotated[
        str | None, Option(metavar="NAME", help="The user's id in the other program, if different.")
    ] = None,
    category: Annotated[
        str | None,
        Option(
            help="The category for texts without one; biography by default.",
            autocompletion=complete_category,
        ),
    ] = None,
    singleton: Annotated[
        list[str] | None,
        Option(metavar="TYPE=FIELD", help="The singleton key of a type of facts; for memstate."),
    ] = None,
    table: PreferenceTable = None,
    replace: Annotated[
        bool, Option("--replace", help="Replace the memory with the export; requires --yes.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Import an export or another program's memory, all or nothing.

    With --replace or --from, it is a dry run unless --yes is given. The exit code is 1 if --from found nothing.
    """
    check_unicode(user, "--user")
    is_trial = dry_run or (not yes and (replace or source is not None))
    place = writable(path)
    if is_trial and not is_shared_url(place) and not folder_at(place).exists():
        open_backend(place, None)  # refuses an address of no backend
        place = "memory:"  # a dry run creates no folder
    if source is None:
        for_sources = {"--their-user": their_user, "--category": category, "--singleton": singleton}
        check_absent(for_sources, "is only valid with --from")
        alice = without_limits(place).user(user)
        _import_export(
            alice, file, replace=replace, is_trial=is_trial, dry_run=dry_run, as_json=as_json
        )
        return
    if file == "-" and source in {"claude-md", "memory-md"}:
        raise InvalidValue("name the file, because its name becomes that of the block", where=file)
    check_absent(
        {"--replace": replace}, "is only valid for exports; --from never changes existing entries"
    )
    from tomldiary.importers import carry_over  # noqa: PLC0415 - export and copy need no importer

    alice = user_to_change(place, user, table)
    with progress_bar("records") as progress:
        done = carry_over(
            alice,
            source,
            _place(file),
            their_user=their_user,
            category=category,
            singletons=_singletons(singleton or []),
            dry_run=is_trial,
            progress=progress,
        )
    if as_json:
        print_json(done)
    else:
        _print_import(alice, done, dry_run=dry_run)
    if not done.found:
        print_error(
            f"{shown(file)}: nothing of {source} was found in it, and nothing was imported. Check the file and --from."
        )
        raise Exit(1)


def _import_export(
    alice: UserDiary, file: str, *, replace: bool, is_trial: bool, dry_run: bool, as_json: bool
) -> None:
    place = _place(file)
    data: Any = parse(read_text(Path(place)), place, "an export as JSON")
    try:
        if is_trial:
            found = alice.import_preview(data, replace=replace)
            print_json(found) if as_json else _print_preview(found, dry_run=dry_run)
            return
        changed = alice.import_(data, replace=replace, actor="hand", reason="tomldiary import")
    except EntryConflict as error:
        raise EntryConflict(
            f"already stored with different content: {', '.join(error.keys)}. Nothing was imported; use --replace"
            " to replace the memory with the export.",
            keys=error.keys,
        ) from None
    if as_json:
        print_json(changed)
    elif changed:
        print_text(f"imported: {', '.join(map(one_line, changed))}")
    else:
        print_text("All entries of the export are already stored.")


def _singletons(given: list[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    for name, _, field in pairs:
        if not name or not field:
            raise InvalidValue("expected TYPE=FIELD, such as diet=role", where="--singleton")
    return {name: field for name, _, field in pairs}


def _print_import(alice: UserDiary, done: Import, *, dry_run: bool) -> None:
    found = ", ".join(counted(number, kind) for kind, number in done.found.items())
    print_text(f"found          {found or 'nothing'}")
    print_text(f"{'added' if done.is_done else 'would add':<15}{len(done.added)}")
    _print_keys("+", done.added)
    print_text(f"already there  {len(done.present)}")
    print_text(f"kept           {len(done.kept)}")
    _print_keys("~", done.kept)
    for sentence in done.left_out:
        print_text(f"left out       {one_line(sentence)}")
    # As stored, because the source may have another table.
    stored = alice.diary.engine.readable(alice.user_id, PREFERENCES.name)
    for name, entries in stored_preferences(stored).items():
        if done.is_done and len(entries) > MOST_EXTRACTED:
            print_text(
                f"note           {name} has {len(entries)} entries; Diary(max_prefs_per_category=…) accepts more"
                f" than {MOST_EXTRACTED}"
            )
    if not done.is_done and done.added:
        print_not_done(dry_run=dry_run)


def _print_keys(sign: str, keys: list[str]) -> None:
    for key in keys[:_SHOWN]:
        print_text(f"  {sign} {one_line(key)}")
    if len(keys) > _SHOWN:
        print_text(f"  {sign} {len(keys) - _SHOWN} more")


def _print_preview(found: list[Difference], *, dry_run: bool) -> None:
    added = sum(one.before is None for one in found)
    removed = sum(one.after is None for one in found)
    print_text(
        f"would import: {counted(added, 'entry', 'entries')} added,"
        f" {len(found) - added - removed} changed, {removed} removed"
    )
    for one in found:
        sign = "+" if one.before is None else "-" if one.after is None else "~"
        print_text(f"  {sign} {one_line(one.key)}")
    print_not_done(dry_run=dry_run)


def copy_memory(
    source: Annotated[str, Argument(callback=lasting, help="A folder, or the URL of a database.")],
    target: Annotated[str, Argument(callback=lasting, help="A folder, or the URL of a database.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Copy all users with their history to another storage.

    Users that the target already has are compared and not changed. Close all writers first, because turns in a queue are not copied. Repeat the command if it was interrupted.
    """
    read = open_storage(source, "name the folder to copy")
    written = Diary(target, agent="rules").engine.backend
    left = sorted(users_with_turns(read))
    if left:
        print_error(
            f"turns that wait or failed are not copied: those of {one_line(', '.join(left))}. Interrupt this command,"
            " let a MemoryWriter apply them, or list and retry the failed ones with tomldiary writer."
        )
    users = read.users()
    copied: list[Copied] = []
    failure: DiaryError | None = None
    try:
        with progress_bar("users") as progress:
            for each in copy_users(read, written):
                copied.append(each)
                if progress is not None:
                    progress(len(copied), len(users))
    except DiaryError as error:
        failure = error
    fresh = sum(each.is_new for each in copied)
    if as_json:
        print_json(copied)
    elif copied or failure is None:
        print_text(
            f"copied {counted(fresh, 'user')} to {one_line(shown(target))};"
            f" {counted(len(copied) - fresh, 'user')} had been copied before"
        )
    if failure is not None:
        raise failure
