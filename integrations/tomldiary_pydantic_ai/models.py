"""The model an agent runs on: looked up at the first request, tried again after a passing failure."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from pydantic_ai import exceptions
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel

from tomldiary.errors import ExtractorUnusable, InvalidValue
from tomldiary.extraction.resolve import DEFAULT_MODEL
from tomldiary.runtime.async_bridge import close_at_loop_end, is_private_loop
from tomldiary_pydantic_ai.connections import with_own_connections
from tomldiary_pydantic_ai.retrying import RetryingModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from pydantic_ai.models.fallback import FallbackOn

    FallbackWhen: TypeAlias = Iterable[type[Exception]] | Callable[[Exception], bool]
    ModelChoice: TypeAlias = Model | str | Sequence[Model | str] | None
    """A model, its name, or several of them in the order in which they are asked; None is the default."""

__all__ = ["GivenModel", "NamedModel", "agent_model", "is_transient"]

_PASSING_STATUS = frozenset({408, 409, 425, 429})
_SERVER_ERROR = 500
_HTTP_CLIENTS = frozenset({"httpcore", "httpcore2", "httpx", "httpx2"})
# Subclasses that newer releases have for what the provider will refuse again.
_PERMANENT: tuple[type[Exception], ...] = tuple(
    getattr(exceptions, name)
    for name in ("ModelQuotaExceededError", "ModelRequestRejectedError")
    if hasattr(exceptions, name)
)


def agent_model(
    model: ModelChoice, retries: int = 3, fallback_on: FallbackWhen | None = None
) -> Model:
    """Return `model` with `retries` further attempts; a name is looked up at the first request.

    Args:
        model: A model, or the name of one; of several, each is asked when the one before has failed.
            None is $EXTRACTOR_MODEL, or else the default model.
        retries: Attempts after the first one, with each model; 0 is none.
        fallback_on: Exceptions after which to try again, or a function that tells. None is
            `is_transient`, and of several models any failure of their service.

    Raises:
        InvalidValue: `model` is none of these, or is "rules".
    """
    if isinstance(model, Sequence) and not isinstance(model, str):
        if not model:
            raise InvalidValue("no model is given.", where="model")
        return _with_fallbacks(
            [_plain(each) for each in model],
            retries,
            _is_of_the_service if fallback_on is None else fallback_on,
        )
    if isinstance(model, Model):
        return GivenModel(model, lambda found: _with_fallbacks([found], retries, fallback_on))
    _check_name(model)
    return NamedModel(model, lambda found: _with_fallbacks([found], retries, fallback_on))


def _plain(model: Model | str) -> Model:
    if isinstance(model, Model):
        return GivenModel(model, lambda found: found)
    _check_name(model)
    return NamedModel(model, lambda found: found)


def _check_name(name: str | None) -> None:
    if name is not None and not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise InvalidValue(
            f"expected a model's name or a pydantic-ai model, found {type(name).__name__}.",
            where="model",
        )
    if name == "rules":
        raise InvalidValue(
            '"rules" is the offline extractor, not a model. Give Diary(agent="rules"), or name a'
            " model here.",
            where="model",
        )


def is_transient(error: Exception) -> bool:
    """Tell whether the same request may succeed a moment later: time-outs, overload, broken lines."""
    if isinstance(error, _PERMANENT):
        return False
    if isinstance(error, exceptions.ModelHTTPError):
        return error.status_code in _PASSING_STATUS or error.status_code >= _SERVER_ERROR
    if isinstance(error, exceptions.ModelAPIError):
        return True
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    # What an HTTP client raised and a provider passed on as it is.
    return any(
        kind.__module__.partition(".")[0] in _HTTP_CLIENTS
        and kind.__name__ in {"NetworkError", "ProtocolError", "TimeoutException"}
        for kind in type(error).__mro__
    )


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
    """A model that is made when a run first needs it, one for each event loop.

    The HTTP connections of a model belong to the loop it runs on, and one diary serves several.
    """

    def __init__(self) -> None:
        Model.__init__(self)  # the wrapper's own would look the model up now
        self._guard = threading.Lock()
        self._made: WeakKeyDictionary[asyncio.AbstractEventLoop, Model] = WeakKeyDictionary()

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
                model = self._made[loop] = self._make()
            return model

    def _make(self) -> Model:
        raise NotImplementedError


class GivenModel(LoopModel):
    """A model object of a host; in an event loop of this package, a copy with connections of its own.

    Args:
        given: The model.
        wrap: Applied to the model, or to its copy.
    """

    def __init__(self, given: Model, wrap: Callable[[Model], Model]) -> None:
        super().__init__()
        self._given = given
        self._wrap = wrap

    def __repr__(self) -> str:
        return f"GivenModel({self._given!r})"

    def _make(self) -> Model:
        return self._wrap(with_own_connections(self._given) if is_private_loop() else self._given)


class NamedModel(LoopModel):
    """A model known by its name only.

    Args:
        name: The model's name; None asks $EXTRACTOR_MODEL, or else is the default model.
        wrap: Applied to the model that is made.
    """

    def __init__(self, name: str | None, wrap: Callable[[Model], Model]) -> None:
        super().__init__()
        self._given = name
        self._wrap = wrap

    def __repr__(self) -> str:
        return f"NamedModel({self._name!r})"

    @property
    def _name(self) -> str:
        return self._given or os.environ.get("EXTRACTOR_MODEL") or DEFAULT_MODEL

    def _make(self) -> Model:
        _check_name(self._name)
        try:
            model = infer_model(self._name)
        except Exception as error:  # errors of the providers' clients have no common class
            reason = str(error).partition(". ")[0].rstrip(".")
            raise ExtractorUnusable(
                f"the model {self._name!r} cannot be used: {reason}. Nothing was changed; name another"
                ' model, or give agent="rules" to work without one.'
            ) from error
        if is_private_loop():
            close_at_loop_end(partial(_close, model))
        return self._wrap(model)


async def _close(model: Model) -> None:
    async with model:  # closes the HTTP client that its provider has made
        pass
