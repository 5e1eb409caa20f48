"""A process with a writer on a shared database; it is killed and started again by tests.

shared_writer.py URL FIRST LAST TURNS     submits the turns of users FIRST to LAST, and works until stdin ends
"""

from __future__ import annotations

import sys
import time

from tomldiary import Diary, MemoryWriter, Turn


def main() -> None:
    url, *numbers = sys.argv[1:]
    first, last, turns = map(int, numbers)
    diary = Diary(url, agent="rules", max_prefs_per_category=1000)
    with MemoryWriter(diary, lease=2.0, qsize=100_000) as writer:
        for number in range(turns):
            for user in range(first, last):
                text = f"I love thing number {number} of {user}."
                turn = Turn(f"u{user}", "s", text, "Noted.", operation_id=f"{user}-{number}")
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
