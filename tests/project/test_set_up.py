"""The commands that pages show install what the pages use."""

from __future__ import annotations

import os
import re
import shlex
import signal
import tomllib

import pytest
from test_readme import PAGES, ROOT, blocks, name

import programs

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PAGE = ROOT / "docs/how-to/fastapi.md"


def test_no_extra_names_another_one_with_a_marker():
    # The build replaces the name by what the other extra lists, and drops the marker.
    own = [each for names in EXTRAS.values() for each in names if each.startswith(PROJECT["name"])]
    assert own
    assert [each for each in own if ";" in each] == []


def test_all_is_without_wordllama_on_python_3_14():
    listed = [each for each in EXTRAS["all"] if each.startswith("wordllama")]
    assert listed == [f"{EXTRAS['embeddings'][1]}; python_version < '3.14'"]


def test_the_installation_page_lists_every_extra():
    text = (ROOT / "docs/install.md").read_text("utf-8")
    (listed,) = re.findall(r"The extras are (.*?)\.\s", text, re.DOTALL)
    names = re.findall(r"`([\w-]+)`", listed.partition(";")[0])
    assert sorted(names) == sorted(EXTRAS)


@pytest.mark.parametrize("page", [each for each in PAGES if "tutorials" in each.parts], ids=name)
def test_a_tutorial_that_runs_a_command_installs_the_command_line(page):
    lines = "".join(each.text for each in blocks(page) if each.language in {"bash", "console"})
    (installed,) = re.findall(r'pip install "\.\[([\w,-]+)\]"', lines)
    assert "-m tomldiary" not in lines or {"cli", "all"} & set(installed.split(","))


def test_the_application_of_the_fastapi_page_starts_as_shown(tmp_path):
    pytest.importorskip("uvicorn", reason="part of the extra test")
    file = [each.text for each in blocks(PAGE) if each.language == "python"][:2]
    (tmp_path / "app.py").write_text("\n\n".join(file), "utf-8")
    (shown,) = re.findall(r"start it with: uvicorn (.+)", file[1])
    command = ("-m", "uvicorn", *shlex.split(shown), "--port", "0")
    reading, writing = os.pipe()
    process = programs.start(*command, cwd=tmp_path, streams=(0, 1, writing))
    os.close(writing)
    with os.fdopen(reading) as stderr:
        told = []
        for line in stderr:
            told.append(line)
            if "startup complete" in line:
                break
        assert "startup complete" in told[-1], "".join(told)
        os.kill(process.pid, signal.SIGTERM)
        process.wait(60)
