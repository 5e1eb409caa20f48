"""Finds the last turn in a thread of messages, and its texts.

A turn contains all user messages since the last answer: consecutive messages, a message that arrives while a run
waits for an approval, and messages that an interrupted or failed run did not answer.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import partial
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

from tomldiary.agents.identity import field_of
from tomldiary.agents.options import place_of
from tomldiary.agents.verbs import VERBS
from tomldiary.entries.kinds.episodes import ToolStep
from tomldiary.errors import IdentifierError, cause_of
from tomldiary.logging import get_logger
from tomldiary.retrieval.render import without_memory
from tomldiary.runtime.lru import WhileUsed
from tomldiary.storage.protocol import LocalFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from tomldiary.diary import Diary

T = TypeVar("T")
_logger = get_logger(__name__)

OTHERS_TURN = "another user began this turn. Continue it as that user: name the user in the run."
SOURCE = "lc_source"
"""LangChain's key for user messages that no user wrote: summaries, memory, prompts of other models."""
_SOURCES = (SOURCE, "deepagents_notification")
"""The second key marks the reports of background tasks in deepagents."""
_NUDGE = "nemotron_"
"""The prefix of the names of messages that deepagents writes to steer Nemotron models; they have no key."""
_HANDOFF = "__is_handoff_back"
"""The mark of a message that langgraph-supervisor writes for a worker, such as "Transferring back to supervisor"."""
_BY = {
    "human": "user", "HumanMessageChunk": "user", "ai": "assistant", "AIMessageChunk": "assistant",
    "tool": "tool", "ToolMessageChunk": "tool",
}  # fmt: skip
_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "ai": "assistant"}
_TEXTS = ("text", "input_text", None)
"""The types of parts that are words; Bedrock's have none."""
_our_tools: set[str] = {*VERBS}


class Spoken(NamedTuple):
    """One message of a thread."""

    by: Literal["user", "assistant", "tool", "other"]
    """ "other" is an instruction, or a user message that no user wrote; see `SOURCE`."""
    text: str = ""
    is_answer: bool = False
    """Whether the message ended a turn: the assistant called no tool, or only with arguments that could not be parsed,
    or the tool's result was the answer."""
    id: str = ""
    """The id of the message in the thread; "" if it has none."""
    calls: tuple[tuple[str, str, object], ...] = ()
    """Id, name and arguments of each tool that the assistant called."""
    call: str = ""
    """The id of the call that a tool's result belongs to."""


def spoken(
    messages: Sequence[Any], ends_turn: Callable[[Sequence[Any], int], bool]
) -> Iterator[Spoken]:
    """Yield LangChain's messages, converted one by one, because a caller may need only the first of a long thread.

    Args:
        messages: A thread.
        ends_turn: Whether the tool result with a number in the thread is the answer of the turn.
    """
    for number, message in enumerate(messages):
        by: Any = _by(message)
        text, id_ = _unless_blank(str(message.text)), message.id or ""
        if by == "assistant":
            called = getattr(message, "tool_calls", ())
            is_unreadable = bool(getattr(message, "invalid_tool_calls", ()))
            is_answer = not called and (not is_unreadable or is_before_question(messages, number))
            calls = tuple((each["id"] or "", each["name"], each["args"]) for each in called)
            text = "" if message.response_metadata.get(_HANDOFF) else text
            if is_answer and not text:
                text = refusal(message)
            yield Spoken(by, text, is_answer, id_, calls)
        elif by == "tool":
            is_answer = ends_turn(messages, number)
            yield Spoken(by, text, is_answer, id_, call=message.tool_call_id)
        elif is_question(message):
            yield Spoken(by, _words(message.content), id=id_)
        else:
            yield Spoken("other", text, id=id_)


def is_question(message: Any) -> bool:
    """Return whether a user wrote a LangChain message: it is not marked as generated, and more than a rendered memory."""
    if _by(message) != "user" or is_generated(message.additional_kwargs, message.name):
        return False
    parts = _parts(message.content)
    return not parts or any(part is None or not _is_memory(part) for part in parts)


def is_generated(marks: Mapping[str, Any], name: str | None) -> bool:
    """Return whether the `additional_kwargs` or the name of a user message say that no user wrote it."""
    is_of_tool = any(mark.endswith("tool_call_id") for mark in marks)
    return is_of_tool or any(map(marks.get, _SOURCES)) or (name or "").startswith(_NUDGE)


def is_before_question(messages: Sequence[Any], number: int) -> bool:
    """Return whether a message that a user wrote follows message `number`."""
    return any(map(is_question, messages[number + 1 : number + 2]))


def _by(message: Any) -> str:
    """Return the role that wrote a message; a `ChatMessage` of LangChain names it."""
    return _BY.get(message.type) or _ROLES.get(getattr(message, "role", ""), "other")


def refusal(message: Any) -> str:
    """Return the words of a model that refused to answer, which providers keep apart from texts; else ""."""
    places = [message.additional_kwargs, *message.content]
    # LangChain finds the words of Anthropic and Google in the metadata of the message. It cannot read each part,
    # such as a search by OpenAI without an id.
    with suppress(Exception):
        places += message.content_blocks
    said = (field_of(each, "refusal") for each in places)
    return "\n".join(dict.fromkeys(each for each in said if each and isinstance(each, str)))


def _words(content: object) -> str:
    """Return the text of a user's message, with one line for each part, without rendered memory."""
    parts = (words_beside_memory(part) for part in _parts(content) if part)
    return "\n".join(filter(None, parts))


def words_beside_memory(text: str) -> str:
    """Return a text without the memory that a host rendered into it, and without the blank lines between both."""
    own = without_memory(text)
    return _unless_blank(text if own == text else own.strip("\n"))


def _is_memory(text: str) -> bool:
    return bool(text.strip()) and not words_beside_memory(text)


def _parts(content: object) -> list[str | None]:
    """Return the text of each part of a message; None for an image and other parts without words."""
    if isinstance(content, str):
        return [content]
    parts = (
        part if isinstance(part, str) else part.get("text") if part.get("type") in _TEXTS else None
        for part in cast("list[Any]", content)
    )
    return [part if isinstance(part, str) else None for part in parts]


def _unless_blank(text: str) -> str:
    """Return a text unchanged, as its first line may be indented code; "" if it has no words."""
    return text if text.strip() else ""


def turn_start(thread: Sequence[Spoken]) -> int | None:
    """Return the index of the first user message since the last answer; None if there is no user message.

    Answers after the last user message belong to the turn.
    """
    asked = [number for number, one in enumerate(thread) if one.by == "user"]
    if not asked:
        return None
    answers = [number for number in range(asked[-1]) if thread[number].is_answer]
    last_answer = answers[-1] if answers else -1
    return next(number for number in asked if number > last_answer)


def own_words(
    thread: Sequence[Spoken], unanswered: Sequence[int], is_others: Callable[[Spoken], bool]
) -> list[int]:
    """Return the numbers of the unanswered messages that the user of a run wrote; several users may share the thread.

    Raises:
        IdentifierError: Another user wrote the last of them.
    """
    own = [number for number in unanswered if not is_others(thread[number])]
    if own[-1:] != list(unanswered[-1:]):
        raise IdentifierError(OTHERS_TURN)
    if len(own) < len(unanswered):
        _logger.warning("unanswered messages of another user are not part of this turn")
    return own


def own_part(turn: Iterable[Spoken], others: Collection[str]) -> list[Spoken]:
    """Return a turn without the messages with the ids `others`, which other users wrote, and what followed these."""
    own: list[Spoken] = []
    is_own = True
    for one in turn:
        if one.by == "user":
            is_own = one.id not in others
        if is_own:
            own.append(one)
    return own


def last_words(thread: Iterable[Spoken]) -> str:
    """Return a digest of the last user message; it is unchanged as long as no user writes another one."""
    asked = [one for one in thread if one.by == "user"]
    return digest(*(text for one in asked[-1:] for text in (one.id, one.text)))


def exchange_of(turn: Sequence[Spoken], *, is_over: bool = True) -> tuple[str, str]:
    """Return the user's and the assistant's texts of a turn; a tool result that ends it is part of the answer.

    Results of tools that were called beside it may follow it.
    """
    said = [one.text for one in turn if one.by == "assistant"]
    if is_over and turn and turn[-1].by == "tool":
        results = [*takewhile(lambda one: one.by == "tool", reversed(turn))]
        said.append(next((one for one in results if one.is_answer), results[0]).text)
    return _joined(one.text for one in turn if one.by == "user"), _joined(said)


def earlier_exchanges(thread: Sequence[Spoken], start: int) -> list[tuple[str, str]]:
    """Return the exchanges before the turn that begins at `start`, oldest first."""
    begins: list[int] = []
    is_answered = True
    for number, one in enumerate(thread[:start]):
        if one.by == "user" and is_answered:
            begins.append(number)
            is_answered = False
        is_answered = is_answered or one.is_answer
    places = [0, *begins, start]  # the assistant may have begun the conversation
    exchanges = [exchange_of(thread[begin:end]) for begin, end in pairwise(places)]
    return exchanges if any(exchanges[0]) else exchanges[1:]


class ToolCall(NamedTuple):
    """A call of a tool; some models reuse its id in a later answer."""

    id: str
    name: str
    given: object
    """The arguments: JSON, or a value that is written as JSON."""


class ToolResult(NamedTuple):
    """The result of the last call with an id."""

    id: str
    text: str


def steps_of(turn: Iterable[Spoken]) -> tuple[ToolStep, ...]:
    """Return the tool calls of a turn; see `tool_steps`."""
    parts: list[ToolCall | ToolResult] = []
    for one in turn:
        parts += [ToolCall(*call) for call in one.calls]
        if one.by == "tool":
            parts.append(ToolResult(one.call, one.text))
    return tool_steps(with_results(parts))


def with_results(parts: Iterable[ToolCall | ToolResult]) -> list[tuple[ToolCall, str | None]]:
    """Return the calls in order, each with the text of its result, or None."""
    calls: list[ToolCall] = []
    results: dict[int, str] = {}
    last: dict[str, int] = {}
    for part in parts:
        if isinstance(part, ToolCall):
            last[part.id] = len(calls)
            calls.append(part)
        elif part.id in last:
            results[last[part.id]] = part.text
    return [(call, results.get(number)) for number, call in enumerate(calls)]


def tool_steps(calls: Iterable[tuple[ToolCall, str | None]]) -> tuple[ToolStep, ...]:
    """Return tool calls with their results, for the episode of a turn.

    Calls of a diary's tools are left out, and so is rendered memory in other results: both repeat entries, which may be
    forgotten later or belong to another memory.
    """
    steps: list[ToolStep] = []
    for (_, name, given), result in calls:
        if name not in _our_tools:
            as_json = partial(json.dumps, given, ensure_ascii=False, default=str)
            said = given if isinstance(given, str) else or_left_out("the input of a tool", as_json)
            steps.append(ToolStep(name, said or "", without_memory(result or "")))
    return tuple(steps)


def keep_out_of_steps(tools: Iterable[str]) -> None:
    """Register names of a diary's tools, whose calls `tool_steps` leaves out."""
    _our_tools.update(tools)


def digest(*parts: str) -> str:
    """Return a digest of 32 characters, which also depends on the boundaries between the texts."""
    known = hashlib.blake2b(digest_size=16)
    for part in parts:
        known.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
    return known.hexdigest()


def digested(diary: Diary, texts: T) -> T:
    """Return texts as they are stored, for a digest: one of redacted words could confirm a guess of them."""
    return texts if diary.redactor is None else diary.redactor.uncounted(texts)


_kept: WhileUsed[tuple[object, type[Any]], Any] = WhileUsed()


def of_memory(diary: Diary, kind: type[T]) -> T:
    """Return the instance of `kind` that all diaries with the same storage share. The first call creates it."""
    return _kept.setdefault((memory_place(diary), kind), kind())


def memory_place(diary: Diary) -> object:
    """Return a key that all diaries with the same storage have in common.

    For a folder this is its path as given: resolving it reads the disk, which would block the event loop.
    """
    backend = diary.engine.backend
    return backend.base_path if isinstance(backend, LocalFolder) else place_of(backend)


def or_left_out(what: str, make: Callable[[], str]) -> str | None:
    """Return the text that `make` returns; None, with a warning, if it fails. The turn keeps its other texts."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - the object is the host's
        _logger.warning("%s is left out of its turn: %s", what, cause_of(error))
        return None


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))
