"""The user and the session of a run: one order for every framework.

The user: given explicitly in the host's code (a text, or what a function returns) → the user that a
server signed in → `user_id` in the context or deps of the run → in its settings,
`config["configurable"]` → in its metadata → `langgraph_user_id`. The session: given explicitly →
`session_id` in the same places → `thread_id` → `conversation_id`. A model decides neither.

A client writes context, settings and metadata. So another name beside a signed-in user is an error, and
so is a name that cannot be used: the next place might name another user. An empty text is no name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, cast
from uuid import UUID

from tomldiary.errors import IdentifierError

__all__ = [
    "check_signed_in",
    "current_checkpoint",
    "field_of",
    "first_id",
    "given",
    "kept_thread",
    "named_checkpoint",
    "places_in",
    "saves_checkpoints",
    "session_of",
    "signed_in",
    "user_of",
]

_SERVER_FIELDS = ("langgraph_auth_user", "langgraph_auth_user_id")


def user_of(
    explicit: str | None,
    *,
    hint: str,
    context: Any = None,
    settings: Any = None,
    metadata: Any = None,
    around: Any = None,
) -> str:
    """Return the user of a run.

    Args:
        explicit: The user that the host's code gives, see `given`; None looks in the run.
        hint: How to name the user in this framework, for the error.
        context: The context or deps of the run, an object or a mapping.
        settings: What the run was configured with, likewise.
        metadata: The metadata of the run, likewise.
        around: The settings of the run that this one is part of, likewise.

    Raises:
        IdentifierError: No place names the user, a name cannot be used, or a name differs from the
            signed-in user.
    """
    if explicit is not None:
        return first_id("user", [("user_id", explicit)])
    user = signed_in(settings, around)
    named = [
        *_places("user_id", context, settings, metadata),
        ("langgraph_user_id", _given(field_of(settings, "langgraph_user_id"))),
    ]
    if user is None:
        return first_id("user", named, hint=hint)
    for place, name in named:
        check_signed_in(user, place, name)
    return user


def signed_in(*settings: Any) -> str | None:
    """Return the user that a LangGraph server authenticated for this run or request; None without one.

    Args:
        settings: The settings of runs, in which the server writes `langgraph_auth_user`. If it wrote
            nothing there, the request counts in which this is called.

    Raises:
        IdentifierError: There is a user without a usable identity, or two that differ.
    """
    written = [
        each
        for each in settings
        if each is not None and any(_has(each, name) for name in _SERVER_FIELDS)
    ]
    found: list[tuple[str, Any]] = []
    for each in written:
        user = field_of(each, "langgraph_auth_user")
        if user is not None:
            found.append(_identity("langgraph_auth_user", user))
        else:
            found.append(("langgraph_auth_user_id", field_of(each, "langgraph_auth_user_id")))
    if not written:
        look = getattr(sys.modules.get("langgraph_api.utils"), "get_auth_ctx", None)
        user = field_of(look(), "user") if look is not None else None
        if user is not None:
            found.append(_identity("the user of the request", user))
    named = [(place, _given(name)) for place, name in found]
    if all(name is None for _, name in named):
        return None
    user = first_id("user", named)
    for place, name in named:
        check_signed_in(user, place, name)
    return user


def check_signed_in(user: str | None, place: str, name: Any) -> None:
    """Refuse a name that differs from the signed-in user; None as either of them is no name.

    Raises:
        IdentifierError: They differ. The message quotes neither.
    """
    if user is not None and name is not None and name != user:
        raise IdentifierError(
            f"{place} names another user than the one that the server signed in. Leave it out; to work on"
            " another user's memory, name the user in your own code."
        )


def session_of(
    explicit: str | None,
    *,
    hint: str = "",
    context: Any = None,
    settings: Any = None,
    metadata: Any = None,
    default: str | None = None,
) -> str:
    """Return the session of a run; the arguments are those of `user_of`.

    Args:
        explicit: What the host was given as the session; None looks in the run.
        hint: How to name the session in this framework, for the error.
        context: The context or deps of the run.
        settings: What the run was configured with.
        metadata: The metadata of the run.
        default: The answer if no place names a session; None makes that an error.

    Raises:
        IdentifierError: No place names the session and there is no default, or a name cannot be used.
    """
    found = [
        ("session_id", explicit),
        *_places("session_id", context, settings, metadata),
        ("thread_id", _given(_as_text(field_of(settings, "thread_id")))),
        ("conversation_id", _given(field_of(settings, "conversation_id"))),
    ]
    return first_id("session", found, hint=hint, default=default)


def given(what: str, explicit: Any, *arguments: Any) -> Any:
    """Return a name as it was given; a function is called with `arguments` to tell it.

    Raises:
        IdentifierError: The function returned None; other places could name a different user.
    """
    if not callable(explicit):
        return explicit
    name = explicit(*arguments)
    if name is None:
        raise IdentifierError(f"{what}_id was given as a function, and it returned None.")
    return name


def first_id(
    what: str, found: Iterable[tuple[str, Any]], *, hint: str = "", default: str | None = None
) -> str:
    """Return the first name among `(place, value)` pairs that is not None.

    Raises:
        IdentifierError: There is none and no default, or the first one is blank or no text; names the
            place.
    """
    for place, name in found:
        if name is None:
            continue
        if not isinstance(name, str):
            raise IdentifierError(
                f"{place}: expected text, found {type(name).__name__}. Give the {what} id as text."
            )
        if not name.strip():
            raise IdentifierError(f"{place} is blank. Leave it out or give a name.")
        return name
    if default is not None:
        return default
    raise IdentifierError(f"the {what} is not known. {hint}".rstrip())


def field_of(holder: Any, name: str) -> Any:
    """Return a key of a mapping or an attribute of an object; None if it has none."""
    if isinstance(holder, Mapping):
        return cast("Mapping[str, Any]", holder).get(name)
    return getattr(holder, name, None)


def places_in(config: Any, context: Any) -> dict[str, Any]:
    """Return where a run of LangChain or LangGraph may name its user and session, for `user_of`."""
    settings, metadata = field_of(config, "configurable"), field_of(config, "metadata")
    return {"context": context, "settings": settings, "metadata": metadata}


def saves_checkpoints(settings: Any) -> bool:
    """Whether a LangGraph run with these settings keeps its state in checkpoints."""
    return field_of(settings, "__pregel_checkpointer") not in (None, False)


def kept_thread(settings: Any) -> str:
    """Return the id of the thread in whose checkpoints a graph keeps its state; "" without checkpoints."""
    return str(field_of(settings, "thread_id") or "") if saves_checkpoints(settings) else ""


def named_checkpoint(settings: Any) -> str:
    """Return the id of the checkpoint that a LangGraph run goes on from if its config names one; else "".

    For new input, LangGraph makes a checkpoint first, and it is that one.
    """
    return str(field_of(field_of(settings, "__pregel_replay_state"), "checkpoint_id") or "")


def current_checkpoint(settings: Any) -> str:
    """Return the id of the outermost graph's checkpoint in a LangGraph run; ids of later ones are greater."""
    return str(field_of(field_of(settings, "checkpoint_map"), "") or "")


def _identity(place: str, user: Any) -> tuple[str, Any]:
    """Return a server's user by name: "" for an anonymous one, and never None."""
    identity = field_of(user, "identity")
    if identity is None:
        raise IdentifierError(
            f"{place} has no identity. Return one from the server's authentication."
        )
    return f"the identity of {place}", identity


def _places(name: str, context: Any, settings: Any, metadata: Any) -> list[tuple[str, Any]]:
    holders = (("the context", context), ("the settings", settings), ("the metadata", metadata))
    return [(f"{name} in {place}", _given(field_of(holder, name))) for place, holder in holders]


def _given(name: Any) -> Any:
    """Return a name; None for the empty text that servers and forms write where there is none."""
    return None if name == "" else name


def _has(holder: Any, name: str) -> bool:
    return name in holder if isinstance(holder, Mapping) else hasattr(holder, name)


def _as_text(thread: Any) -> Any:
    """Return a number or a UUID as text: as the id of a thread, hosts take these too."""
    return (
        str(thread) if isinstance(thread, int | UUID) and not isinstance(thread, bool) else thread
    )
