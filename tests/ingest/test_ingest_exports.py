"""Data exports of ChatGPT and Claude are chat logs: the branch that is shown, in order, each turn once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tomldiary import Diary
from tomldiary.ingest import ingest, read_turns

CHATGPT = Path(__file__).parents[1] / "importers/peers/chatgpt.json"
CLAUDE = [
    {
        "uuid": "c-1",
        "name": "Coffee",
        "created_at": "2026-01-02T10:00:00.000000Z",
        "chat_messages": [
            {
                "uuid": "m1",
                "sender": "human",
                "text": "I love dark roast.",
                "content": [{"type": "text", "text": "I love dark roast."}],
                "created_at": "2026-01-02T10:00:01Z",
                "attachments": [{"file_name": "a.pdf"}],
                "files": [],
            },
            {
                "uuid": "m2",
                "sender": "assistant",
                "text": "thinking… A good choice.",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "text", "text": "A good choice."},
                ],
                "created_at": "2026-01-02T10:00:05Z",
            },
            {"uuid": "m3", "sender": "human", "text": "I hate crowds.", "content": []},
        ],
    },
    {"uuid": "c-2", "name": "", "chat_messages": []},
]


@pytest.fixture
def claude(tmp_path):
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps(CLAUDE))
    return path


def test_a_chatgpt_export_is_the_branch_that_is_shown():
    log = read_turns(CHATGPT)
    assert (log.format, [turn.session_id for turn in log.turns]) == ("chatgpt", ["c-1"])
    turn = log.turns[0]
    assert turn.user_msg == "I'm allergic to walnuts and I love dark roast."
    assert turn.assistant_msg == "Noted, no walnuts."
    assert turn.when.isoformat() == "2026-01-02T10:00:01+00:00"
    assert "Left out 1 system message." in log.skipped
    assert "Left out 2 assistant messages with only tool calls." in log.skipped
    assert not any("replaced" in text for text in (turn.user_msg, turn.assistant_msg))


def test_what_was_spoken_to_chatgpt_is_read_from_its_transcript(tmp_path):
    def spoken(role, text):
        transcript = {"content_type": "audio_transcription", "text": text, "direction": "in"}
        sound = {"content_type": "real_time_user_audio_video_asset_pointer"}
        content = {"content_type": "multimodal_text", "parts": [transcript, sound]}
        return {"author": {"role": role}, "content": content}

    nodes = {
        "1": {"message": spoken("user", "I love swimming."), "parent": None},
        "2": {"message": spoken("assistant", "Nice."), "parent": "1"},
    }
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([{"mapping": nodes, "current_node": "2"}]))
    log = read_turns(file)
    assert [(turn.user_msg, turn.assistant_msg) for turn in log.turns] == [
        ("I love swimming.", "Nice.")
    ]
    assert log.skipped == ["Left out 2 parts without text."]


def test_what_chatgpt_hides_and_messages_without_text_are_left_out(tmp_path):
    def message(role, text, kind="text", *, hidden=False):
        marks = {"is_visually_hidden_from_conversation": hidden}
        content = {"content_type": kind, "parts": [text]}
        return {"author": {"role": role}, "content": content, "metadata": marks}

    messages = [
        message("user", "I love swimming."),
        message("assistant", "Secret.", hidden=True),
        message("assistant", "Thinking.", "thoughts"),
        message("assistant", "Nice."),
    ]
    nodes = {
        str(number): {"message": each, "parent": str(number - 1) if number else None}
        for number, each in enumerate(messages)
    }
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([{"mapping": nodes, "current_node": "3"}]))
    log = read_turns(file)
    assert [(turn.user_msg, turn.assistant_msg) for turn in log.turns] == [
        ("I love swimming.", "Nice.")
    ]
    assert log.skipped == [
        "Left out 1 hidden message.",
        "Left out 1 message of another type than text.",
    ]


def test_a_claude_export_keeps_texts_sessions_and_times(claude):
    log = read_turns(claude)
    assert log.format == "claude"
    assert [(turn.session_id, turn.user_msg, turn.assistant_msg) for turn in log.turns] == [
        ("c-1", "I love dark roast.", "A good choice."),
        ("c-1", "I hate crowds.", ""),
    ]
    assert log.turns[0].when.isoformat() == "2026-01-02T10:00:01+00:00"
    assert log.skipped == ["Left out 1 attached file.", "Left out 1 thinking part."]


@pytest.mark.parametrize("export", ["chatgpt", "claude"])
def test_an_export_is_ingested_once(tmp_path, claude, export):
    diary = Diary(tmp_path / "m", agent="rules", durability="process")
    file = CHATGPT if export == "chatgpt" else claude
    first = ingest(diary, file, "alice", format=export)
    again = ingest(diary, file, "alice")
    assert (first.applied, again.applied) == (first.turns, 0)
    assert "dark roast" in diary.user("alice").document("preferences")


def test_a_conversation_that_grew_is_continued(tmp_path, claude):
    diary = Diary(tmp_path / "m", agent="rules", durability="process")
    ingest(diary, claude, "alice")
    grown = json.loads(json.dumps(CLAUDE))
    grown[0]["chat_messages"].append({"sender": "assistant", "text": "Noted."})
    grown[0]["chat_messages"].append({"sender": "human", "text": "I love tea."})
    claude.write_text(json.dumps(grown))
    assert (
        ingest(diary, claude, "alice").applied == 2
    )  # the turn that was answered since, and the new one


def test_a_tree_that_loops_ends(tmp_path):
    message = {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["hi"]}}
    nodes = {"a": {"message": message, "parent": "b"}, "b": {"message": message, "parent": "a"}}
    file = tmp_path / "loop.json"
    file.write_text(json.dumps([{"mapping": nodes, "current_node": "a"}]))
    assert [turn.user_msg for turn in read_turns(file).turns] == ["hi\nhi"]
