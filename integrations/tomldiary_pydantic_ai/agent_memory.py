"""pydantic-deep's memory toolset on a diary: one MEMORY document for each agent, with three tools."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pydantic_ai import RunContext  # noqa: TC002 - the tools' schemas are made from annotations

from tomldiary.agents.options import checked_count, checked_descriptions, checked_text
from tomldiary.agents.submission import errors_logged
from tomldiary.agents.utterances import RunOwner
from tomldiary.identifiers.namespaces import SHARED
from tomldiary.logging import get_logger
from tomldiary.runtime.async_bridge import in_thread
from tomldiary_pydantic_ai.conversation import appending, user_mark
from tomldiary_pydantic_ai.memory_document import (
    DEFAULT_MAX_MEMORY_LINES,
    DEFAULT_MEMORY_DIR,
    DEFAULT_PIN_END_MARKER,
    READ_MEMORY_DESCRIPTION,
    UPDATE_MEMORY_DESCRIPTION,
    WRITE_MEMORY_DESCRIPTION,
    AgentMemory,
    MemoryFile,
    format_memory_prompt,
    get_memory_path,
)
from tomldiary_pydantic_ai.run_toolset import RunToolset, Who, call_id, session_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_ai.messages import InstructionPart

    from tomldiary.diary import Diary

_logger = get_logger(__name__)

_DESCRIPTIONS = {
    "read_memory": READ_MEMORY_DESCRIPTION,
    "write_memory": WRITE_MEMORY_DESCRIPTION,
    "update_memory": UPDATE_MEMORY_DESCRIPTION,
}
_ID = "deep-memory"


class AgentMemoryToolset(RunToolset[Any]):
    """The notes of an agent: shown to it on every request, with tools to read, add and correct them.

    It replaces pydantic-deep's toolset of the same name. The notes are a text block of a diary: additions of
    concurrent agents, runs and processes are all kept, each change is in history, and the model sees the newest lines
    as escaped data.

    Args:
        agent_name: The agent, which names the block.
        memory_dir: A diary, or its folder or address.
        max_lines: The budget of each request, in lines of 80 characters on average.
        descriptions: Other descriptions of `read_memory`, `write_memory` and `update_memory`.
        user_id: The user, for separate notes of each user: a text, or a function of the run context. None keeps one
            document that belongs to no user. Before the first write, its text is read from pydantic-deep's
            `agent_name/MEMORY.md` in the folder, if this file exists.
        max_tokens: The budget of each request in tokens of four characters, instead of `max_lines`.
        pin_marker: All lines above the first occurrence are always shown.
        id: The id of the toolset; None is "deep-memory", followed by the agent's name unless this is "main". Two
            toolsets of one agent need different ids, and prefixes for their tools.

    Raises:
        InvalidValue: The agent's name leads out of its folder, `max_lines` or `max_tokens` is negative, a
            description names no tool, or an option has another type.
    """

    def __init__(
        self,
        *,
        agent_name: str = "main",
        memory_dir: Diary | str | os.PathLike[str] = DEFAULT_MEMORY_DIR,
        max_lines: int = DEFAULT_MAX_MEMORY_LINES,
        descriptions: Mapping[str, str] | None = None,
        user_id: Who[Any] = None,
        max_tokens: int | None = None,
        pin_marker: str = DEFAULT_PIN_END_MARKER,
        id: str | None = None,  # noqa: A002 - the framework's name for it
    ) -> None:
        # The framework takes no colon in an id.
        named = checked_text(agent_name, "agent_name").replace(":", "-")
        name = _ID if named == "main" else f"{_ID}-{named}"
        super().__init__(memory_dir, user_id, None, id=id or name)
        is_place = isinstance(memory_dir, str | os.PathLike)
        self.path = get_memory_path(os.fspath(memory_dir) if is_place else "memory", agent_name)
        self._agent_name = agent_name
        checked_count(max_lines, "max_lines")
        if max_tokens is not None:
            checked_count(max_tokens, "max_tokens")
        self._max_lines, self._max_tokens = max_lines, max_tokens
        self._pin_marker = checked_text(pin_marker, "pin_marker")
        texts = {**_DESCRIPTIONS, **checked_descriptions(descriptions, tuple(_DESCRIPTIONS))}
        tools: tuple[Any, ...] = (self._read_memory, self._write_memory, self._update_memory)
        for tool in tools:
            name = tool.__name__.removeprefix("_")
            self.add_function(
                tool,
                name=name,
                description=texts[name],
                takes_ctx=True,
                docstring_format="google",
                require_parameter_descriptions=True,
            )

    async def _read_memory(self, ctx: RunContext[Any]) -> str:
        """Read all notes."""
        return await in_thread(self._notes(ctx).read)

    async def _write_memory(self, ctx: RunContext[Any], content: str) -> str:
        """Add to the notes.

        Args:
            ctx: The run.
            content: Text to add.
        """
        notes = self._notes(ctx, await call_id(self.diary, ctx, "write", content))
        return await in_thread(notes.write, content)

    async def _update_memory(self, ctx: RunContext[Any], old_text: str, new_text: str) -> str:
        """Correct one place in the notes.

        Args:
            ctx: The run.
            old_text: The text to replace, with enough context that it occurs only once.
            new_text: The text in its place.
        """
        notes = self._notes(ctx, await call_id(self.diary, ctx, "update", old_text, new_text))
        return await in_thread(notes.update, old_text, new_text)

    async def get_instructions(self, ctx: RunContext[Any]) -> list[InstructionPart] | None:
        """Return the newest notes, framed as data; None if there are none or they cannot be read."""
        memory = None
        with errors_logged("ignore", "a run continues without its notes", _logger):
            memory = await in_thread(self.load, ctx)
        if memory is None:
            return None
        text = format_memory_prompt(
            memory, self._max_lines, max_tokens=self._max_tokens, pin_marker=self._pin_marker
        )
        marks = [] if self._user_id is None else user_mark(self.owner(ctx).user)
        return [appending(text), *marks]

    def load(self, ctx: RunContext[Any]) -> MemoryFile | None:
        """Return the notes of a run's agent; None if there are none.

        Raises:
            MemoryAccessError: They cannot be read.
            IdentifierError: `user_id` is a function and returns no user.
        """
        return self._notes(ctx).load()

    def found_owner(self, ctx: RunContext[Any]) -> RunOwner:
        """Return the user whose notes the context of a run names, and its session.

        Raises:
            IdentifierError: `user_id` is a function and returns no user.
        """
        if self._user_id is None:
            return RunOwner(SHARED, session_of(ctx, None))
        return super().found_owner(ctx)

    def _notes(self, ctx: RunContext[Any], operation_id: str = "") -> AgentMemory:
        user, session = self.owner(ctx)
        return AgentMemory(
            self.diary.user(user),
            self._agent_name,
            self.path,
            session_id=session,
            operation_id=operation_id,
        )
