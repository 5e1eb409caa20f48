"""The documents of one transaction on the way to their places: staged before its record, put there behind it."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from tomldiary.storage.files import write_new
from tomldiary.storage.local.checkpoint import window_of
from tomldiary.storage.local.exchange import put_in_place
from tomldiary.storage.local.layout import DISPLACED, make_parent
from tomldiary.storage.local.recovery import set_aside

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.storage.files import FileToken
    from tomldiary.storage.local.spare_files import Spares
    from tomldiary.storage.protocol import Commit

__all__ = ["Staging"]


class Staging:
    """The documents of one transaction; whoever has it holds the user's lock.

    Args:
        folder: The user's.
        commit: The transaction.
        seq: Its number, of several the last one's.
        spares: Where files come from that are written over; None: that is not safe.
        staged_as: Returns a new path to stage a document at, by kind, content, transaction and fingerprint.
    """

    def __init__(
        self,
        folder: str,
        commit: Commit,
        seq: int,
        spares: Spares | None,
        staged_as: Callable[[str, bytes, int, str], str],
    ) -> None:
        self._folder = folder
        self._commit = commit
        self._seq = seq
        self._spares = spares
        self._staged_as = staged_as
        self._paths = {kind: self._path(kind, seq) for kind in commit.contents}
        self._written: dict[str, FileToken] = {}
        self._tokens: dict[str, FileToken] = {}

    def _path(self, kind: str, seq: int, mark: str = "") -> str:
        mark = mark or self._commit.fingerprints.get(kind, "")
        return self._staged_as(kind, self._commit.contents[kind], seq, mark)

    def stage(self, *, sync: bool) -> None:
        """Write the documents, but for those that are written over a spare: that waits until history has them.

        Raises:
            OSError, BackendError: They could not be written.
        """
        for kind, path in self._paths.items():
            if "/" in kind:
                make_parent(self._folder, kind, sync=sync)
            if not self._has_spare(kind):
                self._written[kind] = write_new(path, self._commit.contents[kind], sync=False)

    def _has_spare(self, kind: str) -> bool:
        # A document that is new is staged: after a crash nothing else tells that there has to be one.
        expected = self._commit.expected.get(kind)
        if self._spares is None or expected is None:
            return False
        length = len(self._commit.contents[kind])
        return self._spares.has(self._folder, kind, window_of(self._seq), expected, length)

    def reach(self) -> None:
        """Open what a single document will be written over, while the disk is at work for its record."""
        if self._spares is not None and len(self._paths) == 1 and not self._written:
            self._spares.reach(self._folder, next(iter(self._paths)))

    def leave(self) -> None:
        """Let go of what was reached for."""
        if self._spares is not None and len(self._paths) == 1:
            self._spares.leave(self._folder, next(iter(self._paths)))

    def drop(self) -> None:
        """Remove what was staged."""
        for path in self._paths.values():
            with suppress(OSError):  # swept by whoever comes next
                os.unlink(path)  # noqa: PTH108 - paths are strings here

    def publish(self) -> dict[str, FileToken]:
        """Put all documents in their places, and return their tokens; where somebody's save came in between there is none.

        Raises:
            OSError: Some are not there.
        """
        for kind in self._paths:
            written = self._written.get(kind) or self._written_late(kind)
            try:
                token = self._put(kind, written)
            except FileNotFoundError:  # somebody has removed what was to be put there
                token = self._put(kind, self._written_new(kind))
            if token is not None:
                self._tokens[kind] = token
                if self._spares is not None and self._commit.expected.get(kind) is None:
                    self._spares.note(self._folder, kind, window_of(self._seq), token)
        return self._tokens

    def _put(self, kind: str, written: FileToken) -> FileToken | None:
        expected = self._commit.expected.get(kind)
        keep = None
        if self._spares is not None and expected is not None:
            window = window_of(self._seq)
            keep = partial(self._spares.keep, self._folder, kind, window, expected)
        return put_in_place(
            self._paths[kind], f"{self._folder}/{kind}.toml", expected, written, keep
        )

    def _written_late(self, kind: str) -> FileToken:
        """Stage a document whose record is in history already."""
        if self._spares is not None:
            try:
                self._paths[kind], token = self._spares.fill(
                    self._folder, kind, self._commit.contents[kind]
                )
            except OSError:
                pass  # somebody has it open, or has removed it
            else:
                return token
        return self._written_new(kind)

    def _written_new(self, kind: str) -> FileToken:
        # Until it is whole it must not look like something that an exchange has displaced.
        unfinished, path = self._path(kind, self._seq + 1), self._path(kind, self._seq)
        token = write_new(unfinished, self._commit.contents[kind], sync=False)
        os.rename(unfinished, path)  # noqa: PTH104 - paths are strings here
        self._paths[kind] = path
        return token

    def displaced(self) -> list[str]:
        """Return the names under which saves stand that came in between."""
        return [
            set_aside(path, self._path(kind, self._seq, DISPLACED))
            for kind, path in self._paths.items()
            if kind not in self._tokens and os.path.lexists(path)
        ]
