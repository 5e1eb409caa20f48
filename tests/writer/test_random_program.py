"""Random submits, kills, closes, outages and retries: each stored turn is applied once, in order, or is a dead letter."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

import engines
import programs
from processes import STRICT
from tomldiary import Diary
from tomldiary.cli.app import app
from waiting import until

SCRIPT = Path(__file__).parents[1] / "support" / "driven_writer.py"
USERS = ("ann", "bob", "cem")


class Sent(NamedTuple):
    user: str
    operation: str
    text: str


class Program:
    """Drives two writers at random, and knows which turns are stored.

    Args:
        url: The place of the memory.
        folder: A folder for the switches of the model.
        chance: The source of randomness.
    """

    def __init__(self, url, folder, chance):
        self.url, self.chance = url, chance
        self.down, self.healed = folder / "down", folder / "healed"
        self.stored = []
        """For each process, the turns that it alone stored, in their order."""
        self.repeated = []
        """The turns that only the second process acknowledged to which they were given."""
        self.unordered = set()
        """The operation ids of the turns that were given to two processes, or were dead letters."""
        self.writers = [self.started() for _ in range(2)]

    def started(self):
        self.stored.append([])
        arguments = (SCRIPT, self.url, self.down.parent)
        return programs.start(*STRICT, *arguments), self.stored[-1]

    def replace(self, number):
        self.writers[number] = self.started()

    def end(self, number):
        """End a writer like a deployment does: it finishes its turns, if the model answers."""
        self.up()
        process, _ = self.writers[number]
        process.communicate("close\n")
        assert process.returncode == 0

    # Events

    def submit(self):
        turns = [self.new_turn() for _ in range(self.chance.randint(1, 6))]
        unanswered = self.give(turns, self.chance.randrange(2), is_killed=False)
        assert not unanswered

    def kill(self):
        """Kill a writer while it stores turns, and give all of them to the other one, as a client that saw no answer."""
        number = self.chance.randrange(2)
        if self.chance.random() < 0.7:
            self.down.touch()  # so that it leaves some
            self.submit()
        turns = [self.new_turn() for _ in range(self.chance.randint(0, 4))]
        unanswered = self.give(turns, number, is_killed=True)
        self.replace(number)
        assert not self.give(turns, 1 - number, is_killed=False, is_first=False)
        self.repeated += unanswered
        self.unordered.update(turn.operation for turn in turns)

    def close(self):
        number = self.chance.randrange(2)
        self.end(number)
        self.replace(number)

    def switch(self):
        if self.down.exists():
            self.up()
        else:
            self.down.touch()

    def up(self):
        self.down.unlink(missing_ok=True)

    def retry(self):
        letters = self.letters("list")
        self.unordered.update(letters)
        for operation in self.chance.sample(sorted(letters), min(2, len(letters))):
            self.letters("retry", operation)

    # What they need

    def new_turn(self):
        number = sum(map(len, self.stored)) + len(self.repeated) + self.chance.random()
        text = f"{self.chance.choice(['tea', 'jazz', 'tea', 'poison'])} {number}"
        return Sent(self.chance.choice(USERS), f"op-{number}", text)

    def give(self, turns, number, *, is_killed, is_first=True):
        """Submit turns to a writer, and kill it before it has answered all; return the turns without an answer."""
        process, stored = self.writers[number]
        for turn in turns:
            process.stdin.write("submit {} {} {}\n".format(*turn))
        answered = self.chance.randint(0, len(turns)) if is_killed else len(turns)
        for turn in turns[:answered]:
            assert process.stdout.readline() == "stored\n"
            if is_first:
                stored.append(turn)
        if is_killed:
            process.kill()
            process.communicate()
        return turns[answered:]

    def letters(self, *arguments):
        done = CliRunner().invoke(app, ["writer", *arguments, "--json", "--path", self.url])
        assert done.exit_code == 0, done.output
        return {each["id"] for each in json.loads(done.stdout)}

    # The oracle

    def check(self, engine):
        """Heal the model, apply what waits, and compare the memory with the turns that were stored."""
        self.up()
        for number in range(2):
            self.end(number)
        until(lambda: self.is_applied(engine))
        left = self.letters("list")
        self.unordered |= left
        turns = [turn for mine in self.stored for turn in mine] + self.repeated
        found = self.found(engine, turns, left)
        for user in USERS:
            for stored in self.stored:
                ordered = [
                    turn.text for turn in stored
                    if turn.user == user and turn.operation not in self.unordered
                ]  # fmt: skip
                assert [text for text in found[user] if text in set(ordered)] == ordered
        self.healed.touch()
        if left:
            self.letters("retry", "--all")
            until(lambda: self.is_applied(engine))
        assert self.letters("list") == set()
        self.found(engine, turns, set())

    def is_applied(self, engine):
        """Let a new writer apply what it finds; return whether no turn waits any more."""
        self.replace(0)
        with contextlib.suppress(AssertionError):
            until(lambda: "[[turn]]" not in engine.texts(), 5)
        self.end(0)
        return "[[turn]]" not in engine.texts()

    def found(self, engine, turns, left):
        """Return the stored texts of each user, which are those of these turns, each applied once.

        Those with an id in `left` may be missing.
        """
        diary = Diary(engine.backend(), agent="rules")
        found = {}
        for user in USERS:
            memory = diary.user(user)
            texts = [item.text for item in memory.preferences("likes").values()]
            mine = [turn for turn in turns if turn.user == user]
            wanted = [
                turn.text for turn in mine if turn.operation not in left or turn.text in texts
            ]
            assert Counter(texts) == Counter(wanted)
            # An equal text is not stored twice, so the turns are counted, too.
            assert sum(each.turns for each in memory.conversations().values()) == len(texts)
            found[user] = texts
        return found


def run(engine, folder, seed, steps):
    program = Program(engine.url, folder, random.Random(seed))
    events = ["submit"] * 5 + ["kill", "close", "switch", "switch", "retry"]
    try:
        for _ in range(steps):
            getattr(program, program.chance.choice(events))()
        program.check(engine)
    finally:
        for process, _ in program.writers:
            if process.returncode is None:
                process.kill()
                process.communicate()


shared = pytest.mark.parametrize("engine", engines.SHARED, indirect=True)


@pytest.fixture
def engine(request, disk):
    return engines.space(request.param, disk)


@shared
def test_each_stored_turn_is_applied_once_and_in_order_or_is_a_dead_letter(engine, tmp_path):
    run(engine, tmp_path, seed=7, steps=10)


@shared
@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
@pytest.mark.parametrize("seed", range(3))
def test_each_stored_turn_is_applied_once_after_many_events(engine, tmp_path, seed):
    run(engine, tmp_path, seed, steps=60)
