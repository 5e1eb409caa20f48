"""What is wrong with a hand edit: `problems` names it, and stderr where no logging is configured."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

import programs
from tomldiary import Constraint, Diary, MemoryWriter, Turn
from tomldiary.doctor.doctor import check
from tomldiary.errors import DocumentError
from tomldiary.extraction import tools
from tomldiary.writer.dead_letters import DeadLetters

if TYPE_CHECKING:
    from pathlib import Path


def age(file: Path) -> None:
    """Make a file old enough that its editor has finished."""
    then = file.stat().st_mtime - 60
    os.utime(file, (then, then))


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("[preferences.likes.pref001]\ntext = 5", "preferences.likes.pref001.text: expected text"),
        ("[preferences.likes.pref001]\ncontexts = []", "preferences.likes.pref001.text: expected"),
        (
            '[preferences.likes.""]\ntext = "tea"',
            'preferences.likes."": expected an id of 1 to 200',
        ),
        (
            f"[preferences.likes.{'x' * 201}]\ntext = 'tea'",
            f"preferences.likes.{'x' * 201}: expected",
        ),
        ("[preferences.liks.pref001]\ntext = 'tea'", "preferences.liks: DefaultPrefTable has no"),
    ],
)
def test_an_entry_that_is_not_read_as_meant_is_named(
    tmp_path: Path, written: str, named: str
) -> None:
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/preferences.toml"
    meta = file.read_text().partition("[preferences")[0]
    file.write_text(f"{meta}{written}\n")
    age(file)
    [problem] = map(str, alice.problems())
    assert problem.startswith(named)


@pytest.mark.parametrize(
    ("name", "table", "remedy"),
    [
        ("preferences/2", "preferences.likes.jazz", "Rename the file to preferences/003.toml."),
        ("facts/part2", "facts.diet.x", "Rename the file to facts/002.toml."),
        ("blocks/002", "blocks.persona", "Move its tables to blocks.toml."),
        ("episodes/2", "episodes.x", "Rename the file."),
    ],
)
def test_a_document_that_is_not_read_because_of_its_name_is_named(
    tmp_path: Path, name: str, table: str, remedy: str
) -> None:
    diary = Diary(tmp_path, agent="rules")
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    alice.episodes.add("Hello.", "Hi.")
    part, file = (tmp_path / f"alice/{each}.toml" for each in ("preferences/002", name))
    for each, text in ((part, "preferences.likes.milk"), (file, table)):
        each.parent.mkdir(mode=0o700, exist_ok=True)
        each.write_text("[_meta]\n")
        each.chmod(0o600)
        assert not alice.problems()
        each.write_text(f"[{text}]\ntext = 'x'\n")
    told = f"{name.partition('/')[0]}: nothing reads a document of this name"
    assert [str(each) for each in alice.problems()] == [f"{name}.toml: {told}. {remedy}"]
    [found] = [each for each in check(diary) if each.level != "note"]
    assert (found.place, found.message, found.remedy) == (f"{file}:1", told, remedy)


def test_a_warning_of_a_hand_edit_shows_hidden_characters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/preferences.toml"
    file.write_text(f'{file.read_text()}\n[preferences.likes."a\u200bb"]\ntext = 5\n')
    age(file)
    alice.preferences()
    assert r'likes."a\u200bb".text: expected text' in caplog.text


def test_a_value_in_place_of_all_blocks_is_reported_with_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.blocks.set("notes", "tea")
    file = tmp_path / "alice/blocks.toml"
    head = file.read_text().partition("[blocks")[0]
    file.write_text(f"# by hand\nblocks = 5\n{head}")
    age(file)
    assert not alice.blocks()
    assert f"{file}:2: blocks: expected a table, found number" in caplog.text


class Home(BaseModel):
    who: str
    city: str


def test_keys_of_the_greatest_allowed_length_are_no_problem(tmp_path: Path) -> None:
    diary = Diary(tmp_path, agent="rules")
    diary.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))
    alice, longest = diary.user("alice"), "x" * 200
    alice.facts.commit(Home(who=longest, city="Rome"), valid_from="2024-05-01T12:00:00.123456")
    alice.upsert_preference("likes", "tea", id=longest)
    alice.blocks.set(longest, "Be brief.")
    alice.add_turn("I like tea.", "Noted.", "s" * 300)
    assert alice.problems() == []


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ('_valid_from = "May"', "_valid_from: expected a time, found text"),
        ("_valid_to = 2020-01-01", "_valid_to: it is not after `_valid_from`"),
        ("_valid_to = 2024-05-01T00:00:00Z", "_valid_to: it is not after `_valid_from`"),
        ('_confidence = "high"', "_confidence: expected a number from 0 to 1; it counts as 1"),
        ("_confidence = -0.5", "_confidence: expected a number from 0 to 1; it counts as 0"),
    ],
)
def test_a_wrong_managed_field_of_a_fact_is_named(tmp_path: Path, written: str, named: str) -> None:
    diary = Diary(tmp_path, agent="rules")
    diary.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))
    alice = diary.user("alice")
    alice.facts.commit(Home(who="user", city="Rome"), valid_from="2024-05-01")
    file = tmp_path / "alice/facts.toml"
    lines = file.read_text().splitlines()
    name = written.partition(" ")[0]
    file.write_text("\n".join([*(line for line in lines if not line.startswith(name)), written]))
    age(file)
    [problem] = map(str, alice.problems())
    assert problem.startswith(f'facts.home."user@2024-05-01".{named}')
    assert any(named in finding.message for finding in check(diary))


def test_a_wrong_key_of_a_temporal_fact_is_named_with_a_right_one(tmp_path: Path) -> None:
    diary = Diary(tmp_path, agent="rules")
    diary.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))
    alice = diary.user("alice")
    file = tmp_path / "alice/facts.toml"
    file.parent.mkdir()
    written = "[facts.home.{}]\nwho = 'user'\ncity = 'Rome'\n_valid_from = 2024-05-01\n"
    file.write_text(written.format("here"))
    age(file)
    [problem] = map(str, alice.problems())
    assert "its key is 'user', or 'user@2024-05-01' with its start" in problem
    file.write_text(written.format("'user@2024-05-01'"))
    assert alice.problems() == []
    assert alice.facts.get("home/user").data.city == "Rome"
    plain = Diary(tmp_path, agent="rules")
    plain.register_schema("home", Home, Constraint(singleton_key="who"))
    [problem] = map(str, plain.user("alice").problems())
    assert "its key is 'user'. Rename" in problem  # a start is no part of the key of such a type


@pytest.mark.parametrize(
    ("document", "written", "named"),
    [
        ("preferences", "preferences = 'tea'", "preferences: expected a table, found text"),
        ("blocks", "[blocks]\npersona = 'a cook'", "blocks.persona: expected an entry, found text"),
        ("blocks", "[blocks.persona]\ntxt = 'a cook'", "blocks.persona.text: expected text"),
        (
            "blocks",
            "[blocks.persona]\ntext = 'a cook'\npinned = 'no'",
            "blocks.persona.pinned: expected true or false, found text",
        ),
        (
            "preferences",
            "[preferences.likes.a]\ntext = 'tea'\npinned = 1",
            "preferences.likes.a.pinned: expected true or false, found number",
        ),
        ("conversations", "[conversations]\ns = 'tea'", "conversations.s: expected an entry"),
        ("items/notes", "items = ['a']", "items/notes.toml: items: expected a table, found a list"),
        ("items/notes", "[itmes.a]\nn = 1", "items/notes.toml: itmes: nothing reads it. Rename it"),
        ("blocks", "persona = 'a cook'", "persona: nothing reads it. Rename it to [blocks.…]"),
        ("conversations", "[_meta]\nversion = '0.3'\n[s1]\n_turns = 1", "s1: nothing reads it"),
        (
            "preferences",
            "[_meta]\nschema_name = 'DefaultPrefTable'\n[preference.likes.a]\ntext = 'tea'",
            "preference: nothing reads it. Rename it to [preferences.…]",
        ),
        ("facts", "[facts]\nhome = 'Rome'", "facts.home: expected a table of facts"),
    ],
)
def test_a_value_in_place_of_a_table_is_named(
    tmp_path: Path, document: str, written: str, named: str
) -> None:
    file = tmp_path / f"alice/{document}.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f"{written}\n")
    age(file)
    diary = Diary(tmp_path, agent="rules")
    [problem] = map(str, diary.user("alice").problems())
    assert problem.startswith(named)
    said = [f"{finding.message}. {finding.remedy}" for finding in check(diary)]
    assert any(named.rpartition(": ")[2] in each for each in said)


@pytest.mark.parametrize(
    ("written", "line"),
    [("_meta = 3", 1), ("# mine\n[[_meta]]\nseq = 1", 2), ("note = 1\n\n'_meta' = []", 3)],
)
def test_writes_go_to_history_while_meta_is_no_table(
    tmp_path: Path, written: str, line: int
) -> None:
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/preferences.toml"
    good = file.read_text()
    file.write_text(f"{written}\n[preferences.likes.pref001]\ntext = 'mate'\n")
    age(file)
    alice.upsert_preference("likes", "jazz")
    assert [item.text for item in alice.preferences("likes").values()] == ["tea", "jazz"]
    [problem] = map(str, alice.problems())
    assert f"preferences.toml:{line}: _meta: expected a table, found" in problem
    file.write_text(good)
    age(file)
    alice.upsert_preference("likes", "chess")
    assert all(f'"{word}"' in file.read_text() for word in ("tea", "jazz", "chess"))


@pytest.mark.parametrize("is_first", [True, False])
def test_a_short_form_beside_its_long_form_is_a_problem(tmp_path: Path, is_first: bool) -> None:
    long, short = '[preferences.likes.one]\ntext = "tea"\n', '[likes.one]\ntext = "jazz"\n'
    others = '[likes.two]\ntext = "chess"\n'
    document = tmp_path / "alice/preferences.toml"
    document.parent.mkdir()
    document.write_text(others + (short + long if is_first else long + short))
    alice = Diary(tmp_path, agent="rules").user("alice")
    assert {key: item.text for key, item in alice.preferences("likes").items()} == {
        "one": "tea",
        "two": "chess",
    }
    (problem,) = alice.problems()
    assert "likes.one: preferences.likes.one also has this key" in str(problem)


def test_sessions_at_the_root_of_an_old_file_are_no_problem(tmp_path: Path) -> None:
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice/conversations.toml").write_text(
        "[_meta]\nversion = '0.2'\n[s1]\n_turns = 1\n"
    )
    alice = Diary(tmp_path, agent="rules").user("alice")
    assert (list(alice.conversations()), alice.problems()) == (["s1"], [])


@pytest.mark.parametrize("table", ["facts", "facts.home"])
def test_a_value_in_place_of_a_fact_is_rolled_back_with_its_edit(
    tmp_path: Path, table: str
) -> None:
    diary = Diary(tmp_path, agent="rules")
    diary.register_schema("home", Home)
    alice = diary.user("alice")
    alice.facts.commit(Home(who="user", city="Rome"))
    file = tmp_path / "alice/facts.toml"
    file.write_text(f"{file.read_text()}\n[{table}]\nloose = 'Oslo'\n")
    age(file)
    assert alice.rollback().keys == [table.replace(".", "/")]
    assert "Oslo" not in file.read_text()
    assert [fact.data.city for fact in alice.facts()] == ["Rome"]


def test_a_file_without_a_good_state_is_named_beside_the_others(tmp_path: Path) -> None:
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice/preferences.toml").write_text("[broken\n")
    (tmp_path / "alice/conversations.toml").symlink_to(tmp_path / "elsewhere.toml")
    (tmp_path / "alice/blocks.toml").write_text("[blocks.notes]\ntext = 5\n")
    alice = Diary(tmp_path, agent="rules").user("alice")
    said = [str(problem) for problem in alice.problems()]
    assert any("preferences.toml:1:8: expected ']'" in each for each in said)
    assert any("conversations.toml: cannot be read (it is a link" in each for each in said)
    assert any("blocks.notes" in each for each in said)


def test_a_mistake_is_logged_once_not_at_each_write(tmp_path: Path, caplog: Any) -> None:
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/preferences.toml"
    good = file.read_text()
    for wrong, count in ((good.replace("]", "", 1), 1), (f"{good}text", 2)):
        file.write_text(wrong)
        age(file)
        for number in range(3):
            alice.upsert_preference("likes", f"text {count} of {number}")
            assert len(alice.problems()) == 1
        assert caplog.text.count("Reads return the last good state") == count


def test_an_entry_that_an_edit_made_invalid_is_logged_once(tmp_path: Path, caplog: Any) -> None:
    diary = Diary(tmp_path, agent="rules")
    diary.register_schema("home", Home, Constraint(singleton_key="who"))
    alice = diary.user("alice")
    for who in ("ann", "ben", "eve"):
        alice.facts.commit(Home(who=who, city="Rome"))
    file = tmp_path / "alice/facts.toml"
    text = file.read_text()
    file.write_text(text.replace("city", "town", 1))
    age(file)
    for _ in range(2):
        assert len(alice.facts()) == 2
    assert caplog.text.count("facts.home.ann.city: expected a value") == 1
    assert "more" not in caplog.text
    file.write_text(text.replace("city", "town"))
    age(file)
    assert len(alice.facts()) == 0
    assert caplog.text.count("it is not read. problems() lists 2 more.") == 1
    alice.upsert_preference("likes", "tea")
    alice.facts.commit(Home(who="zoe", city="Rome"))
    assert caplog.text.count("facts.home.ann.city") == 2


def test_a_forbidden_edit_is_reported_once_with_its_line(tmp_path: Path, caplog: Any) -> None:
    diary = Diary(tmp_path, agent="rules")
    diary.constrain("preferences/likes", Constraint(immutable=True))
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/preferences.toml"
    file.write_text(file.read_text().replace('"tea"', '"coffee"'))
    age(file)
    for _ in range(3):
        [problem] = alice.problems()
        assert alice.preferences("likes")["pref001"].text == "tea"
        assert str(problem).startswith(f"{file}:6: preferences/likes/pref001 is never changed")
    assert alice.rollback(dry_run=True).undone == alice.rollback().undone
    assert alice.preferences("likes")["pref001"].text == "tea"
    assert alice.problems() == []  # the write undid the edit
    [told] = [each.getMessage() for each in caplog.records]
    assert told.startswith(f"{file}:6: preferences/likes/pref001 is never changed")
    assert told.endswith("The next write undoes this edit; history keeps it.")
    file.write_text(file.read_text().replace('"tea"', '"milk"'))
    age(file)
    alice.upsert_preference("dislikes", "fog")
    assert len(caplog.records) == 2


def test_the_report_of_a_forbidden_edit_is_one_line_without_escapes(
    tmp_path: Path, caplog: Any
) -> None:
    diary = Diary(tmp_path, agent="rules")
    diary.constrain("preferences/likes", Constraint(required="note"))
    alice = diary.user("alice")
    alice.upsert_preference("dislikes", "fog")
    file = tmp_path / "alice/preferences.toml"
    file.write_text(file.read_text() + '\n[preferences.likes."a\\u001b[31m\\nb"]\ntext = "tea"\n')
    age(file)
    assert not alice.preferences("likes")
    assert (
        r"preferences/likes/a\x1b[31m\nb.note: expected a value" in caplog.records[0].getMessage()
    )


def test_a_write_below_a_list_written_by_hand_names_the_file(tmp_path: Path) -> None:
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/preferences.toml"
    file.write_text(
        file.read_text().replace("[preferences.likes.pref001]", "[[preferences.likes]]")
    )
    age(file)
    with pytest.raises(DocumentError, match=r"preferences\.likes: expected a table") as refused:
        alice.upsert_preference("likes", "milk")
    assert refused.value.path == str(file)


def test_a_file_that_does_not_parse_is_shown_without_logging(tmp_path: Path) -> None:
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/preferences.toml"
    file.write_text(file.read_text().replace("text =", "text"))
    age(file)
    program = (
        "from tomldiary import Diary\n"
        f"alice = Diary({str(tmp_path)!r}, agent='rules').user('alice')\n"
        "print(alice.preferences('likes')['pref001'].text, alice.preferences('likes')['pref001'].text)\n"
    )
    done = programs.run("-c", program, check=True)
    assert done.stdout == "tea tea\n"
    assert done.stderr.count("preferences.toml:7:6: expected") == 1


async def extract_with_a_tool(_message: str, *, deps: Any) -> None:
    context: Any = SimpleNamespace(deps=deps)
    await tools.upsert_preference(context, "likes", text=deps.user_msg)


@pytest.mark.parametrize("agent", ["rules", extract_with_a_tool])
def test_a_turn_is_kept_until_a_category_is_a_table_again(tmp_path: Path, agent: Any) -> None:
    diary = Diary(tmp_path, agent=agent)
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/preferences.toml"
    good = file.read_text()
    file.write_text(good.partition("[preferences")[0] + "[preferences]\nlikes = []\n")
    age(file)
    with MemoryWriter(diary) as writer:
        receipt = writer.submit_nowait(Turn("alice", "s", "I love chess.", "Noted."))
        with pytest.raises(DocumentError, match=rf"{file}: preferences\.likes: expected a table"):
            receipt.wait()
    file.write_text(good)
    letters = DeadLetters(diary.backend)
    letters.requeue(letters.list())
    with MemoryWriter(diary) as writer:
        writer.flush()
    texts = [item.text for item in alice.preferences("likes").values()]
    assert texts == ["tea", "I love chess."]
