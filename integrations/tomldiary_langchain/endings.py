"""Ends of agent runs that are not reported to middleware: tool errors, limits, handoffs, abandoned streams.

LangChain calls `after_agent` only after a successful run, but its callbacks after every run. Therefore one callback
handler for the process, registered with the first middleware, watches the runs that a middleware began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import convert_to_messages
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import ParentCommand
from langgraph.types import Command

from tomldiary.agents.delegation import ChainRun, RunTree, register_tree
from tomldiary.agents.identity import field_of
from tomldiary.writer.shutdown import await_open_runs

if TYPE_CHECKING:
    from uuid import UUID

    from langchain_core.messages import BaseMessage
    from langchain_core.runnables import RunnableConfig

    from tomldiary.writer.writer import MemoryWriter

Failed = Callable[[Any, BaseException], None]


class Owner(Protocol):
    """What watches runs: a middleware."""

    @property
    def writer(self) -> MemoryWriter:
        """The writer that gets the turns of its runs."""
        ...


class Endings(RunTree, BaseCallbackHandler):
    """Reports graphs that end in an error; holds the owner and session of running graphs.

    An agent that hands off to another one ends in LangGraph's `ParentCommand`. This is reported when the graph of
    both agents has ended, because the turn continues in it.
    """

    config_here = staticmethod(var_child_runnable_config.get)

    def __init__(self) -> None:
        super().__init__()
        self._watched: dict[UUID, dict[Owner, tuple[Any, Failed]]] = {}
        self._handed_off: dict[UUID, list[tuple[Owner, Any, Failed, ParentCommand]]] = {}
        """By the outermost graph."""

    def watch(self, config: RunnableConfig, owner: Owner, run: Any, failed: Failed) -> None:
        """Keep `run` for the graph whose node this is called in; call `failed` if the graph ends in an error.

        Meanwhile `run.see` is called with the messages that each node is given, and `run.see_changes` with those that
        it returns. Of graphs that share an id, none is watched.
        """
        graph = self.graph_of(config)
        if graph is not None and not self.running[graph].is_shared:
            self._watched.setdefault(graph, {})[owner] = run, failed

    def has_open_runs(self, writer: MemoryWriter) -> bool:
        """Return whether a watched run has not ended whose turn the writer gets."""
        owners = [(graph, [*runs.copy()]) for graph, runs in self._watched.copy().items()]
        for graph, handed in self._handed_off.copy().items():
            owners.append((graph, [owner for owner, *_ in handed.copy()]))
        return any(
            owner.writer is writer
            for graph, each in owners
            if graph in self.running
            for owner in each
        )

    def watched(self, config: RunnableConfig, owner: Owner, graph: str) -> Any:
        """Return the run that `watch` got for the graph that calls this, or None.

        Args:
            config: The config of the calling code; it names no run in a thread without the context of the graph.
            owner: The owner that `watch` got.
            graph: The id of the graph that calls this, if the config names no run.
        """
        # LangChain takes any value as the id of a run.
        begin = self.run_of(config) or next(
            (id_ for id_ in [*self._watched] if str(id_) == graph), None
        )
        runs = self.runs_from(begin)
        found = next((run.id for run in runs if run.is_graph), None)  # not a runnable within a node
        kept = {} if found is None else self._watched.get(found, {})
        return kept[owner][0] if owner in kept else None

    def is_continued(self, config: RunnableConfig) -> bool:
        """Return whether a graph around the calling code continues an earlier run of its thread."""
        return any(run.is_continued for run in self.runs_from(self.run_of(config)))

    def given_to(self, graph: UUID | None) -> set[str]:
        """Return the ids of the messages in the input of a running graph."""
        run = self.running.get(graph)
        return {str(field_of(each, "id")) for each in (() if run is None else run.messages)}

    def is_input(self, config: RunnableConfig, message: BaseMessage) -> bool:
        """Return whether a message is in the input of the outermost graph around the calling code.

        A message of the input without an id is compared by its text.
        """
        graphs = [run for run in self.runs_from(self.run_of(config)) if run.is_graph]
        given = [one for run in graphs[-1:] for each in run.messages for one in _converted(each)]
        return any(
            one.id == message.id or (not one.id and one.text == message.text) for one in given
        )

    def graph_of(self, config: RunnableConfig) -> UUID | None:
        """Return the graph of the node that has this config."""
        return self._graph_around(self.run_of(config))

    def _graph_around(self, node: UUID | None) -> UUID | None:
        run = self.running.get(node)
        return None if run is None or run.around is None else run.around.id

    def _watched_around(self, node: UUID) -> list[Any]:
        """Return the watched runs of the graph of a node."""
        return [run for _, run, _ in self._watched_in(self._graph_around(node))]

    def _watched_in(self, graph: UUID | None) -> list[tuple[Owner, Any, Failed]]:
        """Return a copy of what `watch` keeps for a graph, because another thread may add to it."""
        kept = {} if graph is None else self._watched.get(graph, {}).copy()
        return [(owner, *each) for owner, each in kept.items()]

    def on_chain_start(
        self,
        serialized: Any,  # noqa: ARG002 - the base class has it
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: Sequence[str] | None = None,
        **__: Any,
    ) -> ChainRun:
        """Pass the messages that a node is given to the watched runs of its graph."""
        this = super().on_chain_start(run_id=run_id, parent_run_id=parent_run_id, tags=tags)
        if this.is_shared:
            self._watched.pop(run_id, None)
        messages = field_of(inputs, "messages")
        this.is_continued = inputs is None or isinstance(inputs, Command)
        # LangGraph also takes one message without a list.
        this.messages = messages if isinstance(messages, list) else [messages] if messages else ()
        if messages:
            for _, run, _ in self._watched_in(parent_run_id):
                run.see(messages)
        return this

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **__: Any) -> None:
        """Drop a run that ended without an error, or was interrupted; pass changed messages of a node to its graph."""
        self._watched.pop(run_id, None)
        changed = field_of(outputs, "messages")
        if isinstance(changed, list):
            for run in self._watched_around(run_id):
                run.see_changes(changed)
        try:
            self._ended(run_id)
        finally:  # a closing writer waits until now
            super().on_chain_end(run_id=run_id)

    def on_chain_error(self, error: BaseException, *_: Any, run_id: UUID, **__: Any) -> None:
        """Report the error of a run.

        A node that fails may have rejected the answer that it was given, so the runs of its graph see the messages of
        the node again. A node that is cancelled rejects nothing.
        """
        node = self.running.get(run_id)
        if isinstance(error, Exception) and node is not None and node.messages:
            for run in self._watched_around(run_id):
                run.see(node.messages)
        watched = self._watched_in(run_id)
        outermost = [run_id, *(run.id for run in self.runs_from(run_id))][-1]
        if isinstance(error, ParentCommand) and outermost != run_id:
            handed_off = self._handed_off.setdefault(outermost, [])
            handed_off += [(*each, error) for each in watched]
            watched = []
        try:
            self._ended(run_id)
            for _owner, run, failed in watched:
                failed(run, error)
        finally:  # a closing writer waits until now
            self._watched.pop(run_id, None)
            super().on_chain_error(error, run_id=run_id)

    def _ended(self, run_id: UUID) -> None:
        try:
            for _, run, failed, error in self._handed_off.get(run_id, ()):
                failed(run, error)
        finally:
            self._handed_off.pop(run_id, None)


@cache
def endings() -> Endings:
    """Return the handler of this process, registered with LangChain from the first call on."""
    handler = Endings()
    register_configure_hook(ContextVar("tomldiary_endings", default=handler), inheritable=True)
    await_open_runs(handler.has_open_runs)
    register_tree(handler)
    return handler


def _converted(given: Any) -> list[BaseMessage]:
    """Return a value of an input as a message; nothing if it is none, because a graph may have a format of its own."""
    with suppress(TypeError, ValueError, LookupError, NotImplementedError):
        return convert_to_messages([given])
    return []
