"""TOMLDiary 0.9: its coroutines, loaders, printers and default table.

Imported by `diary` and by the documented 0.9 import paths. Begin with `coroutines`.
"""
