"""The names of users and namespaces, and the folders and documents that hold their data.

Imports `runtime` and `errors`; reads and writes no file. `user_ids` maps users to folders, `namespaces` maps namespaces
to documents. Begin with `user_ids`.
"""
