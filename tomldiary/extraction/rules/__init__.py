"""The offline extractor: phrase tables, no model, no network.

Begin with `rules`.
"""
