"""What the state of an agent keeps of a run and of its thread, and how a run is held meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Self, cast

from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langgraph.channels.untracked_value import UntrackedValue

from tomldiary_langchain.messages import Turn, as_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.messages import BaseMessage

    from tomldiary.agents.turn_messages import Spoken

__all__ = ["DiaryState", "Held", "Run", "kept"]


@dataclass(eq=False, slots=True)
class Run:
    """The owner and session of a turn, and its messages so far."""

    user: str
    session: str
    turn: Turn
    ids: tuple[str, ...]
    """The ids of the user's messages, as they were before a replay."""
    messages: list[BaseMessage]
    """The thread as it was last seen."""
    as_said: tuple[Spoken, ...]
    """The user's messages as they were when the run began."""
    memory: str = ""
    epoch: int | None = None
    """How often something of the user was erased before the run; None is unknown."""
    is_delegated: bool = False
    """Whether a model wrote the prompt, so that the turn is not submitted."""
    is_over: bool = False
    """Whether the turn ended well."""

    def see(self, messages: Sequence[BaseMessage]) -> None:
        """Take the thread as it is now, and the words of the turn: a middleware may have redacted them."""
        self.messages = list(messages)
        self.turn = as_in(messages, self.turn)


class Held(str):
    """Runs in the state; as text it says nothing, because streams and traces show private fields too."""

    __slots__ = ("runs",)

    runs: dict[object, Run]

    def __new__(cls, runs: dict[object, Run]) -> Self:
        """Hold runs, by middleware."""
        held = super().__new__(cls, "settled")
        held.runs = runs
        return held

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Leave the runs out of what a server stores of the state."""
        return str, (str(self),)


_ByMessage = dict[str, dict[str, str]]


def _merged(old: _ByMessage, new: _ByMessage) -> _ByMessage:
    return old | new


class DiaryState(AgentState[Any]):
    """An agent's state with private fields that are in no input or output; the memory is in no checkpoint either."""

    # Untracked: a copy of the memory in a checkpoint would outlive what `forget` removes.
    diary_run: NotRequired[Annotated[Any, UntrackedValue, PrivateStateAttr]]
    diary_asked_by: NotRequired[Annotated[_ByMessage, PrivateStateAttr, _merged]]
    """By middleware and message: a digest of the user who said it, as long as it has no answer."""
    diary_asked: NotRequired[Annotated[_ByMessage, PrivateStateAttr, _merged]]
    """The texts of these messages, which a summary may cut out of the thread before the run is resumed."""
    diary_ended: NotRequired[Annotated[_ByMessage, PrivateStateAttr, _merged]]
    """By middleware: what `ended_in` returned for the last turn that ended."""


def kept(state: AgentState[Any], field: str) -> dict[str, dict[str, str]]:
    """Return, by middleware and message, what the state keeps of messages from when the run began."""
    return cast("dict[str, Any]", state).get(field) or {}
