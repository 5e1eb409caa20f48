"""The queue of writers on several machines, stored in the database that they share.

May import: writer, storage. Begin reading in `turns`, the document of a user, then `queue`.
"""
