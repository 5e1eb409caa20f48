"""Deprecated aliases of methods that moved to `alice.facts`, `alice.blocks` and `alice.episodes`.

Names that other libraries use for the same raise an AttributeError with the name that is used here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Concatenate, NoReturn, ParamSpec, TypeVar

from tomldiary.errors import missing_attribute
from tomldiary.runtime.async_bridge import async_twin
from tomldiary.user.blocks import UserBlocks
from tomldiary.user.context import UserContext, delegated
from tomldiary.user.episodes import UserEpisodes
from tomldiary.user.facts import UserFacts
from tomldiary.user.preferences import UserConversations, UserPreferences

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.user.context import MethodAndTwin

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


_ADD = "add_turn(user_msg, assistant_msg, session_id) or upsert_preference(category, text)"
NAMES_OF_OTHERS = {
    **dict.fromkeys(("add", "add_memory", "add_messages", "remember", "save", "store"), _ADD),
    **dict.fromkeys(("all", "get_all", "list", "memories"), "preferences()"),
    **dict.fromkeys(("clear", "delete_all", "delete_user", "reset"), "forget(everything=True)"),
    "accept": "review.accept(id)",
    "commit_model": "facts.commit(model)",
    "recall_facts": "facts.query(type, valid_at=…) or recall(query, kinds=['facts'])",
    "recall_scored": "recall(query, kinds=['episodes'])",
    "reject": "review.reject(id)",
    "search": "recall(query)",
    "snapshot": "export()",
    "to_pandas": "preferences().to_pandas() or history().to_pandas()",
    "update_block": "blocks.set(name, text)",
    "working": "blocks.all()",
}
"""By names of other libraries and of other objects, what does the same for a user."""


def _moved(
    part: Callable[[UserContext], S], method: Callable[Concatenate[S, P], R], now: str
) -> MethodAndTwin[P, R]:
    """Return a deprecated alias of a method, and its coroutine twin; `now` is the replacement."""
    alias, _ = delegated(part, method, method.__qualname__.partition(".")[0])
    alias.__doc__ = f"Deprecated: use `alice.{now}`, which does the same."
    return alias, async_twin(alias)


class DeprecatedNames:
    """Deprecated aliases for older programs; new code uses the accessors. Completion omits them."""

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_attribute(self, name, NAMES_OF_OTHERS.get(name))

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
