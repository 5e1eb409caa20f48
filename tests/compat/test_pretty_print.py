"""Printed memory is indented and wrapped, and cannot control a terminal."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tomldiary.compat.pretty_print import (
    ConversationsPrinter,
    PreferencesPrinter,
    pretty_print_conversations,
    pretty_print_preferences,
)
from tomldiary.entries.models import ConversationItem
from tomldiary.errors import InvalidTOML
from tomldiary.text.visible import printable

PREFS = """\
[_meta]
version = "0.3"
schema_name = "MyTable"

[preferences.likes.pref001]
text = "dark roast, ground fresh, at the small place beside the station and nowhere else in town"
contexts = ["morning", "work"]
_count = 3
_created = "2025-01-01T00:00:00+00:00"
_updated = "2025-01-02T13:05:00+00:00"

[preferences.likes.pref002]
text = "tea"
contexts = []
_count = 1

[preferences.allergies.walnuts]
text = "walnuts"
_updated = "some day"
"""

CONVS = {
    "_meta": {"version": "0.3", "schema_name": "MyTable"},
    "chat_1": {
        "_created": "2025-01-01T00:00:00+00:00",
        "_updated": "2025-01-03T00:00:00Z",
        "_turns": 4,
        "summary": "Talked about coffee. " * 6,
        "keywords": ["coffee", "town"],
    },
    "chat_2": {"_turns": 1},
}


def test_preferences_are_printed_by_category():
    assert pretty_print_preferences(PREFS) == (
        "preferences:\n"
        "  likes:\n"
        "    pref001 (Updated: Jan 02, 2025 01:05 PM)\n"
        "      dark roast, ground fresh, at the small place beside the station and\n"
        "      nowhere else in town (3x)\n"
        "      contexts: morning, work\n"
        "\n"
        "    pref002\n"
        "      tea\n"
        "\n"
        "  allergies:\n"
        "    walnuts (Updated: some day)\n"
        "      walnuts"
    )


def test_conversations_are_printed_one_after_the_other():
    assert pretty_print_conversations(CONVS) == (
        "chat_1 (Updated: Jan 03, 2025 12:00 AM)\n"
        "  Talked about coffee. Talked about coffee. Talked about coffee. Talked about\n"
        "  coffee. Talked about coffee. Talked about coffee.\n"
        "  keywords: coffee, town\n"
        "  turns: 4\n"
        "\n"
        "chat_2\n"
        "  turns: 1"
    )


def test_what_changed_last_is_printed_first():
    """TOMLDiary 0.9 prints in this order."""
    times = {"old": "2025-01-01", "none": "", "new": "2025-03-01", "mid": "2025-02-01"}
    tables = {key: {"_updated": f"{time}T00:00:00Z"} if time else {} for key, time in times.items()}
    tables["begun"] = {"_created": "2025-02-02T00:00:00Z"}
    prefs = "\n".join(
        f"[preferences.likes.{key}]\n" + "".join(f"{name} = {time}" for name, time in each.items())
        for key, each in tables.items()
    )
    order = ["new", "begun", "mid", "old", "none"]
    printed = pretty_print_conversations(tables).splitlines()
    assert [line.split()[0] for line in printed if line] == order
    printed = pretty_print_preferences(prefs).splitlines()[2:]
    assert [line.split()[0] for line in printed if line] == order
    items = {key: ConversationItem(updated=times[key]) for key in ("old", "new")}
    assert pretty_print_conversations(items).startswith("new")


def test_metadata_is_shown_on_request():
    head = "Metadata:\n  Version: 0.3\n  Schema: MyTable\n\n"
    assert pretty_print_preferences(PREFS, skip_metadata=False).startswith(f"{head}preferences:\n")
    assert pretty_print_conversations(CONVS, skip_metadata=False).startswith(f"{head}chat_1")
    unknown = pretty_print_conversations({"a": {}}, skip_metadata=False)
    assert unknown == "Metadata:\n  Version: unknown\n  Schema: unknown\n\na"


def test_an_empty_category_is_not_printed():
    text = '[preferences.likes]\n[preferences.work.a]\ntext = "x"\n[preferences.goals]\n'
    assert pretty_print_preferences(text) == "preferences:\n  work:\n    a\n      x"


@pytest.mark.parametrize(
    "text", ["", '[_meta]\nversion = "0.3"', "[preferences]", "[preferences.likes]"]
)
def test_an_empty_memory_prints_a_message(text):
    assert pretty_print_preferences(text) == "No preferences found."
    assert pretty_print_conversations({}) == "No conversations found."
    assert pretty_print_conversations({"_meta": {}}) == "No conversations found."


def test_arguments_choose_what_is_shown():
    text = '[preferences.likes.a]\ntext = "x"\ncontexts = ["c"]\n_count = 2\n_updated = "2025-01-02T13:05:00"'

    def shown(**arguments):
        return pretty_print_preferences(text, **arguments).splitlines()[2:]

    head = "    a (Updated: Jan 02, 2025 01:05 PM)"
    assert shown() == [head, "      x (2x)", "      contexts: c"]
    assert shown(fields=set()) == shown()
    assert shown(fields={"text"}) == [head, "      x (2x)"]
    assert shown(fields={"contexts"}) == [head, "      contexts: c"]
    assert shown(show_count=False) == [head, "      x", "      contexts: c"]
    assert shown(show_timestamps=False) == ["    a", "      x (2x)", "      contexts: c"]
    assert shown(indent_size=1)[1] == "   x (2x)"
    chat = {"a": {"summary": "s", "keywords": ["k"], "_turns": 3}}
    assert pretty_print_conversations(chat, show_turns=False) == "a\n  s\n  keywords: k"
    assert pretty_print_conversations(chat, fields={"keywords"}) == "a\n  keywords: k\n  turns: 3"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("[preferences.likes.a]", ["    a"]),
        ("[preferences.likes.a]\n_count = 2", ["    a"]),
        ("[preferences.likes.a]\ntext = 3", ["    a", "      3"]),
        ("[preferences.likes.a]\ntext = 'x'\n_count = 'many'", ["    a", "      x"]),
        (
            "[preferences.likes.a]\ntext = 'x'\ncontexts = 'c'",
            ["    a", "      x", "      contexts: c"],
        ),
        ("[preferences.likes]\na = 'x'", ["    a", "      x"]),
        ("[preferences]\nlikes = 'x'", ["    x"]),
        ("[likes.a]\ntext = 'short'", ["    a", "      short"]),
        (
            "[preferences.likes.a]\n_updated = 2025-01-02",
            ["    a (Updated: Jan 02, 2025 12:00 AM)"],
        ),
        ("[preferences.likes.a]\n_updated = 7", ["    a (Updated: 7)"]),
    ],
)
def test_missing_and_unexpected_fields_are_printed(text, lines):
    assert pretty_print_preferences(text).splitlines() == ["preferences:", "  likes:", *lines]


def test_categories_of_both_layouts_are_shown_together():
    shown = pretty_print_preferences(
        'likes = {a = {text = "x"}}\n[preferences.likes.b]\ntext = "y"'
    )
    assert shown == "preferences:\n  likes:\n    a\n      x\n\n    b\n      y"


@pytest.mark.parametrize(
    ("convs", "shown"),
    [
        ({"a": 3}, "a\n  3"),
        ({"a": None}, "a"),
        ({"a": {"keywords": "k", "_turns": "x"}}, "a\n  keywords: k\n  turns: x"),
        ({"conversations": {"a": {"summary": "s"}}}, "a\n  s"),
        ({"conversations": {"summary": "s"}}, "conversations\n  s"),
        ({"a": ConversationItem(summary="s", turns=2, updated="")}, "a\n  s\n  turns: 2"),
    ],
)
def test_conversations_of_any_shape_are_shown(convs, shown):
    assert pretty_print_conversations(convs) == shown


def test_text_that_does_not_parse_raises_with_its_line():
    with pytest.raises(InvalidTOML) as caught:
        PreferencesPrinter().format_preferences("[preferences]\nbroken\n")
    assert caught.value.line == 2


def test_times_are_formatted_and_other_text_is_kept():
    times = {
        datetime(2025, 1, 2, 13, 4, tzinfo=UTC): "Jan 02, 2025 01:04 PM",
        "2025-12-31T23:59:00Z": "Dec 31, 2025 11:59 PM",
        "yester\x1bday": "yester\\x1bday",
    }
    for time, shown in times.items():
        printed = ConversationsPrinter(indent_size=3).format_conversations(
            {"chat": {"_updated": time, "_turns": 1}}
        )
        assert printed == f"chat (Updated: {shown})\n   turns: 1"


@pytest.mark.parametrize("width", [1, 20, 40, 80])
def test_no_line_of_stored_text_exceeds_the_width(width):
    long = {"a": {"summary": "word " * 30 + "x" * 200 + " well-known"}}
    lines = ConversationsPrinter(max_width=width).format_conversations(long).splitlines()
    assert max(map(len, lines)) <= max(width, 3)
    assert "".join("".join(lines[1:]).split()) == "".join(long["a"]["summary"].split())


def test_stored_lines_cannot_imitate_another_entry():
    forged = "x\n    pref999 (Updated: now)\n  likes:\npreferences:"
    text = (
        f'[preferences.likes.a]\ntext = """{forged}"""\n[preferences.likes."b\\n    c"]\ntext = "y"'
    )
    lines = pretty_print_preferences(text).splitlines()
    assert [line for line in lines if not line.startswith("      ")] == [
        "preferences:",
        "  likes:",
        "    a",
        "",
        "    b\\n    c",
    ]


def test_no_field_can_send_control_sequences_to_a_terminal():
    evil = "\\u001b]0;owned\\u0007\\u202e"
    text = f'[_meta]\nversion = "{evil}"\nschema_name = "{evil}"\n[preferences."{evil}"."{evil}"]\n'
    text += f'text = "{evil}"\ncontexts = ["{evil}"]\n_updated = "{evil}"\n_count = 2'
    raw = "\x1b]0;owned\x07\u202e"
    chat = {raw: {"summary": raw, "keywords": [raw], "_turns": raw, "_updated": raw}, "b": raw}
    for shown in (
        pretty_print_preferences(text, skip_metadata=False),
        pretty_print_conversations(chat, skip_metadata=False),
    ):
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)
        assert shown.count("\\x1b]0;owned\\x07\\u202e") >= 5


ESCAPED = [
    *range(9), *range(0x0B, 0x20), *range(0x7F, 0xA0), *range(0x200B, 0x2010), *range(0x202A, 0x202F),
    *range(0x2066, 0x206A), 0x061C, 0x2028, 0x2029, 0xFEFF, 0xE0041, 0xD800,
]  # fmt: skip


def test_control_characters_become_escapes_that_read_back_equal():
    for code in ESCAPED:
        shown = printable(f"a{chr(code)}b")
        assert shown.isascii(), hex(code)
        assert shown.isprintable(), hex(code)
        assert shown[1:-1].encode("ascii").decode("unicode_escape") == chr(code)


def test_the_escapes_are_those_python_uses():
    assert printable("\x1b[31m \u202e \x00 \x9b \r\n") == "\\x1b[31m \\u202e \\x00 \\x9b \\x0d\n"
    assert printable("\U000e0041") == "\\U000e0041"


@pytest.mark.parametrize(
    "text", ["", "plain", "tab\tand\nline", "日本語 🍕 é", "C:\\new", "a\u00a0b"]
)
def test_ordinary_text_is_not_escaped(text):
    assert printable(text) == text


@given(st.text())
def test_printable_text_stays_printable(text):
    shown = printable(text)
    assert printable(shown) == shown
    assert not any(ord(char) in ESCAPED for char in shown)
    shown.encode()
