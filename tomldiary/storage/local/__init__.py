"""Documents and history as files in a folder.

The package does not import `entries`, `hand_edits` or `writer`. Begin reading with `backend`.
"""
