"""TOML text: guarded reading, exact writing, and edits that change one table only.

Imports `errors` and `runtime`.
`parse` refuses hostile text and reads the rest, `values` writes values and tables, `lexer` cuts text into blocks.
`document` is an immutable version, `edit` makes the next one.
Begin with `document`, then `edit`.
"""
