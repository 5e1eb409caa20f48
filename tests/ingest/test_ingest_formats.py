"""Chat logs of every format become the same turns, and nothing is left out silently."""

from __future__ import annotations

import asyncio
import json
import locale
import os
import sys
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import pytest

import programs
from tomldiary import Diary
from tomldiary.errors import InvalidValue, UnsupportedFormat
from tomldiary.evaluation import load_questions
from tomldiary.importers import carry_over
from tomldiary.ingest import KNOWN_FORMATS, read_turns

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

CHAT = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "I eat no nuts."},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]},
    {"role": "tool", "tool_call_id": "1", "content": "saved"},
    {"role": "assistant", "content": "Noted."},
    {"role": "user", "content": "And I live"},
    {"role": "user", "content": [{"type": "text", "text": "in Graz."}]},
    {"role": "assistant", "content": "A fine town."},
    {"role": "user", "content": "Bye"},
]
SAID = [
    ("I eat no nuts.", "Noted."),
    ("And I live\nin Graz.", "A fine town."),
    ("Bye", ""),
]


def write(folder, value, name="chat.json"):
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def json_lines(values):
    return "".join(json.dumps(value) + "\n" for value in values)


def said(log):
    return [(turn.user_msg, turn.assistant_msg) for turn in log.turns]


def simple(question, answer="ok"):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


# OpenAI


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(json.dumps(CHAT), id="array"),
        pytest.param(json.dumps(CHAT, indent=2), id="indented"),
        pytest.param(json.dumps({"messages": CHAT}), id="object"),
        pytest.param(json.dumps([CHAT]), id="array of arrays"),
        pytest.param(json_lines(CHAT), id="one message a line"),
        pytest.param(json_lines([{"messages": CHAT}]), id="one conversation a line"),
        pytest.param(json_lines(CHAT).replace("\n", "\r\n\r\n"), id="blank lines and CRLF"),
        pytest.param("\ufeff" + json.dumps(CHAT), id="byte order mark"),
    ],
)
def test_every_layout_of_an_openai_log_gives_the_same_turns(tmp_path, text):
    log = read_turns(write(tmp_path, text))
    assert log.format == "openai"
    assert said(log) == SAID
    assert [turn.session_id for turn in log.turns] == ["chat"] * 3
    assert [turn.position for turn in log.turns] == ["openai/0/1", "openai/0/5", "openai/0/8"]


def test_utf16_of_windows_shells_is_read(tmp_path):
    path = tmp_path / "chat.json"
    path.write_bytes(json.dumps(CHAT).encode("utf-16"))
    assert said(read_turns(path)) == SAID


def test_a_line_separator_inside_a_string_does_not_end_the_line(tmp_path):
    lines = "".join(json.dumps(m, ensure_ascii=False) + "\n" for m in simple("a\u2028b", "c\x85d"))
    assert said(read_turns(write(tmp_path, lines))) == [("a\u2028b", "c\x85d")]


def test_omitted_content_is_reported_and_counted(tmp_path):
    messages = [
        {"role": "assistant", "content": "Hello!"},
        *CHAT,
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "user", "content": 7},
        {"role": "user", "content": [{"type": "widget"}]},
        {"role": "narrator", "content": "Night falls."},
        "stray",
    ]
    assert read_turns(write(tmp_path, messages)).skipped == [
        "Left out 1 system message.",
        "Left out 1 tool message.",
        "Left out 1 image_url part.",
        "Left out 1 content of an unknown type.",
        "Left out 1 content part without text.",
        "Left out 1 message with an unknown role.",
        "Left out 1 record without a message of the format openai.",
        "Left out 1 assistant message without a user message before it.",
        "Left out 1 assistant message with only tool calls.",
        "Left out 3 user messages without text.",
    ]


def test_people_who_are_read_as_one_user_are_named(tmp_path):
    names = ["ann", "bob", "ann"]
    messages = [{"role": "user", "name": name, "content": "I love tea."} for name in names]
    [note] = read_turns(write(tmp_path, messages)).skipped
    assert "read as one user: ann, bob." in note
    assert read_turns(write(tmp_path, messages[::2])).skipped == []


def test_the_reply_to_an_image_is_not_paired_with_earlier_messages(tmp_path):
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    log = read_turns(
        write(tmp_path, [*simple("Hi", "Hello"), image, {"role": "assistant", "content": "A cat"}])
    )
    assert said(log) == [("Hi", "Hello")]
    assert "Left out 1 assistant message without a user message before it." in log.skipped


def test_items_of_the_responses_api_are_read(tmp_path):
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "name": "f", "arguments": "{}"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello"}],
        },
    ]
    log = read_turns(write(tmp_path, items))
    assert said(log) == [("Hi", "Hello")]
    assert log.skipped == ["Left out 2 tool or reasoning items."]


def test_a_refusal_is_an_answer(tmp_path):
    messages = [
        {"role": "user", "content": "Do it"},
        {"role": "assistant", "content": None, "refusal": "I cannot."},
    ]
    assert said(read_turns(write(tmp_path, messages))) == [("Do it", "I cannot.")]
    messages[1] = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]}
    assert said(read_turns(write(tmp_path, messages))) == [("Do it", "I cannot.")]


def test_parts_may_be_plain_texts(tmp_path):
    messages = [
        {"role": "user", "content": ["Hi", {"type": "text", "text": "there"}]},
        {"role": "assistant", "content": "Hello"},
    ]
    assert said(read_turns(write(tmp_path, messages))) == [("Hi\nthere", "Hello")]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("create_time", NOON.timestamp()),
        ("created", int(NOON.timestamp() * 1000)),
        ("timestamp", "2026-03-01T12:00:00Z"),
        ("timestamp", "2026-03-01T12:00:00"),
        ("created_at", "2026-03-01T13:00:00+01:00"),
    ],
)
@pytest.mark.parametrize("of_conversation", [False, True])
def test_times_of_every_notation_are_aware(tmp_path, key, value, of_conversation):
    messages = simple("Hi")
    envelope = {"messages": messages}
    (envelope if of_conversation else messages[0])[key] = value
    (turn,) = read_turns(write(tmp_path, envelope)).turns
    assert turn.when == NOON
    assert turn.when.tzinfo is UTC


@pytest.mark.parametrize("value", [True, "soon", 1e400, -5, 10**40, "0001-01-01T00:00:00+14:00"])
def test_an_invalid_time_is_ignored(tmp_path, value):
    messages = simple("Hi")
    messages[0]["create_time"] = value
    assert read_turns(write(tmp_path, messages)).turns[0].when is None


def test_conversations_get_distinct_session_ids_and_positions(tmp_path):
    conversations = [
        {"messages": simple("a")},
        {"id": "x", "messages": simple("b")},
        {"id": "x", "messages": simple("c")},
        simple("d"),
        {"session_id": "chat-2", "messages": simple("e")},
        {"id": 0, "messages": simple("f")},
    ]
    array = read_turns(write(tmp_path, conversations))
    lines = read_turns(write(tmp_path, json_lines(conversations)))
    assert [turn.session_id for turn in array.turns] == [
        "chat",
        "x",
        "x-2",
        "chat-2",
        "chat-2-2",
        "0",
    ]
    assert len({turn.position for turn in array.turns}) == 6
    assert array.turns == lines.turns


def test_messages_are_grouped_by_their_session(tmp_path):
    first, second = simple("a", "A"), simple("b", "B")
    for message in first:
        message["session_id"] = "s1"
    for message in second:
        message["session_id"] = "s2"
    log = read_turns(write(tmp_path, json_lines([first[0], second[0], first[1], second[1]])))
    assert said(log) == [("a", "A"), ("b", "B")]
    assert [turn.session_id for turn in log.turns] == ["s1", "s2"]


def test_messages_before_the_first_session_id_belong_to_it(tmp_path):
    messages = [*simple("a", "A"), *simple("b", "B")]
    messages[1]["session_id"] = "s1"
    log = read_turns(write(tmp_path, messages))
    assert said(log) == [("a", "A"), ("b", "B")]
    assert [turn.session_id for turn in log.turns] == ["s1", "s1"]


def test_appending_to_a_log_keeps_earlier_turns_and_positions(tmp_path):
    messages = [message for n in range(4) for message in simple(f"q{n}", f"a{n}")]
    logs = [
        read_turns(write(tmp_path, json_lines(messages[:count])))
        for count in range(1, len(messages) + 1)
    ]
    whole = logs[-1].turns
    for log in logs:
        complete = [turn for turn in log.turns if turn.assistant_msg]
        assert complete == whole[: len(complete)]
        assert [t.position for t in log.turns] == [t.position for t in whole[: len(log.turns)]]


# LangChain


def langchain_messages():
    messages = pytest.importorskip("langchain_core.messages")
    return [
        messages.SystemMessage("Be kind."),
        messages.HumanMessage("I eat no nuts.", id="m1"),
        messages.AIMessage("", tool_calls=[{"name": "save", "args": {}, "id": "1"}]),
        messages.ToolMessage("saved", tool_call_id="1"),
        messages.AIMessage([{"type": "text", "text": "Not"}, {"type": "text", "text": "ed."}]),
        messages.HumanMessageChunk("And I live"),
        messages.ChatMessage("in Graz.", role="user"),
        messages.AIMessageChunk("A fine town."),
        messages.HumanMessage("Bye"),
    ]


def langchain_dump(shape):
    messages = langchain_messages()
    if shape == "messages_to_dict":
        from langchain_core.messages import messages_to_dict  # noqa: PLC0415

        return json.dumps(messages_to_dict(messages))
    if shape == "dumps":
        from langchain_core.load import dumps  # noqa: PLC0415

        return dumps(messages)
    if shape == "dumps of a state":
        from langchain_core.load import dumps  # noqa: PLC0415

        return dumps({"messages": messages})
    if shape == "dumpd, one a line":
        from langchain_core.load import dumpd  # noqa: PLC0415

        return json_lines([dumpd(message) for message in messages])
    return json.dumps([message.model_dump() for message in messages])


@pytest.mark.parametrize(
    "shape",
    ["messages_to_dict", "dumps", "dumps of a state", "dumpd, one a line", "model_dump"],
)
def test_every_shape_of_a_langchain_dump_gives_the_same_turns(tmp_path, shape):
    log = read_turns(write(tmp_path, langchain_dump(shape)))
    assert log.format == "langchain"
    assert said(log) == SAID
    assert [turn.position.removeprefix("langchain/0/") for turn in log.turns] == ["1", "5", "8"]
    assert log.skipped == [
        "Left out 1 system message.",
        "Left out 1 tool message.",
        "Left out 1 assistant message with only tool calls.",
    ]


def test_a_generated_message_of_a_langchain_dump_is_not_the_users(tmp_path):
    messages = pytest.importorskip("langchain_core.messages")
    summary = messages.HumanMessage(
        "I love tea, says the summary.", additional_kwargs={"lc_source": "summarization"}
    )
    dump = [one.model_dump() for one in (summary, messages.HumanMessage("I eat no nuts."))]
    log = read_turns(write(tmp_path, dump))
    assert said(log) == [("I eat no nuts.", "")]
    assert log.skipped == ["Left out 1 generated message."]


def test_a_langchain_dump_is_read_as_data_without_loading_classes(tmp_path):
    message = {
        "lc": 1,
        "type": "constructor",
        "id": ["no_such_package", "evil", "HumanMessage"],
        "kwargs": {"content": "Hi"},
    }
    assert said(read_turns(write(tmp_path, [message]))) == [("Hi", "")]
    assert "no_such_package" not in sys.modules


def test_reading_imports_no_framework(tmp_path):
    path = write(tmp_path, CHAT)
    script = (
        "import sys; from tomldiary.ingest import read_turns; read_turns(sys.argv[1]); "
        "sys.exit(any(name.split('.')[0] in ('langchain_core', 'pydantic_ai', 'openai') "
        "for name in sys.modules))"
    )
    assert programs.run("-c", script, path).returncode == 0


# pydantic-ai


def pydantic_ai_dump(conversation_id=None):
    ai = pytest.importorskip("pydantic_ai.messages")
    picture = ai.ImageUrl("https://example.org/cat.png")
    history = [
        ai.ModelRequest(
            parts=[
                ai.SystemPromptPart("Be kind."),
                ai.UserPromptPart("I eat no nuts.", timestamp=NOON),
            ],
            conversation_id=conversation_id,
        ),
        ai.ModelResponse(
            parts=[ai.ThinkingPart("hm"), ai.ToolCallPart("save", {"x": 1}, tool_call_id="1")],
            conversation_id=conversation_id,
        ),
        ai.ModelRequest(parts=[ai.ToolReturnPart("save", "saved", tool_call_id="1")]),
        ai.ModelResponse(parts=[ai.TextPart("Noted.")], conversation_id=conversation_id),
        ai.ModelRequest(
            parts=[ai.UserPromptPart(["And I live", picture, ai.TextContent("in Graz.")])]
        ),
        ai.ModelResponse(parts=[ai.TextPart("A fine town.")], timestamp=NOON),
        ai.ModelRequest(parts=[ai.UserPromptPart("Bye")]),
    ]
    return ai.ModelMessagesTypeAdapter.dump_json(history).decode()


def test_a_pydantic_ai_history_gives_its_turns_with_their_times(tmp_path):
    log = read_turns(write(tmp_path, pydantic_ai_dump()))
    assert log.format == "pydantic-ai"
    assert said(log) == SAID
    assert log.turns[0].when == NOON
    assert all(turn.when is not None for turn in log.turns)
    assert [turn.position for turn in log.turns] == [f"pydantic-ai/0/{n}" for n in (0, 4, 6)]
    assert log.skipped == [
        "Left out 1 system-prompt part.",
        "Left out 1 thinking part.",
        "Left out 1 tool-call part.",
        "Left out 1 tool-return part.",
        "Left out 1 prompt part without text.",
        "Left out 1 assistant message with only tool calls.",
    ]


def test_what_was_spoken_to_a_realtime_model_is_read_from_its_transcript(tmp_path):
    ai = pytest.importorskip("pydantic_ai.messages")
    if not hasattr(ai, "SpeechPart"):
        pytest.skip("this release of pydantic-ai has no realtime sessions")
    spoken = [("user", "I eat no nuts."), ("assistant", "Noted."), ("user", None)]
    parts = [ai.SpeechPart(speaker=who, transcript=text) for who, text in spoken]
    history = [
        ai.ModelRequest(parts=[parts[0]]),
        ai.ModelResponse(parts=[parts[1]]),
        ai.ModelRequest(parts=[parts[2]]),
    ]
    log = read_turns(write(tmp_path, ai.ModelMessagesTypeAdapter.dump_json(history).decode()))
    assert said(log) == [("I eat no nuts.", "Noted.")]
    assert log.skipped == ["Left out 1 speech part."]


def test_a_pydantic_ai_conversation_id_is_the_session(tmp_path):
    log = read_turns(write(tmp_path, pydantic_ai_dump("talk-7")))
    assert said(log) == SAID
    assert {turn.session_id for turn in log.turns} == {"talk-7"}


def test_what_a_pydantic_ai_history_has_beside_texts_is_counted(tmp_path):
    def message(kind, *parts):
        return {
            "kind": kind,
            "parts": [{"part_kind": name, "content": each} for name, each in parts],
        }

    asked = message("request", ("user-prompt", "Hi"), ("user-prompt", {"a": 1}), ("omen", "x"))
    log = read_turns(write(tmp_path, [asked, message("response", ("text", "Hello"))]))
    assert said(log) == [("Hi", "Hello")]
    assert log.skipped == ["Left out 1 prompt without text.", "Left out 1 part of an unknown kind."]


def test_the_history_of_a_real_agent_run_is_read(tmp_path):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.test")
    agent = pydantic_ai.Agent(models.TestModel(custom_output_text="Hello, Ada."))
    dump = asyncio.run(agent.run("I am Ada.")).all_messages_json()
    log = read_turns(write(tmp_path, dump.decode()))
    assert said(log) == [("I am Ada.", "Hello, Ada.")]


def test_memory_and_texts_of_tools_in_the_history_of_an_agent_are_not_the_users(tmp_path):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    models = pytest.importorskip("pydantic_ai.models.test")
    from tomldiary_pydantic_ai import DiaryCapability  # noqa: PLC0415 - needs the framework

    diary = Diary("memory:", agent="rules")
    diary.user("ada").upsert_preference("likes", "tea")
    memory = DiaryCapability(diary, "ada", record=False)
    model = models.TestModel(call_tools=["look"], custom_output_text="Hello, Ada.")
    agent = pydantic_ai.Agent(model, capabilities=[memory])

    @agent.tool_plain
    def look():
        return pydantic_ai.ToolReturn("seen", content="I am a page.")

    dump = asyncio.run(agent.run("I am Ada.")).all_messages_json()
    log = read_turns(write(tmp_path, dump.decode()))
    assert said(log) == [("I am Ada.", "Hello, Ada.")]
    assert {"Left out 1 marked text.", "Left out 1 user-prompt part of a tool."} < set(log.skipped)


# LoCoMo


def sample(sample_id="conv-1", **sessions):
    return {
        "sample_id": sample_id,
        "conversation": {"speaker_a": "Ann", "speaker_b": "Bob", **sessions},
        "qa": [],
    }


def lines(*pairs):
    return [{"speaker": name, "dia_id": "D", "text": text} for name, text in pairs]


TALK = sample(
    session_10=lines(("Ann", "ten")),
    session_2=lines(
        ("Bob", "Hey!"), ("Ann", "Hi"), ("Ann", "there"), ("Bob", "How"), ("Bob", "so?")
    ),
    session_2_date_time="12:05 am on 1 February, 2023",
    session_3_date_time="1:00 pm on 2 February, 2023",
)


@pytest.mark.parametrize("value", [TALK, [TALK]], ids=["object", "list"])
def test_in_locomo_the_first_speaker_is_the_user(tmp_path, value):
    log = read_turns(write(tmp_path, value))
    assert log.format == "locomo"
    assert [(t.session_id, t.user_msg, t.assistant_msg, t.position, t.when) for t in log.turns] == [
        (
            "conv-1-session_2",
            "Hi\nthere",
            "How\nso?",
            "locomo/conv-1/session_2/1",
            datetime(2023, 2, 1, 0, 5, tzinfo=UTC),
        ),
        ("conv-1-session_10", "ten", "", "locomo/conv-1/session_10/0", None),
    ]
    assert log.skipped == [
        "Left out 1 opening message of Bob in conv-1, before the first message of Ann in the session."
    ]


@pytest.mark.parametrize("speaker", ["Bob", "bob", "speaker_b"])
def test_in_locomo_the_other_speaker_can_be_the_user(tmp_path, speaker):
    log = read_turns(write(tmp_path, TALK), speaker=speaker)
    assert said(log) == [("Hey!", "Hi\nthere"), ("How\nso?", "")]


def test_an_unknown_locomo_speaker_is_refused_with_the_names(tmp_path):
    with pytest.raises(InvalidValue, match=r"'Eve'.*Ann, Bob"):
        read_turns(write(tmp_path, TALK), speaker="Eve")


def test_locomo_samples_without_the_speaker_are_reported(tmp_path):
    other = sample("conv-2", speaker_a="Cy", session_1=lines(("Cy", "Yo")))
    log = read_turns(write(tmp_path, [TALK, other]), speaker="Ann")
    assert {turn.session_id.split("-session")[0] for turn in log.turns} == {"conv-1"}
    assert "Left out 1 conversation without Ann." in log.skipped


def test_what_is_no_talk_of_two_speakers_is_counted(tmp_path):
    talk = sample(session_1=lines(("Ann", "Hi"), ("Eve", "Psst"), ("Bob", "Hey")))
    no_session = {"conversation": {"speaker_a": "Ann", "speaker_b": "Bob"}}
    log = read_turns(write(tmp_path, [talk, {"qa": []}, no_session]))
    assert said(log) == [("Hi", "Hey")]
    assert log.skipped == [
        "Left out 1 message in conv-1 by neither speaker.",
        "Left out 2 records without a LoCoMo sample.",
    ]


def test_locomo_samples_of_one_id_get_distinct_sessions(tmp_path):
    one = sample(session_1=lines(("Ann", "Hi")))
    log = read_turns(write(tmp_path, [one, one]))
    assert [turn.session_id for turn in log.turns] == ["conv-1-session_1", "conv-1-2-session_1"]
    assert len({turn.position for turn in log.turns}) == 2


def test_a_locomo_caption_follows_in_brackets(tmp_path):
    talk = lines(("Ann", "Look!"))
    talk[0]["blip_caption"] = "a photo of a cat"
    log = read_turns(write(tmp_path, sample(session_1=talk)))
    assert log.turns[0].user_msg == "Look! [photo: a photo of a cat]"


@pytest.mark.parametrize(
    ("given", "day", "hour"),
    [("1:56 pm on 8 May, 2023", 8, 13), ("1:56 A.M. on 9 may 2023", 9, 1), ("0:56am on 7 May, 2023", 7, 0)],
)  # fmt: skip
def test_a_locomo_time_has_an_english_month_in_all_locales(tmp_path, given, day, hour):
    talk = sample(session_1=lines(("Ann", "Hi")), session_1_date_time=given)
    english = locale.setlocale(locale.LC_TIME)
    try:
        with suppress(locale.Error):  # it is installed on some machines
            locale.setlocale(locale.LC_TIME, "de_DE.UTF-8")
        log = read_turns(write(tmp_path, talk))
    finally:
        locale.setlocale(locale.LC_TIME, english)
    assert log.turns[0].when == datetime(2023, 5, day, hour, 56, tzinfo=UTC)
    assert log.skipped == []


@pytest.mark.parametrize("given", ["1:00 pm on 31 June, 2023", "13:00 pm on 3 June, 2023"])
def test_an_invalid_locomo_date_is_reported(tmp_path, given):
    talk = sample(session_1=lines(("Ann", "Hi")), session_1_date_time=given)
    log = read_turns(write(tmp_path, talk))
    assert log.turns[0].when is None
    assert log.skipped == ["Left out 1 session time without a date."]


def test_a_speaker_is_refused_if_the_format_names_the_user(tmp_path):
    with pytest.raises(InvalidValue, match="Leave speaker out"):
        read_turns(write(tmp_path, CHAT), speaker="Ann")


def test_each_user_message_of_real_locomo_files_is_in_one_turn(tmp_path):
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(os.environ.get("TOMLDIARY_BENCH_DATA") or beside) / "locomo" / "locomo-dev.json"
    if not path.is_file():
        pytest.skip("no LoCoMo file: set TOMLDIARY_BENCH_DATA to the folder that holds locomo/")
    for record in json.loads(path.read_text(encoding="utf-8")):
        check_conversation(write(tmp_path, [record], "one.json"), record)


def check_conversation(path, record):
    log = read_turns(path)
    expected, opening, partner_lines = Counter(), 0, 0
    talk = record["conversation"]
    for key, messages in talk.items():
        if not isinstance(messages, list):
            continue
        session = f"{record['sample_id']}-{key}"
        spoken = False
        for message in messages:
            caption = message.get("blip_caption", "").strip()
            text = f"{message['text']} [photo: {caption}]".lstrip() if caption else message["text"]
            if message["speaker"] == talk["speaker_a"]:
                spoken = True
                expected.update((session, line) for line in text.split("\n"))
            elif spoken:
                partner_lines += text.count("\n") + 1
            else:
                opening += 1
    found = Counter((t.session_id, line) for t in log.turns for line in t.user_msg.split("\n"))
    assert found == expected
    assert (
        sum(t.assistant_msg.count("\n") + 1 for t in log.turns if t.assistant_msg) == partner_lines
    )
    assert sum(int(s.split()[2]) for s in log.skipped) == opening
    assert len({turn.position for turn in log.turns}) == len(log.turns)
    assert all(turn.when is not None and turn.when.tzinfo is not None for turn in log.turns)


# Detection, determinism, errors


@pytest.mark.parametrize("name", ["chat.toml", "locomo.jsonl", "langchain"])
def test_the_content_decides_the_format_and_not_the_name(tmp_path, name):
    assert read_turns(write(tmp_path, CHAT, name)).format == "openai"


def test_two_reads_give_equal_logs(tmp_path):
    path = write(tmp_path, CHAT)
    assert read_turns(path) == read_turns(str(path))


@pytest.mark.parametrize("name", ["openai", "OpenAI", "auto"])
def test_a_format_can_be_named(tmp_path, name):
    assert said(read_turns(write(tmp_path, CHAT), format=name)) == SAID


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(UnsupportedFormat) as caught:
        read_turns(write(tmp_path, CHAT), format="sharegpt")
    assert "'sharegpt'" in str(caught.value)
    assert all(name in str(caught.value) for name in KNOWN_FORMATS)


def test_the_wrong_format_is_refused_with_the_right_one(tmp_path):
    with pytest.raises(UnsupportedFormat, match="Use the format openai or auto"):
        read_turns(write(tmp_path, CHAT), format="langchain")


@pytest.mark.parametrize(
    "text", ["[]", "{}", "3", '"hi"', "[1, null]", '{"messages": []}', '[["a"]]']
)
@pytest.mark.parametrize("name", ["auto", *KNOWN_FORMATS])
def test_json_without_chat_messages_is_refused(tmp_path, text, name):
    with pytest.raises(UnsupportedFormat, match=", ".join(KNOWN_FORMATS)):
        read_turns(write(tmp_path, text), format=name)


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ('[\n  {"role": "user",\n   "content": oops}]', ":3:15", "not JSON"),
        ('{"role": "user", "content": "a"}\n\n{"role": \n', ":3:10", "not JSON"),
        ("User: hello\nBot: hi\n", ":1:1", "not JSON"),
        ("[" * 200_000, "", "nested too deeply"),
        ('{"role": "user"}\n' + "[" * 200_000, ":2", "nested too deeply"),
        ("[" + "1" * 10_000 + "]", "", "number that is too long"),
        (" \n\t", "", "empty"),
        ("", "", "empty"),
    ],
)
def test_a_file_that_is_not_json_is_refused_with_its_location(tmp_path, text, place, reason):
    path = write(tmp_path, text)
    with pytest.raises(InvalidValue, match=reason) as caught:
        read_turns(path)
    assert caught.value.where == f"{path}{place}"
    assert ", ".join(KNOWN_FORMATS) in str(caught.value)


def test_invalid_utf8_is_refused_with_its_location(tmp_path):
    path = tmp_path / "chat.json"
    path.write_bytes(b'[\n "\xff"]')
    with pytest.raises(InvalidValue, match="not UTF-8") as caught:
        read_turns(path)
    assert caught.value.where == f"{path}:2:3"


def test_missing_files_folders_and_bad_paths_are_refused(tmp_path):
    with pytest.raises(InvalidValue, match="no such file"):
        read_turns(tmp_path / "none.json")
    with pytest.raises(InvalidValue, match="folder"):
        read_turns(tmp_path)
    with pytest.raises(InvalidValue, match="cannot be read"):
        read_turns("nul\0byte")


def test_only_a_file_above_the_limit_is_refused(tmp_path):
    path = write(tmp_path, CHAT)
    size = path.stat().st_size
    assert said(read_turns(path, max_bytes=size)) == SAID
    with pytest.raises(InvalidValue, match="larger than"):
        read_turns(path, max_bytes=size - 1)


def test_lone_surrogates_are_replaced_and_reported(tmp_path):
    text = r'{"id": "s\udfff", "messages": [{"role": "user", "content": "a\ud800b \ud83d\ude00"}]}'
    log = read_turns(write(tmp_path, text))
    assert log.turns[0].user_msg == "a\ufffdb \U0001f600"
    assert log.turns[0].session_id == "s\ufffd"
    assert log.skipped == ["Replaced 2 characters that are not valid text by U+FFFD."]


@pytest.mark.parametrize(
    "shape",
    [
        lambda odd: {"role": "user", "content": odd},
        lambda odd: {"role": "user", "content": [{"type": odd, "text": odd}]},
        lambda odd: {"role": odd, "content": odd},
        lambda odd: {"role": "assistant", "content": odd, "tool_calls": odd, "create_time": odd},
        lambda odd: {"type": odd, "content": odd},
        lambda odd: {"type": "human", "data": odd},
        lambda odd: {"type": "chat", "data": {"role": odd, "content": odd}},
        lambda odd: {"lc": odd, "id": odd, "kwargs": odd},
        lambda odd: {"lc": 1, "id": ["HumanMessage"], "kwargs": {"additional_kwargs": odd}},
        lambda odd: {"kind": odd, "parts": odd},
        lambda odd: {"kind": "request", "parts": odd, "conversation_id": odd},
        lambda odd: {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": odd}]},
        lambda odd: {"kind": "response", "parts": [{"part_kind": odd, "content": odd}]},
        lambda odd: sample(odd, session_1=odd, session_1_date_time=odd),
        lambda odd: sample(odd, session_1=[{"speaker": odd, "text": odd}]),
        lambda odd: sample(session_1=[{"speaker": "Ann", "text": odd, "blip_caption": odd}]),
        lambda odd: sample(speaker_a=odd, session_1=[]),
        lambda odd: {"messages": odd, "id": odd},
        lambda odd: odd,
    ],
)
def test_unusual_values_give_turns_or_a_library_error(tmp_path, shape):
    values = [None, True, 3, 2.5, "x", [], {}, [[]], [{}], {"a": 1}]
    for odd, name in product(values, ("auto", *KNOWN_FORMATS)):
        path = write(tmp_path, [shape(odd), shape("fine")])
        try:
            log = read_turns(path, format=name)
        except UnsupportedFormat:
            continue
        assert all(turn.user_msg.strip() for turn in log.turns), (odd, name)
        assert len({turn.position for turn in log.turns}) == len(log.turns), (odd, name)


@pytest.mark.parametrize("given", [[{"role": "user", "content": "I love tea."}], b"x", None])
def test_a_content_in_place_of_a_path_is_an_error_that_says_so(given):
    alice = Diary("memory:", agent="rules").user("alice")
    for call in (read_turns, load_questions, lambda place: carry_over(alice, "mem0", place)):
        with pytest.raises(InvalidValue, match="expected the path of a file, found"):
            call(given)
