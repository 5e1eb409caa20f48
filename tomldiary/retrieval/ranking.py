"""Which entries a model is shown first, each as one escaped line.

Within one category or type of facts, pinned entries come first, and then by turns the one confirmed most often
and the newest one. Between them, each has a share by its weight (`by_share`), so that none hides the others.
Lines and their order are kept from one version of a document to the next, so that only what changed is
worked out again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tomldiary.entries.conversations import Conversations
from tomldiary.entries.facts import Facts, fact_text
from tomldiary.entries.preferences import entry_count, entry_text
from tomldiary.entries.validity import Held, chained, interval
from tomldiary.retrieval.render import conversation_fact, escape_for_model
from tomldiary.text.incremental_index import Following, ask

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from tomldiary.entries.constraints import FactSchema
    from tomldiary.entries.preferences import Preferences
    from tomldiary.toml.document import Document

__all__ = [
    "MemoryLines",
    "ShownFact",
    "are_ranked",
    "by_share",
    "ranked_conversations",
    "ranked_facts",
    "ranked_preferences",
]

Rank = tuple[bool, int, str]
"""Whether it is pinned, how often it was confirmed, and when it was used last."""


class MemoryLines(NamedTuple):
    """What is remembered of a user, as lines for a model."""

    shown: Sequence[str]
    """What it is shown as far as its budget goes, the most important first."""
    also_true: Sequence[str] = ()
    """What it is not shown and still holds: not to be withdrawn if it was shown before."""


class ShownFact:
    """One entry as a line."""

    __slots__ = ("entry", "key", "line", "rank")

    def __init__(self, key: str, entry: Mapping[str, Any], line: str, rank: Rank) -> None:
        self.key = key
        self.entry = entry
        self.line = line
        self.rank = rank

    @property
    def is_pinned(self) -> bool:
        """Whether it comes before what is not."""
        return self.rank[0]


class _Ranking(Following):
    """The entries of one table as lines, in the order in which they are shown."""

    def __init__(self, category: str) -> None:
        super().__init__(category)
        self._shown: list[ShownFact | None] = []
        self._order: list[tuple[Rank, int, ShownFact]] | None = None
        self._ranked: list[ShownFact] | None = None
        self._moved: dict[int, ShownFact] = {}

    @property
    def ranked(self) -> list[ShownFact]:
        """The lines, the most important first, and of equals the one that stands first; not a copy.

        Those confirmed often and the newest ones alternate: neither keeps the other out of a budget.
        """
        if self._order is None:
            self._moved = {}
            self._order = sorted(
                (fact.rank, -number, fact)
                for number, fact in enumerate(self._shown)
                if fact is not None
            )
        if self._ranked is None:
            self._ranked = _alternating([fact for _, _, fact in reversed(self._order)])
        return self._ranked

    def _put(self, number: int, key: str, entry: Any) -> None:
        if number == len(self._shown):
            self._shown.append(None)
        before, after = self._shown[number], None
        if type(entry) is dict:
            fields = cast("dict[str, Any]", entry)
            after = self._moved.get(id(fields)) or self._fact(self._name(key), fields)
        self._shown[number] = after
        self._ranked = None
        if self._order is None:
            return
        if before is not None:
            del self._order[bisect_left(self._order, (before.rank, -number))]
        if after is not None:
            insort(self._order, (after.rank, -number, after))

    def _forget(self, known: int) -> None:
        # What only stands elsewhere now is shown as it was.
        self._moved = {id(fact.entry): fact for fact in self._shown[known:] if fact is not None}
        del self._shown[known:]
        self._order = self._ranked = None

    def _name(self, key: str) -> str:
        """Return what `ShownFact.key` says."""
        return f"{self.category}/{key}"

    def _fact(self, name: str, entry: Mapping[str, Any]) -> ShownFact | None:
        """Return an entry as it is shown; None if it is not."""
        raise NotImplementedError


class _Preferences(_Ranking):
    """Pinned ones first, then those confirmed often, then new ones."""

    def _fact(self, name: str, entry: Mapping[str, Any]) -> ShownFact:
        line = f"{escape_for_model(self.category)}: {escape_for_model(entry_text(entry))}"
        contexts = entry.get("contexts")
        if isinstance(contexts, list) and contexts:
            labels = " ".join(map(str, cast("list[Any]", contexts)))
            line += f" [{escape_for_model(labels)}]"
        count = entry_count(entry)
        if count > 1:
            line += f" ({count}×)"
        return ShownFact(name, entry, line, (entry.get("pinned") is True, count, _used(entry)))


class _Conversations(_Ranking):
    """Those that have a summary, the one used last first."""

    def _name(self, key: str) -> str:
        return key

    def _fact(self, name: str, entry: Mapping[str, Any]) -> ShownFact | None:
        summary = entry.get("summary")
        if not isinstance(summary, str) or not summary:
            return None
        used = _used(entry)
        return ShownFact(name, entry, conversation_fact(used, summary), (False, 0, used))


class _Facts(_Ranking):
    """The facts of one type that can be read, those changed last first.

    A model is taken to find the same fields right, or wrong, each time.
    """

    def __init__(self, name: str, schema: FactSchema | None) -> None:
        super().__init__(name)
        self._schema = schema
        self._held: dict[str, Held] | None = None

    def holding(self, at: datetime) -> list[ShownFact]:
        """Return those that hold at a moment; of types that are not temporal, all."""
        schema = self._schema
        if schema is not None and not schema.constraint.temporal:
            return self.ranked
        if self._held is None:
            rows = zip(self._keys, self._entries, self._shown, strict=True)
            held = [Held(key, entry, *interval(entry)) for key, entry, fact in rows if fact]
            if schema is not None:  # else nobody says which of them end each other
                held = chained(schema, held)
            self._held = {f"{self.category}/{each.key}": each for each in held}
        return [fact for fact in self.ranked if self._held[fact.key].holds(at)]

    def _put(self, number: int, key: str, entry: Any) -> None:
        super()._put(number, key, entry)
        self._held = None

    def _forget(self, known: int) -> None:
        super()._forget(known)
        self._held = None

    def _fact(self, name: str, entry: Mapping[str, Any]) -> ShownFact | None:
        schema = self._schema
        key = name.removeprefix(f"{self.category}/")
        if schema is not None and Facts.wrong(schema, key, entry) is not None:
            return None
        line = escape_for_model(f"{self.category}: {fact_text(entry)}")
        rank = (entry.get("pinned") is True, 0, str(entry.get("_updated", "")))
        return ShownFact(name, entry, line, rank)


def ranked_preferences(book: Preferences, categories: Iterable[str]) -> list[list[ShownFact]]:
    """Return the preferences of each category, the most important first; not copies."""
    return [book.following(each, _Preferences, _ranked) for each in categories]


def are_ranked(book: Preferences, categories: Iterable[str]) -> bool:
    """Tell whether `ranked_preferences` has nothing to work out."""
    return all(book.is_followed(each, _Preferences) for each in categories)


def ranked_conversations(document: Document) -> list[ShownFact]:
    """Return the conversations that have a summary, the one used last first; not a copy."""

    def columns() -> tuple[list[str], list[Any]]:
        entries = dict(Conversations(document).entries())
        return list(entries), list(entries.values())

    return ask(document, (_Conversations,), lambda: _Conversations(""), columns, _ranked)


def ranked_facts(
    document: Document, schemas: Mapping[str, FactSchema], at: datetime
) -> dict[str, list[ShownFact]]:
    """Return the facts of each type that can be read and hold at a moment, those changed last first."""
    types = {
        name: cast("Mapping[str, Any]", table)
        for name, table in (document.table(("facts",)) or {}).items()
        if isinstance(table, Mapping)
    }
    return {
        name: ask(
            document,
            (_Facts, name, id(schemas.get(name))),  # kept alive by what is found there
            partial(_Facts, name, schemas.get(name)),
            partial(_columns, table),
            lambda facts: facts.holding(at),
        )
        for name, table in types.items()
    }


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


def _columns(table: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    return list(table), list(table.values())


def _ranked(found: _Ranking) -> list[ShownFact]:
    return found.ranked


def _alternating(ranked: list[ShownFact]) -> list[ShownFact]:
    """Return entries by turns from the front of their ranking and from the newest ones."""
    newest = sorted(ranked, key=lambda fact: (fact.is_pinned, fact.rank[2]), reverse=True)
    if newest == ranked:
        return ranked
    return list(
        {id(fact): fact for pair in zip(ranked, newest, strict=True) for fact in pair}.values()
    )


def _used(entry: Mapping[str, Any]) -> str:
    return str(entry.get("_updated") or entry.get("_created") or "")
