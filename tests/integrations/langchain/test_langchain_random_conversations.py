"""Random conversations: each word of a user is recorded once, for this user, in its session, with its answer."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.types import Command

from random_chats import SHAPES, USERS, WORD, Chat, Down, agent_of
from tomldiary import Diary, MemoryWriter
from tomldiary.errors import IdentifierError

ANY = 99
APPROVED: Any = {"decisions": [{"type": "approve"}]}


class WordByWord:
    """An extractor that stores each word as a preference."""

    async def run(self, message, /, *, deps):
        for word in WORD.findall(deps.user_msg):
            deps.upsert("likes", None, word, ())


class Conversations:
    """Random chats with agents that share a folder. All comments that quote are from docs/langchain-details.md."""

    def __init__(self, folder, seed):
        self.folder, self.saver, self.choose = folder, InMemorySaver(), random.Random(seed)
        (folder / "diary").mkdir(parents=True)
        names = [f"c{number}" for number in range(self.choose.randint(1, 3))]
        self.chats = {name: Chat(name, seed) for name in names}
        self.history = [str(chat) for chat in self.chats.values()]
        self.process, self.writer = 0, None
        self.begin_process()

    def begin_process(self):
        """Go on as a new process: it knows nothing but the folder and the checkpoints."""
        if self.writer is not None:
            self.writer.close_sync()
        self.process += 1
        self.history.append("a new process")
        link = self.folder / str(self.process)  # else the diaries would share what a process knows
        link.symlink_to("diary")
        self.writer = MemoryWriter(Diary(link, agent=WordByWord(), episodes=True))
        self.agents = {
            name: agent_of(chat, self.chats, self.writer, self.saver)
            for name, chat in self.chats.items()
        }

    def step(self):
        """Let something happen."""
        chat = self.choose.choice([*self.chats.values()])
        actions = [self.begin_process, lambda: self.writer.flush(60), self.at_once]
        actions += [lambda: self.say(chat)] * 6
        if chat.is_saved:
            actions += [lambda: self.go_on(chat)] * 4
            actions += [lambda act=act: act(chat) for act in (self.intrude, self.edit, self.travel)]
        self.choose.choice(actions)()

    # What may happen

    def at_once(self):
        """Say something in all chats, each in a thread of its own."""
        with ThreadPoolExecutor(len(self.chats)) as pool:
            list(pool.map(self.say, self.chats.values()))

    def say(self, chat, user="", config=None):
        """Say something new, or the same words again."""
        choose, user = chat.choose, user or chat.choose.choice(chat.users)
        steps = ["look", "fail", "broken", "drain", "hang"]
        steps += ["book", "ask"] * chat.is_saved + ["delegate"] * (chat.shape == SHAPES[1])
        chat.script = [choose.choice(steps) for _ in range(choose.choice([0, 0, 1, 1, 2]))]
        new = []
        for _ in range(choose.choice([1, 1, 1, 2])):
            said = chat.new("w", user)
            said.text = f"I like {said.word}. My address is {user}@example.org."
            new.append(self.message(chat, said))
        self.run(chat, user, {"messages": [*chat.kept, *new]}, config)

    def message(self, chat, said):
        if chat.has_ids:
            return HumanMessage(said.text, id=said.word)
        return {"role": "user", "content": said.text}

    def edit(self, chat):
        """Send a message again with more or other words, perhaps with a new one."""
        thread = self.state(chat).values.get("messages", [])
        asked = [number for number, one in enumerate(thread) if one.id in chat.said]
        if not asked:
            return
        number = chat.choose.choice(asked[-3:])
        old, new = chat.said[thread[number].id], chat.new("w", chat.said[thread[number].id].user)
        for each in chat.said.values():
            # The earlier answer follows the new words. "A replay with another answer is another turn, with the words."
            if each.word[0] == "a" or self.is_elsewhere(chat):
                each.most = ANY if each.word[0] in "aw" else 0
        if chat.choose.random() < 0.5:
            new.text = f"{old.text} {new.text}"
        for word in WORD.findall(f"{old.text} {thread[number].text}"):
            if word[0] == "w":
                chat.said[word].least, chat.said[word].most = 0, ANY
        given = [HumanMessage(new.text, id=old.word)]
        if number != asked[-1] or chat.choose.random() < 0.5:
            given.append(self.message(chat, chat.new("w", old.user)))
        rest = thread[number + 1 :]
        is_answered = any(one.type == "ai" and not one.tool_calls for one in rest)
        if is_answered and (given[1:] or any(one.type == "human" for one in rest)):
            new.least = 0  # The turn begins behind the last answer before the last message.
        old.text = new.text
        self.run(chat, old.user, {"messages": given})

    def go_on(self, chat):
        """Resume a run that was interrupted, drained or left, or that failed."""
        state = self.state(chat)
        given = None
        if state.interrupts:
            given = Command(resume=APPROVED)
            if isinstance(state.interrupts[0].value, str):
                said = chat.new("w", chat.user)
                # "After a failed or drained run of an agent in a graph, LangGraph asks again, but drops the second answer."
                said.is_in_tool, said.least = True, 0
                given = Command(resume=said.text)
        if state.next:
            self.run(chat, chat.user, given)

    def intrude(self, chat):
        """Try to resume the run of another user."""
        state = self.state(chat)
        if state.next:
            other = chat.choose.choice([each for each in USERS if each != chat.user])
            given = Command(resume=APPROVED) if state.interrupts else None
            self.history.append(f"{other} resumes {chat.name}")
            try:
                self.agents[chat.name].invoke(given, self.config(chat, other))
            except IdentifierError:
                if chat.is_nested:  # LangGraph gives the decision to the next interrupt as well.
                    chat.script = [step for step in chat.script if step != "ask"]
                return
            assert self.state(chat).interrupts, "another user resumed a run"

    def travel(self, chat):
        """Go on from an older checkpoint, with or without new words."""
        states = [*self.agents[chat.name].get_state_history(self.config(chat))]
        if not states:
            return
        state = chat.choose.choice(states)
        messages = state.values.get("messages", [])
        words = [word for one in messages for word in WORD.findall(one.text) if word[0] == "w"]
        is_begun = words and state.next != ("__start__",)
        user = chat.said[words[-1]].user if is_begun else state.metadata["user_id"]
        self.history.append(f"{chat.name} from a checkpoint with {words} before {state.next}")
        for each in chat.open:
            each.least = 0  # on a branch that is left
        chat.open.clear()
        chat.has_travelled = True
        place = {**self.config(chat, user)["configurable"], **state.config["configurable"]}
        if chat.choose.random() < 0.5:
            self.say(chat, user, {"configurable": place})
        elif state.next:
            self.run(chat, user, None, {"configurable": place})

    # How a run goes

    def config(self, chat, user=""):
        return {"configurable": {"thread_id": chat.name, "chat": chat.name, "user_id": user}}

    def state(self, chat):
        return self.agents[chat.name].get_state(self.config(chat))

    def is_elsewhere(self, chat):
        return not chat.processes <= {self.process}

    def run(self, chat, user, given, config=None):
        """Run the agent of a chat, and note how often each word may be recorded."""
        mode = chat.choose.choice(["invoke", "ainvoke", "stream", "astream"])
        if mode != "ainvoke":
            chat.script = [step for step in chat.script if step != "hang"]
        chat.user, chat.given = user, []
        chat.control = type(chat.control)()
        options = {"control": chat.control}
        if chat.is_saved:
            options["durability"] = chat.choose.choice(["sync", "async", "exit"])
        self.history.append(f"{user} in {chat.name}: {mode}, {options.get('durability')}, {chat.script}, {str(given)[-150:]}")  # fmt: skip
        self.allow_before(chat, given)
        state = None
        try:
            call = self.astreamed if mode[0] == "a" else self.streamed
            ended, state = call(chat, mode, (given, config or self.config(chat, user)), options)
        except (Down, asyncio.CancelledError):
            ended = "failed"
        except GraphDrained:
            ended = "drained" if chat.is_saved else "failed"
        if chat.is_saved and ended == "completed" and self.state(chat).next:
            ended = "interrupted"
        self.history.append(f"    {ended}")
        if not chat.is_saved:
            chat.kept = state["messages"] if state else given["messages"]
        self.allow_after(chat, user, ended)
        if ended == "drained" and chat.is_nested and options["durability"] == "exit":
            for each in chat.open:
                if each.is_in_tool:
                    each.least = 0  # "With `durability="exit"`, a drained run drops the first answer instead."

    def streamed(self, chat, mode, given, options):
        agent, state = self.agents[chat.name], None
        if mode == "invoke":
            return "completed", agent.invoke(*given, **options)
        parts = chat.choose.choice([1, 2, 3, ANY])
        kinds = ["updates", "values"]
        with closing(agent.stream(*given, stream_mode=kinds, **options)) as stream:
            for kind, part in stream:
                state, parts = (part, parts) if kind == "values" else (state, parts - 1)
                if not parts:
                    return "left", None
        return "completed", state

    def astreamed(self, chat, mode, given, options):
        agent = self.agents[chat.name]
        parts = chat.choose.choice([1, 2, 3, ANY])

        async def stream():
            kinds, left, state = ["updates", "values"], parts, None
            async with aclosing(agent.astream(*given, stream_mode=kinds, **options)) as stream:
                async for kind, part in stream:
                    state, left = (part, left) if kind == "values" else (state, left - 1)
                    if not left:
                        return "left", None
            return "completed", state

        async def invoke():
            chat.is_hanging = asyncio.Event()
            running = asyncio.create_task(agent.ainvoke(*given, **options))
            hanging = asyncio.create_task(chat.is_hanging.wait())
            await asyncio.wait([running, hanging], return_when="FIRST_COMPLETED")
            if not running.done():
                running.cancel()
            hanging.cancel()
            return "completed", await running

        return asyncio.run(stream() if mode == "astream" else invoke())

    # What the memory may have

    def allow_before(self, chat, given):
        """Allow what a new process cannot know, and what LangGraph drops."""
        is_elsewhere = self.is_elsewhere(chat)
        chat.processes.add(self.process)
        for each in chat.said.values():
            if each.word[0] == "x" and chat.shape != SHAPES[3]:
                continue
            if not chat.is_saved and not chat.has_ids and each in chat.open:
                # "An answer that is generated again, or a failed question that is sent again, is recorded again."
                each.most = ANY
            if is_elsewhere and each.word[0] == "a" and each in chat.open:
                each.most = ANY  # A later answer follows it in the turn.
            has_no_notes = not chat.is_saved or chat.shape == "two in a graph"
            if (is_elsewhere and (has_no_notes or chat.has_travelled)) or (
                chat.has_travelled and not chat.has_ids
            ):
                # "A replay with another answer is another turn, with the words. So is one with `durability="exit"`, if the
                # client gave the message no id."
                each.most = ANY
            if chat.is_nested and isinstance(given, dict) and each.is_in_tool and each in chat.open:
                each.least = 0  # LangGraph drops the state of the agent in the graph.

    def allow_after(self, chat, user, ended):
        """Allow what the end of a run lets be recorded."""
        if ended in ("completed", "failed"):
            for each in chat.given:
                each.least = 1
        for each in chat.open:
            if ended in ("failed", "left") and chat.around == "redaction":
                each.most += 1  # "If it is resumed, its redacted words are submitted as well."
            is_asked = each.word[0] == "w" and each.user == user and each.is_settled
            if ended == "completed" and is_asked and chat.given:
                each.answer = chat.given[0 if chat.shape == SHAPES[3] else -1].word
            if ended != "interrupted":
                each.is_settled = False
            if (ended == "completed" or chat.given) and each.user != user:
                # "If Ann's run is interrupted and Bob's next message is answered instead, Ann's message is not recorded."
                each.least = 0
        if ended == "completed":
            chat.open.clear()
        elif ended == "failed":
            chat.open = [each for each in chat.open if each.user != user or each.word[0] == "a"]

    def check(self):
        """Finish all runs, and compare the stored turns with what was said."""
        for chat in self.chats.values():
            chat.script.clear()
            for _ in range(9):
                if chat.is_saved:
                    self.go_on(chat)
            for each in chat.open:
                each.least = 0  # The model never answered, for example because a tool fails again.
        self.writer.close_sync()
        assert self.writer.stats()["failed"] == 0
        known = {word: said for chat in self.chats.values() for word, said in chat.said.items()}
        found = Counter()
        turns = [(user, one) for user in USERS for one in self.writer.diary.user(user).episodes()]
        self.history += [f"{user} in {one.session_id}: {one.input!r} {one.output!r}" for user, one in turns]  # fmt: skip
        for user, turn in turns:
            for kind, text in (("w", turn.input), ("a", turn.output)):
                words = WORD.findall(text)
                found.update(words)
                for said in map(known.__getitem__, words):
                    place = (kind, user, turn.session_id)
                    is_in_place = (said.word[0], said.user, said.chat) == place
                    assert is_in_place or (said.most and not said.user), f"{said} is in {turn}"
                    assert said.most > 1 or said.answer in turn.output, f"{said} is in {turn}"
        for said in known.values():
            assert said.least <= found[said.word] <= said.most, f"{found[said.word]} times {said}"
        for chat in self.chats.values():
            assert not chat.shown, "the memory of another user"


def failure(folder, seed, count):
    """Return how a script fails; "" if it does not."""
    conversations = Conversations(folder, seed)
    try:
        for _ in range(count):
            conversations.step()
        conversations.check()
    except Exception as error:  # noqa: BLE001 - it is reported with the history
        return "\n".join([f"seed {seed}, {count} steps: {error!r}", *conversations.history])
    finally:
        conversations.writer.close_sync()
    return ""


def first_failure(folder, seed, count):
    """Return how the shortest beginning of a script fails."""
    if not failure(folder / "all", seed, count):
        return ""
    shorter = (failure(folder / f"{steps}", seed, steps) for steps in range(1, count + 1))
    return next(filter(None, shorter), f"seed {seed} fails sometimes")


@pytest.mark.parametrize("seed", range(2))
def test_each_word_of_a_random_conversation_is_recorded_once(disk, seed):
    assert not first_failure(disk, seed, 12)


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
def test_each_word_of_300_random_conversations_is_recorded_once(disk):
    for seed in range(300):
        assert not first_failure(disk / f"{seed}", seed, 20)
