"""Turning a conversation turn into operations.

May import `user`, `engine`, `retrieval`, `entries` and the layers below.
Begin with `turns`, which reads a turn and commits it. An extractor changes a `draft`, which records `operations`.
`extractor` finds and runs an extractor; `message` and `prompt` are what a model reads; `rules` needs no model.
"""
