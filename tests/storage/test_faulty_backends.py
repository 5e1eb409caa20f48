"""The public suite finds backends that break the sync protocol in a way that a diary seldom meets."""

from __future__ import annotations

import fnmatch
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import islice

import pytest

from six_verbs import SixVerbs
from tomldiary.backends import MemoryBackend
from tomldiary.errors import BackendError, Conflict, LockTimeout
from tomldiary.runtime.sources import DEAD_LETTERS, HOOKS
from tomldiary.storage.protocol import Commit
from tomldiary.testing import AtomicBackendSuite, BackendSuite
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


class TakesRedactionsForErasures(MemoryBackend):
    def rewrite(self, user, rewrite):
        return super().rewrite(user, replace(rewrite, erased_before=rewrite.epoch))


class CountsRedactions(MemoryBackend):
    def rewrite(self, user, rewrite):
        return super().rewrite(user, replace(rewrite, epoch=self.epoch(user) + 1))


class ReturnsNoDigests(MemoryBackend):
    def rewrite(self, user, rewrite):
        super().rewrite(user, rewrite)
        return {}


class PrunesByPosition(MemoryBackend):
    def prune(self, user, seq, snapshot):
        kept = [*self.records(user)][::-1][seq:]
        super().prune(user, 100, snapshot)
        self.commit(user, Commit({}, {}, kept))


class ReturnsOnePage(MemoryBackend):
    def kinds(self, user):
        return super().kinds(user)[:1000]

    def users(self):
        return super().users()[:1000]

    def records(self, user):
        return islice(super().records(user), 1000)


class ConvertsLines(MemoryBackend):
    def commit(self, user, commit):
        records = [each.replace("\\r\\n", "\\n") for each in commit.records]
        return super().commit(user, replace(commit, records=records))


class TakesEmptyForMissing(MemoryBackend):
    def read(self, user, kind):
        stored = super().read(user, kind)
        return stored if stored is not None and stored.text else None


class ErasesPatterns(MemoryBackend):
    def erase(self, user, kind):
        for each in fnmatch.filter(self.kinds(user), kind.replace("_", "?")):
            super().erase(user, each)


class ListsUsersForGood(MemoryBackend):
    def users(self):
        return sorted({*super().users(), *(user for user in ("alice",) if [*self.records(user)])})


class KeepsFailedLocks(MemoryBackend):
    @contextmanager
    def lock(self, user, timeout):
        block = super().lock(user, timeout)
        block.__enter__()
        self.blocks = [*vars(self).get("blocks", ()), block]  # else it ends as garbage
        yield
        block.__exit__(None, None, None)


class RefusesAtOnce(MemoryBackend):
    def lock(self, user, timeout):
        return super().lock(user, 0)


class EndsWithClose(MemoryBackend):
    def close(self):
        self.__init__()


class ReadsHiddenUnlocked(MemoryBackend):
    def change_hidden(self, user, kind, change, *, is_locked=False):
        fresh = change(self.hidden(user, kind), self.epoch(user))
        super().change_hidden(user, kind, lambda *_: fresh, is_locked=is_locked)


class ListsEmptyHidden(MemoryBackend):
    def holders(self, kind):
        return ["alice"]


class KeepsHiddenTexts(MemoryBackend):
    def rewrite(self, user, rewrite):
        kept = {kind: self.hidden(user, kind) for kind in (HOOKS, DEAD_LETTERS)}
        done = super().rewrite(user, rewrite)
        for kind, text in kept.items():
            self.change_hidden(user, kind, lambda *_, text=text: text, is_locked=True)
        return done


FAULTY = [
    (IgnoresVersions, "commit_at_another_version"), (StoresHalf, "commit_at_another_version"),
    (HidesConflicts, "commit_at_another_version"), (ReusesVersions, "earlier_version"),
    (TakesEmptyForMissing, "commit_returns"), (ReordersRecords, "records_are_kept"),
    (ConvertsLines, "records_are_kept"), (ReturnsOnePage, "records_are_kept"), (ReturnsOnePage, "all_documents"),
    (ErasesByPrefix, "similar_name"), (ErasesPatterns, "similar_name"), (ListsUsersForGood, "similar_name"),
    (KeepsDocuments, "redaction_changes"), (LeavesOutAddedRecords, "redaction_changes"),
    (RemovesUnlistedHistory, "redaction_changes"), (CountsRedactions, "redaction_changes"),
    (ReturnsNoDigests, "redaction_changes"), (KnowsNoErased, "fencing_token"),
    (TakesRedactionsForErasures, "fencing_token"), (PrunesTooMuch, "pruning"), (PrunesByPosition, "pruning"),
    (LocksNothing, "lock_excludes"), (LocksAllUsers, "lock_excludes"), (KeepsFailedLocks, "block_fails"),
    (RefusesAtOnce, "lock_waits"), (EndsWithClose, "closed"), (ReadsHiddenUnlocked, "hidden_document_is"),
    (ListsEmptyHidden, "hidden_document_is"), (KeepsHiddenTexts, "includes_hidden"),
]  # fmt: skip
_ARGUMENTS = {"commit_at_another_version": "changed", "includes_hidden": {"everything": True}}


@pytest.mark.parametrize(
    ("backend", "test"), FAULTY, ids=lambda each: getattr(each, "__name__", "")
)
def test_the_suite_finds_a_fault(backend, test):
    assert issubclass(AtomicBackendSuite, Contract)
    (name,) = (name for name in vars(Contract) if name.startswith("test_") and test in name)
    arguments = [_ARGUMENTS[test]] if test in _ARGUMENTS else []
    getattr(Contract(), name)(MemoryBackend(), *arguments)
    with pytest.raises((AssertionError, pytest.fail.Exception, BackendError, LockTimeout)):
        getattr(Contract(), name)(backend(), *arguments)


def test_the_suite_finds_users_that_are_not_listed():
    test = AtomicBackendSuite().test_all_users_are_listed
    test(MemoryBackend())
    with pytest.raises(AssertionError):
        test(ReturnsOnePage())


class OneOptionalDocument(SixVerbs):
    async def load(self, user_id, kind):
        return await super().load(user_id, kind if kind == "preferences" else "conversations")

    async def save(self, user_id, kind, content):
        await super().save(user_id, kind if kind == "preferences" else "conversations", content)


def test_the_suite_finds_two_kinds_in_one_document():
    test = BackendSuite().test_each_kind_has_its_own_document
    test(SixVerbs())
    with pytest.raises(AssertionError):
        test(OneOptionalDocument())


class ChangesHiddenAgain(MemoryBackend):
    """As if another client had changed the document meanwhile."""

    def change_hidden(self, user, kind, change, *, is_locked=False):
        change(self.hidden(user, kind), self.epoch(user))
        super().change_hidden(user, kind, change, is_locked=is_locked)


def test_the_suite_accepts_a_backend_that_calls_a_change_again():
    Contract().test_a_hidden_document_is_changed_atomically(ChangesHiddenAgain())
    everything = {"everything": True}
    Contract().test_a_redaction_includes_hidden_documents(ChangesHiddenAgain(), everything)


class LosesHiddenDocuments(MemoryBackend):
    def change_hidden(self, user, kind, change, *, is_locked=False):
        change("", self.epoch(user))


def test_the_suite_finds_lost_hidden_documents():
    test = AtomicBackendSuite().test_hidden_documents_keep_the_cursor_of_a_hook
    test(MemoryBackend())
    with pytest.raises(AssertionError):
        test(LosesHiddenDocuments())
