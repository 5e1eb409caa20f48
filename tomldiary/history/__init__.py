"""History: the log of transactions, its index, its timeline and its verification.

It may import storage, hand_edits, entries and the packages below them; never the engine or the store.
Begin with `record` (the format), then `timeline` (any document at any point).
"""
