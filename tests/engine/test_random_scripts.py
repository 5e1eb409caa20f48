"""Random calls of all verbs: a second reader, the past and a repetition agree, in each storage."""

from __future__ import annotations

import random
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import BaseModel

from engines import ALL, SERVERS, needs, space
from tomldiary import Constraint, Diary
from tomldiary.errors import DiaryError
from tomldiary_langgraph import DiaryStore

VARYING = re.compile(r"\d{4}-\d\d-\d\d[-T ]\d[-\d:.+]*|\b[0-9a-f]{8,}\b|datetime\(.*?\)")
LONG_AGO = datetime.now(UTC) - timedelta(days=9)


class Pet(BaseModel):
    name: str
    kind: str


class Home(BaseModel):
    who: str
    city: str


def opened(place):
    diary = Diary(place.only or place.url, agent="rules", quarantine={"web"})
    diary.register_schema("pet", Pet, Constraint(singleton_key="name"))
    diary.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))
    diary.constrain("preferences/goals", Constraint(ttl=timedelta(days=1)))
    return diary


def call(user, choose):
    """Call a random verb; return its answer, and itself if it can be repeated."""
    text = f"{choose.choice(['tea', 'chess', 'jazz'])} {choose.randrange(9)}"
    said = {"session_id": choose.choice(["s1", "s2"])}
    once = {**said, "operation_id": f"{choose.random()}"}
    now = choose.choice([None, LONG_AGO])
    key = choose.choice("ab")
    verbs = [
        lambda: user.upsert_preference("likes", text, **once),
        lambda: user.upsert_preference("goals", text, now=now, **once),
        lambda: user.facts.commit("pet", {"name": key, "kind": text}, **once),
        lambda: user.facts.commit("home", {"who": key, "city": text}, valid_from=now, **once),
        lambda: user.blocks.append(key, text, **once),
        lambda: user.episodes.add(text, "ok", now=now, **once),
        lambda: user.facts.delete(f"pet/{key}", **said),
        lambda: user.blocks.delete(key, **said),
        lambda: user.remove_preference("likes", choose.choice([*user.preferences("likes"), "x"])),
        lambda: DiaryStore(user.diary).put((user.user_id, "notes"), key, {"text": text}),
        lambda: DiaryStore(user.diary).delete((user.user_id, "notes"), key),
        lambda: user.add_turn(f"I love {text}.", "ok", said["session_id"], now=now),
        lambda: user.draft(said["session_id"]).upsert_preference("likes", text),
        lambda: user.promote_session(**said),
        lambda: user.upsert_preference("likes", text, actor="web", **said),
        lambda: user.review.accept(*(each.id for each in user.review())),
        lambda: user.forget(key=f"blocks/{key}"),
        lambda: user.prune_history(keep=9),
        lambda: user.import_(user.as_of(max(user.last_transaction() - 2, 0)).export()),
        lambda: in_one_transaction(user, text, key),
    ]
    number = choose.randrange(len(verbs))
    return verbs[number](), verbs[number] if number < 6 else None


def in_one_transaction(user, text, key):
    with user.transaction(session_id="s3") as inside:
        inside.upsert_preference("likes", text)
        inside.blocks.replace(key, "e", "é")  # undoes both if the block has another number of them


def shown(user):
    """Return what a user of the library sees, in its order."""
    found = [(fact.id, fact.data) for fact in user.facts.query(include_ended=True)]
    return found, list(user.blocks), user.preferences(), user.render(), user.export()["documents"]


def values(user):
    return user.export(entries=True)["entries"]


def play(place, seed, count):
    choose = random.Random(seed)
    with opened(place) as one, opened(place) as two:
        for _ in range(count):
            user, other = choose.sample([one.user("alice"), two.user("alice")], 2)
            step(user, choose)
            assert shown(user) == shown(other)
            past = user.as_of(user.last_transaction())
            assert past.export()["documents"] == user.export()["documents"]


def step(user, choose):
    """Make a call and repeat it, or roll back twice."""
    before, last = values(user), user.last_transaction()
    answer = repeat = None
    with suppress(DiaryError):
        if choose.random() < 0.8:
            answer, repeat = call(user, choose)
        else:
            user.rollback(choose.randint(1, 3))
            if user.last_transaction() > last:  # else nothing was left to undo
                assert user.rollback().undone == [last + 1]
            assert without_goals(values(user)) == without_goals(before)
    if repeat is not None:
        stored = user.export()["documents"]
        assert repeat() == answer
        assert user.export()["documents"] == stored


def without_goals(entries):
    """Leave out what ends by itself."""
    return {key: entry for key, entry in entries.items() if not key.startswith("goals/")}


@pytest.mark.parametrize("name", ["memory", "folder"])
def test_random_scripts_show_the_same_to_all_readers(name, tmp_path):
    for seed in range(2):
        play(space(name, tmp_path / str(seed)), seed, 25)


def outcomes(place, seed, count):
    """Return the answers and errors of a script, and what it leaves; without times, ids made of them, and addresses."""
    choose, found = random.Random(seed), []
    with opened(place) as diary:
        user = diary.user("alice")
        for _ in range(count):
            try:
                found.append(repr(call(user, choose)[0]))
            except DiaryError as error:
                found.append(f"{type(error).__name__}: {error}")
        left = [*shown(user), *user.history(limit=999), *user.recall("tea", 20), user.epoch]
    return [VARYING.sub("", each.replace(place.url, "")) for each in [*found, *map(repr, left)]]


@pytest.mark.parametrize("name", [pytest.param(each, marks=needs(each)) for each in SERVERS])
def test_a_random_script_does_the_same_in_a_folder_and_in_a_database(name, tmp_path):
    for seed in range(3):
        in_folder = outcomes(space("folder", tmp_path / str(seed)), seed, 40)
        assert outcomes(space(name), seed, 40) == in_folder


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
@pytest.mark.parametrize("name", ALL)
def test_100_random_scripts_show_the_same_to_all_readers(name, tmp_path):
    for seed in range(100):
        play(space(name, tmp_path / str(seed)), seed, 40)
