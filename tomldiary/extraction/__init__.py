"""Turning a conversation turn into operations.

May import `engine`, `retrieval`, `entries` and the layers below; `diary` and `writer` use it.
Begin with `draft`, which an extractor changes, and with `operations`, which are recorded and applied.
`extractor` finds and runs an extractor; `message` and `prompt` are what a model reads; `rules/` needs no model.
"""
