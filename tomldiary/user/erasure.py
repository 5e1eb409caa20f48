"""Erases the memory of a user, a session or a turn, and searches for remaining traces."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from tomldiary.entries.kinds import entry_key, entry_kind, path_of
from tomldiary.entries.kinds.parts import part_of
from tomldiary.errors import DiaryError, InvalidValue
from tomldiary.forgetting.forget import forget, preview
from tomldiary.forgetting.selection import ForgetReceipt, Selection
from tomldiary.identifiers.namespaces import labels_up_to
from tomldiary.runtime.sources import HIDDEN
from tomldiary.storage.local.layout import KEY_NAME, SYSTEM
from tomldiary.storage.protocol import KeepsHidden, LocalFolder
from tomldiary.text.mentions import folded, is_mentioned, sought
from tomldiary.toml.values import checked_flag, checked_text, render_text, render_value
from tomldiary.user.context import UserPart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.storage.protocol import Backend
    from tomldiary.toml.values import When

# White space and letters as TOML and JSON escape them, also inside quoted documents. White space may also be the end
# of a line in a string on several lines.
_ESCAPED = re.compile(
    r"(?<!\\)\\++(?:[nrt]|\s|u([0-9a-fA-F]{4})|U(00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}))"
)


class UserErasure(UserPart):
    """Erases all or parts of the memory of one user."""

    def forget(
        self,
        *,
        session_id: str | None = None,
        before: When | None = None,
        source: str | None = None,
        key: str | None = None,
        matching: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> ForgetReceipt:
        """Erase the content of a session, a turn or a period from files and history permanently.

        A text that another session also stated is kept and attributed to that session. An entry that
        other sessions wrote earlier returns to their version. Queries of history omit erased content, and
        older transactions can no longer be rolled back. After a crash, the next process that opens the
        user completes the erasure. Work that began before it is refused with `Forgotten`, and selected
        turns are removed from the writers' queues.

        The operation ids of erased transactions and ingested turns are erased too, so submitting such a
        turn again stores it again.

        If nothing is stored of the user, the receipt's `found_elsewhere` lists namespaces of other owners
        that have the user as a label, such as ("memories", user).

        Args:
            session_id: The session's conversation, and entries that only this session stated.
            before: Entries last updated before this time: a datetime, a date, month or year (its start) or ISO 8601
                text (UTC without a zone).
            source: Entries extracted from this turn, `session#turn` or `episodes/id`, or from all turns of a session,
                even if other sessions confirmed them since. Entries of turns that were read together, such as
                `session#2-4`, are erased with each of these turns.
            key: One entry with all its versions. `history` and `recall` show its key. The singleton key of a temporal
                fact, as in `facts/home/user`, names all its intervals, and `facts/home/user@2020-01-01` one of them.
                With an episode, also the entries extracted from it or from its turn.
            matching: Content that mentions this text, in any case, form of Unicode and white space, also with hidden
                characters. An entry that did not mention it before returns to that content. Comments of other
                entries are kept.
            everything: All data of the user, including documents and history.
            dry_run: Only count the content to erase, and name its entries in `keys`; `files` is then empty.

        Raises:
            InvalidValue: Not exactly one selector is given. A ValueError; nothing was changed.
            UnknownEntry: `key` cannot be the key of an entry. Nothing was changed.
            NestedTransaction: A transaction of this user is open here.
            DocumentError: A document cannot be read at the moment. Nothing was changed.
            BackendError: The storage failed; the message says whether something was changed.
        """
        checked_flag(dry_run, "dry_run")
        selection = Selection.one_of(session_id, before, source, everything, key, matching)
        if selection.key:  # in the form that history shows
            path = path_of(selection.key, self._diary.allowed, self._diary.fact_schemas)
            has_intervals = entry_kind(path[0]).has_intervals(path, self._context.read, self._diary)
            selection = replace(selection, key=entry_key(path), has_intervals=has_intervals)
        turn = self._context.queries().turn_of(selection.key or selection.source)
        selection = replace(selection, turn=turn)
        is_known = True
        with suppress(DiaryError):  # a user that cannot be listed may exist
            is_known = bool(self._context.kinds())
        if dry_run:
            receipt = preview(self._context.engine, self._context.user_id, selection)
        else:
            try:
                receipt = forget(self._context.engine, self._context.user_id, selection)
            finally:
                self._context.indexes.drop(self._context.user_id)
                self._diary.sessions.drop(self._context.user_id)
        if is_known or receipt.entries or receipt.conversations or receipt.records:
            return receipt
        return replace(receipt, found_elsewhere=self._elsewhere())

    def traces(self, text: str) -> list[str]:
        """Return the places of the storage that still contain a text; an empty list proves that it is erased.

        This is slow, because it reads every file of the user, the journals and the indexes.

        Args:
            text: The text to search for, compared as by `forget(matching=…)`.

        Raises:
            InvalidValue: The text is blank.
        """
        if not sought(checked_text(text, "text")):
            raise InvalidValue("expected text that is not blank.", where="traces")
        return _traces(self._context.engine.backend, self._context.user_id, text)

    def _elsewhere(self) -> tuple[tuple[str, ...], ...]:
        """Return namespaces of other owners, cut after the label that equals this user."""
        backend = self._context.engine.backend
        owners: list[str] = []
        with suppress(DiaryError):  # the erasure itself is done
            owners = backend.users()

        def places_of(owner: str) -> set[tuple[str, ...]]:
            try:
                bases = {part_of(kind)[0] for kind in backend.kinds(owner)}
            except DiaryError:  # the documents of this owner cannot be listed
                return set()
            places = (labels_up_to(self._context.user_id, owner, base) for base in bases)
            return {place for place in places if place is not None}

        # Another process may write this user again.
        others = [owner for owner in owners if owner != self._context.user_id]
        found = set[tuple[str, ...]]().union(*self._context.engine.of_each(others, places_of))
        return tuple(sorted(found))


def _traces(backend: Backend, user: str, text: str) -> list[str]:
    """Return the places of a user that mention a text; in a folder also system files of all users.

    Args:
        backend: The storage.
        user: The user.
        text: The text to find, as written or as escaped by TOML or JSON, also inside a document that history quotes.

    Returns:
        Paths of files below the folder; names of documents, "history" and hidden documents in a database.
    """
    wanted = {sought(text)}
    for _ in range(2):  # twice, because history quotes documents whose texts are quoted already
        wanted |= {form for each in wanted for form in _quoted(each)}
    found: set[str] = set()
    for name, content in _contents(backend, user):
        written = content.decode("utf-8", "replace")
        read = _ESCAPED.sub(_unescaped, written).encode("utf-16", "surrogatepass")
        stored = [folded(each) for each in (written, read.decode("utf-16", "replace"))]
        if any(is_mentioned(form, each) for form in wanted for each in stored):
            found.add(name)
    return sorted(found)


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    return chr(int(code, 16)) if code else " "


def _quoted(text: str) -> set[str]:
    """Return a text as TOML and JSON escape it, in strings on one line and, inside or at the end, on several lines."""
    inside = render_value(f"\n{text}\n", lines=True)[len('"""\n\n') : -len('\n"""')]
    at_end = render_value(f"\n{text}", lines=True)[len('"""\n\n') : -len('"""')]
    return {render_text(text)[1:-1], json.dumps(text)[1:-1], inside, at_end}


def _contents(backend: Backend, user: str) -> Iterator[tuple[str, bytes]]:
    if isinstance(backend, LocalFolder):
        top = backend.base_path
        own = Path(backend.place(user, "preferences")).parent.name
        for path in chain(_files_below(top / SYSTEM), _files_below(top / own)):
            if path == top / SYSTEM / KEY_NAME:  # random bytes, which may spell a short text
                continue
            # A writer removes its journal when its turns are applied.
            with suppress(FileNotFoundError):
                yield path.relative_to(top).as_posix(), path.read_bytes()
        return
    for kind in backend.kinds(user):
        stored = backend.read(user, kind)
        yield kind, (stored.text if stored is not None else "").encode()
    for record in backend.records(user):
        yield "history", record.encode()
    if isinstance(backend, KeepsHidden):
        for kind in sorted(HIDDEN):
            yield kind, backend.hidden(user, kind).encode()


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder; links are not followed, and folders may be removed meanwhile."""

    def tell(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    for place, _, names in os.walk(folder, onerror=tell):
        for path in map(Path(place).joinpath, names):
            if path.is_file() and not path.is_symlink():
                yield path
