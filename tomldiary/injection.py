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

from tomldiary.render import MEMORY_CLOSE, MEMORY_OPEN, render_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tomldiary.ranking import MemoryLines

__all__ = ["HOW_TO_READ", "Injection", "next_injection"]

HOW_TO_READ = (
    "Memory is told in <user_memory>, the latest of which replaces those before it; what changed since"
    ' in <user_memory_changes>, where "+" is new or stated anew and "no longer" is withdrawn.'
)
"""What a model has to know to read the texts; the same for everybody."""

_CHANGES_OPEN = '<user_memory_changes note="data">'
_CHANGES_CLOSE = "</user_memory_changes>"
_ADDED = "+ "
_WITHDRAWN = "no longer: "
_FURTHER = "  "  # begins every line of a fact but the first
_NOTHING = "(nothing is known any more)"
_COUNT = re.compile(r" \(\d+×\)$")


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
) -> Injection | None:
    """Return what the conversation has to be told now; None if it knows.

    Args:
        told: The texts it was told so far and the model still sees, oldest first.
        memory: What is remembered now.
        max_tokens: Budget for one text.
        token_counter: Counts the tokens of a text; None takes four characters for one token.
        heading: A line above the text, of the application's own.
        look_up: The tool that finds what was left out; "" if the model has none.
    """
    snapshot = render_memory(
        memory.shown,
        max_tokens=max_tokens,
        token_counter=token_counter,
        heading=heading,
        look_up=look_up,
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
    withdrawn = [
        fact for claim, fact in known.items() if claim in gone and _block(fact) not in restated
    ]
    if not added and not withdrawn:
        return None
    changes = _changes(added, withdrawn, heading)
    # An empty snapshot says that nothing is known: it is as good, and shorter.
    snapshot = snapshot or _framed([_NOTHING], MEMORY_OPEN, MEMORY_CLOSE, heading)
    if changes_length + len(changes) > len(snapshot):
        return Injection(snapshot, is_snapshot=True)
    return Injection(changes, is_snapshot=False)


def _known(told: Iterable[str]) -> tuple[dict[str, str] | None, int]:
    """Return the facts a conversation was told, and the length of the changes since it was told all."""
    known: dict[str, str] | None = None
    length = 0
    for text in told:
        if _CHANGES_OPEN not in text:
            known, length = {_claim(fact): fact for fact in _stated(text, "- ")}, 0
            continue
        if known is None:
            continue  # what it changes is out of the model's sight
        length += len(text)
        for fact in _stated(text, _WITHDRAWN):
            known.pop(_claim(fact), None)
        added = _stated(text, _ADDED)
        blocks = {_block(fact) for fact in added} - {None}
        known = {claim: fact for claim, fact in known.items() if _block(fact) not in blocks}
        known.update({_claim(fact): fact for fact in added})
    return known, length


def _stated(text: str, mark: str) -> list[str]:
    """Return the facts that begin with a mark, with their indented further lines."""
    facts: list[str] = []
    is_fact = False
    # Above the frame there may be a heading, which is the application's.
    for line in text.rpartition(_CHANGES_OPEN)[2].rpartition(MEMORY_OPEN)[2].splitlines():
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


def _claim(fact: str) -> str:
    """Return a fact without its count: that it was said once more is no news."""
    return _COUNT.sub("", fact) if fact.endswith("×)") else fact


def _changes(added: Sequence[str], withdrawn: Sequence[str], heading: str) -> str:
    lines = [_WITHDRAWN + fact for fact in withdrawn] + [_ADDED + fact for fact in added]
    return _framed(lines, _CHANGES_OPEN, _CHANGES_CLOSE, heading)


def _framed(lines: Sequence[str], first: str, last: str, heading: str) -> str:
    return "\n".join([*([heading] if heading else []), first, *lines, last])
