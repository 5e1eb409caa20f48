"""Damaged diaries: whatever stands in a file, reads say so or serve, and writes take nothing away."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import time
import tomllib

import pytest

from power_cuts import SameDisk
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from tomldiary.errors import DiaryError, DocumentError
from tomldiary.history.verify import verify
from tomldiary.toml.document import Document
from tomldiary.toml.edit import Edit
from tomldiary.toml.parse import decode_utf8
from tomldiary.toml.values import same_value

LONGEST = 0.25  # seconds of this thread's own time, whatever else the machine does

BY_HAND = """\
# my memory, please keep tidy

[_meta]
version = "0.3"   # do not touch
next_ids = { likes = 9 }

# likes come first
[preferences.likes.pref001]
text = "dark roast"    # every morning
contexts = [
    "morning",  # early
    "café [of old]",
]
_count = 2
_created = 2024-05-01T07:30:00+02:00
weight = 0x1F
# about coffee

# ---- dislikes ----

[preferences.dislikes."a.b"]
'text' = 'cilantro'
extra = { by = "hand", deep = { er = [1, 2.5e3, nan, true] } }

[likes.jazz]
text = \"\"\"
of the 1950s,
[not.a.header]
# not a comment\\
   \"\"\"

[[preferences.likes.pref001.seen]]
day = 2024-05-01
at = 07:30:00.5

[preferences.goals]
rest = { text = "rest", _count = 3 }
run.text = "run"
"""

OLD_LAYOUT = """\
[_meta]
version = "0.2"

# the first one
[chat_1]
_created = "2024-01-01T00:00:00Z"
_turns = 3
summary = "old layout"
keywords = ["a", "b"]

[chat_2]
summary = '''
two
lines'''
"""

BOMBS = [
    b"[" * 500, b"[" * 70_000, b"a = " + b"[" * 3_000, b"a = " + b"{a=" * 3_000, b"a = " + b"{a=[" * 40 + b"]}" * 40,
    b".".join([b"a"] * 3_000) + b" = 1", b"[" + b".".join([b"a"] * 3_000) + b"]", b"[" + b".".join([b"a"] * 40) + b"]",
    b".".join([b'"a"'] * 70) + b" = 1", b"a = 1" + b"0" * 5_000, b"a = 0x" + b"f" * 9_000, b"a = 1e" + b"9" * 400,
    b"a = " + b"-" * 9_000, b"a = " + b"1_" * 9_000, b"a = " + b"1." * 9_000, b'"' * 20_000, b"'" * 20_001,
    b'a = """' + b'"' * 5_000, b"a = '''" + b"x\n" * 9_000, b'a = "' + b"\\" * 20_001, b"#" * 50_000, b"\\u" * 9_000,
    b"\n" * 50_000, b" " * 100_000, b"\t[\t" * 5_000, b"# \n" * 20_000, b"a\n" * 20_000, b"[a]\n" * 5_000,
    b"[[a]]\n" * 5_000, b"[a" + b" " * 50_000 + b"]", b"a = [" + b"1," * 20_000 + b"]", b"a = [" + b"\n# x\n" * 9_000,
    b"a." * 60 + b"a = 1\n", b"a = 2024-13-45", b"a = 2024-02-30T99:00:00Z", b"a = 24:61:61", b"a = 0000-00-00",
    b'a = "\\ud800"', b'a = "\\U00110000"', b"a = inf\nb = -nan", b"preferences = 1", b"preferences = []",
    b"preferences.likes = 7", b"_meta = 1", b"[[_meta]]", b"[[preferences]]", b"[[preferences.likes]]\ntext = 1",
    b"[preferences.likes.x]\ntext = [1]\n_count = 'x'\ncontexts = 7", b"[preferences.likes]\nx = 'text'",
    b"[conversations]\nx = 1", b"[conversations.x]\n_turns = 'many'\nsummary = 5\nkeywords = 'a'\n_updated = 1",
    b'[_meta]\nversion = "9.9"', b'[_meta]\nversion = "0.2.x"', b"[_meta]\nversion = 1e400", b"[_meta]\nseq = -5",
    b"[_meta]\nseq = 99999999999999999999999", b"[_meta]\nseq = true", b"[_meta]\nseq = 'x'\nnext_ids = 5",
    b"[_meta]\nnext_ids = { likes = 'x' }", b"[_meta.compaction]\ntotal_turns = 'x'", b"[preferences.likes.'']\ntext = ''",
    b"['']\n''.'' = 1", b"[preferences.likes.x]\n_updated = 1979-05-27\n_created = {a = 1}\ntext = {b = 2}",
    b"[preferences.likes.pref999999999999999999999]\ntext = 'x'",
]  # fmt: skip
SPLICES = [
    b"\x00", b"\r", b"\r\n", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b"\x80", b"\xe2\x80\xa8", b"\x1b[2J", b"\x7f",
    b'"', b"'", b'"""', b"'''", b"\\", b"#", b"=", b".", b",", b"[", b"]", b"{", b"}", b"[[", b"]]", b"\n[", b"\n]\n",
    b"\n[x]\n", b"\n[[x]]\n", b"\nx = 1\n", b"\n# note\n", b'\n"""\n', b"\n[preferences]\n", b"\n[_meta]\n", b"0", b"-",
    b"\xc2\xa0", b"\n[preferences.likes.new]\ntext = 'new'\n", b"\n[a.b.c.d.e.f]\n",
]  # fmt: skip

REWRITTEN = [
    lambda data: data.replace(b"\n", b"\r\n"),
    lambda data: data.replace(b"\n", b"\r"),
    lambda data: b"\xef\xbb\xbf" + data,
    lambda data: data.decode("utf-8", "replace").encode("utf-16"),
    lambda data: data.decode("utf-8", "replace").encode("latin-1", "replace"),
    lambda data: data.replace(b"0", b"9"),
    lambda data: data.replace(b" = ", b"=", 3),
]


def mutated(data, choose):
    """Return a document's bytes with one to four things done to them, mostly one."""
    for _ in range(choose.choice([1, 1, 1, 2, 4])):
        at = choose.randrange(len(data) + 1)
        lines = data.split(b"\n")
        line = choose.randrange(len(lines))
        match choose.randrange(12):
            case 0:  # a flipped bit
                at = min(at, len(data) - 1)
                data = data[:at] + bytes([data[at] ^ (1 << choose.randrange(8))]) + data[at + 1 :]
            case 1:  # a hole
                data = data[:at] + data[at + choose.choice([1, 2, 5, 40, 400]) :]
            case 2:  # cut off
                data = data[:at]
            case 3:  # lines twice, or elsewhere
                some = lines[line : line + choose.randint(1, 9)]
                to = choose.randrange(len(lines))
                data = b"\n".join([*lines[:to], *some, *lines[to:]])
            case 4:  # lines gone
                data = b"\n".join([*lines[:line], *lines[line + choose.randint(1, 6) :]])
            case 5 | 6:  # something that means something
                data = data[:at] + choose.choice(SPLICES) + data[at:]
            case 7:  # a bomb on a line of its own
                data = b"\n".join([*lines[:line], choose.choice(BOMBS), *lines[line:]])
            case 8:  # a bomb as a value, or instead of a line
                lines[line] = lines[line].partition(b"=")[0] + b"= " + choose.choice(BOMBS)
                data = b"\n".join(lines)
            case 9:  # another way to end lines, or to write characters
                data = choose.choice(REWRITTEN)(data)
            case 10:  # a line of somewhere else
                lines[line] = choose.choice(lines)
                data = b"\n".join(lines)
            case _:  # two halves the other way round
                data = data[at:] + data[:at]
        data = data or b"\n"
    return data


@pytest.fixture(autouse=True)
def _no_log():
    """What is logged about thousands of broken files would be kept, with all they hold, to the end."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def opened(root):
    """Open a folder, or a copy of it, where no power cut can have cut off a document."""
    backend = LocalBackend(root, durability="process", files=SameDisk())
    return Diary(backend, agent="rules")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A diary as it comes to be: by turns, by hand, with things forgotten."""
    root = tmp_path_factory.mktemp("fuzz") / "m"
    alice = opened(root).user("alice")
    for number in range(3):
        alice.add_turn(f"I love jazz {number}. I hate noise {number}.", "ok", f"s{number}")
    alice.upsert_preference("goals", 'two\nlines and a "quote" \\', contexts=["é", "[x]"])
    file = root / "alice/preferences.toml"
    file.write_text(file.read_text().replace("[preferences.likes.pref002]", "# mine\n[preferences.likes.pref002]"))  # fmt: skip
    os.utime(file, (1, 1))
    alice.forget_preference("likes", "pref001")
    alice.upsert_preference("goals", "rest")
    return root


def originals(store):
    found = [(store / f"alice/{kind}.toml").read_bytes() for kind in ("preferences", "conversations")]  # fmt: skip
    return [*found, found[0].replace(b"\n", b"\r\n"), BY_HAND.encode(), OLD_LAYOUT.encode()]


def in_time(call):
    """Call it and return what it returns; nothing may take longer than `LONGEST`, however often."""
    times = []
    while not times or (times[-1] > LONGEST and len(times) < 4):
        start = time.thread_time()
        try:
            result, error = call(), None
        except DiaryError as refused:
            result, error = None, refused
        times.append(time.thread_time() - start)
    assert min(times) < LONGEST
    if error is not None:
        raise error
    return result


def leaves(data, path=()):
    """Return all that stands in tables, by path."""
    if not isinstance(data, dict):
        return {path: data}
    return {place: value for key, inner in data.items() for place, value in leaves(inner, (*path, key)).items()}  # fmt: skip


def contained(old, new):
    """Return what of the old values is not in the new ones; bookkeeping may change."""
    known = leaves(new)
    return [
        (path, value)
        for path, value in leaves(old).items()
        if path[0] != "_meta"
        and not any(
            place in known and same_value(known[place], value)
            for place in (path, ("conversations", *path))  # where an old layout's sessions go
        )
    ]


def read_raw(data):
    """Return a text if it may be used, by what the standard library says of it."""
    try:
        text = in_time(lambda: decode_utf8(data))
        document = in_time(lambda: Document.parse(text))
    except DocumentError:
        return None
    assert same_value(document.data, tomllib.loads(text.removeprefix("\ufeff")))
    assert document.text == text
    assert "".join(block.text for block in document.blocks) == text
    return document


def put_and_delete(document, choose):
    """An edit changes what it is asked to change and nothing else, or is refused."""
    path = ("preferences", "likes", "added")

    def put():
        edit = Edit(document)
        edit.put(path, {"text": "x", "_count": 1})
        return edit

    try:
        edit = in_time(put)
    except DiaryError:
        return False
    made = tomllib.loads(edit.done().text.removeprefix("\ufeff"))
    assert contained(document.data, made) == []
    assert same_value(made["preferences"]["likes"]["added"], {"text": "x", "_count": 1})
    gone = choose.choice(list(document.index) or [("no", "such")])
    edit = Edit(document)
    with contextlib.suppress(DiaryError):
        if edit.delete(gone):
            now = leaves(tomllib.loads(edit.done().text.removeprefix("\ufeff")))
            assert not [p for p in now if p[: len(gone)] == gone]
            assert {p: v for p, v in leaves(document.data).items() if p[: len(gone)] != gone}.keys() <= now.keys()  # fmt: skip
    return True


@contextlib.contextmanager
def told(seed, number):
    """Say which case it was."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"seed {seed}, case {number}")
        raise


def fuzz_texts(store, count, seed):
    """Parse and edit `count` damaged documents; return how many could be parsed, and edited."""
    choose = random.Random(seed)
    texts = originals(store)
    parsed = edited = 0
    for number in range(count):
        with told(seed, number):
            data = mutated(choose.choice(texts), choose)
            document = read_raw(data)
            if document is not None:
                parsed += 1
                edited += put_and_delete(document, choose)
    return parsed, edited


def test_400_damaged_texts_are_read_or_refused_without_loss(store):
    parsed, edited = fuzz_texts(store, 400, 1)
    assert 40 < edited <= parsed < 360


# In a diary


READS = [
    lambda alice: alice.preferences(),
    lambda alice: alice.conversations(),
    lambda alice: alice.render(),
    lambda alice: alice.problems(),
    lambda alice: alice.recall("jazz quote"),
    lambda alice: alice.entry("preferences", "likes/pref002"),
    lambda alice: alice.similar("likes", "jazz"),
]
LOOKING_BACK = [
    lambda alice: alice.history(limit=500),
    lambda alice: alice.diff(1),
    lambda alice: alice.why("likes/pref002"),
    lambda alice: alice.as_of(3).preferences(),
]


def looks(alice, choose):
    """Read in every way there is; what is said about a document that cannot be used is fine."""
    for look in [*READS, *(LOOKING_BACK if choose.random() < 0.2 else [])]:
        with contextlib.suppress(DiaryError):
            look(alice)


WRITES = [
    ("preferences", lambda alice: alice.upsert_preference("likes", "probe", session_id="a probe")),
    ("preferences", lambda alice: alice.add_turn("I love probe.", "ok", "a probe")),
    ("conversations", lambda alice: alice.add_turn("I love probe.", "ok", "a probe")),
    ("preferences", lambda alice: alice.upsert_preference("likes", "probe", id="pref002")),
    ("preferences", lambda alice: alice.upsert_preference("goals", id="pref001")),
    ("preferences", lambda alice: alice.forget_preference("likes", "pref002")),
    ("preferences", lambda alice: alice.rollback(2, force=True)),
    ("preferences", lambda alice: alice.forget(session_id="s1")),
]
ADDING = 3
"""So many of them only add something."""


def fuzz_diaries(store, root, count, seed):
    """Put `count` damaged files into a diary, read it in all ways, and write to it."""
    choose = random.Random(seed)
    done = {"written": 0, "removed": 0, "refused": 0, "around": 0}
    for number in range(count):
        with told(seed, number):
            fuzz_diary(store, root / str(number), choose, done)
        shutil.rmtree(root / str(number))
    return done


def fuzz_diary(store, root, choose, done):
    kind, write = choose.choice(WRITES[: ADDING if choose.random() < 0.6 else None])
    shutil.copytree(store, root)
    if choose.random() < 0.3:
        shutil.rmtree(root / "alice/history")
    file = root / f"alice/{kind}.toml"
    sources = originals(store)[3:] if choose.random() < 0.2 else [file.read_bytes()]
    before = mutated(choose.choice(sources), choose)
    file.write_bytes(before)
    os.utime(file, (1, 1))  # old enough that no save is under way
    document = read_raw(before)
    diary = opened(root)
    alice = diary.user("alice")
    looks(alice, choose)
    assert file.read_bytes() == before
    try:
        applied = write(alice)
    except DiaryError:
        is_refused = True
    else:
        is_refused = bool(getattr(applied, "skipped", None))  # a turn says so and goes on
    if is_refused:
        done["refused"] += 1
        assert kind != "preferences" or file.read_bytes() == before
    else:
        adds = any(write is one for _, one in WRITES[:ADDING])
        done[check_written(alice, file, before, document, adds=adds)] += 1
    looks(alice, choose)
    looks(opened(root).user("alice"), choose)
    damage = verify(diary.engine.backend, "alice")
    # The number of the transaction in a document may be what was damaged.
    assert damage is None or "the document was written by" in damage.message


@pytest.mark.parametrize("is_logged", [True, False])
def test_a_list_in_place_of_a_category_is_a_named_error(tmp_path, is_logged):
    alice = Diary(tmp_path, agent="rules", durability="process").user("alice")
    alice.upsert_preference("likes", "tea")
    file = tmp_path / "alice/preferences.toml"
    before = f"[[preferences.likes]]\ntext = 1\n{file.read_text()}"
    file.write_text(before)
    os.utime(file, (1, 1))
    if not is_logged:
        shutil.rmtree(tmp_path / "alice/history")
    alice = Diary(tmp_path, agent="rules", durability="process").user("alice")
    with pytest.raises(DocumentError, match=r"preferences\.likes: expected a table"):
        alice.add_turn("I love probe.", "ok", "a probe")
    assert file.read_text() == before


def check_written(alice, file, before, document, *, adds):
    """Check what a write left, and return what it was."""
    if adds:
        again = opened(file.parents[1]).user("alice")
        assert "probe" in f"{again.preferences()}"
    if document is None:
        # Not overwritten: what was written is in history, and is read from there.
        assert file.read_bytes() == before
        return "around"
    made = tomllib.loads(file.read_bytes().decode().removeprefix("\ufeff"))
    if not adds:
        return "removed"
    assert contained(document.data, made) == []
    return "written"


def test_30_damaged_files_are_served_or_refused_and_never_overwritten(store, tmp_path):
    done = fuzz_diaries(store, tmp_path, 30, 1)
    assert min(done.values()) > 0, done


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
def test_100000_damaged_texts_are_read_or_refused_without_loss(store):
    parsed, edited = fuzz_texts(store, 100_000, random.randrange(10**9))
    assert 10_000 < edited <= parsed


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
def test_10000_damaged_files_are_served_or_refused_and_never_overwritten(store, tmp_path):
    done = fuzz_diaries(store, tmp_path, 10_000, random.randrange(10**9))
    assert min(done.values()) > 200, done
