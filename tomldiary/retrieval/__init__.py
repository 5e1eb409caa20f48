"""Search for entries and their text for a model: indexes, ranking, rendering, injection.

May import `engine`, `entries`, `storage` and the layers below.
Begin with `lexical_index` for the ranking of matches, and with `ranking` and `render` for the text for a model.
"""
