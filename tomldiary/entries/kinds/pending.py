"""Pending changes: what a write would change, kept apart from the memory until a decision.

    [quarantine.12]                          # or [drafts.12]
    key = "likes/pref003"
    document = "preferences"
    path = ["preferences", "likes", "pref003"]
    based_on = 11                            # the last transaction when it was written
    is_new = true
    entry = { text = "…", … }                # what the entry would hold; missing if it would be removed

A draft waits for the end of its session, and a change from a source without trust waits for a review. They are entries
of documents of their own. So they are logged, rolled back, exported and forgotten like other entries. No prompt, no
recall, no index and no store shows them.
"""

# ruff: noqa: ARG002, D102 - overrides: `EntryKind` documents them

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tomldiary.entries.fields import entry_data, said_by
from tomldiary.entries.kind import EntryKind
from tomldiary.runtime.views import ListView, Viewed
from tomldiary.text.json_paths import texts_in
from tomldiary.toml.values import copied

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tomldiary.entries.kind import Tables
    from tomldiary.toml.document import Path

__all__ = [
    "PendingChange",
    "PendingChanges",
    "PendingKind",
    "Raw",
    "held_entry",
    "pending_entry",
    "place_of",
    "to_pending",
    "waiting",
]


class PendingKind(EntryKind):
    """`[drafts.12]` or `[quarantine.12]`: a change that is not made yet."""

    is_recalled = is_shown = False
    is_private = True
    unchanged_because = "it waits for a decision of a person, with `tomldiary review`."

    def stated(self, path: Path, entry: Mapping[str, Any]) -> Iterator[str]:
        yield str(entry.get("reason", ""))
        for value in entry_data(held_entry(entry) or {}).values():
            yield from texts_in(value)

    def text(self, entry: Mapping[str, Any]) -> str:
        return str((held_entry(entry) or {}).get("text", ""))


@dataclass(frozen=True, slots=True, repr=False)
class PendingChange(Viewed):
    """A change of one entry that waits for a decision."""

    id: str
    key: str
    """The key of the entry that would change."""
    text: str
    """What the entry would say; "" if it would be removed."""
    before: dict[str, Any] | None
    """The fields that the entry has now; None if there is none."""
    after: dict[str, Any] | None
    """The fields that the entry would have; None if it would be removed."""
    session: str
    origin: str
    """Where the change comes from: the `actor` of the write."""
    reason: str
    created: str
    expires: str
    """When a draft ends; "" never."""
    document: str
    path: Path
    based_on: int
    """The last transaction when it was written."""
    is_new: bool
    """Whether the entry did not exist then."""


class PendingChanges(ListView[PendingChange]):
    """Pending changes, oldest first."""

    __slots__ = ()


Raw = dict[str, Any]


def waiting(tables: Tables, into: str, now: str) -> dict[str, Raw]:
    """Return the pending changes of a document that have not expired, as they are stored, by id."""
    found: Any = tables.table((into,)) or {}
    return {
        name: cast("Raw", entry)
        for name, entry in cast("Mapping[str, object]", found).items()
        if isinstance(entry, dict) and str(cast("Raw", entry).get("_expires") or "~") > now
    }


def held_entry(stored: Mapping[str, Any]) -> Raw | None:
    """Return what the entry of a pending change would hold; None if it would be removed."""
    inner: object = stored.get("entry")
    return cast("Raw", inner) if isinstance(inner, dict) else None


def place_of(stored: Mapping[str, Any]) -> tuple[str, Path]:
    """Return the document and the path of the entry of a pending change."""
    path: object = stored.get("path")
    return (
        str(stored.get("document", "")),
        tuple(map(str, cast("list[object]", path))) if isinstance(path, list) else (),
    )


def pending_entry(
    document: str,
    path: Path,
    key: str,
    after: Mapping[str, Any] | None,
    *,
    based_on: int,
    is_new: bool,
    session: str,
    origin: str,
    reason: str,
    now: str,
    expires: str,
) -> dict[str, Any]:
    """Return a pending change as it is stored."""
    held = after or {}
    # Who said a part of the entry also said a part of this copy: forgetting looks for the names.
    named = [str(held.get(name, "")) for name in ("_created_by", "_updated_by")]
    sessions = [
        name for name in dict.fromkeys([*named, *said_by(held)]) if name not in {"", session}
    ]
    found: dict[str, Any] = {
        "key": key,
        "document": document,
        "path": list(path),
        "based_on": based_on,
        "is_new": is_new,
        "origin": origin,
        "reason": reason,
        "_created": now,
        "_updated": now,
        "_created_by": session,
        "_updated_by": session,
        "_said_by": [session, *sessions] if sessions else [],
        "_source": str(held.get("_source", "")),
        "_expires": expires,
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
    return PendingChange(
        id=name,
        key=key,
        text=text,
        before=None if before is None else copied(dict(before)),
        after=copied(held_entry(entry)),
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
