"""Recall and rendering of one user's memory: searched entries, hits, and the text for a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from tomldiary.entries.fields import last_used
from tomldiary.entries.kinds import ITEMS, KINDS, PREFERENCES, shown_kinds
from tomldiary.errors import InvalidValue, printed, wrong_value
from tomldiary.retrieval.lexical_index import UserIndex
from tomldiary.retrieval.ranking import MemoryLines, ShownFact, by_share, ranked
from tomldiary.retrieval.render import exceeds, render_memory
from tomldiary.runtime.lru import PerUser
from tomldiary.runtime.views import ListView, Viewed
from tomldiary.text.words import matched_words, telling_words
from tomldiary.toml.values import When, checked_count, checked_limit, checked_text, moment, start_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from tomldiary.entries.kind import EntryKind, Rules
    from tomldiary.text.words import Asked
    from tomldiary.toml.document import Document
    from tomldiary.user.context import UserContext

    Place = tuple[str, EntryKind]

_MATCHES_FIRST = 10  # more would displace the generally important entries
_MATCHES = 60

TimeRange = tuple[When | None, When | None]


class IndexedEntry:
    """An indexed entry, with what a search and a hit need; it stays the same object while `entry` does."""

    __slots__ = ("day", "entry", "key", "kind", "order", "searched_names", "searched_text", "text")

    def __init__(self, kind: EntryKind, key: str, entry: Mapping[str, Any]) -> None:
        self.kind = kind
        self.key = key
        self.entry = entry
        when = moment(last_used(entry))
        self.day = None if when is None else when.date()
        """The day of its last change, in UTC; None if it is unknown."""
        self.order = 0.0 if when is None else -when.timestamp(), kind.name, key
        """The sort key of entries with equal scores: the newest first, as in stores."""
        self.text = kind.text(entry)
        self.searched_text = kind.body(entry)
        self.searched_names = kind.names(key, entry)

    @property
    def turn(self) -> tuple[str, str] | None:
        """The session of a turn and its position in the session; None for other entries."""
        return self.kind.turn(self.key, self.entry)


@dataclass(frozen=True, slots=True, repr=False)
class Hit(Viewed):
    """One entry found."""

    kind: str
    """`preferences`, `conversations`, `facts`, `blocks`, `episodes` or `items`."""
    key: str
    """`category/id`, `type/key`, `namespace/key` of an item, or else the session, the name or the id.

    It identifies the entry within its kind, and is the key of `alice.items()`, which may begin with `items/`; `why`, `history`, `confirm` and `forget` take `full_key`.
    """
    text: str
    score: float
    """The relevance from 0 to 1; an entry of average length with every word of the query has two thirds."""
    reasons: list[str] = field(default_factory=list[str])
    """The words of the query that occur in the entry in any form or nearly so, without function words."""
    created: str = ""
    updated: str = ""
    source: str = ""
    """The turn that the entry was extracted from, `session#turn`, or "" if it is unknown."""

    @property
    def full_key(self) -> str:
        """The key for `history`, `why` and the tools; it includes the kind except for preferences."""
        if self.kind == ITEMS.name:
            return ITEMS.full_key(self.key)
        return _full_key(self.kind, self.key)


class Searched(NamedTuple):
    """A document, or all parts of a kind as one, to search or to show."""

    name: str
    kind: EntryKind
    """The kind of its entries."""
    document: Document


class Hits(ListView[Hit]):
    """The hits of a search, best first."""


class _Entries:
    """The entries of one version of a document."""

    def __init__(self, searched: Searched, rules: Rules, before: _Entries | None) -> None:
        self.namespace, kind, self.document = searched
        self.kind = kind.within(self.namespace) if before is None else before.kind
        self.is_timed = self.kind.is_timed(self.document)
        self.entries: dict[str, IndexedEntry] = {}
        known = before.entries if before is not None else {}
        for key, entry in self.kind.entries(self.document, rules):
            source = known.get(key)
            if source is None or source.entry is not entry:
                source = IndexedEntry(self.kind, key, entry)
            self.entries[key] = source
        self.searched = {"": self}
        """This object is the only part."""

    def get(self, key: str) -> IndexedEntry | None:
        """Return the entry with a key, or None."""
        return self.entries.get(key)


class RecallIndex(UserIndex[_Entries, IndexedEntry]):
    """The index of one user. Thread-safe: a race only repeats work."""

    def __init__(self) -> None:
        super().__init__()
        self._entries: dict[str, _Entries] = {}
        self.listed: Sequence[str] = ()
        """The names of the user's documents, as they were listed before the fencing token was last read."""
        self._places: tuple[Sequence[str], dict[tuple[EntryKind, ...], list[Place]]] = (), {}
        """The names of the user's documents, and the places of some kinds among them."""

    def places(self, kinds: Sequence[EntryKind], listed: Sequence[str]) -> list[Place]:
        """Return the places of some kinds; they are only found anew if documents were added or removed."""
        before, known = self._places
        if before != listed:
            known = {}
            self._places = listed, known
        found = known.get(tuple(kinds))
        if found is None:
            found = known[tuple(kinds)] = _places(kinds, listed)
        return found

    def entries(self, documents: Iterable[Searched], rules: Rules) -> list[_Entries]:
        """Return the entries of documents; those of an unchanged document are the same object."""
        current: list[_Entries] = []
        for searched in documents:
            found = self._entries.get(searched.name)
            if found is None or found.document is not searched.document:
                found = self._entries[searched.name] = _Entries(searched, rules, found)
            current.append(found)
        return current


def recall_indexes() -> PerUser[RecallIndex]:
    """Return an empty collection of users' indexes, which are made on first use."""
    return PerUser(lambda _: RecallIndex())


class UserRecall:
    """Ranks and renders the memory of one user."""

    def __init__(self, context: UserContext) -> None:
        self._context = context
        self._diary = context.diary

    def recall(
        self,
        query: str,
        limit: int | None = 5,
        *,
        kinds: Collection[str] | None = None,
        time_range: TimeRange | None = None,
        valid_at: When | None = None,
    ) -> Hits:
        """Return the entries that best match a question, with their scores and matching words.

        Args:
            query: A question or words; there is no query syntax. Of a very long one, the first and last 10,000
                characters are read.
            limit: The maximum number of hits; None is all.
            kinds: The kinds to search: "preferences", "conversations", "facts", "blocks", "episodes"
                and "items" (put by stores for this user); None is all of them.
            time_range: Only entries last changed at or after the first time and before the second:
                datetimes, dates, months or years (their start) or ISO 8601 texts (UTC without a zone). None is no bound.
            valid_at: The time at which temporal facts must be valid, such as a date (its start); None is now.

        Raises:
            InvalidValue: The query is not text, the limit is not a number, a kind does not exist, or a
                time is invalid.
        """
        limit = checked_limit(limit)
        asked, found = self._found(query, kinds, time_range, valid_at)
        words = telling_words(asked)
        return Hits(_hit(source, score, words) for score, source in islice(found, limit))

    def ranked_keys(self, query: str, kind: str, limit: int) -> list[str]:
        """Return the keys of the entries of a kind that match a text best, as `recall` ranks them."""
        return [source.key for _, source in islice(self._found(query, [kind])[1], limit)]

    def searched(self) -> list[_Entries]:
        """Return the current entries of all kinds that `recall` searches."""
        return self._current(kinds_named(None))[1]

    def _found(
        self,
        query: str,
        kinds: Collection[str] | None,
        time_range: TimeRange | None = None,
        valid_at: When | None = None,
    ) -> tuple[list[Asked], Iterator[tuple[float, IndexedEntry]]]:
        """Return the words of a question as searched, and an iterator over the score and the entry of each match.

        The best match is first. The iterator filters lazily.
        """
        checked_text(query, "query")
        at, context, rules = self._context.moment(valid_at), self._context, self._diary
        searched = kinds_named(kinds)
        start, end = _bounds(time_range)
        with context.reading():
            # An entry of the past is not embedded again.
            embedder = rules.embedder if context.past is None else None
            epoch = rules.engine.epoch_read(context.user_id) if embedder is not None else 0
            index, current = self._current(searched)
            vector = embedder and embedder.prepared(context.user_id, current, query, epoch)
            asked, found = index.search(current, query, vector) or ([], iter(()))
            holding = {
                each: each.kind.within(each.namespace, context.until).current(
                    each.document, rules, at
                )
                for each in current
                if each.is_timed
            }

        def counts(entries: _Entries, source: IndexedEntry) -> bool:
            holds = holding.get(entries)
            return (
                not context.is_over(f"{source.kind.name}/{source.key}", source.entry)
                and _is_within(source.entry, start, end)
                and (holds is None or holds(source.key, source.entry))
                and bool(source.text.strip())
            )

        return asked, (
            (score, source) for score, entries, source in found if counts(entries, source)
        )

    def _current(self, kinds: Sequence[EntryKind]) -> tuple[RecallIndex, list[_Entries]]:
        """Return the index, and the current entries of some kinds.

        An erasure changes the user's folder. So the fencing token is read only if the list of its files is a new object.
        It is read after the list, which may be older than the erasure, and before the documents, which may not.
        """
        context, listed = self._context, self._listed()
        last = context.indexes.last(context.user_id)
        index = None if last is None else last[1]
        if index is None or index.listed is not listed:
            index = context.indexes.of(context.user_id, context.epoch)
            index.listed = listed
        documents = self._documents(index.places(kinds, listed))
        return index, index.entries(documents, self._diary)

    def render(
        self,
        query: str | None = None,
        max_tokens: int = 1500,
        token_counter: Callable[[str], int] | None = None,
        *,
        valid_at: When | None = None,
    ) -> str:
        """Return the memory as text for a model: framed, escaped and within a budget.

        Pinned blocks come first, then preferences and facts with `pinned = true`. The rest alternates
        between categories, types of facts, other blocks, the last three conversations and namespaces of
        items, by weight. Within each, the most confirmed and the newest entries alternate.

        Args:
            query: The ten best matching facts and preferences follow the pinned ones. After these,
                further matches alternate with the rest.
            max_tokens: The budget for the whole text. Facts are never cut, and the text shows the number
                of omitted facts. A block that does not fit is cut after a line, and the text states this.
            token_counter: The function that counts tokens; None estimates them by script.
            valid_at: The time at which temporal facts must be valid, such as a date (its start); None is now.

        Raises:
            InvalidValue: The query is not text, or the budget is not a number.
        """
        checked_count(max_tokens, "max_tokens")
        lines = self.memory_lines(query, valid_at=valid_at).shown
        return render_memory(lines, max_tokens=max_tokens, token_counter=token_counter)

    def memory_lines(
        self,
        query: str | None = None,
        *,
        but_session: str = "",
        valid_at: When | None = None,
        query_above: int | None = None,
        token_counter: Callable[[str], int] | None = None,
    ) -> MemoryLines:
        """Return the contents of `render` as escaped lines, the most important first.

        Args:
            query: As for `render`.
            but_session: The session whose summary is omitted, because the model already sees it.
            valid_at: As for `render`.
            query_above: The query is used only if all lines exceed this number of tokens, so that the order
                of a memory that is shown whole never changes. None always uses the query.
            token_counter: As for `render`.
        """
        query = None if query is None else checked_text(query, "query")
        with self._diary.engine.reading():
            documents = self._documents(_places(shown_kinds(), self._listed()))
            first, facts, rest = self._ranked(documents, but_session, valid_at)
            shown = [*first, *(fact.line for fact in facts)]
            if query and (query_above is None or exceeds(shown, query_above, token_counter)):
                kinds = [kind.name for kind in shown_kinds() if kind.is_matched]
                matches = islice(self._found(query, kinds, valid_at=valid_at)[1], _MATCHES)
                order = [(source.kind.name, source.key) for _, source in matches]
                shown = [*first, *(fact.line for fact in _matches_first(facts, order))]
        return MemoryLines(shown, rest)

    def keys_of_line(self, line: str) -> list[str]:
        """Return the full keys of the entries that `render` shows by a line, also those that do not fit its budget.

        Args:
            line: The line without its bullet, with line breaks as spaces. It may omit the note, such as contexts, or have
                an earlier one.
        """
        at, until = self._context.moment(None), self._context.until
        with self._diary.engine.reading():
            return [
                _full_key(*fact.key)
                for name, kind, document in self._documents(_places(shown_kinds(), self._listed()))
                for _, facts in ranked(kind.within(name, until), document, self._diary, at)
                for fact in facts
                if fact.is_named_by(line)
                and not self._context.is_over("/".join(fact.key), fact.entry)
            ]

    def _ranked(
        self, documents: Sequence[Searched], but_session: str, valid_at: When | None
    ) -> tuple[list[str], list[ShownFact], list[str]]:
        """Return the first lines, the entries that follow by importance, and the lines that are not shown."""
        at = self._context.moment(valid_at)
        first: list[str] = []
        # A namespace in several documents has one share.
        lanes: dict[tuple[str, int], tuple[float, list[list[ShownFact]]]] = {}
        rest: list[str] = []
        rules = self._diary.entry_rules
        until = self._context.until
        for name, each_kind, document in documents:
            kind = each_kind.within(name, until)
            for number, (weight, facts) in enumerate(ranked(kind, document, self._diary, at)):
                lane, place = facts, (kind.home(name), number)
                if rules.has_times:
                    lane = [
                        each
                        for each in lane
                        if not self._context.is_over("/".join(each.key), each.entry)
                    ]
                if but_session:
                    lane = [each for each in lane if kind.session(each.name) != but_session]
                if kind.leads:
                    first += [each.line for each in lane if each.is_pinned]
                    lane = [each for each in lane if not each.is_pinned]
                if kind.shown_at_most is not None:
                    rest += [each.line for each in lane[kind.shown_at_most :]]
                    lane = lane[: kind.shown_at_most]
                lanes.setdefault(place, (weight, []))[1].append(lane)
        return first, by_share((weight, _merged(parts)) for weight, parts in lanes.values()), rest

    def _listed(self) -> Sequence[str]:
        """Return the names of the user's documents, if the backend can list them."""
        is_listed = self._context.past is not None or self._diary.engine.lists_documents
        return self._context.kinds() if is_listed else []

    def _documents(self, places: Sequence[Place]) -> list[Searched]:
        return [Searched(name, kind, self._context.read(name)) for name, kind in places]


def _places(kinds: Sequence[EntryKind], listed: Sequence[str]) -> list[Place]:
    """Return the documents of some kinds among all documents of a user, each with its kind."""
    return [(name, kind) for kind in kinds for name in kind.documents(listed)]


def _merged(parts: list[list[ShownFact]]) -> list[ShownFact]:
    """Return the entries of several documents as one ranking."""
    if len(parts) == 1:
        return parts[0]
    return sorted(chain.from_iterable(parts), key=attrgetter("rank"), reverse=True)


def _matches_first(facts: list[ShownFact], matches: list[tuple[str, str]]) -> list[ShownFact]:
    """Return pinned facts, then the best matches, then further matches alternating with other facts.

    Args:
        facts: The pinned facts first, then the others by importance.
        matches: The keys of matches, best first.
    """
    first = next((at for at, fact in enumerate(facts) if not fact.is_pinned), len(facts))
    wanted = set(matches)
    by_key = {fact.key: fact for fact in facts[first:] if fact.key in wanted}
    matching = [by_key[key] for key in matches if key in by_key]
    others = [fact for fact in facts[first:] if fact.key not in by_key]
    further = matching[_MATCHES_FIRST:]
    turns = [fact for pair in zip(further, others, strict=False) for fact in pair]
    return [
        *facts[:first],
        *matching[:_MATCHES_FIRST],
        *turns,
        *further[len(others) :],
        *others[len(further) :],
    ]


def kinds_named(names: Collection[str] | None) -> list[EntryKind]:
    """Return the kinds to search.

    Raises:
        InvalidValue: A kind does not exist.
    """
    kinds = [kind for kind in KINDS.values() if kind.is_recalled]
    if names is None:
        return kinds
    given: Any = [names] if isinstance(names, str) else names
    wanted: list[Any] = [*given] if isinstance(given, Iterable) else [given]
    known = [kind.name for kind in kinds]
    for name in wanted:
        if name not in known:
            raise InvalidValue(
                f"there is no kind {printed(name)}. Use some of: {', '.join(known)}.", where="kinds"
            )
    return [kind for kind in kinds if kind.name in wanted]


def _bounds(time_range: TimeRange | None) -> tuple[datetime | None, datetime | None]:
    """Return both times of a range in UTC.

    Raises:
        InvalidValue: The range does not have two values, or one of them is not a time.
    """
    if time_range is None:
        return None, None
    given: Any = time_range
    if not isinstance(given, tuple | list) or len(time_range) != 2:  # noqa: PLR2004 - a pair
        hint = "None is no bound."
        raise wrong_value(
            time_range, 'a pair of times such as ("2026-11-01", None)', "time_range", hint
        )
    start, end = (None if each is None else start_of(each, "time_range") for each in time_range)
    return start, end


def _is_within(entry: Mapping[str, Any], start: datetime | None, end: datetime | None) -> bool:
    if start is None and end is None:
        return True
    when = moment(last_used(entry))
    return when is not None and (start is None or start <= when) and (end is None or when < end)


def _full_key(kind: str, key: str) -> str:
    return key if kind == PREFERENCES.name else f"{kind}/{key}"


def _hit(source: IndexedEntry, score: float, asked: Sequence[Asked]) -> Hit:
    entry = source.entry
    return Hit(
        source.kind.name,
        ITEMS.short_key(source.key) if source.kind.name == ITEMS.name else source.key,
        source.text,
        score,
        matched_words(asked, source.searched_text, source.searched_names),
        created=str(entry.get("_created", "")),
        updated=str(entry.get("_updated", "")),
        source=str(entry.get("_source", "")),
    )
