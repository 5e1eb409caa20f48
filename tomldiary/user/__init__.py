"""`UserDiary`: the reads, writes and queries of one user's memory.

Begin with `user`.
"""
