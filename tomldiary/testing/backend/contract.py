"""Tests of the sync protocol itself: what a diary relies on, but seldom or never sees fail."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from tomldiary.errors import Conflict, LockTimeout
from tomldiary.history.record import Change, Record, render_record
from tomldiary.storage.open import open_backend
from tomldiary.storage.protocol import (
    Commit,
    ListsErased,
    Rewrite,
    RewrittenDocument,
    Stored,
    TellsErasure,
)
from tomldiary.testing.backend.fixtures import BackendFixtures
from tomldiary.toml.document import digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tomldiary.storage.protocol import Backend

_PATIENCE = 10.0  # seconds for the lock
_FIRST, _SECOND, _THIRD = (f'[preferences.likes.pref001]\ntext = "{each}"\n' for each in "abc")
_MANY = 70  # records: more than some storages return at once


class Contract(BackendFixtures):
    """Each member of the protocol keeps its promise."""

    @pytest.fixture
    def opened(self, backend: Any) -> Backend:
        """The backend, as a diary calls it."""
        return open_backend(backend, None)

    def test_a_commit_returns_the_versions_that_reads_return(self, opened: Backend) -> None:
        first = _commit(opened, {"preferences": _FIRST, "facts": _SECOND})
        assert sorted(first) == opened.kinds("alice") == ["facts", "preferences"]
        for kind, text in (("preferences", _FIRST), ("facts", _SECOND)):
            assert opened.read("alice", kind) == Stored(text, first[kind])
            assert opened.token("alice", kind) == first[kind]
        second = _commit(opened, {"preferences": _THIRD})
        assert opened.read("alice", "preferences") == Stored(_THIRD, second["preferences"])
        assert opened.token("alice", "facts") == first["facts"]

    def test_a_read_beside_commits_returns_the_version_of_its_text(self, opened: Backend) -> None:
        def write() -> None:
            for number in range(30):
                text = _FIRST.replace('"a"', f'"{number}"')
                stored.append(Stored(text, _commit(opened, {"preferences": text})["preferences"]))

        stored, found = list[Stored](), list[Stored]()
        thread = threading.Thread(target=write)
        thread.start()
        while thread.is_alive():
            read = opened.read("alice", "preferences")
            found += [read] if read is not None and read not in found[-1:] else []
        thread.join()
        assert len(stored) == 30  # noqa: PLR2004 - no commit failed
        # A folder may return a version that a file had while it was published; it is never the stored one.
        assert all(
            read.text == each.text for read in found for each in stored if read.token == each.token
        )

    def test_no_other_content_gets_an_earlier_version(self, opened: Backend) -> None:
        seen = list[Any]()
        for text in (_FIRST, _SECOND, None, _THIRD):  # all have one length
            if text is None:
                with opened.lock("alice", _PATIENCE):
                    opened.erase("alice", "preferences")
                assert opened.token("alice", "preferences") is None
            else:
                seen.append(_commit(opened, {"preferences": text})["preferences"])
        assert all(each not in seen[:at] for at, each in enumerate(seen))

    @pytest.mark.parametrize("meanwhile", ["created", "changed", "erased"])
    def test_a_commit_at_another_version_stores_nothing(
        self, opened: Backend, meanwhile: str
    ) -> None:
        earlier = _commit(opened, {"facts": _FIRST, "preferences": _FIRST})["preferences"]
        with opened.lock("alice", _PATIENCE):
            opened.erase("alice", "preferences")
        if meanwhile != "erased":
            _commit(opened, {"preferences": _SECOND})
        before = _state(opened)
        expected = {"preferences": None if meanwhile == "created" else earlier}
        with pytest.raises(Conflict):
            _commit(opened, {"facts": _THIRD, "preferences": _THIRD}, expected=expected)
        assert _state(opened) == before

    def test_records_are_kept_in_order_for_each_user(self, opened: Backend) -> None:
        assert opened.last_record("alice") is None
        assert list(opened.records("alice")) == []
        added = [_record(seq) for seq in range(1, _MANY + 1)]
        with opened.lock("alice", _PATIENCE):
            opened.commit("alice", Commit({}, {}, added[:3]))
            for each in added[3:]:
                opened.commit("alice", Commit({}, {}, [each]))
        with opened.lock("bob", _PATIENCE):
            opened.commit("bob", Commit({"facts": _FIRST.encode()}, {"facts": None}, [_record(1)]))
        assert _numbers(opened, "alice") == list(range(_MANY, 0, -1))
        assert _numbers(opened, "bob") == [1]
        assert "seq = 70\n" in (opened.last_record("alice") or "")
        assert opened.users() == ["bob"]  # a user without a document is not listed

    def test_erasing_a_document_keeps_those_with_a_similar_name(self, opened: Backend) -> None:
        names = ["facts", "preferences", "preferences/002", "preferences/0020"]
        _commit(opened, dict.fromkeys(names, _FIRST))
        with opened.lock("alice", _PATIENCE):
            opened.erase("alice", "preferences/002")
            opened.erase("alice", "preferences/002")  # which is not there any more
        assert opened.kinds("alice") == ["facts", "preferences", "preferences/0020"]
        with opened.lock("alice", _PATIENCE):
            opened.erase("alice", "preferences")
        assert opened.kinds("alice") == ["facts", "preferences/0020"]

    def test_a_redaction_changes_what_it_lists(self, opened: Backend) -> None:
        names = ["blocks", "facts", "preferences"]
        for seq, name in enumerate(names, 1):
            _commit(opened, {name: _FIRST}, seq=seq)
        tokens = {name: opened.token("alice", name) for name in names}
        third, second, first = opened.records("alice")
        with opened.lock("alice", _PATIENCE):
            rewrite = Rewrite(
                {"matching": "a"},
                opened.epoch("alice") + 1,
                {first: first, third: _record(3, after="c")},
                [_record(4)],
                {
                    "facts": RewrittenDocument(_SECOND, tokens["facts"], []),
                    "blocks": RewrittenDocument("", tokens["blocks"], [], is_removed=True),
                },
            )
            opened.rewrite("alice", rewrite)
        assert _numbers(opened, "alice") == [4, 3, 1]
        texts = [*opened.records("alice")]
        assert (texts[2], second in texts, 'new = "c"' in texts[1]) == (first, False, True)
        assert opened.kinds("alice") == ["facts", "preferences"]
        found = opened.read("alice", "facts")
        assert found is not None
        assert found == Stored(_SECOND, opened.token("alice", "facts"))
        assert found.token != tokens["facts"]
        assert opened.token("alice", "preferences") == tokens["preferences"]
        assert opened.epoch("alice") == 1
        with opened.lock("alice", _PATIENCE):
            opened.rewrite("alice", Rewrite({"matching": "z"}, 2))
        assert _numbers(opened, "alice") == [4, 3, 1]  # without a new history, it stays
        assert opened.epoch("alice") == 2  # noqa: PLR2004 - the second redaction
        assert opened.epoch("bob") == 0

    def test_an_erased_user_leaves_the_fencing_token_only(self, opened: Backend) -> None:
        for user in ("alice", "bob"):
            with opened.lock(user, _PATIENCE):
                opened.commit(
                    user, Commit({"facts": _FIRST.encode()}, {"facts": None}, [_record(1)])
                )
        with opened.lock("alice", _PATIENCE):
            opened.rewrite("alice", Rewrite({"everything": True}, 1))
        assert (opened.users(), opened.kinds("alice")) == (["bob"], [])
        assert (opened.read("alice", "facts"), opened.token("alice", "facts")) == (None, None)
        assert (opened.last_record("alice"), list(opened.records("alice"))) == (None, [])
        assert (opened.epoch("alice"), opened.epoch("bob")) == (1, 0)
        if isinstance(opened, ListsErased):
            assert opened.erased_users() == ["alice"]
        if isinstance(opened, TellsErasure):
            assert (opened.erased("alice"), opened.erased("bob")) == (1, 0)

    def test_pruning_keeps_what_follows_the_number(self, opened: Backend) -> None:
        with opened.lock("alice", _PATIENCE):
            opened.commit("alice", Commit({}, {}, [_record(seq) for seq in range(1, 13)]))
            opened.prune("alice", 10, _record(10, "snapshot"))
        assert _numbers(opened, "alice") == [12, 11, 10]
        assert 'type = "snapshot"' in [*opened.records("alice")][-1]

    def test_a_lock_excludes_writers_of_its_user_only(self, opened: Backend) -> None:
        def tried(user: str) -> None:
            try:
                with opened.lock(user, 0.05):
                    entered.append(user)
            except LockTimeout:
                refused.append(user)

        entered, refused = list[str](), list[str]()
        with opened.lock("alice", _PATIENCE):
            _in_threads(tried, "alice", "bob")
        assert (entered, refused) == (["bob"], ["alice"])
        _in_threads(tried, "alice")
        assert entered == ["bob", "alice"]


def _in_threads(work: Any, *users: str) -> None:
    """Run `work` for each user, one after the other, in other threads."""
    for user in users:
        thread = threading.Thread(target=work, args=(user,))
        thread.start()
        thread.join()


def _record(seq: int, type: str = "save", before: str = "", after: str = "") -> str:  # noqa: A002 - as in `Record`
    """Return a record that changes a document."""
    change = Change("facts", 0, before, after)
    bases, results = {"facts": digest(before)}, {"facts": digest(after)}
    return render_record(Record(seq=seq, type=type, changes=[change], bases=bases, results=results))


def _commit(
    backend: Backend,
    texts: Mapping[str, str],
    *,
    expected: Mapping[str, Any] | None = None,
    seq: int | None = None,
) -> dict[str, Any]:
    """Store documents at their stored versions, except for those in `expected`, with one record."""
    with backend.lock("alice", _PATIENCE):
        versions = {kind: backend.token("alice", kind) for kind in texts}
        number = len([*backend.records("alice")]) + 1 if seq is None else seq
        contents = {kind: text.encode() for kind, text in texts.items()}
        commit = Commit(contents, {**versions, **(expected or {})}, [_record(number)])
        return backend.commit("alice", commit)


def _state(backend: Backend) -> list[Any]:
    """Return all that is stored of a user."""
    documents = [(kind, backend.read("alice", kind)) for kind in backend.kinds("alice")]
    return [documents, list(backend.records("alice")), backend.last_record("alice")]


def _numbers(backend: Backend, user: str) -> list[int]:
    """Return the numbers of a user's records, as the backend orders them."""
    lines = (text.partition("\nseq = ")[2] for text in backend.records(user))
    return [int(line.partition("\n")[0]) for line in lines]
