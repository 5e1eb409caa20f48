"""How runs of an agent end that no middleware hears of: errors of tools, limits, handoffs, streams that are left.

LangChain calls `after_agent` only when a run ends well. Its callbacks tell of every end, so one handler
of the process, registered with the first middleware, watches the runs that a middleware began.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.callbacks.base import BaseCallbackManager
from langchain_core.tracers.context import register_configure_hook
from langgraph.errors import ParentCommand

if TYPE_CHECKING:
    from uuid import UUID

    from langchain_core.runnables import RunnableConfig

__all__ = ["Endings", "endings"]


Failed = Callable[[Any, BaseException], None]


class Endings(BaseCallbackHandler):
    """Reports graphs that end in an error; holds the owner and session of running graphs.

    An agent that hands off to another one ends in LangGraph's `ParentCommand`. That is reported when the graph
    of both has ended: the turn goes on there.
    """

    run_inline = True  # a dictionary access needs no thread

    def __init__(self) -> None:
        self._graphs: dict[UUID, UUID] = {}
        """The graph of each node that runs, and the node of each graph within one."""
        self._watched: dict[UUID, dict[object, tuple[Any, Failed]]] = {}
        self._handed_off: dict[UUID, list[tuple[Any, Failed, ParentCommand]]] = {}
        """By the outermost graph."""

    @property
    def ignore_llm(self) -> bool:
        """Whether events of text models are left out, as all but those of chains are."""
        return True

    ignore_chat_model = ignore_retriever = ignore_agent = ignore_llm  # pyright: ignore[reportIncompatibleMethodOverride] - the same property

    def watch(
        self,
        config: RunnableConfig,
        owner: object,
        run: Any,
        failed: Failed,
    ) -> None:
        """Keep `run` for the graph whose node this is called in; call `failed` if the graph ends in an error."""
        graph = self._graph(config)
        if graph is not None:
            self._watched.setdefault(graph, {})[owner] = run, failed

    def watched(self, config: RunnableConfig, owner: object) -> Any:
        """Return what an owner keeps for the graph whose node this is called in, or None."""
        graph = self._graph(config)
        kept = self._watched.get(graph, {}) if graph is not None else {}
        return kept[owner][0] if owner in kept else None

    def _graph(self, config: RunnableConfig) -> UUID | None:
        manager = config.get("callbacks")
        run_id = manager.parent_run_id if isinstance(manager, BaseCallbackManager) else None
        return self._graphs.get(run_id) if run_id is not None else None

    def on_chain_start(
        self,
        serialized: dict[str, Any],  # noqa: ARG002 - the base class passes it
        inputs: dict[str, Any],  # noqa: ARG002 - the same
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Note to which graph a node belongs."""
        if parent_run_id is not None and "langgraph_node" in (metadata or {}):
            self._graphs[run_id] = parent_run_id

    def on_chain_end(self, outputs: dict[str, Any], *, run_id: UUID, **_: Any) -> None:  # noqa: ARG002 - the base class passes it
        """Let a run go that ended well, or was interrupted."""
        self._watched.pop(run_id, None)
        self._ended(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Tell the owners of a run how it ended."""
        watched = self._watched.pop(run_id, {}).values()
        if isinstance(error, ParentCommand) and run_id in self._graphs:
            outermost = run_id
            while outermost in self._graphs:
                outermost = self._graphs[outermost]
            kept = self._handed_off.setdefault(outermost, [])
            kept += [(run, failed, error) for run, failed in watched]
            watched = ()
        self._ended(run_id)
        for run, failed in watched:
            failed(run, error)

    def _ended(self, run_id: UUID) -> None:
        self._graphs.pop(run_id, None)
        for run, failed, error in self._handed_off.pop(run_id, ()):
            failed(run, error)


_endings = Endings()
_hook: ContextVar[Endings | None] = ContextVar("tomldiary_endings", default=_endings)
_registered: list[bool] = []


def endings() -> Endings:
    """Return the handler of this process, registered with LangChain from the first call on."""
    if not _registered:
        _registered.append(True)
        register_configure_hook(_hook, inheritable=True)
    return _endings
