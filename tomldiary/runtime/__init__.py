"""Services of the process: threads, event loops, forks, caches and registries.

Imports no other package of tomldiary. Begin with `async_bridge`.
"""
