"""What the store answers when it is asked for something it does not do."""

from __future__ import annotations

from tomldiary.errors import DiaryError

__all__ = ["NotSupported"]


class NotSupported(DiaryError, NotImplementedError):
    """A part of the store interface that `DiaryStore` does not have; names what it has instead."""
