"""Shared parts of the framework adapters: tool verbs, options, and the user and session of a run.

May import `user` and the layers below it; `diary` and `writer` for types only. Begin with `verbs`.
"""
