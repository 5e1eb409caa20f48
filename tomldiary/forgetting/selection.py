"""Selections for erasure, and the receipt of an erasure.

A selection names a session, a turn, a time, an entry, a text or a whole user. It covers the content of entries:

- Content that another session stated too stays, under the name of that session.
- Content that only the selection stated is erased from the files and from every version in history.
- An entry is erased if no other session stated content in it before. Otherwise it returns to that content.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from tomldiary.entries.facts import head_of
from tomldiary.entries.fields import (
    SOURCE_HINT,
    author,
    bare_source,
    compacted_from,
    said_by,
    shares_turn,
)
from tomldiary.entries.kind import is_uuid
from tomldiary.entries.kinds import EPISODES, FACTS, PREFERENCES, entry_key, entry_kind, home_of
from tomldiary.entries.kinds.episodes import CONSOLIDATION
from tomldiary.entries.kinds.pending import held_entry, place_of
from tomldiary.errors import InvalidValue
from tomldiary.runtime.views import Viewed
from tomldiary.text.mentions import folded, is_mentioned, sought
from tomldiary.text.similarity import identity
from tomldiary.toml.values import When, checked_text, moment, start_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

RECEIPTS = "receipts"
"""The document with the last operations of an adapter, each with a digest of its request."""


@dataclass(frozen=True, slots=True, repr=False)
class ForgetReceipt(Viewed):
    """The counts of an erasure and the digests of the files after it; it holds none of the erased content.

    Turns that were removed from the writers' queues are not counted.

    A receipt of a dry run also has the keys of the entries.

    `str(receipt)` is a summary in one or two sentences.
    """

    entries: int = 0
    """Entries that were erased completely, including those that only history held."""
    conversations: int = 0
    """Conversations that were erased completely."""
    records: int = 0
    """Transactions in history that lost their session, actor, reason and operation id; all with `everything`."""
    files: dict[str, str] = field(default_factory=dict[str, str])
    """SHA-256 in hex of each of the user's files afterwards, by its name in the user's folder."""
    epoch: int = 0
    """The user's fencing token: the number of erasures. Work that began under an earlier one is refused."""
    found_elsewhere: tuple[tuple[str, ...], ...] = ()
    """Namespaces of other owners with the user's name as a label, up to that label. Empty if the user had data."""
    is_done: bool = True
    """False with `dry_run`."""
    keys: tuple[str, ...] = ()
    """With `dry_run`, the keys of the entries that would be erased, return to earlier content, or lose the session's name."""

    @property
    def hint(self) -> str:
        """The warning that namespaces of other owners may hold the user's data; "" if there are none."""
        if not self.found_elsewhere:
            return ""
        first, others = self.found_elsewhere[0], len(self.found_elsewhere) - 1
        more = f" and {others} more" if others else ""
        return (
            "nothing is stored under this user, but namespaces of other owners have the name as a label:"
            f" {first!r}{more}. Their items were not forgotten. If they belong to the user, put them again in a store"
            f" opened with user_label={len(first) - 1}, and forget the other owner."
        )

    def __str__(self) -> str:
        dry = "" if self.is_done else "dry run; "
        counts = f"{dry}entries: {self.entries}, conversations: {self.conversations}, transactions: {self.records}"
        return f"{counts}; {self.hint}" if self.found_elsewhere else counts


@dataclass(frozen=True)
class Selection:
    """The data to erase; of the fields up to `matching`, exactly one is set. Create it with `one_of`."""

    session_id: str = ""
    before: datetime | None = None
    source: str = ""
    everything: bool = False
    key: str = ""
    """The key of an entry, as history shows it."""
    matching: str = ""
    """A text that is part of the content, compared by `text.mentions`."""
    has_intervals: bool = False
    """Whether `key` is the singleton key of a temporal fact, which names all its intervals."""
    turn: str = ""
    """The turn of the episode that `key` or `source` names; what was extracted from it is covered too."""
    episodes: frozenset[str] = frozenset()
    """The ids of the episodes that are covered, which what was derived from them names as its source."""
    operations: Sequence[str] = ()
    """The operation ids that history loses; journals may still hold these turns, which are done."""
    copies: frozenset[tuple[str, ...]] = frozenset()
    """What the entry `key` said; the pending change that added it may have had another id."""
    former: frozenset[tuple[str, str]] = frozenset()
    """The keys that the entry `key` had before a person renamed its table, each with when it was created."""
    receipts: frozenset[str] = frozenset()
    """The operations that wrote or replaced what is erased. Their receipts have digests that could confirm a guess of it."""

    @classmethod
    def one_of(
        cls,
        session_id: object,
        before: object,
        source: object,
        everything: object,
        key: object = None,
        matching: object = None,
    ) -> Selection:
        """Return the selection.

        Raises:
            InvalidValue: Not exactly one argument is given, or it is empty or of the wrong type.
        """
        if everything is not True and everything is not False:
            raise InvalidValue("everything must be True or False.", where="forget")
        texts = {"session_id": session_id, "source": source, "key": key, "matching": matching}
        given = {name: value for name, value in texts.items() if value is not None}
        if len(given) + (before is not None) + everything != 1:
            raise InvalidValue(
                "give exactly one of session_id, before, source, key, matching, everything=True.",
                where="forget",
            )
        if before is not None:
            return cls(before=start_of(cast("When", before), "before"))
        for name, value in given.items():
            text = checked_text(value, name, SOURCE_HINT if name == "source" else "")
            if not (sought(text) if name == "matching" else text.strip()):
                raise InvalidValue(f"{name} must be a non-empty string.", where="forget")
        return cls(everything=everything, **cast("dict[str, Any]", given))

    def covers(
        self, kind: str, path: tuple[str, ...], values: Mapping[str, Any], when: datetime
    ) -> bool:
        """Return whether the selection stated the content of an entry.

        Args:
            kind: The document of the entry.
            path: The table of the entry.
            values: The fields of the entry.
            when: The time at which this state was first stored, for entries without a time.
        """
        if kind == RECEIPTS and path[-1] in self.receipts:
            return True
        source, known = values.get("_source"), entry_kind(kind)
        # The record that an episode was consolidated has its id.
        episode = path[-1] if known.name == CONSOLIDATION else bare_source(str(source or ""))
        if self.session_id:
            said = compacted_from(values) if known is PREFERENCES else said_by(values)
            named = {known.session(path[-1]), author(values), *said}
            return self.session_id in named or (episode in self.episodes and not any(named))
        if episode and (
            episode in self.episodes or episode == bare_source(self.key or self.source)
        ):
            return True
        if self.turn and isinstance(source, str) and shares_turn(source, self.turn):
            return True
        if self.source:
            return isinstance(source, str) and self.names(source, self.source)
        if self.key:
            if known.is_private and self.is_copy(values):
                return True
            return self.is_named(entry_key(path, known.home(kind)))
        if self.matching:
            # A whole UUID also names entries; a part of one would name them by chance.
            named = [path[-1]] if is_uuid(self.matching.strip()) else []
            return self.mentions([*named, *known.stated(path, values)])
        assert self.before is not None  # noqa: S101 - one of the fields is set
        return _updated(values, when) < self.before

    def is_named(self, key: str) -> bool:
        """Return whether the selection names an entry by its key, or an interval by its singleton key."""
        return key == self.key or (self.has_intervals and head_of(key) == self.key)

    def is_copy(self, pending: Mapping[str, Any]) -> bool:
        """Return whether a pending change is of the entry `key`, also if that got another id when it was applied."""
        document, path = place_of(pending)
        if not path:
            return False
        key, held = entry_key(path, home_of(document)), held_entry(pending)
        if held and (key, created_in(held)) in self.former:
            return True
        is_same = self.is_named(key)
        if not self.copies or pending.get("is_new") is not True:
            return is_same
        kind = entry_kind(document)
        is_assigned = not kind.chosen_name(path[-1])
        if is_same and not (is_assigned and kind in {PREFERENCES, EPISODES}):
            return True  # no other entry can have got its id
        # A new entry gets another id if its own is taken, or the id of an equal entry that is stored.
        may_be_renamed = kind is PREFERENCES or (is_assigned and kind in {FACTS, EPISODES})
        return may_be_renamed and statement(document, path, held) in self.copies

    def is_mentioned(self, text: str, session: str) -> bool:
        """Return whether a field of a transaction of a session mentions the selected session, entry or text."""
        if self.matching:
            return self.mentions([text])
        if self.session_id and self._word.search(session):
            text = _word(session).sub("", text)  # "room-2" does not mention "room"
        named = self.session_id or self.key
        return bool(named) and self._word.search(text) is not None

    def mentions(self, texts: Iterable[str]) -> bool:
        """Return whether one of the texts contains the text to erase."""
        wanted = sought(self.matching)
        return any(is_mentioned(wanted, folded(text)) for text in texts)

    @cached_property
    def _word(self) -> re.Pattern[str]:
        return _word(self.session_id or self.key)

    @staticmethod
    def names(source: str, wanted: str) -> bool:
        """Return whether `source` is the session or turn `wanted`, a turn of that session, or turns with that turn."""
        # Not by the beginning, because a session id may have a "#" itself.
        return source.rpartition("#")[0] == wanted or shares_turn(source, wanted)

    def without_name(self, values: Mapping[str, Any], witness: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of an entry that is kept, without the name of the session.

        Args:
            values: The fields of the entry.
            witness: The fields of a state with the same content that other sessions stated; empty if there is none.
        """
        kept, name, joint = dict(values), author(witness), said_by(witness)
        said = said_by(kept)
        if kept.get("_updated_by") == self.session_id and joint:
            said.append(self.session_id)  # it confirmed what these sessions said
        others = {"_created_by": name, "_updated_by": witness.get("_updated_by") or name}
        for field_name, other in others.items():
            if kept.get(field_name) == self.session_id:
                # Without a witness the field is removed, so that the other field still names the author.
                kept[field_name] = other
                if not other:
                    del kept[field_name]
        if self.session_id in said:
            named = [
                one
                for each in said
                for one in ([*joint, name] if each == self.session_id else [each])
            ]
            kept["_said_by"] = list(dict.fromkeys(filter(None, named)))
            if not kept["_said_by"]:
                del kept["_said_by"]
        source = kept.get("_source")
        if isinstance(source, str) and self.names(source, self.session_id):
            del kept["_source"]
        return kept

    def to_table(self) -> dict[str, Any]:
        """Return the fields that are set as a TOML table, so that another process can finish the job."""
        table = {each.name: value for each in fields(self) if (value := getattr(self, each.name))}
        return table if self.before is None else {**table, "before": self.before.isoformat()}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Selection:
        """Return the selection that `to_table` wrote."""
        values = dict(table)
        if "before" in values:
            values["before"] = datetime.fromisoformat(values["before"])
        return cls(**values)


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")


def statement(
    document: str, path: tuple[str, ...], values: Mapping[str, Any] | None
) -> tuple[str, ...]:
    """Return what an entry says, whatever its id: the tables above it and its text; () without a text."""
    text = identity(entry_kind(document).text(values)) if values else ""
    return (*path[:-1], text) if text else ()


def created_in(values: Mapping[str, Any]) -> str:
    """Return when an entry was created, as a text; a person may have written any value there."""
    return str(values.get("_created"))


def content(values: Mapping[str, Any]) -> str:
    """Return the content of an entry; states that differ only in `_` fields have the same content."""
    said = {key: value for key, value in values.items() if not key.startswith("_")}
    return json.dumps(said, sort_keys=True, default=repr)


def _updated(values: Mapping[str, Any], when: datetime) -> datetime:
    for name in ("_updated", "_created"):
        found = moment(values.get(name))
        if found is not None:
            return found
    return when
