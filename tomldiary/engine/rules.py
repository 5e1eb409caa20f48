"""Constraints on entries of any kind, checked for each transaction and for hand edits.

A rule is set for a collection, such as `preferences/likes`, `blocks`, `blocks/persona` or `items/work`; the most
specific rule applies. The constraints of types of facts are set by `register_schema`. Of these, a commit of a fact
checks itself all options but those of `Constraint.limits_fields`; an import, a rollback and a hand edit are checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from tomldiary.entries.constraints import checked_constraint
from tomldiary.entries.fields import entry_data, last_used, same_data
from tomldiary.entries.kind import Rules
from tomldiary.entries.kinds import (
    DRAFTS,
    FACTS,
    KINDS,
    PREFERENCES,
    QUARANTINE,
    entry_key,
    entry_kind,
    entry_path,
    problems_in,
)
from tomldiary.entries.kinds.pending import held_entry, place_of
from tomldiary.errors import DiaryError, ImmutableEntry, InvalidValue, LimitReached, SchemaError
from tomldiary.hand_edits.three_way_merge import NOTHING
from tomldiary.logging import get_logger, tell
from tomldiary.text.json_paths import inner_value
from tomldiary.text.visible import one_line, visible
from tomldiary.toml.edit import Edit
from tomldiary.toml.values import checked_text, decode_nulls, moment, render_path

if TYPE_CHECKING:
    from datetime import datetime

    from tomldiary.engine.transaction import Transaction
    from tomldiary.entries.constraints import Constraint, FactSchema
    from tomldiary.toml.document import Document, Path

_logger = get_logger(__name__)

_Entries = dict[str, Mapping[str, Any]]


class EnforcedRules(Rules, Protocol):
    """The options of a diary with the rules of its collections; `Diary` has them."""

    entry_rules: EntryRules

    def is_untrusted(self, origin: str, /) -> bool:
        """Return whether changes by an actor wait for a review."""
        ...


class EntryRules:
    """The rules of a diary by collection, including those of its types of facts.

    Args:
        options: The options of the diary.
    """

    def __init__(self, options: Rules) -> None:
        self._options = options
        self._rules: dict[str, Constraint] = {}
        self.kinds = set[str]()
        """The kinds with a rule."""
        self.checked = set[str]()
        """The kinds that are checked at each commit."""
        self._timed = set[str]()
        """The kinds with a `ttl`."""
        self.has_times = False
        """Whether a rule has a `ttl`."""
        self.reports_edits = True
        """Whether `report_edit` warns; a command that prints all problems itself sets False."""

    def set(self, collection: str, rule: Constraint) -> None:
        """Set the rule of a collection.

        Raises:
            SchemaError: There is no such kind or category, the name ends with a slash, or the rule has options that only
                facts support.
        """
        kind, _, rest = checked_text(collection, "collection").partition("/")
        checked_constraint(rule)
        if kind not in KINDS:
            raise SchemaError(f"{kind!r} is no kind of entries. Use one of: {', '.join(KINDS)}.")
        if collection.endswith("/"):
            raise SchemaError(
                f"no collection is called {collection!r}. Use {collection.rstrip('/')!r}."
            )
        category = rest.partition("/")[0]
        known = self._options.allowed
        if kind == "preferences" and rest and category not in known:
            raise SchemaError(f"there is no category {category!r}. Use one of: {', '.join(known)}.")
        if kind != "facts" and (rule.temporal or rule.multi_valued or rule.normalised):
            raise SchemaError("temporal, multi_valued and normalise are options for facts only.")
        self._rules = {**self._rules, collection: rule}
        self.kinds.add(kind)
        # A commit of a fact checks the other options itself.
        if kind != FACTS.name or rule.limits_fields:
            self.checked.add(kind)
        timed = [place for place, each in self._rules.items() if each.ttl is not None]
        self._timed = {place.partition("/")[0] for place in timed}
        self.has_times = bool(timed)

    def of(self, key: str) -> tuple[str, Constraint] | None:
        """Return the collection and the rule of an entry by its key including the kind, or None."""
        place = key
        while place:
            rule = self._rules.get(place)
            if rule is not None:
                return place, rule
            place = place.rpartition("/")[0]
        return None

    def is_over(self, key: str, entry: Mapping[str, Any], at: datetime) -> bool:
        """Return whether an entry has expired by the `ttl` of its rule."""
        found = self.of(key) if self._rules else None
        if found is None or found[1].ttl is None:
            return False
        since = moment(last_used(entry))
        # A difference, because the sum could be after the year 9999.
        return since is not None and at - since >= found[1].ttl

    def ends(self, at: datetime) -> Callable[[str, Mapping[str, Any]], bool] | None:
        """Return a function that calls `is_over` with a time; None if no rule has a `ttl`."""
        return partial(self.is_over, at=at) if self.has_times else None

    def kept(self, name: str, document: Document, at: datetime) -> Document:
        """Return a document, or all parts of a kind as one, without expired entries."""
        if not self._ends(name):
            return document
        over = [
            path for key, path, entry in _entries(name, document) if self.is_over(key, entry, at)
        ]
        if not over:
            return document
        edit = Edit(document)
        for path in over:
            edit.delete(path)
        return edit.done()

    def _ends(self, name: str) -> bool:
        """Return whether a rule for a document's kind has a `ttl`."""
        return entry_kind(name).name in self._timed

    def sweep(self, tx: Transaction) -> None:
        """Remove the expired entries before a transaction makes changes."""
        now = tx.engine.now()
        for name in sorted(filter(self._ends, tx.listed())):
            entries = _entries(name, tx.document(name))
            over = [path for key, path, entry in entries if self.is_over(key, entry, now)]
            if over:
                tx.expired.update((name, path) for path in over)
                entry_kind(name).remove(tx.edit(name), over)

    def report_edit(self, kind: str, before: Document, after: Document, place: str) -> None:
        """Warn of entries that a hand edit has made invalid, because typed reads ignore them."""
        if not self.reports_edits:
            return
        known = {problem.where for problem in problems_in(kind, before, self._options)}
        found = [
            each for each in problems_in(kind, after, self._options) if each.where not in known
        ]
        if found:
            first = found[0]
            place = after.place_of(first.where, place)
            also = f" problems() lists {len(found) - 1} more." if found[1:] else ""
            told = f"{place}: {first.where}: {first.message}. {first.remedy}{also}"
            tell(_logger, one_line(told))  # a key may contain characters that a terminal hides

    def apply(self, tx: Transaction) -> None:
        """Check the changes of a transaction at its commit.

        Raises:
            ImmutableEntry, InvalidValue, LimitReached: A rule forbids a change, so nothing may be stored.
        """
        for key, error in self._broken(tx, self.checked, partial(_before, tx)):
            # A commit of a fact checks the other options itself, at its own time, which may be in the past.
            if isinstance(error, InvalidValue) or key.partition("/")[0] != FACTS.name:
                raise error

    def check(self, tx: Transaction, before: Mapping[str, Document]) -> None:
        """Check the last step of a transaction, which stored facts without a check; see `apply`.

        Args:
            tx: The transaction.
            before: The documents before the step.
        """
        for _, error in self._broken(tx, {FACTS.name}, lambda name: before.get(name, NOTHING)):
            # `apply` raises an InvalidValue, unless a later step corrects it.
            if not isinstance(error, InvalidValue):
                raise error
        self.apply(tx)

    def forbidden(
        self, tx: Transaction, states: Mapping[tuple[str, Path], Mapping[str, Any] | None]
    ) -> list[str]:
        """Return the keys of the entries that a rule forbids to restore to earlier states.

        Args:
            tx: The transaction that will restore them, with an edit of each document.
            states: The earlier states by document and path; None if there was no entry. Other tables are ignored.
        """
        kinds = {entry_kind(name).name for name, _ in states}
        before, now = self._states(tx, kinds, partial(_before, tx))
        own = [
            (key_with_kind(path, name), entry_key(path, name), state)
            for (name, path), state in states.items()
            if _is_entry(path, name)
        ]
        shown = {key: short for key, short, _ in own}
        back = {key: state for key, _, state in own if state is not None}
        after = {key: entry for key, entry in now.items() if key not in shown} | back
        wrong = {key for key, _ in self._wrong(before, after, shown, tx.engine.now())}
        wrong |= {key for key in back if self.of(key) and not self._is_read(key, back[key])}
        return [short for key, short in shown.items() if key in wrong]

    def undo_edits(
        self,
        document: str,
        edit: Edit,
        logged: Document,
        others: Sequence[tuple[Document, Document]],
        at: datetime,
        place: str,
        report: Callable[[str], object] | None = None,
    ) -> bool:
        """Undo the hand edits of a document that a rule forbids; return whether there are any. History keeps them.

        Args:
            document: The name of the document.
            edit: The document with the hand edits.
            logged: The document before the hand edits.
            others: The other parts of its kind, each now and before hand edits.
            at: The current time.
            place: The file, for a sentence about each forbidden edit; "" for none.
            report: Called with each sentence; None warns.
        """
        home = entry_kind(document).name
        was = {key: (path, entry) for key, path, entry in _entries(document, logged)}
        edited, is_undone = edit.peek(), False
        mine = {key: (path, entry) for key, path, entry in _entries(document, edited)}
        before = {key: entry for _, base in others for key, _, entry in _entries(home, base)}
        before.update({key: entry for key, (_, entry) in was.items()})
        now = {key: entry for each, _ in others for key, _, entry in _entries(home, each)}
        now.update({key: entry for key, (_, entry) in mine.items()})
        # New entries are last, so that of two conflicting entries the new one is removed.
        after = {key: now[key] for key in [*before, *now] if key in now}

        for key, error in self._wrong(before, after, [*was, *mine], at):
            found = self.of(key)
            if isinstance(error, LimitReached) and found is not None and found[1].temporal:
                continue  # the number of facts that hold changes with the time
            is_undone = True
            if place:
                path = (mine.get(key) or was[key])[0]
                where = edited.place_of(render_path(path), place)
                # A key may contain characters that a terminal obeys.
                told = f"{where}: {error} The next write undoes this edit; history keeps it."
                (report or partial(tell, _logger))(one_line(told))
            if key in was:
                _put_back(edit, logged, *was[key])
                after[key] = was[key][1]
            else:
                edit.delete(mine[key][0])
                after.pop(key, None)
        return is_undone

    def _wrong(
        self, before: _Entries, after: _Entries, keys: Iterable[str], at: datetime
    ) -> Iterator[tuple[str, DiaryError]]:
        """Yield those of some entries that a rule forbids to change, with its error.

        The caller may undo the change in `after` before it continues.
        """
        changed: dict[str, list[str]] = {}
        for key in dict.fromkeys(keys):
            old, new = before.get(key), after.get(key)
            found = None if old is new else self.of(key)
            if found is None or same_data(old, new):
                continue
            changed.setdefault(found[0], []).insert(0, key)
            error = self._entry_error(found[1], key, old, new, at)
            if error is not None:
                yield key, error
        for place, left in changed.items():
            while (error := self._collection_error(place, before, after, at)) is not None:
                if isinstance(error, LimitReached):  # the last new entry exceeds the limit
                    is_temporal = self._rules[place].temporal
                    new = [key for key in left if key in after and key not in before]
                    key = next(iter(left if is_temporal else new), "")
                else:
                    key = error.where if error.where in left else ""
                if not key:
                    break
                left.remove(key)
                yield key, error

    def _entry_error(
        self,
        rule: Constraint,
        key: str,
        old: Mapping[str, Any] | None,
        new: Mapping[str, Any] | None,
        at: datetime,
    ) -> DiaryError | None:
        # An entry that has expired or cannot be read may be replaced.
        if old is not None and not self.is_over(key, old, at) and self._is_read(key, old):
            if rule.immutable:
                return ImmutableEntry(key)
            if rule.append_only and not _is_grown(old, new):
                return InvalidValue(
                    "an append_only entry may only grow. Keep its content at the beginning and append to it.",
                    where=key,
                )
        for name in rule.required_fields if new is not None else ():
            value: Any = inner_value(decode_nulls(new or {}), name)
            if value in (None, [], {}) or (isinstance(value, str) and not visible(value).strip()):
                return InvalidValue(
                    "expected a value, found nothing; it is required.", where=f"{key}.{name}"
                )
        return None

    def _is_read(self, key: str, entry: Mapping[str, Any]) -> bool:
        return KINDS[key.partition("/")[0]].is_read(key, entry, self._options)

    def _broken(
        self, tx: Transaction, kinds: Iterable[str], before_of: Callable[[str], Document]
    ) -> Iterator[tuple[str, DiaryError]]:
        """Yield the entries of some kinds whose changes break a rule, with the errors."""
        changed = {entry_kind(each).name for each in tx.changed()}.intersection(kinds)
        before, after = self._states(tx, changed, before_of)
        yield from self._wrong(before, after, [*before, *after], tx.engine.now())

    @staticmethod
    def _states(
        tx: Transaction, kinds: Collection[str], before_of: Callable[[str], Document]
    ) -> tuple[_Entries, _Entries]:
        """Return the entries of some kinds before the changes, and now."""
        before: _Entries = {}
        after: _Entries = {}
        for name in sorted(tx.listed()) if kinds else ():
            if entry_kind(name).name in kinds:
                was, now = before_of(name), tx.document(name)
                found = {key: entry for key, _, entry in _entries(name, was)}
                before.update(found)
                if now is not was:  # most documents of a large memory were not changed
                    found = {key: entry for key, _, entry in _entries(name, now)}
                after.update(found)
        return before, after

    def _collection_error(
        self, place: str, before: _Entries, after: _Entries, at: datetime
    ) -> LimitReached | InvalidValue | None:
        """Return the error of a collection whose limit or singleton key is not obeyed, or None."""
        rule, kind = self._rules[place], KINDS[place.partition("/")[0]]
        # The key of a fact is derived from its fields, so no two facts have the same.
        keys = () if kind is FACTS else rule.keys
        if rule.limit is None and not keys:
            return None
        before, after = self._within(place, before), self._within(place, after)
        if rule.limit is not None:
            counts = [kind.counted(place, each, self._options, at) for each in (before, after)]
            if counts[1] > max(rule.limit, counts[0]):
                return LimitReached(place, rule.limit)
        seen: dict[str, str] = {}
        for key, entry in after.items() if keys else ():
            values = _identity(rule, entry)
            other = key if values is None else seen.setdefault(values, key)
            for one, same in ((key, other), (other, key)):  # the one that changed is wrong
                if one != same and _identity(rule, before.get(one)) != values:
                    return InvalidValue(
                        f"{same} has the same {', '.join(keys)}. Change that entry instead.",
                        where=one,
                    )
        return None

    def _within(self, place: str, entries: _Entries) -> _Entries:
        found = ((key, self.of(key), entry) for key, entry in entries.items())
        return {key: entry for key, rule, entry in found if rule is not None and rule[0] == place}


def _before(tx: Transaction, name: str) -> Document:
    """Return a document as it was before the transaction."""
    return tx.before(name) if name in tx.changed() else tx.document(name)


def _entries(name: str, document: Document) -> Iterator[tuple[str, Path, Mapping[str, Any]]]:
    """Yield the key including the kind, the path and the table of each entry of a document."""
    for path, entry in entry_kind(name).tables(document).items():
        yield key_with_kind(path, name), path, entry


def _is_entry(path: Path, name: str) -> bool:
    kind = entry_kind(name)
    return entry_path(name, path) == path and (kind.has_short_layout or path[0] == kind.name)


def key_with_kind(path: Path, name: str) -> str:
    """Return the key of an entry including its kind, unlike `full_key` of a hit, which omits that of preferences."""
    key = entry_key(path, name)
    return f"{PREFERENCES.name}/{key}" if entry_kind(name) is PREFERENCES else key


def _put_back(edit: Edit, logged: Document, path: Path, entry: Mapping[str, Any]) -> None:
    """Write an entry as it was before a hand edit."""
    block = logged.index.get(path)
    # A value in place of the table may prevent this, which `problems` reports.
    with suppress(InvalidValue):
        if block is not None and path not in logged.parents:
            edit.restore(path, block.text, entry, after=logged.before(path))
        else:
            edit.put(path, entry)


def _identity(rule: Constraint, entry: Mapping[str, Any] | None) -> str | None:
    """Return the singleton key of an entry; None if one of its fields is missing."""
    data = decode_nulls(entry or {})
    values = [inner_value(data, name) for name in rule.keys]
    return None if any(value is None for value in values) else repr(values)


def _is_grown(old: Mapping[str, Any], new: Mapping[str, Any] | None) -> bool:
    """Return whether the new texts and lists of an entry begin with the old ones, and other values are equal."""
    if new is None:
        return False
    after = entry_data(new)
    for name, value in entry_data(old).items():
        now: Any = after.get(name)
        if isinstance(value, str) and isinstance(now, str):
            if not now.startswith(value):
                return False
        elif isinstance(value, list) and isinstance(now, list):
            known = cast("list[Any]", value)
            if cast("list[Any]", now)[: len(known)] != known:
                return False
        elif now != value:
            return False
    return True


def redacted_entry(
    path: Path,
    data: Mapping[str, Any],
    redact: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    schemas: Mapping[str, FactSchema],
) -> Mapping[str, Any]:
    """Return the redacted fields of an entry; fields from which its key is derived are not redacted.

    For a pending change, these are the fields of the key of its entry.

    Args:
        path: The path of the entry.
        data: The fields of the entry.
        redact: Redacts all fields.
        schemas: The types of facts.

    Raises:
        InvalidValue: A redacted field of a fact does not fit its type.
    """
    kept: Mapping[str, Any] = {}
    if path[:1] == (FACTS.name,) and path[2:] and path[1] in schemas:
        schema = schemas[path[1]]
        kept = {name: data[name] for name in schema.key_fields(data) if name in data}
        redacted = {**redact(data), **kept}
        if entry_data(redacted) != entry_data(data):
            try:
                schema.parse(redacted)
            except InvalidValue as error:
                raise InvalidValue(
                    "a redacted value does not fit the type. Nothing was changed; leave the field out, or do"
                    " not redact its kind.",
                    where=error.where,
                ) from None
        return redacted
    if path[:1] in {(DRAFTS.name,), (QUARANTINE.name,)}:
        kept = {name: data[name] for name in ("document", "path", "key") if name in data}
        held = held_entry(data)
        if held is not None:
            kept = {**kept, "entry": redacted_entry(place_of(data)[1], held, redact, schemas)}
    return {**redact(data), **kept}
