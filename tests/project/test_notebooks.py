"""Each notebook runs from top to bottom, in an event loop that is running already, as in Jupyter."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def cells(path):
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []  # kept clean, so that diffs show what changed
            yield "".join(cell["source"])


async def run_all(path):
    names = {"__name__": "__main__"}
    for number, source in enumerate(cells(path)):
        code = compile(source, f"{path.name}[{number}]", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)  # noqa: S307 - our own notebook
        if inspect.isawaitable(result):
            await result
    return names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_from_top_to_bottom(path, capsys):
    asyncio.run(run_all(path))
    assert capsys.readouterr().out.strip()


def test_the_first_notebook_shows_the_whole_point(capsys):
    names = asyncio.run(run_all(NOTEBOOKS[0]))
    shown = capsys.readouterr().out
    assert "[preferences.allergies.pref001]" in shown
    assert "I'm allergic to walnuts." in shown
    assert "light roast coffee  (since May)" in shown
    assert "tea" not in {item.text for item in names["alice"].preferences("likes").values()}
