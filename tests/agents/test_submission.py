"""The writer that agents share."""

from __future__ import annotations

import pytest

from tomldiary import Diary, Turn
from tomldiary.agents.submission import AgentWriter


@pytest.mark.parametrize("verb", ["submit_nowait", "submit_later"])
def test_a_turn_goes_to_a_new_writer_if_another_agent_closes_the_shared_one(
    tmp_path, monkeypatch, verb
):
    diary = Diary(tmp_path, agent="rules")
    agent = AgentWriter(None, diary)
    first = agent.current
    submit = getattr(first, verb)
    monkeypatch.setattr(first, verb, lambda turn: (first.close_sync(), submit(turn))[1])
    receipt = getattr(agent, verb)(Turn("alice", "s1", "I like tea.", "Noted."))
    assert agent.current is not first
    agent.current.close_sync()
    assert receipt.wait(0).applied == 1
    assert [item.text for item in diary.user("alice").preferences("likes").values()] == [
        "I like tea."
    ]


def test_a_turn_for_a_closed_writer_of_the_host_is_refused(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    shared = AgentWriter(None, diary).current
    agent = AgentWriter(type(shared)(diary), diary)
    shared.close_sync()
    agent.current.close_sync()
    with pytest.raises(RuntimeError, match="closed"):
        agent.submit_later(Turn("alice", "s1", "I like tea.", "Noted."))
