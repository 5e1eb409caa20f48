"""Documents and history as files in a folder.

The package does not import entries, hand edits or writers. Begin reading with `backend`.
"""
