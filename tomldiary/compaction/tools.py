"""The tools for a compaction model. Like the extraction tools, they return answers for errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol

from tomldiary.extraction.tools import answering
from tomldiary.text.visible import escape_for_model

if TYPE_CHECKING:
    from tomldiary.compaction.draft import CompactionDeps

P = ParamSpec("P")


class CompactionContext(Protocol):
    """An object with the draft as `deps`, such as the run context of a framework."""

    @property
    def deps(self) -> CompactionDeps:
        """The draft to compact."""
        ...


_Tool = Callable[Concatenate[CompactionContext, P], Coroutine[Any, Any, str]]


def _on_preferences(tool: _Tool[P]) -> _Tool[P]:
    return _answering(tool, "Preferences", lambda deps: deps.include_preferences)


def _on_conversations(tool: _Tool[P]) -> _Tool[P]:
    return _answering(tool, "Conversations", lambda deps: deps.include_conversations)


def _answering(tool: _Tool[P], kind: str, takes_part: Callable[[CompactionDeps], bool]) -> _Tool[P]:
    """Return a tool that answers with a sentence if its kind is excluded or the draft refuses a change."""

    @answering
    @functools.wraps(tool)
    async def answer(ctx: CompactionContext, /, *args: P.args, **kwargs: P.kwargs) -> str:
        if not takes_part(ctx.deps):
            return f"❌ {kind} are excluded from this compaction. Change none of them."
        return await tool(ctx, *args, **kwargs)

    return answer


@_on_preferences
async def list_preference_blocks(ctx: CompactionContext) -> str:
    """List all preferences: block id, size and text."""
    lines = [_line(key, entry.get("text", "")) for key, entry in ctx.deps.preference_blocks()]
    return "\n".join(lines) or "(no preferences)"


@_on_preferences
async def get_preference_block(ctx: CompactionContext, block_id: str) -> str:
    """Show one preference with its contexts and counter.

    Args:
        block_id: "category/id" from list_preference_blocks.
    """
    return _fields(ctx.deps.get_preference_block(block_id))


@_on_preferences
async def rewrite_preference_block(
    ctx: CompactionContext, block_id: str, *, text: str, contexts: list[str] | None = None
) -> str:
    """Replace the text of one preference by a shorter one that says the same.

    Args:
        block_id: "category/id" from list_preference_blocks.
        text: The new text.
        contexts: The new contexts; leave out to keep those stored.
    """
    ctx.deps.rewrite_preference_block(block_id, text=text, contexts=contexts)
    return f"✅ Rewrote {block_id}."


@_on_preferences
async def delete_preference_block(ctx: CompactionContext, block_id: str) -> str:
    """Remove a preference that another one covers.

    Args:
        block_id: "category/id" from list_preference_blocks.
    """
    ctx.deps.delete_preference_block(block_id)
    return f"🗑️ Deleted {block_id}."


@_on_conversations
async def list_conversation_blocks(ctx: CompactionContext) -> str:
    """List all conversation summaries: session id, size and summary."""
    lines = [_line(key, entry.get("summary", "")) for key, entry in ctx.deps.conversation_blocks()]
    return "\n".join(lines) or "(no conversations)"


@_on_conversations
async def get_conversation_block(ctx: CompactionContext, session_id: str) -> str:
    """Show one conversation with its keywords and number of turns.

    Args:
        session_id: The session from list_conversation_blocks.
    """
    return _fields(ctx.deps.get_conversation_block(session_id))


@_on_conversations
async def rewrite_conversation_block(
    ctx: CompactionContext, session_id: str, *, summary: str, keywords: list[str] | None = None
) -> str:
    """Replace the summary of one conversation by a shorter one.

    Args:
        session_id: The session from list_conversation_blocks.
        summary: The new summary.
        keywords: The new keywords; leave out to keep those stored.
    """
    ctx.deps.rewrite_conversation_block(session_id, summary=summary, keywords=keywords)
    return f"✅ Rewrote {session_id}."


@_on_conversations
async def delete_conversation_block(ctx: CompactionContext, session_id: str) -> str:
    """Remove the summary of a conversation that no longer matters.

    Args:
        session_id: The session from list_conversation_blocks.
    """
    ctx.deps.delete_conversation_block(session_id)
    return f"🗑️ Deleted {session_id}."


def _line(key: str, text: object) -> str:
    # Escaped, so that stored text cannot look like another block.
    return f"- {escape_for_model(key)} ({len(str(text))} characters): {escape_for_model(str(text))}"


def _fields(entry: dict[str, Any]) -> str:
    return "\n".join(
        escape_for_model(f"{key.removeprefix('_')}: {value}")
        for key, value in entry.items()
        if key != "_said_by"  # a long list after many compactions
    )


COMPACTION_TOOLS = (
    list_preference_blocks,
    get_preference_block,
    rewrite_preference_block,
    delete_preference_block,
    list_conversation_blocks,
    get_conversation_block,
    rewrite_conversation_block,
    delete_conversation_block,
)
"""The tools for a compaction model, in the order of presentation."""
