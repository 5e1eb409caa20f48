"""The next text about a user's memory to put into a conversation, given the texts that it contains already.

The first text is a snapshot of the memory. Later texts contain only the changes: earlier messages stay the same, so a
provider's prompt cache remains valid. Facts that are no longer true are withdrawn. When the changes are longer than
the memory itself, the next text is a new snapshot.

The facts in a conversation are parsed from these texts; no other record is kept.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from tomldiary.retrieval.render import framed_memory, render_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tomldiary.retrieval.ranking import MemoryLines

_CHANGES = "<user_memory_changes"
_ADDED = "+ "
_WITHDRAWN = "no longer: "
_ALL_OF = 'every earlier line that begins with "{}:"'
"""Withdraws facts without quoting them: a forgotten text must not be sent again."""
_FURTHER = "  "  # the indent of each line of a fact after the first
_NOTHING = "(nothing is known)"
_COUNT = re.compile(r" \(\d+×\)$")


def how_to_read(name: str = "") -> str:
    """Return the instruction by which a model reads the texts of a memory; the same for all users."""
    named = f' name="{name}"' if name else ""
    return (
        f"Memory is given in <user_memory{named}>; the latest of the same name and user replaces those before"
        f' it. <user_memory_changes{named}> says what changed since: "no longer" withdraws lines, "+" adds or'
        " repeats one. If none is given, there is none to show."
    )


def has_snapshot(shown: Iterable[str]) -> bool:
    """Return whether the texts that a model sees include the whole memory; changes alone tell it little."""
    return any(_CHANGES not in text for text in shown)


class Injection(NamedTuple):
    """A text to put into the conversation as data."""

    text: str
    is_snapshot: bool
    """Whether the text has the whole memory, and not only the changes."""


def next_injection(
    shown: Iterable[str],
    memory: MemoryLines,
    *,
    max_tokens: int,
    token_counter: Callable[[str], int] | None = None,
    heading: str = "",
    look_up: str = "recall",
    name: str = "",
    about: str = "",
) -> Injection | None:
    """Return the next text to put into a conversation; None if it is up to date.

    Args:
        shown: The earlier texts in the model's context, oldest first.
        memory: The current memory.
        max_tokens: The budget of one text.
        token_counter: The function that counts tokens; None estimates them by script.
        heading: The first line in the frame, supplied by the application.
        look_up: The tool that finds omitted entries; "" if the model has none.
        name: The name of the memory, if the agent has several.
        about: The user of the memory, if the conversation has several.
    """
    framed = partial(framed_memory, heading=heading, name=name, about=about)
    snapshot = render_memory(
        memory.shown, max_tokens=max_tokens, token_counter=token_counter,
        heading=heading, look_up=look_up, name=name, about=about,
    )  # fmt: skip
    shown = list(shown)
    if shown and shown[-1] == snapshot:
        return None
    known, changes_length = _known(shown)
    if known is None:
        if about:  # else the model takes the memory of another user for that of this one
            snapshot = snapshot or framed([_NOTHING])
        return Injection(snapshot, is_snapshot=True) if snapshot else None
    lost, kept, added = _changes(known, _stated(snapshot, "- "), memory)
    if not added and not lost:
        return None
    lines = [_WITHDRAWN + _ALL_OF.format(group) for group in dict.fromkeys(map(_group, lost))]
    lines += [_ADDED + fact for fact in (*kept, *added)]
    changes = framed(lines, changes=True)
    is_empty = not snapshot and not memory.shown
    # An empty snapshot means that the memory is empty.
    snapshot = snapshot or framed([_NOTHING])
    # A withdrawal would quote the name of a block or a line without a colon, which are user text. A label with quotes
    # could withdraw the lines of another category.
    quotes = any(_block(fact) or ":" not in fact or '"' in _group(fact) for fact in lost)
    if is_empty or quotes or changes_length + len(changes) > len(snapshot):
        return Injection(snapshot, is_snapshot=True)
    return Injection(changes, is_snapshot=False)


def _changes(
    known: Mapping[str, str], stated: Sequence[str], memory: MemoryLines
) -> tuple[list[str], list[str], list[str]]:
    """Return the facts to withdraw, those to repeat because of that, and the new ones.

    Args:
        known: The facts in the conversation, by their text without the count.
        stated: The facts in a snapshot of the current memory.
        memory: The current memory.
    """
    added = [fact for fact in stated if _claim(fact) not in known]
    restated = {_block(fact) for fact in added} - {None}
    gone = known.keys() - {_claim(fact) for fact in stated}
    if gone:  # they may only have been cut from the snapshot, so compare with the whole memory
        gone.difference_update(map(_claim, chain(memory.shown, memory.also_true)))
    lost = [fact for claim, fact in known.items() if claim in gone and _block(fact) not in restated]
    withdrawn = set(map(_group, lost))
    # A withdrawal covers all lines with the same beginning: repeat those that are still true.
    kept = [
        fact for claim, fact in known.items() if claim not in gone and _group(fact) in withdrawn
    ]
    return lost, kept, added


def _known(shown: Iterable[str]) -> tuple[dict[str, str] | None, int]:
    """Return the facts in the texts of a conversation, and the length of the changes after its last snapshot."""
    known: dict[str, str] | None = None
    length = 0
    for text in shown:
        if _CHANGES not in text:
            known, length = {_claim(fact): fact for fact in _stated(text, "- ")}, 0
            continue
        if known is None:
            continue  # the model does not see the snapshot that it changes
        length += len(text)
        withdrawn = _stated(text, _WITHDRAWN)
        known = {
            claim: fact
            for claim, fact in known.items()
            if _ALL_OF.format(_group(fact)) not in withdrawn
        }
        added = _stated(text, _ADDED)
        blocks = {_block(fact) for fact in added} - {None}
        known = {claim: fact for claim, fact in known.items() if _block(fact) not in blocks}
        known.update({_claim(fact): fact for fact in added})
    return known, length


def _stated(text: str, mark: str) -> list[str]:
    """Return the facts that begin with a mark, with their indented further lines."""
    facts: list[str] = []
    is_fact = False
    for line in text.splitlines()[1:]:
        if line.startswith(_FURTHER):
            if is_fact:
                facts[-1] += f"\n{line}"
        else:
            is_fact = line.startswith(mark)
            if is_fact:
                facts.append(line.removeprefix(mark))
    return facts


def _block(fact: str) -> str | None:
    """Return the first line of a multi-line fact, or None; such a fact is repeated completely after a change."""
    name, several, _ = fact.partition("\n")
    return name if several else None


def _group(fact: str) -> str:
    """Return the beginning of a fact up to its colon: a category, a kind or the name of a block."""
    return fact.partition(":")[0]


def _claim(fact: str) -> str:
    """Return a fact without its count, because a higher count alone is not a change."""
    return _COUNT.sub("", fact) if fact.endswith("×)") else fact
