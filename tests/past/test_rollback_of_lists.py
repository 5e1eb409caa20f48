"""Entries with lists of tables: history has them whole, and a rollback restores the text before a hand edit."""

from __future__ import annotations

import random
import re
import tomllib

import pytest

from calls import noted_calls
from hand_edits import age
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.engine.transaction import Transaction
from tomldiary.entries.incremental_index import IncrementalIndex
from tomldiary.errors import EntryConflict
from tomldiary.toml.document import split_tail
from tomldiary.toml.lexer import split_blocks
from tomldiary.toml.values import same_value

SHOPS = """
# about it
[preferences.likes.a]
text = "tea"
note = "mine" # a note

[preferences.likes.a.address]
street = 7
# the first one
[[preferences.likes.a.shops]]
n = 1

[[preferences.likes.a.shops]]
n = 2
[preferences.likes.a.shops.at]
x = 2

[preferences.likes.b]
text = "rain"
[[preferences.likes.a.home.rooms]]
n = 1
"""


@pytest.fixture
def alice(tmp_path):
    return Diary(LocalBackend(tmp_path, durability="none"), agent="rules").user("alice")


def begin(alice, file, text):
    """Log a document with a hand-written text, and return it."""
    alice.upsert_preference("goals", "rest")
    save(file, file.read_text() + text)
    alice.upsert_preference("goals", "walk")
    return file.read_text()


def save(file, text):
    file.write_text(text)
    age(file)


def plain(text):
    """Return a text without the bookkeeping in `_meta`."""
    return [line for line in text.split("\n") if not line.startswith(("seq = ", "next_ids = "))]


def fields(text):
    """Return the entries of a text by key."""
    found = tomllib.loads(text)["preferences"]
    return {
        f"{category}/{key}": entry
        for category, entries in found.items()
        for key, entry in entries.items()
    }


def check_undo(alice, file, before):
    """Undo the hand edit that `file` has, and then the rollback; history must have whole entries."""
    edited = file.read_text()
    was, became = fields(before), fields(edited)
    undone = alice.rollback().undone
    assert plain(file.read_text()) == plain(before)
    changed = {each.key: each for each in alice.history(limit=None) if each.seq in undone}
    assert changed.keys() == {
        key for key in was | became if not same_value(was.get(key), became.get(key))
    }
    for key, each in changed.items():
        assert same_value([each.before, each.after], [was.get(key), became.get(key)])
    alice.rollback()
    assert plain(file.read_text()) == plain(edited)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("n = 2", "n = 3"),
        ("x = 2", "x = 3"),
        ("n = 2\n", "n = 2\n# mine\nm = 3\n"),
        ("[[preferences.likes.a.shops]]\nn = 1\n\n", ""),
        ("# the first one\n[[preferences.likes.a.shops]]\n", "[[preferences.likes.a.shops]]\n" * 2),
        ("[[preferences.likes.a.home.rooms]]\nn = 1\n", ""),
        ('text = "tea"\n', 'text = "milk"\n'),
        ("street = 7", "street = 8"),
        ('[preferences.likes.a]\ntext = "tea"\nnote = "mine" # a note\n', ""),
    ],
)
def test_a_hand_edit_of_an_entry_with_lists_is_undone_exactly(alice, file, old, new):
    before = begin(alice, file, SHOPS)
    save(file, before.replace(old, new))
    check_undo(alice, file, before)


HEADERS = '[preferences.likes.c]\ntext = "tea"\n\n[preferences.likes.c.at]\nx = 3\n'
BELOW = '[preferences.likes.c.at]\ntext = "tea"\n'
INLINE = '[preferences.likes]\nc.text = "tea"\nc.at.x = 3\n'


@pytest.mark.parametrize(
    ("old", "new"), [(HEADERS, INLINE), (INLINE, HEADERS), (BELOW, INLINE), (INLINE, BELOW)]
)
def test_a_hand_edit_that_writes_an_entry_in_another_way_is_undone_exactly(alice, file, old, new):
    """The text is restored from the values of the tables if another entry was written since."""
    before = begin(alice, file, f"\n{old}")
    known = alice.preferences("likes")
    last = alice.last_transaction()
    save(file, before.replace(old, new))
    alice.diary.engine.log_hand_edits("alice")
    alice.rollback()
    assert file.read_text().partition("\n\n")[2] == before.partition("\n\n")[2]
    assert alice.preferences("likes") == known
    save(file, file.read_text().replace(old, new))
    alice.upsert_preference("goals", "run")
    alice.rollback(to=last)
    assert alice.preferences("likes") == known


def test_a_comment_at_the_top_returns_if_a_rollback_is_undone(alice, file):
    first, rest = '[blocks.a]\ntext = "tea"\n\n', '[blocks.b]\ntext = "rain"\n'
    blocks = file.with_name("blocks.toml")
    alice.upsert_preference("goals", "rest")
    for text in (first + rest, f"# about it\n{rest}"):
        save(blocks, text)
        alice.diary.engine.log_hand_edits("alice")
    alice.rollback()
    assert "# about it" not in blocks.read_text()
    alice.rollback()
    assert blocks.read_text().endswith(f"\n# about it\n{rest}")


def test_a_rollback_of_comments_alone_can_be_undone(alice, file):
    begin(alice, file, "")
    save(file, f"{file.read_text()}\n# mine\n")
    alice.upsert_preference("goals", "run", id="pref002")
    alice.rollback()
    before = file.read_text()
    alice.rollback(to=2)
    assert "# mine" in before
    assert "# mine" not in file.read_text()
    alice.rollback()
    assert plain(file.read_text()) == plain(before)


def test_a_rollback_to_a_point_restores_comments_beside_unchanged_entries(alice, file):
    alice.blocks.set("a", "tea")
    blocks = file.with_name("blocks.toml")
    before = blocks.read_text()
    save(blocks, f"# mine\nmode = 5\n{before}")
    alice.upsert_preference("goals", "run")
    after = blocks.read_text()
    alice.rollback(to=1)
    assert plain(blocks.read_text()) == plain(before)
    alice.rollback()
    assert plain(blocks.read_text()) == plain(after)


def test_an_undone_rollback_restores_the_line_ends_of_an_empty_document(alice, file):
    blocks = file.with_name("blocks.toml")
    alice.blocks.set("a", "tea")
    save(blocks, blocks.read_text().replace("\n", "\r\n"))
    alice.blocks.delete("a")
    before = blocks.read_bytes()
    assert before.count(b"\r\n") == before.count(b"\n")
    alice.rollback(to=1)
    alice.rollback()
    assert blocks.read_bytes() == before.replace(b"seq = 3", b"seq = 5")


@pytest.mark.parametrize(
    ("old", "new"), [("[_meta]", "# mine\n[_meta]"), ("\nseq =", "\n# mine\nseq =")]
)
def test_a_rollback_of_a_hand_edit_removes_its_comment_in_meta(alice, file, old, new):
    before = begin(alice, file, "")
    save(file, before.replace(old, new).replace("walk", "run"))
    alice.diary.engine.log_hand_edits("alice")
    alice.rollback()
    assert file.read_text() == before.replace("seq = 2", "seq = 4")


def test_a_rollback_does_not_write_a_document_that_stays_the_same(alice, file):
    alice.blocks.set("b", "rain")
    save(file, '# mine\n[_meta]\nversion = "0.3"\n[preferences.likes.pref001]\ntext = "tea"\n')
    alice.blocks.set("a", "walk")
    alice.rollback(2)
    before = file.read_text()
    alice.rollback(2)
    assert file.read_text() == before


@pytest.mark.parametrize("top", ['title = "mine"\n', "\n\n"])
def test_a_rollback_of_an_import_restores_what_stood_above_the_tables(alice, file, top):
    alice.upsert_preference("likes", "tea")
    exported = alice.export()
    save(file, top + file.read_text())
    alice.upsert_preference("likes", "rain")
    before = file.read_text()
    alice.import_(exported, replace=True)
    assert not file.read_text().startswith(top)
    alice.rollback()
    assert file.read_text() == before.replace("seq = 3", "seq = 5")


@pytest.mark.parametrize("old", ["n = 2", "street = 7", "x = 2"])
def test_what_another_session_wrote_since_stays(alice, file, old):
    before = begin(alice, file, SHOPS)
    alice.upsert_preference("likes", "milk", id="a", session_id="x")
    alice.upsert_preference("goals", "swim", session_id="y")
    alice.rollback(session_id="x")
    blocks = [split_tail(each.text)[0] for each in split_blocks(file.read_text())]
    assert [split_tail(each.text)[0] for each in split_blocks(before)[4:]] == blocks[-7:]
    assert "swim" in file.read_text()
    save(file, file.read_text().replace(old, f"{old}1"))
    alice.upsert_preference("goals", "run", session_id="x")
    alice.rollback(session_id="x")
    assert f"{old}1" in file.read_text()


def test_a_removed_entry_comes_back_with_its_lists(alice, file):
    before = begin(alice, file, SHOPS)
    alice.remove_preference("likes", "a", session_id="x")
    assert "shops" not in file.read_text()
    alice.upsert_preference("goals", "swim", session_id="y")
    alice.rollback(session_id="x")
    assert same_value(fields(file.read_text())["likes/a"], fields(before)["likes/a"])
    assert "# the first one\n[[preferences.likes.a.shops]]\nn = 1\n" in file.read_text()


@pytest.mark.parametrize(
    "added",
    [
        "[preferences.likes.a.address]\nstreet = 1\n",
        "[[preferences.likes.a.shops]]\nn = 1\n",
        "[[preferences.likes.a.home.rooms]]\nn = 1\n",
    ],
)
def test_an_entry_with_an_inner_table_of_another_author_is_not_removed(alice, file, added):
    alice.upsert_preference("likes", "tea", id="a", session_id="x")
    save(file, f"{file.read_text()}\n{added}")
    alice.upsert_preference("goals", "walk", session_id="y")
    before = file.read_text()
    assert alice.rollback(session_id="x", dry_run=True).conflicts == ["likes/a"]
    with pytest.raises(EntryConflict) as caught:
        alice.rollback(session_id="x")
    assert caught.value.found == {"likes/a": fields(before)["likes/a"]}
    assert file.read_text() == before
    alice.rollback(session_id="x", force=True)
    assert fields(file.read_text()).keys() == {"goals/pref001"}


def test_an_entry_that_its_lists_created_is_removed_with_all_later_changes(alice, file):
    alice.upsert_preference("goals", "rest")
    save(file, f"{file.read_text()}\n[[preferences.likes.a.home.rooms]]\nn = 1\n")
    alice.upsert_preference("likes", "tea", id="a", session_id="x")
    alice.rollback(to=1)
    assert fields(file.read_text()).keys() == {"goals/pref001"}


@pytest.mark.parametrize("edited", [("c = 4", "c = 5"), ("c = 4", "n = 2")])
def test_history_has_entries_beside_lists_that_are_no_entries(alice, file, edited):
    item = "[[preferences.work]]\nn = {}\n[preferences.work.at]\nc = {}\n"
    lists = item.format(1, 4) + item.format(2, 5)
    before = begin(alice, file, f'\n[preferences.likes.a]\ntext = "tea"\n\n{lists}')
    text = before.replace("tea", "milk")
    for each in edited:
        text = text.replace(each, f"{each}0")
    save(file, text)
    alice.upsert_preference("goals", "swim")
    newest = next(each for each in alice.history() if each.key == "likes/a")
    assert (newest.before, newest.after) == ({"text": "tea"}, {"text": "milk"})
    assert plain(alice.as_of(newest.seq - 1).document("preferences")) == plain(before)


def random_entry(pick, name):
    base, parts = f"preferences.likes.{name}", []

    def items(path, depth=0):
        text = ""
        for _ in range(pick.randrange(1, 4)):
            text += pick.choice(["", "", "# item\n"]) + f"[[{path}]]\nn = {pick.randrange(5)}\n"
            if pick.random() < 0.25:
                text += f"[{path}.at]\nx = {pick.randrange(5)}\n"
            if not depth and pick.random() < 0.2:
                text += items(f"{path}.in", 1)
            text += pick.choice(["", "\n"])
        return text

    if pick.random() < 0.7:
        parts.append(items(f"{base}.shops"))
    if pick.random() < 0.3:
        parts.append(f"[{base}.address]\nstreet = {pick.randrange(9)}\n")
    if pick.random() < 0.25:
        parts.append(items(f"{base}.home.rooms"))
    pick.shuffle(parts)
    lead = pick.choice(["", "# about it\n"])
    return [
        f'{lead}[{base}]\ntext = "{pick.choice(["tea", "jazz"])} {pick.randrange(9)}"\n',
        *parts,
    ]


def random_document(pick):
    entries = [random_entry(pick, name) for name in ("a", "b", "c")[: pick.randrange(1, 4)]]
    apart = [
        entry.pop() for entry in entries if len(entry) > 1 and pick.random() < 0.2
    ]  # stand behind the other entries
    return "".join("\n" * pick.randrange(2) + part for entry in [*entries, apart] for part in entry)


def random_edit(pick, text):
    blocks = split_blocks(text)
    texts = [each.text for each in blocks]
    first = next(number for number, each in enumerate(blocks) if each.path[1:2] == ("likes",))
    at, other = (pick.randrange(first, len(blocks)) for _ in range(2))
    change = pick.choice(["value", "value", "remove", "repeat", "comment", "swap", "line", "item"])
    if change == "value":
        texts[at] = re.sub(r"= \d", f"= {pick.randrange(10, 99)}", texts[at], count=1)
    elif change == "remove":
        del texts[at]
    elif change == "repeat":
        texts.insert(at, texts[at])
    elif change == "comment":
        texts[at] += pick.choice(["# mine\n", "\n# mine\n\n"])
    elif change == "swap":
        texts[at], texts[other] = texts[other], texts[at]
    elif change == "line":
        lines = texts[at].split("\n")
        del lines[pick.randrange(1, len(lines))]
        texts[at] = "\n".join(lines)
    else:
        texts.insert(at, f"[[preferences.likes.a.{pick.choice(['shops', 'more'])}]]\nn = 77\n")
    made = "".join(texts)
    try:
        tomllib.loads(made)
    except tomllib.TOMLDecodeError:
        return text
    return made if made.endswith("\n") else f"{made}\n"


@pytest.mark.parametrize("seed", range(12))
def test_a_random_hand_edit_is_undone_exactly(alice, file, seed):
    pick = random.Random(seed)
    before = begin(alice, file, f"\n{random_document(pick)}")
    edited = before
    while same_value(fields(edited), fields(before)):
        for _ in range(pick.choice([1, 1, 2])):
            edited = random_edit(pick, edited)
    save(file, edited)
    check_undo(alice, file, before)


def test_a_rollback_of_many_new_entries_reads_the_document_a_few_times(tmp_path):
    """It reads it, and reserves the ids of all removed entries, at once: one at a time takes quadratic time."""
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    path = tmp_path / "alice/preferences.toml"
    added = "".join(f'[preferences.likes.pref{n:03d}]\ntext = "thing {n}"\n' for n in range(2, 62))
    path.write_text(path.read_text() + added)
    age(path)
    with noted_calls(IncrementalIndex.update) as updated, noted_calls(Transaction.document) as read:
        assert len(alice.rollback().keys) == 60
    assert len(updated) < 20
    assert 0 < len(read) < 20
    assert [*alice.preferences()["likes"]] == ["pref001"]
    assert alice.upsert_preference("likes", "coffee")[0] == "pref062"
