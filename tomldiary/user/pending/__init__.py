"""Pending changes: writes held for review, and drafts of sessions.

It may import the same packages as `tomldiary.user`. Begin with `held.hold`, then `verbs`.
"""
