"""The Firestore backend. Begin reading with `database`.

May import: storage.shared. `connection` has the names and the errors, `batch` has the writes of one step.
"""

from tomldiary.storage.shared.firestore.database import FirestoreBackend

__all__ = ["FirestoreBackend"]
