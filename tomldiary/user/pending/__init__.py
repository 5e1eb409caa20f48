"""Pending changes: writes that wait for a review, and drafts of sessions.

It may import what `tomldiary.user` may. Begin with `held.hold`, then `verbs`.
"""
