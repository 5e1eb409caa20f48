"""Finding and showing what is remembered about one user, whatever document it stands in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tomldiary.entries.blocks import Blocks, is_pinned
from tomldiary.entries.conversations import Conversations
from tomldiary.entries.episodes import episode_entries, episode_kinds
from tomldiary.entries.facts import Facts, fact_text, stored_facts
from tomldiary.entries.preferences import Preferences, entry_text
from tomldiary.entries.validity import in_utc, interval, moment
from tomldiary.retrieval.ranking import (
    MemoryLines,
    ShownFact,
    are_ranked,
    by_share,
    ranked_conversations,
    ranked_facts,
    ranked_preferences,
)
from tomldiary.retrieval.recall import Hit, Source
from tomldiary.retrieval.render import block_fact, render_memory
from tomldiary.runtime.async_bridge import async_twin, in_thread
from tomldiary.user.facts import FactVerbs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from tomldiary.retrieval.recall import Indexes
    from tomldiary.toml.document import Document

__all__ = ["RECALLED", "RecallVerbs"]

RECALLED = ("preferences", "conversations", "facts", "blocks", "episodes")
"""What `recall` looks through."""
_MANY = 1_000_000  # all entries: what does not count is left out after ranking
_SUMMARIES_SHOWN = 3
_MATCHES_FIRST = 10  # more would keep out what matters whatever is asked
_SHOWN = ("preferences", "conversations", "facts", "blocks")
"""The documents that `render` shows."""
_FEW = 500  # tables
_SHORT = 50_000  # characters

TimeRange = tuple["datetime | None", "datetime | None"]


class RecallVerbs(FactVerbs):
    """The part of `UserDiary` that finds and shows."""

    _indexes: Indexes

    def recall(
        self,
        query: str,
        limit: int = 5,
        *,
        kinds: Collection[str] | None = None,
        time_range: TimeRange | None = None,
        valid_at: datetime | None = None,
    ) -> list[Hit]:
        """Return the entries that match a question best, with score and matching words.

        Args:
            query: A question or words; no query language.
            limit: Most hits returned.
            kinds: What to look through, of "preferences", "conversations", "facts", "blocks" and
                "episodes"; None is all of it.
            time_range: Only entries last changed from the first time on and before the second (without
                a zone: UTC); None for one of them is no bound.
            valid_at: When temporal facts have to hold; None is now.
        """
        wanted = set(RECALLED if kinds is None else kinds)
        documents = self._recalled_documents()
        is_narrowed = kinds is not None or time_range is not None or "facts" in documents[2].data
        found = self._indexes.search(
            self.user_id,
            query,
            documents,
            self._sources(documents),
            _MANY if is_narrowed else limit,
        )
        counts = _Counting(Facts(documents[2], self.diary.fact_schemas), self._moment(valid_at))
        hits: list[Hit] = []
        for source, score, words in found:
            if len(hits) >= max(0, limit):
                break
            if (
                source.kind in wanted
                and _is_within(source.entry, time_range)
                and (source.kind != "facts" or counts.fact(source.key, source.entry))
            ):
                hits.append(_hit(source, score, words))
        return hits

    arecall = async_twin(recall)

    def render(
        self,
        query: str | None = None,
        max_tokens: int = 1500,
        token_counter: Callable[[str], int] | None = None,
        *,
        valid_at: datetime | None = None,
    ) -> str:
        """Return what is remembered as text for a model: framed, escaped, within a budget.

        Pinned blocks come first, then preferences and facts with `pinned = true`. The rest is shared out:
        each category, each type of facts, the other blocks and the last three conversations come by
        turns, as often as the weight of the category or type says. Within one of them, the entry
        confirmed most often and the newest one come by turns.

        Args:
            query: The ten facts and preferences that match it best come before others that are not pinned.
            max_tokens: Budget for the whole text. Facts are left out whole, and the text says how many; a
                block that does not fit is cut after a line, and the text says so.
            token_counter: Counts tokens; None estimates them by script.
            valid_at: When temporal facts have to hold; None is now.
        """
        lines = self.memory_lines(query, valid_at=valid_at).shown
        return render_memory(lines, max_tokens=max_tokens, token_counter=token_counter)

    arender = async_twin(render)

    def memory_lines(
        self,
        query: str | None = None,
        *,
        but_session: str = "",
        valid_at: datetime | None = None,
    ) -> MemoryLines:
        """Return what `render` shows as escaped lines, the most important first.

        Args:
            query: As for `render`.
            but_session: Leave out the summary of this session, which its model has before it.
            valid_at: As for `render`.
        """
        documents = [self._recalled_document(kind) for kind in _SHOWN]
        return self._lines(documents, query, but_session, valid_at)

    async def amemory_lines(
        self, query: str | None = None, *, but_session: str = ""
    ) -> MemoryLines:
        """Return what `render` shows as escaped lines, the most important first.

        The coroutine form of `memory_lines`.
        """
        known = None if query else self._engine.cached(self.user_id, *_SHOWN)
        if known is not None and self._are_ready(known):
            # Another thread would take as long to wake.
            return self._lines(known, None, but_session)
        return await in_thread(self.memory_lines, query, but_session=but_session)

    def _are_ready(self, documents: Sequence[Document]) -> bool:
        """Tell whether their lines are known but for what takes no time worth mentioning."""
        preferences, conversations, facts, blocks = documents
        book = Preferences(preferences, self.diary.turn_rules.preferences)
        return (
            are_ranked(book, self.diary.allowed)
            and len(conversations.blocks) <= _FEW
            and "facts" not in facts.data  # which hold at a time, and may have been edited
            and len(blocks.text) <= _SHORT
        )

    def _lines(
        self,
        documents: Sequence[Document],
        query: str | None,
        but_session: str,
        valid_at: datetime | None = None,
    ) -> MemoryLines:
        preferences, conversations, facts, blocks = documents
        pinned: list[str] = []
        others: list[ShownFact] = []
        for name, entry in Blocks(blocks).entries():
            line = block_fact(name, entry_text(entry))
            if is_pinned(entry):
                pinned.append(line)
            else:
                others.append(ShownFact(f"blocks/{name}", entry, line, (False, 0, "")))
        book = Preferences(preferences, self.diary.turn_rules.preferences)
        schemas, weights = self.diary.fact_schemas, self.diary.weights
        held = ranked_facts(facts, schemas, self._moment(valid_at))
        talks = [each for each in ranked_conversations(conversations) if each.key != but_session]
        ranked = by_share(
            [
                *((schemas[name].weight if name in schemas else 1.0, held[name]) for name in held),
                *zip(weights.values(), ranked_preferences(book, weights), strict=True),
                (1.0, others),
                (1.0, talks[:_SUMMARIES_SHOWN]),
            ]
        )
        if query:
            kinds = ("preferences", "facts")
            hits = self.recall(query, _MATCHES_FIRST, kinds=kinds, valid_at=valid_at)
            order = {hit.key: number for number, hit in enumerate(hits)}
            ranked.sort(key=lambda fact: (not fact.is_pinned, order.get(fact.key, len(order))))
        return MemoryLines(
            [*pinned, *(fact.line for fact in ranked)],
            [talk.line for talk in talks[_SUMMARIES_SHOWN:]],
        )

    def _recalled_documents(self) -> tuple[Document, ...]:
        listed = self._engine.kinds(self.user_id) if self._engine.lists_documents else ()
        return tuple(map(self._recalled_document, (*_SHOWN, *episode_kinds(listed))))

    def _recalled_document(self, kind: str) -> Document:
        if kind == "facts":
            return self._facts_document()
        return self._engine.document(self.user_id, kind)

    def _sources(self, documents: tuple[Document, ...]) -> Iterator[Source]:
        preferences, conversations, facts, blocks, *episodes = documents
        book = Preferences(preferences, self.diary.turn_rules.preferences)
        for category in self.diary.allowed:
            for key, entry in book.entries(category):
                body = f"{entry_text(entry)} {category} {_joined(entry.get('contexts'))}"
                yield Source("preferences", f"{category}/{key}", body, entry)
        for key, entry in Conversations(conversations).entries():
            body = f"{entry.get('summary', '')} {_joined(entry.get('keywords'))}"
            yield Source("conversations", key, body, entry)
        for name, key, entry in stored_facts(facts):
            yield Source("facts", f"{name}/{key}", f"{name} {fact_text(entry)}", entry)
        for name, entry in Blocks(blocks).entries():
            yield Source("blocks", name, f"{name} {entry_text(entry)}", entry)
        for document in episodes:
            for key, entry in episode_entries(document):
                yield Source("episodes", key, _episode_text(entry), entry)


class _Counting:
    """Tells which facts count: those that can be read, and of temporal types those that hold."""

    def __init__(self, book: Facts, at: datetime) -> None:
        self._book = book
        self._at = at
        self._held: dict[str, set[str]] = {}

    def fact(self, fact_id: str, entry: Mapping[str, Any]) -> bool:
        name, _, key = fact_id.partition("/")
        schema = self._book.registered(name)
        if schema is None:  # nobody says what it obeys; its time may still be written down
            start, end = interval(entry)
            return (start is None or start <= self._at) and (end is None or self._at < end)
        if not schema.constraint.temporal:
            return self._book.wrong(schema, key, entry) is None
        if name not in self._held:
            self._held[name] = {held.key for held in self._book.held(name) if held.holds(self._at)}
        return key in self._held[name]


def _is_within(entry: Mapping[str, Any], time_range: TimeRange | None) -> bool:
    if time_range is None:
        return True
    when = moment(entry.get("_updated") or entry.get("_created"))
    start, end = time_range
    return (
        when is not None
        and (start is None or in_utc(start) <= when)
        and (end is None or when < in_utc(end))
    )


def _hit(source: Source, score: float, words: list[str]) -> Hit:
    entry = source.entry
    texts = {
        "conversations": lambda: str(entry.get("summary", "")),
        "facts": lambda: fact_text(entry),
        "episodes": lambda: _episode_text(entry),
    }
    return Hit(
        source.kind,
        source.key,
        texts.get(source.kind, lambda: entry_text(entry))(),
        score,
        words,
        created=str(entry.get("_created", "")),
        updated=str(entry.get("_updated", "")),
        source=str(entry.get("_source", "")),
    )


def _episode_text(entry: Mapping[str, Any]) -> str:
    return f"{entry.get('input', '')}\n{entry.get('output', '')}"


def _joined(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else ""  # pyright: ignore[reportUnknownArgumentType]
