"""Where in a thread of messages the last turn begins, and which exchanges came before it.

All that a user said since the last answer is one turn: messages in a row, a message while a run waits for an
approval, and what a run left unanswered that was interrupted or failed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal, NamedTuple

from tomldiary.agents.verbs import BLOCK_VERBS, VERBS
from tomldiary.entries.episodes import ToolStep

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

__all__ = ["Spoken", "earlier_exchanges", "exchange_of", "tool_steps", "turn_start"]


class Spoken(NamedTuple):
    """One message of a thread."""

    by: Literal["user", "assistant", "tool", "other"]
    """ "other" are instructions, and what stands in for people: summaries, memory, prompts of models."""
    text: str = ""
    is_answer: bool = False
    """Whether it ended a turn: the assistant called no tool, or the call's result was the answer."""


def turn_start(thread: Sequence[Spoken]) -> int | None:
    """Return the index of the first user message since the last answer; None if no user said anything.

    Answers behind the last user message belong to the turn.
    """
    asked = [number for number, one in enumerate(thread) if one.by == "user"]
    if not asked:
        return None
    answers = [number for number in range(asked[-1]) if thread[number].is_answer]
    behind = answers[-1] if answers else -1
    return next(number for number in asked if number > behind)


def exchange_of(turn: Sequence[Spoken]) -> tuple[str, str]:
    """Return what the user and the assistant said in a turn; a tool's result that ends it is an answer."""
    said = [one.text for one in turn if one.by == "assistant"]
    if turn and turn[-1].by == "tool":
        said.append(turn[-1].text)
    return _joined(one.text for one in turn if one.by == "user"), _joined(said)


def earlier_exchanges(thread: Sequence[Spoken], start: int) -> list[tuple[str, str]]:
    """Return the exchanges before the turn that begins at `start`, oldest first."""
    exchanges: list[tuple[str, str]] = []
    end = start
    while (begin := turn_start(thread[:end])) is not None:
        exchanges.append(exchange_of(thread[begin:end]))
        end = begin
    return exchanges[::-1]


def tool_steps(
    calls: Iterable[tuple[str, str, object]], results: Mapping[str, str], ours: Collection[str] = ()
) -> tuple[ToolStep, ...]:
    """Return the calls of tools with their results, for the episode of a turn.

    The diary's own tools are left out: their results repeat entries that may be forgotten later.

    Args:
        calls: Id, name and arguments of each call, in their order.
        results: The text of each result by the id of its call.
        ours: Further names of the diary's tools.
    """
    known = {*VERBS, *BLOCK_VERBS, *ours}
    return tuple(
        ToolStep(name, given if isinstance(given, str) else _as_json(given), results.get(id_, ""))
        for id_, name, given in calls
        if name not in known
    )


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))
