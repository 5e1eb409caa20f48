"""The import path of TOMLDiary 0.9. New code uses `tomldiary.compat.pretty_print`."""

from tomldiary.compat.pretty_print import *  # noqa: F403
