"""The import path of TOMLDiary 0.9. New code uses `tomldiary.storage.protocol`."""

from tomldiary.storage.protocol import *  # noqa: F403
