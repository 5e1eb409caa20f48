"""Documents and history as files in a folder.

Knows no entry, no merge and no writer. Begin with `backend`.
"""
