"""A blocking call that is interrupted, as by Ctrl-C or the stop button of a notebook, changes nothing later."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal, sys, threading
from tomldiary import Diary

ended = threading.Event()

async def extractor(message, *, deps):
    deps.upsert("likes", None, "tea", [])
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.sleep(60)
    finally:
        ended.set()

diary = Diary(sys.argv[1], agent=extractor)
alice = diary.user("alice")
try:
    CALL
except KeyboardInterrupt:
    print(ended.wait(20), alice.last_transaction(), len(alice.preferences("likes")))
alice.upsert_preference("likes", "coffee")
"""
CALLS = {
    "turn": 'alice.add_turn("I like tea.", "Noted.", session_id="s")',
    "transaction": """with alice.transaction():
        alice.upsert_preference("likes", "milk")
        alice.add_turn("I like tea.", "Noted.", session_id="s")""",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_interrupted_turn_is_not_extracted_any_further(tmp_path, call):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("CALL", call), str(tmp_path / "m")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("True 0 0\n", 0), done.stderr
