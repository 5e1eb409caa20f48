"""TOML text: guarded reading, exact writing, and edits that change one table only.

Imports `errors` and `runtime`.
`guards` refuses hostile text, `parse` reads it, `values` writes values, `lexer` cuts text into blocks.
`document` is an immutable version, `edit` makes the next one, `diff` compares two.
Begin with `document`, then `edit`.
"""
