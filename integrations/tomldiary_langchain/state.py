"""The fields of an agent's state for a run and its thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, cast

from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import BaseMessage
from langgraph.channels.untracked_value import UntrackedValue

from tomldiary.agents.turn_messages import StateText
from tomldiary_langchain.messages import Turn, as_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tomldiary.agents.turn_messages import Spoken

__all__ = ["DiaryState", "Held", "Run", "kept"]


@dataclass(eq=False, slots=True)
class Run:
    """The owner and session of a turn, and its messages so far."""

    user: str
    session: str
    turn: Turn
    ids: tuple[str, ...]
    """The ids of the user's messages before a replay."""
    messages: list[BaseMessage]
    """The last known messages of the thread."""
    as_said: tuple[Spoken, ...]
    """The user's messages at the start of the run."""
    memory: str = ""
    epoch: int | None = None
    """The user's fencing token at the start of the run; None is unknown."""
    is_delegated: bool = False
    """Whether a model wrote the prompt, so that the turn is not submitted."""
    is_over: bool = False
    """Whether the turn has ended without an error."""

    def see(self, messages: Sequence[BaseMessage]) -> None:
        """Update the thread and the texts of the turn, which a middleware may have redacted."""
        self.messages = list(messages)
        self.turn = as_in(messages, self.turn)

    def see_changes(self, returned: Sequence[object]) -> None:
        """Take over the texts that a node has changed, because the run may end before another node gets them."""
        known = (one for one in returned if isinstance(one, BaseMessage) and one.id)
        changed = {(one.id, one.type): one for one in known}
        self.see([changed.get((one.id, one.type), one) for one in self.messages])


class Held(StateText[dict[object, Run]]):
    """The runs of the middlewares in an agent's state, by middleware."""


_ByMessage = dict[str, dict[str, str]]


def _merged(old: _ByMessage, new: _ByMessage) -> _ByMessage:
    return old | new


class DiaryState(AgentState[Any]):
    """An agent's state with private fields, which are in no input or output; no checkpoint contains the memory."""

    # Untracked, because `forget` does not remove a copy of the memory in a checkpoint.
    diary_run: NotRequired[Annotated[Any, UntrackedValue, PrivateStateAttr]]
    diary_asked_by: NotRequired[Annotated[_ByMessage, PrivateStateAttr, _merged]]
    """A digest of the user who wrote an unanswered message, by middleware and message id."""
    diary_asked: NotRequired[Annotated[_ByMessage, PrivateStateAttr, _merged]]
    """The texts of these messages, which a summary may remove from the thread before the run is resumed."""
    diary_ended: NotRequired[Annotated[_ByMessage, PrivateStateAttr, _merged]]
    """The result of `ended_in` for the last turn that ended, by middleware."""


def kept(state: AgentState[Any], field: str) -> dict[str, dict[str, str]]:
    """Return a field of the state that has values by middleware and message id."""
    return cast("dict[str, Any]", state).get(field) or {}
