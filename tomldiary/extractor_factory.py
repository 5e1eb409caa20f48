"""The import path of TOMLDiary 0.9; new code uses `tomldiary.extraction.factory`."""

from tomldiary.extraction.factory import *  # noqa: F403
