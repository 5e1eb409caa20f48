"""Search by meaning: a vector for every text, a float32 matrix for every namespace.

Vectors are stored by the text they stand for. A text that is removed or no longer indexed is never found,
and equal texts are embedded once. The files `.tomldiary/index/<user>/vectors-…` are derived: they may be
deleted at any time, and should be when the model changes. Missing vectors are embedded by the next search.
A file holds a keyed hash of each text beside its vector, and no text.
"""

from __future__ import annotations

import os
import secrets
import threading
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from tomldiary.errors import InvalidValue, MissingExtra
from tomldiary.logging import get_logger
from tomldiary.runtime.capabilities import PRIVATE
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.storage.files import FileSystem
from tomldiary.text.json_paths import texts_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tomldiary.identifiers.namespaces import Namespace
    from tomldiary.store.item import Entry
    from tomldiary.store.snapshot import Snapshot

__all__ = ["LOCAL_DIMS", "Embedding", "VectorIndex", "local_embedder"]

_HEAD = b"tomldiary vectors 1\n"
_SALT = 16
_NAME = 16
_CHECK = 4  # bytes of the CRC-32 in front of each record
_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Embedding:
    """How texts become vectors.

    Args:
        dims: Numbers in a vector.
        embed: Returns a vector for each text.
        fields: Paths of what is embedded of a value; each text found is a vector of its own.
        name: Tells the vectors of one model from another's.
    """

    dims: int
    embed: Callable[[list[str]], Sequence[Sequence[float]]]
    fields: tuple[str, ...] = ("$",)
    name: str = ""

    def texts(self, entry_value: Any, index: bool | list[str] | None) -> list[str]:  # noqa: FBT001 - as it is put
        """Return the texts of a value that are embedded."""
        if index is False:
            return []
        paths = index if isinstance(index, list) else self.fields
        return [text for path in paths for text in texts_at(entry_value, path)]


@dataclass(slots=True)
class _Matrix:
    """The vectors of one namespace: a row for each text, and which item each row belongs to."""

    snapshot: Snapshot
    rows: Any
    starts: Any
    owners: list[tuple[Snapshot, Entry]]
    """The item of each row group, in the order of the snapshot."""
    names: dict[Entry, list[bytes]]
    """The names of each item's texts; empty if none has a vector."""
    is_complete: bool
    """Whether no text lacked its vector when it was made."""
    known: int
    """How many vectors there were then."""


class VectorIndex:
    """The vectors of one user's items. Thread-safe.

    Args:
        embedding: What makes them.
        folder: Where they are kept; None keeps them in memory.
        files: Makes the file operations.

    Raises:
        MissingExtra: numpy is not installed.
    """

    def __init__(
        self, embedding: Embedding, folder: Path | None, files: FileSystem | None = None
    ) -> None:
        self._files = files or FileSystem()
        self._np = numpy()
        self._embedding = embedding
        label = blake2b(embedding.name.encode(), digest_size=6).hexdigest()
        self._path = folder / f"vectors-{embedding.dims}-{label}" if folder is not None else None
        self.renew()
        self._clear()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new lock."""
        self._guard = threading.RLock()

    def _clear(self) -> None:
        self._salt = secrets.token_bytes(_SALT)
        self._rows: dict[bytes, int] = {}
        self._vectors: Any = self._np.zeros((0, self._embedding.dims), dtype="float32")
        self._matrices: dict[Namespace, _Matrix] = {}
        self._read_to = 0
        self._inode: int = 0

    # What is known

    def missing(self, texts: Iterable[str]) -> list[str]:
        """Return the texts that have no vector yet, each once."""
        with self._guard:
            self._load()
            return [text for text in dict.fromkeys(texts) if self._name(text) not in self._rows]

    def missing_below(self, snapshots: Iterable[Snapshot]) -> list[str]:
        """Return the texts of stored items that have no vector yet, each once."""
        with self._guard:
            self._load()
            found: dict[str, None] = {}
            for snapshot in snapshots:
                matrix = self._matrices.get(snapshot.namespace)
                if matrix is not None and matrix.snapshot is snapshot and matrix.is_complete:
                    continue
                known = matrix.names if matrix is not None else {}
                for entry in snapshot.entries.values():
                    names = known.get(entry)
                    if names and all(name in self._rows for name in names):
                        continue
                    for text in self._embedding.texts(entry.value, entry.index):
                        if self._name(text) not in self._rows:
                            found[text] = None
            return list(found)

    def add(self, texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> None:
        """Keep the vectors of some texts.

        Raises:
            InvalidValue: There are not as many vectors as texts, or they have another length.
        """
        np = self._np
        made = self._checked(texts, vectors)
        with self._guard:
            self._load()
            fresh = [n for n, text in enumerate(texts) if self._name(text) not in self._rows]
            if not fresh:
                return
            names = [self._name(texts[number]) for number in fresh]
            self._grow(names, made[fresh])
            if self._path is not None:
                rows = np.ascontiguousarray(made[fresh], "<f4")
                records = [name + row.tobytes() for name, row in zip(names, rows, strict=True)]
                self._append(self._path, b"".join(map(_sealed, records)))

    def _checked(self, texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> Any:
        np = self._np
        try:
            with np.errstate(over="ignore"):
                made = np.asarray(vectors, dtype="float32")
        except (TypeError, ValueError) as error:
            raise InvalidValue(
                f"expected vectors of numbers ({error}). Check what embeds.", where="index"
            ) from None
        if made.shape != (len(texts), self._embedding.dims):
            raise InvalidValue(
                f"expected {len(texts)} vectors of {self._embedding.dims} numbers, found an array of"
                f" {made.shape}. Check dims and what embeds.",
                where="index",
            )
        odd = ~np.isfinite(made).all(axis=1)
        if odd.any():
            # Some models answer so to a text without words; a score that is no number has no place in any order.
            _logger.warning("vectors hold what is no number; they are taken for zero")
            made = np.where(odd[:, None], np.float32(0), made)
        return self._unit(made)

    def _unit(self, vectors: Any) -> Any:
        """Return vectors of length 1, so that a product is the cosine."""
        lengths = self._np.linalg.norm(vectors, axis=-1, keepdims=True)
        return vectors / self._np.where(lengths > 0, lengths, 1)

    def _grow(self, names: Sequence[bytes], vectors: Any) -> None:
        count = len(self._rows)
        room = len(self._vectors)
        if count + len(names) > room:
            grown = self._np.zeros(
                (max(2 * room, count + len(names), 64), self._embedding.dims), dtype="float32"
            )
            grown[:count] = self._vectors[:count]
            self._vectors = grown
        for number, name in enumerate(names):
            if name not in self._rows:
                self._vectors[len(self._rows)] = vectors[number]
                self._rows[name] = len(self._rows)

    def _name(self, text: str) -> bytes:
        return blake2b(text.encode("utf-8"), key=self._salt, digest_size=_NAME).digest()

    # Searching

    def ranked(
        self, snapshots: Sequence[Snapshot], query: Sequence[float]
    ) -> tuple[Iterator[tuple[float, Snapshot, Entry]], list[tuple[Snapshot, Entry]]]:
        """Return items by their cosine similarity to a vector, best first, and those without a vector.

        The score of an item is that of its best text; equal scores stay in the snapshots' own order.
        """
        np = self._np
        wanted = self._checked([""], [query])[0]
        with self._guard:
            matrices = [self._matrix(snapshot) for snapshot in snapshots]
        filled = [matrix for matrix in matrices if matrix.owners]
        bare = [
            (matrix.snapshot, entry)
            for matrix in matrices
            if len(matrix.owners) < len(matrix.snapshot.entries)
            for entry in matrix.snapshot.ordered
            if not matrix.names[entry]
        ]
        if not filled:
            return iter(()), bare
        scores = [np.maximum.reduceat(each.rows @ wanted, each.starts) for each in filled]
        joined = scores[0] if len(scores) == 1 else np.concatenate(scores)
        owners = (
            filled[0].owners
            if len(filled) == 1
            else [owner for matrix in filled for owner in matrix.owners]
        )
        return _in_order(owners, joined, np.argsort(-joined, kind="stable")), bare

    def _matrix(self, snapshot: Snapshot) -> _Matrix:
        np = self._np
        before = self._matrices.get(snapshot.namespace)
        if (
            before is not None
            and before.snapshot is snapshot
            and (before.is_complete or before.known == len(self._rows))
        ):
            return before
        known = before.names if before is not None else {}
        names: dict[Entry, list[bytes]] = {}
        rows: list[int] = []
        starts: list[int] = []
        owners: list[tuple[Snapshot, Entry]] = []
        is_complete = True
        for entry in snapshot.ordered:
            mine = known.get(entry)
            if not mine:
                texts = self._embedding.texts(entry.value, entry.index)
                mine = list(dict.fromkeys(map(self._name, texts)))
            found = [self._rows[name] for name in mine if name in self._rows]
            is_complete = is_complete and len(found) == len(mine)
            names[entry] = mine if found else []
            if found:
                starts.append(len(rows))
                rows += found
                owners.append((snapshot, entry))
        made = _Matrix(
            snapshot,
            self._vectors[rows],
            np.asarray(starts, "int64"),
            owners,
            names,
            is_complete,
            len(self._rows),
        )
        self._matrices[snapshot.namespace] = made
        return made

    # The file

    def _load(self) -> None:
        """Read the vectors that other processes have added."""
        if self._path is None:
            return
        np = self._np
        try:
            found = self._files.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            if self._read_to:
                self._clear()  # it was removed: forgotten texts must not come back
            return
        if found.st_ino == self._inode and found.st_size == self._read_to:
            return
        if found.st_ino != self._inode or found.st_size < self._read_to:
            self._clear()
        data = (self._files.read_file(self._path) or (b"",))[0]
        start = len(_HEAD) + _SALT
        if not data.startswith(_HEAD) or len(data) < start:
            _logger.warning("%s: not an index; delete it", self._path)
            return
        self._salt = data[len(_HEAD) : start]
        size = _CHECK + _NAME + 4 * self._embedding.dims
        begin = max(start, self._read_to)
        # The last one may still be written by another process.
        whole = begin + (len(data) - begin) // size * size
        records = [data[at : at + size] for at in range(begin, whole, size)]
        if any(_sealed(record[_CHECK:]) != record for record in records):
            _logger.warning("%s: damaged, and made anew", self._path)
            self._clear()
            self._files.discard(self._path)
            return
        rows = [np.frombuffer(record, "<f4", offset=_CHECK + _NAME) for record in records]
        self._grow([record[_CHECK : _CHECK + _NAME] for record in records], rows)
        self._inode, self._read_to = found.st_ino, whole

    def _append(self, path: Path, data: bytes) -> None:
        """Add to the file; what cannot be kept is embedded again by the next process."""
        try:
            if self._read_to == 0:
                self._files.make_folder(path.parent, sync=False)
                temp = f"{path}.{os.getpid()}.{threading.get_ident()}"
                self._files.write_new(temp, _HEAD + self._salt, sync=False)
                try:
                    self._files.link(temp, path)
                except FileExistsError:
                    return  # another process was first, with another salt: the next search reads it
                finally:
                    self._files.unlink(temp)
            flags = os.O_WRONLY | os.O_APPEND | PRIVATE
            descriptor = self._files.open(path, flags)
            try:
                self._files.write_all(descriptor, data)
                found = self._files.fstat(descriptor)
            finally:
                self._files.close(descriptor)
            expected = (self._read_to or len(_HEAD) + _SALT) + len(data)
            if found.st_size == expected:
                self._inode, self._read_to = found.st_ino, expected
        except OSError as error:
            _logger.warning("%s: vectors were not kept (%s)", path, error.strerror)


def _in_order(
    owners: list[tuple[Snapshot, Entry]], scores: Any, order: Any
) -> Iterator[tuple[float, Snapshot, Entry]]:
    for number in order:
        yield (float(scores[number]), *owners[number])


def _sealed(record: bytes) -> bytes:
    return crc32(record).to_bytes(_CHECK, "little") + record


def numpy() -> Any:
    """Return numpy.

    Raises:
        MissingExtra: It is not installed; names the command that installs it.
    """
    try:
        return import_module("numpy")
    except ImportError:
        raise MissingExtra("A search by vectors", "embeddings") from None


LOCAL_DIMS = 256
"""Numbers in a vector of `local_embedder`."""


def local_embedder() -> Callable[[Sequence[str]], list[list[float]]]:
    """Return a function that embeds texts without network, in well under a millisecond each.

    Raises:
        MissingExtra: wordllama is not installed; names the command that installs it.
    """
    try:
        module: Any = import_module("wordllama")
    except ImportError:
        raise MissingExtra("The local embedder", "embeddings") from None
    # With the folder given, it downloads nothing.
    folder = Path(module.__file__).parent
    model = module.WordLlama.load(cache_dir=folder, disable_download=True)

    def embed(texts: Sequence[str]) -> list[list[float]]:
        return model.embed(list(texts)).tolist()

    return embed
