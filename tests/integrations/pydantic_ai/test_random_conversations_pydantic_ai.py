"""Random conversations: each word of a user is recorded once, for its user and session, with the answer it got.

Hosts keep the history of a conversation in several ways, and runs end in several ways. Each word of a user is unique
and begins with the user's name, so the stored episodes alone show what was lost, doubled or mixed up.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import random
import re
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pydantic_ai")

from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    RunContext,
    ToolOutput,
)
from pydantic_ai import capture_run_messages as captured
from pydantic_ai.capabilities import AbstractCapability, ProcessHistory
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    UserPromptPart,
    repair_messages,
)

from kept_chats import KEPT, NOTE, TEXTS, WITHOUT_IDS, Chat, Said, Words, reworded
from scripted_runs import WAYS, Script
from tomldiary import Diary, MemoryWriter
from tomldiary.errors import IdentifierError
from tomldiary_pydantic_ai import DiaryCapability, DiaryToolset

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

USERS = ("ann", "bob", "eve")
WORD = re.compile(rf"(?:{'|'.join(USERS)})\d+")
ANSWER = re.compile(r"yes\d+|No\.(?=[\s\S]*yes)")
"""Words of answers, and answers that a validator rejected before another one."""


@dataclass
class Deps:
    """The deps of a run."""

    user_id: str
    session_id: str | None
    script: Script
    said: list[Said]
    conversation: str | None = None


class Note(AbstractCapability[Deps]):
    """Notes the conversation of a run."""

    async def for_run(self, ctx: RunContext[Deps]) -> Note:
        ctx.deps.conversation = ctx.deps.conversation or ctx.conversation_id
        return self


class Order(BaseModel):
    """An answer that is no text."""

    what: str


class Extractor:
    """Stores what the user said, so that later runs are shown it."""

    async def run(self, _message: str, *, deps: Any) -> None:
        if deps.user_msg:
            deps.upsert("likes", None, deps.user_msg, ())


def shortened(messages: list[ModelMessage]) -> list[ModelMessage]:
    return messages[-10:]  # no run has more of them


def has_open_calls(messages: Sequence[ModelMessage]) -> bool:
    parts = [part for message in messages for part in message.parts]
    called = {part.tool_call_id for part in parts if part.part_kind == "tool-call"}
    returned = {part.tool_call_id for part in parts if part.part_kind == "tool-return"}
    return not called <= returned


class World:
    """Users, their chats and agents, and what the memories should contain."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.log: list[str] = []
        self.numbers = itertools.count()
        self.diaries = [
            Diary(
                folder / name, agent=Extractor(), episodes=True, durability="none", similarity=100
            )
            for name in ("own", "team")
        ]
        self.writers = [MemoryWriter(diary) for diary in self.diaries]
        self.expected: list[Counter[tuple[str, ...]]] = [Counter(), Counter()]
        (own, shared), (writer, writer_of_team) = self.diaries, self.writers
        memory = DiaryCapability(own, writer=writer)
        instructing = DiaryCapability(own, writer=writer, inject="instructions")
        notes = DiaryToolset(own, id="notes").prefixed("notes")
        team = DiaryCapability(shared, writer=writer_of_team, id="team").prefix_tools("team")
        self.agents = [
            self.agent(memory),
            self.agent(memory, ProcessHistory(copy.deepcopy)),
            self.agent(memory, ProcessHistory(shortened)),
            self.agent(memory, ProcessHistory(reworded)),
            self.agent(memory, toolsets=[notes]),
            self.agent(instructing),
            self.agent(memory, team),
        ]
        choose = random.Random(seed)
        self.chats = [self.chat(choose, number) for number in range(4)]

    def chat(self, choose: random.Random, number: int) -> Chat:
        users, kept = choose.sample(USERS, choose.choice([1, 1, 2, 3])), choose.choice(KEPT)
        session = choose.choice([None, f"s{number}"])
        conversation = choose.choice([None, f"c{number}"])
        begun: list[Said | str] = []
        if kept in WITHOUT_IDS and len(users) > 1:
            # docs: "In a group chat whose history has no ids, only one `conversation_id` shows whose words a failed
            # run had, or a run whose answer you left out."
            conversation = f"c{number}"
        if kept in WITHOUT_IDS and not (session or conversation):
            # docs: "A retry of a failed run without an answer in its history is a new conversation, which has the
            # words again".
            begun = [self.say(users[0]), "Hello."]
        agents: Sequence[int] = choose.choice([range(6), range(6), range(6, 7)])
        chat = Chat(users, session, conversation, kept, agents, begun)
        chat.history = replace(chat, kept="texts").messages()
        return chat

    def agent(self, *capabilities: Any, **options: Any) -> Agent[Deps, Any]:
        agent: Agent[Deps, Any] = Agent(
            name="keeper",  # two runs that begin at once may both set one, and then fail
            deps_type=Deps,
            output_type=[str, ToolOutput(Order, name="order"), DeferredToolRequests],
            capabilities=[Note(), *capabilities],
            **options,
        )

        @agent.tool_plain
        def look() -> str:
            return "seen"

        @agent.tool_plain(requires_approval=True)
        def pay() -> str:
            return "paid"

        @agent.tool_plain
        def fail_in_tool() -> str:
            raise LookupError

        @agent.tool
        async def wait(ctx: RunContext[Deps]) -> str:
            await ctx.deps.script.hang()
            return "never"

        @agent.tool
        def hear(ctx: RunContext[Deps]) -> str:
            ctx.deps.said.append(self.say(ctx.deps.user_id))
            ctx.enqueue(ctx.deps.said[-1].text)
            return "heard"

        @agent.tool
        async def delegate(ctx: RunContext[Deps]) -> str:
            await Script(self.numbers).run(
                self.agents[0], "Tea?", "run", falls_back=False, deps=ctx.deps
            )
            return "done"

        @agent.tool
        async def ask(ctx: RunContext[Deps]) -> str:
            other = USERS[USERS.index(ctx.deps.user_id) - 1]
            deps = Deps(other, "asked", Script(self.numbers), [self.say(other)])
            await deps.script.run(
                self.agents[0], deps.said[0].text, "run", falls_back=False, deps=deps
            )
            self.ended(deps)
            return "done"

        @agent.output_validator
        def check(output: Any) -> Any:
            if "No." in (output, getattr(output, "what", None)):
                raise ModelRetry("Say yes.")
            return output

        return agent

    def say(self, user: str) -> Said:
        return Said(f"{user}{next(self.numbers)}")

    def ended(self, deps: Deps, *, is_of_team: bool = False) -> None:
        """Note what a run should have recorded: what its user said and no earlier run recorded."""
        new = [one for one in deps.said if not one.is_recorded]
        for one in new:
            one.is_recorded = True
        words, answers = " ".join(one.word for one in new), " ".join(deps.script.given)
        if words or answers:
            turn = deps.user_id, deps.session_id or deps.conversation or "", words, answers
            for expected in self.expected[: 1 + is_of_team]:
                expected[turn] += 1

    def wrong(self) -> str:
        """Return how the stored episodes differ from what runs should have recorded; "" if they do not."""
        for diary, expected in zip(self.diaries, self.expected, strict=True):
            found: Counter[tuple[str, ...]] = Counter()
            for user in USERS:
                for one in diary.user(user).episodes.list():
                    left = re.sub(rf"I like {WORD.pattern}\.", "", one.input).strip()
                    words, answers = WORD.findall(one.input), ANSWER.findall(one.output)
                    if words or answers or left:
                        found[user, one.session_id, " ".join(words) + left, " ".join(answers)] += 1
            if found != expected:
                return f"missing {[*(expected - found)]}\nnot expected {[*(found - expected)]}"
        return ""

    async def turn(self, choose: random.Random, chat: Chat, *, is_alone: bool) -> None:
        """Let a user of a chat say something to an agent, and let the host keep what it keeps."""
        user, way = choose.choice(chat.users), choose.choice(["run", "run", *WAYS])
        number = choose.choice(chat.agents)
        kinds = ["look", "recall", "delegate", "ask", "hear", "look+look", "hear+recall+look"]
        if "stream" not in way:
            kinds.append(choose.choice(["say_no", "order_no"]))
        steps = choose.sample(kinds, choose.choice([0, 0, 0, 1, 2]))
        if chat.kept not in TEXTS and choose.random() < 0.2:
            steps.append(choose.choice(["pay", "pay+look"]))
        if "stream" not in way and "left" not in way and choose.random() < 0.2:
            steps.append("order")  # arguments of output tools are no answer of a run that is left
        options: dict[str, Any] = {"conversation_id": chat.conversation}
        history = chat.messages()
        is_resumed = chat.paused is not None and choose.random() < 0.8
        if is_resumed:
            history = chat.paused.all_messages()
            (call,) = chat.paused.output.approvals
            approvals: dict[str, Any] = {call.tool_call_id: choose.random() < 0.8}
            options["deferred_tool_results"] = DeferredToolResults(approvals=approvals)
        words = None if is_resumed else self.repeated(choose, chat, user, history)
        is_repeated = words is not None
        words = words or self.words(choose, chat, user, is_resumed=is_resumed, is_alone=is_alone)
        deps = Deps(user, chat.session, Script(self.numbers, steps), [*words.said])
        self.log.append(
            f"{user} in {self.chats.index(chat)} ({chat.kept}): {[one.word for one in words.said]} {way} {steps}"
            f" {is_resumed=} {is_repeated=} agent {number}"
        )
        options |= {"message_history": [*history, *words.before], "deps": deps}
        if is_resumed and chat.asker != user:
            with suppress(IdentifierError, ExceptionGroup):
                await deps.script.run(
                    self.agents[number], words.prompt, "run", falls_back=False, **options
                )
                raise AssertionError(f"{user} continued a run of {chat.asker}")
            return
        with captured() as messages:
            falls_back = choose.random() < 0.2
            result = await deps.script.run(
                self.agents[number], words.prompt, way, falls_back=falls_back, **options
            )
        self.ended(deps, is_of_team=number == 6)
        shown = {*WORD.findall(f"{deps.script.shown}")} - {*WORD.findall(f"{history}")}
        assert all(word.startswith(user) for word in shown), f"{user} was shown {shown}"
        self.keep(choose, chat, words, deps, history, result, messages)
        if not is_alone:
            chat.lost = None  # a run that ended after it may have been answered

    def repeated(
        self, choose: random.Random, chat: Chat, user: str, history: Sequence[ModelMessage]
    ) -> Words | None:
        """Return what the same user said to the last run, if this run is to repeat it."""
        is_own = chat.lost is not None and [one.user for one in chat.lost.said[-1:]] == [user]
        # The host may have kept a run beside it with the same words; then the user says them again.
        is_own = is_own and chat.lost.said[-1].word not in WORD.findall(f"{history}")
        return chat.lost if is_own and choose.random() < 0.7 else None

    def words(
        self, choose: random.Random, chat: Chat, user: str, *, is_resumed: bool, is_alone: bool
    ) -> Words:
        """Return what a user says, as the prompt of a run and at the end of its history."""
        count = choose.choice([0, 1] if is_resumed else [0, 1, 1, 1, 1, 2])
        said = [self.say(user) for _ in range(count)]
        again = [one for one in chat.lines if isinstance(one, Said) and one.user == user][-1:]
        if again and chat.answered == user and is_alone and choose.random() < 0.1:
            said.append(Said(again[0].word))
        picture = BinaryContent(b"x", media_type="image/png")
        if not said:
            return Words(said, None if is_resumed else choose.choice(["", [picture]]), [])
        texts = [one.text for one in said]
        if choose.random() < 0.2 and chat.kept not in TEXTS:
            return Words(said, [*texts, picture], [])
        at_end = texts if chat.kept == "interface" and not is_resumed else texts[:-1]
        before = [ModelRequest([UserPromptPart(text)]) for text in at_end]
        forms = [texts[-1], [texts[-1], picture], [NOTE, texts[-1]]]
        return Words(said, None if len(at_end) == len(texts) else choose.choice(forms), before)

    def keep(
        self,
        choose: random.Random,
        chat: Chat,
        words: Words,
        deps: Deps,
        history: Sequence[ModelMessage],
        result: Any,
        messages: list[ModelMessage],
    ) -> None:
        """Keep what a host keeps of a run."""
        # A stream may end before a request takes what was said in a tool.
        is_answered = result and isinstance(result.all_messages()[-1], ModelResponse)
        chat.answered = deps.user_id if is_answered else ""
        is_lost = result is None and choose.random() < 0.5
        # docs: "A retry of a failed run without an answer in its history is a new conversation, which has the words
        # again: give both runs one `conversation_id`, or one session."
        has_answer = any(isinstance(each, ModelResponse) for each in history)
        is_known = chat.session or chat.conversation or has_answer
        chat.lost = words if is_lost and is_known and chat.paused is None else None
        if is_lost:
            return
        answer = "\n\n".join(f"{word} it is." for word in deps.script.given)
        is_shown = answer and (result is not None or choose.random() < 0.5)
        chat.lines += [*deps.said, *([answer] if is_shown else [])]
        if isinstance(getattr(result, "output", None), DeferredToolRequests):
            chat.paused, chat.asker = result, deps.user_id
            return
        chat.paused = None
        chat.history = [*messages] if result is None else result.all_messages()
        if has_open_calls(chat.history):
            chat.history = repair_messages(chat.history)


def play(folder: Path, seed: int, steps: Sequence[int]) -> tuple[str, list[str]]:
    """Return what is wrong with the memories after some steps of a seed, and a log of the steps."""
    world = World(folder, seed)

    async def talk() -> None:
        for step in steps:
            choose = random.Random(f"{seed} {step}")
            chats = choose.sample(world.chats, choose.choice([1, 1, 1, 3]))
            # Two runs at once in one chat, whose words are known by ids.
            twice = [
                each for each in chats[:1] if each.kept not in WITHOUT_IDS and choose.random() < 0.2
            ]
            turns = [
                world.turn(random.Random(f"{seed} {step} {n}"), chat, is_alone=chat not in twice)
                for n, chat in enumerate([*chats, *twice])
            ]
            await asyncio.gather(*turns)

    with ExitStack() as stack:
        for writer in world.writers:
            stack.enter_context(writer)
        try:
            asyncio.run(talk())
        except Exception as error:  # noqa: BLE001 - no run should raise it
            return repr(error), world.log
    return world.wrong(), world.log


def check(folder: Path, seed: int, count: int) -> None:
    """Play a seed; if something is wrong, leave out steps as long as it stays so, and fail."""
    steps = list(range(count))
    wrong, log = play(folder / f"{seed}", seed, steps)
    if not wrong:
        return
    for step in range(count):
        fewer = [each for each in steps if each != step]
        again, shorter = play(folder / f"{seed} without {step}", seed, fewer)
        if again:
            steps, wrong, log = fewer, again, shorter
    pytest.fail("\n".join([f"seed {seed}, steps {steps}", *log, wrong]))


def test_random_conversations_are_recorded_once(tmp_path: Path):
    for seed in range(2):
        check(tmp_path, seed, 8)


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
@pytest.mark.parametrize("block", range(10))
def test_500_random_conversations_are_recorded_once(tmp_path: Path, block: int):
    for seed in range(block * 50, block * 50 + 50):
        check(tmp_path, seed, 10)
