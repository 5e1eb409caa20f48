"""The state of one user as Firestore stores it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tomldiary.storage.shared.database import Head, is_hidden

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["HEAD_FIELDS", "NO_MARKS", "FirestoreHead", "marks"]

HEAD_FIELDS = ("revision", "erasures", "generation", "first", "seq", "record", "trash")
NO_MARKS: dict[str, Any] = {"is_hidden": False, "holds": []}


class FirestoreHead(Head):
    """The state of a user, with the version of the document that holds it."""

    __slots__ = ("first", "generation", "parts", "seq", "time", "trash")

    def __init__(self) -> None:
        super().__init__()
        self.generation = 0
        self.first = 0
        self.seq = 0
        self.trash: list[str] = []
        self.time: Any = None
        self.parts: dict[str, list[str]] = {}
        """The parts of each document, by its name in Firestore."""

    def take(self, snapshot: Any) -> None:
        """Read the document."""
        values = snapshot.to_dict()
        self.revision, self.epoch, self.record = (
            values["revision"],
            values["erasures"],
            values["record"],
        )
        self.follow(values, snapshot.update_time)

    def follow(self, values: dict[str, Any], time: Any) -> None:
        """Take what `SharedBackend` does not follow itself."""
        self.generation, self.first, self.seq = values["generation"], values["first"], values["seq"]
        self.trash, self.time = values["trash"], time


def marks(kinds: Iterable[str]) -> dict[str, Any]:
    """Return what the mark of a user says, given the names of the documents."""
    names = [*kinds]
    return {"is_hidden": all(map(is_hidden, names)), "holds": sorted(filter(is_hidden, names))}
