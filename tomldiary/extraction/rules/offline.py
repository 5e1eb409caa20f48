"""The extractor that needs no model, no key and no network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.errors import InvalidValue, LimitReached
from tomldiary.logging import get_logger

if TYPE_CHECKING:
    from tomldiary.extraction.draft import MemoryDeps

__all__ = ["RulesExtractor"]

_logger = get_logger(__name__)


class RulesExtractor:
    """Stores the user's own first-person sentences, word for word, marked as not verified.

    It is no substitute for a model: it understands nothing. It does not rewrite, merge or correct,
    resolves no "it" or "there", writes no summaries, knows English only, and files a sentence by the
    words in it. A short answer is kept together with the assistant's question. What the user asks to forget
    is not stored, and not removed either: it cannot tell which entry is meant. Each entry says where it came from: `_verified = false`, `_source = "session#turn"`.
    """

    def __repr__(self) -> str:
        return "RulesExtractor()"

    def run(self, message: str, /, *, deps: MemoryDeps) -> int:  # noqa: ARG002 - the draft holds the turn
        """Add the turn's statements to the draft and return how many were new or confirmed."""
        from tomldiary.extraction.rules.rules import find_statements  # noqa: PLC0415 - compiles many patterns

        session = deps.conversations.find(deps.session_id) or {}
        origin = {"_verified": False, "_source": f"{deps.session_id}#{session.get('_turns', 0)}"}
        categories = {name: deps.descriptions.get(name, "") for name in deps.allowed_cats}
        stored = 0
        question = deps.earlier[-1][1] if deps.earlier else ""
        for statement in find_statements(deps.user_msg, categories, question):
            if deps.tool_writes.was_removed(statement.text):
                continue
            try:
                deps.upsert(statement.category, None, statement.text, (), fields=origin)
            except (LimitReached, InvalidValue) as error:
                _logger.warning("a statement was not stored: %s", type(error).__name__)
                # Fresh state may have a place for it; if not, the turn says why.
                deps.leave(statement.category, statement.text, origin)
                continue
            stored += 1
        return stored
