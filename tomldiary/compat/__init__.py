"""Compatibility with TOMLDiary 0.9: coroutines, loaders, printers and the default table.

May import `user`, `extraction` and the layers below; `diary`, `cli` and the 0.9 import paths import it.
`coroutines` is a base class of `Diary`, `loaders` reads files into models, and `pretty_print` formats them.
`default_table` is the preference table of a diary without an explicit one.
Begin with `coroutines`.
"""
