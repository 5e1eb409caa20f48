"""The command line: `tomldiary` and `python -m tomldiary`. It needs the extra `cli`.

May import every layer below; only `__main__` imports it.
`commands/` contains the commands; a module is imported when one of its commands is called.
`memory` opens a memory, `options` declares shared options and completes them in shells, `output` prints.
Begin reading in `app`.
"""
