"""The answers of an agent's tools: text and data, descriptions of errors, and calls that are applied once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

from tomldiary.errors import (
    BackendError,
    CommittedUnpublished,
    DiaryError,
    UnknownEntry,
    cause_of,
    without_paths,
)
from tomldiary.history.record import Source
from tomldiary.logging import get_logger
from tomldiary.text.visible import escape_for_model, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.user.user import UserDiary

ACTOR = "agent"
"""The actor of what a model writes with tools."""
WAITS = "This change waits for a review. Until a person accepts it, the memory stays as it is."
_KEY_SHOWN = 200  # characters of a key that a model made up
_logger = get_logger(__name__)

R = TypeVar("R")


class Answer(str):
    """An answer for a model, without hidden characters. `data` is the same answer for a program, or None."""

    __slots__ = ("data",)

    data: Any

    def __new__(cls, text: str, data: Any = None) -> Self:
        """Create an answer with its data."""
        answer = super().__new__(cls, visible(text))
        answer.data = data
        return answer

    @property
    def is_error(self) -> bool:
        """Whether the answer reports a failure."""
        return self.startswith("❌")


class DoneBefore(Exception):
    """The call repeats an earlier call."""


def once(user: UserDiary, session: str, operation: str, change: Callable[[], R]) -> R:
    """Run the changes of one call in a transaction. An `operation` of "" means that the call has no id.

    They are run again if another machine was faster.

    Raises:
        DoneBefore: A call with this id was already made. Nothing was changed.
    """

    def run(_: object) -> R:
        if operation and user.has_done(operation):
            raise DoneBefore
        return change()

    source = Source("transaction", session, ACTOR, operation=operation)
    return user.diary.engine.transact(user.user_id, source, run)


def failure(error: Exception) -> Answer:
    """Return an answer that describes an error, because raising it would end the model's run."""
    if isinstance(error, UnknownEntry):
        key = escape_for_model(error.where[:_KEY_SHOWN])
        return Answer(f"❌ {key} does not exist. Look the entry up to see its key.")
    if isinstance(error, BackendError) and not isinstance(error, CommittedUnpublished):
        # Details of the storage are logged for the operator and not shown to the model.
        _logger.warning("a memory tool failed: %s", error)
        return Answer("❌ The diary cannot be used just now. Go on without it.")
    if isinstance(error, DiaryError):
        said = without_paths(str(error))
        if said != str(error):  # paths are logged for the operator only, unless a model wrote them
            _logger.warning("a memory tool failed: %s", cause_of(error))
        return Answer(f"❌ {escape_for_model(said)}")  # it may name stored keys
    if isinstance(error, OSError):
        _logger.warning("a memory tool failed: %s", error)
        reason = error.strerror or type(error).__name__
        return Answer(f"❌ The diary cannot be used just now ({reason}). Go on without it.")
    # Its text is for the operator: it may contain paths.
    _logger.warning("a memory tool failed: %s", type(error).__name__)
    return Answer(f"❌ The diary failed ({type(error).__name__}). Go on without it.")
