"""Tests of the optional capabilities of a backend."""

from __future__ import annotations

from inspect import get_annotations
from typing import Any

import pytest

from tomldiary.diary import Diary
from tomldiary.storage.open import open_backend
from tomldiary.storage.protocol import (
    Backend,
    CheapTokens,
    FixedDocuments,
    KeepsJournal,
    ListsFolders,
    LocalFolder,
)
from tomldiary.store.operations import Get, Put
from tomldiary.store.store import ItemStore
from tomldiary.testing.backend.fixtures import BackendFixtures

__all__ = ["Capabilities"]

_CAPABILITIES: tuple[type, ...] = (
    CheapTokens,
    FixedDocuments,
    KeepsJournal,
    ListsFolders,
    LocalFolder,
)


class Capabilities(BackendFixtures):
    """Each optional capability agrees with the required methods, and a diary works without it."""

    def test_capabilities_agree_with_the_required_methods(self, backend: Any) -> None:
        opened = open_backend(backend, None)
        alice = Diary(backend, agent="rules").user("alice")
        before = opened.folder_times("alice", [""]) if isinstance(opened, ListsFolders) else None
        alice.upsert_preference("likes", "tea")
        kinds = opened.kinds("alice")
        if isinstance(opened, CheapTokens):
            asked = [*kinds, "facts"]
            assert list(opened.tokens("alice", asked)) == [opened.token("alice", k) for k in asked]
        if isinstance(opened, ListsFolders):
            assert opened.listing("alice", "items/") == ([], ["items"])
            after = opened.folder_times("alice", [""])
            assert before is None or not any(before)
            assert after is None or after != before
        if isinstance(opened, FixedDocuments) and opened.documents is not None:
            assert {"preferences", "conversations", *kinds} <= set(opened.documents)
        if isinstance(opened, LocalFolder):
            assert opened.known_users() == opened.users() == ["alice"]
            assert opened.index_folder("alice") != opened.index_folder("bob")
            assert opened.index_folder("alice").is_relative_to(opened.base_path)

    @pytest.mark.parametrize("left_out", _CAPABILITIES, ids=lambda each: each.__name__)
    def test_a_diary_works_without_an_optional_capability(
        self, backend: Any, left_out: type
    ) -> None:
        opened = open_backend(backend, None)
        others = [each for each in _CAPABILITIES if left_out not in each.__mro__]
        kept = [each for each in others if isinstance(opened, each)]
        diary = Diary(_subset(opened, (Backend, *kept)), agent="rules")
        alice = diary.user("alice")
        alice.upsert_preference("likes", "tea")
        assert set(alice.preferences("likes")) == {"pref001"}
        if isinstance(opened, FixedDocuments):
            return  # items require documents with other names
        store = ItemStore(diary)
        namespace = ("alice", "notes")
        store.run([Put(namespace, "one", {"text": "tea"})])
        store.run([Put(namespace, "two", {"text": "milk"})])
        found = store.run([Get(namespace, "one"), Get(namespace, "two"), Get(namespace, "three")])
        assert [getattr(each, "key", None) for each in found] == ["one", "two", None]


def _subset(backend: Backend, protocols: tuple[type, ...]) -> Any:
    """Return an object with only those members of a backend that belong to some protocols."""
    names = {
        name
        for protocol in protocols
        for base in protocol.__mro__
        for name in (*vars(base), *get_annotations(base))
        if not name.startswith("_")
    }

    def member(name: str) -> property:
        return property(lambda _: getattr(backend, name))

    return type("Subset", (), {name: member(name) for name in names})()
