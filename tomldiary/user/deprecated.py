"""Deprecated aliases of methods that moved to `alice.facts`, `alice.blocks` and `alice.episodes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from tomldiary.runtime.async_bridge import async_twin
from tomldiary.user.blocks import UserBlocks
from tomldiary.user.context import UserContext, delegated
from tomldiary.user.episodes import UserEpisodes
from tomldiary.user.facts import UserFacts
from tomldiary.user.preferences import UserConversations, UserPreferences

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


def _moved(
    part: Callable[[UserContext], S], method: Callable[Concatenate[S, P], R], now: str
) -> tuple[
    Callable[Concatenate[object, P], R],
    Callable[Concatenate[object, P], Coroutine[Any, Any, R]],
]:
    """Return a deprecated alias of a method, and its coroutine twin; `now` is the replacement."""
    alias, _ = delegated(part, method, method.__qualname__.partition(".")[0])
    alias.__doc__ = f"Deprecated: use `alice.{now}`, which does the same."
    return alias, async_twin(alias)


class DeprecatedNames:
    """Deprecated aliases for older programs; new code uses the accessors. Completion omits them."""

    commit, acommit = _moved(UserFacts, UserFacts.commit, "facts.commit")
    update, aupdate = _moved(UserFacts, UserFacts.update, "facts.update")
    delete, adelete = _moved(UserFacts, UserFacts.delete, "facts.delete")
    get, aget = _moved(UserFacts, UserFacts.get, "facts.get")
    query, aquery = _moved(UserFacts, UserFacts.query, "facts.query")

    block, ablock = _moved(UserBlocks, UserBlocks.__getitem__, "blocks[name]")
    ablocks = _moved(UserBlocks, UserBlocks.all, "blocks.aall")[1]
    set_block, aset_block = _moved(UserBlocks, UserBlocks.set, "blocks.set")
    append_block, aappend_block = _moved(UserBlocks, UserBlocks.append, "blocks.append")
    replace_in_block, areplace_in_block = _moved(UserBlocks, UserBlocks.replace, "blocks.replace")
    forget_block, aforget_block = _moved(UserBlocks, UserBlocks.delete, "blocks.delete")

    add_episode, aadd_episode = _moved(UserEpisodes, UserEpisodes.add, "episodes.add")
    aepisodes = _moved(UserEpisodes, UserEpisodes.list, "episodes.alist")[1]
    session_messages, asession_messages = _moved(
        UserEpisodes, UserEpisodes.messages, "episodes.messages"
    )
    forget_episode, aforget_episode = _moved(UserEpisodes, UserEpisodes.delete, "episodes.delete")

    forget_preference, aforget_preference = _moved(
        UserPreferences, UserPreferences.remove_preference, "remove_preference"
    )
    forget_conversation, aforget_conversation = _moved(
        UserConversations, UserConversations.remove_conversation, "remove_conversation"
    )
