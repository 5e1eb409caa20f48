"""The exchanges of a thread."""

from __future__ import annotations

import time

from tomldiary.agents.turn_messages import Spoken, earlier_exchanges


def test_the_exchanges_of_a_long_thread_are_found_in_linear_time():
    said = [Spoken("user", "Hi."), Spoken("user", "Hello?"), Spoken("assistant", "Yes.", True)]
    began = time.process_time()
    found = earlier_exchanges(said * 5_000, 15_000)
    assert time.process_time() - began < 0.5
    assert found == [("Hi.\n\nHello?", "Yes.")] * 5_000
