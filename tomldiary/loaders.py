"""The import path of TOMLDiary 0.9; new code uses `tomldiary.compat.loaders`."""

from tomldiary.compat.loaders import *  # noqa: F403
