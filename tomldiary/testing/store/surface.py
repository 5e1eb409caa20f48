"""Calls a store by its sync or its async methods, and has the fixtures of all parts of the suite."""

from __future__ import annotations

import asyncio
import inspect
import time
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    Opener = Callable[..., "Calls"]

_VERBS = ("put", "get", "search", "delete", "list_namespaces", "batch")
_TIME_LIMIT = 20.0  # seconds
sync_only = pytest.mark.parametrize("surface", ["sync"], indirect=True)
"""Marks a test that uses threads, and therefore the sync methods."""
async_only = pytest.mark.parametrize("surface", ["async"], indirect=True)
"""Marks a test that uses tasks, and therefore the async methods."""


class Calls:
    """Calls a store by its sync methods, or by its async methods on one event loop, for the same tests."""

    def __init__(self, store: Any, runner: asyncio.Runner | None) -> None:
        self.store = store
        self.runner = runner
        """The event loop of the async methods; None if the sync methods are called."""

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb not in _VERBS:
            raise AttributeError(verb)
        runner = self.runner
        if runner is None:
            return getattr(self.store, verb)
        method = getattr(self.store, f"a{verb}")

        def call(*args: Any, **kwargs: Any) -> Any:
            return runner.run(method(*args, **kwargs))

        return call

    def gather(
        self, make: Callable[[Any], Iterable[Awaitable[Any]]], *, return_exceptions: bool = False
    ) -> list[Any]:
        """Return the results of async calls that run at the same time; `make` gets the store and makes the calls."""

        async def run() -> list[Any]:
            return await asyncio.gather(*make(self.store), return_exceptions=return_exceptions)

        assert self.runner is not None
        return self.runner.run(run())


class Embedder:
    """Embeds a text by its pairs of characters, and records the embedded texts."""

    dims = 32

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_broken = False

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each text."""
        if self.is_broken:
            raise RuntimeError("the embedder is unavailable")
        self.asked += texts
        return [self.vector(text) for text in texts]

    def vector(self, text: str) -> list[float]:
        """Return a text's vector."""
        found = [0.0] * self.dims
        for first, second in zip(text, [*text[1:], " "], strict=True):
            found[(ord(first) * 31 + ord(second)) % self.dims] += 1.0
        return found


class StoreFixtures:
    """The members that a subclass overrides, and the fixtures of all tests."""

    known_faults: ClassVar[dict[str, str]] = {}
    """Tests that are known to fail, with the reason; they are strict `xfail`s."""
    surfaces: ClassVar[tuple[str, ...]] = ("sync", "async")
    """The kinds of methods to test."""
    has_vectors: ClassVar[bool] = True
    """Whether `make_store` accepts an index."""

    def make_store(
        self,
        tmp_path: Path,
        *,
        index: dict[str, Any] | None = None,
        ttl: dict[str, Any] | None = None,
    ) -> Any:
        """Return a new, empty store, or a context manager (also async) or a coroutine that yields one.

        Args:
            tmp_path: A folder that only this test uses.
            index: LangGraph's `IndexConfig`, or None.
            ttl: LangGraph's `TTLConfig`, or None.
        """
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _known_fault(self, request: pytest.FixtureRequest) -> None:
        reason = self.known_faults.get(request.node.originalname)
        if reason is not None:
            request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))

    @pytest.fixture(params=["sync", "async"])
    def surface(self, request: pytest.FixtureRequest) -> str:
        """The kind of methods to call: "sync" or "async"."""
        if request.param not in self.surfaces:
            pytest.skip(f"{type(self).__name__} has no {request.param} methods")
        return str(request.param)

    @pytest.fixture
    def opened(self, surface: str, tmp_path: Path) -> Iterator[Opener]:
        """Opens stores: `opened(index=…, ttl=…)`."""
        with ExitStack() as stack:
            runner = stack.enter_context(asyncio.Runner())

            def make(**config: Any) -> Calls:
                store = self.make_store(tmp_path, **config)
                if inspect.isawaitable(store):
                    store = runner.run(awaited(store))
                if hasattr(store, "__aenter__") and surface == "async":
                    manager = store
                    store = runner.run(manager.__aenter__())
                    stack.callback(lambda: runner.run(manager.__aexit__(None, None, None)))
                elif hasattr(store, "__enter__"):
                    store = stack.enter_context(store)
                return Calls(store, runner if surface == "async" else None)

            yield make

    @pytest.fixture
    def store(self, opened: Opener) -> Calls:
        """A new, empty store without an index."""
        return opened()

    @pytest.fixture
    def base(self) -> Any:
        """The module of LangGraph's operations, imported here because the suite can be imported without it."""
        return import_module("langgraph.store.base")

    @pytest.fixture
    def embedder(self) -> Embedder:
        """An embedder that records its texts."""
        return Embedder()

    @pytest.fixture
    def embedding(self, opened: Opener, embedder: Embedder) -> Opener:
        """Opens stores that embed some fields: `embedding("a", "b", ttl=…)`."""
        self.needs_vectors()
        index = {"dims": embedder.dims, "embed": embedder}
        return lambda *fields, **more: opened(index={**index, "fields": [*fields]}, **more)

    @pytest.fixture
    def indexed(self, embedding: Opener) -> Calls:
        """A new, empty store that embeds the field `text`."""
        return embedding("text")

    def needs_vectors(self) -> None:
        """Skip a test if the store accepts no index."""
        if not self.has_vectors:
            pytest.skip(f"{type(self).__name__} has no vectors")


async def awaited(work: Any) -> Any:
    """Return the result of an awaitable."""
    return await work


def keys(items: Sequence[Any]) -> list[str]:
    """Return the keys of items."""
    return [item.key for item in items]


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors."""
    product = sum(a * b for a, b in zip(one, other, strict=True))
    lengths = sum(a * a for a in one) * sum(b * b for b in other)
    return product / lengths**0.5


def until(claim: Callable[[], object]) -> None:
    """Wait until `claim` returns a true value.

    Raises:
        AssertionError: It did not return one within 20 seconds.
    """
    end = time.monotonic() + _TIME_LIMIT
    while not claim():
        if time.monotonic() > end:
            raise AssertionError("the condition did not hold within 20 seconds")
        time.sleep(0.01)
