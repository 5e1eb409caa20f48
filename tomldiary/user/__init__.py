"""`UserDiary`: everything about one user, verb by verb.

Begin with `user`.
"""
