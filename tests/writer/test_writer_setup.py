"""A key, package or model that is missing is said at once, and failed turns are told of."""

from __future__ import annotations

import logging
import re
import sys
from importlib.machinery import PathFinder

import pytest

import programs
from tomldiary import Diary, MemoryWriter, Turn
from tomldiary.errors import ExtractorUnusable, InvalidValue

SUBMIT = """
import sys
from tomldiary import Diary, MemoryWriter, Turn
writer = MemoryWriter(Diary(sys.argv[1]{agent}))
print(writer.health().status)
print("made", file=sys.stderr)
receipts = [writer.submit_nowait(Turn("ann", "s", text, "ok")) for text in ("I like tea.", "I like rye.")]
print(writer.flush(60))
print("flushed", file=sys.stderr)
receipts = [writer.submit_nowait(Turn("ann", "s", "I like oat.", "ok"))]
writer.close_sync()
print("closed", file=sys.stderr)
"""


def test_completion_of_a_writer_shows_its_verbs_only(tmp_path):
    with MemoryWriter(Diary(tmp_path, agent="rules")) as writer:
        shown = dir(writer)
        assert {"submit", "flush", "close_sync"} <= set(shown)
        assert not {"after_fork", "look_for_dead_writers"} & set(shown)


def run(tmp_path, *, agent=""):
    code = SUBMIT.format(agent=agent)
    done = programs.run("-c", code, tmp_path, imported=programs.FRAMEWORKS, env={}, check=True)
    made, _, rest = done.stderr.partition("made\n")
    flushed, _, rest = rest.partition("flushed\n")
    closed, _, _ = rest.partition("closed\n")
    return done.stdout.split(), made, flushed, closed


LEFT = """
import sys, threading
from tomldiary import Diary, MemoryWriter, Turn
gate = threading.Event()
writer = MemoryWriter(Diary(sys.argv[1], agent=lambda message, *, deps: gate.wait(60)))
writer.submit_nowait(Turn("ann", "s", "I like tea.", "ok")).wait_stored(60)
writer.close_sync(0)
gate.set()
"""


@pytest.mark.parametrize(("place", "fate"), [("m", "it is kept in"), ("memory:", "it is lost")])
def test_turns_left_at_the_end_are_reported_without_logging(tmp_path, place, fate):
    done = programs.run("-c", LEFT, place, cwd=tmp_path, check=True, teardown=True)
    assert f"closed with 1 turn not applied; {fate}" in done.stderr


def test_a_missing_key_is_reported_by_the_constructor(tmp_path):
    printed, made, flushed, closed = run(tmp_path)
    assert printed == ["unhealthy", "True"]
    assert made.count("\n") == 1
    assert "OPENAI_API_KEY" in made
    assert "'openai-chat:gpt-5-mini'" in made
    assert flushed.count("a turn could not be applied") == 1
    assert "OPENAI_API_KEY" in flushed
    assert "tomldiary writer list" in flushed
    assert "turns that failed: 2; in the dead letters of this writer: 2" in flushed
    assert "turns that failed: 1; in the dead letters of this writer: 3" in closed
    assert "tea" not in flushed


@pytest.mark.parametrize(
    ("hidden", "environment", "install"),
    [
        ("pydantic_ai", {}, "tomldiary-kit[openai]"),
        ("openai", {"OPENAI_API_KEY": "x"}, "tomldiary-kit[openai]"),
        ("pydantic_ai", {"EXTRACTOR_MODEL": "anthropic:x"}, "tomldiary-kit[pydantic-ai]"),
    ],
)
def test_a_missing_package_is_reported_by_the_constructor(
    tmp_path, monkeypatch, caplog, hidden, environment, install
):
    for name in ("OPENAI_API_KEY", "EXTRACTOR_MODEL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    find = PathFinder.find_spec
    for name in [each for each in sys.modules if each.partition(".")[0] == hidden]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, hidden, None)
    monkeypatch.setattr(
        PathFinder, "find_spec", lambda name, *rest: None if name == hidden else find(name, *rest)
    )
    with caplog.at_level(logging.WARNING, "tomldiary"), MemoryWriter(Diary(tmp_path)) as writer:
        assert writer.health().status == "unhealthy"
    assert install in caplog.text
    assert hidden in caplog.text


def test_an_unknown_model_is_reported_on_the_first_turn(tmp_path):
    printed, made, flushed, _ = run(tmp_path, agent=", agent='nonsense:model'")
    assert (printed, made) == (["healthy", "True"], "")
    assert "'nonsense:model' cannot be used" in flushed


def test_a_usable_setup_prints_nothing(tmp_path):
    assert run(tmp_path, agent=", agent='rules'") == (["healthy", "True"], "", "", "")


def test_the_middleware_reports_a_setup_problem_when_constructed(tmp_path):
    code = f"""
from tomldiary_langchain import DiaryMiddleware
DiaryMiddleware({str(tmp_path)!r}, user_id="alice").writer.close_sync()
"""
    done = programs.run("-c", code, imported=programs.FRAMEWORKS, env={}, check=True)
    assert "OPENAI_API_KEY" in done.stderr


def test_an_extractor_that_counts_as_false_is_one(tmp_path, monkeypatch):
    class Listed(list[str]):
        def run(self, message, *, deps):
            self.append(deps.user_msg)

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    heard = Listed()
    with MemoryWriter(Diary(tmp_path, agent=heard)) as writer:
        assert writer.health().status == "healthy"
        writer.submit_nowait(Turn("ann", "s", "I like tea.", "ok"))
    assert heard == ["I like tea."]


def test_a_host_with_logging_gets_a_log_record(tmp_path, caplog, capsys, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with caplog.at_level(logging.WARNING, "tomldiary"):
        MemoryWriter(Diary(tmp_path, agent="openai:gpt-5")).close_sync()
    assert "OPENAI_API_KEY" in caplog.text
    assert capsys.readouterr().err == ""


def test_the_log_of_a_dead_letter_names_its_cause(tmp_path, caplog):
    def extract(message, *, deps):
        raise ExtractorUnusable("the model is gone.")

    with (
        caplog.at_level(logging.ERROR, "tomldiary"),
        MemoryWriter(Diary(tmp_path, agent=extract)) as writer,
    ):
        writer.submit_nowait(Turn("ann", "s", "I like tea.", "ok"))
        assert writer.flush(20)
    assert (
        "a turn could not be applied: the model is gone. It is in the dead letters" in caplog.text
    )


def test_health_names_the_last_failure_until_a_turn_is_applied(tmp_path):
    def extract(message, *, deps):
        if deps.user_msg == "bad":
            raise ExtractorUnusable("the model is gone.")
        if deps.user_msg == "worse":
            raise ValueError(deps.user_msg)

    with MemoryWriter(Diary(tmp_path, agent=extract)) as writer:
        for text, said in (("bad", "the model is gone."), ("worse", "ValueError."), ("good", None)):
            writer.submit_nowait(Turn("ann", "s", text, "ok"))
            assert writer.flush(20)
            reasons = writer.health().reasons
            assert writer.stats()["last_failure"] == said
            assert (f"the last turn failed: {said}" in reasons) is (said is not None)
            assert "worse" not in str(reasons)


def test_a_key_set_later_makes_the_writer_healthy(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with MemoryWriter(Diary(tmp_path, agent="openai:gpt-5")) as writer:
        assert writer.health().status == "unhealthy"
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        assert writer.health().status == "healthy"


def test_a_folder_instead_of_a_diary_is_refused(tmp_path):
    with pytest.raises(InvalidValue, match="expected a Diary, found str"):
        MemoryWriter(str(tmp_path))


def test_an_update_memory_that_is_no_coroutine_is_named_on_its_turn(tmp_path, caplog):
    class Plain(Diary):
        def update_memory(self, *turn, context_now):  # pyright: ignore[reportIncompatibleMethodOverride]
            return None

    class Passing(Plain):
        def update_memory(self, *turn, context_now):
            return Diary.update_memory(self, *turn, context_now=context_now)

    said = "update_memory returned no coroutine. Define it with async def."
    with MemoryWriter(Plain(tmp_path / "plain", agent="rules")) as writer:
        receipt = writer.submit_nowait(Turn("ann", "s", "I like tea.", "ok"))
        with pytest.raises(ExtractorUnusable, match=re.escape(said)):
            receipt.wait(20)
    assert f"a turn could not be applied: {said}" in caplog.text
    with MemoryWriter(Passing(tmp_path / "passing", agent="rules")) as writer:
        writer.submit_nowait(Turn("ann", "s", "I like tea.", "ok")).wait(20)
        assert len(writer.diary.user("ann").preferences("likes")) == 1
