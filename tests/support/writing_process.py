"""A process with a writer, on any storage; it is killed and started again by tests.

    writing_process.py PLACE NAME FIRST LAST TURNS

It submits TURNS turns of each of the users FIRST to LAST, with NAME in their texts, and works until stdin ends.
"""

from __future__ import annotations

import sys
import time

from tomldiary import Diary, MemoryWriter, Turn


def main() -> None:
    place, name, *numbers = sys.argv[1:]
    first, last, turns = map(int, numbers)
    diary = Diary(place, agent="rules", max_prefs_per_category=1000, similarity=101)
    with MemoryWriter(diary, lease=2.0, qsize=100_000) as writer:
        for number in range(turns):
            for user in range(first, last):
                text = f"I love thing {name} {number} of {user}."
                turn = Turn(f"u{user}", "s", text, "Noted.", operation_id=f"{name}-{user}-{number}")
                writer.submit_nowait(turn)
        sys.stdout.write("submitted\n")
        sys.stdout.flush()
        writer.flush()
        sys.stdout.write("done\n")
        sys.stdout.flush()
        while sys.stdin.readline():
            time.sleep(0.1)


if __name__ == "__main__":
    main()
