"""Forgetting: what a selection covers, and documents and history without it.

It may import the engine, history, hand_edits, entries and what is below them.
Begin with `forget`, then `redact.plan`.
"""
