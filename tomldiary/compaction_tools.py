"""The import path of TOMLDiary 0.9. New code uses `tomldiary.compaction.tools`."""

from tomldiary.compaction.tools import *  # noqa: F403
