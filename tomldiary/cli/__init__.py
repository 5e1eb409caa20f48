"""The command line: `tomldiary` and `python -m tomldiary`. It needs the extra `cli`.

May import every layer below; only `__main__` imports it.
`commands/` has one module a command, which is imported when the command is called.
`memory` opens a folder and parses times and keys, `options` declares shared options, `output` prints.
Begin reading in `app`.
"""
