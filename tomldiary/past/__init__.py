"""The past of a user's memory: changes, past states, rollback and retention.

It may import the engine and the packages below it; never a user's verbs, which it serves.
Begin with `as_of` (states of documents), then `queries` (changes of entries).
"""
