"""Random clients of Vercel AI and AG-UI: each word of a user is recorded once, for this user, however often it is sent.

The clients send the whole chat with each request. They regenerate, edit, delete, stop and repeat, in two tabs and in groups.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import json
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pydantic_ai.ui.vercel_ai")
pytest.importorskip("pydantic_ai.conversation_store", reason="the ids of clients are not kept yet")

from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.conversation_store import InMemoryConversationStore
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.ui.vercel_ai import VercelAIAdapter
from starlette.applications import Starlette
from starlette.routing import Route

from tomldiary import Diary, MemoryWriter
from tomldiary_pydantic_ai import DiaryCapability
from ui_clients import TOOL, AgUiClient, Chat, Client, VercelClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pydantic_ai.messages import ModelMessage
    from starlette.requests import Request
    from starlette.responses import Response

USERS = ("ann", "bob", "eve")
WORD = re.compile(rf"(?:{'|'.join(USERS)})\d+")
STEPS = [
    *([[]] * 5), ["look"], ["look+look"], ["fail"], ["fail"], ["fail late"], ["look", "fail"], ["think", "look"],
    ["silent"], ["hang"], ["hang"], ["pay"], ["pay+look"],
]  # fmt: skip
ACTIONS = ("say", "say", "say", "say two", "two texts", "say nothing", "repeat", "edit", "regenerate", "delete",
           "delete and regenerate")  # fmt: skip
OF_SERVER = ACTIONS[:-2]
"""What clients do if the server keeps the history: it does not learn of deletions."""


class Extractor:
    """Stores nothing: the episodes have the words."""

    async def run(self, _message: str, *, deps: Any) -> None:
        del deps


@dataclass
class Deps:
    """The deps of a run."""

    user_id: str


@dataclass(eq=False)
class Room:
    """A chat of some users, its client, and where its history is kept."""

    client: Client
    users: list[str]
    kept_by: str
    chat: Chat
    other_tab: Chat | None = None
    history: list[ModelMessage] | None = None
    store: InMemoryConversationStore = field(default_factory=InMemoryConversationStore)
    asker: str = ""
    """The user of the last run."""

    def options(self) -> dict[str, Any]:
        """Return the options of the adapter."""
        if self.kept_by == "server":
            return {"message_history": self.history, "manage_message_history": "server"}
        return {"conversation_store": self.store} if self.kept_by == "store" else {}

    async def reload(self) -> None:
        """Show what the server has."""
        loaded = await self.store.load(self.chat.id)
        kept = self.history if loaded is None else loaded.messages
        self.chat.messages = [
            json.loads(message.model_dump_json(by_alias=True, exclude_none=True))
            for message in self.client.adapter.dump_messages(kept or [])
        ]


class World:
    """Users with their chats, an agent, and what the memory should contain."""

    def __init__(self, folder: Path, client: Client, kept_by: str, seed: int) -> None:
        self.choose = choose = random.Random(seed)
        self.numbers = itertools.count()
        self.sent: set[str] = set()
        self.refused: set[str] = set()
        """Words that were sent while a tool of another user's run waited."""
        self.log: list[str] = []
        self.steps: list[str] = []
        self.given: list[str] = []
        """The words of the model in the last run."""
        self.answers: dict[str, str] = {}
        """The users of complete answers."""
        self.diary = Diary(folder, agent=Extractor(), episodes=True, durability="none")
        self.writer = MemoryWriter(self.diary)
        inject = choose.choice(["user", "instructions"])
        memory = DiaryCapability(self.diary, writer=self.writer, inject=inject)
        self.agent: Agent[Deps, Any] = Agent(
            FunctionModel(stream_function=self.stream),
            deps_type=Deps,
            output_type=[str, DeferredToolRequests],
            capabilities=[memory],
        )

        @self.agent.tool_plain
        def look() -> str:
            return "seen"

        @self.agent.tool_plain(requires_approval=True)
        def pay() -> str:
            return "paid"

        self.rooms = [
            Room(
                client,
                choose.sample(USERS, choose.choice([1, 1, 2, 3])),
                kept_by,
                Chat(f"room{number}"),
            )
            for number in range(2)
        ]

    async def stream(self, _messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[Any]:
        step = self.steps.pop(0) if self.steps else "answer"
        if step == "fail":
            raise ModelHTTPError(500, "scripted")
        if step == "silent":
            yield ""
            return
        if step == "think":
            yield {0: DeltaThinkingPart(content="Hm.")}
        self.given.append(f"yes{next(self.numbers)}")
        yield f"{self.given[-1]} "
        if step == "fail late":
            raise ModelHTTPError(500, "scripted")
        if step == "hang":
            await asyncio.Event().wait()
        yield "it is."
        if step not in {"answer", "think"}:
            for number, tool in enumerate(step.split("+"), 1):
                call = f"call{next(self.numbers)}"
                yield {number: DeltaToolCall(tool, "{}", tool_call_id=call)}

    def app(self, room: Room, user: str) -> Starlette:
        """Return the server for a request of a user."""

        async def answer(request: Request) -> Response:
            def done(result: Any) -> None:
                room.history = result.all_messages()

            options = {**room.client.options, **room.options(), "deps": Deps(user)}
            return await room.client.adapter.dispatch_request(
                request, agent=self.agent, on_complete=done, **options
            )

        return Starlette(routes=[Route("/", answer, methods=["POST"])])

    def said(self, room: Room, user: str, texts: int = 1) -> dict[str, Any]:
        """Return a new message of a user."""
        words = [f"I like {user}{next(self.numbers)}." for _ in range(texts)]
        has_file = self.choose.random() < 0.2
        return room.client.user(room.chat.new_id(), words, has_file=has_file)

    async def turn(self, room: Room) -> None:
        """Let a user of a room do something."""
        choose, user = self.choose, self.choose.choice(room.users)
        self.choose_tab(room)
        calls = room.client.open_calls(room.chat)
        if calls and choose.random() < 0.8:
            user = room.asker
            extra = room.client.reply(room.chat, calls, approves=choose.random() < 0.7)
            await self.send(room, user, "reply", extra=extra)
            return
        action = choose.choice(ACTIONS if room.kept_by == "client" else OF_SERVER)
        self.change(room, user, action)
        if room.chat.messages and room.chat.messages[-1]["role"] == "user":
            await self.send(room, user, action)

    def choose_tab(self, room: Room) -> None:
        """Open the chat in another tab, or go to this tab."""
        chat = room.chat
        if room.other_tab is None and self.choose.random() < 0.1:
            room.other_tab = Chat(chat.id, copy.deepcopy(chat.messages), chat.ids)
        elif room.other_tab is not None and self.choose.random() < 0.4:
            room.chat, room.other_tab = room.other_tab, chat

    def change(self, room: Room, user: str, action: str) -> None:
        """Change the messages of a client before they are sent."""
        choose, messages = self.choose, room.chat.messages
        of_users = [n for n, message in enumerate(messages) if message["role"] == "user"]
        place = choose.choice(of_users) if of_users else 0
        if action == "repeat" and of_users:
            del messages[of_users[-1] + 1 :]
        elif action == "regenerate" and of_users:
            del messages[place + 1 :]
        elif action == "edit" and of_users:
            edited = self.said(room, user)
            if choose.random() < 0.5:
                edited["id"] = messages[place]["id"]
            messages[place:] = [edited]
        elif action.startswith("delete") and of_users:
            # Either a message of a user, or the answer to it.
            following = next((n for n in of_users if n > place), len(messages))
            is_answer = choose.random() < 0.5
            del messages[place + 1 if is_answer else place : following if is_answer else place + 1]
            if action == "delete":
                messages.append(self.said(room, user))
        elif action == "say nothing":
            messages.append(room.client.user(room.chat.new_id(), [""], has_file=False))
        else:
            count = 2 if action == "say two" else 1
            texts = 2 if action == "two texts" else 1
            messages += [self.said(room, user, texts) for _ in range(count)]

    async def send(self, room: Room, user: str, action: str, *, extra: Any = None) -> None:
        """Send the messages of a client, and note what the run should record."""
        choose, chat = self.choose, room.chat
        self.steps, self.given = [*choose.choice(STEPS)], []
        if isinstance(room.client, AgUiClient) and choose.random() < 0.1:
            self.steps = [str(TOOL["name"])]
        stop = choose.choice([3, 4, 6]) if choose.random() < 0.3 else None
        if "hang" in self.steps:
            stop = 3
        shown = [(one["id"], one["role"], WORD.findall(json.dumps(one))) for one in chat.messages]
        self.log.append(
            f"{user} {chat.id} {type(room.client).__name__} {room.kept_by}: {action} {self.steps} {stop=} {shown}"
        )
        words = {word for _, role, found in shown if role == "user" for word in found}
        regenerate = "regenerate" in action or action == "repeat"
        await room.client.send(
            self.app(room, user), chat, regenerate=regenerate, stop_after=stop, extra=extra or {}
        )
        self.log.append(chat.error)
        if "stored conversation" in chat.error:  # the adapter refused the request
            await room.reload()
        elif "another user" in chat.error:  # docs: nothing is recorded
            self.refused |= words - self.sent
        elif "does not contain" not in chat.error:  # a tool result without its call
            self.sent |= words
        room.asker = user
        if not chat.error and stop is None:
            self.answers |= dict.fromkeys(self.given, user)

    def wrong(self) -> str:
        """Return how the stored episodes differ from what was said; "" if they do not."""
        found: Counter[str] = Counter()
        of_others: list[str] = []
        for user in USERS:
            for one in self.diary.user(user).episodes.list():
                words = WORD.findall(one.input)
                found.update([*words, *re.findall(r"yes\d+", one.output)])
                of_others += [f"{word} of {user}" for word in words if not word.startswith(user)]
        missing = [word for word in {*self.sent, *self.answers} - self.refused if not found[word]]
        twice = [word for word, count in found.items() if count > 1]
        wrong = f"missing {missing}, twice {twice}, given to others {of_others}"
        return wrong if missing or twice or of_others else ""


def play(folder: Path, client: Client, kept_by: str, seed: int, count: int) -> None:
    """Play a seed, and fail if the memory is wrong."""
    world = World(folder / f"{seed}", client, kept_by, seed)

    async def talk() -> None:
        for _ in range(count):
            await world.turn(world.choose.choice(world.rooms))

    with world.writer:
        asyncio.run(talk())
    gc.collect()  # here, because the warnings of later tests are errors
    wrong = world.wrong()
    assert not wrong, "\n".join([f"seed {seed}", *world.log, wrong])


def client_of(protocol: str) -> Client:
    """Return a client, if its protocol is installed."""
    if protocol == "vercel":
        return VercelClient(VercelAIAdapter)
    pytest.importorskip("ag_ui")
    return AgUiClient(pytest.importorskip("pydantic_ai.ui.ag_ui").AGUIAdapter)


pytestmark = [
    # An open tab is older than the history of the server.
    pytest.mark.filterwarnings("ignore:.*client-submitted tool result:UserWarning"),
    # The framework leaves a stopped stream to the garbage collector, which may come after the loop.
    pytest.mark.filterwarnings(
        "ignore:.*run_stream_native:pytest.PytestUnraisableExceptionWarning"
    ),
    pytest.mark.filterwarnings(
        "ignore:.*MemoryObjectReceiveStream:pytest.PytestUnraisableExceptionWarning"
    ),
]
of_all = pytest.mark.parametrize(
    ("protocol", "kept_by"),
    [*itertools.product(["vercel", "ag-ui"], ["client", "server", "store"])],
)


@of_all
def test_random_clients_that_send_chats_again_repeat_no_words(
    tmp_path: Path, protocol: str, kept_by: str
):
    play(tmp_path, client_of(protocol), kept_by, 0, 12)


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
@of_all
def test_100_random_clients_repeat_no_words(tmp_path: Path, protocol: str, kept_by: str):
    client = client_of(protocol)
    for seed in range(100):
        play(tmp_path, client, kept_by, seed, 15)
