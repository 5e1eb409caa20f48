"""Transactions: lock, read the newest state, change it, log it, publish it.

`Engine` is the one write path; `DocumentCache` reads without a lock.
It may import entries, history, hand_edits, storage (the protocol) and what is below them.
Begin with `engine.Engine.write`.
"""
