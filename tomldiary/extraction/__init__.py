"""Turning a conversation turn into operations.

May import `user`, `engine`, `retrieval`, `entries` and the layers below; `diary` and `writer` use it.
Begin with `turns`, which reads a turn and commits it. `draft` is what an extractor changes, `operations` what it wants done.
`extractor` finds and runs an extractor; `message` and `prompt` are what a model reads; `rules/` needs no model.
"""
