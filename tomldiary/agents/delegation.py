"""Detects that an agent or a graph runs in a tool of another agent, so that a model wrote its prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tomldiary.agents.identity import field_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

LANGCHAIN, PYDANTIC_AI = "langchain", "pydantic_ai"
"""The frameworks whose adapters detect that code runs in a tool of an agent. LangGraph counts as LangChain."""
_within: dict[str, list[Callable[[], bool]]] = {}

_TOOL_NODE = "tools"
"""The name of the node that runs the tools in LangChain's agents."""
_NODE = "graph:step:"
"""The beginning of the tag that LangGraph gives to the run of a node."""
_TASK_OF_AGENT = ("subagent_name", "parent_thread_id")
"""Metadata of the thread of a background task in deepagents; a server adds it to the runs."""


def tell_within(framework: str, is_here: Callable[[], bool]) -> None:
    """Register a function that returns whether the calling code runs in a tool of a framework's agent."""
    _within.setdefault(framework, []).append(is_here)


def is_within(framework: str) -> bool:
    """Return whether the calling code runs in a tool of an agent of a framework whose adapter detected this."""
    return any(is_here() for is_here in _within.get(framework, ()))


class RunTree:
    """The tree of LangChain runs in this process. Base class for the callback handlers of adapters."""

    run_inline = True  # a dictionary access needs no thread
    ignore_llm = ignore_chat_model = ignore_retriever = True

    def __init__(self) -> None:
        self._parents: dict[UUID, UUID | None] = {}
        """The run around each running one; None if there is none."""
        self._children: dict[UUID, set[UUID]] = {}
        self._tools: set[UUID] = set()
        """The runs that are tool calls."""
        self._graphs: set[UUID] = set()
        """The runs that are graphs and have begun a node."""
        self._continued: set[UUID] = set()
        """The runs without an input of their own, which continue an earlier run of a thread."""
        self._inputs: dict[UUID, Any] = {}
        """The messages that each running one was given."""
        self._failed: dict[UUID, list[UUID]] = {}
        """The failed runs by their parent, which may try again."""

    def on_chain_start(
        self,
        *_: Any,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: Sequence[str] | None = None,
        **__: Any,
    ) -> None:
        """Record the parent run of a graph, a node or another chain."""
        around = self._around(parent_run_id)
        self._parents[run_id] = around
        if around is not None:
            self._children.setdefault(around, set()).add(run_id)
            if any(each.startswith(_NODE) for each in tags or ()):
                self._graphs.add(around)

    def on_tool_start(
        self, *_: Any, run_id: UUID, parent_run_id: UUID | None = None, **__: Any
    ) -> None:
        """Record a tool that runs within a chain. A tool that the application calls has no parent and is ignored."""
        around = self._around(parent_run_id)
        if around is not None:
            self._tools.add(run_id)
            RunTree.on_chain_start(self, run_id=run_id, parent_run_id=around)

    def _around(self, named: UUID | None) -> UUID | None:
        """Return the run around a new one, or None.

        Args:
            named: The parent of which LangChain tells. With LangSmith's tracing it may be a traced function of the host,
                which sends no events.
        """
        around = named if named in self._parents else self.run_of(self.config_here())
        return around if around in self._parents else None

    def config_here(self) -> Any:
        """Return the LangChain config of the calling code."""
        raise NotImplementedError

    def on_chain_end(self, *_: Any, run_id: UUID, **__: Any) -> None:
        """Remove an ended run and its children, because some cancelled children send no end event."""
        parent = self._parents.pop(run_id, None)
        if parent is not None and (siblings := self._children.get(parent)):
            siblings.discard(run_id)
            if not siblings:
                self._children.pop(parent, None)
        self._tools.discard(run_id)
        self._graphs.discard(run_id)
        self._continued.discard(run_id)
        self._inputs.pop(run_id, None)
        self._failed.pop(run_id, None)
        for child in list(self._children.pop(run_id, ())):
            RunTree.on_chain_end(self, run_id=child)

    on_tool_end = on_tool_error = on_chain_end

    def on_chain_error(self, error: BaseException, *_: Any, run_id: UUID, **__: Any) -> None:  # noqa: ARG002 - the base class has it
        """Record a failed run beside which another attempt may follow."""
        parent = self._parents.get(run_id)
        if parent is not None:
            self._failed.setdefault(parent, []).append(run_id)
        RunTree.on_chain_end(self, run_id=run_id)

    def run_of(self, config: Any) -> UUID | None:
        """Return the run id in a LangChain config, such as that of a node."""
        return getattr(field_of(config, "callbacks"), "parent_run_id", None)

    def attempt_of(self, config: Any) -> tuple[list[str], list[tuple[str, str]]]:
        """Return the runs that a node is in, and the failed runs beside each of them, which it may retry.

        Returns:
            The ids of the runs, and pairs of a failed run and the one of them that began after it.
        """
        around: list[str] = []
        failed: list[tuple[str, str]] = []
        run = self.run_of(config)
        while run is not None and (parent := self._parents.get(run)) is not None:
            around.append(str(run))
            failed += [(str(each), str(run)) for each in self._failed.get(parent, ())]
            run = parent
        return around, failed

    def is_delegated(self, config: Any) -> bool:
        """Return whether the graph of a node runs for an agent, as a sub-agent or in a tool.

        Args:
            config: The config of the node.
        """
        return self.is_of_agent(config) or is_within(PYDANTIC_AI)

    def is_of_agent(self, config: Any) -> bool:
        """Return whether the run of a config belongs to an agent of LangChain."""
        settings = field_of(config, "configurable")
        if field_of(settings, "ls_agent_type") == "subagent":  # set by deepagents
            return True
        metadata = field_of(config, "metadata")
        if all(field_of(metadata, key) for key in _TASK_OF_AGENT):
            return True
        *outer, _ = str(field_of(settings, "checkpoint_ns") or "").split("|")
        if any(each.partition(":")[0] == _TOOL_NODE for each in outer):
            return True
        run = self.run_of(config)
        while run is not None:
            around = self._parents.get(run)
            if around is not None and run in self._tools:
                return True
            run = around
        return False
