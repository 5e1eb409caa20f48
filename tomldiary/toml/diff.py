"""Two versions of a document, compared block by block.

Blocks that an edit did not touch are the same objects in both versions, so most of the comparison is
done by comparing slices of references. An edit knows which ones it touched, and needs not even that.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tomldiary.toml.document import Document
    from tomldiary.toml.lexer import Block

__all__ = ["Span", "changed_spans", "edited_spans"]

_text_of = attrgetter("text")
_STRIDE = 256  # blocks compared at once


class Span(NamedTuple):
    """At character `at` of the old version, the text `new` replaces `old`; both are whole blocks.

    A blank line may stand in front of blocks that are added.
    """

    at: int
    old: str
    new: str


def edited_spans(
    base: Document, new: list[Block], rewritten: Collection[int], aligned: int
) -> list[Span]:
    """Return what `changed_spans` returns.

    Args:
        base: The version before.
        new: The version after.
        rewritten: The numbers of blocks that differ.
        aligned: Up to this number nothing else differs.
    """
    old = base.blocks
    is_whole = aligned == len(old)  # at most, something was added behind the last one
    while aligned - 1 in rewritten:
        aligned -= 1  # what touches the rest is one change with it
    spans: list[Span] = []
    at = number = 0
    for first, end in _runs(sorted([place for place in rewritten if place < aligned])):
        at = _position(base, first, number, at)
        was = "".join(_texts(old[first:end]))
        spans.append(Span(at, was, "".join(_texts(new[first:end]))))
        at, number = at + len(was), end
    if aligned < len(old) or aligned < len(new):
        at = _position(base, aligned, number, at)
        left, right = old[aligned:], new[aligned:]
        if is_whole:
            spans.append(_span(at, _texts(left), _texts(right)))
        else:
            rest = changed_spans(left, right)
            spans += [Span(at + span.at, span.old, span.new) for span in rest]
    return [span for span in spans if span.old != span.new]


def _runs(places: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first number and the one behind the last of each row of numbers that follow each other."""
    first = end = -1
    for place in places:
        if place != end:
            if first < end:
                yield first, end
            first = place
        end = place + 1
    if first < end:
        yield first, end


def _position(document: Document, wanted: int, number: int, at: int) -> int:
    """Return where a block begins in the text, from where one before it begins."""
    blocks = document.blocks
    if len(blocks) - wanted < wanted - number:  # most of what is added goes to the end
        return document.size - _length(blocks[wanted:])
    return at + _length(blocks[number:wanted])


def changed_spans(old: list[Block], new: list[Block]) -> list[Span]:
    """Return what differs, in the order of the old version."""
    same = _common_end(old, new)
    old, new = old[: len(old) - same], new[: len(new) - same]
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
            places = places or {id(block): number for number, block in enumerate(new)}
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


def _common_end(old: list[Block], new: list[Block]) -> int:
    """Return how many blocks at the end are the same."""
    shorter = min(len(old), len(new))
    same = 0
    while (step := min(_STRIDE, shorter - same)) and (
        old[len(old) - same - step : len(old) - same]
        == new[len(new) - same - step : len(new) - same]
    ):
        same += step
    while same < shorter and old[-1 - same] is new[-1 - same]:
        same += 1
    return same


def _texts(blocks: list[Block]) -> list[str]:
    return [block.text for block in blocks]


def _span(at: int, old: list[str], new: list[str]) -> Span:
    """Return a change of blocks; those that only get a blank line behind them, as more follows now, are no part of it."""
    before, kept = "".join(old), "".join(new[: len(old)])
    if len(new) > len(old) and kept.startswith(before):
        distance = kept[len(before) :]
        if not distance.strip("\r\n"):
            return Span(at + len(before), "", distance + "".join(new[len(old) :]))
    return Span(at, before, "".join(new))
