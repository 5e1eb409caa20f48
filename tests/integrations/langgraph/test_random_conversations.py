"""Random conversations through random graphs: each word is recorded once, for its user, with its answer."""

from __future__ import annotations

import random
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count, product
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import HumanMessage
from langgraph.types import Command

from random_graphs import ASYNC, STEPS, SYNC, Thread, asked_in, messages_of, words
from tomldiary import Diary, MemoryWriter

USERS = ("ann", "bob")
MODES = ("sync", "async", "exit")
"""When a run stores its checkpoints."""


class Echo:
    """An extractor that stores what the user said, so that recall nodes show it."""

    def __init__(self, threads):
        self.threads = threads

    def run(self, _message, /, *, deps):
        self.threads[deps.session_id].trouble("extractor")
        if deps.user_msg:
            deps.upsert("likes", None, deps.user_msg, ())


@dataclass
class Said:
    """A word, and whether the memory must have it."""

    user: str
    session: str
    must: bool = False


class Program:
    """Two users who talk, each in a thread and both in a third one; what they do is drawn from a seed."""

    def __init__(self, seed, folder):
        self.choose, self.folder, self.history = random.Random(seed), folder, [f"seed {seed}"]
        self.restarts = self.choose.random() < 0.3
        """Whether other processes continue. Then nothing of which docs/langgraph-details.md says "in another process the words
        again" is drawn: replays, several recording nodes, and graphs without a field `Memory` or a checkpointer."""
        self.said: dict[str, Said] = {}
        self.answers: dict[str, str] = {}
        """The word that each answer answers."""
        self.must: set[str] = set()
        """The answers that the memory must have."""
        self.leaks: list[str] = []
        self.threads: dict[str, Thread] = {}
        self.open: dict[str, list[str]] = {name: [] for name in (*USERS, "room")}
        """The words of runs that did not end, by thread."""
        self.numbers = count(1)
        self.processes = 0
        self.writer: MemoryWriter | None = None
        self.begin_process()
        for name in self.open:
            is_saved = self.restarts or name == "room" or self.choose.random() < 0.8
            self.threads[name] = Thread(self, name, restarts=self.restarts, is_saved=is_saved)
            self.note(f"{name}: {self.threads[name]}")

    def begin_process(self):
        """Open the memory as another process does: what a process knows belongs to the path as it is given."""
        if self.writer is not None:
            self.writer.close_sync()
        path = "/".join([str(self.folder), *[f"../{self.folder.name}"] * self.processes])
        self.processes += 1
        self.diary = Diary(path, agent=Echo(self.threads), episodes=True, durability="none")
        self.writer = MemoryWriter(self.diary)
        for each in self.threads.values():
            each.build()

    def note(self, line):
        self.history.append(line)

    def shown(self, user, memory):
        """Check what the model of a user is shown."""
        self.leaks += [f"{user} is shown {w}" for w in words(memory) if self.said[w].user != user]

    def new_answer(self, word):
        answer = f"a{next(self.numbers)}"
        self.answers[answer] = word
        return answer, f"{answer} for {word}"

    def play(self, steps):
        with ThreadPoolExecutor(3) as pool:
            for _ in range(steps):
                if self.restarts and self.choose.random() < 0.2:
                    self.note("another process")
                    self.begin_process()
                at_once = self.choose.sample([*self.open], self.choose.choice([1, 1, 1, 3]))
                runs = [
                    self.choose.choice([self.say, self.go_on, self.go_back, self.remind])(name)
                    for name in at_once
                ]
                for done in [pool.submit(run) for run in runs]:
                    done.result()
        assert self.writer.flush(60)
        self.writer.close_sync()

    def run(self, name, given, user, way, about, settings=None, modes=MODES):
        """Draw what goes wrong in a run of a thread; return the function that runs it."""
        thread, step = self.threads[name], self.choose.choice(STEPS)
        kinds = ["error", "timeout"] if thread.saver is None else ["error", "timeout", "wait"]
        if step == "extractor":  # a writer would wait before it tries again
            kinds = [] if "submit" in thread.kinds else ["error"]
        kinds = ["cancel"] if way == "cancelled" else kinds
        troubles = {step: self.choose.choice(kinds)} if kinds and self.choose.random() < 0.6 else {}
        if thread.body not in ("inner", "entrypoint") and self.choose.random() < 0.3:
            thread.goes_again = True
        # Behind the recall node: "a replay is left before the recall node runs … the words again".
        leaves_at = self.choose.randint(1 if given else 2, 5)
        if name != "room" and thread.place != "function" and self.choose.random() < 0.05:
            user = ""
        options = {}
        if thread.saver:
            options["durability"] = self.choose.choice(modes)
            if thread.stops and self.choose.random() < 0.2:
                options["interrupt_before"] = [self.choose.choice(thread.stops)]
        about = f"{name}: {user or 'no user'} {about} {way} {troubles} {options}"
        about += f" at {leaves_at}" if "left" in way else ""
        call = partial(thread.run, given, user, way, settings, **options)
        return partial(self.finish, thread, call, given, troubles, leaves_at, about)

    def finish(self, thread, call, given, troubles, leaves_at, about):
        """Run a thread, and note what the memory must have then."""
        self.note(about)
        thread.troubles, thread.leaves_at = dict(troubles), leaves_at
        if call():
            # Another user may resume a run that recorded its words: "Ann's message is no part of his turn".
            spoke = [self.said[word] for word in self.open[thread.name]]
            for said in spoke:
                said.must = said.user == spoke[-1].user
            self.open[thread.name] = []
            if isinstance(given, dict) and not troubles:
                self.must.update(thread.given)
        elif thread.saver is None and thread.resends:
            thread.kept = given["messages"]
        elif thread.saver is None:
            self.open[thread.name] = []

    def say(self, name, settings=None):
        thread, way = self.threads[name], self.choose.choice(SYNC + ASYNC)
        # "If a run fails or is cancelled, or its stream is left early, … the turn is not recorded. … Do so before the
        # user's next message": an answered word of such a run may be missing. An entrypoint keeps no word of it.
        is_answered = thread.saver and {*self.open[name]} & {*self.answers.values()}
        if is_answered or thread.body == "entrypoint":
            self.open[name] = []
        user = self.choose.choice(USERS) if name == "room" else name
        new = [f"w{next(self.numbers)}" for _ in range(self.choose.choice([1, 1, 2]))]
        self.said |= {word: Said(user, name) for word in new}
        self.open[name] += new
        texts = [f"I said {word}." for word in new]
        messages: list[Any] = [HumanMessage(text, id=uuid4().hex) for text in texts]
        if thread.saver is None:
            messages = [*thread.kept, *messages]
        elif way != "retried" and self.choose.random() < 0.5:
            # Not with `with_retry`: "the words once if the input is message objects, or has ids".
            messages = [("user", text) for text in texts]
        return self.run(name, {"messages": messages}, user, way, f"says {new}", settings)

    def go_on(self, name):
        """Continue a run that did not end, in a few cases as another user."""
        thread, words_left = self.threads[name], self.open[name]
        state = thread.snapshot if words_left and thread.saver else None
        if state is None or not state.tasks:
            return self.say(name)
        user = self.said[words_left[-1]].user
        if name == "room" and self.choose.random() < 0.2:
            user = self.choose.choice(USERS)
        given = Command(resume=True) if state.interrupts else None
        if len(state.interrupts) > 1:
            given = Command(resume={each.id: True for each in state.interrupts})
        way = self.choose.choice(SYNC + ASYNC)
        return self.run(name, given, user, way, "resumes" if given else "continues")

    def remind(self, name):
        """Run a thread on a message that no user wrote, or its recording node again; at most an answer is new."""
        thread = self.threads[name]
        # In another process, "a node of a subgraph records" the turn again.
        unable = ["inner"] if self.restarts else ["each", "entrypoint"]
        can_answer = thread.body not in unable and thread.saver and not self.open[name]
        state = thread.snapshot.values if can_answer else {}
        said = [word for one in messages_of(state or {"messages": []}) for word in asked_in(one)]
        if not said:
            return self.say(name)
        way = self.choose.choice(SYNC + ASYNC)
        message = HumanMessage("Go on.", id=uuid4().hex, additional_kwargs={"lc_source": "timer"})
        user = self.said[said[-1]].user
        # In a run that was left before the answer, the node records the result of a tool.
        if thread.body != "inner" and not thread.snapshot.tasks and self.choose.random() < 0.3:
            return self.run(name, Command(goto="record 0"), user, way, "records again")
        return self.run(name, {"messages": [message]}, user, way, "is reminded")

    def go_back(self, name):
        """Go back to a checkpoint, and replay it, say something else there, or edit what was said."""
        thread = self.threads[name]
        past = thread.past if thread.saver and not self.restarts else []
        if not past:
            return self.say(name)
        self.open[name] = []
        begin = self.choose.choice(past)
        kind = self.choose.choice(["replays", "says", "edits"])
        settings = begin.config["configurable"]
        if kind == "says":
            return self.say(name, settings)
        user = self.choose.choice(USERS) if name == "room" else name
        [*_, last] = [None, *messages_of(begin.values or {"messages": []})]
        asked = [] if last is None else asked_in(last)
        # The edit is behind the recall node: "a message that no recall node saw counts for the user whose run records it".
        if kind == "edits" and asked and name != "room":
            word = f"w{next(self.numbers)}"
            self.said[word] = Said(self.said[asked[-1]].user, name)
            self.open[name], user = [word], self.said[word].user
            settings = thread.edit(begin, HumanMessage(f"I said {word}.", id=last.id))
        # "A replay with `durability="exit"` begins at the first checkpoint … the words again".
        modes = MODES if begin.parent_config else MODES[:2]
        way = self.choose.choice(SYNC + ASYNC)
        return self.run(name, None, user, way, kind, settings, modes)

    def check(self):
        """Compare the memory with what was said."""
        assert self.leaks == []
        assert {*self.diary.users()} <= {*USERS}
        found: Counter[str] = Counter()
        for user, session in product(USERS, self.threads):
            for turn in self.diary.user(user).episodes.list(session):
                said = words(turn.input)
                answers = dict(re.findall(r"\b(a\d+) for (w\d+)", turn.output))
                found.update([*said, *answers])
                for word in (*said, *answers.values()):
                    at = (self.said[word].user, self.said[word].session)
                    assert at == (user, session), f"{word} of {at} is in {turn} of {user, session}"
                assert answers, f"no answer in {turn}"
                assert said or not turn.input, f"words of no user in {turn}"
                assert not said or {*answers.values()} <= {*said}, f"answers to others in {turn}"
        must = {word for word, said in self.said.items() if said.must} | self.must
        for one in (*self.said, *self.answers):
            expected = (1,) if one in must else (0, 1)
            assert found[one] in expected, f"{one} is recorded {found[one]} times"


def play(seed, folder, steps):
    program = Program(seed, folder)
    try:
        program.play(steps)
        program.check()
    except BaseException as error:
        error.add_note("\n".join(program.history))
        raise


def test_each_word_of_random_conversations_is_recorded_once(disk):
    for seed in range(3):
        play(seed, disk / str(seed), 12)


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
@pytest.mark.parametrize("start", range(0, 400, 50))
def test_each_word_of_400_random_conversations_is_recorded_once(disk, start):
    for seed in range(start, start + 50):
        play(seed, disk / str(seed), 25)
