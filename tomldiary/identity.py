"""Whose memory a run is about, and which session it belongs to: one order for every framework.

The user: given explicitly (a text, or what a function returns) → `user_id` in the context or deps of the
run → in its settings, `config["configurable"]` → in its metadata → `langgraph_user_id` → the user that
the server signed in. The session: given explicitly → `session_id` in the same places → `thread_id` →
`conversation_id`. A model decides neither.

A name that is found but cannot be used is an error and never passed over: the next place might name
somebody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from tomldiary.errors import IdentifierError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["field_of", "first_id", "given", "session_of", "user_of"]


def user_of(
    explicit: str | None,
    *,
    hint: str,
    context: Any = None,
    settings: Any = None,
    metadata: Any = None,
) -> str:
    """Return the user of a run.

    Args:
        explicit: What the host was given as the user, see `given`; None looks in the run.
        hint: How to name the user in this framework, for the error.
        context: The context or deps of the run, an object or a mapping.
        settings: What the run was configured with, likewise.
        metadata: The metadata of the run, likewise.

    Raises:
        IdentifierError: Nobody says who the user is, or a name cannot be used.
    """
    signed_in = field_of(settings, "langgraph_auth_user")
    found = [
        ("user_id", explicit),
        *_places("user_id", context, settings, metadata),
        ("langgraph_user_id", field_of(settings, "langgraph_user_id")),
        ("the identity of langgraph_auth_user", field_of(signed_in, "identity")),
        ("langgraph_auth_user_id", field_of(settings, "langgraph_auth_user_id")),
    ]
    return first_id("user", found, hint=hint)


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
        default: The answer where nobody names a session; None makes that an error.

    Raises:
        IdentifierError: Nobody names the session and there is no default, or a name cannot be used.
    """
    found = [
        ("session_id", explicit),
        *_places("session_id", context, settings, metadata),
        ("thread_id", _as_text(field_of(settings, "thread_id"))),
        ("conversation_id", field_of(settings, "conversation_id")),
    ]
    return first_id("session", found, hint=hint, default=default)


def given(what: str, explicit: Any, *arguments: Any) -> Any:
    """Return a name as it was given; a function is called with `arguments` to tell it.

    Raises:
        IdentifierError: The function returned None: going on to other places could pick somebody else.
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


def _places(name: str, context: Any, settings: Any, metadata: Any) -> list[tuple[str, Any]]:
    holders = (("the context", context), ("the settings", settings), ("the metadata", metadata))
    return [(f"{name} in {place}", field_of(holder, name)) for place, holder in holders]


def _as_text(thread: Any) -> Any:
    """Return a number or a UUID as text: as the id of a thread, hosts take these too."""
    return (
        str(thread) if isinstance(thread, int | UUID) and not isinstance(thread, bool) else thread
    )
