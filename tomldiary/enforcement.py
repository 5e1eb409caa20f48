"""Connects the rules of a diary to its engine, which checks transactions and hand edits with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.entries.kinds import problems_in
from tomldiary.logging import get_logger, tell
from tomldiary.text.visible import one_line

if TYPE_CHECKING:
    from tomldiary.diary import Diary
    from tomldiary.entries.constraints import Constraint
    from tomldiary.toml.document import Document

_logger = get_logger(__name__)


class Enforcement:
    """Lets the engine of a diary check its rules, undo forbidden hand edits and report invalid ones."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        self._engine = diary.engine
        self._engine.on_edit = self._report_edit
        if diary.redactor is not None:
            self._engine.redact = diary.redacted_entry

    def set_rule(self, collection: str, constraint: Constraint) -> None:
        """Set the rule of a collection; see `EntryRules.set`."""
        rules = self._diary.entry_rules
        rules.set(collection, constraint, self._diary.allowed)
        self._engine.rules = rules

    def _report_edit(self, user: str, kind: str, before: Document, after: Document) -> None:
        """Warn of entries that a hand edit has made invalid, because typed reads ignore them."""
        known = {problem.where for problem in problems_in(kind, before, self._diary)}
        found = [each for each in problems_in(kind, after, self._diary) if each.where not in known]
        if found:
            first = found[0]
            place = after.place_of(first.where, self._engine.backend.place(user, kind))
            also = f" problems() lists {len(found) - 1} more." if found[1:] else ""
            told = f"{place}: {first.where}: {first.message}. {first.remedy}{also}"
            tell(_logger, one_line(told))  # a key may contain characters that a terminal hides
