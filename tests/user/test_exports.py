"""What methods return can be imported from the top, and every error from `tomldiary.errors`."""

import inspect
import re
from importlib import import_module

import pytest

import tomldiary
from tomldiary import Diary, errors


def test_types_that_a_user_diary_returns_are_exported():
    alice = Diary("memory:", agent="rules").user("alice")
    returned = [alice.add_turn("I like green tea.", "Noted.", session_id="s1")]
    returned += alice.similar("likes", "green tea")
    returned += alice.recall("tea")
    returned += alice.history()
    returned += [alice.why("likes/pref001"), *alice.diff(0), alice.kept_history()]
    returned += [alice.rollback(dry_run=True), alice.forget(session_id="s1", dry_run=True)]
    names = {type(each).__name__ for each in returned}
    assert {"Applied", "Match", "Hit", "HistoryEntry", "Origin", "Difference", "Rollback"} <= names
    for each in returned:
        assert getattr(tomldiary, type(each).__name__) is type(each)
        assert type(each).__doc__


@pytest.mark.parametrize("name", ["Health", "IngestReport", "Receipt", "Episode", "Fact"])
def test_results_of_writer_and_ingest_are_exported(name):
    assert name in tomldiary.__all__
    assert getattr(tomldiary, name).__doc__


@pytest.mark.parametrize("adapter", ["", "_langchain", "_langgraph", "_pydantic_ai"])
def test_a_package_offers_its_public_names_for_completion(adapter):
    package = import_module(f"tomldiary{adapter}")
    assert set(package.__all__) <= set(dir(package))


PACKAGES = ["", ".compaction", ".storage", ".writer", "_langchain", "_langgraph", "_pydantic_ai"]


@pytest.mark.parametrize("name", PACKAGES)
def test_completion_shows_no_name_that_a_package_only_imports(name):
    package = import_module(f"tomldiary{name}")
    assert dir(package) == sorted(package.__all__)


@pytest.mark.parametrize("name", ["", ".compaction", ".storage", ".writer"])
def test_type_checkers_see_the_names_that_are_loaded_lazily(name):
    package = import_module(f"tomldiary{name}")
    seen = re.findall(
        r"^ {4,8}(?:from \S+ import )?(\w+) as \1,?$", inspect.getsource(package), re.MULTILINE
    )
    assert sorted({*seen, "__version__"} & {*seen, *package.__all__}) == package.__all__


def test_every_error_is_drawn_in_the_tree():
    found = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.DiaryError)
    }
    assert [name for name in found if name not in errors.__doc__] == []
