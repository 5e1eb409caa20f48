"""The memory of the server that test_langgraph_server starts."""

from __future__ import annotations

import os
from typing import Any

from tomldiary import Diary, MemoryWriter


class Echo:
    """An extractor that stores what the user said."""

    async def run(self, message: str, /, *, deps: Any) -> None:
        deps.upsert("likes", None, deps.user_msg, ())


diary = Diary(os.environ["DIARY_FOLDER"], agent=Echo())
writer = MemoryWriter(diary)
