"""The indexes of a table survive an update that was interrupted."""

from __future__ import annotations

import sys

import pytest
from pydantic import BaseModel

from tomldiary import Diary
from tomldiary.entries import facts, incremental_index, preferences

UPDATE = incremental_index.__file__
UPDATES = {UPDATE, facts.__file__, preferences.__file__}


class Likes(BaseModel):
    text: str


def is_interrupted(work, number):
    """Interrupt a call at the given call or return of a function that updates an index."""
    left = number

    def interrupt(frame, event, _):
        nonlocal left
        if event in {"call", "return"} and frame.f_code.co_filename in UPDATES:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def preferences(alice, texts):
    for text in texts:
        alice.upsert_preference("likes", text)
    return alice.preferences("likes")


def facts_of(alice, texts):
    for text in texts:
        alice.facts.commit(Likes(text=text))
    return alice.facts()


def change_preference(alice, text):
    alice.upsert_preference("likes", text, id="pref002")


def change_fact(alice, text):
    alice.facts.update(alice.facts()[1].id, {"text": text})


@pytest.mark.parametrize(
    ("stored", "change"), [(preferences, change_preference), (facts_of, change_fact)]
)
def test_equal_texts_are_found_after_an_interrupted_change(stored, change):
    alice = Diary("memory:", agent="rules").user("alice")
    alice.diary.register_schema("likes", Likes)
    stored(alice, ["tea", "rum 0", "milk"])
    number = 1
    while is_interrupted(lambda: change(alice, "coffee"), number):
        change(alice, f"rum {number}")
        assert len(stored(alice, ["tea", f"rum {number}", "milk"])) == 3
        number += 1
    assert number > 10


def test_writes_to_several_parts_read_the_entries_of_all_once(tmp_path):
    diary = Diary(tmp_path, agent="rules", max_prefs_per_category=1000)
    diary.engine.part_size = 1000
    diary.register_schema("likes", Likes)
    alice, read = diary.user("alice"), []
    preferences(alice, map(str, range(20)))
    facts_of(alice, map(str, range(20)))
    update = incremental_index.IncrementalIndex.update.__code__

    def count(frame, event, _):
        is_of_update = frame.f_back is not None and frame.f_back.f_code is update
        if event == "call" and is_of_update and frame.f_code.co_filename != UPDATE:
            read.append(frame.f_code.co_name)

    sys.setprofile(count)
    with alice.transaction():
        for number in range(20):
            alice.upsert_preference("likes", f"new {number}")
            alice.facts.commit(Likes(text=f"new {number}"))
    sys.setprofile(None)
    assert len(alice.diary.engine.parts("alice", "facts")) > 3
    assert len(read) < 20  # a new part may be read again
