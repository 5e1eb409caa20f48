"""The older names of methods that moved to `alice.facts`, `alice.blocks` and `alice.episodes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from tomldiary.runtime.async_bridge import async_twin
from tomldiary.user.blocks import UserBlocks
from tomldiary.user.context import delegated
from tomldiary.user.conversations import UserConversations
from tomldiary.user.episodes import UserEpisodes
from tomldiary.user.facts import UserFacts
from tomldiary.user.preferences import UserPreferences

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DeprecatedNames"]

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


def _moved(
    method: Callable[Concatenate[S, P], R], part: str, now: str
) -> Callable[Concatenate[object, P], R]:
    """Return a deprecated name of a method; `now` is what its docstring says to use."""
    alias = delegated(part, method)
    alias.__doc__ = f"Deprecated: use `{now}`, which does the same."
    return alias


class DeprecatedNames:
    """Names that older programs use; new code uses the accessors. Completion leaves them out."""

    commit = _moved(UserFacts.commit, "facts", "alice.facts.commit")
    update = _moved(UserFacts.update, "facts", "alice.facts.update")
    delete = _moved(UserFacts.delete, "facts", "alice.facts.delete")
    get = _moved(UserFacts.get, "facts", "alice.facts.get")
    query = _moved(UserFacts.query, "facts", "alice.facts.query")
    acommit = async_twin(commit)
    aupdate = async_twin(update)
    adelete = async_twin(delete)
    aget = async_twin(get)
    aquery = async_twin(query)

    block = _moved(UserBlocks.__getitem__, "blocks", "alice.blocks[name]")
    set_block = _moved(UserBlocks.set, "blocks", "alice.blocks.set")
    append_block = _moved(UserBlocks.append, "blocks", "alice.blocks.append")
    replace_in_block = _moved(UserBlocks.replace, "blocks", "alice.blocks.replace")
    forget_block = _moved(UserBlocks.delete, "blocks", "alice.blocks.delete")
    ablocks = async_twin(_moved(UserBlocks.all, "blocks", "alice.blocks.aall"))
    ablock = async_twin(block)
    aset_block = async_twin(set_block)
    aappend_block = async_twin(append_block)
    areplace_in_block = async_twin(replace_in_block)
    aforget_block = async_twin(forget_block)

    add_episode = _moved(UserEpisodes.add, "episodes", "alice.episodes.add")
    session_messages = _moved(UserEpisodes.messages, "episodes", "alice.episodes.messages")
    forget_episode = _moved(UserEpisodes.delete, "episodes", "alice.episodes.delete")
    aadd_episode = async_twin(add_episode)
    aepisodes = async_twin(_moved(UserEpisodes.list, "episodes", "alice.episodes.alist"))
    asession_messages = async_twin(session_messages)
    aforget_episode = async_twin(forget_episode)

    forget_preference = _moved(
        UserPreferences.remove_preference, "_preferences", "alice.remove_preference"
    )
    aforget_preference = async_twin(forget_preference)

    forget_conversation = _moved(
        UserConversations.remove_conversation, "_conversations", "alice.remove_conversation"
    )
    aforget_conversation = async_twin(forget_conversation)
