"""The public suite finds backends that break the sync protocol in a way that a diary seldom meets."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from tomldiary.backends import MemoryBackend
from tomldiary.errors import BackendError, Conflict
from tomldiary.storage.protocol import Commit
from tomldiary.testing import AtomicBackendSuite
from tomldiary.testing.backend.contract import Contract


class IgnoresVersions(MemoryBackend):
    def commit(self, user, commit):
        expected = {kind: self.token(user, kind) for kind in commit.contents}
        return super().commit(user, replace(commit, expected=expected))


class StoresHalf(MemoryBackend):
    def commit(self, user, commit):
        for kind, content in commit.contents.items():
            super().commit(user, Commit({kind: content}, commit.expected))
        return super().commit(user, Commit({}, {}, commit.records)) or {
            kind: self.token(user, kind) for kind in commit.contents
        }


class HidesConflicts(MemoryBackend):
    def commit(self, user, commit):
        try:
            return super().commit(user, commit)
        except Conflict as error:
            raise BackendError(str(error)) from error


class ReusesVersions(MemoryBackend):
    def token(self, user, kind):
        stored = super().read(user, kind)
        return len(stored.text) if stored is not None else None

    def read(self, user, kind):
        stored = super().read(user, kind)
        return replace(stored, token=len(stored.text)) if stored is not None else None

    def commit(self, user, commit):
        return {kind: self.token(user, kind) for kind in super().commit(user, commit)}


class KeepsDocuments(MemoryBackend):
    def rewrite(self, user, rewrite):
        return super().rewrite(user, replace(rewrite, documents={}))


class ReordersRecords(MemoryBackend):
    def commit(self, user, commit):
        return super().commit(user, replace(commit, records=commit.records[::-1]))


class ErasesByPrefix(MemoryBackend):
    def erase(self, user, kind):
        for each in self.kinds(user):
            if each.startswith(kind):
                super().erase(user, each)


class LeavesOutAddedRecords(MemoryBackend):
    def rewrite(self, user, rewrite):
        return super().rewrite(user, replace(rewrite, added=[]))


class RemovesUnlistedHistory(MemoryBackend):
    def rewrite(self, user, rewrite):
        return super().rewrite(user, replace(rewrite, history=rewrite.history or {}))


class PrunesTooMuch(MemoryBackend):
    def prune(self, user, seq, snapshot):
        super().prune(user, seq + 1, snapshot)


class LocksNothing(MemoryBackend):
    def lock(self, user, timeout):
        return nullcontext()


class LocksAllUsers(MemoryBackend):
    def lock(self, user, timeout):
        return super().lock("all", timeout)


class KnowsNoErased(MemoryBackend):
    def erased_users(self):
        return []


FAULTY = [
    (IgnoresVersions, "commit_at_another_version"), (StoresHalf, "commit_at_another_version"),
    (HidesConflicts, "commit_at_another_version"), (ReusesVersions, "earlier_version"),
    (KeepsDocuments, "redaction"), (ReordersRecords, "records_are_kept"), (ErasesByPrefix, "similar_name"),
    (LeavesOutAddedRecords, "redaction"), (RemovesUnlistedHistory, "redaction"), (PrunesTooMuch, "pruning"),
    (LocksNothing, "lock_excludes"), (LocksAllUsers, "lock_excludes"), (KnowsNoErased, "fencing_token"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "test"), FAULTY, ids=lambda each: getattr(each, "__name__", "")
)
def test_the_suite_finds_a_fault(backend, test):
    assert issubclass(AtomicBackendSuite, Contract)
    (name,) = (name for name in vars(Contract) if name.startswith("test_") and test in name)
    arguments = ("changed",) if "commit_at" in test else ()
    getattr(Contract(), name)(MemoryBackend(), *arguments)
    with pytest.raises((AssertionError, pytest.fail.Exception, BackendError)):
        getattr(Contract(), name)(backend(), *arguments)


class LosesHiddenDocuments(MemoryBackend):
    def change_hidden(self, user, kind, change, *, is_locked=False):
        change("", self.epoch(user))


def test_the_suite_finds_lost_hidden_documents():
    test = AtomicBackendSuite().test_hidden_documents_keep_the_cursor_of_a_hook
    test(MemoryBackend())
    with pytest.raises(AssertionError):
        test(LosesHiddenDocuments())
