"""Reads the user and the session of a run or request from LangGraph; the core decides which source has precedence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.runtime import get_runtime

from tomldiary.agents.delegation import places_in
from tomldiary.agents.identity import given, session_of, signed_in, user_of
from tomldiary.agents.turn_messages import digest
from tomldiary.errors import IdentifierError
from tomldiary.retrieval.embedders import name_of

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

Who = str | Callable[[Any, Any], str | None] | None
"""An id; a function of the state and LangGraph's `Runtime` that returns one; or None to look it up."""

_TO_NODE = "branch:to:"
"""The prefix of the channel that triggers a node."""
_HINT = 'Give user_id to the node, put it in the context, or pass config={"configurable": {"user_id": …}}.'


def resolve_user(explicit: Who, state: Any, config: RunnableConfig) -> str:
    """Return the user: given explicitly, authenticated by the server, in the context, or in the config.

    Raises:
        IdentifierError: None of them names a user, a name is blank or not text, or context or config name
            another user than the authenticated one.
    """
    named = given("user", explicit, state, _runtime())
    return user_of(named, hint=_HINT, around=_settings_here(), **_places(config, "user_id"))


def resolve_session(explicit: Who, state: Any, config: RunnableConfig) -> str:
    """Return the session: given, in the context, in the config, or the thread; else "".

    Raises:
        IdentifierError: A name is blank or not text.
    """
    named = given("session", explicit, state, _runtime())
    return session_of(named, **_places(config, "user_id", "session_id"))


class Speaker(NamedTuple):
    """The user of a run."""

    function: str
    """The name of the node's function that returned the user; "" if the run names the user."""
    user: str
    """A digest of the user."""


def speakers_of(explicit: Who, user: str, config: RunnableConfig) -> list[Speaker]:
    """Return the user that a run names, and `user` if a function returned it; both may be missing."""
    found: list[Speaker] = []
    with suppress(IdentifierError):
        found.append(Speaker("", digest(resolve_user(None, None, config))))
    return [*found, Speaker(name_of(explicit), digest(user))] if callable(explicit) else found


def session_here() -> str:
    """Return the session of the running graph; "" outside of one, or if it names none."""
    config = var_child_runnable_config.get()  # see `_settings_here`
    with suppress(IdentifierError):  # a store is no place to complain about a run's settings
        return resolve_session(None, None, config) if config else ""
    return ""


def task_here() -> str:
    """Return the id of LangGraph's task, which a retry keeps; "" outside of a graph."""
    return str(getattr(getattr(_runtime(), "execution_info", None), "task_id", None) or "")


def state_channels(config: RunnableConfig) -> Mapping[str, Any] | None:
    """Return the channels of the running `StateGraph`; None outside of one."""
    # LangGraph gives each task a function that reads the state; the channels are bound to it.
    read: Any = config.get("configurable", {}).get("__pregel_read")
    for bound in getattr(read, "args", ()):
        if isinstance(bound, Mapping):
            channels = cast("Mapping[str, Any]", bound)
            return channels if nodes_of(channels) else None  # an entrypoint has no fields
    return None


def nodes_of(channels: Mapping[str, Any] | None) -> set[str]:
    """Return the names of the nodes of a `StateGraph` with these channels."""
    return {name.removeprefix(_TO_NODE) for name in channels or () if name.startswith(_TO_NODE)}


def signed_in_here() -> str | None:
    """Return the user that a server authenticated for the current run or request, or None.

    Raises:
        IdentifierError: The user has no valid identity.
    """
    return signed_in(_settings_here())


def run_id_of(config: RunnableConfig) -> str:
    """Return the id that the host or the server gave to the run, or ""."""
    info = getattr(_runtime(), "execution_info", None)
    found = (
        getattr(info, "run_id", None)
        or config.get("run_id")
        or (config.get("metadata") or {}).get("run_id")
    )
    return str(found or "")


def _settings_here() -> Any:
    # Not `get_config`, because outside a graph it raises an error, which is slow, and every read asks.
    config = var_child_runnable_config.get()
    return None if config is None else config.get("configurable")


def _places(config: RunnableConfig, *names: str) -> dict[str, Any]:
    return places_in(config, getattr(_runtime(), "context", None), *names)


def _runtime() -> Any:
    try:
        return get_runtime()
    except (RuntimeError, KeyError):  # called outside a graph
        return None
