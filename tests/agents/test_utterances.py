"""The words of runs that overlap."""

from __future__ import annotations

from tomldiary.agents.utterances import RunIds, RunOwner, UserTurn, Utterances


def test_a_run_that_the_garbage_collector_ends_disturbs_no_run_that_begins():
    known = Utterances()
    turns = [UserTurn("diary", RunOwner(user, "s"), RunIds("c", user)) for user in ("ann", "bob")]
    for turn in turns:
        known.opened(turn)

    class Collecting(RunOwner):
        """Ends the other runs when it is compared with one of them."""

        __hash__ = RunOwner.__hash__

        def __eq__(self, other: object) -> bool:
            for turn in turns:
                known.end(turn)
            return super().__eq__(other)

    begun = UserTurn("diary", Collecting("eve", "s"), RunIds("c", "eve"))
    known.begin(begun, [], [], "Hi.")
    assert begun.said == ["Hi."]
