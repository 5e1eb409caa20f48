"""Which entries a model is shown first, each as one escaped line.

Pinned preferences come first, then those confirmed often, then new ones; of conversations, the newest.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tomldiary.preferences import entry_count, entry_text
from tomldiary.remembered import call_on_forget
from tomldiary.render import conversation_fact, escape_for_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tomldiary.conversations import Conversations
    from tomldiary.preferences import Preferences

__all__ = ["MemoryLines", "ShownFact", "ranked_conversations", "ranked_preferences"]


class MemoryLines(NamedTuple):
    """What is remembered of a user, as lines for a model."""

    shown: Sequence[str]
    """What it is shown as far as its budget goes, the most important first."""
    also_true: Sequence[str] = ()
    """What it is not shown and still holds: not to be withdrawn if it was shown before."""


class ShownFact:
    """One entry as a line; made once for each version of the entry."""

    __slots__ = ("entry", "is_pinned", "key", "line", "rank")

    def __init__(self, key: str, entry: Mapping[str, Any], line: str) -> None:
        self.key = key
        self.entry = entry
        self.line = line
        self.is_pinned = entry.get("pinned") is True
        used = str(entry.get("_updated") or entry.get("_created") or "")
        self.rank = (self.is_pinned, entry_count(entry), used)


def ranked_preferences(book: Preferences, categories: Iterable[str]) -> list[ShownFact]:
    """Return the preferences of these categories, the most important first."""
    facts = [
        _facts.get((id(entry), category, key))
        or _remember(category, key, ShownFact(f"{category}/{key}", entry, _line(category, entry)))
        for category in categories
        for key, entry in book.entries(category)
    ]
    facts.sort(key=attrgetter("rank"), reverse=True)
    return facts


def ranked_conversations(book: Conversations) -> list[ShownFact]:
    """Return the conversations that have a summary, the one used last first."""
    facts: list[ShownFact] = []
    for session, entry in book.entries():
        summary = entry.get("summary")
        if not isinstance(summary, str) or not summary:
            continue
        used = str(entry.get("_updated") or entry.get("_created") or "")
        facts.append(
            _facts.get((id(entry), "", session))
            or _remember("", session, ShownFact(session, entry, conversation_fact(used, summary)))
        )
    facts.sort(key=attrgetter("rank"), reverse=True)
    return facts


_CACHED_FACTS = 65536
_facts: dict[tuple[int, str, str], ShownFact] = {}
call_on_forget(_facts.clear)


def _remember(category: str, key: str, fact: ShownFact) -> ShownFact:
    """Keep a fact: entries are never changed in place, and a fact keeps its entry alive."""
    if len(_facts) >= _CACHED_FACTS:
        _facts.clear()
    _facts[id(fact.entry), category, key] = fact
    return fact


def _line(category: str, entry: Mapping[str, Any]) -> str:
    text = f"{escape_for_model(category)}: {escape_for_model(entry_text(entry))}"
    contexts = entry.get("contexts")
    if isinstance(contexts, list) and contexts:
        labels = " ".join(map(str, cast("list[Any]", contexts)))
        text += f" [{escape_for_model(labels)}]"
    count = entry_count(entry)
    return f"{text} ({count}×)" if count > 1 else text
