"""The methods and attributes that a subclass overrides, and the fixtures of all tests."""

from __future__ import annotations

import asyncio
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import pytest

from tomldiary.diary import Diary
from tomldiary.storage.open import open_backend
from tomldiary.storage.shared.backend import SharedBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from pathlib import Path

    from tomldiary.storage.protocol import Backend, BackendProtocol
    from tomldiary.user.user import UserDiary

_USERS = (
    "alice", "alice ", "alice@example.org", "Alice", "a b", "日本", "e", "e\u0301", "\u00e9", "😀", "😁", "con", "a%2fb", "a/b",
    f"{'x' * 120}1", f"{'x' * 120}2",
)  # fmt: skip


def check_same(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Assert that long lists are equal and name the first difference; pytest's comparison of them takes minutes."""
    pairs = enumerate(zip_longest(found, wanted))
    first = next((at for at, (one, other) in pairs if one != other), None)
    if first is not None:
        raise AssertionError(
            f"[{first}] is {found[first : first + 1]}, not {wanted[first : first + 1]}"
        )


class BackendFixtures:
    """The members that a subclass overrides, and the fixtures of all tests."""

    users: tuple[str, ...] = _USERS
    """User ids whose data the backend must store separately."""

    def make_backend(self, tmp_path: Path) -> Backend | BackendProtocol:
        """Return a new, empty backend."""
        raise NotImplementedError

    def close_backend(self, backend: Any) -> None:
        """Close a backend after a test; the suite itself closes a `SharedBackend`."""

    @pytest.fixture
    def closing(self) -> Iterator[Callable[[Any], Any]]:
        """Registers a backend to be closed after the test, and returns it."""
        backends: list[Any] = []

        def remember(backend: Any) -> Any:
            backends.append(backend)
            return backend

        yield remember
        for each in backends:
            self.close_backend(each)
            if isinstance(each, SharedBackend):
                each.close()

    @pytest.fixture
    def backend(self, tmp_path: Path, closing: Callable[[Any], Any]) -> Any:
        """A new, empty backend."""
        return closing(self.make_backend(tmp_path))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in a new event loop."""
        return asyncio.run(work)

    def diary(self, backend: Any) -> Diary:
        """Return a diary that requires no model and does not merge similar texts."""
        return Diary(backend, agent="rules", max_prefs_per_category=100_000, similarity=101)

    def likes(self, user: UserDiary) -> list[str]:
        """Return the texts of a user's likes, oldest first."""
        return [item.text for item in user.preferences("likes").values()]

    def stored_text(self, backend: Any) -> str:
        """Return everything that is stored as one text; override it to read the storage directly."""
        opened = open_backend(backend, None)
        found: list[str] = []
        for user in opened.users():
            found += [user, *opened.records(user)]
            documents = (opened.read(user, kind) for kind in opened.kinds(user))
            found += [each.text for each in documents if each is not None]
        return "\n".join(found)
