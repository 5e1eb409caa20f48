"""Conformance tests of backends: three suites, depending on `is_atomic` and `is_shared` of the backend.

There is a module for each subject. May import every package except the command line and the adapters. Begin reading in
`fixtures`, which has the methods that a subclass overrides.
"""

from __future__ import annotations

from typing import Any

from tomldiary.storage.open import open_backend
from tomldiary.testing.backend.clients import Clients
from tomldiary.testing.backend.contract import Contract
from tomldiary.testing.backend.documents import Capabilities, Documents
from tomldiary.testing.backend.transactions import History, Transactions

__all__ = ["AtomicBackendSuite", "BackendSuite", "SharedBackendSuite"]


class BackendSuite(Documents, Capabilities):
    """Tests of any backend: subclass it, override `make_backend`, and let pytest collect the tests.

    Override `users` if your storage restricts user ids, and `close_backend` if it has connections to close.
    """

    def test_the_suite_is_the_one_for_what_the_backend_claims(self, backend: Any) -> None:
        opened = open_backend(backend, None)
        assert opened.is_atomic == isinstance(self, AtomicBackendSuite)
        assert opened.is_shared == isinstance(self, SharedBackendSuite)


class AtomicBackendSuite(BackendSuite, Contract, Transactions, History):
    """Tests of a backend with `is_atomic`: it commits several documents and their history at once.

    Override `stored_text` to read all bytes of the storage. Otherwise the tests of erasure read through the backend only,
    and miss erased text in its files or logs.
    """


class SharedBackendSuite(AtomicBackendSuite, Clients):
    """Tests of a backend with `is_shared`: several processes may write at once.

    Override `open_again` and `opening_code`, which open the same storage in another client.
    """
