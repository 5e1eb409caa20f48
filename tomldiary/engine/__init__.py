"""Transactions: lock, read the newest state, change it, log it, publish it.

Imports entries, history, hand edits and the storage protocol. Begin with `engine`.
"""
