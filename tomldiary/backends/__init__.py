"""The import path of TOMLDiary 0.9. New code uses `tomldiary.storage`."""

from tomldiary.storage import *  # noqa: F403
