"""`history`, `why`, `diff` and `rollback`: changes of entries, their origin, differences, and undo."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from tomldiary.cli.memory import key_with_kind, known_user, overwritable, point
from tomldiary.cli.options import (
    DEFAULT_PATH,
    AsJson,
    DryRun,
    MemoryPath,
    UserName,
    Yes,
    check_absent,
    complete_key,
)
from tomldiary.cli.output import (
    Column,
    Row,
    print_diff,
    print_error,
    print_json,
    print_not_done,
    print_rows,
    print_text,
    ranges,
)
from tomldiary.errors import InvalidValue
from tomldiary.runtime.views import to_second
from tomldiary.text.json_paths import texts_in
from tomldiary.text.mentions import folded, is_mentioned, sought
from tomldiary.text.visible import one_line
from tomldiary.toml.values import changed_keys
from tomldiary.views.history import stated_fields, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tomldiary.past.queries import HistoryEntry
    from tomldiary.past.retention import KeptHistory
    from tomldiary.user.user import UserDiary

_ROUTINE = "Only counters and times differ; --all shows them."
_COLUMNS = (
    Column("seq", "dim", is_number=True),
    Column("time (UTC)", "dim"),
    Column("type"),
    Column("key", "cyan"),
    Column("change", is_change=True),
)
_BOOKKEEPING = {"_created", "_created_by", "_turns", "_updated", "_updated_by"}
_UNSEARCHED = _BOOKKEEPING | {"_count", "_verified"}


def history(
    key: Annotated[
        str | None,
        Argument(
            help="category/id or conversations/session; by default all entries.",
            autocompletion=complete_key,
        ),
    ] = None,
    *,
    user: UserName = None,
    path: MemoryPath = DEFAULT_PATH,
    limit: Annotated[int, Option(help="The maximum number of changes.", min=1)] = 50,
    since: Annotated[
        str | None, Option(metavar="N|TIME", help="Only after this transaction or time.")
    ] = None,
    before: Annotated[
        str | None, Option(metavar="N|TIME", help="Only before this transaction or time.")
    ] = None,
    session: Annotated[str | None, Option(help="Only changes by this session.")] = None,
    grep: Annotated[
        str | None, Option(metavar="TEXT", help="Only changes that contain this text.")
    ] = None,
    every: Annotated[
        bool, Option("--all", help="Also changes that affect only counters and times.")
    ] = False,
    keep: Annotated[
        int | None, Option(help="Drop all but the newest N transactions; requires --yes.", min=1)
    ] = None,
    drop_before: Annotated[
        str | None,
        Option(metavar="TIME", help="Drop transactions before this time; requires --yes."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """List changes, newest first; times are UTC. --keep and --drop-before drop old history."""
    alice = known_user(path, user)
    if keep is not None and drop_before is not None:
        raise InvalidValue("use --keep or --drop-before, not both")
    if keep is not None or drop_before is not None:
        narrowing = {
            "KEY": key,
            "--since": since,
            "--before": before,
            "--session": session,
            "--grep": grep,
        }
        check_absent(
            narrowing, "--keep and --drop-before drop the history of all entries; leave this out"
        )
        _drop(alice, keep, drop_before, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    if yes:
        raise InvalidValue("use --yes with --keep or --drop-before", where="--yes")
    wanted = None if key is None else key_with_kind(key, alice)
    start, end = (None if each is None else point(each, alice) for each in (since, before))

    def read(most: int | None) -> list[HistoryEntry]:
        return alice.history(wanted, limit=most, session_id=session, since=start, until=_until(end))

    def matching(changes: list[HistoryEntry]) -> list[HistoryEntry]:
        return [
            change
            for change in changes
            if (every or as_json or not _is_routine(change))
            and (grep is None or _holds(change, grep))
        ]

    changes = read(limit + 1)
    found = matching(changes)
    if len(found) <= limit:  # omitted changes count towards the limit, so read all
        changes = read(None)
        found = matching(changes)
    if as_json:
        print_json(found[:limit])
    else:
        _print_changes(found[:limit])
        if not found:
            is_routine = bool(changes) and grep is None
            print_text(_ROUTINE if is_routine else "No changes found.")
    if len(found) > limit:
        print_error("There are older changes; a larger --limit shows them.")


def _until(end: int | datetime | None) -> int | datetime | None:
    """Return the last point in history before another one."""
    if end is None:
        return None
    return end - 1 if isinstance(end, int) else end - timedelta(microseconds=1)


def _holds(change: HistoryEntry, text: str) -> bool:
    searched = [change.key, change.session, change.actor, change.reason]
    for entry in (change.before or {}, change.after or {}):
        values = {name: each for name, each in entry.items() if name not in _UNSEARCHED}
        searched += texts_in(values, names=False, numbers=True)
    wanted = sought(text)
    return any(is_mentioned(wanted, folded(each)) for each in searched)


def _drop(
    alice: UserDiary,
    keep: int | None,
    before: str | None,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Drop old transactions, or print which ones would be dropped."""
    is_done = yes and not dry_run
    moment = point(before, alice) if before is not None else None
    if isinstance(moment, int):
        raise InvalidValue("expected a time such as 2026-11-20", where=str(before))
    first = _first_change(alice.kept_history())
    kept = alice.prune_history(before=moment, keep=keep, dry_run=not is_done)
    if as_json:
        print_json({**asdict(kept), "is_done": is_done})
        return
    gone = list(range(first, _first_change(kept)))
    left = ranges([*range(_first_change(kept), kept.last + 1)])
    told = [f"transactions {left}"] if left else []
    if kept.is_pruned:
        told.append(f"the state after transaction {kept.first} ({to_second(kept.since)})")
    print_text(
        f"{'dropped' if is_done else 'would drop'}: {f'transactions {ranges(gone)}' if gone else 'nothing'};"
        f" kept: {' and '.join(told) or 'nothing'}"
    )
    if gone and not is_done:
        print_not_done(dry_run=dry_run)


def _first_change(kept: KeptHistory) -> int:
    """Return the number of the first transaction whose changes are kept: of a snapshot only the result is known."""
    return max(kept.first + kept.is_pruned, 1)


def why(
    key: Annotated[
        str, Argument(help="category/id or conversations/session.", autocompletion=complete_key)
    ],
    *,
    user: UserName = None,
    path: MemoryPath = DEFAULT_PATH,
    as_json: AsJson = False,
) -> None:
    """Show the origin of an entry and all its changes."""
    alice = known_user(path, user)
    origin = alice.why(key_with_kind(key, alice))
    if as_json:
        print_json(origin)
        return
    print_text(f"{one_line(origin.key)}  {one_line(origin.text)}")
    print_text(f"origin         {one_line(origin.origin or 'unknown')}")
    print_text(f"session        {one_line(origin.session or 'unknown')}")
    print_text(f"turn           {one_line(origin.turn or 'unknown')}")
    print_text(f"confirmations  {origin.confirmations}")
    states = [change.after for change in origin.changes if change.after is not None]
    verified = "yes" if states and states[-1].get("_verified") is True else "unknown"
    if not origin.is_verified:
        verified = "no (stored by the rules extractor, not checked)"
    print_text(f"verified       {verified}")
    _print_changes(origin.changes)


def diff(
    before: Annotated[
        str | None,
        Argument(
            metavar="A", help="Transaction or ISO time; by default before the last transaction."
        ),
    ] = None,
    after: Annotated[
        str | None, Argument(metavar="B", help="Transaction or ISO time; by default now.")
    ] = None,
    *,
    user: UserName = None,
    path: MemoryPath = DEFAULT_PATH,
    every: Annotated[
        bool,
        Option("--all", help="Also counters and times; for plain text, the output is a patch."),
    ] = False,
    as_json: Annotated[
        bool, Option("--json", help="Print the entries that differ as JSON.")
    ] = False,
) -> None:
    """Show what changed between two transactions or times.

    The output is a unified diff of the files.
    """
    alice = known_user(path, user)
    first = max(0, alice.last_transaction() - 1) if before is None else point(before, alice)
    last = None if after is None else point(after, alice)
    if as_json:
        print_json(alice.diff(first, last))
        return
    shown = alice.diff_text(first, last, bookkeeping=every)
    if shown:
        print_diff(shown)
    elif not every and alice.diff(first, last):
        print_text(_ROUTINE)
    else:
        print_text("No differences.")


def _is_routine(change: HistoryEntry) -> bool:
    """Return whether only counters and times changed; an entry without text has only these."""
    if change.before is None or change.after is None:
        return not _text(change.key, change.before or change.after or {})
    return not _changed(change.before, change.after)


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the changed fields without bookkeeping; `_count` is included unless it was removed.

    The sessions of an entry are included if nothing else changed.
    """
    left_out = _BOOKKEEPING if "_count" in after else {*_BOOKKEEPING, "_count"}
    names = [name for name in changed_keys(before, after) if name not in left_out]
    return [name for name in names if name != "_said_by"] or names


def _print_changes(changes: Iterable[HistoryEntry]) -> None:
    """Print changes, each with session, actor and reason below it."""
    rows: list[Row] = []
    for change in changes:
        moment = to_second(change.time)
        mark = "  (replaced by a hand edit)" if change.is_conflict else ""
        text = f"{_change_text(change.key, change.before, change.after)}{mark}"
        who = [
            f"{word} {one_line(value)}"
            for word, value in (("session", change.session), ("by", change.actor))
            if value
        ]
        why = f": {one_line(change.reason)}" if change.reason else ""
        below = f"\n{', '.join(who)}{why}" if who or why else ""
        rows.append(
            (f"{change.seq:>5}", moment, f"{change.type:<10}", change.key, f"{text}{below}")
        )
    print_rows(_COLUMNS, rows)


def _change_text(
    key: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> str:
    if before is None or after is None:
        sign, entry = ("-", before) if after is None else ("+", after)
        return f"{sign} {_text(key, entry or {}) or '(no text yet)'}"
    before, after = stated_fields(key, before), stated_fields(key, after)
    return "; ".join(
        f"confirmed {_shown(after, name)}x"
        if name == "_count"
        else f"{one_line(name)}: {_shown(before, name)} -> {_shown(after, name)}"
        for name in _changed(before, after) or changed_keys(before, after)
    )


def _shown(entry: Mapping[str, Any], key: str) -> str:
    return one_line(entry[key]) if key in entry else "nothing"


def _text(key: str, entry: Mapping[str, Any]) -> str:
    return one_line(text_of(key, entry))


def rollback(
    *,
    user: UserName = None,
    path: MemoryPath = DEFAULT_PATH,
    steps: Annotated[
        int | None, Option(help="Undo this many transactions; 1 by default.", min=1)
    ] = None,
    to: Annotated[
        str | None, Option(metavar="N|TIME", help="Undo all after this transaction or time.")
    ] = None,
    session: Annotated[str | None, Option(help="Only transactions of this session.")] = None,
    dry_run: DryRun = False,
    force: Annotated[
        bool, Option("--force", help="Also overwrite entries that were changed since.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Undo transactions, newest first.

    A dry run unless --yes is given. A rollback can itself be undone.
    """
    if steps is not None and to is not None:
        raise InvalidValue("use --steps or --to, not both")
    is_done = yes and not dry_run
    alice = known_user(path, user)
    with overwritable():
        result = alice.rollback(
            steps or 1,
            session_id=session,
            to=None if to is None else point(to, alice),
            dry_run=not is_done,
            force=force,
            actor="hand",
            reason="tomldiary rollback",
        )
    if as_json:
        print_json(result)
        return
    many = f" ({len(result.undone)} transactions)" if len(result.undone) > 1 else ""
    print_text(f"{'undone' if is_done else 'would undo'}: {ranges(result.undone)}{many}")
    for key in result.keys:
        print_text(f"  {one_line(key)}{'  (changed since)' if key in result.conflicts else ''}")
    if not is_done:
        needed = "--yes --force" if result.conflicts and not force else "--yes"
        print_not_done(needed, dry_run=dry_run)
