"""What the process and its platform give: threads and loops, forks, finalizers, file capabilities.

Imports nothing of the package. Begin with `async_bridge`.
"""
