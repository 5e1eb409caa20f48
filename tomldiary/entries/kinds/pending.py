"""Pending changes: writes that are stored outside the memory until a decision.

    [quarantine.12]                          # or [drafts.12]
    key = "likes/pref003"
    document = "preferences"
    path = ["preferences", "likes", "pref003"]
    based_on = 11                            # the last transaction when it was written
    is_new = true
    entry = { text = "…", … }                # the new fields of the entry; missing if it would be removed

A draft waits for the end of its session, and a change from an untrusted source waits for a review. They are entries of
separate documents, so they are logged, rolled back, exported and forgotten like other entries. Prompts, recall,
indexes and stores omit them.
"""

# ruff: noqa: ARG002, D102 - overrides: `EntryKind` documents them

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tomldiary.entries.fields import Problem, text_list, toml_word
from tomldiary.entries.kind import EntryKind
from tomldiary.runtime.views import ListView, Viewed
from tomldiary.toml.values import copied, timestamp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from tomldiary.entries.kind import Rules, Tables
    from tomldiary.toml.document import Document, Path


class PendingKind(EntryKind):
    """`[drafts.12]` or `[quarantine.12]`: a change that is not applied yet.

    Args:
        name: As for `EntryKind`.
        kind_of: Returns the kind of a document's entries.
        unchanged_because: As for `EntryKind`.
    """

    is_recalled = is_shown = False
    is_private = True

    def __init__(
        self, name: str, kind_of: Callable[[str], EntryKind], unchanged_because: str
    ) -> None:
        super().__init__(name)
        self._kind_of = kind_of
        self.unchanged_because = unchanged_because

    def stated(self, path: Path, entry: Mapping[str, Any]) -> Iterator[str]:
        yield str(entry.get("reason", ""))
        document, place = place_of(entry)
        # A hand edit may have removed the path.
        yield from self._kind_of(document).stated(place or ("",), held_entry(entry) or {})

    def profile(self, documents: Mapping[str, Document], rules: Rules, at: datetime) -> Any:
        return sum(len(waiting(each, self.name, timestamp(at))) for each in documents.values())

    def wrong(
        self, where: str, path: Path, entry: Mapping[str, Any], rules: Rules
    ) -> Iterator[Problem]:
        yield from super().wrong(where, path, entry, rules)
        if lacks_fields(entry):
            found = toml_word(entry["entry"]) if "entry" in entry else "nothing"
            yield Problem(f"{where}.entry", f"expected a table, found {found}")

    def text(self, entry: Mapping[str, Any]) -> str:
        held = held_entry(entry)
        return "" if held is None else self._kind_of(place_of(entry)[0]).text(held)


@dataclass(frozen=True, slots=True, repr=False)
class PendingChange(Viewed):
    """A change of one entry that waits for a decision."""

    id: str
    key: str
    """The key of the entry that would change."""
    text: str
    """The text that the entry would have; "" if it would be removed."""
    before: dict[str, Any] | None
    """The present fields of the entry; None if there is no entry."""
    after: dict[str, Any] | None
    """The fields that the entry would have; None if it would be removed."""
    session: str
    origin: str
    """The source of the change: the `actor` of the write."""
    reason: str
    created: str
    expires: str
    """The expiry time of a draft; "" if it does not expire."""
    document: str
    path: Path
    based_on: int
    """The last transaction before the change was written."""
    is_new: bool
    """Whether the entry did not exist then."""


class PendingChanges(ListView[PendingChange]):
    """Pending changes, oldest first."""


class AppliedChanges(PendingChanges):
    """Changes that were pending until they were applied."""


class DroppedChanges(PendingChanges):
    """Changes that were pending until they were dropped."""


class Why(NamedTuple):
    """The reason, target and origin of pending changes."""

    into: str
    """The kind that stores them."""
    session: str
    origin: str
    reason: str
    expires: str = ""
    is_turn: bool = False
    """Whether an extractor made the changes; its turn is then counted at once."""


Raw = dict[str, Any]


def waiting(tables: Tables, into: str, now: str) -> dict[str, Raw]:
    """Return the stored pending changes of a document by id, without expired ones."""
    found: Any = tables.table((into,)) or {}
    return {
        name: cast("Raw", entry)
        for name, entry in cast("Mapping[str, object]", found).items()
        if isinstance(entry, dict) and str(cast("Raw", entry).get("_expires") or "~") > now
    }


def held_entry(stored: Mapping[str, Any]) -> Raw | None:
    """Return the fields that the entry of a pending change would have; None if it would be removed."""
    inner: object = stored.get("entry")
    return cast("Raw", inner) if isinstance(inner, dict) else None


def lacks_fields(stored: Mapping[str, Any]) -> bool:
    """Return whether the fields of an entry are missing, although the change does not remove it."""
    is_removal = "entry" not in stored and stored.get("is_new") is not True
    return held_entry(stored) is None and not is_removal


def place_of(stored: Mapping[str, Any]) -> tuple[str, Path]:
    """Return the document and the path of the entry of a pending change."""
    return str(stored.get("document", "")), tuple(text_list(stored.get("path")))


def pending_entry(
    document: str,
    path: Path,
    key: str,
    after: Mapping[str, Any] | None,
    why: Why,
    *,
    said_by: set[str],
    based_on: int,
    is_new: bool,
    now: str,
) -> dict[str, Any]:
    """Return a pending change as it is stored; `said_by` has the sessions that its entry names."""
    held = after or {}
    # Forgetting finds entries by these sessions, and the copy has text of all sessions that wrote the entry.
    others = sorted(said_by - {why.session})
    found: dict[str, Any] = {
        "key": key,
        "document": document,
        "path": list(path),
        "based_on": based_on,
        "is_new": is_new,
        "origin": why.origin,
        "reason": why.reason,
        "_created": now,
        "_updated": now,
        "_created_by": why.session,
        "_updated_by": why.session,
        "_said_by": [why.session, *others] if others else [],
        "_source": str(held.get("_source", "")),
        "_expires": why.expires,
        "entry": None if after is None else dict(after),
    }
    always = {"is_new", "based_on"}
    return {name: value for name, value in found.items() if value or name in always}


def to_pending(
    name: str, entry: Mapping[str, Any], key: str, text: str, before: Mapping[str, Any] | None
) -> PendingChange:
    """Return a stored pending change, with the key, the text and the present fields of its entry."""
    document, path = place_of(entry)
    based_on: object = entry.get("based_on")
    after = copied(held_entry(entry))
    return PendingChange(
        id=name,
        key=key,
        text=text,
        before=None if before is None else copied(dict(before)),
        after=after,
        session=str(entry.get("_created_by", "")),
        origin=str(entry.get("origin", "")),
        reason=str(entry.get("reason", "")),
        created=str(entry.get("_created", "")),
        expires=str(entry.get("_expires", "")),
        document=document,
        path=path,
        based_on=based_on if isinstance(based_on, int) else 0,
        is_new=entry.get("is_new") is True,
    )
