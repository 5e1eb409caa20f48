"""History: the log of transactions and its queries, rollback, retention and verification.

It may import storage, hand_edits, entries and the packages below them; never the engine or the store.
Begin with `record` (the format), then `timeline` (any document at any point).
"""
