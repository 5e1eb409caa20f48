"""Forgetting: erases a selection from the documents and the history of one user.

It may import the engine, history, hand_edits, entries and what is below them.
Begin with `forget`.
"""
