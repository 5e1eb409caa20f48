"""A process with a writer that gets its commands from a test, one a line; see `test_random_program`.

    driven_writer.py PLACE SWITCHES

`submit USER OPERATION TEXT` answers `stored`, or `refused` with the reason; `close` finishes the waiting turns and ends
the process. The model is down while the file `down` exists in the folder SWITCHES. It refuses a text with the word
poison until the file `healed` exists.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tomldiary import BackendError, Diary, MemoryWriter, RetryPolicy, Turn

place, switches = sys.argv[1], Path(sys.argv[2])


class Unavailable(Exception):
    status_code = 503


def remember(message, *, deps):
    if (switches / "down").exists():
        raise Unavailable
    if "poison" in deps.user_msg and not (switches / "healed").exists():
        raise ValueError
    deps.upsert("likes", None, deps.user_msg, ())


def main() -> None:
    diary = Diary(place, agent=remember, max_prefs_per_category=10_000, similarity=101)
    policy = RetryPolicy(attempts=4, first_pause=0.01, longest_pause=0.05)
    with MemoryWriter(
        diary, retry=policy, breaker=3, breaker_pause=0.05, takeover_interval=0.2, lease=1.0
    ) as writer:
        for line in sys.stdin:
            verb, *rest = line.rstrip("\n").split(" ", 3)
            if verb == "close":
                break
            user, operation, text = rest
            answer = "stored"
            try:
                turn = Turn(user, "s", text, "Noted.", operation_id=operation)
                writer.submit_nowait(turn).wait_stored()
            except BackendError as error:
                answer = f"refused {error}"
            sys.stdout.write(f"{answer}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
