"""A process that submits turns until it is killed; the crash tests start it.

    writer_process.py FOLDER NAME TURNS DURABILITY

Each turn says a text of its own. The extractor notes every call in FOLDER/calls, and takes a few
milliseconds. A line on stdout acknowledges each turn; "end" is written once all are applied.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

from tomldiary import Diary, MemoryWriter

folder, name, turns, durability = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
calls = os.open(f"{folder}/calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


async def remember(message, *, deps):
    os.write(calls, f"{deps.user_msg}\n".encode())
    await asyncio.sleep(random.uniform(0, 0.01))
    deps.upsert(deps.allowed_cats[0], None, deps.user_msg, ())


async def main():
    diary = Diary(
        folder,
        agent=remember,
        max_prefs_per_category=100_000,
        durability=durability,
        similarity=101,
    )
    async with MemoryWriter(diary, workers=4) as writer:
        for number in range(turns):
            user = f"user{number % 5}"
            text = f"{name} {number}"
            await writer.submit(user, "s", text, "ok")
            os.write(1, f"{user} {text}\n".encode())
        # Whatever was taken over is done as well.
        await writer.aflush(60)
    os.write(1, b"end\n")


asyncio.run(main())
