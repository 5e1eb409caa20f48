"""Detects that an agent or a graph runs in a tool of another agent, so that a model wrote its prompt."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tomldiary.agents.identity import field_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

LANGCHAIN, PYDANTIC_AI = "langchain", "pydantic_ai"
"""The frameworks whose adapters detect that code runs in a tool of an agent. LangGraph counts as LangChain."""
_within: dict[str, list[Callable[[], bool]]] = {}
_trees: list[RunTree] = []

_TOOL_NODE = "tools"
"""The name of the node that runs the tools in LangChain's agents."""
_NODE = "graph:step:"
"""The beginning of the tag that LangGraph gives to the run of a node."""
_TASK_OF_AGENT = ("subagent_name", "parent_thread_id")
"""Metadata of the thread of a background task in deepagents; a server adds it to the runs."""
_OF_GRADER = "rubric_grader_configured_model"
"""Metadata of an agent that grades the work of another one in deepagents."""
_ATTEMPTS = 1_000
"""The number of failed runs within a run that are remembered: a service may be one run that never ends."""
_RUNTIME = "__pregel_runtime"
"""The key under which LangGraph's settings hold the `Runtime` of a run."""


def register_within(framework: str, is_here: Callable[[], bool]) -> None:
    """Register a function that returns whether the calling code runs in a tool of a framework's agent."""
    _within.setdefault(framework, []).append(is_here)


def is_within(framework: str) -> bool:
    """Return whether the calling code runs in a tool of an agent of a framework whose adapter detected this."""
    return any(is_here() for is_here in _within.get(framework, ()))


def register_tree(tree: RunTree) -> None:
    """Let `is_within` and `places_in` read a tree of LangChain runs, which is kept for the process."""
    _trees.append(tree)
    register_within(LANGCHAIN, lambda: tree.is_of_agent(tree.config_here()))


def places_in(config: Any, context: Any, *names: str) -> dict[str, Any]:
    """Return the parts of a LangChain or LangGraph run that can name its user and session, for `user_of`.

    Args:
        config: The config of the run.
        context: The context of the run.
        names: The settings that tell whether the context is that of a run around it, such as "user_id".
    """
    settings, metadata = field_of(config, "configurable"), field_of(config, "metadata")
    own = _own_context(settings, context, *names)
    return {"context": own, "settings": settings, "metadata": metadata}


def _own_context(settings: Any, context: Any, *names: str) -> Any:
    """Return the context of a run, or None if it is that of a run around it and the call's settings have other names.

    LangGraph passes the context of a run on to a graph that a node calls with settings of its own.
    """
    if context is None:
        return None
    given = [(each, field_of(settings, each)) for each in names]
    named = [(each, name) for each, name in given if name and name != field_of(context, each)]
    for tree in _trees if named else ():
        # Not the run of the settings: it is missing beside other callbacks, and a tool gets the run of its caller.
        here = tree.config_here()
        runs = tree.runs_from(tree.run_of(here))
        for begun_in in (here, *(run.begun_in for run in runs)):
            outer = field_of(begun_in, "configurable")
            is_inherited = field_of(field_of(outer, _RUNTIME), "context") is context
            if is_inherited and any(field_of(outer, each) != name for each, name in named):
                return None
    return context


@dataclass(eq=False, slots=True)
class ChainRun:
    """A running chain, graph, node or tool call of LangChain."""

    id: UUID
    around: ChainRun | None
    """The run around it; None if there is none."""
    inner: set[UUID] = field(default_factory=set["UUID"])
    failed: list[UUID] = field(default_factory=list["UUID"])
    """The last failed runs directly within it; later runs within it may be further attempts."""
    is_tool: bool = False
    is_graph: bool = False
    """Whether it is a graph that has begun a node."""
    is_continued: bool = False
    """Whether it has no input of its own, and continues an earlier run of a thread."""
    messages: Sequence[Any] = ()
    """The messages that it was given."""
    begun_in: Any = None
    """The config of the node that began it."""
    task: asyncio.Task[Any] | None = None
    """The task of the event loop that began it, if no run is around it."""
    dropped: tuple[str, Callable[[], None]] | None = None
    """A field that the graph's state lacks, and the function to call if the run returns it."""
    open: int = 1
    """The number of running runs with its id: a host may give the same one to several."""
    is_shared: bool = False
    """Whether there were several of them side by side, which cannot be told apart."""


class RunTree:
    """The tree of LangChain runs in this process. Base class for the callback handlers of adapters."""

    run_inline = True  # a dictionary access needs no thread
    ignore_llm = ignore_chat_model = ignore_retriever = True

    def __init__(self) -> None:
        self.running: dict[UUID | None, ChainRun] = {}

    def on_chain_start(
        self,
        *_: Any,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: Sequence[str] | None = None,
        **__: Any,
    ) -> ChainRun:
        """Record a graph, a node or another chain, and return its record."""
        around = self._around(parent_run_id)
        if around is not None and any(each.startswith(_NODE) for each in tags or ()):
            around.is_graph = True
        return self._begun(ChainRun(run_id, around, begun_in=self.config_here()))

    def on_tool_start(
        self, *_: Any, run_id: UUID, parent_run_id: UUID | None = None, **__: Any
    ) -> None:
        """Record a tool that runs within a chain. A tool that the application calls has no parent and is ignored."""
        around = self._around(parent_run_id)
        if around is not None:
            self._begun(ChainRun(run_id, around, is_tool=True, begun_in=self.config_here()))

    def _begun(self, run: ChainRun) -> ChainRun:
        if run.around is None:
            self._remove_cancelled()
            with suppress(RuntimeError):  # no event loop
                run.task = asyncio.current_task()
        else:
            run.around.inner.add(run.id)
        known = self.running.setdefault(run.id, run)  # in one step: another thread may begin one
        if known is run:
            return run
        # A run within one with its id, such as a sub-agent, needs a place of its own in the tree.
        around = () if run.around is None else self.runs_from(run.around.id)
        if known in around:
            self.running[run.id] = run
            return run
        known.open += 1
        known.is_shared = True
        known.task = None  # if it is cancelled, the other run goes on
        return known

    def _remove_cancelled(self) -> None:
        """Remove runs whose task was cancelled while LangChain reported their begin, because it reports no end of them."""
        for run in list(self.running.values()):
            if run.task is not None and run.task.cancelled():
                RunTree.on_chain_end(self, run_id=run.id)

    def _around(self, named: UUID | None) -> ChainRun | None:
        """Return the run around a new one, or None.

        Args:
            named: The parent that LangChain names. With LangSmith's tracing it may be a function of the host, which is
                not in this tree.
        """
        return self.running.get(named) or self.running.get(self.run_of(self.config_here()))

    config_here: Callable[[], Any]
    """Returns the LangChain config of the calling code."""

    def on_chain_end(self, *_: Any, run_id: UUID, **__: Any) -> None:
        """Remove an ended run and its children, because some cancelled children send no end event."""
        run = self.running.get(run_id)
        if run is None:
            return
        run.open -= 1
        if run.open > 0:
            return
        self.running.pop(run_id, None)
        if run.around is not None:
            run.around.inner.discard(run_id)
        for child in list(run.inner):
            RunTree.on_chain_end(self, run_id=child)

    on_tool_end = on_tool_error = on_chain_end

    def on_chain_error(self, error: BaseException, *_: Any, run_id: UUID, **__: Any) -> None:  # noqa: ARG002 - the base class has it
        """Record that a run failed; another attempt may follow within the run around it."""
        run = self.running.get(run_id)
        if run is not None and run.around is not None:
            run.around.failed.append(run_id)
            del run.around.failed[:-_ATTEMPTS]
        RunTree.on_chain_end(self, run_id=run_id)

    def run_of(self, config: Any) -> UUID | None:
        """Return the run id in a LangChain config, such as that of a node."""
        return getattr(field_of(config, "callbacks"), "parent_run_id", None)

    def runs_from(self, run_id: UUID | None) -> Iterator[ChainRun]:
        """Yield the run with an id and the runs around it, outermost last; nothing if it is not running."""
        run = self.running.get(run_id)
        while run is not None:
            yield run
            run = run.around

    def attempt_of(self, config: Any) -> tuple[list[str], list[tuple[str, str]]]:
        """Return the runs around a node, and the failed runs beside each of them: the node may be a further attempt.

        Returns:
            The ids of the runs, and pairs of a failed run and the one of them that began after it.
        """
        around: list[str] = []
        failed: list[tuple[str, str]] = []
        for run in self.runs_from(self.run_of(config)):
            if run.around is not None:
                around.append(str(run.id))
                failed += [(str(each), str(run.id)) for each in run.around.failed]
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
        is_of_task = all(field_of(metadata, key) for key in _TASK_OF_AGENT)
        if is_of_task or field_of(metadata, _OF_GRADER):
            return True
        *outer, _ = str(field_of(settings, "checkpoint_ns") or "").split("|")
        if any(each.partition(":")[0] == _TOOL_NODE for each in outer):
            return True
        return any(run.is_tool for run in self.runs_from(self.run_of(config)))
