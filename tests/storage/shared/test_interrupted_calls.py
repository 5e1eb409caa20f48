"""An exception of a signal handler, as by Ctrl-C or a task's time limit, spoils no later call of the process."""

from __future__ import annotations

import sys
from contextlib import suppress

import pytest

import engines
from tomldiary import Diary
from tomldiary.storage.open import open_backend

# The exception is raised at the end of one function, which another one calls; only a first call takes the lock.
PLACES = [
    pytest.param("redis", "", "send_packed_command", "send_command", 1, id="redis-answer"),
    pytest.param(
        "postgres", "&connections=1&timeout=5", "getconn", "_taken", 1, id="postgres-pool"
    ),
    pytest.param("postgres", "&timeout=5", "acquire", "_prepare", 0, id="postgres-lock"),
]


@pytest.mark.parametrize(("name", "options", "function", "caller", "times"), PLACES)
def test_an_interrupted_call_leaves_its_answer_to_no_other(name, options, function, caller, times):
    place, interrupted = engines.space(name), []
    with Diary(place.url, agent="rules") as diary:
        diary.user("alice").upsert_preference("likes", "tea")
        diary.user("bob").upsert_preference("likes", "coffee")
    with Diary(open_backend(f"{place.url}{options}", None), agent="rules") as diary:
        assert diary.users() == ["alice", "bob"]

        def interrupt(frame, event, ended):
            if event == "return":
                places = frame.f_code.co_name, frame.f_back and frame.f_back.f_code.co_name
            else:  # `ended` is a function in C
                places = getattr(ended, "__name__", ""), frame.f_code.co_name
            if event in {"return", "c_return"} and places == (function, caller):
                sys.setprofile(None)
                interrupted.append(places)
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            sys.setprofile(interrupt)
            diary.user("alice").preferences("likes")
        sys.setprofile(None)
        liked = [each.text for each in diary.user("bob").preferences("likes").values()]
        diary.engine.backend.close()
    assert (liked, len(interrupted)) == (["coffee"], times)
