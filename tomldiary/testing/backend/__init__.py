"""What every backend has to do, as tests: three suites, for what a backend claims to be.

A module for each subject. May import every package but the command line and the adapters. `fixtures` is what a
subclass says.
"""

from __future__ import annotations

from typing import Any

from tomldiary.storage.open import open_backend
from tomldiary.testing.backend.capabilities import Capabilities
from tomldiary.testing.backend.clients import Clients
from tomldiary.testing.backend.documents import Documents
from tomldiary.testing.backend.history import History
from tomldiary.testing.backend.transactions import Transactions

__all__ = ["AtomicBackendSuite", "BackendSuite", "SharedBackendSuite"]


class BackendSuite(Documents, Capabilities):
    """Tests of any backend: subclass it, say how a fresh one is made, and let pytest collect the tests.

    Override `users` if your storage restricts user ids, and `close_backend` if it has connections to close.
    """

    def test_the_suite_is_the_one_for_what_the_backend_claims(self, backend: Any) -> None:
        opened = open_backend(backend, None)
        assert opened.is_atomic == isinstance(self, AtomicBackendSuite)
        assert opened.is_shared == isinstance(self, SharedBackendSuite)


class AtomicBackendSuite(BackendSuite, Transactions, History):
    """Tests of a backend with `is_atomic`: it commits several documents and their history at once.

    Override `stored_text` to read the storage itself, so that erasure is proved on every byte of it.
    """


class SharedBackendSuite(AtomicBackendSuite, Clients):
    """Tests of a backend with `is_shared`: several processes may write at once.

    Say with `open_again` and `opening_code` how another client opens the same storage.
    """
