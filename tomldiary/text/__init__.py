"""Words, similarity and visible text: what search, duplicates and prompts need.

Imports `runtime` only, and knows no entry and no file.
`words` splits text for the index, `similarity` compares texts, `visible` removes hidden characters.
`incremental_index` keeps what is derived from a table up to date between versions.
Begin with `words`.
"""
