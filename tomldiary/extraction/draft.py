"""A copy of one user's memory that an extractor may change freely.

Tools change the draft and are recorded as operations. Direct changes of `deps.prefs` or `deps.convs` are found by
comparison and become operations, too. The draft itself is never stored: its operations are applied to the current
state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, cast

from tomldiary.entries.fact_rules import FactRules, Provenance
from tomldiary.entries.fields import data_text, entry_text
from tomldiary.entries.kinds.conversations import MAX_SUMMARY, Conversations, checked_summary
from tomldiary.entries.preferences import Outcome, PreferenceRules, Preferences, entry_count
from tomldiary.errors import ExtractionError, InvalidValue, SchemaError, missing_attribute
from tomldiary.extraction.context import NO_WRITES, ToolWrites
from tomldiary.extraction.operations import (
    CommitFact,
    ForgetPreference,
    Operation,
    RemoveFact,
    SetFields,
    SetSummary,
    UpsertPreference,
    apply_fact,
    set_fields,
)
from tomldiary.retrieval.render import without_memory
from tomldiary.text.similarity import Similarity
from tomldiary.text.visible import escape_for_model
from tomldiary.toml.document import Document, ValueEdit
from tomldiary.toml.values import (
    checked_names,
    checked_table,
    checked_text,
    encode_nulls,
    in_utc,
    same_value,
    timestamp,
)

if TYPE_CHECKING:
    from datetime import datetime

    from tomldiary.entries.constraints import FactSchema
    from tomldiary.entries.kind import EditedTables
    from tomldiary.extraction.context import Exchange
    from tomldiary.toml.values import When

Store = dict[str, Any]
MOST_REMOVED = 10
"""The maximum number of preferences and facts that `forget` and `remove_fact` remove in one turn."""
_NAMES_OF_USERS = {
    "remove_preference": "forget(category, key)",
    "upsert_preference": "upsert(category, None, text)",
}
"""By methods of a `UserDiary`, what does the same in a draft."""
_LINE = 300  # characters of a text in a line for a model


class MemoryDeps:
    """The argument of an extractor: the memory of one user as a draft, and the session of the turn.

    Args:
        prefs: An edit, or `{"_meta": …, "preferences": {category: {id: fields}}}`.
        convs: An edit, or `{"_meta": …, "conversations": {session_id: fields}}`.
        allowed_cats: The categories of the preference table.
        schema_name: The name of the preference table.
        session_id: The session of the turn.
        max_prefs_per_category: The maximum number of entries in a category.
        context_now: The time of the turn; None is now.
        similarity: Finds similar texts.
    """

    def __init__(
        self,
        prefs: Store | EditedTables,
        convs: Store | EditedTables,
        allowed_cats: Sequence[str],
        schema_name: str,
        session_id: str,
        max_prefs_per_category: int = 100,
        context_now: datetime | None = None,
        *,
        similarity: Similarity | None = None,
    ) -> None:
        self.allowed_cats = list(allowed_cats)
        self.schema_name = schema_name
        self.session_id = session_id
        self.max_prefs_per_category = max_prefs_per_category
        self.context_now = context_now
        self.similarity = similarity or Similarity()
        self.descriptions: dict[str, str] = {}
        self.max_summary = MAX_SUMMARY
        """Characters that a summary may have."""
        self.user_id = ""
        """The user who owns the memory."""
        self.facts: FactRules | None = None
        """The facts as a draft; None if no type of facts is registered."""
        self.fact_schemas: Mapping[str, FactSchema] = {}
        self.user_msg = ""
        self.assistant_msg = ""
        self.earlier: tuple[Exchange, ...] = ()
        """The exchanges before this turn, oldest first; earlier turns have dealt with them."""
        self.redact: Callable[[str], str] | None = None
        """Replaces secrets in a text; None if the diary redacts nothing."""
        self.tool_writes: ToolWrites = NO_WRITES
        """What tools of the host stored and removed during the turn."""
        self.ranked: Callable[[str], Sequence[str]] | None = None
        """Returns the keys of the preferences that match a text, best first; if None or empty, words are compared."""
        self._confirmed: set[tuple[str, str]] | None = None
        """The preferences that the turn has counted, as (category, id); None before `begin_turn`."""
        self._removed = 0
        self._has_ended = False
        given = {"preferences": prefs, "conversations": convs}
        # Dictionaries belong to the caller; `_mirror` keeps them up to date.
        self._stores = {kind: each for kind, each in given.items() if isinstance(each, dict)}
        self._edits = {
            kind: _edit_of(each) if isinstance(each, dict) else each for kind, each in given.items()
        }
        self._operations: list[Operation] = []
        rules = PreferenceRules(tuple(self.allowed_cats), max_prefs_per_category)
        self._preferences = Preferences(self._edits["preferences"], rules)
        self._conversations = Conversations(self._edits["conversations"])

    def __repr__(self) -> str:
        return f"MemoryDeps(schema_name={self.schema_name!r}, session_id={self.session_id!r})"

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_attribute(self, name, _NAMES_OF_USERS.get(name))

    # The draft as plain dictionaries

    @property
    def prefs(self) -> Store:
        """The preferences as dictionaries, which may be changed directly or with the tools."""
        return self._store("preferences")

    @prefs.setter
    def prefs(self, store: Store) -> None:
        self._stores["preferences"] = store

    @property
    def convs(self) -> Store:
        """The conversations as dictionaries, which may be changed directly."""
        return self._store("conversations")

    @convs.setter
    def convs(self, store: Store) -> None:
        self._stores["conversations"] = store

    def _store(self, kind: str) -> Store:
        store = self._stores.get(kind)
        if store is None:
            tables: dict[str, Any] = {}
            for path, entry in self._entries(kind):
                target = tables
                for key in path[1:-1]:
                    target = target.setdefault(key, {})
                target[path[-1]] = copy.deepcopy(dict(entry))
            meta = copy.deepcopy(dict(self._edits[kind].table(("_meta",)) or {}))
            store = {"_meta": meta, kind: tables}
            self._stores[kind] = store
        return store

    def _entries(self, kind: str) -> list[tuple[tuple[str, ...], Mapping[str, Any]]]:
        if kind == "conversations":
            return [((kind, key), entry) for key, entry in self._conversations.entries()]
        return [
            ((kind, category, key), entry)
            for category in self.allowed_cats
            for key, entry in self._preferences.items(category)
        ]

    def _absorb(self) -> None:
        """Record direct changes of the dictionaries, if they were used."""
        for kind, store in self._stores.items():
            known = dict(self._entries(kind))
            wanted = dict(_walk((kind,), store.get(kind) or {}, 2 if kind == "preferences" else 1))
            for path in known.keys() - wanted.keys():
                if kind == "preferences":
                    self._preferences.forget(path[1], path[2])
                    gone = ForgetPreference(path[1], path[2], entry_text(known[path]))
                    self._operations.append(gone)
                else:
                    self._record_fields(SetFields(kind, path, delete=True))
            for path, entry in wanted.items():
                before, said = known.get(path, {}), entry.get("text")
                if self.redact is not None and isinstance(said, str) and said != before.get("text"):
                    entry["text"] = self.redact(said)  # later operations name the stored text
                values = tuple(
                    (key, copy.deepcopy(value))
                    for key, value in entry.items()
                    if key not in before or not same_value(before[key], value)
                )
                removed = tuple(key for key in before if key not in entry)
                if values or removed:
                    text = entry_text(before) if kind == "preferences" and before else None
                    self._record_fields(
                        SetFields(
                            kind, path, values, removed, existing=path in known, replaces=text
                        )
                    )

    def _record_fields(self, operation: SetFields) -> None:
        set_fields(self._edits[operation.kind], operation)
        self._operations.append(operation)

    def _mirror(self, kind: str, path: tuple[str, ...]) -> None:
        """Apply a tool's change to the dictionaries, if they were used."""
        store = self._stores.get(kind)
        if store is None:
            return
        target: Store = store
        for key in path[:-1]:
            target = target.setdefault(key, {})
        entry = self._edits[kind].table(path)
        if entry is None:
            target.pop(path[-1], None)
            if not target and kind == "preferences":
                del store[kind][path[1]]  # as TOMLDiary 0.9 does with an empty category
            return
        kept = target.setdefault(path[-1], {})
        kept.clear()
        kept.update(copy.deepcopy(dict(entry)))

    @property
    def operations(self) -> list[Operation]:
        """The operations so far, in order."""
        self._absorb()
        return list(self._operations)

    # What the tools do

    @property
    def now(self) -> str:
        """The time written into entries."""
        return timestamp(self.context_now)

    @property
    def preferences(self) -> Preferences:
        """The preferences of the draft, including direct changes of `prefs`."""
        self._absorb()
        return self._preferences

    @property
    def conversations(self) -> Conversations:
        """The conversations of the draft, including direct changes of `convs`."""
        self._absorb()
        return self._conversations

    def upsert(
        self,
        category: str,
        key: str | None,
        text: str | None,
        contexts: Sequence[str] = (),
        *,
        count_up: bool = True,
        fields: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """Create, change or confirm a preference in the draft; raises like `Preferences.upsert`.

        `key` is an id, or `category/id` as it is listed; "new" and None create a new entry. A turn counts an entry at
        most once, and not at all if a tool of the host stored it in this turn.

        Raises:
            InvalidValue: Also if a tool of the host removed the same statement in this turn.
        """
        self._check_open()
        key = self.preferences.wanted(category, key)
        text = None if text is None else checked_text(text, f"{category}.text")
        if text is not None and self.redact is not None:
            text = self.redact(text)  # before it is compared with what is stored
        if text is not None and self.tool_writes.was_removed(text):
            raise InvalidValue(
                "the user has just had this removed. It is not stored again.", where=category
            )
        contexts = checked_names(contexts, "contexts")
        place = (category, key or "")
        if not key and text is not None and category in self.allowed_cats:
            # What a text without an id confirms.
            place = (category, self._preferences.same(category, text.strip()) or "")
        stored = self._preferences.find(*place)
        before = None if stored is None else entry_text(stored[1])
        held = None if text is None else self.tool_writes.holding(text)
        if held is not None:
            found = self._preferences.find(*held)
            if stored is None and found is not None:
                return Outcome("merged", *found)
        if held is not None or place in {*self.tool_writes.noted, *(self._confirmed or ())}:
            count_up = False
        outcome = self.preferences.upsert(
            category, key, text, contexts, now=self.now, session=self.session_id,
            count_up=count_up, fields=fields, may_repeat=True,  # the commit merges what is repeated at the end
        )  # fmt: skip
        created = outcome.action == "created"
        is_confirmed = outcome.action in {"merged", "boosted"}
        if self._confirmed is not None and (count_up or created):
            self._confirmed.add((category, outcome.id))
        self._operations.append(
            UpsertPreference(
                category,
                # An equal entry may be stored meanwhile, so the new one is identified by its text.
                None if created and key is None else (key if created else outcome.id),
                text,
                contexts,
                count_up,
                outcome.id if created else None,
                tuple((fields or {}).items()),
                entry_text(outcome.entry) if is_confirmed else None,
                before if outcome.action == "updated" else None,
            )
        )
        self._mirror("preferences", outcome.path)
        return outcome

    def add_beyond_limit(self, category: str, text: str, fields: Mapping[str, Any]) -> None:
        """Record a preference that exceeds the draft's limits; applying it to the current state skips it with a reason."""
        self._operations.append(UpsertPreference(category, text=text, fields=tuple(fields.items())))

    def forget(self, category: str, key: str) -> str:
        """Remove a preference from the draft and return its text.

        Raises:
            UnknownEntry: There is none.
            InvalidValue: The turn has removed the maximum number of entries already.
        """
        self._check_removals(category)
        key = self.preferences.named(category, key)
        entry = self.preferences.forget(category, key)
        self._removed += 1
        self._operations.append(ForgetPreference(category, key, entry_text(entry)))
        self._mirror("preferences", ("preferences", category, key))
        return entry_text(entry)

    def _check_removals(self, where: str) -> None:
        self._check_open()
        if self._confirmed is not None and self._removed == MOST_REMOVED:
            raise InvalidValue(
                f"{MOST_REMOVED} entries were removed in this turn, which is the limit. Ask the user to continue"
                " in another message.",
                where=where,
            )

    def commit_fact(
        self,
        name: str,
        fields: Mapping[str, Any],
        confidence: float = 1.0,
        valid_from: When | None = None,
    ) -> str:
        """Store a fact of a registered type in the draft, and return its id, `type/key`.

        `valid_from` is the start of a temporal fact; None is the time of the turn.

        Raises:
            DiaryError: The type is not registered, or a rule forbids it.
        """
        self._check_open()
        given = checked_table(fields, f"facts/{name}")
        known = {key: value for key, value in given.items() if value is not None}
        start = in_utc(valid_from, "valid_from").isoformat() if valid_from else ""
        return self._on_facts(CommitFact(name, tuple(known.items()), confidence, valid_from=start))

    def remove_fact(self, fact_id: str) -> None:
        """Remove a fact from the draft.

        Raises:
            DiaryError: There is none, a rule forbids it, or the turn has removed the maximum number already.
        """
        self._check_removals("facts")
        found = self.facts.find(fact_id) if self.facts is not None else None
        self._on_facts(RemoveFact(fact_id, data_text(found[1].entry) if found else None))
        self._removed += 1

    def _on_facts(self, operation: CommitFact | RemoveFact) -> str:
        if self.facts is None:
            raise SchemaError("no type of facts is registered. Call diary.register_schema first.")
        done = apply_fact(self.facts, operation, Provenance(self.now, self.session_id))
        if isinstance(operation, CommitFact):
            operation = replace(operation, created_as=done)
        self._operations.append(operation)
        return done

    def summarise(self, summary: str, keywords: Sequence[str] | None) -> None:
        """Replace the summary of this turn's session in the draft.

        Raises:
            InvalidValue: It is blank or too long, or has too many keywords.
        """
        self._check_open()
        where = f"conversations/{self.session_id}"
        summary, words = checked_summary(summary, keywords, self.max_summary, where)
        self.conversations.set_summary(self.session_id, summary, words, now=self.now)
        words = None if words is None else tuple(words)
        self._operations.append(SetSummary(self.session_id, summary, words))
        self._mirror("conversations", ("conversations", self.session_id))

    def begin_turn(self) -> None:
        """Count the turn in the draft, creating the session if needed. The commit counts it separately.

        From now on an entry is counted once. A rendered memory in the user's message is left out.
        """
        self.user_msg = without_memory(self.user_msg)
        self._confirmed = set()
        if self.session_id:  # an episode may have no session
            self._conversations.count_in_session(self.session_id, now=self.now)

    def end_turn(self) -> None:
        """Refuse further changes, because those of a task or thread that was not waited for would be lost."""
        self._has_ended = True

    def _check_open(self) -> None:
        if self._has_ended:
            raise ExtractionError(
                "the extraction of this turn has ended, so this change would be lost. Await all tasks and"
                " threads before the extractor returns."
            )

    # Text for a model

    def pretty_prefs(self) -> str:
        """Return all preferences, each as a line `- category/id: text (n×)`; "(none)" if there are none."""
        self._absorb()
        entries = self._entries("preferences")
        lines = [preference_line(path[1], path[2], entry) for path, entry in entries]
        return "\n".join(lines) or "(none)"

    def pretty_session(self, sid: str) -> str:
        """Return when a session began, its turns, summary and keywords, as lines of text."""
        entry = self.conversations.find(sid)
        if entry is None:
            return f"No session {sid!r}."
        keywords = ", ".join(map(str, cast("list[Any]", entry.get("keywords") or [])))
        summary = quoted(str(entry.get("summary", "")), self.max_summary)
        began, turns = (quoted(str(entry.get(each, ""))) for each in ("_created", "_turns"))
        return (
            f"Started: {began}  •  Turns: {turns}\n"
            f"Summary: {summary}\nKeywords: {quoted(keywords, self.max_summary)}"
        )


def preference_line(category: str, key: str, entry: Mapping[str, Any]) -> str:
    """Return a preference as one escaped line of text for a model."""
    place = escape_for_model(f"{category}/{key}")
    return f"- {place}: {quoted(entry_text(entry), _LINE)} ({entry_count(entry)}×)"


def quoted(text: str, limit: int = 200) -> str:
    """Return stored text as one escaped line for a model, cut to a number of characters."""
    return escape_for_model(text if len(text) <= limit else f"{text[:limit]}…")


def _walk(
    path: tuple[str, ...], tables: Mapping[str, Any], depth: int
) -> Iterator[tuple[tuple[str, ...], Store]]:
    """Yield the tables that are `depth` levels below a table, by path."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            table = cast("Store", value)
            if depth == 1:
                yield (*path, key), table
            else:
                yield from _walk((*path, key), table, depth - 1)


def _edit_of(store: Store) -> ValueEdit:
    edit = ValueEdit(Document.parse(""))
    for key, value in store.items():
        if isinstance(value, Mapping):
            edit.put((key,), encode_nulls(cast("Mapping[str, Any]", value)))
    return edit
