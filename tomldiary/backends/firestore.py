"""The import path of TOMLDiary 0.9. New code uses `tomldiary.storage`."""

from tomldiary.storage.shared.firestore import *  # noqa: F403
