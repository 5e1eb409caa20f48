"""Tests of the six async methods, of a diary that uses them, and of the optional capabilities of a backend."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from inspect import get_annotations
from typing import Any

import pytest

from tomldiary.diary import Diary
from tomldiary.runtime.sources import HOOKS
from tomldiary.storage import protocol
from tomldiary.storage.open import open_backend
from tomldiary.storage.protocol import (
    Backend,
    BackendProtocol,
    CheapTokens,
    FixedDocuments,
    KeepsHidden,
    ListsFolders,
    LocalFolder,
)
from tomldiary.store.operations import Get, Put
from tomldiary.store.store import ItemStore
from tomldiary.testing.backend.fixtures import BackendFixtures, check_same

_TOML = '[_meta]\nversion = "0.3"\n\n# kept\n[preferences.likes.pref001]\ntext = "{text}"\n'
_AT_ONCE = 100  # calls; more could time out while they wait for a connection


class Documents(BackendFixtures):
    """Documents of users are stored separately and byte for byte."""

    many_users: int = 1_100
    """More users than the storage lists at once; lower it if this takes too long."""

    def test_an_unknown_document_is_none_and_leaves_no_trace(self, backend: Any) -> None:
        assert self.run(backend.load("ghost", "preferences")) is None
        assert self.run(backend.exists("ghost", "preferences")) is False
        assert self.run(backend.list_users()) == []

    @pytest.mark.parametrize(
        "text",
        [
            "plain",
            "ünïcode 日本 😀",
            "e\u0301 \u00e9",
            "two\\nlines",
            'many"\r\nlines = "',
            'blank"\n\n# ',
            "trailing  ",
            "\\u202e\\u0000\\\\",
            "x" * 500_000,
        ],
        ids=[
            "plain",
            "unicode",
            "decomposed",
            "lines",
            "carriage returns",
            "comments",
            "spaces",
            "escapes",
            "half a megabyte",
        ],
    )
    def test_a_saved_document_comes_back_byte_for_byte(self, backend: Any, text: str) -> None:
        whole = _TOML.format(text=text)
        for content in (whole, f"\ufeff{whole}\n\n", whole[:-1]):
            self.run(backend.save("alice", "preferences", content))
            assert self.run(backend.load("alice", "preferences")) == content
        assert self.run(backend.exists("alice", "preferences")) is True

    def test_saving_again_from_another_event_loop_replaces(self, backend: Any) -> None:
        for text in ("long " * 1000, "medium", "short"):
            self.run(backend.save("alice", "preferences", _TOML.format(text=text)))
        assert self.run(backend.load("alice", "preferences")) == _TOML.format(text="short")

    def test_documents_of_one_user_are_apart(self, backend: Any) -> None:
        self.run(backend.save("alice", "preferences", _TOML.format(text="p")))
        self.run(backend.save("alice", "conversations", _TOML.format(text="c")))
        self.run(backend.delete("alice", "preferences"))
        assert self.run(backend.load("alice", "preferences")) is None
        assert self.run(backend.exists("alice", "preferences")) is False
        assert self.run(backend.load("alice", "conversations")) == _TOML.format(text="c")
        assert self.run(backend.list_users()) == ["alice"]
        self.run(backend.delete("alice", "conversations"))
        assert self.run(backend.list_users()) == []  # no document of the user is left

    def test_each_kind_has_its_own_document(self, backend: Any) -> None:
        kept: list[str] = []
        for kind in ("preferences", "conversations", "facts", "blocks", "receipts"):
            with suppress(Exception):  # of an optional kind
                self.run(backend.save("alice", kind, _TOML.format(text=kind)))
                kept.append(kind)
        for kind in kept:
            assert self.run(backend.load("alice", kind)) == _TOML.format(text=kind)
        self.run(backend.delete_user("alice"))
        assert [self.run(backend.load("alice", kind)) for kind in kept] == [None] * len(kept)

    def test_users_never_share_a_document(self, backend: Any) -> None:
        for number, user in enumerate(self.users):
            self.run(backend.save(user, "preferences", _TOML.format(text=number)))
        for number, user in enumerate(self.users):
            content = self.run(backend.load(user, "preferences"))
            assert content == _TOML.format(text=number), user
        assert sorted(self.run(backend.list_users())) == sorted(self.users)

    def test_all_users_are_listed(self, backend: Any) -> None:
        users = [f"user{number:04}" for number in range(self.many_users)]

        async def save_all() -> None:
            text = _TOML.format(text="tea")
            for at in range(0, len(users), _AT_ONCE):
                some = users[at : at + _AT_ONCE]
                await asyncio.gather(*(backend.save(each, "preferences", text) for each in some))

        self.run(save_all())
        check_same(sorted(self.run(backend.list_users())), users)

    def test_deleting_what_is_not_there_is_no_error(self, backend: Any) -> None:
        self.run(backend.delete("ghost", "preferences"))
        self.run(backend.delete_user("ghost"))
        assert self.run(backend.list_users()) == []

    def test_deleting_a_user_removes_everything_of_that_user_only(self, backend: Any) -> None:
        users = sorted(self.users)
        for user in users:
            for kind in ("preferences", "conversations"):
                self.run(backend.save(user, kind, _TOML.format(text=user)))
        while users:
            user = users.pop(0)
            self.run(backend.delete_user(user))
            assert self.run(backend.load(user, "preferences")) is None
            assert self.run(backend.load(user, "conversations")) is None
            check_same(sorted(self.run(backend.list_users())), users)
            if users:
                content = _TOML.format(text=users[-1])
                assert self.run(backend.load(users[-1], "preferences")) == content

    def test_concurrent_saves_leave_one_of_them_whole(self, backend: Any) -> None:
        sizes = [(number, 500 * (10 - number)) for number in range(10)]
        contents = [_TOML.format(text=str(number) * size) for number, size in sizes]

        async def save_all() -> None:
            await asyncio.gather(*(backend.save("alice", "preferences", c) for c in contents))

        self.run(save_all())
        assert self.run(backend.load("alice", "preferences")) in contents

    def test_a_diary_on_it_remembers(self, backend: Any) -> None:
        diary = Diary(backend, agent="rules")
        said = "I'm allergic to walnuts."
        self.run(diary.update_memory("alice", "s1", said, "Noted."))
        again = Diary(backend, agent="rules").user("alice")
        texts = [item.text for entries in again.preferences().values() for item in entries.values()]
        assert texts == [said]
        assert again.conversations()["s1"].turns == 1

    def test_a_diary_on_it_keeps_comments(self, backend: Any) -> None:
        self.run(backend.save("alice", "preferences", _TOML.format(text="tea")))
        alice = Diary(backend, agent="rules").user("alice")
        alice.upsert_preference("likes", "coffee")
        text = self.run(backend.load("alice", "preferences"))
        assert "\n# kept\n[preferences.likes.pref001]\n" in text
        assert set(alice.preferences("likes")) == {"pref001", "pref002"}

    def test_concurrent_turns_of_one_user_are_all_kept(self, backend: Any) -> None:
        diary = Diary(backend, agent="rules")

        async def turns() -> None:
            said = [f"I love drink number {number}." for number in range(10)]
            await asyncio.gather(*(diary.update_memory("alice", "s", each, "ok") for each in said))

        self.run(turns())
        alice = diary.user("alice")
        assert len({item.text for item in alice.preferences("likes").values()}) == 10  # noqa: PLR2004
        assert alice.conversations()["s"].turns == 10  # noqa: PLR2004


_CAPABILITIES: tuple[type, ...] = tuple(
    each
    for each in vars(protocol).values()
    if getattr(each, "_is_runtime_protocol", False) and each not in (Backend, BackendProtocol)
)
"""All optional capabilities."""


class Capabilities(BackendFixtures):
    """Each optional capability agrees with the required methods, and a diary works without it."""

    def test_capabilities_agree_with_the_required_methods(self, backend: Any) -> None:
        opened = open_backend(backend, None)
        alice = Diary(backend, agent="rules").user("alice")
        alice.upsert_preference("likes", "tea")
        kinds = opened.kinds("alice")
        if isinstance(opened, CheapTokens):
            asked = [*kinds, "facts"]
            assert list(opened.tokens("alice", asked)) == [opened.token("alice", k) for k in asked]
        if isinstance(opened, ListsFolders):
            assert opened.listing("alice", "items/") == []
        if isinstance(opened, FixedDocuments) and opened.documents is not None:
            assert {"preferences", "conversations", *kinds} <= set(opened.documents)
        if isinstance(opened, LocalFolder):
            assert opened.known_users() == opened.users() == ["alice"]
            assert opened.index_folder("alice") != opened.index_folder("bob")
            assert opened.index_folder("alice").is_relative_to(opened.base_path)

    def test_hidden_documents_keep_the_cursor_of_a_hook(self, backend: Any) -> None:
        opened = open_backend(backend, None)
        if not isinstance(opened, KeepsHidden):
            return
        received: list[str] = []
        for text in ("tea", "coffee"):
            diary = self.diary(backend)
            diary.user("alice").upsert_preference("likes", text)
            diary.hooks.add(
                lambda changes: received.extend(each.text for each in changes), name="h"
            )
            diary.hooks.flush()
            diary.hooks.close()
        assert received == ["tea", "coffee"]
        assert (opened.kinds("alice"), opened.users()) == (["preferences"], ["alice"])
        assert (opened.holders(HOOKS), opened.hidden("bob", HOOKS)) == (["alice"], "")

    @pytest.mark.parametrize("left_out", _CAPABILITIES, ids=lambda each: each.__name__)
    def test_a_diary_works_without_an_optional_capability(
        self, backend: Any, left_out: type
    ) -> None:
        opened = open_backend(backend, None)
        if not isinstance(opened, left_out):
            return
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
        return property(
            lambda _: getattr(backend, name), lambda _, value: setattr(backend, name, value)
        )

    return type("Subset", (), {name: member(name) for name in names})()
