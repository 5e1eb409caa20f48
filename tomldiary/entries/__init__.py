"""The kinds of entries: what is stored, and under which rules.

May import `text`, `toml` and the layers below, but not `engine`, `storage` or `history`.
`kinds` is the registry: documents, keys, text, line in a prompt, rules and checks of each kind.
`preferences` and `facts` read and change their documents, and so do the modules of the other kinds.
`incremental_index` updates indexes of a table from version to version.
Begin with `kind`, which defines a kind, then `kinds`.
"""
