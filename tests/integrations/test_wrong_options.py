"""An adapter refuses an option of a wrong type when it is made, not in the first run."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from datetime import timedelta
from math import inf, nan
from typing import Any, cast
from unittest.mock import MagicMock
from uuid import UUID

import pytest
from langchain_core.language_models import FakeListChatModel
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from tomldiary import (
    CompactionConfig,
    Constraint,
    ConversationsPrinter,
    DefaultPrefTable,
    Diary,
    InvalidValue,
    MemoryWriter,
    PreferencesPrinter,
    RetryPolicy,
)
from tomldiary.errors import IdentifierError, SchemaError
from tomldiary.storage import FirestoreBackend, LocalBackend, PostgresBackend, RedisBackend
from tomldiary_langchain import (
    ChatModelExtractor,
    DiaryByteStore,
    DiaryMiddleware,
    diary_tools,
)
from tomldiary_langgraph import DiaryStore, extract_node, recall_node, submit_node
from tomldiary_pydantic_ai import (
    AgentMemoryToolset,
    DiaryCapability,
    DiaryToolset,
    compactor_agent,
    extractor_agent,
)


async def async_id(*_: Any) -> str:
    return "alice"


class AsyncId:
    async def __call__(self, *_: Any) -> str:
        return "alice"


def made_submit_node(diary: Diary, **options: Any) -> Any:
    return submit_node(MemoryWriter(diary), **options)


def made_agent_memory(diary: Diary, **options: Any) -> Any:
    return AgentMemoryToolset(memory_dir=diary, **options)


WITH_SESSION = [
    DiaryMiddleware,
    diary_tools,
    extract_node,
    made_submit_node,
    DiaryToolset,
    DiaryCapability,
]
MAKERS = [*WITH_SESSION, recall_node, made_agent_memory]


NUMBER = (7, "expected text, found int")
# Each adapter calls a function with other arguments.
NO_ARGUMENT = (
    lambda: "alice",
    r"a call with \((state, runtime|config|ctx)\) fails, too many",
)


@pytest.mark.parametrize(
    ("make", "wrong", "message"),
    [
        *((make, *each) for make in MAKERS for each in (NUMBER, NO_ARGUMENT)),
        (DiaryMiddleware, " ", "is blank"),
        (DiaryMiddleware, async_id, "async function"),
        (DiaryMiddleware, AsyncId(), "async function"),
    ],
)
def test_an_id_is_text_or_a_plain_function(make: Any, wrong: Any, message: str) -> None:
    diary = Diary("memory:", agent="rules")
    for option in ("user_id", "session_id") if make in WITH_SESSION else ("user_id",):
        with pytest.raises(IdentifierError, match=f"{option}.*{message}"):
            make(diary, **{option: wrong})


def with_database(function: Any) -> Any:
    """Give a function an argument of the host, as decorators of applications do."""

    @functools.wraps(function)
    def called(*arguments: Any) -> Any:
        return function("database", *arguments)

    return called


class LateAnnotations:
    """A function whose annotations cannot be evaluated, as with TYPE_CHECKING on Python 3.14."""

    @property
    def __signature__(self) -> Any:
        raise NameError("Deps")

    def __call__(self, *_: Any) -> str:
        return "alice"


def with_keywords(*_: Any, strict: bool = True) -> str:
    return "alice"


FUNCTIONS: list[Any] = [
    with_database(lambda database, *given: "alice"),
    with_database(lambda database, given, *, strict: "alice"),
    LateAnnotations(),
    functools.partial(lambda database, *given: "alice", "database"),
    with_keywords,
    MagicMock(return_value="alice"),
]


@pytest.mark.parametrize(
    ("make", "function"),
    [
        *((make, FUNCTIONS[0]) for make in MAKERS),
        *((DiaryMiddleware, each) for each in FUNCTIONS[1:]),
    ],
)
def test_any_function_that_can_be_called_names_the_user(make: Any, function: Any) -> None:
    make(Diary("memory:", agent="rules"), user_id=function)
    DiaryStore("memory:", user_label=function)


@pytest.mark.parametrize("make", WITH_SESSION)
def test_a_session_that_no_file_can_store_is_refused(make: Any) -> None:
    with pytest.raises(IdentifierError, match=r"session_id: .*surrogate"):
        make(Diary("memory:", agent="rules"), session_id="s\ud800")


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (DiaryMiddleware, {"episodes": "no"}, "episodes: expected True or False"),
        (DiaryMiddleware, {"tools": 5}, "tools: expected a list of names"),
        (DiaryMiddleware, {"name": 5}, "name: expected text"),
        (diary_tools, {"descriptions": ["recall"]}, "descriptions: expected a table"),
        (diary_tools, {"descriptions": {"recall": 3}}, "descriptions.recall: expected text"),
        (diary_tools, {"names": ["recall"]}, "names: expected a table"),
        (diary_tools, {"names": {"recall": None}}, "names.recall: expected text"),
        (diary_tools, {"names": {"recall": " "}}, "names.recall: the name is blank"),
        (diary_tools, {"names": {"recall": "forget"}}, "names: two tools have the name 'forget'"),
        (diary_tools, {"descriptions": {"recall": 5}}, "descriptions.recall: expected text"),
        (extract_node, {"episodes": 1}, "episodes: expected True or False"),
        (extract_node, {"messages_key": None}, "messages_key: expected text"),
        (recall_node, {"messages_key": 5}, "messages_key: expected text"),
        (recall_node, {"state_key": None}, "state_key: expected text"),
        (recall_node, {"token_counter": 4}, "token_counter: expected a function"),
        (DiaryStore, {"index": 384}, "index: expected a table"),
        (
            DiaryStore,
            {"index": {"dims": 0, "embed": len}},
            "index.dims: expected a whole number of at least 1",
        ),
        (
            DiaryStore,
            {"index": {"dims": True, "embed": len}},
            "index.dims: expected a whole number",
        ),
        (DiaryStore, {"index": {"dims": 2, "embed": len, "fields": [5]}}, "index.fields: expected"),
        (DiaryStore, {"index": {"dims": 2, "embed": None}}, "index.embed: expected Embeddings"),
        (DiaryStore, {"index": {"dims": 2, "embed": object()}}, "index.embed: expected Embeddings"),
        (DiaryStore, {"index": {"dims": 2, "embed": UUID}}, "index.embed: expected Embeddings"),
        (DiaryToolset, {"token_counter": 4}, "token_counter: expected a function"),
        (DiaryMiddleware, {"token_counter": 4}, "token_counter: expected a function"),
        (DiaryStore, {"user_label": async_id}, "user_label: an async function"),
        (DiaryStore, {"user_label": lambda _: "a"}, "a call with .namespace, key. fails, too many"),
        (recall_node, {"max_tokens": 0}, "max_tokens: expected a whole number of at least 1"),
        (recall_node, {"token_counter": dict.get}, "a call with .text. fails, missing.*Give it"),
        (recall_node, {"token_counter": async_id}, "token_counter: an async function"),
        (DiaryCapability, {"token_counter": AsyncId()}, "token_counter: an async function"),
        (DiaryToolset, {"descriptions": ["recall"]}, "descriptions: expected a table"),
        (DiaryToolset, {"descriptions": {"recall": 3}}, "descriptions.recall: expected text"),
        (DiaryToolset, {"id": 5}, "id: expected text"),
        (DiaryToolset, {"guidance": 5}, "guidance: expected text"),
        (DiaryCapability, {"heading": None}, "heading: expected text"),
        (DiaryCapability, {"guidance": ["be kind"]}, "guidance: expected text"),
        (DiaryCapability, {"id": 5}, "id: expected text"),
        (made_agent_memory, {"agent_name": None}, "agent_name: expected text"),
        (made_agent_memory, {"id": 5}, "id: expected text"),
        (made_agent_memory, {"pin_marker": None}, "pin_marker: expected text"),
        (made_agent_memory, {"max_tokens": "9"}, "max_tokens: expected a whole number"),
        (made_agent_memory, {"descriptions": 5}, "descriptions: expected a table"),
        (DiaryCapability, {"record": "no"}, "record: expected True or False"),
        (DiaryCapability, {"episodes": 0}, "episodes: expected True or False"),
    ],
)
def test_an_option_of_a_wrong_type_is_refused(make: Any, options: Any, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        make(Diary("memory:", agent="rules"), **options)


MADE: dict[Any, dict[str, Any]] = {
    Diary: {"backend": "memory:"},
    MemoryWriter: {"diary": Diary("memory:", agent="rules")},
    LocalBackend: {"path": "memories"},
    PostgresBackend: {"url": "postgresql://localhost/memories"},
    RedisBackend: {"url": "redis://localhost/0"},
    FirestoreBackend: {"project_id": "memories"},
    RetryPolicy: {},
    CompactionConfig: {},
    Constraint: {},
    PreferencesPrinter: {},
    ConversationsPrinter: {},
    recall_node: {"diary": "memory:"},
    DiaryMiddleware: {"diary": "memory:"},
    ChatModelExtractor: {"model": FakeListChatModel(responses=["ok"])},
    DiaryToolset: {"diary": "memory:"},
    DiaryCapability: {"diary": "memory:"},
    AgentMemoryToolset: {"memory_dir": Diary("memory:", agent="rules")},
    extractor_agent: {"pref_table_cls": DefaultPrefTable},
}
"""The public constructors with a number among their options, and what they need besides."""
TRIGGERS = ("total_char_threshold", "segment_char_threshold", "user_turn_interval")
MEANT: dict[Any, tuple[str, ...]] = {
    0: (
        "context_turns", "similarity", "lock_timeout", "watch", "first_pause", "longest_pause",
        "cooldown_seconds", "max_lines", "AgentMemoryToolset.max_tokens", "fallback_retries",
        "indent_size", "max_width",
        *TRIGGERS,
    ),
    -1: TRIGGERS,
}  # fmt: skip
"""The numbers that have a meaning, by the options that document it."""


@pytest.mark.parametrize(
    ("make", "option"),
    [
        pytest.param(make, option.name, id=f"{make.__name__}.{option.name}")
        for make in MADE
        for option in inspect.signature(make).parameters.values()
        if re.match(r"(int|float|timedelta)\b", str(option.annotation))
    ],
)
@pytest.mark.parametrize("wrong", [0, -1, nan, inf, -inf, True, "soon", "", timedelta(0)])
def test_a_number_without_a_meaning_is_refused_by_each_constructor(
    make: Any, option: str, wrong: Any
) -> None:
    if {option, f"{make.__name__}.{option}"} & {*MEANT.get(wrong, ())}:
        make(**MADE[make], **{option: wrong})
    else:
        with pytest.raises((InvalidValue, SchemaError), match=option):
            make(**MADE[make], **{option: wrong})


@pytest.mark.parametrize(
    "make", [DiaryMiddleware, DiaryCapability, lambda _, writer: submit_node(writer)]
)
def test_a_class_is_no_writer(make: Any) -> None:
    with pytest.raises(InvalidValue, match=r"MemoryWriter is a class.*MemoryWriter\(…\)"):
        make(Diary("memory:", agent="rules"), writer=MemoryWriter)


def test_tools_may_exchange_their_names() -> None:
    names = {"recall": "forget", "forget": "recall"}
    made = diary_tools(Diary("memory:"), tools=["recall", "forget"], names=names)
    assert [tool.name for tool in made] == ["forget", "recall"]


@pytest.mark.parametrize("rounds", [0, True, "3", 2.5])
def test_the_limit_of_an_extractor_is_a_whole_number(rounds: Any) -> None:
    with pytest.raises(InvalidValue, match="max_rounds: expected a whole number of at least 1"):
        ChatModelExtractor(FakeListChatModel(responses=["ok"]), max_rounds=rounds)


@pytest.mark.parametrize("prompt", [5, b"text", ["a text"], async_id])
def test_a_prompt_is_a_text_and_never_the_repr_of_an_object(prompt: Any) -> None:
    for make in (
        lambda: extractor_agent(DefaultPrefTable, prompt_template=prompt),
        lambda: compactor_agent(prompt_template=prompt),
    ):
        with pytest.raises(InvalidValue, match="prompt_template: expected a text, a path, or"):
            make()


def test_an_update_takes_a_function_and_no_value() -> None:
    value: Any = {"n": 1}
    with pytest.raises(InvalidValue, match=r"fn: expected a function of the old value, found dict"):
        DiaryStore("memory:").update(("ann", "counts"), "turns", value)


def test_an_update_takes_no_async_function() -> None:
    async def count(old: Any) -> Any:
        return {"n": 1, "old": old}

    store = DiaryStore("memory:")
    with pytest.raises(InvalidValue, match="fn: an async function cannot be used"):
        store.update(("ann", "counts"), "turns", cast("Any", count))
    with pytest.raises(InvalidValue, match="fn: an async function cannot be used"):
        asyncio.run(store.aupdate(("ann", "counts"), "turns", cast("Any", count)))


def test_no_item_is_put_under_a_missing_key() -> None:
    store, missing = DiaryStore("memory:"), cast("Any", None)
    for put in (
        lambda: store.put(("ann", "trips"), missing, {"n": 1}),
        lambda: asyncio.run(store.aput(("ann", "trips"), missing, {"n": 1})),
        lambda: store.update(("ann", "trips"), missing, lambda _: {"n": 1}),
    ):
        with pytest.raises(InvalidValue, match="key: expected text as a key, found NoneType"):
            put()
    store.put(("ann", "trips"), cast("Any", UUID(int=1)), {"n": 1})
    assert [item.key for item in store.search(("ann", "trips"))] == [str(UUID(int=1))]


def test_a_single_key_of_bytes_is_not_read_letter_by_letter() -> None:
    store = DiaryByteStore("memory:")
    store.mset([("a", b"1"), ("ab", b"2")])
    assert store.mget("ab") == [b"2"]
    store.mdelete("ab")
    assert [*store.yield_keys()] == ["a"]
    with pytest.raises(InvalidValue, match="keys: expected a list of names, found None"):
        store.mdelete(cast("Any", None))


@pytest.mark.parametrize(
    "listed", [{"capabilities": [DiaryCapability]}, {"toolsets": [DiaryToolset]}]
)
def test_a_class_in_place_of_its_instance_is_named(listed: dict[str, Any]) -> None:
    agent = Agent(TestModel(), **listed)
    with pytest.raises(InvalidValue, match=r"found RunContext\. List an instance instead of the"):
        asyncio.run(agent.run("Hello."))
