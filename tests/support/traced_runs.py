"""LangSmith's tracing without a server."""

from __future__ import annotations

from langsmith import Client, tracing_context


class _Nowhere(Client):
    """A client that sends nothing."""

    def create_run(self, *_, **__):
        pass

    def update_run(self, *_, **__):
        pass


def traced():
    """Return a context in which runs of LangChain, and functions with `@traceable`, are traced."""
    client = _Nowhere(api_key="none", auto_batch_tracing=False)
    return tracing_context(enabled=True, client=client)
