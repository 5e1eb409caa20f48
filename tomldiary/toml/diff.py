"""Two versions of a document, compared block by block.

Blocks that an edit did not touch are the same objects in both versions, so most of the comparison is
done by comparing slices of references.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tomldiary.toml.lexer import Block

__all__ = ["Span", "changed_spans"]

_text_of = attrgetter("text")
_STRIDE = 256  # blocks compared at once


class Span(NamedTuple):
    """At character `at` of the old version, the text `new` replaces `old`; both are whole blocks.

    A blank line may stand in front of blocks that are added.
    """

    at: int
    old: str
    new: str


def changed_spans(old: list[Block], new: list[Block]) -> list[Span]:
    """Return what differs, in the order of the old version."""
    spans: list[Span] = []
    places: dict[int, int] = {}
    i = j = at = 0
    while i < len(old) or j < len(new):
        same = _common(old, i, new, j)
        i, j = i + same, j + same
        if i == len(old) and j == len(new):
            break
        at += _length(old[i - same : i])
        removed: list[str] = []
        added: list[str] = []
        if i + 1 < len(old) and j + 1 < len(new) and old[i + 1] is new[j + 1]:
            # One block was rewritten: no need to look where it might have gone.
            removed.append(old[i].text)
            added.append(new[j].text)
            i, j = i + 1, j + 1
        else:
            if i < len(old) and not places:
                places = {id(block): number for number, block in enumerate(new)}
            # Blocks do not move: what does not come on the other side was removed or added here.
            while i < len(old) and places.get(id(old[i]), -1) < j:
                removed.append(old[i].text)
                i += 1
            while j < len(new) and (i == len(old) or new[j] is not old[i]):
                added.append(new[j].text)
                j += 1
        span = _span(at, removed, added)
        if span.old != span.new:
            spans.append(span)
        at = span.at + len(span.old)
    return spans


def _length(blocks: list[Block]) -> int:
    return sum(map(len, map(_text_of, blocks)))


def _common(old: list[Block], i: int, new: list[Block], j: int) -> int:
    """Return how many blocks from here on are the same."""
    start = i
    while (left := old[i : i + _STRIDE]) and left == new[j : j + _STRIDE]:
        i, j = i + len(left), j + len(left)
    while i < len(old) and j < len(new) and old[i] is new[j]:
        i, j = i + 1, j + 1
    return i - start


def _span(at: int, old: list[str], new: list[str]) -> Span:
    """Return a change of blocks; those that only get a blank line behind them, as more follows now, are no part of it."""
    before, kept = "".join(old), "".join(new[: len(old)])
    if len(new) > len(old) and kept.startswith(before):
        distance = kept[len(before) :]
        if not distance.strip("\r\n"):
            return Span(at + len(before), "", distance + "".join(new[len(old) :]))
    return Span(at, before, "".join(new))
