"""The import path of TOMLDiary 0.9; new code uses `tomldiary.compat.pretty_print`."""

from tomldiary.compat.pretty_print import *  # noqa: F403
