"""People's changes to documents: detection, base version, three-way merge, rebase.

Begin with `detect`.
"""
