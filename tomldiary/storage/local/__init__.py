"""Documents and history as files in a folder.

The package depends on no entry, no merge and no writer. Begin with `backend`.
"""
