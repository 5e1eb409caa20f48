"""What the framework adapters share: the verbs of an agent's tools, their options, and whose run it is.

May import everything below `user`; imported by adapters only. Begin with `verbs`.
"""
