"""A writer process of a deployment on several machines: it applies the turns that web processes have stored.

Any number of workers share the queue in the database `TOMLDIARY_URL`. `EXTRACTOR_MODEL` is the name of the model;
without it, the offline rules read the turns. If a worker dies, others continue its turns after `WRITER_LEASE` seconds.
Run: python examples/fastapi/worker.py
"""

from __future__ import annotations

import os
import signal
import threading

from tomldiary import Diary, MemoryWriter


def main() -> None:
    """Apply turns until the process receives a signal, then finish the running turns."""
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    agent = os.environ.get("EXTRACTOR_MODEL", "rules")
    diary = Diary(os.environ["TOMLDIARY_URL"], agent=agent, max_prefs_per_category=1000)
    with MemoryWriter(diary, lease=float(os.environ.get("WRITER_LEASE", "15"))):
        print("working", flush=True)
        # A wait without a limit may not see a signal that another thread receives.
        while not stop.wait(1):
            pass


if __name__ == "__main__":
    main()
