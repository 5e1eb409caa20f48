"""The memory that an agent's model is shown: which entries, in which order, and as what text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tomldiary.agents.options import checked_count, checked_counter, checked_text, one_of
from tomldiary.retrieval.render import render_memory
from tomldiary.text.visible import scrub

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.retrieval.ranking import MemoryLines
    from tomldiary.user.user import UserDiary


class ShownMemory:
    """Reads and writes out a user's memory for a model, by the options of an adapter.

    Args:
        max_tokens: The budget of the text.
        token_counter: Counts the tokens of a text; None estimates them by script.
        query: "cut" puts entries that match the user's words first if the memory exceeds the budget, "prompt" always;
            "none" orders entries by count and date.
        heading: A line above the memory.
        name: The name of the memory, if an agent has several.

    Raises:
        InvalidValue: An option has a value that is not listed here.
    """

    def __init__(
        self,
        max_tokens: int,
        token_counter: Callable[[str], int] | None,
        query: str,
        heading: str = "",
        name: str = "",
    ) -> None:
        self._query = one_of("query", query, ("cut", "prompt", "none"))
        self._max_tokens = checked_count(max_tokens, "max_tokens", least=1)
        self._token_counter = checked_counter(token_counter)
        self._heading = scrub(checked_text(heading, "heading"))
        self._name = name

    def lines(self, user: UserDiary, session: str, words: str) -> MemoryLines:
        """Return the memory as lines, without what the model sees in this session anyway.

        Args:
            user: The user.
            session: The session of the run.
            words: What the user said.
        """
        return user.memory_lines(**self._chosen(session, words))

    async def alines(self, user: UserDiary, session: str, words: str) -> MemoryLines:
        """Do what `lines` does without holding the event loop."""
        return await user.amemory_lines(**self._chosen(session, words))

    def _chosen(self, session: str, words: str) -> dict[str, Any]:
        return {
            "query": words if words and self._query != "none" else None,
            "but_session": session,
            "query_above": self._max_tokens if self._query == "cut" else None,
            "token_counter": self._token_counter,
        }

    def form(self, look_up: str) -> dict[str, Any]:
        """Return the arguments by which `render_memory` and `next_injection` write the lines out.

        Args:
            look_up: The tool that finds omitted entries; "" if the model has none.
        """
        return {
            "max_tokens": self._max_tokens,
            "token_counter": self._token_counter,
            "heading": self._heading,
            "look_up": look_up,
            "name": self._name,
        }

    def text(self, lines: MemoryLines, look_up: str) -> str:
        """Return the lines as framed text within the budget; "" if there are none."""
        return render_memory(lines.shown, **self.form(look_up))
