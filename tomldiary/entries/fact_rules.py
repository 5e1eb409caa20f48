"""Writes facts under the constraints of their type: decides which facts are replaced, ended, kept or refused."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tomldiary.entries.facts import (
    ALWAYS,
    Facts,
    Held,
    chained,
    confidence_of,
    group_of,
    interval,
    random_key,
    short,
)
from tomldiary.entries.fields import (
    also_said_by,
    author,
    check_key,
    check_unmanaged,
    entry_data,
    keeps_part,
    replaced,
    said_by,
    signed,
    updated_at,
)
from tomldiary.entries.incremental_index import put_indexed
from tomldiary.errors import ImmutableEntry, InvalidValue, LimitReached, UnknownEntry, WeakClaim
from tomldiary.toml.values import (
    NULL_FIELD,
    checked_number,
    decode_nulls,
    in_utc,
    same_value,
    timestamp,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from tomldiary.entries.constraints import FactSchema
    from tomldiary.entries.kind import EditedTables

    Redact = Callable[[tuple[str, ...], Mapping[str, Any]], Mapping[str, Any]]

_ROOT = "facts"


class Provenance(NamedTuple):
    """The time and the source of a write, and the time in which the fact is valid."""

    now: str
    session: str = ""
    source: str = ""
    confidence: float = 1.0
    """The confidence of the source, from 0 to 1."""
    force: bool = False
    """Whether it replaces facts of a source with higher confidence."""
    start: datetime | None = None
    """The start of its validity, for a temporal type; None for now."""
    end: datetime | None = None
    """The end of its validity; None until another fact replaces it."""


class FactRules(Facts):
    """Changes the facts document of an edit.

    Args:
        tables: An edit of the document.
        schemas: The registered types by name.
        redact: Redacts the values of the table at a path, as `Edit.redact`; None if they are redacted already.
    """

    def __init__(
        self, tables: EditedTables, schemas: Mapping[str, FactSchema], redact: Redact | None = None
    ) -> None:
        super().__init__(tables, schemas)
        self._redact = redact

    @property
    def _edit(self) -> EditedTables:
        return cast("EditedTables", self._tables)

    def commit(
        self, schema: FactSchema, data: dict[str, Any], by: Provenance, *, key: str | None = None
    ) -> str:
        """Store checked data under the rules of its type, and return the key.

        Args:
            schema: The type.
            data: The result of `schema.data` or `schema.checked`.
            by: The time, the source and the validity.
            key: The key, for a type without a singleton key; for other types it must be the singleton key.

        Raises:
            ImmutableEntry, LimitReached, WeakClaim, InvalidValue: Nothing was changed.
        """
        place = f"{schema.name}._confidence"
        checked_number(by.confidence, place, "a number from 0 to 1", lambda each: 0 <= each <= 1)
        data = self._redacted(schema, data)
        single = schema.singleton(decode_nulls(data))
        if key is not None:
            _check_key(schema, key, single)
        if schema.constraint.temporal:
            return self._commit_interval(schema, data, single, key, by)
        if by.start is not None or by.end is not None:
            raise InvalidValue(
                "its type is not temporal, so it has no valid_from or valid_to. Leave them out, or register it"
                " with Constraint(temporal=True).",
                where=schema.name,
            )
        chosen = single or key
        if chosen is None:
            chosen = self._same(schema.name, data) or self._new_key(schema.name)
        old = self.entry(schema.name, chosen)
        if old is None:
            self._check_limit(schema, self.count(schema.name))
            fresh = {**data, **_new_meta(by)}
            self._put(schema.name, chosen, _with_confidence(fresh, by.confidence))
            return chosen
        self._replace(schema, chosen, old, data, by)
        return chosen

    def update(self, fact_id: str, changes: Mapping[str, Any], by: Provenance) -> str:
        """Change fields of a fact, and return its key, which for a temporal type is that of the new interval.

        Raises:
            UnknownEntry, ImmutableEntry, InvalidValue: Nothing was changed.
        """
        now = datetime.fromisoformat(by.now)
        schema, held = self._existing(fact_id, now)
        check_unmanaged(changes, f"{schema.name}.")
        schema.check_fields(list(changes))
        where = f"{schema.name}.{held.key}"
        stored = decode_nulls(entry_data(held.entry))
        data = self._redacted(schema, schema.checked({**stored, **changes}, is_stored=True))
        if schema.singleton(decode_nulls(data)) != schema.singleton(decode_nulls(held.entry)):
            raise InvalidValue(
                "the singleton key tells facts apart and cannot be changed. Delete this fact and commit"
                " another.",
                where=where,
            )
        if not schema.constraint.temporal:
            if by.end is not None:
                raise InvalidValue(
                    "its type is not temporal, so it has no end. Leave valid_to out, or delete the fact.",
                    where=where,
                )
            if not schema.constraint.keys:
                self._check_only(schema.name, held.key, self.alike(schema.name, data))
            self._replace(schema, held.key, held.entry, data, by, is_update=True)
            return held.key
        if not held.holds(now):
            raise InvalidValue(
                "this fact does not hold now. Commit what held then, with its valid_from and valid_to.",
                where=where,
            )
        if same_value(data, schema.checked(stored, is_stored=True)):
            self._bound(schema, held.key, by.end, by)
            return held.key
        if by.end is not None:
            raise InvalidValue("change the fields or the end, not both at once.", where=where)
        group = group_of(schema, held.key) if schema.constraint.keys else None
        if group is None and held.start == now:  # it is corrected, as one with a singleton key is
            alike = self.alike(schema.name, data)
            holding = [each for each in alike if Held(*each, *interval(each[1])).holds(now)]
            self._check_only(schema.name, held.key, holding)
            self._replace(schema, held.key, held.entry, data, by, is_update=True)
            return held.key
        if group is None:
            self._bound(schema, held.key, now, by)
        is_part = keeps_part(stored, decode_nulls(data))
        by = by._replace(
            source=str(held.entry.get("_source", "")) if is_part else "",
            confidence=confidence_of(held.entry),
        )
        said = also_said_by(held.entry, by.session) if is_part else []
        return self._commit_interval(schema, data, group, None, by, said=said)

    def delete(self, fact_id: str) -> Mapping[str, Any]:
        """Remove a fact, valid or not, and return its fields.

        Raises:
            UnknownEntry, ImmutableEntry: Nothing was changed.
        """
        name, _, key = fact_id.partition("/")
        schema = self.schema(name)
        found = self.find(fact_id)
        place = found[1].key if found is not None else key
        entry = self.entry(name, place)
        if entry is None:
            raise unknown_fact(fact_id)
        if schema.constraint.immutable and found is not None:
            raise ImmutableEntry(f"{_ROOT}/{fact_id}")
        self._edit.delete((_ROOT, name, place))
        return entry

    def _existing(self, fact_id: str, at: datetime) -> tuple[FactSchema, Held]:
        found = self.find(fact_id, at)
        if found is None:
            name, _, key = fact_id.partition("/")
            entry = self.entry(name, key)
            if entry is not None:
                self._check_stored(self.schema(name), key, entry)
            raise unknown_fact(fact_id)
        return found

    def _check_stored(self, schema: FactSchema, key: str, entry: Mapping[str, Any]) -> None:
        """Check that a stored fact can be read, so that an invalid hand edit is not overwritten.

        Raises:
            InvalidValue: The stored fact breaks its model or its constraint.
        """
        wrong = self.wrong(schema, key, entry)
        if wrong is not None:
            said = str(wrong).removeprefix(f"{wrong.where}: ")
            raise InvalidValue(
                f"the stored fact cannot be read: {said} Correct it in the file, or remove it with"
                f" facts.delete({f'{schema.name}/{key}'!r}).",
                where=wrong.where,
            )

    def _replace(
        self,
        schema: FactSchema,
        key: str,
        old: Mapping[str, Any],
        data: dict[str, Any],
        by: Provenance,
        *,
        is_update: bool = False,
    ) -> None:
        self._check_stored(schema, key, old)
        is_same = self.says(schema, old, schema.compared(data))
        known = confidence_of(old)
        is_known = not by.session or (author(old) == by.session and not said_by(old))
        if is_same and (is_update or is_known):
            if by.confidence > known and not is_update:
                self._put(schema.name, key, _with_confidence(old, by.confidence))
            return
        if not is_same and schema.constraint.immutable:
            raise ImmutableEntry(f"{_ROOT}/{schema.name}/{key}")
        if is_same:
            data = entry_data(old)  # keep the first spelling
        elif not is_update:
            self._check_claim(schema, key, old, by)
        is_part = is_update and keeps_part(decode_nulls(entry_data(old)), decode_nulls(data))
        kept = {
            name: value
            for name, value in (old if is_same else replaced(old)).items()
            if name.startswith("_") and name not in {NULL_FIELD, "_source"}
        }
        source = str(old.get("_source", "")) if is_same or is_part else by.source
        kept["_updated"] = updated_at(kept, by.now)
        kept = signed(kept, old, by.session, is_part=is_part)
        if source or by.source:
            kept["_source"] = source or by.source
        sure = max(known, by.confidence) if is_same else known if is_update else by.confidence
        self._put(schema.name, key, _with_confidence({**data, **kept}, sure))

    @staticmethod
    def _check_claim(schema: FactSchema, key: str, old: Mapping[str, Any], by: Provenance) -> None:
        """Raise WeakClaim if a source of lower confidence would replace a fact."""
        if by.confidence < confidence_of(old) and not by.force:
            raise WeakClaim(f"{_ROOT}/{schema.name}/{key}", confidence_of(old), by.confidence)

    def _commit_interval(
        self,
        schema: FactSchema,
        data: dict[str, Any],
        single: str | None,
        key: str | None,
        by: Provenance,
        *,
        said: list[str] | None = None,
    ) -> str:
        now = datetime.fromisoformat(by.now)
        begin = in_utc(by.start, "valid_from") if by.start is not None else now
        stop = in_utc(by.end, "valid_to") if by.end is not None else None
        _check_order(begin, stop, schema.name)
        found = [] if single else self.alike(schema.name, data)
        alike = [Held(other, entry, *interval(entry)) for other, entry in found]

        def holding(at: datetime) -> Held | None:
            if single is not None:
                return self.holding(schema.name, single, at)
            return next((held for held in alike if held.holds(at)), None)

        later = _begun_in(alike, begin, stop)
        current = holding(begin)
        if current is not None:
            is_same = self.says(schema, current.entry, schema.compared(data))
            # Without a singleton key, an equal fact is not stored twice, also if its start is given.
            if is_same and (by.start is None or single is None):
                self._reopen(schema, [current, *later], stop, by)
                self._bound(schema, current.key, stop, by)
                old = self.entry(schema.name, current.key) or {}
                self._replace(schema, current.key, old, data, by)
                return current.key
            if not is_same and said is None:
                self._check_claim(schema, current.key, current.entry, by)
        # An equal fact that begins later, but before this one ends, gets the earlier start.
        key = later[0].key if later else key
        self._reopen(schema, later, stop, by)
        chosen = f"{single}@{short(begin)}" if single else key or self._new_key(schema.name)
        old = self.entry(schema.name, chosen)
        if single and old is not None and interval(old)[0] != begin:
            raise InvalidValue(
                "`_valid_from` differs from the start in the key. Correct one of them in the file.",
                where=f"{schema.name}.{chosen}",
            )
        over = stop or (None if old is None else interval(old)[1])
        if said is None:  # an update is of a fact that was counted before
            # Up to the end, `_bound` lets the equal ones follow each other: together they count as one.
            equal = {each.key for each in later} if stop is not None else set[str]()
            self._check_holding(schema, Held(chosen, data, begin, over), max(begin, now), equal)
        if old is not None:  # a fact with the same start is corrected
            self._replace(schema, chosen, old, data, by, is_update=said is not None)
            self._bound(schema, chosen, stop, by, begin)
            return chosen
        meta = {"_valid_from": timestamp(begin), **_new_meta(by)}
        if stop is not None:
            meta["_valid_to"] = timestamp(stop)
        if said:
            meta["_said_by"] = said
        self._put(schema.name, chosen, _with_confidence({**data, **meta}, by.confidence))
        return chosen

    def _reopen(
        self, schema: FactSchema, facts: list[Held], stop: datetime | None, by: Provenance
    ) -> None:
        """Remove the end of the last equal fact if it has ended, because it was said to hold without an end."""
        if stop is not None or not facts or schema.constraint.keys:
            return
        key, now = facts[-1].key, datetime.fromisoformat(by.now)
        entry = dict(self.entry(schema.name, key) or {})
        start, end = interval(entry)
        if end is not None and end <= now:
            del entry["_valid_to"]
            self._check_holding(schema, Held(key, entry, start, None), now)
            self._put(schema.name, key, {**entry, "_updated": updated_at(entry, by.now)})

    def _check_holding(
        self, schema: FactSchema, fresh: Held, at: datetime, covered: Container[str] = ()
    ) -> None:
        """Raise LimitReached if more facts than the limit hold at or after a time because of a new or changed fact.

        The facts with the keys `covered` hold within its time, and are counted with it.
        """
        limit = schema.constraint.limit
        # Reading facts is slow, so they are only read if there are enough entries to reach the limit.
        if limit is None or self.count(schema.name) < limit:
            return
        before = self.held(schema.name)
        others = [each for each in before if each.key != fresh.key and each.key not in covered]
        after = chained(schema, [*others, fresh])
        for when in (at, *(each.start for each in after if each.start and each.start > at)):
            count = sum(each.holds(when) for each in after)
            if count > sum(each.holds(when) for each in before):
                self._check_limit(schema, count - 1)

    def _bound(
        self,
        schema: FactSchema,
        key: str,
        end: datetime | None,
        by: Provenance,
        begin: datetime | None = None,
    ) -> None:
        """Set the end of an interval, and its start, without a change of its source; None keeps a time.

        Later equal facts that begin before the end follow each other up to it, so that no two hold at once.
        """
        entry = self.entry(schema.name, key) or {}
        start, known = interval(entry)
        stop = None if end is None else in_utc(end, "valid_to")
        later: list[Held] = []
        if stop is not None and not schema.constraint.keys:
            found = self.alike(schema.name, entry_data(entry))
            alike = [Held(*each, *interval(each[1])) for each in found if each[0] != key]
            later = _begun_in(alike, begin or start or ALWAYS, stop)
        if stop is not None and known is not None and stop > known:
            fresh, at = Held(key, entry, begin or start, stop), datetime.fromisoformat(by.now)
            self._check_holding(schema, fresh, max(known, at), {each.key for each in later})
        ends = [*(each.start for each in later), stop]
        self._set_times(schema, key, begin, ends[0], by)
        for each, following in zip(later, ends[1:], strict=True):
            self._set_times(schema, each.key, None, following, by)

    def _set_times(
        self,
        schema: FactSchema,
        key: str,
        begin: datetime | None,
        stop: datetime | None,
        by: Provenance,
    ) -> None:
        name = schema.name
        entry = self.entry(name, key) or {}
        start, known = interval(entry)
        bounds = (("_valid_from", begin, start), ("_valid_to", stop, known))
        changed = {field: timestamp(to) for field, to, was in bounds if to not in {None, was}}
        if not changed:
            return
        _check_order(begin or start or ALWAYS, stop, f"{name}.{key}")
        self._put(name, key, {**entry, **changed, "_updated": updated_at(entry, by.now)})

    def _redacted(self, schema: FactSchema, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data redacted, so that it is compared with stored facts as it will be stored."""
        return data if self._redact is None else dict(self._redact((_ROOT, schema.name, ""), data))

    def _put(self, name: str, key: str, entry: Mapping[str, Any]) -> None:
        put_indexed(self._edit, (_ROOT, name, key), entry)

    def _same(self, name: str, data: Mapping[str, Any]) -> str | None:
        return next((key for key, _ in self.alike(name, data)), None)

    def _new_key(self, name: str) -> str:
        while True:
            key = random_key()
            if self.entry(name, key) is None:
                return key

    @staticmethod
    def _check_only(name: str, key: str, alike: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Raise InvalidValue if one of the facts with equal data has another key."""
        same = next((each for each, _ in alike if each != key), None)
        if same is not None:
            raise InvalidValue(
                f"{name}/{same} says the same already. Delete one of the two.",
                where=f"{name}.{key}",
            )

    @staticmethod
    def _check_limit(schema: FactSchema, count: int) -> None:
        limit = schema.constraint.limit
        if limit is not None and count >= limit:
            raise LimitReached(f"{_ROOT}/{schema.name}", limit)


def _begun_in(facts: Iterable[Held], start: datetime, end: datetime | None) -> list[Held]:
    """Return the facts that begin after the start of an interval and before its end, the first one first."""
    begun = [(each.start, each) for each in facts if each.start is not None and start < each.start]
    within = [(at, each) for at, each in begun if end is None or at < end]
    return [each for _, each in sorted(within, key=lambda pair: pair[0])]


def _check_order(start: datetime, end: datetime | None, where: str) -> None:
    if end is not None and end <= start:
        raise InvalidValue("valid_to is not after valid_from. Give a later valid_to.", where=where)


def _new_meta(by: Provenance) -> dict[str, Any]:
    said = {"_created_by": by.session, "_updated_by": by.session, "_source": by.source}
    return {
        "_created": by.now,
        "_updated": by.now,
        **{name: value for name, value in said.items() if value},
    }


def _with_confidence(entry: Mapping[str, Any], confidence: float) -> dict[str, Any]:
    """Return an entry with a confidence, which is not stored if it is 1."""
    kept = {name: value for name, value in entry.items() if name != "_confidence"}
    return kept if confidence >= 1 else {**kept, "_confidence": confidence}


def unknown_fact(fact_id: str) -> UnknownEntry:
    """Return the error for an id, `type/key`, without a fact."""
    name = fact_id.partition("/")[0]
    return UnknownEntry(f"{_ROOT}/{fact_id}", f"facts.query({name!r}) returns the facts that hold.")


def _check_key(schema: FactSchema, key: str, single: str | None) -> None:
    if single is not None and single not in {key, group_of(schema, key)}:
        raise InvalidValue(
            f"its fields say that its key is {single!r}. Put it there, or change the fields.",
            where=f"{schema.name}.{key}",
        )
    check_key(key, "a key", schema.name)
