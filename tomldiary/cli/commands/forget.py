"""`forget`: erase the content of a session, a turn or a time, or everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

from tomldiary.cli.memory import fact_key, is_stored, known_user, open_memory, users_with_turns
from tomldiary.cli.options import (
    DEFAULT_PATH,
    AsJson,
    DryRun,
    MemoryPath,
    RequiredUser,
    Yes,
    complete_key,
)
from tomldiary.cli.output import print_json, print_not_done, print_text
from tomldiary.cli.places import shown
from tomldiary.errors import InvalidValue
from tomldiary.runtime.views import counted
from tomldiary.text.visible import one_line

if TYPE_CHECKING:
    from tomldiary.forgetting.selection import ForgetReceipt
    from tomldiary.user.user import UserDiary

_MOST_KEYS = 20  # the maximum number of keys that a dry run prints


def forget(
    *,
    user: RequiredUser,
    path: MemoryPath = DEFAULT_PATH,
    session: Annotated[str | None, Option(help="Content that only this session wrote.")] = None,
    before: Annotated[
        str | None, Option(metavar="TIME", help="Entries last updated before this time.")
    ] = None,
    source: Annotated[
        str | None, Option(metavar="SESSION#TURN", help="Entries extracted from this turn.")
    ] = None,
    key: Annotated[
        str | None,
        Option(metavar="KEY", help="One entry with all its versions.", autocompletion=complete_key),
    ] = None,
    matching: Annotated[
        str | None, Option(metavar="TEXT", help="Content that mentions this text.")
    ] = None,
    everything: Annotated[
        bool, Option("--everything", help="The whole user, history included.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase content permanently; a dry run unless --yes is given."""
    chosen = {
        "--session": session,
        "--before": before,
        "--source": source,
        "--key": key,
        "--matching": matching,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    if len(given) + everything != 1:
        raise InvalidValue(f"use exactly one of {', '.join(chosen)} and --everything")
    for name, value in given.items():
        if not value:
            raise InvalidValue("expected a non-empty text", where=name)
    diary = open_memory(path)
    is_known = is_stored(diary, user)
    has_turns = user in users_with_turns(diary.engine.backend)
    # Everything can be erased even if a document cannot be read.
    alice = known_user(path, user) if is_known and not everything else diary.user(user)
    receipt = alice.forget(
        session_id=session,
        before=before,
        source=source,
        key=None if key is None else fact_key(key, alice),
        matching=matching,
        everything=everything,
        dry_run=dry_run or not yes,
    )
    if as_json:
        print_json(receipt)
        return
    if not is_known:  # no error, because an erasure may be repeated
        what = "only turns that wait or failed are" if has_turns else "nothing is"
        print_text(f"{what} stored for {one_line(user)} in {one_line(shown(path))}")
    _print(alice, receipt, matching, is_folder=everything and is_known, dry_run=dry_run)
    if has_turns and receipt.is_done:
        is_left = user in users_with_turns(diary.engine.backend)
        print_text(f"turns that waited or failed: {'some are left' if is_left else 'all erased'}")


def _print(
    alice: UserDiary,
    receipt: ForgetReceipt,
    matching: str | None,
    *,
    is_folder: bool,
    dry_run: bool,
) -> None:
    if receipt.hint:
        print_text(one_line(receipt.hint))
    numbers = (
        f"{counted(receipt.entries, 'entry', 'entries')},"
        f" {counted(receipt.conversations, 'conversation')};"
        f" {counted(receipt.records, 'transaction')} in history"
    )
    if receipt.is_done:
        print_text(f"forgotten: {numbers} emptied")
        for place in alice.traces(matching) if matching else ():
            print_text(f"the text is still in {one_line(place)}")
        return
    print_text(f"would forget: {numbers} would be emptied")
    for each in receipt.keys[:_MOST_KEYS]:
        print_text(f"  {one_line(each)}")
    if len(receipt.keys) > _MOST_KEYS:
        print_text(f"  … {len(receipt.keys) - _MOST_KEYS:,} more; --json names all")
    if is_folder or receipt.entries or receipt.conversations or receipt.records:
        print_not_done(dry_run=dry_run)
    else:  # a dry run does not search the queues of writers
        print_text("Nothing was changed. --yes would only erase turns that wait or failed.")
