"""The import path of TOMLDiary 0.9. New code uses `tomldiary.storage.local.backend`."""

from tomldiary.storage.local.backend import *  # noqa: F403
