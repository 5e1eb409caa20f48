"""The order of entries in the text for a model, with each entry as one escaped line.

Within one category or fact type, pinned entries come first. After them, the most confirmed and the newest entries
alternate. Each category or type has a share by its weight (`by_share`), so that none displaces the others. Lines
and their order are kept between versions of a document, so that only changes are computed again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tomldiary.retrieval.render import rendered
from tomldiary.text.visible import escape_for_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from tomldiary.entries.kind import EntryKind, Group, Rank, Rules
    from tomldiary.toml.document import Document


_NOTE = re.compile(r"(?: \[(?P<contexts>[^\]]+)\])?(?: \((?P<count>[2-9]|[1-9][0-9]{1,8})×\))?")


class MemoryLines(NamedTuple):
    """A user's memory as lines for a model."""

    shown: Sequence[str]
    """The lines to show within the budget, the most important first."""
    also_true: Sequence[str] = ()
    """Lines that are not shown but still true: if a conversation contains them, they are not withdrawn."""


@dataclass(slots=True, eq=False)  # not frozen: frozen ones are slower to create
class ShownFact:
    """One entry as a line. Never changed."""

    key: tuple[str, str]
    """The kind, and the key without the kind."""
    entry: Mapping[str, Any]
    line: str
    note: str
    """The end of the line, not escaped; a line that names the entry may omit it."""
    rank: Rank

    @property
    def name(self) -> str:
        """The key without the kind."""
        return self.key[1]

    @property
    def is_pinned(self) -> bool:
        """Whether it is shown before unpinned entries."""
        return self.rank[0]

    def is_named_by(self, line: str) -> bool:
        """Return whether an escaped line without line breaks is the one of this entry.

        It may omit the note, or have an earlier one: fewer contexts or a lower count, as before a confirmation.
        """
        own = " ".join(self.line.split())
        bare = own.removesuffix(f" {escape_for_model(self.note)}")
        if line in {own, bare}:
            return True
        before = _NOTE.fullmatch(line, len(bare)) if line.startswith(bare) else None
        now = _NOTE.fullmatch(own, len(bare))
        if before is None or now is None:
            return False
        had, has = ((each["contexts"] or "").split() for each in (before, now))
        # New contexts follow the others.
        return had == has[: len(had)] and int(before["count"] or 1) <= int(now["count"] or 1)


class _Ranking(NamedTuple):
    """The entries of one table as lines, at one version of the document."""

    stamp: object
    facts: dict[str, ShownFact]
    """By key; entries that are not shown are left out."""
    ranked: list[ShownFact]
    """By importance, equal ones in the order of the file."""
    schema: Any
    """Kept alive, because its id is a part of the name of the ranking."""


def ranked(
    kind: EntryKind, document: Document, rules: Rules, at: datetime
) -> list[tuple[float, list[ShownFact]]]:
    """Return the weight and the entries of each group of a kind, the most important first; not copies.

    Entries that cannot be read or are not valid at the time are omitted.
    """
    holds = kind.current(document, rules, at)
    found: list[tuple[float, list[ShownFact]]] = []
    for group in kind.groups(document, rules):
        facts = _ranking(kind, document, group).ranked
        if holds is not None:
            facts = [fact for fact in facts if holds(fact.name, fact.entry)]
        found.append((group.weight, facts))
    return found


def _ranking(kind: EntryKind, document: Document, group: Group) -> _Ranking:
    """Return the current ranking of a group; unchanged entries keep their lines."""
    place = (_Ranking, kind.name, group.name, id(group.schema))
    known: _Ranking | None = document.memo.get(place)
    if known is not None and known.stamp == document.stamp:
        return known
    before = {} if known is None else known.facts
    facts: dict[str, ShownFact] = {}
    for key, entry in group.entries().items():
        fact = before.get(key)
        if fact is None or fact.entry is not entry:
            is_entry = type(entry) is dict
            fact = _fact(kind, group, key, cast("dict[str, Any]", entry)) if is_entry else None
        if fact is not None:
            facts[key] = fact
    order = _alternating(sorted(facts.values(), key=attrgetter("rank"), reverse=True))
    document.memo[place] = known = _Ranking(document.stamp, facts, order, group.schema)
    return known


def _fact(kind: EntryKind, group: Group, key: str, entry: Mapping[str, Any]) -> ShownFact | None:
    """Return an entry as a line, or None if it is not shown."""
    name = f"{group.name}/{key}" if group.name else key
    line = kind.line(name, entry, group)
    if line is None or not (line.is_long or escape_for_model(line.text)):
        return None  # an entry without text is not shown
    return ShownFact((kind.name, name), entry, rendered(line), line.note, kind.rank(entry))


def by_share(lanes: Iterable[tuple[float, Sequence[ShownFact]]]) -> list[ShownFact]:
    """Return several rankings as one: pinned entries first, then entries of each lane in proportion to its weight.

    A lane of weight 3 has three entries for each entry of a lane of weight 1, until it is exhausted. Equal
    entries are in the order of the lanes.

    Args:
        lanes: The weight and the entries of each lane, the most important first.
    """
    filled = [(weight, lane) for weight, lane in lanes if lane]
    if len(filled) == 1:
        return list(filled[0][1])
    facts: list[ShownFact] = []
    places: list[float] = []  # 0 for pinned entries
    for weight, lane in filled:
        first = next((at for at, fact in enumerate(lane) if not fact.is_pinned), len(lane))
        facts += lane
        places += [0.0] * first
        places += [place / weight for place in range(1, len(lane) - first + 1)]
    return [facts[at] for at in sorted(range(len(facts)), key=places.__getitem__)]


def _alternating(ranked: list[ShownFact]) -> list[ShownFact]:
    """Return entries alternating between the highest ranked and the newest ones."""
    newest = sorted(ranked, key=lambda fact: (fact.is_pinned, fact.rank[2]), reverse=True)
    return list(
        {id(fact): fact for pair in zip(ranked, newest, strict=True) for fact in pair}.values()
    )
