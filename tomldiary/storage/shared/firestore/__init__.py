"""Firestore. Begin reading with `database`.

May import: storage.shared. `connection` has the names and the errors, `batch` one step, `trash` what steps replace.
"""

from tomldiary.storage.shared.firestore.backend import FirestoreBackend

__all__ = ["FirestoreBackend"]
