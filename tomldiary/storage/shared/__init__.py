"""Backends on a database that several machines share: PostgreSQL, Redis, Firestore.

A database offers one atomic primitive, `Database.apply`. `SharedBackend` maps transactions onto it.
May import: storage, history, toml, runtime. Begin reading in `database`; a commit goes through `backend` and `transactions`.
"""
