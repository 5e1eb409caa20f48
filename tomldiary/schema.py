"""The import path of TOMLDiary 0.9. New code uses `tomldiary.entries.schema`."""

from tomldiary.entries.schema import *  # noqa: F403
