"""The import path of TOMLDiary 0.9; new code uses `tomldiary.storage.local.backend`."""

from tomldiary.storage.local.backend import *  # noqa: F403
