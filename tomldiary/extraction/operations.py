"""Operations of an extractor as plain data, and their application to the current memory.

Operations are recorded on a draft while a model works, and applied to fresh state when the turn is
committed. Concurrent writes are kept. If two writers assigned the same new id, one entry gets another id.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast, get_args

from tomldiary.entries.fact_rules import FactRules, Provenance
from tomldiary.entries.fields import (
    COMPACTOR,
    compacted_from,
    data_text,
    entry_text,
    last_turn,
    source_of,
    text_list,
    wrong_fields,
)
from tomldiary.entries.kinds import ITEMS, KINDS, PREFERENCES, entry_kind
from tomldiary.entries.kinds.conversations import Conversations
from tomldiary.entries.preferences import Outcome, Preferences, unknown_preference
from tomldiary.errors import (
    DiaryError,
    ImmutableEntry,
    InvalidValue,
    LimitReached,
    SchemaError,
    UnknownCategory,
    UnknownEntry,
    WeakClaim,
)
from tomldiary.history.record import Source
from tomldiary.logging import get_logger, show
from tomldiary.runtime.views import Viewed
from tomldiary.text.similarity import same_text
from tomldiary.toml.values import encode_nulls, in_utc, render_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tomldiary.engine.transaction import Transaction
    from tomldiary.entries.constraints import FactSchema
    from tomldiary.entries.kind import EditedTables, Rules

_RULES = (
    LimitReached, UnknownEntry, UnknownCategory, InvalidValue, ImmutableEntry, WeakClaim, SchemaError,
)  # fmt: skip
_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class UpsertPreference:
    """Create a preference, or change or confirm the one with `id`."""

    category: str
    id: str | None = None
    text: str | None = None
    contexts: tuple[str, ...] = ()
    count_up: bool = True
    """Whether the hit counter of an existing entry is incremented."""
    created_as: str | None = None
    """The id a draft gave to the new entry; later operations of the same draft name it by this."""
    fields: tuple[tuple[str, Any], ...] = ()
    """Further fields of a new entry, for example its source."""
    confirms: str | None = None
    """The stored text that is confirmed; if the entry has another text now, `text` becomes a new entry."""
    replaces: str | None = None
    """The stored text that `text` replaces; if the entry has another text now, `text` becomes a new entry."""


@dataclass(frozen=True, slots=True)
class ForgetPreference:
    """Remove the preference with `id`."""

    category: str
    id: str
    removes: str | None = None
    """The stored text that is removed; if the entry has another text now, it stays."""


@dataclass(frozen=True, slots=True)
class SetSummary:
    """Replace a conversation's summary, and its keywords unless they are None."""

    session_id: str
    summary: str
    keywords: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class SetFields:
    """Set and remove single fields of an entry: an extractor changed the draft's tables directly."""

    kind: str
    path: tuple[str, ...]
    values: tuple[tuple[str, Any], ...] = ()
    removed: tuple[str, ...] = ()
    delete: bool = False
    """Remove the whole entry."""
    existing: bool = False
    """Whether the draft had the entry; if it was removed meanwhile, it is not restored from single fields."""
    replaces: str | None = None
    """The text of a preference that a new one replaces; as in `UpsertPreference`."""


@dataclass(frozen=True, slots=True)
class CommitFact:
    """Store a fact of a registered type, under its rules."""

    type: str
    fields: tuple[tuple[str, Any], ...]
    confidence: float = 1.0
    created_as: str | None = None
    """The id that a draft gave to the fact; later operations of the same draft name it by this."""
    valid_from: str = ""
    """The start of a temporal fact as ISO 8601 text; "" is the time of the turn."""


@dataclass(frozen=True, slots=True)
class RemoveFact:
    """Remove the fact with `id`, `type/key`."""

    id: str
    removes: str | None = None
    """What the stored fact says that is removed: if it says something else by now, it stays."""


Operation = UpsertPreference | ForgetPreference | SetSummary | SetFields | CommitFact | RemoveFact

_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Operation)}


def to_table(operation: Operation) -> dict[str, Any]:
    """Return the operation as a TOML table, without fields that have their default value."""
    table: dict[str, Any] = {"op": type(operation).__name__}
    for each in fields(operation):
        value = getattr(operation, each.name)
        if value != each.default or type(value) is not type(each.default):
            table[each.name] = value
    return table


def from_dict(data: dict[str, Any]) -> Operation:
    """Undo `to_table`, also after a round trip through JSON.

    Raises:
        InvalidValue: Not an operation.
    """
    kind = _TYPES.get(str(data.get("op")))
    if kind is None:
        raise InvalidValue(f"unknown operation {data.get('op')!r}.")
    arguments = {key: _tuples(value) for key, value in data.items() if key != "op"}
    try:
        return cast("Operation", kind(**arguments))
    except TypeError as error:
        raise InvalidValue(f"operation {kind.__name__}: {error}.") from None


def _tuples(value: Any, levels: int = 2) -> Any:
    """Convert a list and the pairs in it to tuples; values inside pairs are unchanged."""
    if not levels or not isinstance(value, list):
        return value
    return tuple(_tuples(item, levels - 1) for item in cast("list[Any]", value))


# Applying


@dataclass(frozen=True, slots=True)
class TurnOperation:
    """The data of a turn besides its two messages.

    The id makes a second attempt at the same turn harmless; the fencing token refuses a late one.
    """

    id: str = ""
    """A turn with the same id has an effect once."""
    content: str = ""
    """The fingerprint of the turn itself; the operations of a model may differ in each attempt."""
    epoch: int | None = None
    """The user's fencing token when the turn was submitted."""
    is_new: bool = False
    """Whether the id is newly generated and cannot be in history yet."""
    turns: int = 1
    """The number of turns that were read together."""
    earlier: tuple[tuple[str, str], ...] | None = None
    """The exchanges before the turn; None takes those that this process has seen in the session."""
    began: str = ""
    """When the previous turn of the session was submitted, in history's format; "" is unknown."""
    ended: str = ""
    """When this turn was submitted; "" is now."""
    check: Callable[[], object] | None = None
    """Called in the transaction; raises if another writer has claimed the turn."""

    @property
    def said_at(self) -> datetime | None:
        """The time of a queued turn, which is that of its submission, in the local zone; None is now."""
        return datetime.fromisoformat(self.ended).astimezone() if self.ended else None


current_operation: ContextVar[TurnOperation | None] = ContextVar(
    "tomldiary_turn_operation", default=None
)
"""The operation of the turn in progress; it also reaches an overridden `update_memory`."""


@dataclass(slots=True, repr=False)
class Applied(Viewed):
    """The result of a turn's operations."""

    applied: int = 0
    skipped: list[str] = field(default_factory=list[str])
    """One sentence for each operation that was skipped, because its entry had changed or a rule forbids it."""
    transaction: int | None = field(default=None, compare=False)
    """The number of the transaction in the user's history."""
    is_repeated: bool = field(default=False, compare=False)
    """Whether the operation was applied before, so that nothing changed now."""


def apply_operations(
    transaction: Transaction,
    operations: Sequence[Operation],
    rules: Rules,
    *,
    session_id: str,
    now: str,
    turns: int = 1,
    origin: str = "",
) -> Applied:
    """Apply operations to the current state, and count their turns.

    An entry that was forgotten meanwhile is not restored. A new entry whose id was assigned meanwhile gets another
    one, which later operations of the same turn then use. An operation that a rule forbids is skipped.

    Args:
        transaction: The current state.
        operations: The operations of an extractor or of a compaction.
        rules: The options of the diary.
        session_id: The conversation.
        now: The time of the turn.
        turns: The number of turns that were read together; 0 for a compaction and for stored episodes.
        origin: The source of the content if it is no new turn, such as `episodes/id`; "" for a compaction.
    """
    # Begun first, so that history lists its changes first.
    transaction.entries("preferences")
    conversations = Conversations(transaction.edit("conversations"), rules.max_conversations)
    if turns:
        if conversations.may_have_removed(session_id):
            conversations.resume(session_id, _last_turn(transaction, session_id), now=now)
        last = conversations.count_turns(session_id, turns, now=now)
        origin = source_of(session_id, last - turns + 1, last)
    by = Provenance(now, session_id, origin)
    changes = partial(_Changes, transaction, rules, by)
    if transaction.engine.rules is None or not transaction.engine.rules.checked:
        return changes().apply(operations)
    check = transaction.engine.rules.apply
    with suppress(*_RULES), transaction.nested(Source("turn")):
        done = changes().apply(operations)
        check(transaction)
        return done
    with suppress(*_RULES):  # a block that the turn joins may obey the rules only at its end
        check(transaction)
        return changes().apply(operations, check)
    return changes().apply(operations)


@dataclass(slots=True)
class _Changes:
    """The changes of one turn to a transaction."""

    transaction: Transaction
    rules: Rules
    by: Provenance
    ids: dict[tuple[str, str], str | None] = field(
        default_factory=dict[tuple[str, str], "str | None"]
    )
    """The ids of new preferences by category and the id in the draft; None if they were skipped."""
    facts: dict[str | None, str] = field(default_factory=dict[str | None, str])
    """The ids of new facts by the id in the draft."""
    reworded: dict[tuple[str, str], dict[str, Any]] = field(
        default_factory=dict[tuple[str, str], "dict[str, Any]"]
    )
    """The fields that were given to each preference whose text changed, by category and id."""
    counted: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """The preferences that the turn created or counted, as (category, id)."""

    def apply(
        self, operations: Sequence[Operation], check: Callable[[Transaction], None] | None = None
    ) -> Applied:
        """Apply operations in order, and skip those that a rule forbids.

        A check is made for each one. Skipped ones are then tried again: a later removal may free the place of a new entry.
        """
        skipped: list[tuple[Operation, DiaryError]] = []
        for operation in operations:
            try:
                if check is None:
                    self._apply(operation)
                else:
                    with self.transaction.nested(Source("turn")):
                        self._apply(operation)
                        check(self.transaction)
            except _RULES as error:
                if isinstance(operation, UpsertPreference) and operation.created_as is not None:
                    # Later operations must not find another entry with this id.
                    self.ids[operation.category, operation.created_as] = None
                skipped.append((operation, error))
        done = len(operations) - len(skipped)
        if check is not None and skipped and done:
            later = self.apply([operation for operation, _ in skipped], check)
            return Applied(done + later.applied, later.skipped)
        for (category, key), given in self.reworded.items():
            with suppress(*_RULES), self.transaction.nested(Source("turn")):
                self._merge(category, key, given)
                if check is not None:
                    check(self.transaction)
        for _, error in skipped:
            # Other messages may quote the conversation.
            is_full = isinstance(error, LimitReached)
            cause = str(error) if is_full else type(error).__name__
            text = f"an operation no longer fits and was skipped: {cause}"
            _logger.warning("%s", text)
            if is_full:
                show(text, is_once=True)  # not for each turn
        return Applied(done, [str(error) for _, error in skipped])

    def _merge(self, category: str, key: str, given: Mapping[str, Any]) -> None:
        """If another entry has the new text of an entry, confirm that one, and remove this.

        The other one gets the labels, the fields that it lacks, and those that the turn gave. A turn counts it once.
        """
        preferences, by = self._preferences, self.by
        found = preferences.find(category, key)
        other = found and preferences.same(category, entry_text(found[1]), but=key)
        stored = other and preferences.find(category, other)
        if not (found and other and stored):
            return
        is_counted = (category, key) in self.counted and (category, other) not in self.counted
        lacking = {name: value for name, value in found[1].items() if name not in stored[1]}
        merged = preferences.upsert(
            category, other, None, text_list(found[1].get("contexts")), now=by.now,
            session=by.session, count_up=is_counted, fields={**lacking, **given},
        )  # fmt: skip
        is_shared = merged.entry != stored[1] or stored[1].get("_updated_by") == COMPACTOR
        if not by.source and is_shared:  # a compaction
            said = {"_said_by": compacted_from(stored[1], found[1]), "_updated_by": COMPACTOR}
            self.transaction.entries("preferences").put(merged.path, {**merged.entry, **said})
        preferences.forget(category, key)
        if is_counted:
            self.counted.add((category, other))

    @property
    def _preferences(self) -> Preferences:
        # Not kept, because an undone block ends the edits that began in it.
        return Preferences(self.transaction.entries("preferences"), self.rules.preference_rules)

    def _apply(self, operation: Operation) -> None:
        if isinstance(operation, UpsertPreference):
            self._upsert(operation)
        elif isinstance(operation, ForgetPreference):
            self._forget(operation)
        elif isinstance(operation, SetSummary):
            Conversations(self.transaction.edit("conversations")).set_summary(
                operation.session_id, operation.summary, operation.keywords, now=self.by.now
            )
        elif isinstance(operation, SetFields):
            self._set(operation)
        else:
            book = FactRules(self.transaction.entries("facts"), self.rules.fact_schemas)
            if isinstance(operation, CommitFact):
                self.facts[operation.created_as] = apply_fact(book, operation, self.by)
            else:
                mine = self.facts.get(operation.id)
                apply_fact(book, operation if mine is None else RemoveFact(mine), self.by)

    def _upsert(self, operation: UpsertPreference) -> None:
        preferences, category = self._preferences, operation.category
        key = preferences.wanted(category, operation.id)
        text, created_as = operation.text, operation.created_as
        if created_as is None and key is not None:
            named, key = key, self._id_of(category, key)
            found = preferences.find(category, key)
            if found is None and self._is_expired(category, key):
                # It expired while the extractor worked, so what was said in the turn becomes a new entry.
                text, created_as, key = text or operation.confirms, named, None
            elif found is None:
                raise unknown_preference(category, key)
            elif self._is_other(category, key, found[1], operation.confirms or operation.replaces):
                if text is None:
                    raise InvalidValue(
                        "the entry was changed while it was confirmed.", where=f"{category}/{key}"
                    )
                created_as, key = named, None  # another text does not count for the entry
            elif operation.confirms is not None:
                text = None
        elif key is not None:
            found = preferences.find(category, key)
            if found is not None and _says_other(found[1], operation.text or ""):
                key = None  # another writer used this id meanwhile
        outcome = self._put(operation, key, text)
        if created_as is not None:
            self.ids[category, created_as] = outcome.id

    def _is_expired(self, category: str, key: str) -> bool:
        return any(
            path[-2:] == (category, key) and entry_kind(name) is PREFERENCES
            for name, path in self.transaction.expired
        )

    def _is_other(
        self, category: str, key: str, entry: Mapping[str, Any], text: str | None
    ) -> bool:
        """Return whether another writer gave an entry another text; that of the turn may have been redacted."""
        return (category, key) not in self.reworded and _says_other(entry, text)

    def _id_of(self, category: str, key: str) -> str:
        """Return the id in the memory of a preference of the draft."""
        found = self.ids.get((category, key), key)
        if found is None:
            raise unknown_preference(category, key)
        return found

    def _forget(self, operation: ForgetPreference) -> None:
        preferences, category = self._preferences, operation.category
        key = self._id_of(category, preferences.named(category, operation.id))
        found = preferences.find(category, key)
        if found is not None and self._is_other(category, key, found[1], operation.removes):
            raise InvalidValue(
                "the entry was changed before it was removed.", where=f"{category}/{key}"
            )
        preferences.forget(category, key)

    def _put(self, operation: UpsertPreference, key: str | None, text: str | None) -> Outcome:
        by, fields = self.by, dict(operation.fields)
        if by.source and str(fields.get("_source", by.source)).startswith(f"{by.session}#"):
            # Further turns may have been counted since the draft was made.
            fields["_source"] = by.source
        outcome = self._preferences.upsert(
            operation.category, key, text, operation.contexts, now=by.now, session=by.session,
            count_up=operation.count_up, fields=fields, source=by.source, may_repeat=True,
        )  # fmt: skip
        place = (operation.category, outcome.id)
        if operation.count_up or outcome.action == "created":
            self.counted.add(place)
        if outcome.action == "updated" or place in self.reworded:
            self.reworded.setdefault(place, {}).update(fields)
        return outcome

    def _set(self, operation: SetFields) -> None:
        path, by = operation.path, self.by
        said = dict(operation.values)
        if operation.kind == "preferences":
            preferences, (category, key) = self._preferences, path[-2:]
            preferences.check_category(category)
            key = self._id_of(category, key)
            # It may stand at another place, in a short form.
            found = preferences.find(category, key)
            replaces = operation.replaces
            is_other = found is not None and self._is_other(category, key, found[1], replaces)
            if not operation.delete and ((found is None) is operation.existing or is_other):
                if found is None and not self._is_expired(category, key):
                    raise unknown_preference(category, key)
                confirmed = {"text": replaces} if found is None else {}
                self._set_apart(operation, {**confirmed, **said})
                return
            path = found[0] if found is not None else (*path[:-1], key)
            if "text" in said:
                self.reworded.setdefault((category, key), {})
                if by.source:
                    said.setdefault("_source", by.source)
            if "_count" in said:
                self.counted.add((category, key))
            # What a compaction changes stays of the sessions that said it.
            if by.session and by.source and any(not name.startswith("_") for name in said):
                said.setdefault("_updated_by", by.session)
                operation = replace(operation, removed=(*operation.removed, "_said_by"))
            if found is not None and not operation.delete:
                preferences.check_fit(category, key, {**found[1], **said})
        edit, kind = self.transaction.entries(operation.kind), KINDS[operation.kind]
        is_new = not (operation.delete or operation.existing)
        # As the file has them: tuples are lists, and only fields that an entry needs may not be None.
        stored = dict.fromkeys(each for each in kind.needed if is_new or each in said)
        stored |= encode_nulls(said)
        for problem in wrong_fields(
            ".".join(path), stored, kind.texts, (kind.labels,), kind.numbers, kind.flags
        ):
            raise InvalidValue(f"{problem.message}.", where=problem.where)
        set_fields(edit, replace(operation, path=path, values=tuple(said.items())))

    def _set_apart(self, operation: SetFields, said: Mapping[str, Any]) -> None:
        """Store a text as an entry of its own, because the entry has expired or another writer changed it meanwhile."""
        category, key = operation.path[-2:]
        text = said.get("text")
        if text is None:
            raise InvalidValue("the entry was changed meanwhile.", where=f"{category}/{key}")
        names = [each for each in said if each[:1] != "_" and each not in {"text", "contexts"}]
        self._upsert(
            UpsertPreference(
                category, None, text, tuple(text_list(said.get("contexts"))),
                created_as=key, fields=tuple((name, said[name]) for name in names),
            )
        )  # fmt: skip


def _says_other(entry: Mapping[str, Any], text: str | None) -> bool:
    """Return whether an entry has another text than the given one; None is any text."""
    return text is not None and not same_text(entry_text(entry), text)


def apply_fact(book: FactRules, operation: CommitFact | RemoveFact, by: Provenance) -> str:
    """Apply an operation on a fact, and return its id, `type/key`.

    Raises:
        DiaryError: A rule forbids it. Nothing was changed.
    """
    if isinstance(operation, RemoveFact):
        found = book.find(operation.id)
        if found and operation.removes not in {None, data_text(found[1].entry)}:
            raise InvalidValue(
                "the fact was changed before it was removed.", where=f"facts/{operation.id}"
            )
        book.delete(operation.id)
        return operation.id
    schema = book.schema(operation.type)
    data = schema.checked_fields(dict(operation.fields))
    start = in_utc(operation.valid_from, "valid_from") if operation.valid_from else None
    by = by._replace(confidence=operation.confidence, start=start)
    return f"{schema.name}/{book.commit(schema, data, by)}"


def _last_turn(transaction: Transaction, session_id: str) -> int:
    """Return the number of the last turn of a session that an entry names; 0 if there is none."""
    name = render_text(f"{session_id}#")[1:-1]
    edited = transaction.kinds()

    def may_name(kind: str) -> bool:
        if kind in edited or entry_kind(kind) is ITEMS:
            return kind in edited  # items name no turns, and may be many
        # Only documents with this text are parsed: a user may have many episodes, and most sessions are new.
        stored = transaction.engine.backend.read(transaction.user, kind)
        return stored is not None and name in stored.text

    kinds = list(filter(may_name, transaction.listed()))
    return max(
        (
            last_turn(str(entry.get("_source", "")), session_id)
            for kind, document in zip(kinds, transaction.documents(kinds), strict=True)
            for entry in entry_kind(kind).tables(document).values()
        ),
        default=0,
    )


_TEXTS = ("text", "contexts", "summary", "keywords")
"""Fields of operations with words of a turn. Others name something, or what is stored."""


def redacted(
    operations: Sequence[Operation], redact: Callable[[Any], Any], schemas: Mapping[str, FactSchema]
) -> list[Operation]:
    """Return operations with every text redacted, but not names, keys of facts and values that the diary writes."""
    fresh: list[Operation] = []
    made = {each.created_as for each in operations if isinstance(each, CommitFact)}
    for operation in operations:
        given = {each.name: getattr(operation, each.name) for each in fields(operation)}
        changes = {name: redact(given[name]) for name in _TEXTS if name in given}
        if isinstance(operation, RemoveFact) and operation.id in made:
            # A draft has its own facts as they were given, and those of the memory as they are stored.
            changes["removes"] = redact(operation.removes)
        kept: tuple[str, ...] = ()
        if isinstance(operation, CommitFact) and operation.type in schemas:
            kept = schemas[operation.type].key_fields(dict(operation.fields))
        for name in given.keys() & {"values", "fields"}:
            changes[name] = tuple(
                (key, said if key[:1] == "_" or key in kept else redact(said))
                for key, said in given[name]
            )
        fresh.append(replace(operation, **changes))
    return fresh


def set_fields(edit: EditedTables, operation: SetFields) -> None:
    """Apply a `SetFields` to an edit; an entry that was removed meanwhile is not restored from single fields."""
    table = edit.table(operation.path)
    if operation.delete:
        edit.delete(operation.path)
        return
    if table is None and operation.existing:
        return
    entry = {key: value for key, value in (table or {}).items() if key not in operation.removed}
    edit.put(operation.path, encode_nulls({**entry, **dict(operation.values)}))
