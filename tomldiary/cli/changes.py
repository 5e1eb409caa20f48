"""One change of an entry in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tomldiary.cli.output import one_line, print_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tomldiary.history.queries import HistoryEntry

__all__ = ["is_routine", "print_changes"]

_ROUTINE = {"_updated", "_updated_by"}  # these change whenever anything does


def is_routine(change: HistoryEntry) -> bool:
    """Return whether only turn counters and times changed."""
    before, after = change.before, change.after
    if before is None or after is None or change.is_conflict:
        return False
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    return changed <= {*_ROUTINE, "_turns"}


def print_changes(changes: Iterable[HistoryEntry]) -> None:
    """Print changes, each with session, actor and reason below it."""
    for change in changes:
        moment = change.time[:19].replace("T", " ")
        mark = "  (displaced by hand)" if change.is_conflict else ""
        print_text(
            f"{change.seq:>5}  {one_line(moment)}  {one_line(change.type):<10}"
            f"  {one_line(change.key)}  {_told(change.before, change.after)}{mark}"
        )
        who = [
            f"{word} {one_line(value)}"
            for word, value in (("session", change.session), ("by", change.actor))
            if value
        ]
        why = f": {one_line(change.reason)}" if change.reason else ""
        if who or why:
            print_text(f"       {', '.join(who)}{why}")


def _told(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    if before is None or after is None:
        sign, entry = ("-", before) if after is None else ("+", after)
        return f"{sign} {one_line(_text(entry or {}))}"
    changed = [
        key
        for key in dict.fromkeys([*before, *after])
        if key not in _ROUTINE and before.get(key) != after.get(key)
    ]
    parts = [
        f"{one_line(key)}: {_shown(before, key)} -> {_shown(after, key)}"
        for key in changed or ["_updated"]
    ]
    return "; ".join(parts)


def _shown(entry: Mapping[str, Any], key: str) -> str:
    return one_line(entry[key]) if key in entry else "nothing"


def _text(entry: Mapping[str, Any]) -> str:
    return str(entry.get("text", entry.get("summary", "")))
