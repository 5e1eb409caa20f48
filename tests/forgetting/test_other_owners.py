"""Forgetting a user of whom nothing is stored tells where else the user's name is."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict

import pytest

from tomldiary import Diary
from tomldiary.__main__ import main
from tomldiary.backends import LocalBackend
from tomldiary.errors import BackendError
from tomldiary_langgraph import DiaryStore

SELECTIONS = [{"everything": True}, {"session_id": "s1"}, {"source": "s1#1"}]


@pytest.fixture(params=["files", "memory"])
def diary(request, tmp_path):
    return Diary(tmp_path if request.param == "files" else "memory:", agent="rules")


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_user_stored_as_second_label_is_reported(diary, selection, dry_run):
    store = DiaryStore(diary)
    store.put(("memories", "ann"), "seat", {"text": "likes the window"})
    store.put(("memories", "ann", "therapy"), "seat", {"text": "likes the window"})
    store.put(("acme", "team", "ann"), "seat", {"text": "likes the window"})
    store.put(("memories", "bob"), "seat", {"text": "likes the aisle"})
    receipt = diary.user("ann").forget(**selection, dry_run=dry_run)
    assert receipt.found_elsewhere == (("acme", "team", "ann"), ("memories", "ann"))
    assert "('acme', 'team', 'ann') and 1 more" in receipt.hint
    assert "were not forgotten" in str(receipt)
    assert "user_label=2" in str(receipt)
    assert "therapy" not in f"{asdict(receipt)}{receipt!r}{receipt._repr_html_()}"
    assert store.get(("memories", "ann"), "seat") is not None


@pytest.mark.parametrize("selection", SELECTIONS)
def test_a_user_without_any_data_is_found_nowhere(diary, selection):
    DiaryStore(diary).put(("memories", "bob"), "ann", {"text": "ann"})
    receipt = diary.user("ann").forget(**selection)
    assert (receipt.found_elsewhere, receipt.hint) == ((), "")
    assert str(receipt) == "entries: 0, conversations: 0, transactions: 0"


def test_a_user_label_of_one_leaves_nothing_elsewhere(diary):
    store = DiaryStore(diary, user_label=1)
    store.put(("memories", "ann"), "seat", {"text": "likes the window"})
    receipt = diary.user("ann").forget(everything=True)
    assert (receipt.entries, receipt.found_elsewhere) == (1, ())
    assert store.get(("memories", "ann"), "seat") is None


def test_shared_namespaces_with_the_name_are_reported(diary):
    DiaryStore(diary, user_label=None).put(("memories", "ann"), "seat", {"text": "the window"})
    receipt = diary.user("ann").forget(everything=True)
    assert receipt.found_elsewhere == (("memories", "ann"),)


def test_a_user_with_data_is_not_searched_for_elsewhere(diary):
    DiaryStore(diary).put(("memories", "ann"), "seat", {"text": "likes the window"})
    diary.user("ann").upsert_preference("likes", "dark roast")
    assert diary.user("ann").forget(everything=True).found_elsewhere == ()
    assert diary.user("ann").forget(everything=True).found_elsewhere == (("memories", "ann"),)


def test_an_owner_who_cannot_be_listed_hides_no_receipt(tmp_path):
    class Backend(LocalBackend):
        unlisted = ""

        def kinds(self, user):
            if user == self.unlisted:
                raise BackendError("the folder of bob is no folder")
            return super().kinds(user)

    backend = Backend(tmp_path)
    diary = Diary(backend, agent="rules")
    DiaryStore(diary).put(("memories", "ann"), "seat", {"text": "likes the window"})
    DiaryStore(diary).put(("carol", "ann"), "seat", {"text": "likes the aisle"})
    diary.user("bob").upsert_preference("likes", "tea")
    backend.unlisted = "bob"
    assert diary.user("ann").forget(session_id="s1").found_elsewhere == (
        ("carol", "ann"),
        ("memories", "ann"),
    )


@pytest.mark.parametrize("options", [[], ["--yes"]])
def test_the_command_line_reports_the_other_owner(tmp_path, capsys, monkeypatch, options):
    DiaryStore(tmp_path).put(("memories", "ann"), "seat", {"text": "likes the window"})
    call = ["tomldiary", "forget", "--path", str(tmp_path), "--user", "ann", "--everything"]
    monkeypatch.setattr(sys, "argv", [*call, *options])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = " ".join(capsys.readouterr().out.split())
    assert not ended.value.code
    assert "other owners have the name as a label: ('memories', 'ann')" in shown
    assert "user_label=1" in shown


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError])
def test_traces_of_a_folder_that_cannot_be_listed_are_an_error(tmp_path, monkeypatch, error):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    listed = os.scandir

    def scandir(path="."):
        if os.fspath(path).endswith("history"):
            raise error(path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    if error is FileNotFoundError:  # it was removed meanwhile
        assert alice.traces("jazz") == []
        return
    with pytest.raises(PermissionError):
        alice.traces("jazz")
