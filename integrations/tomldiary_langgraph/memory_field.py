"""The state's field for recalled memory; checkpoints store only the users of unanswered messages and the ends of turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self, cast

from langgraph.channels.untracked_value import UntrackedValue

from tomldiary.agents.turn_messages import StateText

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Ended", "Memory", "MemoryChannel", "Recalled", "asked_by_in", "ended_by", "ended_in"]


class Recalled(StateText[dict[str, str]]):
    """Recalled memory, with a digest of the user of each unanswered message.

    Its key is the id of the message. A user that a function of the node returned has the digest of function and id.
    """


class Ended(StateText[dict[str, str]]):
    """The place where a node's last turn ended, by node; an empty text, which does not replace the field's text."""


class MemoryChannel(UntrackedValue[str]):
    """Stores the users of unanswered messages and the ends of turns in checkpoints, but not the text."""

    __slots__ = ("asked_by", "ended")

    asked_by: dict[str, str]
    ended: dict[str, str]

    def __init__(self, typ: type[str], guard: bool = True) -> None:  # noqa: FBT001, FBT002 - as in the base class
        super().__init__(typ, guard)
        self.asked_by, self.ended = {}, {}

    def copy(self) -> Self:
        """Return a copy of the channel."""
        copied = super().copy()
        copied.asked_by, copied.ended = self.asked_by, self.ended
        return copied

    def checkpoint(self) -> Any:
        """Return the part that a checkpoint stores: no text."""
        known = [self.asked_by, self.ended]
        return known if any(known) else super().checkpoint()

    def from_checkpoint(self, checkpoint: Any) -> Self:
        """Return the channel from a checkpoint."""
        restored = super().from_checkpoint(checkpoint)
        if isinstance(checkpoint, list):
            restored.asked_by, restored.ended = cast("list[dict[str, str]]", checkpoint)
        return restored

    def update(self, values: Sequence[str]) -> bool:
        """Set the text, and the users if `recall_node` wrote it; a subgraph has no users of its parent."""
        ended = [each.data for each in values if isinstance(each, Ended)]
        for each in ended:
            self.ended = {**self.ended, **each}
        values = [each for each in values if not isinstance(each, Ended)]
        if len(values) > 1:  # branches of a fan-out, each with a recall node
            known = [each.data if isinstance(each, Recalled) else self.asked_by for each in values]
            texts = "\n\n".join(dict.fromkeys(filter(None, values)))
            values = [Recalled(texts, {id_: one for each in known for id_, one in each.items()})]
        changed = super().update(values)
        if changed and isinstance(self.value, Recalled):
            now = self.value.data
            self.asked_by = {id_: self.asked_by.get(id_, owner) for id_, owner in now.items()}
        return changed or bool(ended)


Memory = Annotated[str, MemoryChannel]
"""The type of the state's field for `recall_node`: a text that no checkpoint of the graph keeps.

    class Chat(MessagesState):
        memory: Memory

Checkpoints of a subgraph keep its whole input. Pass it the messages alone, with `add_node(…, input_schema=MessagesState)`.

The field lasts for one `invoke`. When a run continues after an interrupt, it is missing until a recall node runs.
Recording nodes read two things from it: the users of unanswered messages in a shared thread, and the end of their
last turn.
"""


def asked_by_in(channels: Mapping[str, Any] | None) -> dict[str, str]:
    """Return what the fields of a state note of unanswered messages; see `Recalled`."""
    fields = _fields(channels).values()
    return {id_: owner for each in fields for id_, owner in each.asked_by.items()}


def ended_in(channels: Mapping[str, Any] | None, node: str) -> set[str]:
    """Return the places where the last turn of a node ended, from the fields of a state."""
    return {each.ended[node] for each in _fields(channels).values() if node in each.ended}


def ended_by(channels: Mapping[str, Any] | None, node: str, end: str) -> dict[str, Ended]:
    """Return the update of a state's fields that records where a turn of a node ended."""
    return {field: Ended("", {node: end}) for field in _fields(channels)}


def _fields(channels: Mapping[str, Any] | None) -> dict[str, MemoryChannel]:
    known = (channels or {}).items()
    return {name: each for name, each in known if isinstance(each, MemoryChannel)}
