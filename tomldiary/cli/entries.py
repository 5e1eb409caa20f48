"""All stored entries of a user, of every kind, as rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tomldiary.cli.rows import Column, print_rows
from tomldiary.entries.kinds import KINDS, entry_key, entry_kind
from tomldiary.entries.kinds.parts import part_of
from tomldiary.toml.document import Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tomldiary.user.user import UserDiary

__all__ = ["Entry", "print_entries", "stored_entries"]

_DAY = 10
_COLUMNS = (
    Column("key", "cyan"),
    Column("said", "dim", is_number=True),
    Column("updated", "dim"),
    Column("text"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored entry: its kind, its key as `history` shows it, and its fields."""

    kind: str
    key: str
    fields: Mapping[str, Any]

    @property
    def text(self) -> str:
        """What it says, with its labels below."""
        kind = entry_kind(self.kind)
        labels: Any = self.fields.get(kind.labels) if kind.labels else None
        if not isinstance(labels, list) or not labels:
            return kind.text(self.fields)
        named = ", ".join(map(str, cast("list[Any]", labels)))
        return f"{kind.text(self.fields)}\n{kind.labels}: {named}"


def stored_entries(alice: UserDiary) -> Iterator[Entry]:
    """Yield the entries of all documents, valid or not, kind by kind in the order of the files."""
    documents = (
        (name, Document.parse(alice.document(name))) for name in _ordered(alice.documents())
    )
    seen: set[str] = set()
    for name, document in documents:
        for path, fields in entry_kind(name).tables(document).items():
            key = entry_key(path, name)
            if key not in seen:  # where two parts hold one key, the first one counts
                seen.add(key)
                yield Entry(entry_kind(name).name, key, fields)


def print_entries(entries: Iterable[Entry]) -> None:
    """Print entries as a table: how often each was said, when it was updated, and its text."""
    rows = [(each.key, _times(each.fields), _day(each.fields), each.text) for each in entries]
    print_rows(_COLUMNS, rows)


def _ordered(documents: Iterable[str]) -> list[str]:
    order = {kind: number for number, kind in enumerate(KINDS)}
    return sorted(
        documents, key=lambda name: (order.get(entry_kind(name).name, len(order)), part_of(name))
    )


def _times(fields: Mapping[str, Any]) -> str:
    count = fields.get("_count", fields.get("_turns"))
    return f"{count}x" if isinstance(count, int) and count > 1 else ""


def _day(fields: Mapping[str, Any]) -> str:
    return str(fields.get("_updated") or fields.get("_created") or "")[:_DAY]
