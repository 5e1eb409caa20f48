"""A save that arrives at the moment of an exchange is logged at once, whichever text its editor has read."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import tracemalloc
from contextlib import suppress

import pytest
from pydantic import BaseModel

from capabilities import needs_exchange, needs_leases
from file_systems import HookedFiles, killed_before
from hand_edits import age, begin, texts
from tomldiary import Constraint, Diary
from tomldiary.backends import LocalBackend
from tomldiary.errors import BackendError, Conflict
from tomldiary.history.record import parse_record
from tomldiary.history.verify import verify

pytestmark = [needs_exchange, needs_leases]


class Birth(BaseModel):
    year: int


def opened(root, files=None):
    diary = Diary(LocalBackend(root, durability="process", files=files), agent="rules")
    diary.register_schema("birth", Birth, Constraint(immutable=True))
    return diary.user("alice")


@pytest.fixture
def alice(tmp_path, files):
    alice = opened(tmp_path, files)
    for text in ("tea", "coffee"):
        alice.upsert_preference("likes", text)
    return alice


def types(alice):
    return [parse_record(text).type for text in alice.diary.engine.backend.records("alice")][::-1]


def by_rename(file, text):
    file.with_name("beside~").write_text(text)
    age(file.with_name("beside~"))
    file.with_name("beside~").replace(file)


def in_place(file, text):
    return begin(file.write_text, text)


def around(files, *moments):
    """Do something before and behind each exchange of files, as long as there is something left to do."""
    real, left = files.exchange, list(moments)

    def swap(one, two):
        before, behind = left.pop(0) if left else (None, None)
        if before is not None:
            before()
        done = real(one, two)
        if behind is not None:
            behind()
        return done

    files.exchange = swap


def first(file):
    """Save what a person made of the text that stands there."""
    by_rename(file, file.read_text().replace('"tea"', '"green tea"  # first'))


def second(text):
    """Return what a person makes of a text they have read."""
    return f"{text.replace(chr(34) + 'coffee', chr(34) + 'decaf')}\n# second\n"


def check(alice, file):
    """All that three have written is there."""
    assert texts(alice) == ["green tea", "decaf", "water"]
    alice.upsert_preference("goals", "rest")
    assert texts(alice) == ["green tea", "decaf", "water"]
    assert texts(alice, "goals") == ["rest"]
    assert '"green tea"  # first\n' in file.read_text()
    assert "# second\n" in file.read_text()
    assert not any(entry.is_conflict for entry in alice.history(limit=99))
    assert not list(file.parent.glob(".staged*"))
    assert verify(alice.diary.engine.backend, "alice") is None


def test_a_displaced_edit_is_logged_and_published_before_the_write_returns(alice, file, files):
    around(files, (lambda: first(file), None))
    alice.upsert_preference("likes", "water")
    assert types(alice) == ["upsert", "upsert", "upsert", "hand"]
    assert '"green tea"  # first\n' in file.read_text()
    assert '"water"' in file.read_text()
    assert not list(file.parent.glob(".staged*"))
    assert texts(alice) == ["green tea", "coffee", "water"]
    alice.upsert_preference("goals", "rest")
    assert types(alice)[-2:] == ["hand", "upsert"]


@pytest.mark.parametrize("durability", ["process", "full"])
def test_without_leases_an_edit_in_place_is_detected_by_its_time(tmp_path, files, durability):
    backend = LocalBackend(tmp_path, durability=durability, files=files)
    alice = Diary(backend, agent="rules").user("alice")
    for text in ("tea", "coffee", "milk"):
        alice.upsert_preference("likes", text)
    file = tmp_path / "alice/preferences.toml"
    files.take_lease = lambda _: errno.EINVAL
    around(files, (lambda: file.write_text(file.read_text().replace('"tea"', '"TEA"')), None))
    alice.upsert_preference("likes", "water")
    assert texts(alice) == ["TEA", "coffee", "milk", "water"]


MOMENTS = ["at once", "before the merged text", "behind it", "after another write", "much later"]


@pytest.mark.parametrize("save", [by_rename, in_place])
@pytest.mark.parametrize("when", MOMENTS)
def test_a_save_of_a_text_read_during_publish_reverts_nothing(alice, file, when, save, files):
    seen, savers = [], []

    def look():
        seen.append(second(file.read_text()))
        assert "first" not in seen[0]
        if when == MOMENTS[0]:
            go()

    def go():
        savers.append(save(file, seen[0]))

    around(
        files,
        (lambda: first(file), look),
        (go if when == MOMENTS[1] else None, go if when == MOMENTS[2] else None),
    )
    alice.upsert_preference("likes", "water")
    if when in MOMENTS[3:]:
        alice.add_episode("hello", "hi", session_id="s")
        if when == MOMENTS[4]:
            alice.upsert_preference("goals", "walk")
            alice.forget_preference("goals", "pref001")
        go()
    for saver in savers:
        if saver is not None:
            saver.join()
    age(file)
    check(alice, file)


def test_25_displaced_edits_in_a_row_are_all_kept(alice, file, files):
    saved = []

    def save():
        number = len(saved)
        by_rename(file, f'{file.read_text()}\n[preferences.goals.h{number}]\ntext = "{number}"\n')
        saved.append(str(number))

    around(files, *[(save, None)] * 25)
    alice.upsert_preference("likes", "water")
    assert 20 <= len(saved) < 25  # another writer waits for the lock
    while len(saved) < 25:
        alice.upsert_preference("likes", "water")
    alice.upsert_preference("likes", "water")
    age(file)
    assert texts(alice) == ["tea", "coffee", "water"]
    assert texts(alice, "goals") == saved
    assert not list(file.parent.glob(".staged*"))


# What cannot be merged


def test_a_displaced_edit_that_is_no_toml_is_restored(alice, file, files):
    broken = file.read_text().replace('"tea"', '"tea')
    around(files, (lambda: by_rename(file, broken), None))
    alice.upsert_preference("likes", "water")
    assert file.read_text() == broken
    assert not list(file.parent.glob(".staged*"))
    assert texts(alice) == ["tea", "coffee", "water"]
    alice.upsert_preference("goals", "rest")
    assert file.read_text() == broken
    by_rename(file, broken.replace('"tea', '"green tea"'))
    assert texts(alice) == ["green tea", "coffee", "water"]
    assert texts(alice, "goals") == ["rest"]


def test_an_unfinished_displaced_edit_is_restored_and_waited_for(alice, file, files):
    whole = file.read_text().replace('"tea"', '"green tea"')
    writing = []

    def begin():
        file.rename(file.with_name("preferences.toml~"))
        writing.append(file.open("w"))
        writing[0].write(whole[: whole.index("[preferences.likes.pref002]")])
        writing[0].flush()

    around(files, (begin, None))
    alice.upsert_preference("likes", "water")
    assert texts(alice) == ["tea", "coffee", "water"]
    assert types(alice) == ["upsert"] * 3
    writing[0].write(whole[whole.index("[preferences.likes.pref002]") :])
    writing[0].close()
    age(file)
    assert texts(alice) == ["green tea", "coffee", "water"]
    assert not list(file.parent.glob(".staged*"))


def test_an_edit_saved_while_a_broken_one_is_displaced_is_kept(alice, file, files):
    broken = file.read_text().replace('"tea"', '"tea')
    around(
        files,
        (lambda: by_rename(file, broken), None),
        (lambda: by_rename(file, second(file.read_text())), None),  # as the broken one goes back
    )
    alice.upsert_preference("likes", "water")
    assert file.read_text() == broken
    assert texts(alice) == ["tea", "decaf", "water"]
    by_rename(file, broken.replace('"tea', '"green tea"'))
    assert texts(alice) == ["green tea", "decaf", "water"]


def test_a_displaced_link_is_restored_and_not_followed(alice, file, files):
    other = file.with_name("other")
    other.write_text('[preferences.likes.x]\ntext = "x"\n')

    def link():
        file.unlink()
        file.symlink_to(other)

    around(files, (link, None))
    alice.upsert_preference("likes", "water")
    assert file.is_symlink()
    assert not list(file.parent.glob(".staged*"))
    with pytest.raises(BackendError, match="link"):
        texts(alice)
    file.unlink()
    assert other.read_text() == '[preferences.likes.x]\ntext = "x"\n'


# More about hand edits


def test_an_id_removed_by_a_displaced_edit_is_not_reused(alice, file, files):
    text = file.read_text()
    without = text[: text.index("[preferences.likes.pref002]")]
    around(files, (lambda: by_rename(file, without), None))
    alice.upsert_preference("goals", "rest")
    assert texts(alice) == ["tea"]
    assert alice.upsert_preference("likes", "water")[0] == "pref003"


def test_a_displaced_edit_of_an_immutable_fact_is_undone_and_logged(alice, tmp_path, files):
    facts = tmp_path / "alice/facts.toml"
    key = alice.commit(Birth(year=1980))
    wrong = facts.read_text().replace("year = 1980", "year = 1999")
    around(files, (lambda: by_rename(facts, wrong), None))
    alice.commit(Birth(year=2015))
    assert "year = 1999" in facts.read_text()
    for each in (alice, opened(tmp_path)):  # also for a new reader
        assert each.get(key).data.year == 1980
    alice.commit(Birth(year=2016))
    assert "year = 1999" not in facts.read_text()
    assert alice.get(key).data.year == 1980
    years = [entry.after["year"] for entry in alice.history(f"facts/{key}")]
    assert years == [1980, 1999, 1980]


def test_a_displaced_edit_that_cannot_be_logged_is_merged_later(alice, file, files):
    def full(name, *_):
        if name == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    around(files, (lambda: first(file), lambda: setattr(files, "hook", full)))
    alice.upsert_preference("likes", "water")
    assert (
        types(alice) == ["upsert"] * 3
    )  # the diary's change is stored, and nothing else is reported
    files.hook = None
    by_rename(file, second(file.read_text()))
    alice.upsert_preference("goals", "walk")
    alice.forget_preference("goals", "pref001")
    check(alice, file)


def test_a_merged_displaced_edit_that_stays_reverts_nothing(tmp_path, file, files):
    alice = opened(tmp_path, files)
    alice.upsert_preference("likes", "tea")
    older = file.read_text().replace('"tea"', '"green tea"  # first')
    alice.upsert_preference("likes", "coffee")
    newer = second(file.read_text())
    for number in range(3):  # more than in the older one
        newer += f'\n[preferences.places.p{number}]\ntext = "place {number}"\n'
    by_rename(file, older)

    def failing(name, path, *_):
        if name == "unlink" and files.token(path)[0] < 10**12:  # the one that was displaced
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def save():
        by_rename(file, newer)
        os.utime(file, (1, 1))

    around(files, (save, None))
    files.hook = failing
    alice.upsert_preference("likes", "water")
    files.hook = None
    assert list(file.parent.glob(".staged*"))
    check(alice, file)


def test_an_edit_displaced_by_a_checkpoint_is_merged_by_the_next_write(tmp_path, file, files):
    backend = LocalBackend(tmp_path, files=files)
    alice = Diary(backend, agent="rules").user("alice")
    for text in ("tea", "coffee"):
        alice.upsert_preference("likes", text)

    def failing(name, path, *_):
        if name == "sync_file" and path == str(file):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with backend.lock("alice", 1.0):
        files.hook = failing
        with pytest.raises(OSError, match="error"):
            backend.settle("alice")
        files.hook = None
        around(files, (lambda: first(file), None))
        with pytest.raises(Conflict):
            backend.settle("alice")
    by_rename(file, second(file.read_text()))
    alice.upsert_preference("likes", "water")
    check(alice, file)


def test_an_edit_displaced_by_recovery_is_merged(tmp_path, file, files):
    alice = opened(tmp_path, files)
    for text in ("tea", "coffee"):
        alice.upsert_preference("likes", text)

    class Killed(BaseException):
        pass

    files.exchange = lambda *_: (_ for _ in ()).throw(Killed)
    with pytest.raises(Killed):
        alice.upsert_preference("likes", "water")
    del files.exchange
    alice = opened(tmp_path, files)
    around(files, (lambda: first(file), None))
    assert texts(alice) == ["green tea", "coffee", "water"]
    by_rename(file, second(file.read_text()))
    check(alice, file)


@pytest.mark.parametrize("moment", ["before the exchange", "before the merge", "never"])
def test_a_hand_edit_of_any_size_is_kept_and_not_read_whole(tmp_path, file, files, moment):
    alice = opened(tmp_path, files)
    alice.upsert_preference("likes", "tea")
    large = file.with_name("large~")
    large.touch()
    os.truncate(large, 1 << 26)

    def end(now):
        if now == moment:
            raise KeyboardInterrupt

    def save():
        large.replace(file)
        end("before the exchange")

    around(files, (save, lambda: end("before the merge")))
    tracemalloc.start()
    try:
        with suppress(KeyboardInterrupt):
            alice.upsert_preference("likes", "coffee")
        other = opened(tmp_path)
        assert texts(other) == ["tea", "coffee"]
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()
    assert file.stat().st_size == 1 << 26
    assert "larger than" in str(other.problems()[0])


def test_an_exact_copy_of_a_document_is_no_hand_edit(alice, file, files):
    around(files, (lambda: by_rename(file, file.read_text()), None))
    alice.upsert_preference("likes", "water")
    assert types(alice) == ["upsert"] * 3
    assert not list(file.parent.glob(".staged*"))


# Killed at any step


def killed_after(number, root):
    """Write once, meet a save at the exchange, and be killed before the file operation `number` behind that."""
    files = HookedFiles()
    alice, file = opened(root, files), root / "alice/preferences.toml"

    def behind():
        (root / "seen").write_text(file.read_text())
        files.hook = killed_before(number + 1)

    assert texts(alice) == ["tea", "coffee"]
    around(files, (lambda: first(file), behind))
    alice.upsert_preference("likes", "water")


@pytest.mark.parametrize("is_saved_again", [False, True])
def test_a_kill_after_the_exchange_loses_no_displaced_edit(tmp_path, is_saved_again):
    number, exitcode = 0, -signal.SIGKILL
    while exitcode == -signal.SIGKILL:
        root = tmp_path / str(number)
        file = root / "alice/preferences.toml"
        for text in ("tea", "coffee"):
            opened(root).upsert_preference("likes", text)
        process = multiprocessing.get_context("fork").Process(
            target=killed_after, args=(number, root)
        )
        process.start()
        process.join()
        exitcode = process.exitcode
        number += 2
        seen = (root / "seen").read_text()
        assert "first" not in seen
        if is_saved_again:  # by a person who has read the diary's text, before the next read
            by_rename(file, second(seen))
        alice = opened(root)
        assert texts(alice) == ["green tea", "decaf" if is_saved_again else "coffee", "water"]
        if not is_saved_again:
            by_rename(file, second(file.read_text()))
        check(alice, file)
        assert types(alice).count("hand") == 2
    assert exitcode == 0
    assert number > 8  # file operations


def test_a_displaced_edit_that_waits_for_a_newer_one_is_kept(alice, file, files):
    """The displaced edit is still being written, and a person has saved another one since."""
    started = []

    def begin():
        file.rename(file.with_name("preferences.toml~"))
        whole = file.with_name("preferences.toml~").read_text()
        started.append((file.open("w"), whole.replace('"tea"', '"green tea"  # first')))

    def save():
        by_rename(file, second(file.read_text()))

    around(files, (begin, save))
    alice.upsert_preference("likes", "water")
    assert list(file.parent.glob(".staged*"))
    assert texts(alice) == ["tea", "decaf", "water"]
    with started[0][0] as writing:
        writing.write(started[0][1])
    alice.upsert_preference("goals", "walk")
    alice.forget_preference("goals", "pref001")
    check(alice, file)
