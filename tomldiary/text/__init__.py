"""Words, similarity and visible text, for search, duplicate detection and prompts.

Imports `runtime`, `errors` and `logging` only. The words of languages are in `languages.toml`.
`words` splits text for the index, `similarity` compares texts, `visible` removes hidden characters.
Begin with `words`.
"""
