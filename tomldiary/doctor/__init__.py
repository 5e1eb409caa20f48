"""Health checks of a folder of memory: entries, files, the place itself.

Reads only. Begin with `doctor`.
"""
