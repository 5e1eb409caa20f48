"""The import path of TOMLDiary 0.9. New code uses `tomldiary.compat.loaders`."""

from tomldiary.compat.loaders import *  # noqa: F403
