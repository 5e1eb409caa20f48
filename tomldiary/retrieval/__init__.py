"""Finding entries and showing them to a model: indexes, ranking, rendering, injection.

May import `engine`, `entries`, `storage` and the layers below; `user`, `extraction` and `store` use it.
Begin with `search` for the ranking, and with `ranking` and `render` for what a model is shown.
"""
