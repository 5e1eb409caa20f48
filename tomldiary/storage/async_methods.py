"""The six async methods of TOMLDiary 0.9, implemented with the sync protocol.

`save` is an ordinary transaction: it waits for the user's lock and is logged in history.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from tomldiary.history.record import Change, HistoryIndex, Record, next_sequence, render_record
from tomldiary.identifiers.user_ids import checked_user
from tomldiary.runtime.async_bridge import in_thread
from tomldiary.storage.locks import LOCK_TIMEOUT, repeated
from tomldiary.storage.protocol import Backend, Commit, Rewrite
from tomldiary.toml.document import digest
from tomldiary.toml.parse import parse_toml
from tomldiary.toml.values import checked_text

if TYPE_CHECKING:
    from collections.abc import Callable

_FURTHER_PART = re.compile(r"(preferences|facts)/[0-9]{3,9}|(items/.+)~[0-9]{1,9}", re.ASCII)
"""The documents in which a large one goes on, such as `preferences/002` and `items/work~2`."""


class AsyncVerbs:
    """Adds load, save, exists, delete, delete_user and list_users to a sync backend."""

    async def load(self: Backend, user_id: str, kind: str) -> str | None:
        """Return the document's text, or None. The call creates nothing for an unknown user.

        Raises:
            DocumentError: The document is not UTF-8.
        """
        stored = await in_thread(self.read, user_id, kind)
        if stored is not None and stored.problem is not None:
            raise stored.problem
        return stored.text if stored is not None else None

    async def save(self: Backend, user_id: str, kind: str, content: str) -> None:
        """Replace the document as one logged transaction; the last of several concurrent saves wins.

        Raises:
            DocumentError: `content` is not TOML that this library can read back.
            InvalidValue: `kind` or `content` is not text.
        """
        kind, content = checked_text(kind, "kind"), checked_text(content, "content")
        await in_thread(_save, self, user_id, kind, content)

    async def exists(self: Backend, user_id: str, kind: str) -> bool:
        """Return whether the document exists.

        Raises:
            IdentifierError: `kind` cannot name a document.
        """
        return await in_thread(self.read, user_id, kind) is not None

    async def delete(self: Backend, user_id: str, kind: str) -> None:
        """Remove the document if it exists, and the further parts of preferences, facts or a namespace of items.

        Raises:
            InvalidValue: `kind` is not text.
        """
        erase = partial(_erase, self, checked_user(user_id), checked_text(kind, "kind"))
        await in_thread(_locked, self, user_id, erase)

    async def delete_user(self: Backend, user_id: str) -> None:
        """Forget all data of the user, including history; pending work for the user is refused afterwards."""
        await in_thread(_locked, self, user_id, partial(_forget, self, checked_user(user_id)))

    async def list_users(self: Backend) -> list[str]:
        """Return all user ids, sorted."""
        return await in_thread(self.users)


def _save(backend: Backend, user: str, kind: str, content: str) -> None:
    parse_toml(content, path=backend.place(user, kind))
    _locked(backend, user, partial(_replace, backend, user, kind, content))


def _locked(backend: Backend, user: str, work: Callable[[], object]) -> None:
    """Run `work` under the user's lock, again if another machine has changed the user's memory meanwhile."""
    with backend.lock(user, LOCK_TIMEOUT):
        repeated(work, LOCK_TIMEOUT)


def _replace(backend: Backend, user: str, kind: str, content: str) -> None:
    old = backend.read(user, kind)
    if old is not None and old.problem is not None:
        raise old.problem  # history could not restore this content
    if old is not None and old.text == content:
        return
    before = old.text if old is not None else ""
    last = HistoryIndex(backend, user).of(kind)
    if last is not None and last.result != digest(before):
        before = ""  # not the version that history ends at: the record has the whole text
    change = Change(kind, 0, before, content)
    record = Record(
        seq=next_sequence(backend.last_record(user)),
        type="save",
        changes=[change],
        bases={kind: digest(before)},
        results={kind: digest(content)},
    )
    expected = {kind: old.token if old is not None else None}
    backend.commit(user, Commit({kind: content.encode()}, expected, [render_record(record)]))


def _erase(backend: Backend, user: str, kind: str) -> None:
    kinds = backend.kinds(user)
    parts = [
        each
        for each in kinds
        if (further := _FURTHER_PART.fullmatch(each)) is not None and kind in further.groups()
    ]
    if parts or kind in kinds:
        # Otherwise recovery after a restart of the machine could restore a document that the last record created.
        record = Record(next_sequence(backend.last_record(user)), "delete", [], {}, {})
        backend.commit(user, Commit({}, {}, [render_record(record)]))
    for each in parts:
        backend.erase(user, each)
    backend.erase(user, kind)  # last: after a crash, `exists` shows that the call must be repeated


def _forget(backend: Backend, user: str) -> None:
    backend.rewrite(user, Rewrite({"everything": True}, backend.epoch(user) + 1))
