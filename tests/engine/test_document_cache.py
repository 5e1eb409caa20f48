"""The document cache is limited by the size of its documents, not by their number."""

from __future__ import annotations

import os
import time

from hand_edits import age
from tomldiary import Constraint, Diary
from tomldiary.backends import LocalBackend
from tomldiary.engine.engine import Engine
from tomldiary.runtime.lru import RecentBySize
from tomldiary.storage import MemoryBackend
from tomldiary.storage.files import FileSystem
from tomldiary.storage.protocol import Commit


def cache(most):
    return RecentBySize[str, str](most, len)


def test_values_beyond_the_size_are_evicted_oldest_first():
    known = cache(10)
    for key in "abc":
        known.keep(key, "xxxx")
    assert [known.get(key) for key in "abc"] == [None, "xxxx", "xxxx"]


def test_many_small_values_stay():
    known = cache(10_000)
    for number in range(5_000):
        known.keep(str(number), "xx")
    assert all(known.get(str(number)) for number in range(5_000))


def test_a_replaced_or_removed_value_frees_its_size():
    known = cache(10)
    known.keep("a", "x" * 9)
    known.keep("a", "x")
    known.keep("b", "x" * 9)
    assert known.get("a") == "x"
    assert known.pop("b") == "x" * 9
    assert known.pop("b") is None
    known.keep("c", "x" * 9)
    assert known.get("a") == "x"


def test_dropped_keys_free_their_size():
    known = cache(10)
    known.keep("a", "x" * 5)
    known.keep("b", "x" * 5)
    known.drop(lambda key: key == "b")
    known.keep("c", "x" * 5)
    assert [known.get(key) for key in "abc"] == ["x" * 5, None, "x" * 5]


def test_the_latest_value_stays_even_if_it_is_too_large():
    known = cache(10)
    known.keep("a", "x")
    known.keep("b", "x" * 99)
    assert known.get("a") is None
    assert known.get("b") == "x" * 99
    known.keep("a", "x")
    assert known.get("b") is None


class Counted(MemoryBackend):
    """Counts the documents that are read."""

    def __init__(self):
        super().__init__()
        self.reads = 0

    def read(self, user, kind):
        self.reads += 1
        return super().read(user, kind)


class Small(Engine):
    """Keeps little in its caches."""

    cached_characters = 1_000_000


def read_all(texts, engine_class=Engine):
    """Read documents twice, and return the number of reads of the backend in the second pass."""
    backend = Counted()
    engine = engine_class(backend, "")
    backend.commit("alice", Commit({kind: text.encode() for kind, text in texts.items()}, {}))
    for _ in range(2):
        backend.reads = 0
        for kind in texts:
            engine.document("alice", kind)
    return backend.reads


def test_five_thousand_small_documents_are_read_once():
    assert read_all({f"items/t{number}": "" for number in range(5_000)}) == 0


def test_documents_of_more_characters_than_the_cache_keeps_are_read_again():
    text = f"# {'x' * 120_000}\n"
    texts = {f"items/t{number}": text for number in range(9)}
    assert read_all(texts) == 0
    assert read_all(texts, Small) == 9


class EndsCounted(MemoryBackend):
    """Counts the reads of the end of history."""

    ends = 0

    def last_record(self, user):
        self.ends += 1
        return super().last_record(user)


def test_a_turn_reads_the_end_of_history_once():
    backend = EndsCounted()
    alice = Diary(backend, agent="rules").user("alice")
    alice.add_turn("I love green tea.", "Noted.", "s1")
    backend.ends = 0
    done = alice.add_turn("I love black coffee.", "Noted.", "s1")
    assert done.applied == 1
    assert backend.ends == 1


class RecordsCounted(LocalBackend):
    """Counts the calls that read records of history."""

    calls = 0

    def records(self, user):
        self.calls += 1
        return super().records(user)


def test_only_the_first_read_looks_for_the_state_before_a_hand_edit(tmp_path):
    backend = RecordsCounted(tmp_path)
    diary = Diary(backend, agent="rules")
    diary.constrain("preferences", Constraint(immutable=True))
    alice, file = diary.user("alice"), tmp_path / "alice/preferences.toml"
    alice.upsert_preference("likes", "tea")
    alice.set_block("persona", "calm")
    file.write_text(file.read_text().replace("tea", "rum"))
    age(file)
    Diary(tmp_path, agent="rules").user("alice").forget(key="blocks/persona")  # logs the hand edit
    counts = []
    for _ in range(2):
        backend.calls = 0
        assert alice.preferences("likes")["pref001"].text == "tea"
        counts.append(backend.calls)
    assert (counts[0] > 0, counts[1]) == (True, 0)


class WithoutChangeTimes(FileSystem):
    def token(self, path):
        found = super().token(path)
        return found and (*found[:3], 0)

    def read_file(self, path, *, most=None):
        found = super().read_file(path, most=most)
        return found and (found[0], (*found[1][:3], 0))


def test_a_save_within_a_tick_of_the_file_clock_is_read(tmp_path):
    """Two saves within a tick have the same times, so a file that has just changed is read again."""
    alice = Diary(LocalBackend(tmp_path, files=WithoutChangeTimes()), agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    path, tick = tmp_path / "alice/preferences.toml", time.time_ns() + 3_600_000_000_000
    for text in ("tea", "ale"):
        path.write_text(path.read_text().replace('"tea"', f'"{text}"'))
        os.utime(path, ns=(tick, tick))
        assert alice.preferences("likes")["pref001"].text == text
