"""Health checks of a store: entries, files, history and the file system.

May import every package; only the command line imports it. It reads and never writes.
`doctor` checks users and documents; the checks of entries are those of their kinds.
`files` checks permissions, free space, temporary files and the file system.
Begin with `doctor.check`.
"""
