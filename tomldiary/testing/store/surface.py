"""One way to call a store, whether by its sync or its async methods; and what all parts of the suite share."""

from __future__ import annotations

import asyncio
import inspect
import time
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = [
    "Calls",
    "Embedder",
    "StoreFixtures",
    "async_only",
    "awaited",
    "cosine",
    "keys",
    "sync_only",
    "until",
]

_VERBS = ("put", "get", "search", "delete", "list_namespaces", "batch")
_PATIENCE = 20.0  # seconds
sync_only = pytest.mark.parametrize("surface", ["sync"], indirect=True)
"""Marks a test of threads, which need the sync methods."""
async_only = pytest.mark.parametrize("surface", ["async"], indirect=True)
"""Marks a test of tasks, which need the async methods."""


class Calls:
    """A store called by its sync methods, or by its async ones on one event loop; the tests are the same."""

    def __init__(self, store: Any, runner: asyncio.Runner | None) -> None:
        self.store = store
        self.runner = runner
        """The loop of the async methods; None if the sync ones are called."""

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


class Embedder:
    """Embeds a text by the letters it has, and remembers what it was asked for."""

    dims = 32

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_broken = False

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each text."""
        if self.is_broken:
            raise RuntimeError("the embedder is away")
        self.asked += texts
        return [self.vector(text) for text in texts]

    def vector(self, text: str) -> list[float]:
        """Return a text's vector."""
        found = [0.0] * self.dims
        for first, second in zip(text, [*text[1:], " "], strict=True):
            found[(ord(first) * 31 + ord(second)) % self.dims] += 1.0
        return found


class StoreFixtures:
    """What a subclass says about its store, and how the tests get at it."""

    known_faults: ClassVar[dict[str, str]] = {}
    """Tests that are known to fail, each with the reason; they are strict `xfail`s."""
    surfaces: ClassVar[tuple[str, ...]] = ("sync", "async")
    """Which methods to test."""
    has_vectors: ClassVar[bool] = True
    """Whether `make_store` takes an index."""

    def make_store(
        self,
        tmp_path: Path,
        *,
        index: dict[str, Any] | None = None,
        ttl: dict[str, Any] | None = None,
    ) -> Any:
        """Return a new, empty store: a store, a (async) context manager of one, or a coroutine.

        Args:
            tmp_path: A folder of the test's own.
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
        """Which methods are called."""
        if request.param not in self.surfaces:
            pytest.skip(f"{type(self).__name__} has no {request.param} methods")
        return str(request.param)

    @pytest.fixture
    def opened(self, surface: str, tmp_path: Path) -> Iterator[Callable[..., Calls]]:
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
    def store(self, opened: Callable[..., Calls]) -> Calls:
        """A new, empty store without index."""
        return opened()

    @pytest.fixture
    def base(self) -> Any:
        """The module of LangGraph's operations; the suite can be imported without it."""
        return import_module("langgraph.store.base")

    @pytest.fixture
    def embedder(self) -> Embedder:
        """What embeds."""
        return Embedder()

    @pytest.fixture
    def embedding(self, opened: Callable[..., Calls], embedder: Embedder) -> Callable[..., Calls]:
        """Opens stores that embed some fields: `embedding("a", "b", ttl=…)`."""
        self.needs_vectors()
        index = {"dims": embedder.dims, "embed": embedder}
        return lambda *fields, **more: opened(index={**index, "fields": [*fields]}, **more)

    @pytest.fixture
    def indexed(self, embedding: Callable[..., Calls]) -> Calls:
        """A new, empty store that embeds the field `text`."""
        return embedding("text")

    def needs_vectors(self) -> None:
        """Skip a test if the store takes no index."""
        if not self.has_vectors:
            pytest.skip(f"{type(self).__name__} has no vectors")


async def awaited(work: Any) -> Any:
    """Return what an awaitable comes to."""
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
    """Wait until something holds.

    Raises:
        AssertionError: It did not within 20 seconds.
    """
    end = time.monotonic() + _PATIENCE
    while not claim():
        if time.monotonic() > end:
            raise AssertionError("waited for 20 seconds in vain")
        time.sleep(0.01)
