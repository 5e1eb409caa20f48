"""TOML text: guarded reading, exact writing, and edits that change one table only.

Imports `errors`.
`parse` refuses hostile text and parses the rest, `values` writes values and tables, `lexer` splits text into blocks.
`document` is an immutable version of a document, and `edit` creates the next one.
Begin with `document`, then `edit`.
"""
