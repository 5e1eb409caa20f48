"""Services of the process and its platform: threads, event loops, forks, file operations, caches and registries.

Imports no other package of tomldiary. Begin with `async_bridge`.
"""
