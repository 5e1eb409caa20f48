"""The rules of the conversations document: sessions, turns, summaries, and the limit."""

# ruff: noqa: ARG002, D102 - overrides: `EntryKind` documents them

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from tomldiary.entries.fields import (
    check_length,
    count_of,
    last_used,
    tables_at,
    text_list,
    updated_at,
    with_value,
)
from tomldiary.entries.kind import EntryKind
from tomldiary.entries.models import ConversationItem
from tomldiary.errors import InvalidValue, UnknownEntry
from tomldiary.logging import get_logger
from tomldiary.toml.values import checked_names, checked_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tomldiary.entries.kind import Collected, EntryLine, Group, Rank, Rules, Tables, Writing
    from tomldiary.toml.document import Document
    from tomldiary.toml.edit import Edit

MAX_SUMMARY = 4_000
"""The default maximum number of characters of a summary written by a model."""
_ROOT = "conversations"
_MOST_KEYWORDS, _LONGEST_KEYWORD = 20, 80
_PROGRESS = ("_meta", "compaction")
_OLD = ("0", "0.1", "0.2")
_logger = get_logger(__name__)


class Conversations:
    """Reads the conversations document; with an edit of it, also changes it."""

    def __init__(self, tables: Tables, limit: int = 100) -> None:
        self._tables = tables
        self.limit = limit

    # Reading

    def entries(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the sessions, each once; before version 0.3 these are top-level tables.

        Of a session in both places, the table at the top counts, as for TOMLDiary 0.9.
        """
        top = self.top_level()
        for key in top:
            yield key, cast("Mapping[str, Any]", self._tables.table((key,)))
        yield from (each for each in tables_at(self._tables, _ROOT) if each[0] not in top)

    def find(self, session_id: str) -> Mapping[str, Any] | None:
        """Return a session's fields, or None."""
        is_top = session_id in self.top_level()
        return self._tables.table((session_id,) if is_top else (_ROOT, session_id))

    def top_level(self) -> list[str]:
        """Return the sessions at the root, where they are before version 0.3."""
        meta = self._tables.table(("_meta",))
        if meta is not None and str(meta.get("version", "0")) not in _OLD:
            return []
        return [key for key, _ in tables_at(self._tables) if key not in {"_meta", _ROOT}]

    # Writing

    @property
    def _edit(self) -> Edit:
        return cast("Edit", self._tables)

    def migrate(self) -> None:
        """Rename the session tables of a file before version 0.3; body and comments stay."""
        keys = self.top_level()
        if not keys or self._edit.nest(keys, _ROOT):
            return
        if self._edit.table((_ROOT,)) == {}:
            self._edit.delete((_ROOT,))  # no header can follow it if it is written inline
        for key in keys:
            entry = dict(self._edit.table((key,)) or {})
            if not self._edit.nest([key], _ROOT):
                self._edit.delete((key,))
                self._edit.put((_ROOT, key), entry)

    def ensure(self, session_id: str, *, now: str) -> bool:
        """Create a session if it does not exist; at the limit, the least recently used one is removed.

        Returns:
            Whether the session is new.

        Raises:
            InvalidValue: The id is empty or cannot be stored.
        """
        self.migrate()
        if self._edit.table((_ROOT, session_id)) is not None:
            return False
        if not session_id:
            raise InvalidValue("the session id is empty. Give one.", where=_ROOT)
        known = list(self.entries())
        surplus = len(known) + 1 - max(1, self.limit)
        if surplus > 0:
            # By the last use, not the creation, so that an active old session stays.
            by_use = sorted(known, key=lambda item: (last_used(item[1]), item[0]))
            # Several are removed only if an earlier program had a higher limit.
            log = _logger.warning if surplus > 1 else _logger.info
            what = "the least recently used conversations are removed: %d of %d, as max_conversations is %d"
            log(what, surplus, len(known), self.limit)
            for key, _ in by_use[:surplus]:
                self._edit.delete((_ROOT, key))
        self._edit.put(
            (_ROOT, session_id),
            {"_created": now, "_updated": now, "_turns": 0, "summary": "", "keywords": []},
        )
        return True

    def count_turns(self, session_id: str, turns: int, *, now: str) -> int:
        """Add to the turns of a session, which is created if it does not exist, and of all; return the session's turns."""
        counted = self.count_in_session(session_id, turns, now=now)
        progress = dict(self._edit.table(_PROGRESS) or {})
        for counter in ("turns_since_compaction", "total_turns"):
            progress[counter] = count_of(progress.get(counter), 0) + turns
        self._edit.put(_PROGRESS, progress)
        return counted

    def count_in_session(self, session_id: str, turns: int = 1, *, now: str) -> int:
        """Add to the turns of a session alone, for a draft; return their number."""
        self.ensure(session_id, now=now)
        entry = dict(self._edit.table((_ROOT, session_id)) or {})
        entry["_turns"] = counted = _turns(entry) + turns
        entry["_updated"] = updated_at(entry, now)
        self._edit.put((_ROOT, session_id), entry)
        return counted

    def may_have_removed(self, session_id: str) -> bool:
        """Return whether a session has no turns, and turns were counted in sessions that were removed."""
        if _turns(self.find(session_id) or {}):
            return False
        counted = (self._tables.table(_PROGRESS) or {}).get("total_turns")
        return count_of(counted, 0) > sum(_turns(entry) for _, entry in self.entries())

    def resume(self, session_id: str, turns: int, *, now: str) -> None:
        """Create a session if it does not exist, and continue its count after `turns`."""
        self.ensure(session_id, now=now)
        entry = dict(self._edit.table((_ROOT, session_id)) or {})
        self._edit.put((_ROOT, session_id), {**entry, "_turns": turns})

    def set_summary(
        self, session_id: str, summary: str, keywords: Iterable[str] | None, *, now: str
    ) -> None:
        """Replace the summary of a session, and its keywords unless they are None.

        Raises:
            UnknownEntry: There is no such session.
        """
        self.migrate()
        found = self._edit.table((_ROOT, session_id))
        if found is None:
            raise unknown_session(session_id)
        entry = dict(found)
        entry["summary"] = summary.strip()
        if keywords is not None:
            entry["keywords"] = list(
                dict.fromkeys(word.strip() for word in keywords if word.strip())
            )
        if entry != found:
            entry["_updated"] = updated_at(entry, now)
            self._edit.put((_ROOT, session_id), entry)

    def delete(self, session_id: str) -> None:
        """Remove a session's summary.

        Raises:
            UnknownEntry: There is no such session.
        """
        self.migrate()
        if not self._edit.delete((_ROOT, session_id)):
            raise unknown_session(session_id)


def _turns(entry: Mapping[str, Any]) -> int:
    return count_of(entry.get("_turns"), 0)


def unknown_session(session_id: str) -> UnknownEntry:
    """Return the error for a session without a conversation."""
    return UnknownEntry(
        f"{_ROOT}/{session_id}", "conversations() returns all conversations by session."
    )


def checked_summary(
    summary: str, keywords: Iterable[str] | None, limit: int, where: str
) -> tuple[str, list[str] | None]:
    """Return the checked summary and keywords from a model.

    Raises:
        InvalidValue: The summary is blank or longer than `limit` characters, or there are too many keywords, or
            one is too long.
    """
    summary = checked_text(summary, f"{where}.summary").strip()
    if not summary:
        raise InvalidValue("the summary is blank. The stored one stays as it is.", where=where)
    check_length(len(summary), limit, where, "the summary has")
    if keywords is None:
        return summary, None
    words = list(checked_names(keywords, f"{where}.keywords"))
    if len(words) > _MOST_KEYWORDS or any(len(word) > _LONGEST_KEYWORD for word in words):
        raise InvalidValue(
            f"expected at most {_MOST_KEYWORDS} keywords of {_LONGEST_KEYWORD} characters each. Give the"
            " main topics only.",
            where=where,
        )
    return summary, words


def entry_to_conversation(entry: Mapping[str, Any]) -> ConversationItem:
    """Return a session as a typed item, with defaults for missing and malformed fields."""
    known: dict[str, Any] = {
        "_created": str(entry.get("_created", "")),
        "_updated": last_used(entry),
        "_turns": _turns(entry),
        "summary": str(entry.get("summary", "")),
        "keywords": text_list(entry.get("keywords")),
    }
    return ConversationItem.model_validate(known)


class ConversationKind(EntryKind):
    """`[conversations.session]`: one rolling summary for each session."""

    has_short_layout = True
    is_reserved = True
    longest_key = None
    order = 3
    numbers = ("_turns",)
    shape = "conversations/session"
    shown_at_most = 3
    unchanged_because = (
        "the summary of a conversation is written from its turns; it can be removed with forget."
    )

    def short_roots(self, document: Document) -> list[str]:
        return Conversations(document).top_level()

    def entries(self, tables: Tables, rules: Rules) -> Iterator[tuple[str, Mapping[str, Any]]]:
        return Conversations(tables).entries()

    def names(self, name: str, entry: Mapping[str, Any]) -> str:
        return ""

    def chosen_name(self, name: str) -> str:
        return ""  # a session

    def title(self, name: str, updated: str) -> str:
        return f"conversation of {updated[:10]}"

    def line(self, name: str, entry: Mapping[str, Any], group: Group) -> EntryLine | None:
        summary = entry.get("summary")
        return super().line(name, entry, group) if isinstance(summary, str) and summary else None

    def rank(self, entry: Mapping[str, Any]) -> Rank:
        return (False, 0, last_used(entry))

    def session(self, name: str) -> str:
        return name

    def seen(self, document: Document, rules: Rules) -> Iterator[str]:
        for _, entry in self.entries(document, rules):
            yield entry_to_conversation(entry).updated

    def migrate(self, edit: Edit) -> None:
        Conversations(edit).migrate()

    def get(
        self, tables: Tables, rules: Rules, collection: Collected, key: str
    ) -> Mapping[str, Any] | None:
        return Conversations(tables).find(key)

    def put(
        self, writing: Writing, collection: Collected, key: str, value: Mapping[str, Any]
    ) -> None:
        edit = writing.edit(self.name)
        book = Conversations(edit, writing.rules.max_conversations)
        book.ensure(key, now=writing.now)
        book.set_summary(key, value["summary"], None, now=writing.now)
        entry = cast("Mapping[str, Any]", book.find(key))
        fresh = with_value({**value, "summary": entry["summary"]}, entry, writing.now)
        edit.put((*collection, key), fresh)

    def delete(self, writing: Writing, collection: Collected, key: str) -> None:
        Conversations(writing.edit(self.name)).delete(key)
