"""Transactions: lock, read the newest state, change it, log it, publish it.

All writes go through `Engine`; `DocumentCache` reads without a lock. `rules` checks the changes of a transaction.
It may import entries, history, hand_edits, storage (the protocol) and the packages below them.
Begin with `engine.Engine.write`.
"""
