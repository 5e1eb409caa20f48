"""The tools an extraction model works with: functions on a draft, answering in short sentences.

Each takes a context whose `deps` is a `MemoryDeps`; pydantic-ai's `RunContext` is one. They raise no errors:
the answer then begins with ❌ and says what the model can do.
"""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

from tomldiary.entries.facts import schema_named
from tomldiary.entries.fields import data_text
from tomldiary.entries.preferences import NEW
from tomldiary.errors import (
    DiaryError,
    DocumentError,
    LimitReached,
    UnknownEntry,
    WeakClaim,
    without_paths,
)
from tomldiary.extraction.draft import MemoryDeps, preference_line, quoted
from tomldiary.toml.values import in_utc

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = [
    "EXTRACTION_TOOLS",
    "FACT_TOOLS",
    "ToolContext",
    "category_lines",
    "commit_fact",
    "fact_lines",
    "forget_preference",
    "list_categories",
    "list_conversation_summary",
    "list_facts",
    "list_preferences",
    "remove_fact",
    "update_conversation_summary",
    "upsert_preference",
]

P = ParamSpec("P")
_NEARLY_FULL = 0.8
_SHOWN = 200  # characters of a text repeated in an answer
_LISTED = 8_000  # characters of one answer of list_preferences
_FEWEST = 500  # of them for a category
_LISTED_FACTS = 4_000  # characters of one answer of list_facts
_NO_ID = frozenset({"", "null", "none"})  # what models write for an id that they leave out


class ToolContext(Protocol):
    """An object with the draft as `deps`, such as the run context of a framework."""

    @property
    def deps(self) -> MemoryDeps:
        """The draft to work on."""
        ...


def answering(tool: Callable[P, Coroutine[Any, Any, str]]) -> Callable[P, Coroutine[Any, Any, str]]:
    """Return a tool that answers with the error if the draft refuses a change.

    Raises:
        DocumentError: A person has to correct the document, so the turn fails and is kept.
    """

    @functools.wraps(tool)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return await tool(*args, **kwargs)
        except DocumentError:
            raise
        except DiaryError as error:
            return f"❌ {without_paths(str(error))}"

    return answer


async def list_categories(ctx: ToolContext) -> str:
    """List the categories that preferences can be filed under."""
    return category_lines(ctx.deps)


def category_lines(deps: MemoryDeps) -> str:
    """Return the categories of a draft with their descriptions, a line each."""
    return "\n".join(
        f"- **{name}**{_described(deps.descriptions.get(name, ''))}" for name in deps.allowed_cats
    )


def _described(description: str) -> str:
    return f": {' '.join(description.split())}" if description else ""


async def list_preferences(ctx: ToolContext, category: str | None = None) -> str:
    """List stored preferences with their ids, and how full each category is.

    Args:
        category: The category to list; leave out to list all of them.
    """
    deps = ctx.deps
    if category is not None and category not in deps.allowed_cats:
        return _no_category(deps, category)
    if category is not None:
        return _list_category(ctx, category, _LISTED)
    names = [name for name in deps.allowed_cats if deps.preferences.count(name)]
    share = max(_FEWEST, _LISTED // max(1, len(names)))
    return "\n\n".join(_list_category(ctx, name, share, in_part=True) for name in deps.allowed_cats)


def _list_category(ctx: ToolContext, category: str, budget: int, *, in_part: bool = False) -> str:
    lines = [
        preference_line(category, key, entry) for key, entry in ctx.deps.preferences.items(category)
    ]
    shown: list[str] = []
    for line in reversed(lines):  # the newest stand at the end
        budget -= len(line) + 1
        if budget < 0:
            break
        shown.insert(0, line)
    if left := len(lines) - len(shown):
        how = (
            f"list_preferences('{category}') shows more of them"
            if in_part
            else "upsert_preference tells you if one is similar"
        )
        shown.insert(0, f"({left} older ones are stored; {how})")
    shown = shown or [f"- {category}: nothing stored yet"]
    return "\n".join([f"📊 {_check_preference_limits(ctx, category)}", *shown])


def _check_preference_limits(ctx: ToolContext, category: str) -> str:
    """Return how full a category is: ✅ has space, ⚠️ from 80 % on, ❌ full."""
    limit = ctx.deps.max_prefs_per_category
    count = ctx.deps.preferences.count(category)
    if count >= limit:
        return (
            f"❌ Category '{category}' is at limit ({count}/{limit}). Update or forget a preference;"
            " no new one fits."
        )
    if count >= limit * _NEARLY_FULL:
        return (
            f"⚠️ Category '{category}' is nearly full ({count}/{limit}). Rather update than create."
        )
    return f"✅ Category '{category}' has space ({count}/{limit})"


def _find_similar_preferences(  # pyright: ignore[reportUnusedFunction] - the ancestor's name
    ctx: ToolContext, category: str, text: str, min_similarity: int | None = None
) -> list[tuple[str, str, int]]:
    """Return (category/id, text, score) of the entries that resemble `text`, best first."""
    found = ctx.deps.preferences.similar(ctx.deps.similarity, category, text)
    return [
        (f"{category}/{match.id}", match.text, round(match.score))
        for match in found
        if min_similarity is None or match.score >= min_similarity
    ]


@answering
async def upsert_preference(
    ctx: ToolContext,
    category: str,
    id: str | None = None,  # noqa: A002 - the argument's name is part of the tool
    text: str | None = None,
    contexts: list[str] | None = None,
    suppress_count_increment: bool = False,  # noqa: FBT001, FBT002 - a model names its arguments
) -> str:
    """Store a preference, change one, or confirm one that came up again.

    Args:
        category: One of the categories from list_categories.
        id: The id of a stored preference, as it is listed, to change or confirm it; leave out for a
            new one; "new" stores a new one although a similar one exists.
        text: What to remember, in a few words. Leave out, with an id, to only confirm.
        contexts: Short labels of the situations it applies to, such as "work" or "travel".
        suppress_count_increment: True if this corrects a preference without confirming it.
    """
    deps = ctx.deps
    if category not in deps.allowed_cats:
        return _no_category(deps, category)
    if id is not None and id.strip().lower() in _NO_ID and not deps.preferences.find(category, id):
        id = None  # noqa: A001 - the tool's word
    key = deps.preferences.wanted(category, id)
    if text is not None and id != NEW:
        found = None if key is None else deps.preferences.find(category, key)
        suggestion = _suggest(ctx, category, text) if found is None else None
        if suggestion:
            return suggestion
    try:
        outcome = deps.upsert(
            category, key, text, contexts or [], count_up=not suppress_count_increment
        )
    except LimitReached:
        return _check_preference_limits(ctx, category)
    except UnknownEntry:
        return (
            f"❌ {category}/{key} does not exist. list_preferences('{category}') shows the ids; give"
            " text to create a preference."
        )
    place = quoted(f"{category}/{outcome.id}")
    if outcome.action == "boosted":
        return f"✅ Boosted {place} (count: {outcome.count})."
    if outcome.action == "merged":
        return f"✅ {place} says the same already; boosted it (count: {outcome.count})."
    if outcome.action == "updated":
        return f"✅ Updated {place}: '{quoted(text or '')}' (count: {outcome.count})."
    warning = _check_preference_limits(ctx, category)
    return f"✅ Created {place}: '{quoted(text or '')}'." + (
        "" if warning.startswith("✅") else f" {warning}"
    )


def _suggest(ctx: ToolContext, category: str, text: str) -> str:
    """Return an answer that points to similar entries, or nothing if the text can be stored."""
    deps = ctx.deps
    if deps.preferences.same(category, text) is not None:
        return ""  # equal text is merged, no question asked
    found = deps.preferences.similar(deps.similarity, category, text)
    elsewhere = deps.preferences.elsewhere(category, text)
    if not found and not elsewhere:
        return ""
    lines = [
        f"  • {category}/{quoted(match.id)}: '{quoted(match.text)}' ({match.score:.0f}% match"
        + (f"; ⚠️ conflict: {match.conflict}, not a duplicate)" if match.conflict else ")")
        for match in found
    ]
    other, key = category, ""
    moves: list[str] = []
    for other, key in elsewhere:
        lines.append(f"  • {other}/{quoted(key)}: the same text in another category")
        moves.append(
            f"To move it: forget_preference('{other}', id='{quoted(key)}'), then store it."
        )
    if found:
        other, key = category, found[0].id
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    create = f"To store it all the same: upsert_preference('{category}', id='new', text='{shown}')"
    space = _check_preference_limits(ctx, category)
    return "\n".join(
        [
            "❌ Similar preferences found:",
            *lines,
            "",
            (
                f"To update one: upsert_preference('{other}', id='{quoted(key)}', text='{shown}')"
                " (without text to confirm it)"
            ),
            space if space.startswith("❌") else create,
            *moves,
        ]
    )


@answering
async def forget_preference(
    ctx: ToolContext,
    category: str,
    id: str,  # noqa: A002 - the argument's name is part of the tool
) -> str:
    """Remove a preference that is no longer true or that the user wants forgotten.

    Args:
        category: The category it is filed under.
        id: The id of the preference.
    """
    if category not in ctx.deps.allowed_cats:
        return _no_category(ctx.deps, category)
    id = ctx.deps.preferences.named(category, id)  # noqa: A001 - the tool's word
    try:
        text = ctx.deps.forget(category, id)
    except UnknownEntry:
        return f"❌ {category}/{id} does not exist. list_preferences('{category}') shows the ids."
    return f"🗑️ Deleted {category}/{id}: '{quoted(text)}'."


async def list_conversation_summary(ctx: ToolContext, session_id: str) -> str:
    """Show the summary, keywords and number of turns of a conversation.

    Args:
        session_id: The conversation to show.
    """
    if ctx.deps.conversations.find(session_id) is None:
        return f"❌ There is no session {session_id!r}."
    return ctx.deps.pretty_session(session_id)


@answering
async def update_conversation_summary(
    ctx: ToolContext, summary: str, keywords: list[str] | None = None
) -> str:
    """Replace the summary of the current conversation.

    Args:
        summary: What the conversation was about so far, in three to five sentences.
        keywords: The main topics; leave out to keep those stored.
    """
    ctx.deps.summarise(summary, keywords)
    return f"✅ Updated the summary of session '{ctx.deps.session_id}'."


def _no_category(deps: MemoryDeps, category: str) -> str:
    return f"❌ Category '{category}' is not allowed. Use one of: {', '.join(deps.allowed_cats)}."


EXTRACTION_TOOLS = (
    list_categories,
    list_preferences,
    upsert_preference,
    forget_preference,
    list_conversation_summary,
    update_conversation_summary,
)
"""The tools an extraction model is offered, in the order it sees them."""


# Typed facts; offered where a type is registered


@answering
async def list_facts(ctx: ToolContext, type: str | None = None) -> str:  # noqa: A002 - a model's word
    """List stored facts with their ids.

    Args:
        type: The type to list; leave out to list all of them.
    """
    return "\n".join(fact_lines(ctx.deps, type)) or "(none)"


@answering
async def commit_fact(
    ctx: ToolContext,
    type: str,  # noqa: A002 - a model's word
    fields: dict[str, Any],
    confidence: float = 1.0,
    valid_from: str | None = None,
) -> str:
    """Store a typed fact, or replace the one that it is about.

    Args:
        type: A type of facts.
        fields: The fields of the fact by name.
        confidence: How sure it is, from 0 to 1.
        valid_from: When it began to hold, such as "2026-03-01", for a temporal type; leave out for now.
    """
    try:
        fact_id = ctx.deps.commit_fact(type, fields, confidence, valid_from)
    except WeakClaim as error:
        stored = str(error.stored).removesuffix(".0")  # a rounded one would be too little
        return (
            f"❌ {quoted(error.where)} has confidence {stored}, and yours is only {error.claimed:g}. It stays. If the"
            f" user is sure, give a confidence of at least {stored}."
        )
    return f"✅ Stored facts/{fact_id}: {quoted(data_text(fields))}."


@answering
async def remove_fact(
    ctx: ToolContext,
    id: str,  # noqa: A002 - a model's word
) -> str:
    """Remove a fact that the user takes back.

    Args:
        id: The id of the fact, as it is listed.
    """
    fact_id = id.removeprefix("facts/")
    try:
        ctx.deps.remove_fact(fact_id)
    except UnknownEntry:
        return f"❌ facts/{quoted(fact_id)} does not exist. list_facts() shows the ids."
    return f"🗑️ Deleted facts/{fact_id}."


def fact_lines(deps: MemoryDeps, type_: str | None = None) -> list[str]:
    """Return the facts of a draft that hold, a line each, the newest if there are too many.

    Raises:
        SchemaError: The type is not registered.
    """
    book = deps.facts
    names = deps.fact_schemas if type_ is None else (schema_named(deps.fact_schemas, type_).name,)
    if book is None:
        return []
    at = datetime.now(UTC) if deps.context_now is None else in_utc(deps.context_now)
    found = [
        (str(held.entry.get("_updated", "")), f"- {name}/{held.key}: {data_text(held.entry)}")
        for name in names
        for held in book.held(name)
        if held.holds(at)
    ]
    lines: list[str] = []
    left = _LISTED_FACTS
    for _, line in sorted(found, reverse=True):
        left -= len(line)
        if left < 0:
            lines.append(f"({len(found) - len(lines)} older ones are stored)")
            break
        lines.append(quoted(line, _LISTED_FACTS))
    return lines


FACT_TOOLS = (list_facts, commit_fact, remove_fact)
"""The tools for facts, in the order a model sees them."""
