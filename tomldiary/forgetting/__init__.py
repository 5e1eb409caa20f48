"""Forgetting: erases a selection from the documents and the history of one user.

It may import the engine, history, hand_edits, entries and the packages below them.
Begin with `forget`.
"""
