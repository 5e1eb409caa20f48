"""Caches parsed documents.

A cached document is current as long as the version token of the stored document is unchanged.
"""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tomldiary.engine.deadlines import Deadlines
from tomldiary.engine.transaction import open_here
from tomldiary.entries.kinds import KINDS, entry_kind
from tomldiary.entries.kinds.parts import JoinedEdit, join, parts_among
from tomldiary.errors import (
    BackendError,
    DocumentError,
    InvalidTOML,
    NestedTransaction,
    NotSupported,
)
from tomldiary.hand_edits.detect import Known, look
from tomldiary.hand_edits.three_way_merge import NOTHING, before_saves
from tomldiary.history.record import HistoryIndex
from tomldiary.history.timeline import Timeline
from tomldiary.runtime.async_bridge import SCOPE, scope_here
from tomldiary.runtime.forgettable_cache import clear_caches
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.runtime.lru import PerUser, Recent, RecentBySize
from tomldiary.storage.locks import wait_for_save
from tomldiary.storage.protocol import (
    Backend,
    CheapTokens,
    FixedDocuments,
    ListsFolders,
    LocalFolder,
    ReadsOneState,
    ReadsUsersAtOnce,
    Token,
)
from tomldiary.toml.document import ValueEdit
from tomldiary.toml.edit import Edit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from tomldiary.engine.rules import EntryRules
    from tomldiary.engine.transaction import Transaction
    from tomldiary.history.record import Indexed
    from tomldiary.toml.document import Document

R = TypeVar("R")
_DOCUMENT_SIZE = 512  # more than the size of an empty document in memory, counted as characters
_CACHED_USERS = 256
_CACHED_EPOCHS = 4096  # users
_MOST_DEADLINES = 4096  # users, to limit memory


class DocumentCache:
    """Reads the documents of one backend without a lock. Thread-safe.

    Reads inside a transaction include its changes.

    Args:
        backend: The storage of the documents.
    """

    cached_characters = 1 << 26
    """The most characters that one cache of documents keeps; a document takes 10 to 13 bytes for each.

    Each cache reads it when it is made, so a later change applies only to new ones, such as those of an `ItemStore`.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.save_timeout = 3.0
        """How long a write waits for another program to finish saving a document, in seconds."""
        self.logged = PerUser(lambda user: HistoryIndex(backend, user), _CACHED_USERS)
        """The index of each user's history."""
        self.cheap_tokens = backend if isinstance(backend, CheapTokens) else None
        self._one_state = backend if isinstance(backend, ReadsOneState) else None
        self._at_once = backend if isinstance(backend, ReadsUsersAtOnce) else None
        self.rules: EntryRules | None = None
        """The rules of the entries, which a diary sets; None in an engine without a diary."""
        self._cache: RecentBySize[tuple[str, str], Known] = RecentBySize(
            self.cached_characters, lambda known: known.document.size + _DOCUMENT_SIZE
        )
        self._folders = backend if isinstance(backend, ListsFolders) else None
        self._local = backend if isinstance(backend, LocalFolder) else None
        self._fixed = backend.documents if isinstance(backend, FixedDocuments) else None
        """The only documents that the backend stores; None if any name is allowed."""
        self._joins: RecentBySize[tuple[str, str], tuple[list[Document], Document]] = RecentBySize(
            self.cached_characters, lambda join: sum(part.size for part in join[0])
        )
        """The parts of each kind, and the document that joins them."""
        self._epochs: Recent[str, int] = Recent(_CACHED_EPOCHS)
        """The number of erasures of each user when their documents were cached."""
        self._deadlines: dict[str, Deadlines] = {}
        self._most_deadlines = _MOST_DEADLINES
        self._in_hooks: set[tuple[int, str]] = set()
        """The threads in which strict hooks check a write, and its user."""
        self._guard = fork_safe(threading.Lock())

    def document(self, user: str, kind: str) -> Document:
        """Return the current document, with the changes of an open transaction; empty if it does not exist.

        Raises:
            DocumentError: The document does not parse, is unsafe to parse, or has a newer format version.
        """
        joined = self.transaction_of(user)
        if joined is not None:
            return joined.document(kind)
        cached = self.load(user, kind)
        return cached.document if cached is not None else NOTHING

    def draft(self, user: str, kind: str) -> JoinedEdit:
        """Return an edit of all entries of a kind as values only, without expired ones; it is never stored.

        Raises:
            DocumentError: As `document`.
        """
        with self.reading():
            parts: dict[str, Any] = {
                part: ValueEdit(self.kept(part, self.readable_part(user, part)))
                for part in self.parts(user, kind)
            }
        for part, edit in parts.items():
            edit.file = partial(self.backend.place, user, part)
        return JoinedEdit(KINDS[kind], parts, parts.__getitem__, None)

    def reading(self) -> AbstractContextManager[None]:
        """Return a context in which this thread reads one state of each user, if the backend supports it."""
        return nullcontext() if self._one_state is None else self._one_state.reading()

    def of_each(self, users: Sequence[str], work: Callable[[str], R]) -> Iterator[R]:
        """Yield the result of `work` for each user, in order; for several users at once if the backend supports it.

        Inside an open transaction, which belongs to the calling thread, it is called for one user after the other.
        """
        if self._at_once is None or scope_here() is not None:
            return map(work, users)
        return self._at_once.of_each(users, work)

    def readable(self, user: str, kind: str) -> Document:
        """Return all entries of a kind as one document, without the hand edits that its rules forbid.

        Raises:
            DocumentError: As `document`.
        """
        with self.reading():
            parts = [self.readable_part(user, part) for part in self.parts(user, kind)]
        return self.join(user, kind, parts)

    def readable_part(self, user: str, part: str) -> Document:
        """Return one document without the hand edits that its rules forbid.

        Raises:
            DocumentError: As `document`.
        """
        document = self.document(user, part)
        known = self.load(user, part) if self.is_guarded(part) else None
        if known is None or not known.is_edited:
            return document
        edit = Edit(document)
        self.undo_edits(user, part, edit, known)
        return edit.done()

    def kinds(self, user: str) -> list[str]:
        """Return the names of a user's documents, with those that an open transaction adds."""
        stored = self.backend.kinds(user)
        joined = self.transaction_of(user)
        if joined is not None:
            return sorted({*stored, *joined.changed()})
        return stored

    def now(self) -> datetime:
        """Return the current time, for which temporal facts are read by default."""
        return datetime.now(UTC)

    @property
    def lists_documents(self) -> bool:
        """Whether the backend can list documents whose names are not fixed, such as episodes."""
        return self._fixed is None

    def parts(self, user: str, kind: str) -> list[str]:
        """Return the documents that hold the entries of a kind, with those that an open transaction adds.

        The first document may not exist.
        """
        known = KINDS.get(kind)
        if known is None or not known.is_split or not self.lists_documents:
            return [kind]
        listed = self.listed(user, f"{kind}/")
        return parts_among(kind, listed) if listed else [kind]

    def listed(self, user: str, folder: str) -> list[str]:
        """Return the names of a user's documents below a folder, with those that an open transaction adds."""
        if self._folders is not None:
            found = self._folders.listing(user, folder)
        else:
            found = [kind for kind in self.backend.kinds(user) if kind.startswith(folder)]
        joined = self.transaction_of(user)
        if joined is None:
            return found
        return sorted({*found, *(kind for kind in joined.kinds() if kind.startswith(folder))})

    def join(self, user: str, kind: str, parts: list[Document]) -> Document:
        """Return the parts of a kind as one document; the same object as long as the parts are the same."""
        if len(parts) == 1:
            return parts[0]
        known = self._joins.get((user, kind))
        if known is not None and list(map(id, known[0])) == list(map(id, parts)):
            return known[1]
        made = join(entry_kind(kind), parts)
        self._joins.keep((user, kind), (parts, made))
        return made

    def check_kept(self, kind: str) -> None:
        """Refuse a document that the backend cannot list.

        Raises:
            NotSupported: The backend keeps a fixed set of documents, and this document is not in it.
        """
        if self._fixed is not None and kind not in self._fixed:
            name = kind.partition("/")[0]
            known = {"items": "items of custom namespaces", "quarantine": "pending changes"}
            what = known.get(name, name)
            raise NotSupported(
                f"{kind}: a backend with six methods cannot list its documents, so {what} would be stored but"
                f" never found. Use a folder; this backend keeps only {', '.join(self._fixed)}."
            )

    def kept(self, name: str, document: Document) -> Document:
        """Return a document, or all parts of a kind as one, without expired entries."""
        if self.rules is None or not self.rules.has_times:
            return document
        return self.rules.kept(name, document, self.now())

    def is_guarded(self, kind: str) -> bool:
        """Return whether there are rules for the entries of a document, so that its hand edits are checked."""
        return self.rules is not None and kind.partition("/")[0] in self.rules.kinds

    def undo_edits(
        self,
        user: str,
        kind: str,
        edit: Edit,
        base: Known | None,
        report: Callable[[str], object] | None = None,
    ) -> None:
        """Undo the hand edits since the last write that the rules forbid.

        `report` is called with a sentence about each one. Without it, the first call warns of them.
        """
        if self.rules is None or base is None or not self.is_guarded(kind):
            return
        before = self.before_saves(user, kind, base)
        if before is not None:
            name = kind.partition("/")[0]
            parts = self.parts(user, name) if entry_kind(name).is_split else []
            others = [self.with_base(user, each) for each in parts if each != kind]
            is_silent = base.is_reported and report is None
            place = "" if is_silent else self.backend.place(user, kind)
            is_undone = self.rules.undo_edits(kind, edit, before, others, self.now(), place, report)
            base.is_reported |= is_undone and report is None

    def forbidden_edits(self, user: str, kind: str) -> list[str]:
        """Return a sentence about each hand edit of a document that the rules forbid and the next write undoes."""
        found: list[str] = []
        known = self.load(user, kind)
        if known is not None and known.is_edited:
            self.undo_edits(user, kind, Edit(known.document), known, found.append)
        return found

    def with_base(self, user: str, kind: str) -> tuple[Document, Document]:
        """Return a document, and the same document before the latest hand edits."""
        known = self.load(user, kind)
        if known is None:
            return NOTHING, NOTHING
        return known.document, self.before_saves(user, kind, known) or known.document

    def load(self, user: str, kind: str, token: Token | None = None) -> Known | None:
        """Return a document with its version, or None if it does not exist; `token` is that version if just read."""
        return self._loaded(user, kind, token or self.backend.token(user, kind))

    def load_all(self, user: str, kinds: Sequence[str], last: str | None) -> list[Known | None]:
        """Return documents for writing; the caller holds the user's lock, and `last` is the newest history record.

        Each document includes all transactions in history, even if its file could not be replaced.
        """
        try:
            changes = self.index(user).at(last)
        except InvalidTOML:
            changes = None  # history is damaged, so the cached documents cannot be validated
        return [
            self._loaded(user, kind, token, changes, is_written=True)
            for kind, token in zip(kinds, self.tokens(user, kinds), strict=True)
        ]

    def tokens(self, user: str, kinds: Collection[str]) -> Sequence[Token | None]:
        """Return the stored versions of documents, in one call if the backend supports it."""
        if self.cheap_tokens is None:
            return [self.backend.token(user, kind) for kind in kinds]
        return self.cheap_tokens.tokens(user, kinds)

    def _loaded(
        self,
        user: str,
        kind: str,
        token: Token | None,
        changes: Indexed | None = None,
        *,
        is_written: bool = False,
    ) -> Known | None:
        key = (user, kind)
        cached = self._cache.get(key)
        if cached is not None and _is_current(cached, token, kind, changes, is_written=is_written):
            return cached
        stored = self.backend.read(user, kind) if token is not None else None
        if stored is None:
            was_cached = cached is not None and self._cache.pop(key) is not None
            if was_cached and self._notice_erasure(user):  # the user may have another folder now
                return self._loaded(
                    user, kind, self.backend.token(user, kind), changes, is_written=is_written
                )
            return None
        if self._notice_erasure(user):
            cached = None
        fresh = look(self.backend, user, kind, stored, cached, self.index(user))
        fresh.seen = changes.last if changes is not None else -1
        if cached is not None and cached.document.text == fresh.document.text:
            # A file that was just saved is read several times.
            fresh.is_reported = cached.is_reported
        elif self.rules is not None and fresh.logged is not None:
            place = self.backend.place(user, kind)
            self.rules.report_edit(kind, fresh.logged, fresh.document, place)
        self._remember(key, fresh)
        return fresh

    def epoch_read(self, user: str) -> int:
        """Return the fencing token of what is read next, or -1 during a forget job: what is read may be old then."""
        epoch, local = self.backend.epoch(user), self._local
        return -1 if epoch and local is not None and local.is_forgetting(user) else epoch

    def index(self, user: str) -> HistoryIndex:
        """Return the index of a user's history."""
        return self.logged.of(user, self._epochs.get(user, 0))

    def whole_history(self, user: str) -> Indexed:
        """Return what is indexed of the whole history; the caller holds the user's lock.

        Raises:
            InvalidTOML: The newest record is damaged.
        """
        self._note_epoch(user, self.backend.epoch(user))
        return self.index(user).at(self.backend.last_record(user), is_whole=True)

    def settled(self, user: str, kind: str, last: str | None) -> Known | None:
        """Return a document for writing as `load_all`; wait until other programs have finished saving it.

        Raises:
            HandEditConflict: The save took longer than `save_timeout`.
        """
        deadline = time.monotonic() + self.save_timeout
        while (known := self.load_all(user, [kind], last)[0]) is not None and known.is_settling:
            # Entries that are missing in a half-written file must not count as deleted.
            wait_for_save(self.backend.place(user, kind), deadline, self.save_timeout)
        return known

    def before_saves(self, user: str, kind: str, known: Known) -> Document | None:
        """Return the document before the latest hand edits, or None if there are none."""
        before = known.before
        if before is None:
            before = known.logged
            if known.is_saved:
                with suppress(DocumentError):  # history is damaged, or an older part is missing
                    before = before_saves(Timeline(self.backend, user), kind)
            known.before = before
        return before

    def discard(self, user: str, kinds: Iterable[str]) -> None:
        """Drop cached documents, for example after a failed commit; the next read reads them again."""
        for kind in kinds:
            self._cache.pop((user, kind))

    def deadlines(self, user: str) -> Deadlines:
        """Return the expiry times of a user's items that were refreshed by reads."""
        found = self._deadlines.get(user)
        if found is None:
            if len(self._deadlines) >= self._most_deadlines:
                self._drop_deadlines()
            local = self._local
            made = Deadlines(local and local.index_folder(user), local and local.files)
            found = self._deadlines.setdefault(user, made)
        return found

    def _drop_deadlines(self) -> None:
        now = time.time_ns() // 1000
        for user, each in list(self._deadlines.items()):
            if not each.has_refreshes(now):
                self._deadlines.pop(user, None)
        self._most_deadlines = max(_MOST_DEADLINES, 2 * len(self._deadlines))

    # Open transactions

    def _joined(self, user: str) -> Transaction | None:
        """Return the open transaction that a write of this user joins.

        Raises:
            NestedTransaction: A transaction of another user is open here, or a strict hook checks one of this user.
        """
        if (threading.get_ident(), user) in self._in_hooks:  # it would wait for the lock for ever
            raise NestedTransaction(
                "a strict hook cannot write to the user whose write it checks. Add the hook without strict=True."
            )
        joined = open_here()
        return joined if joined is not None and joined.is_joined_by(self, user) else None

    def transaction_of(self, user: str) -> Transaction | None:
        """Return the open transaction whose changes a read of this user sees."""
        if SCOPE.get() is None:
            return None  # the usual case, checked first because it is cheap
        joined = open_here()
        is_mine = joined is not None and joined.user == user and joined.is_joined_by(self, user)
        return joined if is_mine else None

    def refuse_nested(self, user: str, operation_id: str) -> None:
        """Refuse an idempotency key inside an open transaction, which can only be repeated as a whole.

        Raises:
            NestedTransaction: A transaction of the user is open here.
        """
        if operation_id and self._joined(user) is not None:
            raise NestedTransaction(
                "a transaction is open here, and can only be repeated as a whole. Pass the operation id"
                " to transaction(operation_id=…)."
            )

    def refuse_open(self, user: str) -> None:
        """Refuse a verb that needs the whole memory as it is stored, inside an open transaction.

        Raises:
            NestedTransaction: A transaction of the user is open here.
        """
        if self._joined(user) is not None:
            raise NestedTransaction(
                "a transaction of this user is open here. Roll back, forget, drop history and reconcile hooks"
                " after it has ended."
            )

    def session_here(self, user: str) -> str:
        """Return the session of the transaction that a write of this user joins, or ""."""
        joined = self.transaction_of(user)
        return "" if joined is None else joined.session

    def actor_here(self, user: str) -> str:
        """Return the actor of the transaction that a write of this user joins, or ""."""
        joined = self.transaction_of(user)
        return "" if joined is None else joined.actor

    def _notice_erasure(self, user: str) -> bool:
        """Drop a user's documents if another process has erased data since; return whether it has."""
        try:
            epoch = self.epoch_read(user)
        except BackendError:
            return False  # the next write raises the error
        return self._note_epoch(user, epoch)

    def _note_epoch(self, user: str, epoch: int) -> bool:
        with self._guard:
            known = self._epochs.get(user, epoch)
            self._epochs.keep(user, epoch)
        if known != epoch:
            self._drop(user)
        return known != epoch

    def _remember(self, key: tuple[str, str], cached: Known) -> None:
        if key[0] not in self._epochs:
            self._notice_erasure(key[0])
        self._cache.keep(key, cached)

    def _drop(self, user: str) -> None:
        clear_caches()
        self.logged.drop(user)
        for cache in (self._cache, self._joins):
            cache.drop(lambda key: key[0] == user)

    def _drop_history(self, user: str) -> None:
        """Drop what is cached of a user's history, and the documents whose hand edits are compared with it."""

        def is_compared(key: tuple[str, str]) -> bool:
            known = self._cache.get(key) if key[0] == user else None
            return known is not None and known.is_edited

        self.logged.drop(user)
        self._cache.drop(is_compared)


def _is_current(
    cached: Known, token: Token | None, kind: str, changes: Indexed | None, *, is_written: bool
) -> bool:
    """Return whether a cached document has this version of its file; see `DocumentCache.load_all`."""
    if cached.token != token or cached.is_young:
        return False
    if not is_written:
        return True
    if changes is None or not cached.is_logged or cached.is_merged:
        return False
    if cached.logged is not None or cached.problem is not None:
        return False  # the file differed from the document at the end of history
    if kind not in changes.documents:
        return 0 < changes.start <= cached.seen  # an older record may have it
    latest = changes.documents[kind]
    # The number alone is not enough: another history may have replaced this one.
    fingerprint = cached.document.fingerprint
    return latest is not None and latest.seq <= cached.seen and latest.result == fingerprint
