"""Explains a failed extraction in one sentence: the first cause, its host, and what to do.

Errors of frameworks are recognised by name and attributes, so no framework is imported. Secrets are not repeated: an
address is reduced to host and port, and text that looks like a key is masked.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from tomldiary.text.redaction import Redactor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LONGEST = 300
_SECRET = re.compile(
    r"(?i)(?:bearer\s+\S+|\b(?:sk|pk|rk|key|api[-_]?key|token|gsk|xai)[-_=:]\s*[\w*.\-]{4,}|://[^/\s@]+@)"
)
_KEYS = Redactor(["key"])
_ADDRESS = re.compile(r"(?<![\w.+-])[\w.+-]*+://\S+")
_STATUSES = {
    400: ("refused the request", "Check the model's name and its settings."),
    401: ("refused the key", "Check the provider's API key."),
    402: ("wants to be paid first", "Check the account's balance."),
    403: ("does not allow it", "Check the API key and what it may do."),
    404: ("knows no such model or address", "Check the model's name and the base URL."),
    408: ("took too long", "Try again later."),
    413: ("takes no request as long as this", "Give shorter turns, or another model."),
    422: ("refused the request", "Check the model's name and its settings."),
    429: ("has had too many requests", "Try again later, or check the account's quota."),
}
_AGAIN = "Try again later."
_MISTAKES = (AttributeError, NameError, TypeError)
"""Errors of code rather than of a model."""


class NoCompletion(Exception):
    """A response without a completion; gateways report an overload this way, with status 200."""


def cause_and_remedy(error: BaseException) -> tuple[str, str]:
    """Return the cause, and a sentence with the remedy."""
    found = [each for each in causes(error) if not isinstance(each, BaseExceptionGroup)]
    where = _host(found)
    model = where or "the model"
    status = next((number for number in map(status_of, found) if number is not None), None)
    if status is not None:
        said, remedy = _STATUSES.get(status, ("failed", _AGAIN))
        return f"{model} {said}: status {status}{_message(found)}", remedy
    kinds = {kind.__name__ for each in found for kind in type(each).__mro__}
    if "ConnectionRefusedError" in kinds:
        return f"{model} cannot be reached: connection refused", (
            "Start the server, or correct the base URL."
        )
    if "gaierror" in kinds:
        return f"{model} cannot be found: the host name is not known", (
            "Correct the base URL, or check the network."
        )
    if any("timeout" in kind.lower() for kind in kinds):
        return f"{model} did not answer in time", "Try again later, or allow more time."
    if kinds & {"ConnectionError", "ConnectError", "NetworkError", "ProtocolError"}:
        return f"the connection to {model} broke", _AGAIN
    if "JSONDecodeError" in kinds:
        return f"{model} answered with broken JSON", _AGAIN
    if "UsageLimitExceeded" in kinds:
        return f"the model did not finish: {_text(found[0])}", "Name another model."
    if kinds & {"NoCompletion", "UnexpectedModelBehavior"}:
        return f"the model's answer cannot be used: {_text(found[0])}", (
            "Check the base URL, or name another model."
        )
    first = found[0] if found else error
    why = f"{type(first).__name__}{_place(first)}: {_text(first)}"
    if isinstance(first, _MISTAKES):
        return why, "Correct the code, then give the turn again."
    return why, "The turn can be given again."


def _place(error: BaseException) -> str:
    """Return the line of the host's code that has a mistake, or "". A dead letter has no traceback."""
    place = ""
    for frame, line in walk_tb(error.__traceback__ if isinstance(error, _MISTAKES) else None):
        if not str(frame.f_globals.get("__name__")).startswith("tomldiary"):
            place = f" in {PurePath(frame.f_code.co_filename).name}, line {line}"
    return place


def _host(found: Iterable[BaseException]) -> str:
    """Return host and port of the request that failed, or ""."""
    for each in found:
        url = attribute(attribute(each, "request"), "url")
        if url is not None:
            parts = urlsplit(str(url))
            return parts.netloc.rpartition("@")[2]
    return ""


def _message(found: Iterable[BaseException]) -> str:
    """Return the quoted message of a provider's error response, or ""."""
    for each in found:
        body = attribute(each, "body")
        if not isinstance(body, dict):
            continue
        held = cast("dict[str, Any]", body)
        inner: Any = held.get("error", held)
        text: Any = (
            cast("dict[str, Any]", inner).get("message") if isinstance(inner, dict) else inner
        )
        if isinstance(text, str) and text.strip():
            return f', "{_clean(text)}"'
    return ""


def _text(error: BaseException) -> str:
    # pydantic-ai appends the response after ", body:"; it may quote the turn.
    text = str(error).partition(", body:")[0]
    if not isinstance(error, _MISTAKES):
        # After its first sentence, a framework may advise settings that the host cannot change.
        text = text.partition(". ")[0]
    return _clean(text) or "no reason is given"


def _clean(text: str) -> str:
    text = _ADDRESS.sub("[address]", " ".join(text.split()))
    text = _KEYS(_SECRET.sub("[secret]", text)).replace("[redacted: key]", "[secret]")
    return f"{text[:_LONGEST]}…" if len(text) > _LONGEST else text.rstrip(". ")


def attribute(holder: object, name: str) -> Any:
    """Return an attribute of an error or a response; None if it is missing, or its property fails as one of httpx may."""
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - of any class of a host
        return None


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of a failed request, or None."""
    for holder in (error, attribute(error, "response")):
        for name in ("status_code", "status", "http_status", "code"):
            value = attribute(holder, name)
            if isinstance(value, int) and 300 <= value <= 599:  # noqa: PLR2004 - HTTP's range
                return value
    return None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, the members of groups, and their causes."""
    seen: set[int] = set()
    todo = [error]
    while todo:
        each = todo.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, BaseExceptionGroup):
            todo += each.exceptions  # pyright: ignore[reportUnknownMemberType] - of any exceptions
        todo.append(each.__cause__ or each.__context__)
