"""The views of a diary and of one user: stored entries, users, and the last writes."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tomldiary.entries.fields import last_used
from tomldiary.entries.kinds import KINDS, entries_in, entry_kind
from tomldiary.entries.kinds.conversations import entry_to_conversation
from tomldiary.errors import DiaryError
from tomldiary.history.timeline import Timeline
from tomldiary.runtime.views import counted
from tomldiary.text.visible import one_line
from tomldiary.toml.document import Document
from tomldiary.views.sheet import Badge, Key, Moment, Sheet, Table, cut, listing, minute, quiet
from tomldiary.views.show import sheet_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tomldiary.diary import Diary
    from tomldiary.entries.kinds import StoredEntry
    from tomldiary.user.user import UserDiary

_MOST_USERS = 200
"""The maximum number of users whose files a view of a diary reads."""
_SHOWN_USERS = 20
_MOST_ENTRIES = 5
_UPDATED = "updated (UTC)"
_SESSION = ("session", "summary", "", "last used (UTC)")


class Summary(NamedTuple):
    """The row of one user in a table of users."""

    user: str
    counts: Counter[str]
    """The number of entries of each kind."""
    transactions: int
    last_write: str
    """When the last transaction was stored (ISO 8601); "" if there is none."""
    problem: str = ""
    """The reason why a part of the memory cannot be read; "" if there is no problem."""


def stored_entries(one: UserDiary, broken: list[DiaryError] | None = None) -> list[StoredEntry]:
    """Return the entries of a user, kind by kind, as reads show them: without expired ones and forbidden hand edits.

    Args:
        one: The user.
        broken: A list that receives the error of each unreadable document; the entries of these are omitted.
    """
    documents: dict[str, Document] = {}
    engine = one.diary.engine
    is_stored = not (one.is_past or one.draft_session)
    with engine.reading():
        for name in one.documents():
            try:
                if is_stored:
                    document = engine.readable_part(one.user_id, name)
                else:
                    document = Document.parse(one.document(name))
                documents[name] = document if one.is_past else engine.kept(name, document)
            except DiaryError as error:
                if broken is not None:
                    broken.append(error)
    return [*entries_in(documents)]


def summary_of(found: Diary, user_id: str) -> Summary:
    """Return the counts and the last write of one user, and the problem if the memory cannot be read."""
    counts: Counter[str] = Counter()
    last, number = "", 0
    broken: list[DiaryError] = []
    try:
        counts.update(kind for kind, *_ in stored_entries(found.user(user_id), broken))
        newest = next(Timeline(found.engine.backend, user_id).records(), None)
        if newest is not None:
            last, number = newest.time, newest.seq
    except DiaryError as error:
        broken.append(error)
    return Summary(user_id, counts, number, last, str(broken[0]) if broken else "")


def _counts(counts: Counter[str]) -> str:
    """Return the number of entries of each kind as text; the names of kinds are plurals."""
    kinds = sorted(counts, key=[*KINDS, *counts].index)
    return ", ".join(counted(counts[kind], kind.removesuffix("s"), kind) for kind in kinds)


def view_diary(found: Diary) -> Sheet:
    """Return the view of a diary: its users, their entries, and the last writes."""
    known = found.users()
    summaries = [*found.engine.of_each(known[:_MOST_USERS], partial(summary_of, found))]
    summaries.sort(key=lambda each: each.last_write, reverse=True)
    rows = [
        (
            Key(each.user),
            f"{each.counts.total():,}",
            quiet(each.problem or _counts(each.counts)),
            each.transactions,
            Moment(each.last_write),
        )
        for each in summaries[:_SHOWN_USERS]
    ]
    columns = ("user", "entries", "", "transactions", "last write (UTC)")
    total = sum(each.counts.total() for each in summaries)
    notes = [
        repr(found.engine.backend),
        f"preference table {found.schema_name}, durability {found.engine.backend.durability}",
    ]
    if len(known) > _MOST_USERS:
        notes.append(f"The first {_MOST_USERS} users were read; diary.to_pandas() has all of them.")
    title = f"Diary of {counted(len(known), 'user')}, {counted(total, 'entry', 'entries')}"
    table = Table(columns, rows, left_out=len(known) - len(rows))
    return Sheet(title, [table], notes, empty="Nothing is stored yet.")


def view_users(found: Sequence[str]) -> Sheet:
    """Return the view of a list of users."""
    return listing("user", ("user",), found, lambda each: [Key(each)], "No users.")


# One user


def view_accessor(found: Callable[[], object]) -> Sheet:
    """Return the sheet of the entries that an accessor such as `alice.facts` lists."""
    return sheet_of(found())


def view_user_diary(found: UserDiary) -> Sheet:
    """Return the card of a user: categories, newest entries, blocks, facts and last sessions."""
    broken: list[DiaryError] = []
    entries = _without_ended(found, stored_entries(found, broken))
    counts = Counter(kind for kind, *_ in entries)
    groups = Counter(path[-2] for kind, path, *_ in entries if kind == "preferences")
    types = Counter(path[1] for kind, path, *_ in entries if kind == "facts")
    title = one_line(found.user_id)
    badges: list[Badge] = []
    if found.is_past:
        badges.append(Badge(f"as of transaction {found.last_transaction()}, read-only", "warn"))
    if found.draft_session:
        badges.append(Badge(f"with the drafts of session {one_line(found.draft_session)}", "warn"))
    badges += [Badge(f"{number} {one_line(name)}") for name, number in groups.most_common(12)]
    badges += [Badge(f"{number} {one_line(name)} (fact)") for name, number in types.most_common(6)]
    notes = [_counts(counts)]
    if not found.is_past:
        with suppress(DiaryError):
            notes.append(_last_write(found))
    with suppress(DiaryError):  # `broken` already has this error
        broken = found.problems()
    notes += [f"Problem: {cut(str(problem), 200)}" for problem in broken[:3]]
    short = [each for each in entries if entry_kind(each.kind).is_matched and each.kind != "facts"]
    tables = [
        _first("Newest entries", ("key", "text", _UPDATED), _newest(short), _row),
        _first("Blocks", ("block", "text", _UPDATED), _of(entries, "blocks"), _row),
        _first("Facts", ("fact", "values", _UPDATED), _newest(_of(entries, "facts")), _row),
        _first("Last sessions", _SESSION, _newest(_of(entries, "conversations")), _session_row),
    ]
    return Sheet(title, tables, notes, empty="Nothing is remembered yet.", badges=badges)


def _without_ended(found: UserDiary, entries: list[StoredEntry]) -> list[StoredEntry]:
    """Return the entries without facts that do not hold; those of types that are not registered stay."""
    types = found.diary.fact_schemas
    typed = {each.key for each in entries if each.kind == "facts" and each.path[1] in types}
    if not typed:
        return entries
    ended: set[str] = set()
    with suppress(DiaryError):  # the card names the problem
        ended = typed - {f"facts/{fact.id}" for fact in found.facts}
    return [each for each in entries if each.key not in ended]


def _last_write(found: UserDiary) -> str:
    number = found.last_transaction()
    if not number:
        return ""
    latest = found.history(limit=1)
    if not latest:
        return counted(number, "transaction")
    who = latest[0].actor or latest[0].type
    return f"{counted(number, 'transaction')}, the last one {minute(latest[0].time)} UTC by {who}"


def _of(entries: Sequence[StoredEntry], kind: str) -> list[StoredEntry]:
    return [each for each in entries if each.kind == kind]


def _newest(found: Iterable[StoredEntry]) -> list[StoredEntry]:
    return sorted(found, key=lambda each: last_used(each.fields), reverse=True)


def _first(
    heading: str,
    columns: Sequence[str],
    found: Sequence[StoredEntry],
    row: Callable[[StoredEntry], Sequence[object]],
) -> Table:
    """Return a table of the first entries."""
    shown = found[:_MOST_ENTRIES]
    return Table(columns, map(row, shown), heading, len(found) - len(shown))


def _row(one: StoredEntry) -> Sequence[object]:
    key = one.key.partition("/")[2] if one.kind in ("facts", "blocks") else one.key
    text = cut(entry_kind(one.kind).text(one.fields), 160)
    return Key(key), text, Moment(last_used(one.fields))


def _session_row(one: StoredEntry) -> Sequence[object]:
    summary = cut(str(one.fields.get("summary") or "no summary yet"), 160)
    turns = quiet(counted(entry_to_conversation(one.fields).turns, "turn"))
    return Key(one.path[-1]), summary, turns, Moment(last_used(one.fields))
