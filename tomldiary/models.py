"""The import path of TOMLDiary 0.9. New code uses `tomldiary.entries.models`."""

from tomldiary.entries.models import *  # noqa: F403
from tomldiary.extraction.draft import MemoryDeps as MemoryDeps
