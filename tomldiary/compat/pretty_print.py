"""Formats preferences and conversations as human-readable, indented text.

Stored text cannot contain terminal control sequences. It is indented deeper than the id of its entry, unless
`indent_size` is 0.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, TypeGuard, cast

from pydantic import BaseModel

from tomldiary.entries.preferences import by_category
from tomldiary.text.visible import one_line, printable
from tomldiary.toml.parse import parse_toml
from tomldiary.toml.values import checked_count, checked_names, checked_table, checked_text

__all__ = [
    "BasePrettyPrinter",
    "ConversationsPrinter",
    "PreferencesPrinter",
    "pretty_print_conversations",
    "pretty_print_preferences",
]


class BasePrettyPrinter:
    """Base of both printers: indentation, times and metadata.

    Args:
        indent_size: The number of spaces per level; 0 does not indent.
        max_width: The maximum number of characters per line, if the indentation leaves room. Longer text is wrapped.
        fields: The fields to show; None or an empty set shows all.
    """

    def __init__(
        self, indent_size: int = 2, max_width: int = 80, fields: Collection[str] | None = None
    ) -> None:
        self.indent_size = checked_count(indent_size, "indent_size")
        self.max_width = checked_count(max_width, "max_width")
        self.fields = frozenset(() if fields is None else checked_names(fields, "fields"))

    def _indent(self, level: int) -> str:
        return " " * (self.indent_size * level)

    def _format_datetime(self, iso_string: str | datetime) -> str:
        """Return a time as `Jan 02, 2025 01:05 PM`, in its stored time zone; other text is returned unchanged."""
        try:
            return datetime.fromisoformat(str(iso_string)).strftime("%b %d, %Y %I:%M %p")
        except ValueError:
            return one_line(iso_string)

    def _head(self, level: int, key: str, entry: Mapping[str, Any], *, updated: bool) -> str:
        when = entry.get("_updated")
        if not (updated and when):
            return f"{self._indent(level)}{one_line(key)}"
        return f"{self._indent(level)}{one_line(key)} (Updated: {self._format_datetime(when)})"

    def _content(
        self, level: int, entry: Mapping[str, Any], text: str, labels: str, note: str = ""
    ) -> list[str]:
        """Return the lines of the text and of the labels of an entry, of those that it has and `fields` names."""
        shown = [
            name for name in (text, labels) if entry.get(name) and name in (self.fields or (name,))
        ]
        lines = self._wrapped(level, f"{entry[text]}{note}") if text in shown else []
        if labels in shown:
            lines += self._wrapped(level, f"{labels}: {_list(entry[labels])}")
        return lines

    def _wrapped(self, level: int, text: str) -> list[str]:
        indent = self._indent(level)
        width = max(self.max_width - len(indent), 1)
        lines: list[str] = []
        for paragraph in printable(text.replace("\r\n", "\n")).strip("\n").split("\n"):
            wrapped = textwrap.wrap(paragraph, width, break_on_hyphens=False) or [""]
            lines += [f"{indent}{line}".rstrip() for line in wrapped]
        return lines

    def _metadata(self, meta: object) -> str:
        found = _table(meta)
        version, schema = (found.get(key) or "unknown" for key in ("version", "schema_name"))
        indent = self._indent(1)
        return f"Metadata:\n{indent}Version: {one_line(version)}\n{indent}Schema: {one_line(schema)}\n\n"


class PreferencesPrinter(BasePrettyPrinter):
    """Formats the text of a preferences file.

    Args:
        indent_size: The number of spaces per level.
        max_width: The maximum number of characters per line. Longer text is wrapped.
        fields: Which of `text` and `contexts` to show; None or an empty set shows both.
        show_count: Append a count such as `(3x)` to entries that were confirmed more than once.
        show_timestamps: Show the time of the last change of an entry.
    """

    def __init__(
        self,
        indent_size: int = 2,
        max_width: int = 80,
        fields: Collection[str] | None = None,
        show_count: bool = True,  # noqa: FBT001, FBT002 - the ancestor's signature
        show_timestamps: bool = True,  # noqa: FBT001, FBT002 - the same
    ) -> None:
        super().__init__(indent_size, max_width, fields)
        self.show_count = show_count
        self.show_timestamps = show_timestamps

    def format_preferences(
        self,
        prefs_toml: str,
        skip_metadata: bool = True,  # noqa: FBT001, FBT002 - the same
    ) -> str:
        """Return the entries by category, those of each newest first. Missing fields and empty categories are omitted.

        Raises:
            InvalidTOML: The text is not valid TOML. The error has the line and the column.
        """
        document = parse_toml(checked_text(prefs_toml, "prefs_toml"))
        head = "" if skip_metadata else self._metadata(document.get("_meta"))
        tables = {name: each for name, each in by_category(document).items() if each != {}}
        if not tables:
            return f"{head}No preferences found."
        blocks = [self._category(name, entries) for name, entries in tables.items()]
        return f"{head}preferences:\n" + "\n\n".join(blocks)

    def _category(self, name: str, entries: object) -> str:
        title = f"{self._indent(1)}{one_line(name)}:\n"
        if not _is_table(entries):
            return title + "\n".join(self._wrapped(2, str(entries)))
        return title + "\n\n".join(self._entry(*each) for each in _newest_first(entries))

    def _entry(self, key: str, stored: object) -> str:
        entry = stored if _is_table(stored) else {"text": stored}
        head = self._head(2, key, entry, updated=self.show_timestamps)
        count = entry.get("_count")
        is_counted = self.show_count and isinstance(count, int) and count > 1
        times = f" ({count}x)" if is_counted else ""
        return "\n".join([head, *self._content(3, entry, "text", "contexts", times)])


class ConversationsPrinter(BasePrettyPrinter):
    """Formats conversation summaries.

    Args:
        indent_size: The number of spaces per level.
        max_width: The maximum number of characters per line. Longer text is wrapped.
        fields: Which of `summary` and `keywords` to show; None or an empty set shows both.
        show_turns: Show the number of turns.
    """

    def __init__(
        self,
        indent_size: int = 2,
        max_width: int = 80,
        fields: Collection[str] | None = None,
        show_turns: bool = True,  # noqa: FBT001, FBT002 - the ancestor's signature
    ) -> None:
        super().__init__(indent_size, max_width, fields)
        self.show_turns = show_turns

    def format_conversations(
        self,
        convs_dict: Mapping[str, Any],
        skip_metadata: bool = True,  # noqa: FBT001, FBT002 - the same
    ) -> str:
        """Return the conversations, newest first.

        `convs_dict` maps session ids to tables or ConversationItems, and `_meta` to metadata. A complete parsed file
        with a `conversations` table is also accepted.
        """
        checked_table(convs_dict, "convs_dict")
        head = "" if skip_metadata else self._metadata(convs_dict.get("_meta"))
        sessions: dict[str, object] = {
            key: stored.model_dump(by_alias=True) if isinstance(stored, BaseModel) else stored
            for key, stored in convs_dict.items()
            if key != "_meta"
        }
        file = sessions.get("conversations")
        if len(sessions) == 1 and _is_table(file) and all(map(_is_table, file.values())):
            sessions = dict(file)
        if not sessions:
            return f"{head}No conversations found."
        return head + "\n\n".join(self._session(*each) for each in _newest_first(sessions))

    def _session(self, key: str, stored: object) -> str:
        entry = stored if _is_table(stored) else {"summary": stored}
        head = self._head(0, key, entry, updated=True)
        lines = [head, *self._content(1, entry, "summary", "keywords")]
        if self.show_turns and entry.get("_turns") is not None:
            lines.append(f"{self._indent(1)}turns: {one_line(entry['_turns'])}")
        return "\n".join(lines)


def pretty_print_preferences(prefs_toml: str, skip_metadata: bool = True, **kwargs: Any) -> str:  # noqa: FBT001, FBT002 - the ancestor's signature
    """Return `PreferencesPrinter(**kwargs).format_preferences(prefs_toml, skip_metadata)`."""
    return PreferencesPrinter(**kwargs).format_preferences(prefs_toml, skip_metadata)


def pretty_print_conversations(
    convs_dict: Mapping[str, Any],
    skip_metadata: bool = True,  # noqa: FBT001, FBT002 - the ancestor's signature
    **kwargs: Any,
) -> str:
    """Return `ConversationsPrinter(**kwargs).format_conversations(convs_dict, skip_metadata)`."""
    return ConversationsPrinter(**kwargs).format_conversations(convs_dict, skip_metadata)


def _newest_first(tables: Mapping[str, object]) -> list[tuple[str, object]]:
    """Return the items of a table by the time of their last change; those without one follow in their order."""
    return sorted(tables.items(), key=lambda item: _changed(item[1]), reverse=True)


def _changed(entry: object) -> str:
    times = map(_table(entry).get, ("_updated", "_created"))
    return next((str(time) for time in times if time), "")


def _is_table(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def _table(value: object) -> Mapping[str, Any]:
    return value if _is_table(value) else {}


def _list(value: object) -> str:
    parts = cast("list[object]", value) if isinstance(value, list | tuple) else [value]
    return ", ".join(one_line(part) for part in parts)
