"""The triggers of compaction, and the draft that a compactor changes.

Compaction runs in a separate transaction after a turn is committed. If it fails, the turn stays stored.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from tomldiary.entries.fields import (
    COMPACTOR,
    check_length,
    compacted_from,
    entry_data,
    entry_text,
    updated_at,
)
from tomldiary.entries.kinds.conversations import MAX_SUMMARY, checked_summary
from tomldiary.entries.preferences import MAX_TEXT
from tomldiary.errors import InvalidValue, UnknownEntry
from tomldiary.extraction.operations import ForgetPreference, Operation, SetFields
from tomldiary.text.contradiction import covers
from tomldiary.text.languages import ENGLISH, OTHERS
from tomldiary.text.similarity import Similarity, conflict, normalise
from tomldiary.text.words import lone_words
from tomldiary.toml.values import (
    checked_flag,
    checked_names,
    checked_number,
    checked_text,
    in_utc,
    render_value,
    timestamp,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tomldiary.text.similarity import Match

Store = dict[str, Any]
_FEWEST_DELETED = 10  # the number of blocks that every compaction may delete
_SIMILAR = Similarity()
_MOST_COMPARED = 20
_DETAILS = {f"different {each}" for each in ("number", "comparison", "unit", "currency", "sign")}


@dataclass(slots=True)
class CompactionStats:
    """The size of a document, in characters of text."""

    total_chars: int = 0
    largest_block: int = 0

    @classmethod
    def of(cls, entries: Iterable[Mapping[str, Any]], text_field: str) -> CompactionStats:
        """Return the sizes of the field `text_field` in entries."""
        sizes = [len(str(entry.get(text_field, ""))) for entry in entries]
        return cls(sum(sizes), max(sizes, default=0))


@dataclass(slots=True)
class CompactionConfig:
    """When to run the compactor.

    Any one trigger starts a run. None, 0 and negative numbers disable a trigger.

    Args:
        enabled: Whether compaction runs.
        total_char_threshold: The total number of characters in the texts of a document that starts a run.
        segment_char_threshold: The number of characters in one entry's text that starts a run.
        user_turn_interval: The number of the user's turns after which a run starts.
        schedule_at: The time of a daily run (UTC); the first run is not before its date.
        cooldown_seconds: The minimum time between two runs for one document of one user. It also applies
            after a failed run.
        compact_preferences: Whether to compact preferences.
        compact_conversations: Whether to compact conversation summaries.

    Raises:
        InvalidValue: An option is not a number, or `schedule_at` is not a datetime.
    """

    enabled: bool = False
    total_char_threshold: int | None = None
    segment_char_threshold: int | None = None
    user_turn_interval: int | None = None
    schedule_at: datetime | None = None
    cooldown_seconds: int = 900
    compact_preferences: bool = True
    compact_conversations: bool = True

    def __post_init__(self) -> None:
        for name in ("enabled", "compact_preferences", "compact_conversations"):
            checked_flag(getattr(self, name), name)
        for name in ("total_char_threshold", "segment_char_threshold", "user_turn_interval"):
            value = getattr(self, name)
            checked_number(0 if value is None else value, name, "a number, or None", lambda _: True)
        checked_number(
            self.cooldown_seconds, "cooldown_seconds", "0 or more seconds", lambda each: each >= 0
        )
        if self.schedule_at is not None:
            in_utc(self.schedule_at, "schedule_at")

    def takes_part(self, store: str) -> bool:
        """Return whether `store`, "preferences" or "conversations", is compacted at all."""
        return self.compact_preferences if store == "preferences" else self.compact_conversations

    def should_run(
        self,
        *,
        store: Literal["preferences", "conversations"],
        stats: CompactionStats,
        last_run: datetime | None,
        turns_since_compaction: int | None,
        now: datetime,
    ) -> bool:
        """Return whether `store` is due for compaction."""
        if not (self.enabled and self.takes_part(store)):
            return False
        now = in_utc(now)
        last_run = in_utc(last_run) if last_run is not None else None
        if last_run is not None and now - last_run < timedelta(seconds=self.cooldown_seconds):
            return False
        return (
            _reached(stats.total_chars, self.total_char_threshold)
            or _reached(stats.largest_block, self.segment_char_threshold)
            or _reached(turns_since_compaction or 0, self.user_turn_interval)
            or self._schedule_due(now, last_run)
        )

    def _schedule_due(self, now: datetime, last_run: datetime | None) -> bool:
        if self.schedule_at is None:
            return False
        at = in_utc(self.schedule_at)
        today = now.replace(hour=at.hour, minute=at.minute, second=at.second, microsecond=0)
        return now >= max(today, at) and (last_run is None or last_run < today)


def _reached(value: int, threshold: int | None) -> bool:
    return threshold is not None and 0 < threshold <= value


@dataclass(slots=True)
class CompactionDeps:
    """The draft for a compactor: both documents as dictionaries, and methods that check each change."""

    prefs: Store
    convs: Store
    include_preferences: bool
    include_conversations: bool
    actor_label: str = COMPACTOR
    live_session: str = ""
    """The session that is still active. It may be rewritten, but not deleted."""
    now: str = field(default_factory=timestamp)
    max_summary: int = MAX_SUMMARY
    """The maximum number of characters of a summary."""
    _deletions_left: int = field(init=False, repr=False)
    _before: dict[tuple[str, ...], Store] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        entries = [
            *((_preference_path(key), entry) for key, entry in self.preference_blocks()),
            *((("conversations", key), entry) for key, entry in self.conversation_blocks()),
        ]
        # Deletions are limited, because a model that deletes nearly all of a memory makes a mistake.
        self._deletions_left = max(_FEWEST_DELETED, len(entries) // 2)
        self._before = {path: copy.deepcopy(entry) for path, entry in entries}

    def fits(self, operation: Operation, stored: Mapping[str, Any] | None) -> bool:
        """Return whether an operation of the compactor still applies to the stored entry.

        An operation does not apply in these cases:

        - its kind is not compacted
        - it deletes the live session
        - it decides between contradictory entries
        - the text changed during the compaction; for a deletion, any field changed
        """
        path = operation_path(operation)
        in_preferences = path[0] == "preferences"
        if not (self.include_preferences if in_preferences else self.include_conversations):
            return False
        if in_preferences and self._decides(operation, path):
            return False
        if is_deletion(operation) and path == ("conversations", self.live_session):
            return False
        return not self.is_outdated(operation, stored)

    def signed(self, operations: Sequence[Operation]) -> list[Operation]:
        """Return operations; each that writes a preference also writes the sessions whose words it may hold.

        These are the sessions of the entry before, of the entries that lost a word which it got, and of those whose
        text it repeats. If it got a word that none lost, it may paraphrase any removed entry of its category; a new
        entry any removed one, any of its category and any that has such a word, else any.
        """
        known = {path: entry for path, entry in self._before.items() if path[0] == "preferences"}
        words_of = functools.cache(lone_words)  # slow, and each text is needed twice

        def all_words(entry: Store) -> set[str]:
            return set[str]().union(*map(words_of, map(str, entry_data(entry).values())))

        words = {path: all_words(entry) for path, entry in known.items()}
        texts = {path: words_of(entry_text(entry)) for path, entry in known.items()}
        after = {operation_path(each): all_words(_changed(each, known)) for each in operations}
        lost = {path: words[path] - after[path] for path in known.keys() & after.keys()}
        moved = set[str]().union(*lost.values())
        removed = known.keys() & {operation_path(each) for each in operations if is_deletion(each)}

        def sign(operation: Operation) -> Operation:
            path = operation_path(operation)
            if not isinstance(operation, SetFields) or path[0] != "preferences":
                return operation
            got = after[path] - words.get(path, set())
            parts = {path, *(each for each in lost if not got.isdisjoint(lost[each]))}
            # A compactor may repeat a text that it keeps, for example because its deletion was refused.
            parts |= {each for each in known if texts[each] <= after[path] and texts[each] & got}
            if other := got - moved - _function_words():  # quoted, or a paraphrase
                beside = {each for each in known if each[:2] == path[:2]}
                quoted = {each for each in known if not other.isdisjoint(words[each])}
                said_in = removed | beside | quoted or known.keys()
                parts |= removed & beside if path in known else said_in
            said = compacted_from(*(known[each] for each in sorted(known.keys() & parts)))
            if not said and path not in known:  # it may say what the live conversation does
                said = [self.live_session]
            values = {**dict(operation.values), "_updated_by": self.actor_label}
            if said or "_created_by" in known.get(path, ()):  # or it would be of that session
                values["_said_by"] = said
            return replace(operation, values=(*values.items(),))

        return list(map(sign, operations))

    def is_outdated(self, operation: Operation, stored: Mapping[str, Any] | None) -> bool:
        """Return whether the entry of an operation was added or removed, or its text changed, during the compaction.

        A deletion is outdated after any change, such as a confirmation.
        """
        path = operation_path(operation)
        before = self._before.get(path)
        if before is None or stored is None or is_deletion(operation):
            return before != stored
        text = "text" if path[0] == "preferences" else "summary"
        return before.get(text) != stored.get(text)

    def _decides(self, operation: Operation, path: tuple[str, ...]) -> bool:
        if isinstance(operation, SetFields) and not operation.delete:
            text = dict(operation.values).get("text")
            return isinstance(text, str) and self._rewording(path, text) != ""
        return self._contradicting(path) is not None

    def _rewording(self, path: tuple[str, ...], text: str) -> str:
        """Return how a new text contradicts the text before compaction, or ""."""
        before = self._before.get(path)
        known = (entry_text(entry) for key, entry in self._before.items() if key[:2] == path[:2])
        return _reworded(entry_text(before), text, known) if before is not None else ""

    def _contradicting(self, path: tuple[str, ...]) -> tuple[str, str] | None:
        """Return the id of a remaining entry that contradicts a deleted one, and how; None if there is none."""
        if path not in self._before:
            return None
        text = entry_text(self._before[path])
        entries: Mapping[str, Store] = self.prefs.get("preferences", {}).get(path[1], {})
        others = {key: entry_text(entry) for key, entry in entries.items() if key != path[2]}
        found = _similar(others, text)
        # Another entry may also cover the text.
        if not found or any(not match.conflict or covers(match.text, text) for match in found):
            return None
        return found[0].id, found[0].conflict

    def preference_blocks(self) -> list[tuple[str, Store]]:
        """Return `("category/id", fields)` of each preference."""
        tables: Mapping[str, Any] = self.prefs.get("preferences", {})
        return [
            (f"{category}/{key}", entry)
            for category, entries in tables.items()
            for key, entry in entries.items()
        ]

    def get_preference_block(self, block_id: str) -> Store:
        """Return a copy of one preference's fields.

        Raises:
            UnknownEntry: There is no preference with this id.
        """
        return copy.deepcopy(self._preference(block_id))

    def rewrite_preference_block(
        self, block_id: str, *, text: str, contexts: Iterable[str] | None = None
    ) -> None:
        """Replace a preference's text, and its contexts unless they are None.

        Raises:
            UnknownEntry: There is no preference with this id.
            InvalidValue: The text is blank, too long, cannot be stored, or contradicts the previous text.
        """
        entry = self._preference(block_id)
        text = checked_text(text, f"{block_id}.text").strip()
        if not text:
            raise InvalidValue("the text is blank. Delete the block instead.", where=block_id)
        check_length(len(text), MAX_TEXT, block_id)
        why = self._rewording(_preference_path(block_id), text)
        if why:
            raise InvalidValue(
                f"the new text has another meaning ({why}). Keep numbers, signs and negations as they are.",
                where=block_id,
            )
        labels = _labels(contexts, f"{block_id}.contexts")
        self._set(entry, block_id, text=text, contexts=labels)
        entry["_updated_by"] = self.actor_label

    def delete_preference_block(self, block_id: str) -> None:
        """Remove a preference.

        Raises:
            UnknownEntry: There is no preference with this id.
            InvalidValue: A similar preference contradicts it, or the maximum number of deletions is reached.
        """
        self._preference(block_id)
        path = _preference_path(block_id)
        _, category, key = path
        other = self._contradicting(path)
        if other is not None:
            raise InvalidValue(
                f"{category}/{other[0]} contradicts it ({other[1]}). Keep both: the user decides which one holds.",
                where=block_id,
            )
        self._count_deletion(block_id)
        del self.prefs["preferences"][category][key]

    def conversation_blocks(self) -> list[tuple[str, Store]]:
        """Return `(session_id, fields)` of each conversation."""
        return list(self.convs.get("conversations", {}).items())

    def get_conversation_block(self, session_id: str) -> Store:
        """Return a copy of one conversation's fields.

        Raises:
            UnknownEntry: There is no such session.
        """
        return copy.deepcopy(self._conversation(session_id))

    def rewrite_conversation_block(
        self, session_id: str, *, summary: str, keywords: Iterable[str] | None = None
    ) -> None:
        """Replace a summary, and its keywords unless they are None.

        Raises:
            UnknownEntry: There is no such session.
            InvalidValue: The summary is blank or too long, or the summary or a keyword cannot be stored.
        """
        entry = self._conversation(session_id)
        labels = _labels(keywords, f"{session_id}.keywords")
        summary, labels = checked_summary(summary, labels, self.max_summary, session_id)
        self._set(entry, session_id, summary=summary, keywords=labels)

    def delete_conversation_block(self, session_id: str) -> None:
        """Remove a conversation.

        Raises:
            UnknownEntry: There is no such session.
            InvalidValue: The session is still active, or the maximum number of deletions is reached.
        """
        self._conversation(session_id)
        if session_id == self.live_session:
            raise InvalidValue(
                "this conversation is still active. Rewrite it instead.", where=session_id
            )
        self._count_deletion(session_id)
        del self.convs["conversations"][session_id]

    def _count_deletion(self, where: str) -> None:
        if self._deletions_left == 0:
            raise InvalidValue(
                "half of the blocks are deleted, which is the limit of one compaction. Finish now.",
                where=where,
            )
        self._deletions_left -= 1

    def _preference(self, block_id: str) -> Store:
        _, category, key = _preference_path(block_id)
        entry = self.prefs.get("preferences", {}).get(category, {}).get(key)
        if entry is None:
            raise UnknownEntry(block_id, "list_preference_blocks shows the blocks.")
        return entry

    def _conversation(self, session_id: str) -> Store:
        entry = self.convs.get("conversations", {}).get(session_id)
        if entry is None:
            raise UnknownEntry(session_id, "list_conversation_blocks shows the blocks.")
        return entry

    def _set(self, entry: Store, where: str, **fields: str | list[str] | None) -> None:
        """Set the fields of a block that are not None."""
        fresh = {name: value for name, value in fields.items() if value is not None}
        for value in fresh.values():
            # Checked now, because the model can still correct the text. A failed commit would discard the whole run.
            render_value(value, where=where)
        entry.update(fresh, _updated=updated_at(entry, self.now))


def operation_path(operation: Operation) -> tuple[str, ...]:
    """Return the path of the entry that an operation of a compactor changes."""
    if isinstance(operation, SetFields):
        return operation.path
    assert isinstance(operation, ForgetPreference)  # noqa: S101 - a compactor has no other operations
    return ("preferences", operation.category, operation.id)


def is_deletion(operation: Operation) -> bool:
    """Return whether an operation of a compactor removes an entry."""
    return not isinstance(operation, SetFields) or operation.delete


def _changed(operation: Operation, known: Mapping[tuple[str, ...], Store]) -> Store:
    """Return the fields of an entry after an operation of a compactor; none after a deletion."""
    if not isinstance(operation, SetFields) or operation.delete:
        return {}
    entry = known.get(operation.path, {})
    return {**entry, **dict.fromkeys(operation.removed, ""), **dict(operation.values)}


@functools.cache
def _function_words() -> set[str]:
    return lone_words(" ".join(ENGLISH | OTHERS))


def _preference_path(block_id: str) -> tuple[str, str, str]:
    category, _, key = block_id.partition("/")
    return "preferences", category, key


def _labels(words: Iterable[str] | None, where: str) -> list[str] | None:
    return None if words is None else list(dict.fromkeys(checked_names(words, where)))


# A compactor joins and shortens texts, but adds no new statements. It must not change numbers, signs or polarity,
# and must not decide which of two contradictory entries is true.


def _reworded(old: str, new: str, known: Iterable[str]) -> str:
    """Return how a rewritten text contradicts the previous text, or "".

    Args:
        old: The previous text.
        new: The rewritten text.
        known: The texts of the category before compaction, whose numbers and signs may be joined.
    """
    why = conflict(old, new)
    if not why or not _similar({"": old}, new):
        return ""  # a different subject
    if why in _DETAILS:
        is_joined = covers(new, old) and covers(" ".join(known), new)
        if is_joined or (why == "different number" and covers(old, new)):
            return ""
    return why


def _similar(texts: Mapping[str, str], text: str) -> list[Match]:
    keys = list(texts)
    folded = [normalise(texts[key]) for key in keys]
    return _SIMILAR.find("", text, keys, folded, texts.__getitem__, limit=_MOST_COMPARED)
