"""Shared parts of the framework adapters: tool verbs, options, and the user and session of a run.

May import everything below `user`. Only adapters import this package. Begin with `verbs`.
"""
