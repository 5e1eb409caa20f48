"""Finds the user and the session of a run, in the same order for every framework.

User: explicit in the application's code (a string, or the result of a function) → the user authenticated by a
server → `user_id` in the context or deps of the run → in its settings, `config["configurable"]` → in its
metadata → `langgraph_user_id`. Session: explicit → `session_id` in the same places → `thread_id` →
`conversation_id`. A model never chooses them.

Clients can write context, settings and metadata. Therefore a name that differs from the authenticated user is an
error. An invalid name is also an error, because the next place could name another user. An empty string is ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast
from uuid import UUID

from tomldiary.entries.fields import MAX_SESSION, check_length
from tomldiary.errors import IdentifierError, InvalidValue
from tomldiary.identifiers.namespaces import SHARED
from tomldiary.runtime.callables import is_async, misfit
from tomldiary.toml.values import check_unicode

T = TypeVar("T")
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
        explicit: The user from the application's code, see `given`; None searches the run.
        hint: How to name the user in this framework, for the error message.
        context: The context or deps of the run, an object or a mapping.
        settings: The settings of the run, in the same form.
        metadata: The metadata of the run, in the same form.
        around: The settings of the enclosing run, in the same form.

    Raises:
        IdentifierError: No place names the user, a name is invalid, or a name differs from the
            authenticated user.
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
    """Return the user that a LangGraph server authenticated for this run or request, or None.

    Args:
        settings: The settings of runs, in which the server writes `langgraph_auth_user`. Without this key, the
            user of the current request is returned.

    Raises:
        IdentifierError: A user has no valid identity, or two users differ.
    """
    found: list[tuple[str, Any]] = []
    for each in settings:
        user = field_of(each, "langgraph_auth_user")
        if user is not None:
            found.append(_identity("langgraph_auth_user", user))
        elif each is not None and any(_has(each, name) for name in _SERVER_FIELDS):
            found.append(("langgraph_auth_user_id", field_of(each, "langgraph_auth_user_id")))
    if not found:
        auth_context = getattr(sys.modules.get("langgraph_api.utils"), "get_auth_ctx", None)
        user = field_of(auth_context(), "user") if auth_context is not None else None
        if user is None:
            return None
        found.append(_identity("the user of the request", user))
    named = [(place, _given(name)) for place, name in found]
    if all(name is None for _, name in named):
        return None
    user = first_id("user", named)
    for place, name in named:
        check_signed_in(user, place, name)
    return user


def check_signed_in(user: str | None, place: str, name: Any) -> None:
    """Refuse a name that differs from the authenticated user; None for either of them is ignored.

    Raises:
        IdentifierError: The names differ. The message quotes neither.
    """
    if user is not None and name is not None and name != user:
        raise IdentifierError(
            f"{place} names another user than the one that the server signed in. Leave it out; to work on"
            " another user's memory, name the user in your own code."
        )


def session_of(
    explicit: str | None, *, context: Any = None, settings: Any = None, metadata: Any = None
) -> str:
    """Return the session of a run, or "" if no place names one; the arguments are those of `user_of`.

    Raises:
        IdentifierError: A name is invalid.
    """
    found = [
        ("session_id", explicit),
        *_places("session_id", context, settings, metadata),
        ("thread_id", _given(_as_text(field_of(settings, "thread_id")))),
        ("conversation_id", _given(field_of(settings, "conversation_id"))),
        # LangGraph passes it on to a run that code within a run calls with settings of its own.
        ("thread_id in the metadata", _given(_as_text(field_of(metadata, "thread_id")))),
    ]
    return first_id("session", found, default="")


def checked_id(option: str, explicit: T, *parameters: str) -> T:
    """Return an id, a function that returns one, or None, unchanged.

    Args:
        option: "user_id" or "session_id".
        explicit: The id or function.
        parameters: What a function is called with.

    Raises:
        IdentifierError: It is blank, neither text nor a function, an async function, or one with other parameters.
    """
    if is_async(explicit):
        raise IdentifierError(f"{option}: an async function cannot be used. Give a plain function.")
    if callable(explicit):
        reason = misfit(explicit, *parameters)
        if reason:
            called = f"({', '.join(parameters)})"
            raise IdentifierError(
                f"{option}: a call with {called} fails, {reason}. Give it the parameters {called}."
            )
    elif explicit is not None:
        first_id(option.removesuffix("_id"), [(option, explicit)])
    return explicit


def given(what: str, explicit: Any, *arguments: Any) -> Any:
    """Return a name, or the result of a function that is called with `arguments`.

    Raises:
        IdentifierError: The function returned None; other places could name a different user.
    """
    if not callable(explicit):
        return explicit
    name = explicit(*arguments)
    if name is None:
        raise IdentifierError(f"the function {what}_id returned None. Return the id of the {what}.")
    return name


def first_id(
    what: str, found: Iterable[tuple[str, Any]], *, hint: str = "", default: str | None = None
) -> str:
    """Return the first name among `(place, value)` pairs that is not None.

    Raises:
        IdentifierError: All values are None and there is no default, or the first name is blank or not a
            string, a session's name cannot be stored, or a user's is that of the data without an owner. The message
            names the place.
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
        if what == "session":
            _check_storable(place, name)
        elif name == SHARED:  # any other text names a user
            raise IdentifierError(f"{place} is reserved for data of no user. Give another id.")
        return name
    if default is not None:
        return default
    raise IdentifierError(f"the {what} is not known. {hint}".rstrip())


def _check_storable(place: str, name: str) -> None:
    try:
        check_unicode(name, place)
        check_length(len(name), MAX_SESSION, place, "the session id has")
    except InvalidValue as error:
        raise IdentifierError(str(error)) from None


def field_of(holder: Any, name: str) -> Any:
    """Return the value of a key or an attribute, or None if it is missing."""
    if isinstance(holder, Mapping):
        return cast("Mapping[str, Any]", holder).get(name)
    return getattr(holder, name, None)


def saves_checkpoints(settings: Any) -> bool:
    """Return whether a LangGraph run with these settings saves its state in checkpoints."""
    return field_of(settings, "__pregel_checkpointer") not in (None, False)


def kept_thread(settings: Any) -> str:
    """Return the id of the thread that stores a graph's checkpoints; "" without checkpoints."""
    return str(field_of(settings, "thread_id") or "") if saves_checkpoints(settings) else ""


def named_checkpoint(settings: Any) -> str:
    """Return the id of the checkpoint from which a LangGraph run continues if its config names one; otherwise "".

    For new input, LangGraph first creates a checkpoint, and its id is returned.
    """
    return str(field_of(field_of(settings, "__pregel_replay_state"), "checkpoint_id") or "")


def current_place(settings: Any) -> tuple[str, str]:
    """Return the id of the outermost graph's checkpoint in a LangGraph run, and the task; later checkpoints are greater."""
    checkpoint = field_of(field_of(settings, "checkpoint_map"), "")
    return str(checkpoint or ""), str(field_of(settings, "checkpoint_ns") or "")


def begins_again(settings: Any, before: str) -> bool:
    """Return whether the thread of a LangGraph run was deleted after the checkpoint `before`, and begun again."""
    now = current_place(settings)[0]
    try:
        is_earlier = now != before and _step_of(now) <= _step_of(before)
    except ValueError:
        is_earlier = True  # ids of another saver do not tell the order
    return is_earlier and not named_checkpoint(settings)


def is_resumed(settings: Any) -> bool:
    """Return whether a LangGraph run continues one that was interrupted or failed, and so repeats its unfinished tasks."""
    return bool(field_of(settings, "__pregel_resuming"))


def saved_user(metadata: Any) -> str:
    """Return the user of the run that saved a LangGraph checkpoint; "" if its metadata names none.

    LangGraph copies settings and metadata of a run into the metadata of its checkpoints, but not the context. An update
    of the state counts for no user.
    """
    try:
        found = user_of(None, hint="", settings=metadata)
    except IdentifierError:
        return ""
    return "" if field_of(metadata, "source") == "update" else found


def _step_of(checkpoint: str) -> int:
    """Return the number of a checkpoint in its thread, which LangGraph writes into the id, counted from 0."""
    return (UUID(checkpoint).clock_seq + 2) % 2**14


def _identity(place: str, user: Any) -> tuple[str, Any]:
    """Return a description and the identity of a server's user; "" if the server does not authenticate, but never None."""
    identity = field_of(user, "identity")
    # Without authentication, `is_authenticated` is false. With it, an empty identity must not let a client name a user.
    if identity is None or (identity == "" and field_of(user, "is_authenticated")):
        raise IdentifierError(
            f"{place} has no identity. Return one from the server's authentication."
        )
    return f"the identity of {place}", identity


def _places(name: str, context: Any, settings: Any, metadata: Any) -> list[tuple[str, Any]]:
    configurable = 'config["configurable"]'
    holders = (("the context", context), (configurable, settings), ("the metadata", metadata))
    return [(f"{name} in {place}", _given(field_of(holder, name))) for place, holder in holders]


def _given(name: Any) -> Any:
    """Return a name, or None for "", which servers and forms use for a missing name."""
    return None if name == "" else name


def _has(holder: Any, name: str) -> bool:
    return name in holder if isinstance(holder, Mapping) else hasattr(holder, name)


def _as_text(thread: Any) -> Any:
    """Return a number or a UUID as text, because frameworks also accept these as thread ids."""
    return (
        str(thread) if isinstance(thread, int | UUID) and not isinstance(thread, bool) else thread
    )
