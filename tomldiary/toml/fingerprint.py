"""A text in UTF-8, cut into pieces where it says so itself.

Where the cuts are depends on what stands near them only (content-defined chunking), so a change makes one or two
pieces anew; version after version shares the others and their digests. A text's fingerprint is made of
these, and follows from its bytes alone:

- A text of less than 64 KiB is one piece. A longer one is cut in front of a line that begins with `[` if the last
  cut is at least 2 KiB before it, and if the CRC-32 of what stands between the `[` of the last such line, or the
  beginning of the text, and the line break in front of this one is divisible by 16.
- The fingerprint of one piece is the first 128 bits of its SHA-256, in hex. That of N pieces is the same of
  the SHA-256 digests of all of them, one behind the other, and `-N`.

To give two texts one fingerprint takes two pieces or two lists of digests of the same SHA-256, wherever the cuts are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tomldiary.toml.diff import Span

__all__ = ["Pieces"]

_LITTLE = 64 * 1024  # bytes that are hashed sooner than cut
_LEAST = 2 * 1024  # bytes of a piece that is not the last one
_ONE_IN = 16  # tables, and a piece ends
_DIGITS = 32


class Piece:
    """A part of a text; never changed."""

    __slots__ = ("characters", "data", "digest")

    def __init__(self, data: bytes) -> None:
        self.data = data
        # What is not UTF-8, a save of somebody's, has a fingerprint as well.
        self.characters = len(data if data.isascii() else data.decode(errors="replace"))
        self.digest = sha256(data).digest()


class Pieces:
    """All pieces of a text; never changed."""

    __slots__ = ("_pieces", "characters", "length")

    def __init__(self, pieces: list[Piece], length: int) -> None:
        self._pieces = pieces
        self.length = length
        """Bytes of the whole text."""
        self.characters = sum([each.characters for each in pieces])
        """How many characters the text has."""

    @classmethod
    def of(cls, data: bytes) -> Pieces:
        """Cut a text."""
        if len(data) < _LITTLE:
            return cls([Piece(data)], len(data))
        whole, rest = _cut(data)
        return cls([Piece(each) for each in (*whole, rest) if each], len(data))

    @property
    def data(self) -> bytes:
        """The whole text."""
        pieces = self._pieces
        return pieces[0].data if len(pieces) == 1 else b"".join([each.data for each in pieces])

    @property
    def fingerprint(self) -> str:
        """What tells this text from any other; see above."""
        pieces = self._pieces
        if len(pieces) == 1:
            return pieces[0].digest.hex()[:_DIGITS]
        digests = b"".join([each.digest for each in pieces])
        return f"{sha256(digests).hexdigest()[:_DIGITS]}-{len(pieces)}"

    def changed(self, spans: Sequence[Span]) -> Pieces:
        """Return what `of` returns for the text with these changes.

        Args:
            spans: In their order; the positions are in characters of this text.

        Raises:
            ValueError: What is to give way does not stand there.
        """
        old = self._pieces
        if not spans:
            return self
        if len(old) == 1:
            return Pieces.of(_spliced(old, spans, 0))
        made: list[Piece] = []
        pending = b""  # what stands behind the last cut, and is no whole piece yet
        for fresh, run in _runs(old, spans):
            if fresh is not None:
                if made and not pending and not fresh.startswith(b"["):
                    pending = made.pop().data  # nothing is cut here any more
                whole, pending = _cut(pending + fresh, is_end=run[-1] is old[-1])
                made += map(Piece, whole)
                continue
            same = 0
            while pending and same < len(run):
                whole, pending = _cut(pending + run[same].data, is_end=run[same] is old[-1])
                made += map(Piece, whole)
                same += 1
            made += run[same:]
        if pending:
            made.append(Piece(pending))
        length = sum([len(each.data) for each in made])
        if length < _LITTLE:
            return Pieces.of(b"".join([each.data for each in made]))
        return Pieces(made, length)


def _cut(data: bytes, *, is_end: bool = True) -> tuple[list[bytes], bytes]:
    """Return the pieces of a text that begins where a piece does, and what stands behind the last cut.

    Without `is_end`, a line that begins with `[` follows.
    """
    tables = b"".join((b"\n", data, b"" if is_end else b"[")).split(b"\n[")
    ends = list(accumulate(map(len, tables)))
    whole: list[bytes] = []
    begin = 0
    sums = enumerate(map(crc32, tables[:-1]))
    for number in [number for number, checksum in sums if not checksum % _ONE_IN]:
        end = ends[number] + 2 * number
        if end - begin >= _LEAST:
            whole.append(data[begin:end])
            begin = end
    return whole, data[begin:]


def _runs(pieces: list[Piece], spans: Sequence[Span]) -> Iterator[tuple[bytes | None, list[Piece]]]:
    """Yield all pieces, in runs of those that are changed, with what takes their place, and of those that are not."""
    starts = list(accumulate([each.characters for each in pieces], initial=0))
    done = number = 0
    while done < len(spans):
        first = min(bisect_right(starts, spans[done].at), len(pieces)) - 1
        if number < first:
            yield None, pieces[number:first]
        begin, number = done, first + 1
        while done < len(spans) and (number == len(pieces) or spans[done].at < starts[number]):
            end = spans[done].at + len(spans[done].old)
            number = min(bisect_left(starts, end, number), len(pieces))
            done += 1
        run = pieces[first:number]
        yield _spliced(run, spans[begin:done], starts[first]), run
    if number < len(pieces):
        yield None, pieces[number:]


def _spliced(pieces: list[Piece], spans: Sequence[Span], start: int) -> bytes:
    """Return the bytes of these pieces with changes; `start` is the position of the first character."""
    data = pieces[0].data if len(pieces) == 1 else b"".join([each.data for each in pieces])
    if data.isascii():  # positions in the text are positions in its bytes
        parts: list[bytes] = []
        end = 0
        for at, before, after in spans:
            begin, stop = at - start, at - start + len(before)
            if begin < end or data[begin:stop] != before.encode():
                raise ValueError(at)
            parts += (data[end:begin], after.encode())
            end = stop
        return b"".join((*parts, data[end:]))
    text, words, end = data.decode(), list[str](), 0
    for at, before, after in spans:
        begin, stop = at - start, at - start + len(before)
        if begin < end or text[begin:stop] != before:
            raise ValueError(at)
        words += (text[end:begin], after)
        end = stop
    return "".join((*words, text[end:])).encode()
