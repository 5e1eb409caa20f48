"""Words, similarity and visible text, for search, duplicate detection and prompts.

Imports `runtime`, `errors` and `logging` only. The words of languages are in `languages.toml`.
`words` splits text for the index, `similarity` compares texts, `visible` removes hidden characters.
`incremental_index` updates indexes of a table from version to version.
Begin with `words`.
"""
