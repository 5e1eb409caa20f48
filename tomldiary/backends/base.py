"""The import path of TOMLDiary 0.9. New code uses `tomldiary.storage.protocol`."""

from tomldiary.identifiers.user_ids import validate_identifier
from tomldiary.storage.protocol import BackendProtocol

__all__ = ["BackendProtocol", "validate_identifier"]
