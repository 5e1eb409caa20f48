"""Which entries a model is shown first, each as one escaped line.

Within one category or type of facts, pinned entries come first, and then by turns the one confirmed most often
and the newest one. Between them, each has a share by its weight (`by_share`), so that none hides the others.
Lines and their order are kept from one version of a document to the next, so that only what changed is
worked out again.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tomldiary.retrieval.render import rendered
from tomldiary.text.incremental_index import Following, ask
from tomldiary.text.visible import escape_for_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from tomldiary.entries.kind import EntryKind, Group, Rank, Rules
    from tomldiary.toml.document import Document

__all__ = ["MemoryLines", "ShownFact", "by_share", "ranked"]


class MemoryLines(NamedTuple):
    """A user's memory as lines for a model."""

    shown: Sequence[str]
    """The lines to show within the budget, the most important first."""
    also_true: Sequence[str] = ()
    """Lines that are not shown but still true: if a conversation contains them, they are not withdrawn."""


class ShownFact:
    """One entry as a line."""

    __slots__ = ("entry", "key", "line", "rank")

    def __init__(
        self, key: tuple[str, str], entry: Mapping[str, Any], line: str, rank: Rank
    ) -> None:
        self.key = key
        """Its kind, and its key without the kind."""
        self.entry = entry
        self.line = line
        self.rank = rank

    @property
    def name(self) -> str:
        """Its key without the kind."""
        return self.key[1]

    @property
    def is_pinned(self) -> bool:
        """Whether it comes before what is not."""
        return self.rank[0]


class _Ranking(Following):
    """The entries of one table as lines, in the order in which they are shown."""

    def __init__(self, kind: EntryKind, group: Group) -> None:
        super().__init__(group.name)
        self._kind = kind
        self._group = group
        self._times: tuple[Callable[[str, datetime], bool] | None] | None = None
        self._shown: list[ShownFact | None] = []
        self._ranked: list[ShownFact] | None = None
        self._moved: dict[int, ShownFact] = {}

    @property
    def ranked(self) -> list[ShownFact]:
        """The lines, the most important first, and of equals the one that stands first; not a copy.

        Those confirmed often and the newest ones alternate: neither keeps the other out of a budget.
        """
        if self._ranked is None:
            self._moved = {}
            shown = [fact for fact in self._shown if fact is not None]
            shown.sort(key=attrgetter("rank"), reverse=True)
            self._ranked = _alternating(shown)
        return self._ranked

    def holding(self, at: datetime) -> list[ShownFact]:
        """Return those that hold at a time, the most important first; not a copy."""
        if self._times is None:
            known = [(fact.name, fact.entry) for fact in self._shown if fact is not None]
            self._times = (self._kind.holding(self._group, known),)
        holds = self._times[0]
        return self.ranked if holds is None else [f for f in self.ranked if holds(f.name, at)]

    def _put(self, number: int, key: str, entry: Any) -> None:
        if number == len(self._shown):
            self._shown.append(None)
        fact = None
        if type(entry) is dict:
            fields = cast("dict[str, Any]", entry)
            fact = self._moved.get(id(fields)) or self._fact(self._name(key), fields)
        self._shown[number] = fact
        self._ranked = self._times = None

    def _forget(self, known: int) -> None:
        # What only stands elsewhere now is shown as it was.
        self._moved = {id(fact.entry): fact for fact in self._shown[known:] if fact is not None}
        del self._shown[known:]
        self._ranked = self._times = None

    def _name(self, key: str) -> str:
        return f"{self.category}/{key}" if self.category else key

    def _fact(self, name: str, entry: Mapping[str, Any]) -> ShownFact | None:
        """Return an entry as it is shown; None if it is not."""
        line = self._kind.line(name, entry, self._group)
        if line is None or not (line.is_long or escape_for_model(line.text)):
            return None  # without a text it says nothing
        return ShownFact((self._kind.name, name), entry, rendered(line), self._kind.rank(entry))


def ranked(
    kind: EntryKind, document: Document, rules: Rules, at: datetime
) -> list[tuple[float, list[ShownFact]]]:
    """Return weight and entries of each group of a kind, the most important first; not copies.

    Entries that cannot be read, or do not hold at the time, are left out.
    """
    return [
        (group.weight, ask(document, _place(kind, group), partial(_Ranking, kind, group), group.columns,
                           lambda found: found.holding(at)))
        for group in kind.groups(document, rules)
    ]  # fmt: skip


def _place(kind: EntryKind, group: Group) -> tuple[object, ...]:
    """Return the name of a ranking in a document's memo."""
    return (_Ranking, kind.name, group.name, id(group.schema))  # the ranking keeps the schema alive


def by_share(lanes: Iterable[tuple[float, Sequence[ShownFact]]]) -> list[ShownFact]:
    """Return several rankings as one: pinned entries first, then of each lane as many as its weight says.

    A lane of weight 3 has three entries where one of weight 1 has one, as long as it lasts. Of equals,
    the lane that is given first comes first.

    Args:
        lanes: Weight and entries of each, the most important first.
    """
    filled = [(weight, lane) for weight, lane in lanes if lane]
    if len(filled) == 1:
        return list(filled[0][1])
    facts: list[ShownFact] = []
    places: list[float] = []  # 0 for what is pinned
    for weight, lane in filled:
        first = next((at for at, fact in enumerate(lane) if not fact.is_pinned), len(lane))
        facts += lane
        places += [0.0] * first
        places += [place / weight for place in range(1, len(lane) - first + 1)]
    return [facts[at] for at in sorted(range(len(facts)), key=places.__getitem__)]


def _alternating(ranked: list[ShownFact]) -> list[ShownFact]:
    """Return entries by turns from the front of their ranking and from the newest ones."""
    newest = sorted(ranked, key=lambda fact: (fact.is_pinned, fact.rank[2]), reverse=True)
    return list(
        {id(fact): fact for pair in zip(ranked, newest, strict=True) for fact in pair}.values()
    )
