"""TOMLDiary 0.9: its coroutines, loaders, printers and default table.

Imports `entries`, `extraction` and `engine`; `diary` and the 0.9 import paths import it.
`coroutines` is a part of `Diary`; `loaders` read files into models; `pretty_print` prints them.
`default_table` is the preference table of a diary without one of its own.
Begin with `coroutines`.
"""
