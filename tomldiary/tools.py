"""The import path of TOMLDiary 0.9. New code uses `tomldiary.extraction.tools`."""

from tomldiary.extraction.tools import *  # noqa: F403
from tomldiary.extraction.tools import (  # 0.9 documents both
    _check_preference_limits as _check_preference_limits,  # pyright: ignore[reportPrivateUsage] - documented by 0.9
)
from tomldiary.extraction.tools import (
    _find_similar_preferences as _find_similar_preferences,  # pyright: ignore[reportPrivateUsage] - documented by 0.9
)
