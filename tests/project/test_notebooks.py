"""Each notebook, and what a reader pastes from a page, runs in a real kernel, whose event loop runs already."""

from __future__ import annotations

import re
from functools import partial

import pytest
from test_readme import README, ROOT, TEST_FILE, blocks, matches

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# Run between cells: the fields of every entry that are no bookkeeping, by user and key.
STATE = """
import json as _json
from tomldiary.views.memory import stored_entries as _stored
def _state():
    if not isinstance(globals().get("diary"), __import__("tomldiary").Diary):
        return None
    return _json.dumps([
        [user, key, [[name, repr(value)] for name, value in entry.items() if name[0] != "_"]]
        for user in diary.users() for _, _, key, entry in _stored(diary.user(user))
    ])
"""
AGAIN = """
_before, _was = _state(), globals().get('diary')
{}
assert _state() == _before and _was is globals().get('diary'), (_before, _state())
"""

PAGES = [
    README,
    *(ROOT / "docs" / f"{name}.md" for name in ("langgraph", "langchain", "langchain-details")),
    *(ROOT / "docs" / f"{name}.md" for name in ("pydantic-ai", "pydantic-ai-details", "search")),
    ROOT / "docs/how-to/user-interface.md",
]

SHOWN = {
    "01_five_minutes": [
        "[preferences.allergies.pref001]",
        "allergic to <mark>walnuts</mark>",
        "<ins>+ text = &quot;I live in Lisbon since November.&quot;</ins>",
        "image/png",
        "<del>I live in Porto.</del> → <ins>I live in Lisbon since November.</ins>",
        "relationships/pref001  My sister is called Ines.",
    ],
    "02_langgraph": [
        "The walnut cake, of course!",
        "alice: The carrot cake. It is baked without walnuts.",
        "bob:   The walnut cake, of course!",
        "items/<wbr>orders/<wbr>birthday",
        "[items.birthday]",
    ],
    "03_pydantic_ai": [
        "1. Which device do you have?",
        "3. Let us look at your R200 by mail.",
        "4. Which device do you have?",
        '<span class="td-badge td-good">healthy</span>',
        "Learn to repair the router",
    ],
    "04_one_memory_three_frameworks": [
        "I never drink coffee after noon.",
        "half marathon in June",
        "I&#x27;m allergic to walnuts.",
        "session pydantic",
        "<del>My goal is to run a marathon in May.</del> → <ins>My goal is to run a half marathon in June.</ins>",
    ],
    "05_history_and_forgetting": [
        "<del>I&#x27;m allergic to penicillin.</del>",
        "before: {'Ghent': [1-9]",
        "after:  {'Ghent': 0} {'penicillin': [1-9]",
        "The two states are the same.",
        "Forgotten",
    ],
    "06_measuring_memory": [
        "data: the built-in sample",
        "recall@5",
        "Which race is she training for",
        "merged with another thing",
        "opposite meaning",
    ],
}


# Not for the session: its thread would run beside tests that watch the threads of this process.
@pytest.fixture(scope="module")
def execute(tmp_path_factory):
    """Run cells in a folder, all in one kernel; see `kernels.execute`."""
    import kernels  # noqa: PLC0415 - slow to import

    with kernels.running_kernel(tmp_path_factory.mktemp("kernel")) as client:
        yield partial(kernels.execute, client)


def outputs(cells):
    """Return what cells showed, as one text."""
    found = []
    for cell in cells:
        for output in cell.outputs:
            assert output.get("name") != "stderr", output
            found.append(output.get("text", ""))
            data = output.get("data", {})
            found += [data.get("text/html", ""), data.get("text/plain", ""), *data]
    return "\n".join(found)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_a_cell_twice_stores_nothing_new(path, execute, tmp_path):
    import nbformat  # noqa: PLC0415 - slow to import

    stored = nbformat.read(path, as_version=4)
    cells = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)  # kept clean for diffs
    run = [STATE]
    for cell in cells:
        is_once = "diary = Diary(" in cell.source or ".plot_" in cell.source  # another memory; slow
        again = "" if is_once else cell.source
        run += [cell.source, AGAIN.format(again)]
    shown = outputs(execute(tmp_path, run)[1::2])
    for expected in SHOWN[path.stem]:
        assert re.search(escaped(expected), shown), expected


def escaped(expected):
    """Return a pattern for a text in which `[1-9]` stands for a digit."""
    return "[1-9]".join(map(re.escape, expected.split("[1-9]")))


def test_each_notebook_is_checked():
    assert [path.stem for path in NOTEBOOKS] == sorted(SHOWN)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_python_block_of_a_page_runs_in_a_notebook(page, execute, tmp_path):
    shown, sources = [], []
    for block in blocks(page):
        if block.language == "python" and not TEST_FILE.match(block.text):
            sources.append(block.text)
        elif block.language == "text" and sources:
            shown.append((len(sources) - 1, block))
    cells = execute(tmp_path, sources)
    printed = [
        "".join(output.get("text", "") for output in cell.outputs if output.get("name") == "stdout")
        for cell in cells
    ]
    told = [each.text for cell in cells for each in cell.outputs if each.get("name") == "stderr"]
    assert "".join(told) == ""
    for number, block in shown:
        assert matches(block.text, printed[number]), f"{block.place} should be:\n{printed[number]}"
