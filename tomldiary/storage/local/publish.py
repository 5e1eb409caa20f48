"""Staging and publishing of a transaction's documents.

Documents are staged as temporary files before their record is appended, and published behind it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from tomldiary.storage.files import write_new
from tomldiary.storage.local.exchange import put_in_place
from tomldiary.storage.local.layout import make_parent

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.storage.files import FileToken
    from tomldiary.storage.protocol import Commit

__all__ = ["Staging"]


class Staging:
    """The staged documents of one transaction; the caller holds the user's lock.

    Args:
        folder: The user's folder.
        commit: The transaction.
        seq: Its number; of several transactions, the last number.
        staged_as: Returns a new path for a staged document, by kind, content, transaction and digest.
    """

    def __init__(
        self,
        folder: str,
        commit: Commit,
        seq: int,
        staged_as: Callable[[str, bytes, int, str], str],
    ) -> None:
        self._folder = folder
        self._commit = commit
        self._seq = seq
        self._staged_as = staged_as
        self._paths = {kind: self._path(kind, seq) for kind in commit.contents}
        self._written: dict[str, FileToken] = {}
        self._tokens: dict[str, FileToken] = {}

    def _path(self, kind: str, seq: int) -> str:
        digest = self._commit.fingerprints.get(kind, "")
        return self._staged_as(kind, self._commit.contents[kind], seq, digest)

    def stage(self, *, sync: bool) -> None:
        """Write the documents to temporary files; with `sync`, new folders are synced.

        Raises:
            OSError, BackendError: A document could not be written.
        """
        for kind, path in self._paths.items():
            if "/" in kind:
                make_parent(self._folder, kind, sync=sync)
            self._written[kind] = write_new(path, self._commit.contents[kind], sync=False)

    def drop(self) -> None:
        """Remove the staged files."""
        for path in self._paths.values():
            with suppress(OSError):  # the next recovery removes it
                os.unlink(path)  # noqa: PTH108 - paths are strings here

    def publish(self) -> dict[str, FileToken]:
        """Publish all documents and return their tokens; a document saved meanwhile by hand has none.

        Raises:
            OSError: Some documents are not published.
        """
        for kind in self._paths:
            try:
                token = self._put(kind, self._written[kind])
            except FileNotFoundError:  # another program removed the staged file
                token = self._put(kind, self._staged_again(kind))
            if token is not None:
                self._tokens[kind] = token
        return self._tokens

    def _put(self, kind: str, written: FileToken) -> FileToken | None:
        expected = self._commit.expected.get(kind)
        return put_in_place(self._paths[kind], f"{self._folder}/{kind}.toml", expected, written)

    def _staged_again(self, kind: str) -> FileToken:
        # Until it is complete, its name must not be that of a displaced edit.
        unfinished, path = self._path(kind, self._seq + 1), self._path(kind, self._seq)
        token = write_new(unfinished, self._commit.contents[kind], sync=False)
        os.rename(unfinished, path)  # noqa: PTH104 - paths are strings here
        self._paths[kind] = path
        return token

    def displaced(self) -> list[str]:
        """Return the names of the files that hold displaced edits."""
        return [
            path[len(self._folder) + 1 :]
            for kind, path in self._paths.items()
            if kind not in self._tokens and os.path.lexists(path)
        ]
