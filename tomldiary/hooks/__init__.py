"""Hooks: consumers of the users' histories, such as outside indexes, and the feed of changes.

History is the outbox: a cursor for each user says up to where a hook has it. It may import the engine, history,
entries and what is below them. Begin with `delivery`, then `hooks`.
"""
