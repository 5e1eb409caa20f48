"""A writer process of a deployment on several machines: it applies the turns that web processes have stored.

Any number of these share the queue in the database `TOMLDIARY_URL`. `EXTRACTOR_MODEL` names the model; without it
the offline rules read the turns. If a process dies, the others go on with its turns after `WRITER_LEASE` seconds.
Run: python examples/fastapi/worker.py
"""

from __future__ import annotations

import os
import signal
import threading

from tomldiary import Diary, MemoryWriter


def main() -> None:
    """Work until the process is asked to end; then finish the turns in work."""
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    agent = os.environ.get("EXTRACTOR_MODEL", "rules")
    diary = Diary(os.environ["TOMLDIARY_URL"], agent=agent, max_prefs_per_category=1000)
    with MemoryWriter(diary, lease=float(os.environ.get("WRITER_LEASE", "15"))):
        print("working", flush=True)
        stop.wait()


if __name__ == "__main__":
    main()
