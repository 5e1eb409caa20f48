"""Finding entries and showing them to a model: indexes, ranking, rendering, injection.

Begin with `ranking` and `render`.
"""
