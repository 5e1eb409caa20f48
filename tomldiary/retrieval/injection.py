"""What to tell a model about its user's memory, given what the conversation says about it already.

A conversation is told the memory once, and afterwards only what changed, so that the text before stays
as it was and a provider's prompt cache goes on serving it. What is no longer true is withdrawn. When
the changes have grown longer than the memory itself, the memory is told afresh.

Which facts a conversation knows is read from the texts it was told, and needs no other record.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from tomldiary.retrieval.render import framed_memory, is_start_of, render_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tomldiary.retrieval.ranking import MemoryLines

__all__ = ["Injection", "how_to_read", "next_injection"]

_CHANGES = "<user_memory_changes"
_ADDED = "+ "
_WITHDRAWN = "no longer: "
_ALL_OF = 'every earlier line that begins with "{}:"'
"""Withdraws without quoting: what was forgotten is not to be said once more."""
_FURTHER = "  "  # begins every line of a fact but the first
_NOTHING = "(nothing is known any more)"
_COUNT = re.compile(r" \(\d+×\)$")


def how_to_read(name: str = "") -> str:
    """Return what a model has to know to read the texts of a memory; the same for all users."""
    named = f' name="{name}"' if name else ""
    return (
        f"Memory is told in <user_memory{named}>; the latest of the same name and user replaces those before"
        f' it. <user_memory_changes{named}> says what changed since: "no longer" withdraws lines, "+" adds or'
        " repeats one."
    )


class Injection(NamedTuple):
    """A text to put into the conversation as data."""

    text: str
    is_snapshot: bool
    """Whether it tells the whole memory; else it tells what changed."""


def next_injection(
    told: Iterable[str],
    memory: MemoryLines,
    *,
    max_tokens: int,
    token_counter: Callable[[str], int] | None = None,
    heading: str = "",
    look_up: str = "recall",
    name: str = "",
    about: str = "",
) -> Injection | None:
    """Return what the conversation has to be told now; None if it knows.

    Args:
        told: The texts it was told so far and the model still sees, oldest first.
        memory: What is remembered now.
        max_tokens: Budget for one text.
        token_counter: Counts the tokens of a text; None estimates them by script.
        heading: A line of the application's own, the first one in the frame.
        look_up: The tool that finds what was left out; "" if the model has none.
        name: Which memory it is, where a model is told several.
        about: Whose memory it is, where a conversation has several users.
    """
    snapshot = render_memory(
        memory.shown,
        max_tokens=max_tokens,
        token_counter=token_counter,
        heading=heading,
        look_up=look_up,
        name=name,
        about=about,
    )
    told = list(told)
    if told and told[-1] == snapshot:
        return None
    known, changes_length = _known(told)
    if known is None:
        return Injection(snapshot, is_snapshot=True) if snapshot else None
    stated = _stated(snapshot, "- ")
    added = [fact for fact in stated if _claim(fact) not in known]
    restated = {_block(fact) for fact in added} - {None}
    gone = known.keys() - {_claim(fact) for fact in stated}
    if gone:  # from the text, or altogether: all that is remembered has to be gone through
        gone.difference_update(map(_claim, chain(memory.shown, memory.also_true)))
        blocks = [fact for fact in memory.shown if _block(fact)]
        gone = {each for each in gone if not any(is_start_of(each, block) for block in blocks)}
    lost = [fact for claim, fact in known.items() if claim in gone and _block(fact) not in restated]
    if not added and not lost:
        return None
    withdrawn = list(dict.fromkeys(map(_group, lost)))
    # What else begins like a withdrawn line, and is true, is stated again.
    kept = [
        fact for claim, fact in known.items() if claim not in gone and _group(fact) in withdrawn
    ]
    lines = [_WITHDRAWN + _ALL_OF.format(group) for group in withdrawn]
    lines += [_ADDED + fact for fact in (*kept, *added)]
    changes = framed_memory(lines, heading=heading, name=name, about=about, changes=True)
    if not snapshot and not memory.shown:
        nothing = framed_memory([_NOTHING], heading=heading, name=name, about=about)
        return Injection(nothing, is_snapshot=True)
    # An empty snapshot says that nothing is known: it is as good, and shorter.
    snapshot = snapshot or framed_memory([_NOTHING], heading=heading, name=name, about=about)
    # A block's name is the user's own word, as is a line without a colon: it would be quoted.
    quotes = any(_block(fact) or ":" not in fact for fact in lost)
    if quotes or changes_length + len(changes) > len(snapshot):
        return Injection(snapshot, is_snapshot=True)
    return Injection(changes, is_snapshot=False)


def _known(told: Iterable[str]) -> tuple[dict[str, str] | None, int]:
    """Return the facts a conversation was told, and the length of the changes since it was told all."""
    known: dict[str, str] | None = None
    length = 0
    for text in told:
        if _CHANGES not in text:
            known, length = {_claim(fact): fact for fact in _stated(text, "- ")}, 0
            continue
        if known is None:
            continue  # what it changes is out of the model's sight
        length += len(text)
        withdrawn = _stated(text, _WITHDRAWN)
        known = {claim: fact for claim, fact in known.items() if _withdrawal(fact) not in withdrawn}
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
    """Return the name of a text of several lines, which is stated whole when it has changed."""
    name, several, _ = fact.partition("\n")
    return name if several else None


def _group(fact: str) -> str:
    """Return what a fact's line begins with, up to its colon: a category, a kind or the name of a block."""
    return fact.partition(":")[0]


def _withdrawal(fact: str) -> str:
    return _ALL_OF.format(_group(fact))


def _claim(fact: str) -> str:
    """Return a fact without its count: that it was said once more is no news."""
    return _COUNT.sub("", fact) if fact.endswith("×)") else fact
