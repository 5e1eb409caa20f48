"""The tools a compaction model works with; like the extraction tools, they answer and never raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tomldiary.errors import DiaryError

if TYPE_CHECKING:
    from tomldiary.compaction import CompactionDeps

__all__ = [
    "COMPACTION_TOOLS",
    "CompactionContext",
    "delete_conversation_block",
    "delete_preference_block",
    "get_conversation_block",
    "get_preference_block",
    "list_conversation_blocks",
    "list_preference_blocks",
    "rewrite_conversation_block",
    "rewrite_preference_block",
]

_PREFERENCES_OUT = "❌ Preferences take no part in this clean-up."
_CONVERSATIONS_OUT = "❌ Conversations take no part in this clean-up."


class CompactionContext(Protocol):
    """Anything that carries the draft as `deps`."""

    @property
    def deps(self) -> CompactionDeps:
        """The draft to clean up."""
        ...


async def list_preference_blocks(ctx: CompactionContext) -> str:
    """List all preferences: block id, size and text."""
    if not ctx.deps.include_preferences:
        return _PREFERENCES_OUT
    lines = [
        f"- {block_id} ({len(str(entry.get('text', '')))} characters): {entry.get('text', '')}"
        for block_id, entry in ctx.deps.preference_blocks()
    ]
    return "\n".join(lines) or "(no preferences)"


async def get_preference_block(ctx: CompactionContext, block_id: str) -> str:
    """Show one preference with its contexts and counter.

    Args:
        block_id: "category/id" from list_preference_blocks.
    """
    if not ctx.deps.include_preferences:
        return _PREFERENCES_OUT
    try:
        return _fields(ctx.deps.get_preference_block(block_id))
    except DiaryError as error:
        return f"❌ {error}"


async def rewrite_preference_block(
    ctx: CompactionContext, block_id: str, *, text: str, contexts: list[str] | None = None
) -> str:
    """Replace the text of one preference by a shorter one that says the same.

    Args:
        block_id: "category/id" from list_preference_blocks.
        text: The new text.
        contexts: The new contexts; leave out to keep those stored.
    """
    if not ctx.deps.include_preferences:
        return _PREFERENCES_OUT
    try:
        ctx.deps.rewrite_preference_block(block_id, text=text, contexts=contexts)
    except DiaryError as error:
        return f"❌ {error}"
    return f"✅ Rewrote {block_id}."


async def delete_preference_block(ctx: CompactionContext, block_id: str) -> str:
    """Remove a preference that another one covers.

    Args:
        block_id: "category/id" from list_preference_blocks.
    """
    if not ctx.deps.include_preferences:
        return _PREFERENCES_OUT
    try:
        ctx.deps.delete_preference_block(block_id)
    except DiaryError as error:
        return f"❌ {error}"
    return f"🗑️ Deleted {block_id}."


async def list_conversation_blocks(ctx: CompactionContext) -> str:
    """List all conversation summaries: session id, size and summary."""
    if not ctx.deps.include_conversations:
        return _CONVERSATIONS_OUT
    lines = [
        f"- {key} ({len(str(entry.get('summary', '')))} characters): {entry.get('summary', '')}"
        for key, entry in ctx.deps.conversation_blocks()
    ]
    return "\n".join(lines) or "(no conversations)"


async def get_conversation_block(ctx: CompactionContext, session_id: str) -> str:
    """Show one conversation with its keywords and number of turns.

    Args:
        session_id: The session from list_conversation_blocks.
    """
    if not ctx.deps.include_conversations:
        return _CONVERSATIONS_OUT
    try:
        return _fields(ctx.deps.get_conversation_block(session_id))
    except DiaryError as error:
        return f"❌ {error}"


async def rewrite_conversation_block(
    ctx: CompactionContext, session_id: str, *, summary: str, keywords: list[str] | None = None
) -> str:
    """Replace the summary of one conversation by a shorter one.

    Args:
        session_id: The session from list_conversation_blocks.
        summary: The new summary.
        keywords: The new keywords; leave out to keep those stored.
    """
    if not ctx.deps.include_conversations:
        return _CONVERSATIONS_OUT
    try:
        ctx.deps.rewrite_conversation_block(session_id, summary=summary, keywords=keywords)
    except DiaryError as error:
        return f"❌ {error}"
    return f"✅ Rewrote {session_id}."


async def delete_conversation_block(ctx: CompactionContext, session_id: str) -> str:
    """Remove the summary of a conversation that no longer matters.

    Args:
        session_id: The session from list_conversation_blocks.
    """
    if not ctx.deps.include_conversations:
        return _CONVERSATIONS_OUT
    try:
        ctx.deps.delete_conversation_block(session_id)
    except DiaryError as error:
        return f"❌ {error}"
    return f"🗑️ Deleted {session_id}."


def _fields(entry: dict[str, Any]) -> str:
    return "\n".join(f"{key.removeprefix('_')}: {value}" for key, value in entry.items())


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
"""The tools a compaction model is offered, in the order it sees them."""
