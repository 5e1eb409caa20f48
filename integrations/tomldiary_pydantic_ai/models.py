"""Models of agents: created at the first request, and retried after transient errors."""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import WeakKeyDictionary

from pydantic_ai import exceptions
from pydantic_ai.messages import TextPart
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from tomldiary.errors import ExtractorUnusable, InvalidValue, wrong_type
from tomldiary.extraction.extractor import DEFAULT_MODEL, is_retried_as_a_whole, setup_problem
from tomldiary.extraction.failures import NoCompletion
from tomldiary.runtime.async_bridge import close_at_loop_end, is_private_loop
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.writer.attempts import RetryPolicy
from tomldiary.writer.attempts import is_transient as is_transient_for_turns

if TYPE_CHECKING:
    from pydantic_ai.models.fallback import FallbackOn

    FallbackWhen: TypeAlias = Iterable[type[Exception]] | Callable[[Exception], bool]
    ModelChoice: TypeAlias = Model | str | Sequence[Model | str] | None
    """A model, its name, or several of them in the order in which they are asked; None is the default."""

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import ModelRequestParameters

_PAUSES = RetryPolicy(first_pause=0.25)
_CAN_LIMIT_CLIENT = "max_retries" in ModelSettings.__annotations__
"""Whether this release can switch off the retries of a provider's client."""
_CUT = frozenset({"length", "content_filter", "error"})


class UnreadableResponse(NoCompletion, exceptions.UnexpectedModelBehavior):
    """A response that holds no answer of the model."""


class RetryingModel(WrapperModel):
    """Repeats a request after a transient error, with growing pauses or those that the server demands.

    The provider's client is configured not to retry itself. If the whole turn is retried anyway, for example by
    `MemoryWriter`, the first request of a run is sent once and a later one at most twice, so that one broken
    connection does not waste the earlier requests. A response without text and calls ends the run.

    Args:
        wrapped: The model.
        retries: The number of repetitions of one request.
        is_passing: Returns whether an error is transient.
    """

    def __init__(
        self, wrapped: Model, retries: int, is_passing: Callable[[Exception], bool]
    ) -> None:
        super().__init__(wrapped)
        self._retries = max(0, retries)
        self._is_passing = is_passing

    def __repr__(self) -> str:
        return f"RetryingModel({self.wrapped!r}, {self._retries})"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Send a request, and repeat it after a transient error."""
        settings, repeats = self._bounded(model_settings)
        most = self._retries
        if is_retried_as_a_whole.get():
            is_later = any(message.kind == "response" for message in messages)
            most = min(most, int(is_later))
        retries = (1 + most) // (1 + repeats) - 1
        for tries in range(1, 2 + max(0, retries)):
            try:
                response = await self._asked(messages, settings, model_request_parameters)
            except Exception as error:
                # A server that asks for a longer pause refuses an earlier request again.
                if tries > retries or not self._is_passing(error) or _PAUSES.is_exceeded(error):
                    raise
                await asyncio.sleep(_PAUSES.pause(tries, error))
            else:
                return _ended(response)
        raise AssertionError  # the loop returns or raises

    async def _asked(self, *request: Any) -> ModelResponse:
        try:
            return await self.wrapped.request(*request)
        except IndexError as error:
            raise UnreadableResponse("the response has no completion") from error
        except exceptions.UnexpectedModelBehavior as error:
            if type(error) is not exceptions.UnexpectedModelBehavior:
                raise  # a filter, or a limit: the model did answer
            raise UnreadableResponse(error.message, error.body) from error
        except RuntimeError as error:
            if "ALLOW_MODEL_REQUESTS" not in str(error):
                raise
            raise ExtractorUnusable(
                'model requests are not allowed, since ALLOW_MODEL_REQUESTS is False. Give Diary(agent="rules") in tests.'
            ) from error

    def _bounded(self, settings: ModelSettings | None) -> tuple[ModelSettings | None, int]:
        """Return settings that switch off the client's retries, and the number of retries that remain."""
        client: Any = getattr(self.wrapped, "client", None)
        repeats = getattr(client, "max_retries", 0)
        if not isinstance(repeats, int) or repeats <= 0:
            return settings, 0
        if not _CAN_LIMIT_CLIENT or "max_retries" in self.wrapped.unsupported_settings:
            return settings, repeats
        limited: dict[str, Any] = {**(settings or {}), "max_retries": 0}
        return cast("ModelSettings", limited), 0


def _ended(response: ModelResponse) -> ModelResponse:
    """Return a response; if it is empty, one with which a run can end."""
    kinds = {part.part_kind for part in response.parts if getattr(part, "content", None) != ""} - {
        "thinking"
    }
    if kinds or response.finish_reason in _CUT:
        return response
    kept = [part for part in response.parts if part.part_kind == "thinking"]
    return replace(response, parts=[*kept, TextPart("done")])


def with_own_connections(model: Model) -> Model:
    """Return a copy of `model` with a separate HTTP client, or `model` itself if that is not possible.

    Call it in a private event loop; the client is closed when this loop ends. A copy is possible if the provider made
    its HTTP client itself, and the SDK's client can be copied (OpenAI and compatible APIs, Anthropic, Groq). A client
    that was given to the provider is kept, since it may have proxies and certificates of the host.
    """
    if isinstance(model, FallbackModel):
        return _copied(model, models=[with_own_connections(each) for each in model.models])
    if isinstance(model, WrapperModel):
        return _copied(model, wrapped=with_own_connections(model.wrapped))
    # pydantic-ai has no public access to a provider's HTTP client; without these attributes nothing is copied.
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


# Subclasses in newer releases, for errors that a retry does not solve.
_PERMANENT: tuple[type[Exception], ...] = tuple(
    getattr(exceptions, name)
    for name in ("ModelQuotaExceededError", "ModelRequestRejectedError")
    if hasattr(exceptions, name)
)


def agent_model(
    model: ModelChoice, retries: int = 3, fallback_on: FallbackWhen | None = None
) -> Model:
    """Return `model` with `retries` further attempts; a name is resolved at the first request.

    Args:
        model: A model or its name, or several: each is used if the one before has failed. None takes
            $EXTRACTOR_MODEL, or else the default model.
        retries: The number of further attempts with each model.
        fallback_on: The exceptions after which to try again, or a function of the exception. None is
            `is_transient`; before the next of several models, any error of a provider.

    Raises:
        InvalidValue: `model` is neither a model nor a name, or is "rules".
    """
    if isinstance(model, Sequence) and not isinstance(model, str):
        if not model:
            raise InvalidValue(
                f'the list is empty. Name a model, such as "{DEFAULT_MODEL}".', where="model"
            )
        return _with_fallbacks(
            [LoopModel(each, lambda found: found) for each in model],
            retries,
            _is_of_the_service if fallback_on is None else fallback_on,
        )
    return LoopModel(model, lambda found: _with_fallbacks([found], retries, fallback_on))


def _check_name(name: str | None) -> None:
    if name is not None and not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise wrong_type(name, "a model's name or a pydantic-ai model", "model")
    if name == "rules":
        raise InvalidValue(
            '"rules" is the offline extractor, not a model. Give Diary(agent="rules"), or name a'
            " model here.",
            where="model",
        )


def is_transient(error: Exception) -> bool:
    """Return whether the same request may succeed later: after time-outs, overload, broken connections."""
    return not isinstance(error, _PERMANENT) and is_transient_for_turns(error)


def _is_of_the_service(error: Exception) -> bool:
    return is_transient(error) or isinstance(error, exceptions.ModelAPIError)


def _with_fallbacks(
    models: Sequence[Model], retries: int, fallback_on: FallbackWhen | None
) -> Model:
    when: Any = is_transient if fallback_on is None else fallback_on
    if not callable(when):
        when = list(cast("Iterable[type[Exception]]", when))
    is_passing: Any = when if callable(when) else partial(_is_one_of, tuple(when))
    attempts = [RetryingModel(model, retries, is_passing) for model in models]
    if len(attempts) == 1:
        return attempts[0]
    return FallbackModel(*attempts, fallback_on=cast("FallbackOn", when))


def _is_one_of(kinds: tuple[type[Exception], ...], error: Exception) -> bool:
    return isinstance(error, kinds)


class LoopModel(WrapperModel):
    """A model that is created when a run first needs it, one for each event loop.

    The HTTP connections of a model belong to one event loop, but a diary may be used in several. In an event loop of
    this package, a model object of a host is copied, with separate connections.

    Args:
        given: A model or its name; None takes $EXTRACTOR_MODEL, or else the default model.
        wrap: Applied to the created model.
    """

    def __init__(self, given: Model | str | None, wrap: Callable[[Model], Model]) -> None:
        Model.__init__(self)  # the base class would create the model now
        if not isinstance(given, Model):
            _check_name(given)
        self._given = given
        self._wrap = wrap
        self._guard = fork_safe(threading.Lock())
        self._made: WeakKeyDictionary[asyncio.AbstractEventLoop, Model] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"LoopModel({self._choice!r})"

    def __getattr__(self, item: str) -> Any:
        if item == "wrapped":  # never set, so that each access arrives here
            return self._find()
        if item.startswith("__"):
            raise AttributeError(item)
        return super().__getattr__(item)

    def _find(self) -> Model:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self._make()
        with self._guard:
            model = self._made.get(loop)
            if model is None:
                self._drop_closed()
                model = self._made[loop] = self._make()
            return model

    def _drop_closed(self) -> None:
        """Drop the models of closed event loops: their connections refer to the loops, which would be kept forever."""
        for loop in list(self._made):
            with suppress(NotImplementedError):  # a loop that is never closed
                if loop.is_closed():
                    del self._made[loop]

    @property
    def _choice(self) -> Model | str:
        if self._given is not None:
            return self._given
        return os.environ.get("EXTRACTOR_MODEL") or DEFAULT_MODEL

    def _make(self) -> Model:
        model = self._choice
        if isinstance(model, str):
            model = _named(model)
        elif is_private_loop():
            model = with_own_connections(model)
        return self._wrap(model)


def _named(name: str) -> Model:
    """Create the model with a name; in an event loop of this package, it is closed when the loop ends."""
    _check_name(name)
    try:
        model = infer_model(name)
    except Exception as error:  # errors of the providers' clients have no common class
        problem = setup_problem(name).rstrip(".")
        if problem:  # shorter than the provider's sentence
            raise ExtractorUnusable(f"{problem}. Nothing was changed.") from error
        reason = str(error).partition("\n")[0].rstrip(".")
        remedy = "name another model"
        if ":" not in name:
            remedy = f'write the provider before the name, as in "{DEFAULT_MODEL}"'
        raise ExtractorUnusable(
            f"the model {name!r} cannot be used: {reason}. Nothing was changed; {remedy}, or"
            ' give agent="rules" to work without one.'
        ) from error
    if is_private_loop():
        close_at_loop_end(partial(_close, model))
    return model


async def _close(model: Model) -> None:
    async with model:  # closes the HTTP client that its provider has made
        pass
