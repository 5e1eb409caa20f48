"""Shared parts of the framework adapters: tool verbs, options, and the user and session of a run.

May import `writer`, `diary` and the layers below them. Begin with `verbs`;
`docs/architecture.md` lists what an adapter does with each module.
"""
