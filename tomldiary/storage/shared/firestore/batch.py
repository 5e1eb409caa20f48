"""The writes of one step, as one batch with preconditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tomldiary.storage.shared.firestore.connection import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.storage.protocol import Token
    from tomldiary.storage.shared.firestore.connection import Connection

LARGEST = 900_000
"""The maximum bytes of text in one document; Firestore allows 1 MiB with all fields."""
MOST_DELETES = 400
"""The maximum number of deletes in one batch."""
_LARGEST_BATCH = 3_000_000  # bytes; Firestore allows 10 MiB, its emulator 4 MiB
_OVERHEAD = 300  # bytes of a write beside its text and its path
ANY = "any version"
"""The version of a write without a precondition."""


class Batch:
    """The writes of one step; those that do not fit are written before the batch, and not read before its end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._batch: Any = connection.client.batch()
        self._places: list[Any] = []
        self._size = 0
        self._written: list[Any] = []
        self.parts: dict[str, list[str]] = {}
        """The parts of each document of this batch, by its name."""

    @property
    def is_large(self) -> bool:
        """Whether further writes should follow in another batch if possible."""
        return self._size > _LARGEST_BATCH // 2

    def put(self, place: Any, values: dict[str, Any], version: Token | None) -> None:
        """Create a document, or replace the given version of it."""
        if version is None:
            self._batch.create(place, values)
        elif version == ANY:
            self._batch.set(place, values)
        else:
            self._batch.update(
                place, values, self._connection.client.write_option(last_update_time=version)
            )
        self._add(place)

    def put_text(
        self, place: Any, field: str, text: str, values: dict[str, Any], version: Token | None
    ) -> None:
        """Put a document with a text, in parts if the text or the batch would be too large."""
        size = len(text.encode())
        names: list[str] = []
        if size > LARGEST or self._size + size > _LARGEST_BATCH:
            for part in _parts(text):
                names.append(uuid4().hex)
                target = place.collection(PARTS).document(names[-1])
                self._connection.call(target.create, {"content": part})
                self._written.append(target)
            text = ""
        else:
            self._size += size
        self.parts[place.id] = names
        self.put(place, {**values, field: text, PARTS: names}, version)

    def delete(self, place: Any, version: Token) -> None:
        """Delete the given version of a document."""
        option = (
            None
            if version == ANY
            else self._connection.client.write_option(last_update_time=version)
        )
        self._batch.delete(place, option)
        self._add(place)

    def _add(self, place: Any) -> None:
        self._places.append(place)
        self._size += len(place.path) + _OVERHEAD

    def flush(self) -> None:
        """Commit the writes so far; they must be of new documents, which are not read before the end of the step."""
        self._connection.call(self._batch.commit)
        self._written += self._places
        self._batch, self._places, self._size = self._connection.client.batch(), [], 0

    def commit(self) -> dict[str, Any]:
        """Commit, and return the new version of each document by its path.

        Raises:
            Refused: A document has another version than expected.
        """
        done = self._connection.call(self._batch.commit, is_conditional=True)
        return {
            place.path: each.update_time for place, each in zip(self._places, done, strict=True)
        }

    def take_back(self) -> None:
        """Delete what was written before a step that was not applied."""
        for start in range(0, len(self._written), MOST_DELETES):
            batch = self._connection.client.batch()
            for place in self._written[start : start + MOST_DELETES]:
                batch.delete(place)
            self._connection.call(batch.commit)


def _parts(text: str) -> Iterator[str]:
    """Yield a text in pieces of at most `LARGEST` bytes."""
    data, at = text.encode(), 0
    while at < len(data):
        piece = data[at : at + LARGEST].decode(errors="ignore")  # without a character that was cut
        yield piece
        at += len(piece.encode())
