"""The words of runs that overlap."""

from __future__ import annotations

from tomldiary.agents.utterances import Heard, RunIds, RunOwner, UserTurn, Utterances


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


def test_words_that_were_answered_to_another_user_may_be_said_by_this_one():
    known = Utterances()
    ann, bob = (
        UserTurn("diary", RunOwner(user, "s"), RunIds("c", user), place=user)
        for user in ("ann", "bob")
    )
    hello, more = (Heard(text, RunIds("c", None), "") for text in ("Hello.", "More."))
    known.opened(ann)
    known.begin(ann, [], [hello], more.text)
    # Her run fails behind an answer to her first words, and so does one of his with the same words.
    said = known.begin(bob, [hello], [more, hello], "Tea.")
    assert [one.user for one in said] == ["ann", "bob", "bob"]
    assert bob.said == ["Hello.", "Tea."]
