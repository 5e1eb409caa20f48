"""Connections of a model for one event loop: an HTTP client must not be used in two at once.

The host's runs and the writer's extraction are in two event loops. A model object that both were given
would share one HTTP client between them.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel

from tomldiary.runtime.async_bridge import close_at_loop_end

if TYPE_CHECKING:
    from pydantic_ai.models import Model

__all__ = ["with_own_connections"]


def with_own_connections(model: Model) -> Model:
    """Return a copy of `model` with an HTTP client of its own, or `model` itself if that is not possible.

    Call it in a private event loop; the client is closed when that loop ends. A copy is possible where the
    provider made its HTTP client itself, and the SDK's client can be copied (OpenAI and what speaks its API,
    Anthropic, Groq). A client that was given to the provider stays, as it may have proxies and certificates
    that only the host knows.
    """
    if isinstance(model, FallbackModel):
        return _copied(model, models=[with_own_connections(each) for each in model.models])
    if isinstance(model, WrapperModel):
        return _copied(model, wrapped=with_own_connections(model.wrapped))
    # pydantic-ai has no public way to a provider's HTTP client; without these attributes nothing is copied.
    provider: Any = getattr(model, "_provider", None)
    make_http_client = getattr(provider, "_http_client_factory", None)
    client = getattr(provider, "_client", None)
    if make_http_client is None or not callable(getattr(client, "copy", None)):
        return model
    http_client = make_http_client()
    close_at_loop_end(http_client.aclose)
    twin = _copied(
        provider,
        _own_http_client=http_client,
        _own_client_loop=None,
        _entered_count=0,
        _client=cast("Any", client).copy(http_client=http_client),
    )
    twin.__dict__.pop("_enter_lock", None)  # a lock belongs to an event loop, too
    return _copied(model, _provider=twin)


def _copied(what: Any, **changes: Any) -> Any:
    twin = copy.copy(what)
    for name, value in changes.items():
        setattr(twin, name, value)
    return twin
