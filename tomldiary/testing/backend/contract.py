"""Tests of the sync protocol itself: what a diary relies on, but seldom or never sees fail."""

from __future__ import annotations

import threading
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from tomldiary.errors import Conflict, LockTimeout
from tomldiary.history.record import Change, Record, render_record
from tomldiary.runtime.sources import DEAD_LETTERS, HOOKS, redact_hidden
from tomldiary.storage.open import open_backend
from tomldiary.storage.protocol import (
    Closable,
    Commit,
    KeepsHidden,
    ListsErased,
    Rewrite,
    RewrittenDocument,
    Stored,
    TellsErasure,
)
from tomldiary.testing.backend.fixtures import BackendFixtures, check_same
from tomldiary.toml.document import digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tomldiary.storage.protocol import Backend

_PATIENCE = 10.0  # seconds for the lock
_FIRST, _SECOND, _THIRD = (f'[preferences.likes.pref001]\ntext = "{each}"\n' for each in "abc")
_MANY = 1_100  # records, documents and users: more than most storages return at once
_STEP = 100  # of them in one commit
_CURSOR = '[hooks.index]\nepoch = 2\nseq = 2\ntime = ""\nkeys = ["likes/pref001"]\n'
_BYTES = "e\u0301 \u00e9  \n\r\n\ttwo  \n\n"  # text that an encoding, a strip or a file in text mode would change


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
        for text in (_THIRD, ""):
            later = _commit(opened, {"preferences": text})
            assert opened.read("alice", "preferences") == Stored(text, later["preferences"])
            assert opened.token("alice", "preferences") == later["preferences"]
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
        added = [_record(seq, after=_BYTES) for seq in range(1, _MANY + 1)]
        with opened.lock("alice", _PATIENCE):
            for each in added[:3]:
                opened.commit("alice", Commit({}, {}, [each]))
            for at in range(3, _MANY, _STEP):
                opened.commit("alice", Commit({}, {}, added[at : at + _STEP]))
        with opened.lock("bob", _PATIENCE):
            opened.commit("bob", Commit({"facts": _FIRST.encode()}, {"facts": None}, added[:1]))
        # A backend may add a field to a record, such as the boot of the machine.
        stored = [*map(_changes, opened.records("alice"))]
        check_same(stored, [*map(_changes, added[::-1])])
        check_same(_numbers(opened, "alice"), range(_MANY, 0, -1))
        assert _numbers(opened, "bob") == [1]
        assert opened.last_record("alice") == next(iter(opened.records("alice")))
        assert opened.users() == ["bob"]  # a user without a document is not listed

    def test_all_documents_of_a_user_are_listed(self, opened: Backend) -> None:
        names = sorted(f"items/n{number:04}" for number in range(_MANY))
        for at in range(0, _MANY, _STEP):
            _commit(opened, dict.fromkeys(names[at : at + _STEP], _FIRST))
        check_same(opened.kinds("alice"), names)

    def test_erasing_a_document_keeps_those_with_a_similar_name(self, opened: Backend) -> None:
        long = "items/" + "n" * 150
        names = [
            *(
                "facts",
                "items/a",
                "items/a%2fb",
                "items/a/b",
                "items/a_b",
                "items/axb",
                "items/a~2",
            ),
            *(f"{long}1", f"{long}2", "preferences", "preferences/002", "preferences/0020"),
        ]
        _commit(opened, dict.fromkeys(names, _FIRST))
        assert opened.kinds("alice") == sorted(names)
        for name in (
            "preferences/002",
            "preferences",
            "items/a_b",
            "items/a/b",
            f"{long}1",
            *names,
        ):
            with opened.lock("alice", _PATIENCE):
                opened.erase("alice", name)
                opened.erase("alice", name)  # which is not there any more
            names = [each for each in names if each != name]
            assert opened.kinds("alice") == sorted(names)
        assert opened.users() == []  # no document of a user is left

    def test_a_redaction_changes_what_it_lists(self, opened: Backend) -> None:
        names = ["blocks", "facts", "preferences"]
        for seq, name in enumerate(names, 1):
            _commit(opened, {name: _FIRST}, seq=seq)
        tokens = {name: opened.token("alice", name) for name in names}
        third, second, first = opened.records("alice")
        with opened.lock("alice", _PATIENCE):
            rewrite = Rewrite(
                {"matching": "a"},
                7,
                {first: first, third: _record(3, after="c")},
                [_record(4)],
                {
                    "facts": RewrittenDocument(_SECOND, tokens["facts"], []),
                    "blocks": RewrittenDocument("", tokens["blocks"], [], is_removed=True),
                },
            )
            digests = opened.rewrite("alice", rewrite)
        remaining = {"facts.toml": _SECOND, "preferences.toml": _FIRST}
        hashes = {name: sha256(text.encode()).hexdigest() for name, text in remaining.items()}
        assert digests.items() >= hashes.items()
        assert "blocks.toml" not in digests
        assert _numbers(opened, "alice") == [4, 3, 1]
        texts = [*opened.records("alice")]
        assert (texts[2], second in texts, 'new = "c"' in texts[1]) == (first, False, True)
        assert opened.kinds("alice") == ["facts", "preferences"]
        found = opened.read("alice", "facts")
        assert found is not None
        assert found == Stored(_SECOND, opened.token("alice", "facts"))
        assert found.token != tokens["facts"]
        assert opened.token("alice", "preferences") == tokens["preferences"]
        assert opened.epoch("alice") == 7  # noqa: PLR2004 - set above
        with opened.lock("alice", _PATIENCE):
            opened.rewrite("alice", Rewrite({"matching": "z"}, 8))
        assert _numbers(opened, "alice") == [4, 3, 1]  # without a new history, it stays
        assert opened.epoch("alice") == 8  # noqa: PLR2004 - the second redaction
        assert opened.epoch("bob") == 0

    def test_an_erased_user_leaves_the_fencing_token_only(self, opened: Backend) -> None:
        for user in ("alice", "bob", "carol"):
            with opened.lock(user, _PATIENCE):
                opened.commit(
                    user, Commit({"facts": _FIRST.encode()}, {"facts": None}, [_record(1)])
                )
        with opened.lock("alice", _PATIENCE):
            opened.rewrite("alice", Rewrite({"everything": True}, 1))
        with opened.lock("carol", _PATIENCE):
            opened.erase("carol", "facts")  # without an erasure of the user
        assert (opened.users(), opened.kinds("alice")) == (["bob"], [])
        assert (opened.read("alice", "facts"), opened.token("alice", "facts")) == (None, None)
        assert (opened.last_record("alice"), list(opened.records("alice"))) == (None, [])
        assert (opened.epoch("alice"), opened.epoch("bob")) == (1, 0)
        with opened.lock("bob", _PATIENCE):
            opened.rewrite("bob", Rewrite({"matching": "z"}, 1))
        if isinstance(opened, ListsErased):
            assert opened.erased_users() == ["alice"]
        if isinstance(opened, TellsErasure):
            assert (opened.erased("alice"), opened.erased("bob")) == (1, 0)
            with opened.lock("alice", _PATIENCE), opened.lock("bob", _PATIENCE):
                opened.rewrite("alice", Rewrite({"matching": "z"}, 2))
                opened.rewrite("bob", Rewrite({"matching": "z"}, 5, erased_before=4))
            assert (opened.erased("alice"), opened.erased("bob")) == (1, 4)

    def test_pruning_keeps_what_follows_the_number(self, opened: Backend) -> None:
        for user in ("alice", "bob"):
            with opened.lock(user, _PATIENCE):
                opened.commit(user, Commit({}, {}, [_record(seq) for seq in range(1, 13)]))
        for seq in (9, 10):
            with opened.lock("alice", _PATIENCE):
                opened.prune("alice", seq, _record(seq, "snapshot"))
            assert _numbers(opened, "alice") == list(range(12, seq - 1, -1))
            assert 'type = "snapshot"' in [*opened.records("alice")][-1]
        assert _numbers(opened, "bob") == list(range(12, 0, -1))

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

    def test_a_lock_ends_with_its_block_even_if_the_block_fails(self, opened: Backend) -> None:
        with suppress(RuntimeError), opened.lock("alice", _PATIENCE):
            raise RuntimeError
        with opened.lock("alice", 0.05):
            pass

    def test_a_lock_waits_for_its_holder(self, opened: Backend) -> None:
        def wait() -> None:
            with suppress(LockTimeout), opened.lock("alice", _PATIENCE):
                entered.set()

        entered = threading.Event()
        thread = threading.Thread(target=wait, daemon=True)
        with opened.lock("alice", _PATIENCE):
            thread.start()
            assert not entered.wait(0.1)
        thread.join(_PATIENCE)
        assert entered.is_set()

    def test_a_closed_backend_opens_again(self, opened: Backend) -> None:
        if not isinstance(opened, Closable):
            return
        stored = _commit(opened, {"facts": _FIRST})
        before = _state(opened)
        opened.close()
        opened.close()
        assert _state(opened) == before
        assert _commit(opened, {"preferences": _FIRST}) != stored
        assert opened.kinds("alice") == ["facts", "preferences"]

    def test_a_hidden_document_is_changed_atomically(self, opened: Backend) -> None:
        if not isinstance(opened, KeepsHidden):
            return

        def add(line: str) -> None:
            def change(text: str, _: int) -> str:
                if line == "a" and not other.ident:
                    other.start()
                    other.join(0.3)  # it has finished, or waits for this change
                return f"{text}{line}\n"

            opened.change_hidden("alice", ".notes", change)

        other = threading.Thread(target=add, args=("b",))
        add("a")
        other.join()
        assert sorted(opened.hidden("alice", ".notes").split()) == ["a", "b"]
        assert (opened.kinds("alice"), opened.users()) == ([], [])
        assert opened.hidden("alice", ".others") == opened.hidden("bob", ".notes") == ""
        assert (opened.holders(".notes"), opened.holders(".others")) == (["alice"], [])
        opened.change_hidden("alice", ".notes", lambda _, __: "")
        assert (opened.hidden("alice", ".notes"), opened.holders(".notes")) == ("", [])

    @pytest.mark.parametrize("selection", [{"matching": "z"}, {"everything": True}], ids=str)
    def test_a_redaction_includes_hidden_documents(
        self, opened: Backend, selection: dict[str, Any]
    ) -> None:
        if not isinstance(opened, KeepsHidden):
            return
        seen = list[int]()
        for user in ("alice", "bob"):
            opened.change_hidden(user, HOOKS, lambda _, __: _CURSOR)
        opened.change_hidden("alice", DEAD_LETTERS, lambda _, __: "damaged")
        with opened.lock("alice", _PATIENCE):
            opened.rewrite("alice", Rewrite(selection, 3))
            opened.change_hidden(
                "alice", HOOKS, lambda text, epoch: seen.append(epoch) or text, is_locked=True
            )
        assert set(seen) == {3}
        redacted = redact_hidden(HOOKS, "alice", selection, _CURSOR, 3)
        assert "pref001" not in redacted
        assert (opened.hidden("alice", HOOKS), opened.hidden("bob", HOOKS)) == (redacted, _CURSOR)
        assert opened.hidden("alice", DEAD_LETTERS) == ""


def _in_threads(work: Any, *users: str) -> None:
    """Run `work` for each user, one after the other, in other threads."""
    for user in users:
        thread = threading.Thread(target=work, args=(user,), daemon=True)
        thread.start()
        thread.join(_PATIENCE)
        assert not thread.is_alive(), "a call waits longer than its timeout"


def _changes(record: str) -> str:
    return record.partition("\nchanges = ")[2]


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
