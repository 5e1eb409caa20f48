"""Files and texts become typed data, in every layout that was ever written."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tomldiary.compat.loaders import (
    ConversationLoader,
    PreferenceLoader,
    load_conversations,
    load_preferences,
)
from tomldiary.entries.models import ConversationItem, PreferenceItem
from tomldiary.errors import (
    DocumentError,
    InvalidTOML,
    InvalidValue,
    NewerVersion,
    SchemaError,
    UnknownCategory,
)


class Dated(PreferenceItem):
    strength: int = 1


class Table(BaseModel):
    likes: dict[str, PreferenceItem] = {}
    allergies: dict[str, Dated] = {}


LONG = """\
[_meta]
version = "0.3"
schema_name = "Table"

[preferences.likes.pref001]
text = "dark roast"
contexts = ["morning"]
_count = 3
_created = "2025-01-01T00:00:00+00:00"
_created_by = "s1"

[preferences.allergies.walnuts]
text = "walnuts"
strength = 9
"""
SHORT = LONG.replace("[preferences.", "[")


@pytest.mark.parametrize(
    "text", [LONG, SHORT, LONG.partition("\n\n")[2], SHORT.partition("\n\n")[2]]
)
def test_preferences_load_in_both_layouts_with_and_without_meta(text):
    table = load_preferences(text, Table)
    assert type(table) is Table
    assert table.likes["pref001"].text == "dark roast"
    assert table.likes["pref001"].count == 3
    assert table.likes["pref001"].created_by == "s1"
    assert type(table.allergies["walnuts"]) is Dated
    assert table.allergies["walnuts"].strength == 9


def test_both_layouts_in_one_file_are_merged_and_the_long_one_wins():
    table = load_preferences(
        '[likes]\na = {text = "short"}\nb = {text = "b"}\n[preferences.likes]\na = {text = "long"}',
        Table,
    )
    assert {key: item.text for key, item in table.likes.items()} == {"a": "long", "b": "b"}


def test_a_category_called_preferences_can_be_read():
    class Odd(BaseModel):
        preferences: dict[str, PreferenceItem] = {}

    assert (
        load_preferences('[preferences.preferences.a]\ntext = "x"', Odd).preferences["a"].text
        == "x"
    )


@pytest.mark.parametrize(
    "text", ["", "\n# nothing yet\n", '[_meta]\nversion = "0.3"\n', "[preferences]\n"]
)
def test_an_empty_file_is_an_empty_table(text):
    assert load_preferences(text, Table) == Table()
    assert load_conversations(text.replace("preferences", "conversations")) == {}


def test_an_unknown_category_is_ignored_unless_the_table_forbids_it():
    class Strict(Table):
        model_config = ConfigDict(extra="forbid")

    text = '[preferences.pets.rex]\ntext = "a dog"'
    assert load_preferences(text, Table) == Table()
    with pytest.raises(ValidationError, match="pets"):
        load_preferences(text, Strict)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[preferences.likes.a]\ntext = 3", "likes.a.text"),
        ("[preferences.likes.a]\n_count = 1", "likes.a.text"),
        ("[preferences.likes]\na = 3", "likes.a"),
        ("[preferences]\nlikes = 3", "likes"),
        ("preferences = 3", "Table"),
        ("[likes]\na = 'x'", "likes.a"),
    ],
)
def test_bad_preferences_raise_the_validation_error_users_catch(text, where):
    with pytest.raises(ValidationError, match=rf"(?m)^{where}$|for {where}\n"):
        load_preferences(text, Table)


def test_times_written_without_quotes_are_read():
    table = load_preferences(
        '[likes.a]\ntext = "x"\n_created = 2025-01-02T03:04:05Z\n_updated = 2025-01-03', Table
    )
    assert table.likes["a"].created == "2025-01-02T03:04:05+00:00"
    assert table.likes["a"].updated == "2025-01-03"
    found = load_conversations("[conversations.s]\n_created = 2025-01-02T03:04:05Z")
    assert found["s"].created == "2025-01-02T03:04:05+00:00"


@pytest.mark.parametrize("value", ["nan", "5"])
def test_a_number_is_no_time_of_a_loaded_entry(value):
    with pytest.raises(ValueError, match=r"likes\.a\._created"):
        load_preferences(f'[likes.a]\ntext = "x"\n_created = {value}', Table)


def test_a_part_is_validated_with_the_entry_class_of_its_category():
    loader = PreferenceLoader(Table)
    part = loader.validate_partial("allergies", {"a": {"text": "x", "strength": 2}})
    assert part == {"a": part["a"]}
    assert type(part["a"]) is Dated
    with pytest.raises(ValidationError, match=r"a\.strength"):
        loader.validate_partial("allergies", {"a": {"text": "x", "strength": "much"}})


def test_validating_an_unknown_category_names_the_known_ones():
    with pytest.raises(UnknownCategory, match=r"'pets'\. Use one of: likes, allergies") as caught:
        PreferenceLoader(Table).validate_partial("pets", {})
    assert isinstance(caught.value, ValueError)


def test_a_table_with_aliases_is_read_by_its_field_names():
    class Aliased(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        likes: dict[str, PreferenceItem] = Field(default={}, alias="Likes")

    assert load_preferences(LONG, Aliased).likes["pref001"].text == "dark roast"


def test_a_loader_refuses_a_class_without_categories():
    class Empty(BaseModel):
        age: int = 1

    with pytest.raises(SchemaError, match="has no category"):
        PreferenceLoader(Empty)


NESTED = '[conversations.b]\nsummary = "second"\n[conversations.a]\n_turns = 4\nkeywords = ["k"]\n'


@pytest.mark.parametrize("meta", ["", '[_meta]\nversion = "0.3"\n', "[_meta]\nversion = 0.3\n"])
def test_conversations_are_read_in_file_order_with_default_fields(meta):
    found = load_conversations(meta + NESTED)
    assert list(found) == ["b", "a"]
    assert type(found["a"]) is ConversationItem
    assert (found["a"].turns, found["a"].keywords, found["b"].turns) == (4, ["k"], 0)


@pytest.mark.parametrize("meta", ["", '[_meta]\nversion = "0.2"\n', '[_meta]\nversion = "0.3"\n'])
def test_sessions_at_top_level_are_read_as_conversations(meta):
    found = load_conversations(f'{meta}[chat_1]\nsummary = "old"\n_turns = 2')
    assert (found["chat_1"].summary, found["chat_1"].turns) == ("old", 2)


def test_a_half_migrated_file_keeps_both_kinds_of_sessions():
    found = load_conversations(f'[_meta]\nversion = "0.2"\n[old]\nsummary = "o"\n{NESTED}')
    assert set(found) == {"old", "a", "b"}


def test_a_foreign_table_beside_conversations_is_no_session():
    found = load_conversations(f'[_meta]\nversion = "0.3"\n[archive.old]\nsummary = "x"\n{NESTED}')
    assert set(found) == {"a", "b"}


@pytest.mark.parametrize(
    "text", ["[conversations.a]\nsummary = 1", "[conversations]\na = 1", "conversations = 1"]
)
def test_bad_conversations_raise_the_validation_error_users_catch(text):
    with pytest.raises(ValidationError):
        load_conversations(text)


@pytest.mark.parametrize("version", ["0.4", "0.10", "9.9", "0.3.1", "1", "new"])
def test_a_file_of_a_newer_version_is_refused(tmp_path, version):
    file = tmp_path / "f.toml"
    file.write_text(f'[_meta]\nversion = "{version}"\n[archive.old]\nsummary = "x"\n')
    for loader in (PreferenceLoader(Table), ConversationLoader()):
        with pytest.raises(
            NewerVersion, match=rf"version '{version}'; this package reads up to '0\.3'.*Upgrade"
        ) as caught:
            loader.load_from_file(file)
        assert caught.value.path == str(file)


def test_unusable_metadata_is_named_in_toml_words():
    with pytest.raises(DocumentError, match="_meta: expected a table, found number") as caught:
        load_conversations("# a comment\n_meta = 1")
    assert caught.value.line == 2


def test_text_that_does_not_parse_has_path_and_line(tmp_path):
    file = tmp_path / "f.toml"
    file.write_text('[likes.a]\ntext = "x"\nbroken\n')
    with pytest.raises(InvalidTOML) as caught:
        PreferenceLoader(Table).load_from_file(file)
    assert caught.value.path == str(file)
    assert caught.value.line == 3
    with pytest.raises(ValueError, match="2:"):
        load_conversations("[a]\nbroken")


def test_files_are_read_as_utf8_in_any_locale(tmp_path, monkeypatch):
    monkeypatch.setattr("locale.getencoding", lambda: "ascii")
    file = tmp_path / "f.toml"
    file.write_bytes('\ufeff[likes.a]\r\ntext = "日本 🍕"\r\n'.encode())
    assert PreferenceLoader(Table).load_from_file(str(file)).likes["a"].text == "日本 🍕"
    file.write_bytes("[s]\nsummary = 'é'".encode())
    assert ConversationLoader().load_from_file(file)["s"].summary == "é"


def test_a_file_in_another_encoding_is_named_with_its_line(tmp_path):
    file = tmp_path / "f.toml"
    file.write_bytes("[likes.a]\ntext = '日".encode() + "é'".encode("latin-1"))
    with pytest.raises(
        InvalidTOML, match=r":2:10: the byte 0xe9 is not UTF-8. Save the file as UTF-8."
    ):
        PreferenceLoader(Table).load_from_file(file)


@pytest.mark.parametrize("loader", [PreferenceLoader(Table), ConversationLoader()])
def test_a_missing_or_unreadable_file_is_named_in_the_error(tmp_path, loader):
    with pytest.raises(FileNotFoundError) as missing:
        loader.load_from_file(tmp_path / "none.toml")
    assert missing.value.errno == errno.ENOENT
    assert missing.value.filename == str(tmp_path / "none.toml")
    with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path))):
        loader.load_from_file(tmp_path)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_in_place_of_a_text_is_named(tmp_path, kind):
    path = tmp_path / "preferences.toml"
    path.write_text(LONG)
    with pytest.raises(InvalidValue, match=r"found a path.*load_from_file\(path\)"):
        load_preferences(kind(path), Table)
    with pytest.raises(InvalidValue, match=r"found a path.*ConversationLoader"):
        load_conversations(kind(path))
    assert PreferenceLoader(Table).load_from_file(kind(path)).likes["pref001"].text == "dark roast"


def test_what_a_backend_returns_for_a_missing_document_is_named():
    with pytest.raises(InvalidValue, match="expected the text of a file, found NoneType"):
        load_preferences(None, Table)
