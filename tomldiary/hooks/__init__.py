"""Hooks: consumers of the users' histories, such as outside indexes, and the feed of changes.

History is the outbox: a cursor for each user stores the position that a hook has reached. It may import the engine,
history, entries and the packages below them. Begin with `delivery`, then `hooks`.
"""
