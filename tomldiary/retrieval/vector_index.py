"""The vectors of texts for search by meaning, with a float32 matrix for each collection.

Vectors are stored by a keyed hash of their text, and files contain no text. Equal texts are embedded once. A
text that was removed or is no longer indexed is never found. Its vector is dropped later, see `VectorIndex.keep`.
The files `.tomldiary/index/<user>/vectors-…` are derived data. They may be deleted at any time, and should be deleted
when the model changes. The next search embeds missing vectors.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sized
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from zlib import crc32

from tomldiary.errors import InvalidValue
from tomldiary.logging import get_logger
from tomldiary.retrieval.collection import KEPT, changes
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.runtime.installation import optional
from tomldiary.runtime.views import counted
from tomldiary.storage.files import FileSystem
from tomldiary.text.json_paths import texts_at

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from pathlib import Path

    from tomldiary.retrieval.collection import Collection, Part

_HEAD = b"tomldiary vectors 1\n"
_SALT = 16
_NAME = 16
_SMALLEST = 1e-12
_FEW = 1024
"""The number of vectors up to which those of earlier texts stay."""
_CHECK = 4  # bytes of the CRC-32 at the start of each record
_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Embedding:
    """The embedding of texts as vectors.

    Args:
        dims: The number of dimensions.
        embed: The function that returns a vector for each text.
        fields: The paths in an item's value to embed, with a separate vector for each text found. If empty, the
            text that is searched by words is embedded.
        name: The name that identifies the vectors of a model.
        is_cosine: Whether only the cosine ranks, without words.
        option: The option that gave `embed`, for errors.
    """

    dims: int
    embed: Callable[[list[str]], Sequence[Sequence[float]]]
    fields: tuple[str, ...] = ("$",)
    name: str = ""
    is_cosine: bool = False
    option: str = "index.embed"

    @property
    def title(self) -> str:
        """The name of the function or model for messages, without the hash that tells two functions apart."""
        return self.name.partition(" ")[0] or "the embedder"

    def checked(self, found: object, count: int) -> Sequence[Sequence[float]]:
        """Return what the embedder returned for `count` texts.

        Raises:
            InvalidValue: It is no list of vectors, or has another length.
        """
        kind = type(found)
        is_list = issubclass(kind, Sized) and not issubclass(kind, Mapping | AbstractSet)
        length = len(cast("Sized", found)) if is_list else kind.__name__
        if length != count:
            raise InvalidValue(
                f"expected {counted(count, 'vector')} from {self.title}, found {length}."
                " It must return a list with a vector for each text.",
                where=self.option,
            )
        if not all(
            isinstance(each, Sized) and len(each) for each in cast("Sequence[object]", found)
        ):
            raise self.no_vectors()
        return cast("Sequence[Sequence[float]]", found)

    def no_vectors(self) -> InvalidValue:
        """Return the error for something else than vectors, without it, because it may quote the texts."""
        return InvalidValue(
            f"expected vectors of numbers of one length. Check {self.title}.", where=self.option
        )

    def texts(self, entry_value: Any, index: bool | list[str] | None) -> list[str]:  # noqa: FBT001 - as in `Put`
        """Return the texts of an item's value to embed."""
        if index is False:
            return []
        paths = index if isinstance(index, list) else self.fields
        return [text for path in paths for text in texts_at(entry_value, path)]

    def texts_of(self, entry: Any) -> list[str]:
        """Return the texts of an entry to embed."""
        if self.fields:
            return self.texts(entry.value, entry.index)
        text = entry.searched_text
        return [text] if text.strip() else []


class QueryVector(NamedTuple):
    """A question as a vector, and the vectors to compare it with; see `VectorIndex.asked`."""

    vector: Any
    vectors: VectorIndex


class _Matrix:
    """The vectors of one collection, with a row for each text. Mutable.

    Args:
        dims: The number of dimensions.
    """

    def __init__(self, dims: int) -> None:
        self._np = numpy()
        self.parts: Mapping[str, Part[Any]] = {}
        self._vectors: Any = self._np.zeros((0, dims), dtype="float32")
        self.owners: list[Any] = []
        """The entry of each row."""
        self._places: dict[Any, list[int]] = {}
        self.names: dict[Any, list[bytes]] = {}
        """The hashes of the texts of entries; that of a text without a vector is first."""
        self.waiting: dict[Any, None] = {}
        """The entries with a text that has no vector yet."""
        self.sum: Any = self._np.zeros(dims)

    def products(self, vector: Any) -> Any:
        """Return the product of each row with a vector."""
        # `@` waits for threads, which takes between 0.4 and 12 ms for 10,000 rows on a busy machine.
        return self._np.einsum("ij,j->i", self._vectors[: len(self.owners)], vector)

    @property
    def has_several(self) -> bool:
        """Whether an entry has more than one row."""
        return len(self._places) < len(self.owners)

    def add(self, found: Mapping[Any, list[Any]]) -> None:
        """Set the vectors of entries, one or more for each entry."""
        for entry in found:
            self.clear(entry)
        first = len(self.owners)
        for entry, vectors in found.items():
            self._places[entry] = list(range(len(self.owners), len(self.owners) + len(vectors)))
            self.owners += [entry] * len(vectors)
        if len(self.owners) > len(self._vectors):
            size = max(2 * len(self._vectors), len(self.owners))
            grown = self._np.zeros((size, self._vectors.shape[1]), dtype="float32")
            grown[:first] = self._vectors[:first]
            self._vectors = grown
        added = self._vectors[first : len(self.owners)]
        self._np.stack([vector for each in found.values() for vector in each], out=added)
        self.sum = self.sum + added.sum(axis=0)

    def clear(self, entry: Any) -> None:
        """Remove the vectors of an entry, and move the last rows to the free places."""
        for row in sorted(self._places.pop(entry, ()), reverse=True):
            self.sum = self.sum - self._vectors[row]
            last = len(self.owners) - 1
            moved = self.owners.pop()
            if row < last:
                self._vectors[row] = self._vectors[last]
                self.owners[row] = moved
                places = self._places[moved]
                places[places.index(last)] = row

    def remove(self, entry: Any) -> None:
        """Drop an entry."""
        self.clear(entry)
        self.names.pop(entry, None)
        self.waiting.pop(entry, None)


class VectorIndex:
    """The vectors of one user's items. Thread-safe.

    Args:
        embedding: The embedding of texts.
        folder: The folder of the file; None keeps the vectors in memory.
        files: The object that makes the file operations.

    Raises:
        MissingExtra: numpy is not installed.
    """

    def __init__(
        self, embedding: Embedding, folder: Path | None, files: FileSystem | None = None
    ) -> None:
        self._files = files or FileSystem()
        self._np = numpy()
        self.embedding = embedding
        vector = ("vector", "<f4", (embedding.dims,))
        self._record = self._np.dtype([("check", "<u4"), ("name", f"V{_NAME}"), vector])
        # Of the fields too: `keep` must not drop the vectors of texts that only another index reads.
        label = blake2b(
            repr((embedding.name, embedding.fields)).encode(), digest_size=6
        ).hexdigest()
        self._path = folder / f"vectors-{embedding.dims}-{label}" if folder is not None else None
        self._guard = fork_safe(threading.RLock())
        self._clear()

    def _clear(self) -> None:
        self._salt = secrets.token_bytes(_SALT)
        self._known: dict[bytes, Any] = {}
        self._matrices: dict[Hashable, _Matrix] = {}
        self._read_to = 0
        self._inode: int = 0

    # Known vectors

    def missing(self, texts: Iterable[str]) -> list[str]:
        """Return the texts that have no vector yet, each once."""
        with self._guard:
            self._load()
            return [text for text in dict.fromkeys(texts) if self._name(text) not in self._known]

    def missing_below(self, collections: Iterable[Collection[Any]]) -> list[str]:
        """Return the texts of stored entries that have no vector yet, each once."""
        # Iterated over in `missing`, which has the lock.
        waiting = (entry for each in collections for entry in self._followed(each).waiting)
        return self.missing(text for entry in waiting for text in self.embedding.texts_of(entry))

    def add(self, texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> bool:
        """Store the vectors of some texts; the caller holds the user's lock.

        Returns:
            Whether `keep` is due: their number has reached the next power of two.

        Raises:
            InvalidValue: The number of vectors or their dimension is wrong.
        """
        made = self._checked(texts, vectors)
        with self._guard:
            self._load()
            before = len(self._known)
            fresh = [n for n, text in enumerate(texts) if self._name(text) not in self._known]
            stored = self._taken([self._name(texts[number]) for number in fresh], made[fresh])
            if self._path is not None and stored:
                self._append(self._path, stored)
            now = len(self._known)
            return now >= _FEW and now.bit_length() > before.bit_length()

    def keep(self, texts: Iterable[str]) -> None:
        """Drop the vectors of all other texts, if they are the majority; the caller holds the user's lock."""
        with self._guard:
            self._load()
            names = [name for name in {*map(self._name, texts)} if name in self._known]
            if 2 * len(names) >= len(self._known):
                return
            vectors = [self._known[name] for name in names]
            self._known = {}
            stored = self._taken(names, vectors)
            if self._path is not None and self._read_to:
                try:
                    self._write_over(self._path, stored)
                except OSError as error:  # the next power of two tries again
                    _logger.warning(
                        "%s: earlier vectors could not be dropped (%s)", self._path, error.strerror
                    )

    def _checked(self, texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> Any:
        np = self._np
        try:
            with np.errstate(over="ignore"):
                made = np.asarray(vectors, dtype="float32")
        except (TypeError, ValueError, OverflowError):
            raise self.embedding.no_vectors() from None
        if made.shape != (len(texts), self.embedding.dims):
            given = "" if self.embedding.option == "embedder" else "`dims` and "
            raise InvalidValue(
                f"expected {len(texts)} vectors of {self.embedding.dims} numbers, found an array of"
                f" {made.shape}. Check {given}{self.embedding.title}.",
                where=self.embedding.option,
            )
        odd = ~np.isfinite(made).all(axis=1)
        if odd.any():
            # Some models return such values for a text without words, but a score must have an order.
            _logger.warning(
                "%s returned vectors with values that are not numbers; zeros are used instead",
                self.embedding.title,
            )
            made = np.where(odd[:, None], np.float32(0), made)
        # In double precision, because the squares of large and small numbers would be infinite or 0.
        lengths = np.linalg.norm(made.astype("float64"), axis=-1, keepdims=True)
        # Of length 1, so that a product is the cosine.
        return (made / np.where(lengths > 0, lengths, 1)).astype("float32")

    def _taken(self, names: Sequence[bytes], vectors: Any) -> bytes:
        """Add vectors to the known ones, and return their records for the file."""
        records = self._np.zeros(len(names), self._record)
        records["name"] = names
        records["vector"] = self._np.reshape(vectors, (len(names), self.embedding.dims))
        records["check"] = _checks(records)
        self._take(records)
        # Other processes ask again for a vector of zeros: the model may have failed for this text only once.
        return records[records["vector"].any(axis=1)].tobytes()

    def _take(self, records: Any) -> None:
        names = (name.tobytes() for name in records["name"])
        self._known.update(zip(names, records["vector"], strict=True))

    def _name(self, text: str) -> bytes:
        return blake2b(text.encode("utf-8"), key=self._salt, digest_size=_NAME).digest()

    # Searching

    def asked(self, vector: Sequence[float]) -> QueryVector:
        """Return a question from its vector.

        Raises:
            InvalidValue: The dimension is wrong.
        """
        return QueryVector(self._checked([""], [vector])[0], self)

    def cosines(
        self, collections: Sequence[Collection[Any]], wanted: Any
    ) -> tuple[list[list[Any]], Any, Any]:
        """Return entries that have vectors, their cosines to the vector of `asked`, and the cosines that rank them.

        Entries are grouped by collection. They occur once for each text, with the cosine of their best text. The
        cosines after centring rank, or the cosines themselves with `Embedding.is_cosine`.
        """
        np = self._np
        with self._guard:
            matrices = [self._followed(collection) for collection in collections]
            # Removed collections are searched no more, so those that were searched last are kept.
            for namespace in list(self._matrices)[: -len(collections) - KEPT]:
                del self._matrices[namespace]
            owners = [list(matrix.owners) for matrix in matrices]
            products = [matrix.products(wanted) for matrix in matrices]
            cosines = np.clip(np.concatenate(products), -1, 1)  # rounded sums may exceed 1
            ranking = cosines
            if not self.embedding.is_cosine:
                ranking = self._centred(matrices, cosines, wanted)
            has_several = any(matrix.has_several for matrix in matrices)
        if has_several:
            numbers: dict[int, int] = {}
            entries = [id(entry) for mine in owners for entry in mine]
            places = np.asarray([numbers.setdefault(entry, len(numbers)) for entry in entries])
            best = np.full((2, len(numbers)), -np.inf, "float32")
            np.maximum.at(best[0], places, cosines)
            np.maximum.at(best[1], places, ranking)
            cosines, ranking = best[0][places], best[1][places]
        return owners, cosines, ranking

    def _centred(self, matrices: Sequence[_Matrix], cosines: Any, wanted: Any) -> Any:
        """Return the cosines after subtracting the mean of all vectors from each vector and from the query."""
        np = self._np
        count = sum(len(matrix.owners) for matrix in matrices)
        total: Any = sum((matrix.sum for matrix in matrices), np.zeros(self.embedding.dims))
        mean = (total / max(count, 1)).astype("float32")
        common = np.concatenate([matrix.products(mean) for matrix in matrices])
        square = float(mean @ mean)
        lengths = np.sqrt(np.maximum(1 - 2 * common + square, _SMALLEST))
        length = float(np.linalg.norm(wanted - mean)) or 1.0
        return (cosines - common - float(wanted @ mean) + square) / (lengths * length)

    def _followed(self, collection: Collection[Any]) -> _Matrix:
        """Return the matrix of a collection with its known vectors."""
        matrix = self._matrices.pop(collection.namespace, None) or _Matrix(self.embedding.dims)
        parts = collection.searched
        gone, come = changes(matrix.parts, parts)
        for entry in gone:
            matrix.remove(entry)
        for entry in come:
            texts = self.embedding.texts_of(entry)
            matrix.names[entry] = list(dict.fromkeys(map(self._name, texts)))
            matrix.waiting[entry] = None
        matrix.parts = parts
        fresh: dict[Any, list[Any]] = {}
        for entry in list(matrix.waiting):
            names = matrix.names[entry]
            found = [self._known[name] for name in names if name in self._known]
            if found:
                fresh[entry] = found
            if len(found) == len(names):
                del matrix.waiting[entry]
        if fresh:
            matrix.add(fresh)
        self._matrices[collection.namespace] = matrix  # the last one in order
        return matrix

    # The file

    def _load(self) -> None:
        """Read vectors added by other processes."""
        if self._path is None:
            return
        try:
            found = self._files.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            if self._read_to:
                self._clear()  # the file was removed; vectors of erased texts must not be used again
            return
        if found.st_ino == self._inode and found.st_size == self._read_to:
            return
        data = (self._files.read_file(self._path) or (b"",))[0]
        start = len(_HEAD) + _SALT
        salt = data[len(_HEAD) : start]
        # A new file may have the inode of a removed one.
        if found.st_ino != self._inode or len(data) < self._read_to or salt != self._salt:
            self._clear()
        self._salt = salt
        begin = max(start, self._read_to)
        # Ignore a partial last record, which another process may still be writing.
        count = max(0, len(data) - begin) // self._record.itemsize
        # Copy the records, because a view would keep the whole file in memory.
        records = self._np.frombuffer(data, self._record, count, min(begin, len(data))).copy()
        is_index = data.startswith(_HEAD) and len(salt) == _SALT
        if not is_index or _checks(records) != records["check"].tolist():
            _logger.warning("%s: the index is damaged and is rebuilt", self._path)
            self._clear()
            self._files.discard(self._path)
            return
        self._take(records)
        self._inode = found.st_ino
        self._read_to = begin + count * self._record.itemsize

    def _append(self, path: Path, data: bytes) -> None:
        """Append to the file. After a failure, the next process embeds the texts again."""
        try:
            if self._read_to == 0:
                self._write_over(path, data)
                return
            # A full disk or a kill may have left a part of a record.
            self._files.truncate(path, self._read_to)
            found = self._files.append(path, data)
            if found.st_size == self._read_to + len(data):
                self._inode, self._read_to = found.st_ino, found.st_size
        except OSError as error:
            _logger.warning("%s: the vectors could not be saved (%s)", path, error.strerror)

    def _write_over(self, path: Path, data: bytes) -> None:
        """Create or replace the file with these records."""
        self._files.make_folder(path.parent, sync=False)
        whole = _HEAD + self._salt + data
        self._files.write_over(path, whole, sync=False)
        self._inode, self._read_to = self._files.stat(path).st_ino, len(whole)


def _checks(records: Any) -> list[int]:
    """Return the CRC-32 of each record, computed without its stored checksum."""
    data, size = memoryview(records.tobytes()), records.itemsize
    return [crc32(data[at + _CHECK : at + size]) for at in range(0, len(data), size)]


def numpy() -> Any:
    """Return numpy.

    Raises:
        MissingExtra: numpy is not installed; the message has the install command.
    """
    return optional("numpy", "A search by vectors", "embeddings")
