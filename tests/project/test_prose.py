"""The prose check finds what it is meant to find."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci/prose.py"

pytestmark = pytest.mark.skipif(
    not SCRIPT.is_file(), reason="the source distribution has no .ci folder"
)


@pytest.fixture(scope="module")
def prose():
    spec = spec_from_file_location("prose", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["prose"] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules["prose"]


@pytest.mark.parametrize(
    "text",
    [
        "Whoever opens the user next finishes it.",
        "A former version gives way to the next.",
        "Turns that were taken in.",
        "The spare is opened.",
        "A history that is laid out ahead of its records.",
        "One look tells it.",
    ],
)
def test_words_outside_the_glossary_are_found(prose, text):
    found = list(prose.words_of(ROOT / "tomldiary/errors.py", 1, text))
    assert [finding.place for finding in found] == ["tomldiary/errors.py:1"]


@pytest.mark.parametrize(
    "text",
    [
        "Steps are taken in order.",
        "Call `take_turns` and `nobody`.",
        "The lock is released at exit.",
    ],
)
def test_plain_sentences_have_no_finding(prose, text):
    assert list(prose.words_of(ROOT / "tomldiary/errors.py", 1, text)) == []


def test_docstrings_comments_and_messages_are_read(prose):
    source = (
        '"""One."""\n# Two.\nraise ValueError(f"Three {x}.")\nlog.warning("Four.")\nx = "Five."\n'
    )
    assert {text.strip("# ") for _, text in prose.python_texts(source)} == {
        "One.", "Two.", "Three", ".", "Four.",
    }  # fmt: skip
    assert {text.strip("# ") for _, text in prose.python_texts(source, messages=False)} == {"One.", "Two."}  # fmt: skip


def test_pages_in_folders_of_the_docs_are_read(prose, tmp_path, monkeypatch):
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    page = tmp_path / "docs/how-to/page.md"
    page.parent.mkdir(parents=True)
    page.write_text(" ".join(["word"] * 31) + ".\n")
    (tmp_path / "README.md").write_text("Short.\n")
    assert "docs/how-to/page.md:1" in [each.place for each in prose.findings()]


@pytest.mark.parametrize(("words", "finding"), [(30, None), (31, "31 words")])
def test_a_sentence_has_at_most_30_words(prose, tmp_path, monkeypatch, words, finding):
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# Page\n\nShort one. Short two. " + " ".join(["word"] * words) + ".\n")
    found = list(prose.page(page))
    assert [each.text.partition(":")[0] for each in found] == ([finding] if finding else [])


def test_the_median_sentence_has_at_most_20_words(prose, tmp_path, monkeypatch):
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("- " + " ".join(["word"] * 21) + ".\n- " + " ".join(["word"] * 21) + ".\n")
    assert [each.text for each in prose.page(page)] == ["the median sentence has 21.0 words"]
