"""Health checks of a store: entries, files, history and the file system.

May import `writer` and the layers below it. It never writes.
`doctor` checks users and documents. The kinds of entries define the checks of entries.
`files` checks permissions, free space, temporary files and the file system.
Begin with `doctor.check`.
"""
